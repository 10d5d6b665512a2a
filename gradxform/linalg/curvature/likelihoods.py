"""Distributions of labels given the outputs of a model: draws, scores, Fisher matrices."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from gradxform.errors import did_you_mean, name_of, shown
from gradxform.types import Array, Size
from gradxform.values import Value
from gradxform.values.fields import value


class Kind(NamedTuple):
    """A distribution of labels; arrays have one for each label, along the leading axes."""

    axes: int  # how many axes, the last ones, belong to one label
    draw: Callable[[Array, Array], Array]  # labels, from a key and the outputs
    score: Callable[[Array, Array], Array]  # the slope of the log-likelihood by the outputs
    fisher: Callable[[Array, Array], Array] | None  # the product of the mean of score score^T


def _categorical_score(z: Array, y: Array) -> Array:
    return jax.nn.one_hot(y, z.shape[-1], dtype=z.dtype) - jax.nn.softmax(z, axis=-1)


def _categorical_fisher(z: Array, t: Array) -> Array:
    p = jax.nn.softmax(z, axis=-1)
    return p * t - p * jnp.sum(p * t, axis=-1, keepdims=True)


def _bernoulli_draw(key: Array, z: Array) -> Array:
    return jax.random.bernoulli(key, jax.nn.sigmoid(z)).astype(z.dtype)


KINDS = {
    # Of one of several classes; the outputs are logits along the last axis.
    "categorical": Kind(
        1,
        lambda key, z: jax.random.categorical(key, z),
        _categorical_score,
        _categorical_fisher,
    ),
    # Normal around the output, with variance 1: that of half of the squared error.
    "normal": Kind(
        0,
        lambda key, z: z + jax.random.normal(key, z.shape, z.dtype),
        lambda z, y: y - z,
        lambda z, t: t,
    ),
    # 0 or 1; the outputs are logits.
    "bernoulli": Kind(
        0,
        _bernoulli_draw,
        lambda z, y: y - jax.nn.sigmoid(z),
        lambda z, t: jax.nn.sigmoid(z) * jax.nn.sigmoid(-z) * t,
    ),
    # A count; the outputs are logarithms of rates.
    "poisson": Kind(
        0,
        lambda key, z: jax.random.poisson(key, jnp.exp(z), dtype=jnp.int32).astype(z.dtype),
        lambda z, y: y - jnp.exp(z),
        lambda z, t: jnp.exp(z) * t,
    ),
}


@value
class likelihood(Value):
    """A distribution of labels given outputs, for Fisher matrices from sampled labels.

    Args:
      log_prob: `log_prob(outputs, labels)`, the log-likelihood of every label, or their sum.
      sample: `sample(key, outputs)`, labels drawn from the distribution.
      label_axes: how many axes of the outputs, the last ones, belong to one label; at least 0.

    Raises:
      TypeError: if one of the first two is not a function.
      ValueError: if `label_axes` is negative.
    """

    log_prob: Any
    sample: Any
    label_axes: Size = 0

    never_schedule = True
    never_mask = True

    def __post_init__(self) -> None:
        for name in ("log_prob", "sample"):
            if not callable(getattr(self, name)):
                raise TypeError(
                    f"{name_of(self)}: {name} must be a function, got {shown(getattr(self, name))}."
                )
        if self.label_axes < 0:
            raise ValueError(
                f"{name_of(self)}: label_axes must be at least 0, got {self.label_axes}."
            )

    def kind(self) -> Kind:
        """Return what products need of it."""

        def score(z: Array, y: Array) -> Array:
            return jax.grad(lambda z: jnp.sum(self.log_prob(z, y)))(z)

        return Kind(self.label_axes, self.sample, score, None)


def kind_of(part: Any, name: Any) -> Kind:
    """Return the distribution that a field `likelihood` says, or raise."""
    if isinstance(name, likelihood):
        return name.kind()
    if not isinstance(name, str) or name not in KINDS:
        names = ", ".join(map(repr, KINDS))
        hint = did_you_mean(name, KINDS) if isinstance(name, str) else ""
        error = ValueError if isinstance(name, str) else TypeError
        raise error(
            f"{name_of(part)}: likelihood must be one of {names}, or a curvature.likelihood, got "
            f"{shown(name)}.{hint}"
        )
    return KINDS[name]


def count_of(part: Any, kind: Kind, outputs: Any) -> int:
    """Return how many labels there are for the outputs of a model, which must be one array."""
    leaves = jax.tree.leaves(outputs)
    if len(leaves) != 1 or leaves[0] is not outputs or outputs.ndim < kind.axes:
        axes = f" of at least {kind.axes} axes" if kind.axes else ""
        raise TypeError(
            f"{name_of(part)}: model must return the parameters of the distribution, one array"
            f"{axes}, got {shown(outputs)}."
        )
    shape = outputs.shape[: outputs.ndim - kind.axes]
    return max(math.prod(shape), 1)
