"""Rows for `gradxform/transforms/came.py` and its recipes."""

import gradxform as gx
from tests import references as ref
from tests.catalogue.case import FALLING, FALLING_LR, Case, matrix, with_lr

TRANSFORMS: dict[str, Case] = {
    "scale_by_confidence": Case(
        gx.scale_by_confidence(), ref.confidence(0.9, 0.9999, 1e-16), rows=False
    ),
    "scale_by_confidence/eps": Case(
        gx.scale_by_confidence(0.5, 0.9, 0.1),
        ref.confidence(0.5, 0.9, 0.1),
        rows=False,
        huge_ok=1 / 8,  # for m / 2 + g / 2, XLA adds before it halves
    ),
}


OPTIMIZERS: dict[str, Case] = {
    "came": Case(
        gx.came(0.1),
        with_lr(0.1, ref.came_moment(0.999, 1e-30, 1.0), ref.confidence(0.9, 0.9999, 1e-16)),
        rows=False,
    ),
    "came/decay": Case(
        gx.came(FALLING, 0.5, 0.9, 0.8, 0.1, 0.2, 0.7, 0.3, gx.ndim_at_least(2)),
        ref.sequence(
            ref.came_moment(0.9, 0.1, 0.7),
            ref.confidence(0.5, 0.8, 0.2),
            ref.decay(0.3, matrix),
            FALLING_LR,
        ),
        rows=False,
    ),
}


REFUSED = [
    ("came(0.1, b3=1.0)", ValueError, "scale_by_confidence: b3 must be in [0, 1), got 1.0."),
    ("came(0.1, b2=1.5)", ValueError, "came: b2 must be in [0, 1), got 1.5."),
    ("came(0.1, eps2=-1.0)", ValueError, "scale_by_confidence: eps must be at least 0"),
]  # fmt: skip
