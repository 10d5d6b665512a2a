"""The optimizers that both libraries have, found by name, with the arguments to make them of."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
import optax.contrib

import gradxform
from benchmarks.cases import LIBRARIES, THEIRS

# What cannot be made of a learning rate alone, or would do nothing of interest with it.
ARGUMENTS: dict[str, dict[str, Any]] = {
    "dpsgd": {"l2_norm_clip": 1.0, "noise_multiplier": 1.0, "seed": 0},
    "noisy_sgd": {"key": 0},
    "rmsprop": {"momentum": 0.9},
    "sgd": {"momentum": 0.9},
}
# Those whose gradients are one for each of so many examples.
EXAMPLES = {"dpsgd": 2}


def _half_squares(params: Any) -> Any:
    return sum(0.5 * jnp.sum(x * x) for x in jax.tree.leaves(params))


# Extra arguments of an update; an optimizer takes what it knows.
EXTRA: dict[str, Mapping[str, Any]] = {
    "momo": {"value": jnp.float32(1.0)},
    "momo_adam": {"value": jnp.float32(1.0)},
    "polyak_sgd": {"value": jnp.float32(1.0)},
    "sophia": {"obj_fn": _half_squares},
}


class Pair(NamedTuple):
    """An optimizer of both libraries."""

    make: Callable[[Any], Any]  # of the library
    extra: Mapping[str, Any]
    examples: int | None  # how many gradients an update takes; None: one


def _theirs(name: str) -> Any:
    # A name that moved is still in `optax`, with a warning.
    return getattr(optax.contrib, name, None) or getattr(optax, name, None)


def _pair(name: str) -> Pair:
    def make(lib: Any) -> Any:
        factory = _theirs(name) if lib is LIBRARIES[THEIRS] else gradxform.OPTIMIZERS[name]
        given = dict(ARGUMENTS.get(name, {}))
        rate = inspect.signature(factory).parameters.get("learning_rate")
        # Without one, Optax's adadelta goes uphill.
        if rate is not None and (rate.default is rate.empty or rate.default is None):
            given["learning_rate"] = 1e-3
        return factory(**given)

    return Pair(make, EXTRA.get(name, {}), EXAMPLES.get(name))


PAIRS: dict[str, Pair] = {
    name: _pair(name) for name in sorted(gradxform.OPTIMIZERS) if callable(_theirs(name))
}
