"""Rows for `gradxform/transforms/dion2.py`."""

import gradxform as gx
from tests import references as ref
from tests.catalogue.case import Case, matrix
from tests.catalogue.normuon import COARSE, masked

TRANSFORMS: dict[str, Case] = {
    "scale_by_dion2": Case(
        masked(gx.scale_by_dion2, fraction=0.5, decay=0.6, eps=0.3),
        ref.only(matrix, ref.dion2(0.5, 0.6, 0.3)),
        rtol=COARSE,
        rows=False,
    ),
    "scale_by_dion2/groups": Case(
        masked(gx.scale_by_dion2, fraction=0.5, decay=0.6, eps=0.3, groups=6),
        ref.only(matrix, ref.dion2(0.5, 0.6, 0.3, 6)),
        rtol=COARSE,
        rows=False,
    ),
}


REFUSED = [
    ("scale_by_dion2(groups=0)", ValueError, "groups must be at least 1, got 0."),
    ("scale_by_dion2().init({'b': jnp.ones(3)})",
     ValueError, "parameter ['b'] of shape (3,) is not a matrix. Give its weight_dimension"),
]  # fmt: skip
