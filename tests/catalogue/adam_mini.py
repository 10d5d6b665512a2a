"""Rows for `gradxform/transforms/adam_mini.py` and its recipes."""

from typing import Any

import numpy as np

import gradxform as gx
from tests import references as ref
from tests.catalogue.case import ADAM, FALLING, FALLING_LR, Case, matrix, with_lr

PAIRS = gx.moment_blocks(-1, 2)
BLOCKS = gx.label_by((PAIRS, gx.path_matches("w|k$")), (gx.moment_blocks(()), True))
TABLES = gx.label_by((gx.moment_blocks((0, 1)), gx.path_matches("w")), (None, True))
NO_BLOCKS: Any = "rows"


def pairs(g):
    """Neighbours along the last axis of matrices; all of a vector."""
    return np.zeros(g.shape, int) if g.ndim < 2 else np.indices(g.shape)[-1] // 2


def rows_of_table(g):
    """Rows of the array of five rows; entries of others."""
    row, column = np.indices(g.shape)
    return row if len(g) == 5 else 10 * row + column


TRANSFORMS: dict[str, Case] = {
    "scale_by_adam_mini": Case(
        gx.scale_by_adam_mini(),
        ref.adam_mini(0.9, 0.999, 1e-8),
        names=("moment_blocks",),
        rows=False,
    ),
    "scale_by_adam_mini/blocks": Case(
        gx.scale_by_adam_mini(0.5, 0.9, 0.1, blocks=BLOCKS),
        ref.adam_mini(0.5, 0.9, 0.1, pairs),
        rows=False,
        huge_ok=1 / 8,  # for m / 2 + g / 2, XLA adds before it halves
    ),
    "scale_by_adam_mini/entries": Case(
        gx.scale_by_adam_mini(blocks=gx.moment_blocks(None)), ADAM, rows=False
    ),
    "scale_by_adam_mini/tables": Case(
        gx.scale_by_adam_mini(blocks=TABLES),
        ref.adam_mini(0.9, 0.999, 1e-8, rows_of_table),
        tree={"embedding": np.ones((5, 3), np.float32), "w": np.ones((3, 4), np.float32)},
        rows=False,
    ),
}


OPTIMIZERS: dict[str, Case] = {
    "adam_mini": Case(gx.adam_mini(0.1), with_lr(0.1, ref.adam_mini(0.9, 0.999, 1e-8)), rows=False),
    "adam_mini/decay": Case(
        gx.adam_mini(FALLING, weight_decay=0.2, mask=gx.ndim_at_least(2), blocks=BLOCKS),
        ref.sequence(ref.adam_mini(0.9, 0.999, 1e-8, pairs), ref.decay(0.2, matrix), FALLING_LR),
        rows=False,
    ),
}


REFUSED = [
    ("moment_blocks(0, 0)", ValueError, "moment_blocks: size must be at least 1", "0."),
    ("moment_blocks(None, 2)", ValueError, "along one axis, got axes=None."),
    ("adam_mini(0.1, blocks=NO_BLOCKS)",
     TypeError, "scale_by_adam_mini: blocks must be moment_blocks, None, or a tree", "'rows'"),
    ("adam_mini(0.1, blocks=lambda params: NO_BLOCKS).init(WEIGHTS)", TypeError,
     "the blocks of parameter ['k'] of shape (2, 3, 2) must be moment_blocks, got 'rows'."),
    ("adam_mini(0.1, blocks=moment_blocks(2)).init(WEIGHTS)",
     ValueError, "names an axis that parameter ['w'] of shape (3, 4) does not have."),
    ("adam_mini(0.1, blocks=moment_blocks(0, 2)).init(WEIGHTS)",
     ValueError, "axis 0 of parameter ['w'] of shape (3, 4) does not divide into the blocks"),
]  # fmt: skip
