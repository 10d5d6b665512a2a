"""Rows for `gradxform/transforms/accumulation.py`."""

import gradxform as gx
from tests import references as ref
from tests.catalogue.case import Case

TRANSFORMS: dict[str, Case] = {
    "apply_every": Case(gx.apply_every(), ref.apply_every(1)),
    "apply_every/3": Case(gx.apply_every(3), ref.apply_every(3)),
}


REFUSED = [
    ("apply_every(0)", ValueError, "apply_every: k must be at least 1, got 0."),
    ("apply_every(2.0)", TypeError, "apply_every: k must be an integer, got 2.0."),
]  # fmt: skip
