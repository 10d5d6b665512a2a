"""Rows for `gradxform/transforms/splus.py` and its recipe."""

import gradxform as gx
from tests import references as ref
from tests.catalogue.case import Case, matrix
from tests.catalogue.muon import NUMBERS, flat
from tests.catalogue.normuon import masked

BASES = {"rtol": 1e-4, "rows": False, "derivatives": None}  # as of `scale_by_soap`

TRANSFORMS: dict[str, Case] = {
    "scale_by_splus": Case(
        masked(gx.scale_by_splus, b1=0.8, b2=0.7, precondition_frequency=2),
        ref.only(matrix, ref.splus(0.8, 0.7, 2, columns=-1)),
        **BASES,
    ),
    "scale_by_splus/short side": Case(
        masked(gx.scale_by_splus, max_precond_dim=3),
        ref.only(matrix, ref.splus(max_dim=3, columns=-1)),
        **BASES,
    ),
    "scale_by_mean_side": Case(
        gx.masked(gx.scale_by_mean_side(NUMBERS(0, -1)), gx.ndim_at_least(2)),
        ref.only(matrix, ref.mean_side()),
        rows=False,
    ),
    "scale_by_mean_side/long side": Case(
        gx.masked(
            gx.scale_by_mean_side(NUMBERS(0, -1), max_side=3, other_scale=0.2), gx.ndim_at_least(2)
        ),
        ref.only(matrix, ref.mean_side(3, 0.2)),
        rows=False,
    ),
}


OPTIMIZERS: dict[str, Case] = {
    "splus": Case(
        gx.splus(0.1, precondition_frequency=1, weight_decay=0.3, other_scale=0.2),
        ref.sequence(
            ref.only(flat, ref.splus(frequency=1)),
            ref.only(lambda p: not flat(p), ref.sign_of_average()),
            ref.decay(0.3),
            ref.only(flat, ref.mean_side()),
            ref.only(lambda p: not flat(p), ref.scale(0.2)),
            ref.scale(-0.1),
        ),
        **BASES,
    ),
    "splus/long side": Case(
        gx.splus(0.1, weight_decay=0.3, max_precond_dim=3, other_scale=0.2),
        ref.sequence(
            ref.only(flat, ref.splus(max_dim=3)),
            ref.only(lambda p: not flat(p), ref.sign_of_average()),
            ref.decay(0.3),
            ref.only(flat, ref.mean_side(3, 0.2)),
            ref.only(lambda p: not flat(p), ref.scale(0.2)),
            ref.scale(-0.1),
        ),
        **BASES,
    ),
}


REFUSED = [
    ("scale_by_mean_side(max_side=-1)",
     ValueError, "scale_by_mean_side: max_side must be at least 0, got -1."),
    ("splus(precondition_frequency=0)",
     ValueError, "scale_by_splus: precondition_frequency must be at least 1, got 0."),
    ("splus(max_precond_dim=-1)",
     ValueError, "scale_by_splus: max_precond_dim must be at least 0, got -1."),
    ("scale_by_splus().init(WEIGHTS)", ValueError,
     "scale_by_splus: parameter ['k'] of shape (2, 3, 2) is not a matrix. Give its weight_"),
]  # fmt: skip
