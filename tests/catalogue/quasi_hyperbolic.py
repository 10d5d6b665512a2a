"""Rows for `gradxform/transforms/quasi_hyperbolic.py` and its recipes."""

import gradxform as gx
from tests import references as ref
from tests.catalogue.case import FALLING, FALLING_LR, Case, matrix, with_lr

TRANSFORMS: dict[str, Case] = {
    "scale_by_qhadam": Case(gx.scale_by_qhadam(), ref.qhadam(0.995, 0.999, 0.7, 1.0, 1e-8)),
    "scale_by_qhadam/nu": Case(
        gx.scale_by_qhadam(0.8, 0.5, 0.4, 0.3, 0.1), ref.qhadam(0.8, 0.5, 0.4, 0.3, 0.1)
    ),
    "scale_by_qhm": Case(gx.scale_by_qhm(), ref.qhm(0.999, 0.7), huge_ok=1 / 8),
    "scale_by_qhm/nu": Case(gx.scale_by_qhm(0.5, 0.4), ref.qhm(0.5, 0.4), huge_ok=1 / 8),
}


OPTIMIZERS: dict[str, Case] = {
    "qhadam": Case(gx.qhadam(0.1), with_lr(0.1, ref.qhadam(0.995, 0.999, 0.7, 1.0, 1e-8))),
    "qhadam/decay": Case(
        gx.qhadam(FALLING, weight_decay=0.2, mask=gx.ndim_at_least(2)),
        ref.sequence(ref.qhadam(0.995, 0.999, 0.7, 1.0, 1e-8), ref.decay(0.2, matrix), FALLING_LR),
    ),
    "qhm": Case(gx.qhm(0.1), with_lr(0.1, ref.qhm(0.999, 0.7))),
    "qhm/decay": Case(
        gx.qhm(0.1, 0.8, weight_decay=0.2, mask=gx.ndim_at_least(2)),
        with_lr(0.1, ref.qhm(0.8, 0.7), ref.decay(0.2, matrix)),
    ),
}


REFUSED = [
    ("qhm(0.1, nu=1.5)", ValueError, "scale_by_qhm: nu must be in [0, 1]"),
    ("qhadam(0.1, mask=ndim_at_least(2))",
     ValueError, "qhadam: weight_decay_mask does nothing without a weight_decay."),
]  # fmt: skip
