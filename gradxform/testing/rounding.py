"""How far roundings may lead: what another order of the same operations may change.

A processor, a compiler or a number of threads sums in an order of its own. What that does to a sum
is in proportion to its terms, and not to what is left of them where they cancel. So a tolerance is
not a part of the result alone: the inputs are moved by some roundings, and what moves with them is
allowed to differ by as much.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gradxform.testing.promise import as_numpy
from gradxform.types import PyTree

# Some units in the last place of float32.
NUDGE = 5e-7
# Signs are drawn so often, lest two that cancel hide how far a number may move; and the roundings
# of another processor are one more draw, which may lead further than any of these by that factor.
DRAWS, FURTHER = 3, 4.0


def nudged(tree: PyTree, seed: int) -> Any:
    """Return `tree` with every floating number moved by `NUDGE` of itself, up or down."""
    rng = np.random.default_rng(seed)

    def move(x):
        if not jnp.issubdtype(jnp.result_type(x), jnp.inexact):
            return x
        factor = 1 + NUDGE * rng.choice([-1.0, 1.0], size=np.shape(x))
        if isinstance(x, jax.Array):
            return (x * jnp.asarray(factor, jnp.finfo(x.dtype).dtype)).astype(x.dtype)
        return x * factor

    return jax.tree.map(move, tree)


def sway(run: Callable[..., PyTree], *inputs: PyTree) -> Any:
    """Return how far roundings may lead each number that `run(*inputs)` returns."""
    plain = run(*inputs)
    moved = [run(*nudged(inputs, seed)) for seed in range(DRAWS)]

    def furthest(x, *others):
        x = as_numpy(x)
        if not np.issubdtype(x.dtype, np.inexact):
            return np.zeros(x.shape)
        with np.errstate(invalid="ignore"):
            off = [np.abs(as_numpy(y) - x) for y in others]
        return FURTHER * np.max(np.nan_to_num(off, nan=0.0, posinf=0.0), axis=0)

    return jax.tree.map(furthest, plain, *moved)
