"""Rows for `gradxform/transforms/adago.py` and its recipe."""

import gradxform as gx
from tests import references as ref
from tests.catalogue.case import FALLING, Case, falling, matrix
from tests.catalogue.muon import flat
from tests.catalogue.normuon import COARSE, masked

FEW = {"rtol": COARSE, "rows": False}
NUMBERS = {
    **{"learning_rate": 0.2, "beta": 0.5, "max_norm": 2.0, "min_step": 0.01},
    **{"initial_accumulator_value": 3.0, "eps": 2.0},
}


def by_shape(n, k):
    return max(1, k / n) ** 0.5


TRANSFORMS: dict[str, Case] = {
    "scale_by_adago": Case(
        masked(gx.scale_by_adago, **NUMBERS),
        ref.only(matrix, ref.adago(0.2, 0.5, 2.0, 0.01, 3.0, ns_eps=2.0)),
        **FEW,
        huge_ok=1 / 8,  # the norm of a matrix, plus eps, is beyond the largest number
    ),
    "scale_by_shaped_adago": Case(
        masked(gx.scale_by_shaped_adago, **NUMBERS, by_shape=True, nesterov=True),
        ref.only(matrix, ref.adago(0.2, 0.5, 2.0, 0.01, 3.0, True, False, by_shape, ns_eps=2.0)),
        **FEW,
        huge_ok=1 / 8,
    ),
    "scale_by_shaped_adago/scheduled": Case(
        masked(gx.scale_by_shaped_adago, learning_rate=FALLING, root=True, consistent_rms=0.2),
        ref.only(matrix, ref.adago(falling, factor=lambda n, k: 0.2 * max(n, k) ** 0.5)),
        **FEW,
    ),
}


OPTIMIZERS: dict[str, Case] = {
    "adago": Case(
        gx.adago(0.1, adam_learning_rate=0.1),
        ref.sequence(
            ref.only(flat, ref.adago(0.1)),
            ref.only(flat, ref.scale(-1.0)),
            ref.only(lambda p: not flat(p), ref.adam(0.9, 0.95, 1e-10)),
            ref.only(lambda p: not flat(p), ref.scale(-0.1)),
        ),
        **FEW,
    ),
}


REFUSED = [
    ("adago(0.1, by_shape=True, consistent_rms=0.2)", ValueError,
     "scale_by_shaped_adago: by_shape and consistent_rms are two factors of the shape; set one"),
    ("adago(0.1, max_norm=0.0)",
     ValueError, "scale_by_adago: max_norm must be greater than 0, got 0.0."),
    ("scale_by_adago(0.1).init(WEIGHTS)",
     ValueError, "parameter ['k'] of shape (2, 3, 2) is not a matrix. Give its weight_dimension"),
]  # fmt: skip
