"""The table of all parts: adding an optimizer is adding a row.

Every promise of tests/test_contract.py is tested for every row, and every public transform, wrapper
and optimizer must have one.
"""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import optax

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


def everything(g):
    """All axes."""
    return tuple(range(g.ndim))


def conv_axes(g):
    """The axes that make one unit of `adaptive_grad_clip`, for the shapes here."""
    return everything(g) if g.ndim < 2 else (0,)


def falling(n):
    """A schedule in NumPy: linear_schedule(0.5, 0.1, 4)."""
    return 0.5 + (0.1 - 0.5) * min(n, 4) / 4


FALLING = gx.linear_schedule(0.5, 0.1, 4)
SGD = ref.scale(-0.1)


def with_lr(rate, *parts):
    """A recipe: some parts, then minus the learning rate."""
    return ref.sequence(*parts, ref.scale(-rate))


def foreign() -> Any:
    """A transform of Optax, by way of two functions."""
    inner = optax.scale(-0.1)
    return gx.GradientTransformation(inner.init, inner.update)


def plus_one(updates, params):
    """For `stateless`: every entry plus one."""
    return jax.tree.map(lambda u: u + jnp.ones_like(u), updates)


def halve(update, param):
    """For `stateless_with_tree_map`: half of every entry."""
    return update * jnp.asarray(0.5, update.dtype)
