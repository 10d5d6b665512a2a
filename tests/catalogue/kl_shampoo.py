"""Rows for `gradxform/transforms/kl_shampoo.py` and its recipe."""

import gradxform as gx
from tests import references as ref
from tests.catalogue.case import Case, matrix
from tests.catalogue.normuon import for_matrices, masked

BASES = {"rtol": 1e-4, "rows": False, "derivatives": None}  # as of `scale_by_soap`

TRANSFORMS: dict[str, Case] = {
    "scale_by_kl_shampoo": Case(
        masked(
            gx.scale_by_kl_shampoo,
            b1=0.5,
            beta=0.7,
            eps=0.1,
            precondition_frequency=2,
            kl_start=0.6,
        ),
        ref.only(matrix, ref.kl_shampoo(0.5, 0.7, 0.1, 2, start=0.6, columns=-1)),
        **BASES,
    ),
    "scale_by_kl_shampoo/short side": Case(
        masked(gx.scale_by_kl_shampoo, max_precond_dim=3),
        ref.only(matrix, ref.kl_shampoo(max_dim=3, columns=-1)),
        **BASES,
    ),
}


OPTIMIZERS: dict[str, Case] = {
    "kl_shampoo": Case(
        gx.kl_shampoo(0.1, weight_decay=0.3),
        for_matrices(ref.kl_shampoo(), b1=0.9, b2=0.98, decay=0.3),
        **BASES,
    ),
}


REFUSED = [
    ("kl_shampoo(0.1, adam_learning_rate=-1.0)", ValueError,
     "kl_shampoo: adam_learning_rate: scale_by_learning_rate: learning_rate must be at least"),
    ("kl_shampoo(0.1, precondition_frequency=0)",
     ValueError, "scale_by_kl_shampoo: precondition_frequency must be at least 1, got 0."),
    ("kl_shampoo(0.1, max_precond_dim=-1)",
     ValueError, "scale_by_kl_shampoo: max_precond_dim must be at least 0, got -1."),
    ("kl_shampoo(0.1, kl_start=0.0)",
     ValueError, "scale_by_kl_shampoo: kl_start must be greater than 0, got 0.0."),
    ("scale_by_kl_shampoo().init(WEIGHTS)",
     ValueError, "parameter ['k'] of shape (2, 3, 2) is not a matrix. Give its weight_dimension"),
]  # fmt: skip
