"""Rows for `gradxform/transforms/apollo.py` and its recipes."""

import math

import gradxform as gx
from tests import references as ref
from tests.catalogue.case import FALLING, FALLING_LR, Case, matrix, with_lr

STACKS = gx.GaLoreDimensionNumbers(-2, -1)

TRANSFORMS: dict[str, Case] = {
    "scale_by_apollo": Case(
        gx.scale_by_apollo(2, 3, 0.5), ref.apollo(2, 3, 0.5), rows=False, huge_ok=1 / 8
    ),
    "scale_by_apollo/tensors of stacks": Case(
        gx.scale_by_apollo(1, 2, 0.5, 0.5, 0.9, 0.1, STACKS, granularity="tensor", growth=math.inf),
        ref.apollo(1, 2, 0.5, 0.5, 0.9, 0.1, math.inf, whole=True, stacks=True),
        rows=False,
        huge_ok=1 / 8,
    ),
    "scale_by_apollo/low rank": Case(
        gx.scale_by_apollo(2, 3, growth=1.2, eps_norm=0.1, low_rank=True),
        ref.apollo(2, 3, 1.0, growth=1.2, eps_norm=0.1, low=True),
        rows=False,
        huge_ok=1 / 8,
    ),
}


OPTIMIZERS: dict[str, Case] = {
    "apollo": Case(
        gx.apollo(FALLING, 2, weight_decay=0.2, mask=gx.ndim_at_least(2)),
        ref.sequence(ref.apollo(2, 200, 1.0), ref.decay(0.2, matrix), FALLING_LR),
        rows=False,
        huge_ok=1 / 8,
    ),
    "apollo_mini": Case(
        gx.apollo_mini(0.1),
        with_lr(0.1, ref.apollo(1, 200, 128**0.5, whole=True)),
        rows=False,
        huge_ok=1 / 8,
    ),
}


REFUSED = [
    ("apollo(0.1, 0)", ValueError, "scale_by_apollo: rank must be at least 1, got 0."),
    ("apollo(0.1, growth=0.9)", ValueError, "growth must be at least 1, got 0.9."),
    ("apollo(0.1, granularity='row')",
     ValueError, "scale_by_apollo: granularity must be one of 'channel', 'tensor', got 'row'."),
    ("apollo(0.1, weight_dimension_numbers=GaLoreDimensionNumbers(1, 2)).init(WEIGHTS)",
     ValueError, "names an axis that parameter ['w'] of shape (3, 4) does not have."),
]  # fmt: skip
