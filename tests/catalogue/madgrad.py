"""Rows for `gradxform/transforms/madgrad.py` and its recipes."""

import gradxform as gx
from tests import references as ref
from tests.catalogue.case import FALLING, Case, falling

TRANSFORMS: dict[str, Case] = {
    "scale_by_madgrad": Case(gx.scale_by_madgrad(0.1), ref.madgrad(0.1, 0.9, 1e-6)),
    "scale_by_madgrad/schedule": Case(
        gx.scale_by_madgrad(FALLING, 0.0, 0.1),
        ref.madgrad(falling, 0.0, 0.1),
        huge_ok=1 / 8,  # it sums gradients
    ),
}


OPTIMIZERS: dict[str, Case] = {
    "madgrad": Case(
        gx.madgrad(0.1, weight_decay=0.1), ref.sequence(ref.decay(0.1), ref.madgrad(0.1, 0.9, 1e-6))
    ),
}


REFUSED = [
    ("madgrad(0.1, 1.0)", ValueError, "scale_by_madgrad: momentum must be in [0, 1)"),
]  # fmt: skip
