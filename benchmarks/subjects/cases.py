"""The parameter trees and the optimizers that are measured, and the libraries that run them."""

from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import gradxform

# In the order of their turns. The second is compared with the first.
LIBRARIES: dict[str, ModuleType] = {"optax": optax, "gradxform": gradxform}
THEIRS, OURS = LIBRARIES

Shapes = Any  # a nested dict whose leaves are shapes


def _block() -> Shapes:
    """Return five matrices of 64k to 128k entries and three vectors, as in a small transformer."""
    return {
        "attention": {
            "query": (256, 256),
            "key_value": (256, 384),
            "out": (256, 256),
        },
        "mlp": {"up": (256, 512), "bias": (512,), "down": (512, 256)},
        "norm_1": {"scale": (256,)},
        "norm_2": {"scale": (256,)},
    }


def _blocks(leaves: int) -> Shapes:
    return {f"block_{i}": _block() for i in range(leaves // 8)}


def _tiny(leaves: int) -> Shapes:
    shapes = ((3,), (2, 4), (), (5,))
    return {f"leaf_{i}": shapes[i % len(shapes)] for i in range(leaves)}


TREES: dict[str, Callable[[], Shapes]] = {
    "one-16M": lambda: {"w": (4096, 4096)},
    "256-mixed": lambda: _blocks(256),
    "1024-mixed": lambda: _blocks(1024),
    "16-mixed": lambda: _blocks(16),
    "8-square": lambda: {f"w{i}": (1024, 1024) for i in range(8)},
    "1024-tiny": lambda: _tiny(1024),
    # For smoke runs:
    "one-1M": lambda: {"w": (1024, 1024)},
    "8-mixed": lambda: _blocks(8),
}
DEFAULT_TREES = ("one-16M", "256-mixed", "1024-mixed", "1024-tiny")
QUICK_TREES = ("one-1M", "8-mixed")

# Functions of the library, because both have the same names.
CHAINS: dict[str, Callable[[Any], Any]] = {
    "sgd": lambda lib: lib.sgd(1e-2, momentum=0.9),
    "adamw": lambda lib: lib.adamw(1e-3),
    "clip+adamw": lambda lib: lib.chain(lib.clip_by_global_norm(1.0), lib.adamw(1e-3)),
    "lamb": lambda lib: lib.lamb(1e-3),
}


def make_tree(name: str, seed: int) -> tuple[Any, Any]:
    """Return random float32 parameters and gradients of the tree `name`."""
    rng = np.random.default_rng(seed)

    def draw(scale: float) -> Any:
        def leaf(shape: tuple[int, ...]) -> jax.Array:
            values = rng.standard_normal(shape, np.float32) * np.float32(scale)
            return jnp.array(values)

        return jax.tree.map(leaf, TREES[name](), is_leaf=lambda x: isinstance(x, tuple))

    return draw(0.02), draw(1.0)


def make_step(
    lib: Any, tx: Any, extra: Mapping[str, Any] | None = None
) -> Callable[[Any, Any, Any], tuple[Any, Any]]:
    """Return a new function for one training step without the gradient.

    Donated arguments and results are in the same order. Otherwise XLA would have to copy, because
    each result overwrites the argument in its position.

    Args:
      lib: the library, for its `apply_updates`.
      tx: its optimizer.
      extra: extra arguments of the update.
    """
    extra = extra or {}

    def step(params: Any, state: Any, grads: Any) -> tuple[Any, Any]:
        updates, state = tx.update(grads, state, params, **extra)
        return lib.apply_updates(params, updates), state

    return step
