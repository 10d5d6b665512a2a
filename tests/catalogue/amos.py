"""Rows for `gradxform/transforms/amos.py` and its recipe."""

import gradxform as gx
from tests import references as ref
from tests.catalogue.case import FALLING, Case, falling

TRANSFORMS: dict[str, Case] = {
    "step_by_amos": Case(gx.step_by_amos(0.1), ref.amos(0.1, 0.999), rows=False),
    "step_by_amos/eps": Case(
        gx.step_by_amos(FALLING, 0.5, 0.7, 2.0, 3.0, 0.2),
        ref.amos(falling, 0.5, 0.7, 2.0, 3.0, 0.2),
        rows=False,
    ),
    "step_by_amos/axis": Case(
        gx.step_by_amos(0.5, 0.5, axis=()), ref.amos(0.5, 0.5, axis=()), rows=False
    ),
}


OPTIMIZERS: dict[str, Case] = {
    "amos": Case(
        gx.amos(FALLING, 0.9, momentum=0.5),
        ref.sequence(ref.amos(falling, 0.9), ref.ema(0.5, False)),
        rows=False,
    ),
}


REFUSED = [
    ("amos(0.1, axis=1).init({'b': np.float32(1)})", ValueError,
     "step_by_amos: an array of 0 dimensions does not have the axes (1,); leave it out"),
    ("amos(0.1, eta=0.0)", ValueError, "step_by_amos: eta must be greater than 0"),
    ("amos(-0.1)", ValueError, "step_by_amos: learning_rate must be at least 0"),
]  # fmt: skip
