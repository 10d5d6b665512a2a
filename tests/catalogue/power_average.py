"""Rows for `gradxform/wrappers/power_average.py`: the updates are those of the inner optimizer.

What the averages are is tested in tests/wrappers/test_average.py.
"""

import jax.numpy as jnp

import gradxform as gx
from tests.catalogue.case import ADAM, Case, with_lr

WRAPPERS: dict[str, Case] = {
    "power_moving_average": Case(
        gx.power_moving_average(gx.adam(0.1), (0.15, 0.25)), with_lr(0.1, ADAM)
    ),
}


def snapshots(*points, shape=(2,)):
    """Snapshots of ones at some steps and lengths."""
    return [gx.PowerSnapshot(step, length, {"w": jnp.ones(shape)}) for step, length in points]


POWER = gx.power_moving_average(gx.adam(0.1))
SAVED = snapshots((10, 0.05), (20, 0.1))

REFUSED = [
    ("power_moving_average(0.1)", TypeError, "power_moving_average", "inner"),
    ("power_moving_average(adam(0.1), ())", ValueError, "lengths", "at least one"),
    ("power_moving_average(adam(0.1), 0.1)", TypeError, "lengths", "tuple"),
    ("power_moving_average(adam(0.1), (0.0,))", ValueError, "length", "0.0"),
    ("power_moving_average(adam(0.1), (0.3,))", ValueError, "0.2887", "0.3"),
    ("power_moving_average(adam(0.1), ('a',))", TypeError, "length", "'a'"),
    ("power_moving_average(adam(0.1), (0.1, 0.1))", ValueError, "different", "0.1 twice"),
    ("eval_params(POWER.init({'w': jnp.ones(2)}))",
     ValueError, "the lengths 0.05, 0.1", "got None"),
    ("eval_params(POWER.init({'w': jnp.ones(2)}), length=0.2)",
     ValueError, "the lengths 0.05, 0.1", "got 0.2", "reconstruct_average"),
    ("power_snapshots(POWER.init({'w': jnp.ones(2)}))",
     ValueError, "power_snapshots", "never updated"),
    ("power_snapshots(())", ValueError, "PowerMovingAverageState", "none"),
    ("reconstruct_average([], 0.1)", ValueError, "snapshots", "at least one"),
    ("reconstruct_average([1], 0.1)", TypeError, "snapshots[0]", "PowerSnapshot"),
    ("reconstruct_average(SAVED, 0.5)", ValueError, "length", "0.5"),
    ("reconstruct_average(SAVED, None)", TypeError, "length", "None"),
    ("reconstruct_average(SAVED, 0.1, step=21)", ValueError, "from 10 to 20", "21"),
    ("reconstruct_average([*SAVED, *snapshots((20, 0.05), shape=(3,))], 0.1)",
     ValueError, "['w']", "(2,)", "(3,)"),
    ("reconstruct_average([*SAVED, PowerSnapshot(20, 0.05, {})], 0.1)", ValueError, "structure"),
    ("reconstruct_average(snapshots((0, 0.1)), 0.1)",
     ValueError, "snapshots[0]", "step of at least 1", "0"),
]  # fmt: skip
