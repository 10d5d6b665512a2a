"""Rows for `gradxform/transforms/orthogonal.py`."""

import gradxform as gx
from tests import references as ref
from tests.catalogue.case import Case, matrix

NUMBERS = gx.MuonDimensionNumbers(0, -1)

TRANSFORMS: dict[str, Case] = {
    "orthogonalize_updates": Case(
        gx.masked(
            gx.orthogonalize_updates(eps=2.0, weight_dimension_numbers=NUMBERS),
            gx.ndim_at_least(2),
        ),
        ref.only(matrix, ref.orthogonalized(eps=2.0)),
        rows=False,
    ),
    "scale_by_fans": Case(
        gx.masked(gx.scale_by_fans(NUMBERS), gx.ndim_at_least(2)),
        ref.only(matrix, ref.fans()),
        rows=False,
    ),
    "scale_by_fans/convolution": Case(
        gx.masked(
            gx.scale_by_fans(gx.MuonDimensionNumbers((0, 1), 2), convolution=True),
            gx.ndim_at_least(3),
        ),
        ref.only(lambda p: p.ndim == 3, ref.fans_of_kernel((0,), 1, 2)),
        rows=False,
    ),
}


REFUSED = [
    ("orthogonalize_updates(ns_steps=0)",
     ValueError, "orthogonalize_updates: ns_steps must be at least 1, got 0."),
    ("orthogonalize_updates(ns_coeffs=(1.0, 2.0))", ValueError,
     "orthogonalize_updates: ns_coeffs must be three numbers, or three for each turn, got"),
    ("orthogonalize_updates().init(WEIGHTS)",
     ValueError, "parameter ['k'] of shape (2, 3, 2) is not a matrix. Give its weight_dimension"),
]  # fmt: skip
