"""Rows for `gradxform/transforms/cocob.py` and its recipes."""

import gradxform as gx
from tests import references as ref
from tests.catalogue.case import FALLING, Case, falling, matrix

TRANSFORMS: dict[str, Case] = {
    # The first steps are 5e-4 beside parameters of 1, which hold no more digits.
    # It sums gradients.
    "scale_by_cocob": Case(gx.scale_by_cocob(), ref.cocob(100.0, 1e-8), rtol=1e-4, huge_ok=1 / 8),
    "scale_by_cocob/alpha": Case(gx.scale_by_cocob(3.0, 0.5), ref.cocob(3.0, 0.5), huge_ok=1 / 8),
}


OPTIMIZERS: dict[str, Case] = {
    "cocob": Case(
        gx.cocob(FALLING, weight_decay=0.1, mask=gx.ndim_at_least(2)),
        ref.sequence(ref.decay(0.1, matrix), ref.scale(falling), ref.cocob(100.0, 1e-8)),
    ),
}
