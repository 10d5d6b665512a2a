"""Rows for `gradxform/transforms/ggt.py` and its recipes."""

import gradxform as gx
from tests import references as ref
from tests.catalogue.case import Case, with_lr

TRANSFORMS: dict[str, Case] = {
    "scale_by_ggt/window": Case(
        gx.scale_by_ggt(0.5, 3, 0.1, 1e-3, 0.1),
        ref.ggt(0.5, 3, 0.1, 1e-3, 0.1),
        rows=False,
        derivatives=None,  # eigenvectors of equal eigenvalues have no derivative
    ),
}


OPTIMIZERS: dict[str, Case] = {
    "ggt": Case(gx.ggt(0.1), with_lr(0.1, ref.ggt()), rows=False, derivatives=None),
}


REFUSED = [
    ("one_step(ggt(), COMPLEX)", TypeError, "scale_by_ggt: gradient of ['w'] has dtype complex"),
    ("ggt(window=0)", ValueError, "scale_by_ggt: window must be at least 1, got 0."),
    ("ggt(svd_eps=0.0)", ValueError, "svd_eps must be greater than 0, got 0.0."),
]  # fmt: skip
