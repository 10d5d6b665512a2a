"""Rows for `gradxform/transforms/normalization.py` and its recipes."""

import gradxform as gx
from tests import references as ref
from tests.catalogue.case import Case

TRANSFORMS: dict[str, Case] = {
    "centralize": Case(gx.centralize(), ref.stateless(ref.centralize)),
    "centralize/outputs last": Case(
        gx.centralize(axis=-1),
        ref.stateless(lambda g, p, t: ref.centralize(g, p, t, -1)),
        rows=False,
    ),
    "normalize_by_block_std": Case(gx.normalize_by_block_std(), ref.block_std(1e-8), rows=False),
    "normalize_by_block_std/eps": Case(
        gx.normalize_by_block_std(0.5), ref.block_std(0.5), rows=False
    ),
    "normalize": Case(gx.normalize(), ref.normalize_by_update_norm(1.0, 0.0)),
    "normalize_adaptively": Case(
        gx.normalize_adaptively(),
        ref.normalize_adaptively(0.01),
        rows=False,
        huge_ok=1 / 8,  # it stretches gradients
    ),
    "normalize_adaptively/eta": Case(
        gx.normalize_adaptively(0.5), ref.normalize_adaptively(0.5), rows=False, huge_ok=1 / 8
    ),
    "normalize_by_update_norm": Case(
        gx.normalize_by_update_norm(-0.5), ref.normalize_by_update_norm(-0.5, 1e-6)
    ),
    "normalize_by_update_norm/eps": Case(
        gx.normalize_by_update_norm(2.0, 0.5), ref.normalize_by_update_norm(2.0, 0.5)
    ),
    "normalize_by_block_norm/min": Case(
        gx.normalize_by_block_norm(-0.5, 3.0), ref.block_normalized(-0.5, 3.0), rows=False
    ),
    "normalize_by_block_norm": Case(
        gx.normalize_by_block_norm(-0.5), ref.block_normalized(-0.5), rows=False
    ),
}


OPTIMIZERS: dict[str, Case] = {
    "normalized_sgd": Case(gx.normalized_sgd(0.1), ref.block_normalized(-0.1), rows=False),
    "normalized_sgd/tree": Case(
        gx.normalized_sgd(0.1, "tree"), ref.normalize_by_update_norm(-0.1, 1e-6)
    ),
}


REFUSED = [
    ("one_step(centralize(axis=2))", ValueError,
     "centralize: axis must be an axis of every array", "got 2 for one of shape (2, 3)."),
    ("normalize_adaptively(-0.1)",
     ValueError, "normalize_adaptively: eta must be at least 0, got -0.1."),
    ("normalized_sgd(0.1, 'leaf')",
     ValueError, "normalized_sgd: norm_of must be one of 'array', 'tree', got 'leaf'."),
    ("normalize_by_block_norm(1.0, 0.0)",
     ValueError, "normalize_by_block_norm: min_norm must be greater than 0, got 0.0."),
]  # fmt: skip
