"""Steps without their part along the parameters, for weights that a normalization follows."""

import math
from dataclasses import field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from gradxform import engine
from gradxform.base import call_update, transform
from gradxform.errors import name_of
from gradxform.leaves import align, align_params, check_shapes, masks, require_params
from gradxform.numerics import abs_sq, at_least_float32, cast, over, promote, real_dtype, taming
from gradxform.numerics.roots import root
from gradxform.types import Array, NonNegative, OptState, Params, PyTree, Size, StaticMask, Updates
from gradxform.wrappers.agree import refuse_exchange
from gradxform.wrappers.changed_steps import check_changeable, told_change
from gradxform.wrappers.parts import StatelessWrapper, at_least, check_movable

__all__ = [
    "remove_radial",
]


class _RadialLeaf(NamedTuple):
    """What `_without_radial_part` must know of a leaf before anything is computed."""

    axis: int
    decays: bool


@transform
class remove_radial(StatelessWrapper):
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
    handles_rows = False
    why_no_rows = "compares rows of whole arrays"

    def __post_init__(self) -> None:
        super().__post_init__()
        refuse_exchange(self, self.inner)
        check_movable(self, self.inner)
        check_changeable(self, self.inner)

    @property
    def locality(self) -> str:
        """How far the inner transform looks, but at least the array."""
        return at_least("array", self.inner)

    def init(self, params: Params) -> OptState:
        """Return the inner state."""
        masks.check_patterns(self, self.mask, params)
        return self.inner.init(params)

    def update(
        self, updates: Updates, state: OptState, params: Params | None = None, **extra: Any
    ) -> tuple[Updates, OptState]:
        """Return the inner update without its radial part, and with decay."""
        require_params(self, params)
        new, state = call_update(self.inner, updates, state, params, extra)
        gs, treedef = jax.tree.flatten(updates)
        us = treedef.flatten_up_to(new)
        check_shapes(self, updates, us, "the inner update has")
        ps = align_params(self, updates, treedef, params).leaves
        out = engine.map_rows(
            _without_radial_part,
            [us, gs, ps],
            *(self.delta, self.wd_ratio, self.weight_decay, self.eps),
            statics=self._leaves(gs, updates, treedef, params),
            cuts=engine.cuts_of(updates),
        )
        changed = jax.tree.unflatten(treedef, out)
        return changed, told_change(self.inner, state, params, new, changed)

    def _leaves(
        self, gs: list[Any], updates: Updates, treedef: Any, params: PyTree
    ) -> list[_RadialLeaf]:
        decays: list[Any] = [True] * len(gs)
        if self.mask is not None:
            mask = masks.resolve(self, self.mask, params)
            decays = align(self, updates, treedef, mask, "the mask has").leaves
        for g in gs:
            if g.ndim > 1 and not -g.ndim <= self.axis < g.ndim:
                raise ValueError(
                    f"{name_of(self)}: an array of shape {g.shape} does not have the axis "
                    f"{self.axis}; leave it out with masked(...), or set another axis."
                )
        return [_RadialLeaf(self.axis, bool(x)) for x in decays]


def _radial_product_terms(x: Array, y: Array) -> Array:
    """Return the terms of the inner product of two arrays; real also for complex ones."""
    return jnp.real(x * jnp.conj(y)) if jnp.iscomplexobj(x) else x * y


def _without_radial_part(
    u: Array,
    g: Array,
    p: Array,
    delta: Any,
    wd_ratio: Any,
    weight_decay: Any,
    eps: Any,
    leaf: _RadialLeaf,
) -> Array:
    """Return an update with decay; without its part along `p`, if the gradient is normal to it."""
    dtype, wide = g.dtype, at_least_float32(promote(u.dtype, g.dtype, p.dtype))
    real = real_dtype(wide)
    u, g, p = (cast(x, wide) for x in (u, g, p))
    delta, wd_ratio, weight_decay, eps = (
        cast(jnp.asarray(x), real) for x in (delta, wd_ratio, weight_decay, eps)
    )
    decay = weight_decay if leaf.decays else jnp.zeros_like(weight_decay)
    if u.ndim < 2 or not u.size:
        return cast(u + cast(decay, wide) * p, dtype)
    # In a range where the sums of squares are finite.
    tame = taming(engine.array_max(jnp.maximum(jnp.abs(u), jnp.abs(g))))
    g, small = cast(tame, wide) * g, cast(tame, wide) * u
    axis = leaf.axis % u.ndim
    shape, others = engine.whole_shape(u), tuple(i for i in range(u.ndim) if i != axis)
    terms = (_radial_product_terms(g, p), abs_sq(g), abs_sq(p), _radial_product_terms(p, small))
    by_row = engine.array_sums(*((x, others) for x in terms), keepdims=True)
    in_all = engine.array_sums(*((x, (axis,)) for x in by_row), keepdims=True)

    def cosine(gp: Array, gg: Array, pp: Array, pu: Array) -> Array:
        sizes = [jnp.maximum(root(x), eps) for x in (gg, pp)]
        return over(jnp.abs(gp), sizes[0] * sizes[1], 0)

    def tangent(gp: Array, gg: Array, pp: Array, pu: Array) -> Array:
        size = root(pp) + eps
        return small - cast(over(over(pu, size, 0), size, 0), wide) * p

    size = math.prod(shape)
    is_right = [
        engine.array_max(cosine(*by_row)) < delta / (size // shape[axis]) ** 0.5,
        jnp.max(cosine(*in_all)) < delta / size**0.5,
    ]
    none_is = ~(is_right[0] | is_right[1])
    tangential = jnp.where(is_right[0], tangent(*by_row), tangent(*in_all))
    u = jnp.where(none_is, u, tangential / cast(tame, wide))
    decay = jnp.where(none_is, decay, wd_ratio * decay)
    return cast(u + cast(decay, wide) * p, dtype)
