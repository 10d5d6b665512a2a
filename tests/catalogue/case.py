"""A row of the catalogue, and what the rows of several families share."""

from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np

import gradxform as gx
from gradxform import testing
from gradxform.testing import example_params, random_gradients
from tests import references as ref

params, gradients = example_params, random_gradients


@dataclass(frozen=True, eq=False)
class Case(testing.Case):
    """A row: it takes row-sparse gradients, unless it says `rows=False`, and then refuses them."""

    rows: bool | None = True


def matrix(x) -> bool:
    """Whether an array counts as a matrix: what ndim_at_least(2) selects."""
    return x.ndim >= 2


def falling(n):
    """A schedule in NumPy: linear_schedule(0.5, 0.1, 4)."""
    return 0.5 + (0.1 - 0.5) * min(n, 4) / 4


FALLING = gx.linear_schedule(0.5, 0.1, 4)
FALLING_LR = ref.scale(lambda n: -falling(n))
SGD = ref.scale(-0.1)
ADAM = ref.adam(0.9, 0.999, 1e-8)
NADAM = ref.adam(0.9, 0.999, 1e-8, nesterov=True)


def with_lr(rate, *parts):
    """A recipe: some parts, then minus the learning rate."""
    return ref.sequence(*parts, ref.scale(-rate))


def one_step(tx, params=None, grads=None, **extra):
    """One update, for gradients that equal the parameters unless `grads` are passed."""
    params = {"w": jnp.ones((2, 3))} if params is None else params
    return tx.update(params if grads is None else grads, tx.init(params), params, **extra)


def other_state(tx, shape, made_by=None, made_for=None):
    """One update of a matrix with the state of another transform, or for another shape."""
    params, others = ({"w": np.ones(s, np.float32)} for s in (shape, made_for or shape))
    return tx.update(params, (made_by or tx).init(others), params)


# The message of every recipe that refuses a learning rate of -1.
NEGATIVE_RATE = "scale_by_learning_rate: learning_rate must be at least 0, got -1.0."
# Parameters with one matrix and one array that is not a matrix; complex parameters.
WEIGHTS = {"w": np.ones((3, 4), np.float32), "k": np.ones((2, 3, 2), np.float32)}
COMPLEX = {"w": np.ones((3, 4), np.complex64)}
