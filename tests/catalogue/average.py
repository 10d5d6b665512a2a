"""Rows for `gradxform/wrappers/average.py`: the updates are those of the inner optimizer.

What the averages are is tested in tests/wrappers/test_average.py.
"""

import jax.numpy as jnp

import gradxform as gx
from tests.catalogue.case import ADAM, Case, with_lr

ADAM_STEP = with_lr(0.1, ADAM)

WRAPPERS: dict[str, Case] = {
    "moving_average": Case(gx.moving_average(gx.adam(0.1), 0.5), ADAM_STEP),
    "moving_average/warm": Case(
        gx.moving_average(gx.adam(0.1), 0.9, "step", debias=True),
        ADAM_STEP,
        extra={"step": jnp.asarray(6, jnp.int32)},
    ),
    "stochastic_weight_average": Case(gx.stochastic_weight_average(gx.adam(0.1), 1, 2), ADAM_STEP),
}


REFUSED = [
    ("moving_average(chain(clip(1.0), asam(sgd(0.1))))",
     ValueError, "moving_average: sam in it lets", "Put it inside: sam(moving_average(...), ...)"),
    ("moving_average(0.1)", TypeError, "moving_average", "inner"),
    ("moving_average(adam)", TypeError, "moving_average", "call it"),
    ("moving_average(adam(0.1), 1.0)", ValueError, "decay", "in [0, 1)", "1.0"),
    ("moving_average(adam(0.1), -0.1)", ValueError, "decay", "-0.1"),
    ("moving_average(adam(0.1), '0.9')", TypeError, "decay", "a number"),
    ("moving_average(adam(0.1), 0.9, -1)", ValueError, "num_updates", "at least 0", "-1"),
    ("moving_average(adam(0.1), 0.9, 'counts')",
     ValueError, "num_updates", "'count', 'step'", "Did you mean 'count'"),
    ("moving_average(adam(0.1), 0.9, 2.0)", TypeError, "num_updates", "2.0"),
    ("moving_average(adam(0.1), 0.9, True)", TypeError, "num_updates", "True"),
    ("moving_average(adam(0.1), debias=1)", TypeError, "debias", "True or False"),
    ("one_step(moving_average(adam(0.1), 0.9, 'step'), step=0.5)",
     TypeError, "moving_average: step must be an integer, got 0.5."),
    ("stochastic_weight_average(adam(0.1), -1)", ValueError, "start", "at least 0", "-1"),
    ("stochastic_weight_average(adam(0.1), 0, 0)", ValueError, "period", "at least 1", "0"),
    ("stochastic_weight_average(adam(0.1), 1.5)", TypeError, "start", "1.5"),
    ("gx.compat.tf_contrib.MovingAverage(adam(0.1), sequential_update=False)",
     ValueError, "MovingAverage: sequential_update must be True, got False"),
    ("moving_average(sgd(0.1), num_updates=object())",
     TypeError, "moving_average: num_updates must be an integer or a string or None, got <object"),
    ("one_step(moving_average(sgd(0.1), num_updates='step'), step=2**40)", ValueError,
     "moving_average: step must be an integer of 32 bits, at most 2**31 - 1, got 1099511"),
]  # fmt: skip
