"""Cautious optimizers: only steps on which update and gradient agree."""

import math
from dataclasses import field
from typing import Any

import jax
import jax.numpy as jnp

from gradxform import engine
from gradxform.base import call_update, transform
from gradxform.leaves import check_shapes
from gradxform.numerics import at_least_float32, cast, over, promote, real_dtype
from gradxform.types import Array, NonNegative, OptState, Params, Updates
from gradxform.wrappers.agree import refuse_exchange
from gradxform.wrappers.changed_steps import check_changeable, told_change
from gradxform.wrappers.parts import StatelessWrapper, at_least, check_movable

__all__ = [
    "cautious",
]


@transform
class cautious(StatelessWrapper):
    """Leave out the entries of an optimizer's update that go uphill.

    Update rule, with u' the update of the inner transform, per array of n entries:

        k = 1 where -u' g > 0, else 0        (u' g > 0 with descent=False)
        u = u' k n / (sum(k) + xi)

    An entry that only momentum would move stays, also where its gradient is 0. The others move
    further: twice as far where half of an array agrees. Around a whole optimizer the mask covers
    the weight decay too; `cautious_adamw` has the decay outside, as in the paper. The state is the
    inner state; an inner part that keeps copies of the parameters is told where they go.

    Wrap it in `distributed.tower`, not the other way around, so that all replicas compare the mean
    gradient. A scalar parameter moves by 1 / (1 + xi) of its update.

    Args:
      inner: an optimizer, such as `adam(1e-3)`, whose updates are added to the parameters.
      xi: added to the number of entries that agree, at least 0; 1 in the paper.
      descent: whether the updates of `inner` go downhill, as an optimizer's do; False for a rule
        such as `scale_by_adam`, which keeps the sign of the gradient. Keyword-only.

    Raises:
      ValueError: if the inner transform exchanges something between replicas, or goes on from a
        place of its own.

    Reference: Liang et al., Cautious Optimizers: Improving Training with One Line of Code, 2024,
    Algorithm 1.
    """

    inner: Any
    xi: NonNegative = 1.0
    descent: bool = field(default=True, kw_only=True)

    sees_pieces = True
    handles_rows = False
    why_no_rows = "counts the entries of whole arrays"

    def __post_init__(self) -> None:
        super().__post_init__()
        refuse_exchange(self, self.inner)
        check_movable(self, self.inner)
        check_changeable(self, self.inner)

    @property
    def locality(self) -> str:
        """How far the inner transform looks, but at least the array."""
        return at_least("array", self.inner)

    def update(
        self, updates: Updates, state: OptState, params: Params | None = None, **extra: Any
    ) -> tuple[Updates, OptState]:
        """Return the inner update where it agrees with the gradient."""
        new, state = call_update(self.inner, updates, state, params, extra)
        gs, treedef = jax.tree.flatten(updates)
        us = treedef.flatten_up_to(new)
        check_shapes(self, updates, us, "the inner update has")
        sign = -1 if self.descent else 1
        out = engine.map_rows(
            _cautious_update,
            [us, gs],
            self.xi,
            statics=[sign] * len(gs),
            cuts=engine.cuts_of(updates),
        )
        changed = jax.tree.unflatten(treedef, out)
        return changed, told_change(self.inner, state, params, new, changed)


def _cautious_update(u: Array, g: Array, xi: Any, sign: int) -> Array:
    """Return the entries of `u` in which it agrees with `sign` times g, and zeros."""
    dtype, wide = g.dtype, at_least_float32(promote(u.dtype, g.dtype))
    u, g = cast(u, wide), cast(g, wide)
    if jnp.iscomplexobj(u):
        along = jnp.real(u * jnp.conj(g))
    else:  # signs, because a product of small numbers is 0
        along = jnp.sign(u) * jnp.sign(g)
    uphill = sign * along <= 0  # False for a NaN, which is not hidden
    real = real_dtype(wide)
    xi = cast(jnp.asarray(xi), real)
    size = math.prod(engine.whole_shape(u))
    agree = engine.array_sums((~uphill).astype(real))
    factor = over(jnp.asarray(size, real), agree + xi, 0)
    return cast(jnp.where(uphill, jnp.zeros_like(u), cast(factor, wide) * u), dtype)
