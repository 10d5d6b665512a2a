"""Cautious optimizers: only steps on which update and gradient agree."""

import math
from dataclasses import field
from typing import Any

import jax.numpy as jnp

from gradxform import engine
from gradxform.base import transform
from gradxform.numerics import cast, over, real_dtype
from gradxform.types import NonNegative
from gradxform.wrappers.after_step import AfterStep


@transform
class cautious(AfterStep):
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

    reads_params = False
    sees_pieces = True
    why_no_rows = "counts the entries of whole arrays"

    def after(self, u, g, p, leaf):
        """Return the entries of `u` in which it agrees with the gradient, and zeros."""
        if jnp.iscomplexobj(u):
            along = jnp.real(u * jnp.conj(g))
        else:  # signs, because a product of small numbers is 0
            along = jnp.sign(u) * jnp.sign(g)
        uphill = (-along if self.descent else along) <= 0  # False for a NaN, which is not hidden
        real = real_dtype(u.dtype)
        size = math.prod(engine.whole_shape(u))
        agree = engine.array_sums((~uphill).astype(real))
        factor = over(jnp.asarray(size, real), agree + self.xi, 0)
        return jnp.where(uphill, jnp.zeros_like(u), cast(factor, u.dtype) * u)
