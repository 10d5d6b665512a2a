"""The table of all parts: adding an optimizer is adding a row.

Every promise of tests/test_contract.py is tested for every row, and every public transform, wrapper
and optimizer must have one.
"""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import gradxform as gx
from tests import references as ref


@dataclass(frozen=True)
class Case:
    """One part with what it must follow."""

    tx: Any  # a transform
    reference: Any  # its rule in NumPy; None for a part whose numbers are random
    names: tuple[str, ...] = ()  # public names that this row covers besides the one it begins with
    rtol: float = 2e-5  # of the movement, in float32
    pickles: bool = True  # whether it is made of values only
    huge_ok: bool = True  # whether gradients whose square overflows float32 have a finite update
    extra: Any = None  # the extra arguments of every update, a dict
    examples: int | None = None  # how many gradients, along axis 0, an update takes; None: just one

    @property
    def bound(self) -> Any:
        """The transform with its extra arguments."""
        if not self.extra:
            return self.tx

        def update(updates, state, params=None, **more):
            return self.tx.update(updates, state, params, **(self.extra | more))

        return gx.GradientTransformationExtraArgs(self.tx.init, update)

    def like(self, grads: Any) -> Any:
        """A gradient in the form that an update takes."""
        if self.examples is None:
            return grads
        return jax.tree.map(lambda g: jnp.broadcast_to(g, (self.examples, *g.shape)), grads)

    def gradients(self, tree: Any, steps: int, dtype: Any = None) -> list[Any]:
        """Random gradients for `tree`, one for each step."""
        if self.examples is None:
            return gradients(tree, steps, dtype)
        return gradients(self.like(tree), steps, dtype)


def params(dtype=jnp.float32) -> Any:
    """A small tree with a matrix, a vector, a scalar and a 3-d array."""
    rng = np.random.default_rng(0)
    shapes = {"w": (3, 4), "b": (4,), "s": (), "deep": {"k": (2, 3, 2)}}
    return jax.tree.map(
        lambda shape: jnp.asarray(rng.normal(size=shape), dtype),
        shapes,
        is_leaf=lambda x: isinstance(x, tuple),
    )


def gradients(tree: Any, steps: int, dtype: Any = None, seed: int = 1) -> list[Any]:
    """Random gradients for `tree`, one for each step."""
    rng = np.random.default_rng(seed)
    return [
        jax.tree.map(lambda p: jnp.asarray(rng.normal(size=p.shape), dtype or p.dtype), tree)
        for _ in range(steps)
    ]


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
