"""Distributions to sample from, and to differentiate through."""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from gradxform.errors import shown
from gradxform.leaves import dtype_of
from gradxform.numerics import at_least_float32, cast, promote
from gradxform.types import Array


class MultiNormalDiagFromLogScale(NamedTuple):
    """Independent normal distributions, by their means and the logarithms of their deviations."""

    loc: Array  # the means
    log_scale: Array  # the logarithms of the standard deviations

    @property
    def params(self) -> list[Array]:
        """The means and the logarithms of the standard deviations."""
        return [self.loc, self.log_scale]

    @property
    def _shape(self) -> tuple[int, ...]:
        return jnp.broadcast_shapes(jnp.shape(self.loc), jnp.shape(self.log_scale))

    def sample(self, shape: tuple[int, ...], key: Array) -> Array:
        """Return samples, of shape `(*shape, *shape of the distributions)`.

        They can be differentiated by `loc` and `log_scale`.
        """
        wide, dtype = self._wide()
        shape = (*shape, *self._shape)
        z = jax.random.normal(key, shape, wide.loc.dtype)
        loc, scale = (jnp.broadcast_to(x, shape) for x in (wide.loc, jnp.exp(wide.log_scale)))
        return cast(z * scale + loc, dtype)

    def log_prob(self, x: Any) -> Array:
        """Return the logarithm of the joint density at `x`; leading axes of `x` are samples."""
        wide, dtype = self._wide()
        x = cast(jnp.asarray(x), wide.loc.dtype)
        shape = jnp.broadcast_shapes(jnp.shape(x), self._shape)
        x, loc, log_scale = (jnp.broadcast_to(a, shape) for a in (x, *wide))
        z = (x - loc) * jnp.exp(-log_scale)
        density = -0.5 * z * z - log_scale - 0.5 * math.log(2 * math.pi)
        return cast(jnp.sum(density, axis=tuple(range(-len(self._shape), 0))), dtype)

    def _wide(self) -> tuple["MultiNormalDiagFromLogScale", Any]:
        """Return the same in float32 or wider, and the dtype of the results."""
        dtype = promote(dtype_of(self.loc), dtype_of(self.log_scale))
        wide = at_least_float32(dtype)
        return self._replace(loc=cast(self.loc, wide), log_scale=cast(self.log_scale, wide)), dtype


def multi_normal(loc: Any, log_scale: Any) -> MultiNormalDiagFromLogScale:
    """Return independent normal distributions, one for each entry.

    The result is a tree: it passes through `jax.jit` and `jax.grad`.

    Args:
      loc: the means.
      log_scale: the logarithms of the standard deviations; their shapes broadcast.

    Raises:
      ValueError: if the shapes do not broadcast.
    """
    loc, log_scale = (_floating(name, x) for name, x in (("loc", loc), ("log_scale", log_scale)))
    try:
        jnp.broadcast_shapes(loc.shape, log_scale.shape)
    except ValueError:
        raise ValueError(
            f"multi_normal: loc of shape {loc.shape} and log_scale of shape {log_scale.shape} do "
            "not broadcast."
        ) from None
    return MultiNormalDiagFromLogScale(loc, log_scale)


def _floating(name: str, x: Any) -> Array:
    x = jnp.asarray(x)
    if jnp.issubdtype(x.dtype, jnp.integer):
        x = x.astype(jnp.float32)
    if not jnp.issubdtype(x.dtype, jnp.floating):
        raise TypeError(f"multi_normal: {name} must be real numbers, got {shown(x)}.")
    return x
