"""The optimizers that both libraries have under one name, with the arguments to create them."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
import optax.contrib

import gradxform
from benchmarks.subjects.cases import LIBRARIES, THEIRS

# Optimizers that need more than a learning rate, or are of little interest without it.
ARGUMENTS: dict[str, dict[str, Any]] = {
    "dpsgd": {"l2_norm_clip": 1.0, "noise_multiplier": 1.0, "seed": 0},
    "lbfgs": {"linesearch": None},  # a search takes as long as the loss
    "noisy_sgd": {"key": 0},
    "rmsprop": {"momentum": 0.9},
    "sgd": {"momentum": 0.9},
}
# Optimizers that take one gradient for each of this many examples.
EXAMPLES = {"dpsgd": 2}


def _half_squares(params: Any) -> Any:
    return sum(0.5 * jnp.sum(x * x) for x in jax.tree.leaves(params))


# Extra arguments of updates.
EXTRA: dict[str, Mapping[str, Any]] = {
    "momo": {"value": jnp.float32(1.0)},
    "momo_adam": {"value": jnp.float32(1.0)},
    "polyak_sgd": {"value": jnp.float32(1.0)},
    "sophia": {"obj_fn": _half_squares},
}


class Pair(NamedTuple):
    """Two transforms to compare, such as an optimizer of both libraries."""

    make: Callable[[Any], Any]  # a function of the library
    extra: Mapping[str, Any]
    examples: int | None = None  # how many gradients an update takes, if it takes several
    same: bool = True  # whether both compute the same numbers


def _theirs(name: str) -> Any:
    # Names that moved to `contrib` are still in `optax`, with a warning.
    return getattr(optax.contrib, name, None) or getattr(optax, name, None)


def _pair(name: str) -> Pair:
    def make(lib: Any) -> Any:
        factory = _theirs(name) if lib is LIBRARIES[THEIRS] else gradxform.OPTIMIZERS[name]
        arguments = dict(ARGUMENTS.get(name, {}))
        rate = inspect.signature(factory).parameters.get("learning_rate")
        # Without one, Optax's adadelta goes uphill.
        if rate is not None and (rate.default is rate.empty or rate.default is None):
            arguments["learning_rate"] = 1e-3
        return factory(**arguments)

    return Pair(make, EXTRA.get(name, {}), EXAMPLES.get(name))


PAIRS: dict[str, Pair] = {
    name: _pair(name) for name in sorted(gradxform.OPTIMIZERS) if callable(_theirs(name))
}
