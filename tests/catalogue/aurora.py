"""Rows for `gradxform/transforms/aurora.py` and its recipe."""

import gradxform as gx
from tests import references as ref
from tests.catalogue.case import Case, matrix
from tests.catalogue.normuon import for_matrices, masked
from tests.catalogue.spectrum import FEW, MOST

TRANSFORMS: dict[str, Case] = {
    "scale_by_aurora": Case(
        masked(
            gx.scale_by_aurora,
            beta=0.5,
            eps=0.3,
            ns_steps=3,
            iterations=3,
            damping=0.3,
            nesterov=False,
        ),
        ref.only(matrix, ref.aurora(0.5, 3, 0.3, 0.3, False, ref.SIMPLE[:3])),
        **FEW,
    ),
}


OPTIMIZERS: dict[str, Case] = {
    "aurora": Case(
        gx.aurora(0.1, weight_decay=0.3),
        for_matrices(ref.aurora(eps=1e-7), ref.shape_factor()),
        **MOST,
    ),
}


REFUSED = [
    ("scale_by_aurora(iterations=0)",
     ValueError, "scale_by_aurora: iterations must be at least 1, got 0."),
]  # fmt: skip
