"""Rows for `gradxform/transforms/adai.py` and its recipe."""

import gradxform as gx
from tests import references as ref
from tests.catalogue.case import Case, with_lr

TRANSFORMS: dict[str, Case] = {
    "scale_by_adai": Case(gx.scale_by_adai(), ref.adai(0.1, 0.99, 1e-3), rows=False, huge_ok=1 / 8),
    "scale_by_adai/damping": Case(
        gx.scale_by_adai(0.7, 0.5, 0.3, 0.5),
        ref.adai(0.7, 0.5, 0.3, 0.5),
        rows=False,
        huge_ok=1 / 8,
    ),
}


OPTIMIZERS: dict[str, Case] = {
    "adai": Case(
        gx.adai(0.1, weight_decay=0.2),
        with_lr(0.1, ref.adai(0.1, 0.99, 1e-3), ref.decay(0.2)),
        rows=False,
        huge_ok=1 / 8,  # a debiased average rounds to more than the gradient
    ),
}


REFUSED = [
    ("adai(0.1, damping=2.0)", ValueError, "scale_by_adai: damping must be in [0, 1]"),
]  # fmt: skip
