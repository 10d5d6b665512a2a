"""Rows for `gradxform/transforms/ademamix.py` and its recipes."""

import gradxform as gx
from tests import references as ref
from tests.catalogue.case import FALLING, Case, falling, with_lr

GROWING = gx.linear_schedule(0.5, 0.9, 4)


def growing(n):
    """GROWING in NumPy."""
    return 0.5 + 0.4 * min(n, 4) / 4


TRANSFORMS: dict[str, Case] = {
    "scale_by_ademamix": Case(gx.scale_by_ademamix(), ref.ademamix(0.9, 0.999, 0.9999, 6.0, 1e-8)),
    "scale_by_ademamix/schedules": Case(
        gx.scale_by_ademamix(0.8, 0.9, GROWING, FALLING, 0.1, 0.2),
        ref.ademamix(0.8, 0.9, growing, falling, 0.1, 0.2),
    ),
    "scale_by_simplified_ademamix": Case(
        gx.scale_by_simplified_ademamix(),
        ref.simplified_ademamix(0.99, 0.95, 0.0, 1e-8),
        huge_ok=1 / 8,  # it sums gradients
    ),
    "scale_by_simplified_ademamix/alpha": Case(
        gx.scale_by_simplified_ademamix(0.8, 0.9, FALLING, 0.1, 0.2),
        ref.simplified_ademamix(0.8, 0.9, falling, 0.1, 0.2),
        huge_ok=1 / 8,
    ),
}


OPTIMIZERS: dict[str, Case] = {
    "ademamix": Case(
        gx.ademamix(0.1, weight_decay=0.2),
        with_lr(0.1, ref.ademamix(0.9, 0.999, 0.9999, 5.0, 1e-8), ref.decay(0.2)),
    ),
    "simplified_ademamix": Case(
        gx.simplified_ademamix(0.01, weight_decay=0.2),
        with_lr(0.01, ref.simplified_ademamix(0.99, 0.95, 0.0, 1e-8), ref.decay(0.2)),
        huge_ok=1 / 8,  # it sums gradients
    ),
}


REFUSED = [
    ("ademamix(0.1, b3=1.0)", ValueError, "scale_by_ademamix: b3 must be in [0, 1)"),
    ("ademamix(0.1, alpha=-1)", ValueError, "alpha must be at least 0, got -1.0."),
]  # fmt: skip
