"""Rows for `gradxform/transforms/kept_norms.py`."""

import gradxform as gx
from tests import references as ref
from tests.catalogue.case import Case, matrix
from tests.catalogue.orthogonal import NUMBERS

TRANSFORMS: dict[str, Case] = {
    f"keep_matrix_norms/{norm}": Case(
        gx.masked(gx.keep_matrix_norms(norm, NUMBERS), gx.ndim_at_least(2)),
        ref.only(matrix, ref.kept(norm)),
        rows=False,
    )
    for norm in ("columns", "frobenius", "rows", "spectral")
}
TRANSFORMS |= {
    "floor_update_norm": Case(
        gx.masked(gx.floor_update_norm(1.2, NUMBERS), gx.ndim_at_least(2)),
        ref.only(matrix, ref.norm_floor(1.2)),
        rows=False,
    ),
}


REFUSED = [
    ("keep_matrix_norms('row')",
     ValueError, "keep_matrix_norms: norm must be one of", "Did you mean 'rows'?"),
    ("keep_matrix_norms().init(WEIGHTS)",
     ValueError, "parameter ['k'] of shape (2, 3, 2) is not a matrix. Give its weight_dimension"),
    ("one_step(chain(keep_matrix_norms(), scale(-0.1)))",
     ValueError, "scale changes the updates of keep_matrix_norms before it"),
    ("floor_update_norm().init(WEIGHTS)",
     ValueError, "parameter ['k'] of shape (2, 3, 2) is not a matrix. Give its weight_dimension"),
]  # fmt: skip
