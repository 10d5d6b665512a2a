"""The rule of `gradxform/compat/keras/keras3.py` in NumPy float64."""

import numpy as np

from tests.references.base import Reference, value_at


def schedule_free_adamw(rate, b1, b2, eps, warmup_steps=0, weight_decay=0.0):
    """`ScheduleFreeAdamW` of Keras 3; the state keeps x, which follows from y and z there."""

    def step(g, slots, y, t):
        x, z, v = slots
        lr = value_at(rate, t - 1)
        x = x - weight_decay * lr * y / b1
        v = b2 * v + (1 - b2) * np.abs(g) ** 2
        warm = min(t / warmup_steps, 1) if warmup_steps else 1
        z = z - lr * warm * g / (np.sqrt(v / (1 - b2**t)) + eps)
        x = x + (z - x) / t
        return b1 * x + (1 - b1) * z - y, (x, z, v)

    return Reference(lambda p: (p.copy(), p.copy(), np.zeros_like(p)), step)
