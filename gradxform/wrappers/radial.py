"""Steps without their part along the parameters, for weights that a normalization follows."""

import math
from dataclasses import field
from typing import Any

import jax
import jax.numpy as jnp

from gradxform import engine
from gradxform.base import transform
from gradxform.errors import name_of
from gradxform.leaves import align, masks
from gradxform.numerics import abs_sq, cast, over, real_dtype, taming
from gradxform.numerics.roots import root
from gradxform.types import Array, NonNegative, Size, StaticMask
from gradxform.wrappers.after_step import AfterStep


@transform
class remove_radial(AfterStep):
    """Remove from steps their part along the parameters, where gradients do not have one.

    Update rule, with u' the update of the inner transform, for each array of two or more axes:

        per row: n = p / (|p| + eps), c = |<g, p>| / (max(|g|, eps) max(|p|, eps))
        u = u' - n <n, u'> + wd_ratio weight_decay p      where max(c) < delta / sqrt(row length)
        u = u' + weight_decay p                           elsewhere

    A row has the entries that share one index along `axis`. If the rows of an array do not pass the
    test, the whole array is tried as one row. For arrays of fewer axes the last line holds.

    The gradient of weights that are followed by a normalization is at right angles to them, and
    each step makes them grow; with momentum they grow faster, and the effective learning rate falls
    too early. Steps without radial part, and less decay, slow that down. Place it around the
    direction, before the learning rate, as `adamp` and `sgdp` do.

    Args:
      inner: a rule such as `scale_by_adam`, which keeps the sign of the gradient.
      delta: how far from a right angle the gradients may be, at least 0.
      wd_ratio: the share of the decay that is left where steps are projected, at least 0.
      weight_decay: the multiple of p, at least 0.
      mask: which parameters decay, such as `ndim_at_least(2)`. Defaults to all.
      eps: added to the norm of a row, at least 0; with 0, a row of zeros does not project.
        Keyword-only.
      axis: the axis of the outputs, which tells rows apart: the last one of layers of Flax.
        Keyword-only.

    Raises:
      ValueError: if the inner transform exchanges something between replicas, or goes on from a
        place of its own; at update, if no parameters are given, or an array does not have the axis.

    Reference: Heo et al., AdamP: Slowing Down the Slowdown for Momentum Optimizers on
    Scale-invariant Weights, 2021, Algorithms 1-2.
    """

    inner: Any
    delta: NonNegative = 0.1
    wd_ratio: NonNegative = 0.1
    weight_decay: NonNegative = 0.0
    mask: StaticMask | None = None
    eps: NonNegative = field(default=1e-8, kw_only=True)
    axis: Size = field(default=-1, kw_only=True)

    sees_pieces = True
    why_no_rows = "compares rows of whole arrays"

    def init(self, params):
        """Return the inner state."""
        masks.check_patterns(self, self.mask, params)
        return self.inner.init(params)

    def leaves(self, updates, params):
        """Return for each array whether it decays."""
        gs, treedef = jax.tree.flatten(updates)
        for g in gs:
            if g.ndim > 1 and not -g.ndim <= self.axis < g.ndim:
                raise ValueError(
                    f"{name_of(self)}: an array of shape {g.shape} does not have the axis "
                    f"{self.axis}; leave it out with masked(...), or set another axis."
                )
        if self.mask is None:
            return [True] * len(gs)
        mask = masks.resolve(self, self.mask, params)
        return [*map(bool, align(self, updates, treedef, mask, "the mask has").leaves)]

    def after(self, u, g, p, leaf):
        """Return a step with decay; without its part along `p`, if the gradient is normal to it."""
        decay = jnp.asarray(self.weight_decay if leaf else 0.0, real_dtype(u.dtype))
        if u.ndim < 2 or not u.size:
            return u + cast(decay, u.dtype) * p
        # In a range where the sums of squares are finite.
        tame, tame_p = (
            taming(engine.array_max(x)) for x in (jnp.maximum(jnp.abs(u), jnp.abs(g)), jnp.abs(p))
        )
        g, small, whole_p = cast(tame, u.dtype) * g, cast(tame, u.dtype) * u, p
        # All below but the decay is the same for a parameter of another length.
        p, eps = cast(tame_p, u.dtype) * p, tame_p * self.eps
        axis = self.axis % u.ndim
        shape, others = engine.whole_shape(u), tuple(i for i in range(u.ndim) if i != axis)
        terms = _product_terms(g, p), abs_sq(g), abs_sq(p), _product_terms(p, small)
        by_row = engine.array_sums(*((x, others) for x in terms), keepdims=True)
        in_all = engine.array_sums(*((x, (axis,)) for x in by_row), keepdims=True)

        def cosine(gp: Array, gg: Array, pp: Array, pu: Array) -> Array:
            sizes = [jnp.maximum(root(x), eps) for x in (gg, pp)]
            return over(jnp.abs(gp), sizes[0] * sizes[1], 0)

        def tangent(gp: Array, gg: Array, pp: Array, pu: Array) -> Array:
            size = root(pp) + eps
            return small - cast(over(over(pu, size, 0), size, 0), u.dtype) * p

        size = math.prod(shape)
        is_right = [
            engine.array_max(cosine(*by_row)) < self.delta / (size // shape[axis]) ** 0.5,
            jnp.max(cosine(*in_all)) < self.delta / size**0.5,
        ]
        none_is = ~(is_right[0] | is_right[1])
        tangential = jnp.where(is_right[0], tangent(*by_row), tangent(*in_all))
        u = jnp.where(none_is, u, tangential / cast(tame, u.dtype))
        return u + cast(jnp.where(none_is, decay, self.wd_ratio * decay), u.dtype) * whole_p


def _product_terms(x: Array, y: Array) -> Array:
    """Return the terms of the inner product of two arrays; real also for complex ones."""
    return jnp.real(x * jnp.conj(y)) if jnp.iscomplexobj(x) else x * y
