"""Rows for `gradxform/compat/keras/keras3.py`."""

import jax.numpy as jnp

import gradxform as gx
from gradxform.compat.keras.keras3 import step_by_schedule_free_adam
from tests import references as ref
from tests.catalogue.case import FALLING, Case, falling

TRANSFORMS: dict[str, Case] = {
    "step_by_schedule_free_adam": Case(
        step_by_schedule_free_adam(0.1, 0.8, 0.9, 1e-3, 3, 0.2),
        ref.schedule_free_adamw(0.1, 0.8, 0.9, 1e-3, 3, 0.2),
        rows=False,
    ),
    "step_by_schedule_free_adam/schedule": Case(
        step_by_schedule_free_adam(FALLING, 1.0, weight_decay=0.1),
        ref.schedule_free_adamw(falling, 1.0, 0.999, 1e-8, weight_decay=0.1),
        rows=False,
    ),
}

TX = step_by_schedule_free_adam(0.1)
PARAMS = {"w": jnp.ones(2)}
TABLE = gx.sparse.RowSparse(jnp.asarray([0]), jnp.ones((1, 3)), 2)

REFUSED = [
    ("step_by_schedule_free_adam(0.1, 0.0)",
     ValueError, "step_by_schedule_free_adam: b1 must be in (0, 1], got 0.0."),
    ("step_by_schedule_free_adam(0.1, warmup_steps=-1)",
     ValueError, "step_by_schedule_free_adam: warmup_steps must be at least 0, got -1."),
    ("one_step(TX, grads={'w': TABLE}, params={'w': jnp.ones((2, 3))})",
     TypeError, "step_by_schedule_free_adam", "moves every row towards an average"),
    ("TX.update(PARAMS, swap(TX.init(PARAMS), PARAMS)[1], PARAMS)",
     TypeError, "step_by_schedule_free_adam: the state must be of kind ScheduleFreeAdamState"),
]  # fmt: skip
