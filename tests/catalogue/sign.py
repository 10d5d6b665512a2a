"""Rows for `gradxform/transforms/sign.py` and its recipes."""

import numpy as np

import gradxform as gx
from tests import references as ref
from tests.catalogue.case import SGD, Case, with_lr
from tests.catalogue.complex_parts import MIXED

TRANSFORMS: dict[str, Case] = {
    "scale_by_focus": Case(gx.scale_by_focus(), ref.focus(0.9, 0.999, 0.1)),
    "scale_by_focus/decay": Case(
        gx.scale_by_focus(0.5, 0.8, 0.3, weight_decay=0.2), ref.focus(0.5, 0.8, 0.3, 0.2)
    ),
    "scale_by_sign": Case(gx.scale_by_sign(), ref.sign),
    "scale_by_sign/complex": Case(gx.scale_by_sign(), ref.sign, tree=MIXED),
    "scale_by_lion/complex": Case(
        gx.scale_by_lion(0.5, 0.9, mode="smooth", smooth_beta=2.0),
        ref.lion(0.5, 0.9, lambda c: np.sign(c) * np.tanh(2 * np.abs(c))),
        tree=MIXED,
    ),
    "scale_by_lion": Case(gx.scale_by_lion(), ref.lion(0.9, 0.99)),
    "scale_by_lion/smooth": Case(
        gx.scale_by_lion(mode="smooth", smooth_beta=2.0),
        ref.lion(0.9, 0.99, lambda c: np.tanh(2 * c)),
    ),
    "scale_by_lion/refined": Case(
        gx.scale_by_lion(0.5, 0.9, mode="refined"),
        ref.lion(0.5, 0.9, lambda c: np.where(np.abs(c) < 1, c, np.sign(c))),
    ),
}


OPTIMIZERS: dict[str, Case] = {
    "focus": Case(gx.focus(0.1), with_lr(0.1, ref.focus(0.9, 0.999, 0.1))),
    "tiger": Case(gx.tiger(0.1), with_lr(0.1, ref.ema(0.965, False), ref.sign, ref.decay(0.01))),
    "lion/complex": Case(
        gx.lion(0.1), with_lr(0.1, ref.lion(0.9, 0.99), ref.decay(1e-3)), tree=MIXED
    ),
    "sign_sgd/complex": Case(gx.sign_sgd(0.1), ref.sequence(ref.sign, SGD), tree=MIXED),
    "lion": Case(gx.lion(0.1), with_lr(0.1, ref.lion(0.9, 0.99), ref.decay(1e-3))),
    "signum": Case(gx.signum(0.1), with_lr(0.1, ref.ema(0.9, False), ref.sign)),
    "sign_sgd": Case(gx.sign_sgd(0.1), ref.sequence(ref.sign, SGD)),
}
