"""Rows for `gradxform/transforms/racs.py` and its recipes."""

import gradxform as gx
from tests import references as ref
from tests.catalogue.case import FALLING, FALLING_LR, Case, matrix, with_lr

TRANSFORMS: dict[str, Case] = {
    "scale_by_rows_and_columns": Case(
        gx.scale_by_rows_and_columns(), ref.rows_and_columns(0.9, 1e-8, 5), rows=False
    ),
    "scale_by_rows_and_columns/eps": Case(
        gx.scale_by_rows_and_columns(0.5, 0.1, 2), ref.rows_and_columns(0.5, 0.1, 2), rows=False
    ),
    "scale_by_rows_and_columns/means": Case(
        gx.scale_by_rows_and_columns(iterations=0), ref.rows_and_columns(0.9, 1e-8, 0), rows=False
    ),
}


OPTIMIZERS: dict[str, Case] = {
    "racs": Case(
        gx.racs(0.1),
        with_lr(0.1, ref.rows_and_columns(0.9, 1e-8, 5), ref.norm_growth(1.01), ref.scale(0.05)),
        rows=False,
    ),
    "racs/decay": Case(
        gx.racs(FALLING, 0.5, 0.2, 1.1, 0.1, 0.3, gx.ndim_at_least(2), iterations=1),
        ref.sequence(
            ref.rows_and_columns(0.5, 0.1, 1),
            ref.norm_growth(1.1, 0.1),
            ref.scale(0.2),
            ref.decay(0.3, matrix),
            FALLING_LR,
        ),
        rows=False,
    ),
}


REFUSED = [
    ("racs(0.1, iterations=-1)",
     ValueError, "scale_by_rows_and_columns: iterations must be at least 0, got -1."),
    ("racs(0.1, gamma=0.5)", ValueError, "limit_norm_growth: growth must be at least 1, got 0.5."),
]  # fmt: skip
