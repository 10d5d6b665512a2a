"""Rows for `gradxform/transforms/adalite.py` and its recipes."""

import gradxform as gx
from tests import references as ref
from tests.catalogue.case import FALLING, FALLING_LR, Case, matrix, with_lr

TRANSFORMS: dict[str, Case] = {
    "scale_by_adalite": Case(gx.scale_by_adalite(), ref.adalite(0.9, 0.999, 1e-6), rows=False),
    "scale_by_adalite/bounds": Case(
        gx.scale_by_adalite(0.5, 0.8, 0.1, 0.2, 0.3, 5.0, 0.7),
        ref.adalite(0.5, 0.8, 0.1, 0.2, 0.3, 5.0, 0.7),
        rows=False,
    ),
}


OPTIMIZERS: dict[str, Case] = {
    "adalite": Case(
        gx.adalite(0.1),
        with_lr(0.1, ref.adalite(0.9, 0.999, 1e-6), ref.decay(0.01)),
        rows=False,
    ),
    "adalite/schedule": Case(
        gx.adalite(FALLING, 0.5, 0.8, 0.1, 0.2, 0.3, 5.0, 0.7, 0.3, gx.ndim_at_least(2)),
        ref.sequence(
            ref.adalite(0.5, 0.8, 0.1, 0.2, 0.3, 5.0, 0.7), ref.decay(0.3, matrix), FALLING_LR
        ),
        rows=False,
    ),
}


REFUSED = [
    ("adalite(0.1, eps2=0.0)",
     ValueError, "scale_by_adalite: eps2 must be greater than 0, got 0.0."),
]  # fmt: skip
