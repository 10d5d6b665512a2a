"""Rows for `gradxform/transforms/toward_sgd.py` and its recipes."""

import gradxform as gx
from tests import references as ref
from tests.catalogue.case import FALLING, FALLING_LR, Case, matrix, with_lr

BOUND = ref.adabound(0.9, 0.999, 1e-8, 1.0, 1e-3)

TRANSFORMS: dict[str, Case] = {
    "scale_by_adabound": Case(
        gx.scale_by_adabound(), ref.adabound(0.9, 0.999, 1e-8, 100.0, 1e-3), huge_ok=1 / 1024
    ),
    "scale_by_adabound/largest": Case(
        gx.scale_by_adabound(0.8, 0.5, 0.1, 0.2, 0.5, 0.7, amsgrad=True, bias_correction=False),
        ref.adabound(0.8, 0.5, 0.1, 0.5, 0.7, True, False, 0.2),
    ),
    "scale_by_adabound/loose": Case(
        gx.scale_by_adabound(0.8, 0.5, 0.1, 0.2, 0.5, 0.01),
        ref.adabound(0.8, 0.5, 0.1, 0.5, 0.01, eps_root=0.2),
    ),
    "scale_by_padam": Case(gx.scale_by_padam(), ref.padam(0.9, 0.999, 1e-8, 0.125)),
    "scale_by_padam/corrected": Case(
        gx.scale_by_padam(0.8, 0.5, 0.1, 0.3, amsgrad=False, bias_correction=True),
        ref.padam(0.8, 0.5, 0.1, 0.3, False, True),
    ),
}


OPTIMIZERS: dict[str, Case] = {
    "adabound": Case(gx.adabound(0.1), with_lr(0.1, BOUND)),
    "adabound/decay": Case(
        gx.adabound(FALLING, final_lr=0.2, base_lr=0.2, weight_decay=0.2),
        ref.sequence(BOUND, ref.decay(0.2), FALLING_LR),
    ),
    "adabound/first rate": Case(
        gx.adabound(FALLING, final_lr=0.5), ref.sequence(BOUND, FALLING_LR)
    ),
    "padam": Case(gx.padam(0.1), with_lr(0.1, ref.padam(0.9, 0.999, 1e-8, 0.125))),
    "padam/decay": Case(
        gx.padam(0.1, weight_decay=0.2, mask=gx.ndim_at_least(2)),
        with_lr(0.1, ref.padam(0.9, 0.999, 1e-8, 0.125), ref.decay(0.2, matrix)),
    ),
}


REFUSED = [
    ("adabound(-0.1)", ValueError, "adabound: learning_rate must be at least 0, got -0.1"),
    ("adabound(linear_schedule(0.0, 0.1, 5))", ValueError,
     "adabound: final_lr=0.1 is meant beside a learning rate greater than 0, and", "base_lr="),
    ("padam(0.1, partial=2.0)", ValueError, "scale_by_padam: partial must be in [0, 1]"),
]  # fmt: skip
