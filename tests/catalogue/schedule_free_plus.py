"""Rows for `gradxform/transforms/schedule_free_plus.py` and its recipe."""

import gradxform as gx
from tests import references as ref
from tests.catalogue.case import FALLING, Case, falling

LOSS = {"value": 30.0}
# The weights of the average follow the largest step size, so it must grow.
RISING = gx.linear_schedule(0.1, 0.5, 4)
OTHERS = (0.5, 0.9, 1e-2, 2.0, 0.6, 0.7, 2, 4, 0.8, 1.5, 0.5)


def rising(n):
    """`RISING` in NumPy."""
    return 0.1 + 0.4 * min(n, 4) / 4


TRANSFORMS: dict[str, Case] = {
    "step_by_schedule_free_plus": Case(
        gx.step_by_schedule_free_plus(),
        ref.schedule_free_plus(1.0, 0.9, 0.95, 1e-8, 0.0, 0.9, 0.0, 0, 0, 0.965, 2.0, 0.0, 30.0),
        extra=LOSS,
        rows=False,
    ),
    "step_by_schedule_free_plus/all": Case(
        gx.step_by_schedule_free_plus(RISING, *OTHERS),
        ref.schedule_free_plus(rising, *OTHERS, 30.0),
        extra=LOSS,
        rows=False,
    ),
}


OPTIMIZERS: dict[str, Case] = {
    "schedule_free_plus": Case(
        gx.schedule_free_plus(FALLING, weight_decay=0.5, average_start=2, norm_decay=0.5),
        ref.schedule_free_plus(
            falling, 0.9, 0.95, 1e-8, 0.5, 0.9, 0.5, 2, 0, 0.965, 2.0, 0.0, 30.0
        ),
        extra=LOSS,
        rows=False,
    ),
}


REFUSED = [
    ("schedule_free_plus(average_b1=1.0)",
     ValueError, "step_by_schedule_free_plus: average_b1 must be in (0, 1), got 1.0."),
    ("schedule_free_plus(anneal_steps=-1)", ValueError, "anneal_steps must be at least 0"),
    ("one_step(schedule_free_plus(), value=jnp.ones(2))",
     TypeError, "step_by_schedule_free_plus: value must be the loss, a scalar"),
]  # fmt: skip
