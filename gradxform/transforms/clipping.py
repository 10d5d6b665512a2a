"""Bounding the size of the updates: per entry, per unit, per array, over the whole tree."""

from dataclasses import field
from typing import Any, NamedTuple

import jax.numpy as jnp

from gradxform import engine
from gradxform.base import ArrayRule, transform
from gradxform.engine import global_norm
from gradxform.errors import name_of
from gradxform.numerics import (
    at_least_float32,
    cast,
    real_dtype,
    scalar,
    scalar_dtype,
    shrinking,
    within,
)
from gradxform.numerics.roots import norm
from gradxform.transforms.matrices.array_norms import array_norm, array_norms, array_rms
from gradxform.transforms.together import ScaledTogether
from gradxform.types import Array, Bound, Limit, NonNegative, Size

__all__ = [
    "adaptive_grad_clip",
    "clip",
    "clip_by_block_norm",
    "clip_by_block_rms",
    "clip_by_global_norm",
    "clip_by_previous_global_norm",
    "ClipByPreviousGlobalNormState",
    "unitwise_clip",
    "unitwise_norm",
]


@transform
class clip(ArrayRule):
    """Clip every entry to [-max_delta, max_delta].

    Update rule: u = min(max(g, -max_delta), max_delta). NaN stays NaN.

    Args:
      max_delta: the largest absolute value, at least 0; infinite for no clipping.
    """

    max_delta: Limit

    locality = "entry"

    def rule(self, g, p):
        """Return the clipped update."""
        bound = within(self.max_delta, g.dtype)
        return jnp.clip(g, -bound, bound)


@transform
class clip_by_block_rms(ArrayRule):
    """Scale down every array whose root mean square exceeds a threshold.

    Update rule: u = g / max(1, rms(g) / threshold), with rms(g) = sqrt(mean |g|^2) over the array.
    An empty array stays as it is.

    Args:
      threshold: the largest root mean square, greater than 0; infinite for no clipping.

    Reference: Shazeer and Stern, Adafactor: Adaptive Learning Rates with Sublinear Memory Cost,
    2018, section 6.
    """

    threshold: Bound

    locality = "array"
    sees_pieces = True
    by_entry_after_sums = True
    handles_complex = True

    def rule(self, g, p):
        """Return the update, scaled down if it is large."""
        return g * shrinking(array_rms(g), self.threshold)


@transform
class clip_by_block_norm(ArrayRule):
    """Scale down every array whose norm exceeds a maximum.

    Update rule, with |g| the Euclidean norm of one array: u = g max_norm / max(|g|, max_norm).

    Args:
      max_norm: the largest norm, greater than 0; infinite for no clipping.

    Reference: Pascanu et al., On the Difficulty of Training Recurrent Neural Networks, 2013,
    Algorithm 1, array by array.
    """

    max_norm: Bound

    locality = "array"
    sees_pieces = True
    by_entry_after_sums = True
    handles_complex = True

    def rule(self, g, p):
        """Return the update, scaled down if it is large."""
        return g * shrinking(array_norm(g), self.max_norm)


@transform
class clip_by_global_norm(ScaledTogether):
    """Scale all updates down together if their norm exceeds a maximum.

    Update rule, with |g| the Euclidean norm over every entry of the tree, in float32 or wider:

        u = g max_norm / max(|g| + eps, max_norm)

    A tree with a NaN becomes NaN everywhere: an infinite or undefined norm is not hidden.

    Args:
      max_norm: the largest norm, greater than 0; infinite for no clipping.
      eps: added to the norm, at least 0; 1e-6 is PyTorch's `clip_grad_norm_`. Defaults to nothing.
        Keyword-only.

    Reference: Pascanu et al., On the Difficulty of Training Recurrent Neural Networks, 2013,
    Algorithm 1.
    """

    max_norm: Bound
    eps: NonNegative | None = field(default=None, kw_only=True)

    def prepare(self, updates, state, params):
        """Return the factor for all leaves."""
        size = cast(global_norm(updates), scalar_dtype())
        size = size if self.eps is None else size + scalar(self.eps)
        return state, shrinking(size, self.max_norm)


class ClipByPreviousGlobalNormState(NamedTuple):
    """State of `clip_by_previous_global_norm`."""

    norm: Array  # float32 scalar; the norm of the last updates, 0 before the first


@transform
class clip_by_previous_global_norm(ScaledTogether):
    """Scale all updates down together if the norm of those before them exceeds a maximum.

    Update rule, with |g'| the Euclidean norm over every entry of the updates before, 0 at first:

        u = g max_norm / max(|g'|, max_norm)

    This is not `clip_by_global_norm`: a single large gradient passes, and the one after it is
    scaled down. The factor is known before the first gradient is, so that a step that updates
    layers in the backward pass needs one such pass and not two. A norm that is not finite scales
    nothing down; `apply_if_finite` around it skips such a step.

    Args:
      max_norm: the largest norm, greater than 0; infinite for no clipping.

    Of our own making: no paper proposes it.
    """

    max_norm: Bound

    State = ClipByPreviousGlobalNormState

    def init(self, params):
        """Return a norm of 0."""
        return ClipByPreviousGlobalNormState(norm=jnp.zeros((), scalar_dtype()))

    def prepare(self, updates, state, params):
        """Return the state with the norm of these updates, and the factor for all leaves."""
        before = jnp.where(jnp.isfinite(state.norm), state.norm, 0)
        factor = shrinking(cast(before, scalar_dtype()), self.max_norm)
        with engine.for_the_next_step():
            norm = cast(global_norm(updates), scalar_dtype())
        return state._replace(norm=norm), factor


@transform
class adaptive_grad_clip(ArrayRule):
    """Scale down every unit whose gradient is large beside its parameters.

    Update rule, with |x| the norm over a unit, the entries that feed one output (see `axis`):

        u = g min(1, clipping max(|p|, eps) / |g|)

    Args:
      clipping: the largest ratio |g| / |p|, greater than 0; infinite for no clipping.
      eps: a lower bound on |p|, at least 0, so that parameters that start at 0 can move.
      axis: the axes that belong to one unit. By default all axes of a scalar or vector (axes of
        size 1 do not count), axis 0 of a matrix or a 3-d array, and all but the last axis of
        convolution kernels (4-d, 5-d); more dimensions need `axis`.

    Raises:
      ValueError: at update, for an array of more than 5 dimensions without `axis`, or without
        parameters.

    Reference: Brock et al., High-Performance Large-Scale Image Recognition Without Normalization,
    2021, equation (3).
    """

    clipping: Bound
    eps: NonNegative = 1e-3
    axis: Size | tuple[int, ...] | None = None

    locality = "array"
    sees_pieces = True
    handles_complex = True
    needs_params = True

    def rule(self, g, p):
        """Return the update, scaled down per unit."""
        axes = unit_axes(self, engine.whole_shape(g)) if self.axis is None else self.axis
        size, size_p = array_norms(g, p, axes=axes)
        limit = within(self.clipping, size.dtype) * jnp.maximum(size_p, self.eps)
        # Clipped only where it exceeds the limit, so the division below is never by zero.
        return jnp.where(size > limit, (limit / jnp.where(size > limit, size, 1)) * g, g)


def unitwise_norm(x: Any, axis: int | tuple[int, ...] | None = None) -> Array:
    """Return the Euclidean norm of every unit, in every entry of the unit.

    Args:
      x: an array.
      axis: the axes that belong to one unit. Defaults to those of `adaptive_grad_clip`.

    Returns:
      An array of the shape of `x`, real, in float32 or wider.

    Raises:
      ValueError: for an array of more than 5 dimensions without `axis`.
    """
    x = jnp.asarray(x)
    axes = unit_axes("unitwise_norm", x.shape) if axis is None else axis
    return jnp.broadcast_to(norm(cast(x, at_least_float32(x.dtype)), axes), x.shape)


def unitwise_clip(g_norm: Any, max_norm: Any, grad: Any, div_eps: float = 1e-6) -> Array:
    """Scale a gradient down where the norm of its unit exceeds a maximum.

    Returns `grad max_norm / max(g_norm, div_eps)` where `g_norm > max_norm`, else `grad`.

    Args:
      g_norm: the norms of the units, in the shape of `grad`, as `unitwise_norm` returns them.
      max_norm: the largest norms, in that shape; infinite for no clipping.
      grad: the gradient; the result has its dtype.
      div_eps: a lower bound on the divisor, at least 0.

    Raises:
      ValueError: if the shapes differ.
    """
    if not jnp.shape(g_norm) == jnp.shape(max_norm) == jnp.shape(grad):
        raise ValueError(
            "unitwise_clip: g_norm, max_norm and grad must have the same shape, got "
            f"{jnp.shape(g_norm)}, {jnp.shape(max_norm)} and {jnp.shape(grad)}."
        )
    grad = jnp.asarray(grad)
    wide = at_least_float32(grad.dtype)
    size, limit = (cast(jnp.asarray(x), real_dtype(wide)) for x in (g_norm, max_norm))
    # Only where it is to be clipped: infinity over infinity is not a factor.
    exceeds = ~(size <= limit)
    divisor = jnp.maximum(jnp.where(exceeds, size, 1), div_eps)
    clipped = cast(grad, wide) * (jnp.where(exceeds, limit, 1) / divisor)
    return jnp.where(exceeds, cast(clipped, grad.dtype), grad)


def unit_axes(part: Any, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the axes that belong to one unit by default."""
    if sum(n != 1 for n in shape) <= 1:
        return tuple(range(len(shape)))
    if len(shape) in (2, 3):  # inputs first, as in dense layers
        return (0,)
    if len(shape) in (4, 5):  # outputs last, as in kernels of convolutions
        return tuple(range(len(shape) - 1))
    raise ValueError(
        f"{name_of(part)}: no default unit for an array of shape {shape}; say which axes "
        "belong to one unit with axis=."
    )
