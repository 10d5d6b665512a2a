"""Rows for `gradxform/transforms/mars.py`, its wrapper and its recipe."""

import math

import gradxform as gx
from tests import references as ref
from tests.catalogue.case import Case, with_lr

TRANSFORMS: dict[str, Case] = {
    "scale_by_mars": Case(gx.scale_by_mars(), ref.mars(0.95, 0.025), rows=False),
    "scale_by_mars/strong": Case(
        gx.scale_by_mars(0.8, 0.5, 2.5), ref.mars(0.8, 0.5, 2.5), rows=False
    ),
    "scale_by_mars/unbounded": Case(
        gx.scale_by_mars(0.8, 0.5, math.inf), ref.mars(0.8, 0.5, math.inf)
    ),
}

WRAPPERS: dict[str, Case] = {
    "mars": Case(
        gx.mars(gx.trace(0.8), 0.8, 0.5, 2.5),
        ref.sequence(ref.mars(0.8, 0.5, 2.5), ref.trace(0.8)),
        rows=False,
    ),
}

OPTIMIZERS: dict[str, Case] = {
    "mars_adamw": Case(
        gx.mars_adamw(0.1, weight_decay=0.2),
        with_lr(0.1, ref.mars(0.95, 0.025), ref.adam(0.95, 0.99, 1e-8), ref.decay(0.2)),
        rows=False,
    ),
}


REFUSED = [
    ("scale_by_mars(1.0)", ValueError, "scale_by_mars: b1 must be in [0, 1), got 1.0."),
    ("scale_by_mars(gamma=-0.1)", ValueError, "scale_by_mars: gamma must be at least 0, got -0.1."),
    ("mars_adamw(0.1, max_norm=0.0)",
     ValueError, "scale_by_mars: max_norm must be greater than 0, got 0.0."),
    ("scale_by_mars(constant_schedule(0.9))",
     TypeError, "scale_by_mars: b1 must be a number, got constant_schedule"),
]  # fmt: skip
