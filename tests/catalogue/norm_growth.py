"""Rows for `gradxform/transforms/norm_growth.py`."""

import gradxform as gx
from tests import references as ref
from tests.catalogue.case import Case

TRANSFORMS: dict[str, Case] = {
    "limit_norm_growth": Case(gx.limit_norm_growth(), ref.norm_growth(1.01), rows=False),
    "limit_norm_growth/eps": Case(
        gx.limit_norm_growth(1.2, 0.1), ref.norm_growth(1.2, 0.1), rows=False
    ),
}

REFUSED = [
    ("limit_norm_growth(0.9)", ValueError, "growth must be at least 1, got 0.9."),
]  # fmt: skip
