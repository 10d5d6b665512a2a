"""Rounding errors: how much another order of the same operations may change a result.

Processors, compilers and numbers of threads differ in the order in which they sum. The resulting
error is proportional to the terms, not to the sum, which may be small because they cancel. So a
tolerance relative to the result is not enough: the inputs are moved by a few roundings, and results
may differ by as much as they move.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gradxform.testing.promise import as_numpy
from gradxform.types import PyTree

# A few units in the last place of float32.
NUDGE = 5e-7
# The signs are drawn several times, because two that cancel would hide a movement. The roundings of
# another processor are one more draw, which may move a result further than these, by this factor.
DRAWS, FURTHER = 3, 4.0


def nudged(tree: PyTree, seed: int) -> PyTree:
    """Return `tree` with every floating number changed by `NUDGE` of itself, up or down."""
    rng = np.random.default_rng(seed)

    def move(x: Any) -> Any:
        if not jnp.issubdtype(jnp.result_type(x), jnp.inexact):
            return x
        factor = 1 + NUDGE * rng.choice([-1.0, 1.0], size=np.shape(x))
        if isinstance(x, jax.Array):
            return (x * jnp.asarray(factor, jnp.finfo(x.dtype).dtype)).astype(x.dtype)
        return x * factor

    return jax.tree.map(move, tree)


def sway(run: Callable[..., PyTree], *inputs: PyTree) -> PyTree:
    """Return how far roundings may move each number that `run(*inputs)` returns."""
    plain = run(*inputs)
    moved = [run(*nudged(inputs, seed)) for seed in range(DRAWS)]

    def furthest(x: Any, *others: Any) -> np.ndarray:
        x = as_numpy(x)
        if not np.issubdtype(x.dtype, np.inexact):
            return np.zeros(x.shape)
        with np.errstate(invalid="ignore"):
            distances = [np.abs(as_numpy(y) - x) for y in others]
        return FURTHER * np.max(np.nan_to_num(distances, nan=0.0, posinf=0.0), axis=0)

    return jax.tree.map(furthest, plain, *moved)
