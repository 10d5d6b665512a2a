"""Rows for `gradxform/wrappers/overwrite.py`."""

import jax.numpy as jnp

import gradxform as gx
from tests import references as ref
from tests.catalogue.case import ADAM, Case, with_lr

ADAM_STEP = with_lr(0.1, ADAM)

WRAPPERS: dict[str, Case] = {
    "overwriting_average": Case(
        gx.overwriting_average(gx.adam(0.1), 0.6),
        ref.overwriting_average(ADAM_STEP, 0.6),
    ),
    "overwriting_average/every": Case(
        gx.overwriting_average(gx.adam(0.1), 0.6, 2, 2, from_first_step=False),
        ref.overwriting_average(ADAM_STEP, 0.6, 2, 2, False),
        rows=False,
    ),
}

TABLE = gx.sparse.RowSparse(jnp.asarray([0]), jnp.ones((1, 3)), 2)

REFUSED = [
    ("overwriting_average(0.1)", TypeError, "overwriting_average", "inner"),
    ("overwriting_average(adam(0.1), 1.0)",
     ValueError, "overwriting_average: decay must be in [0, 1), got 1.0."),
    ("overwriting_average(adam(0.1), every=0)",
     ValueError, "overwriting_average: every must be at least 1, got 0."),
    ("overwriting_average(adam(0.1), micro_steps=1.5)",
     TypeError, "overwriting_average: micro_steps must be an integer"),
    ("one_step(overwriting_average(sgd(0.1), every=2), grads={'w': TABLE})", TypeError,
     "overwriting_average: with every=2 the average takes the place of all rows", "densify()"),
]  # fmt: skip
