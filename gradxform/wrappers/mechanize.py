"""Mechanic: any optimizer, with its scale learned during training."""

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from gradxform.base import transform
from gradxform.engine import tree_sums
from gradxform.numerics import cast, scalar, scalar_dtype
from gradxform.numerics.overflow import bounded_square, saturated
from gradxform.numerics.roots import root
from gradxform.types import Array, NonNegative, Positive, Size, Slot
from gradxform.wrappers.learned_scale import LearnedScale


class MechanicState(NamedTuple):
    """State of `mechanize`."""

    base_optimizer_state: Any  # the state of the base optimizer
    count: Array  # int32 scalar; the number of updates so far
    r: Array  # (num_betas,), at least float32; the reward of each scale
    m: Array  # (num_betas,), at least float32; the largest |h|, which decays
    v: Array  # (num_betas,), at least float32; the sum of h^2, which decays
    s: Array  # (num_betas,), at least float32; the scales
    x0: Slot  # like params, at least float32; the first parameters

    def metrics(self) -> dict[str, Array]:
        """Return the count and the scale S."""
        return {"count": self.count, "scale": jnp.sum(self.s, -1)}


@transform
class mechanize(LearnedScale):
    """Learn the scale of an optimizer's updates: the learning rate.

    Update rule, with u' the update of the base optimizer, S the sum of the n = `num_betas` scales
    s, x0 the first parameters, and from r = m = v = 0, s = s_init; per beta = 1 - 0.1^i:

        delta = (x0 - p) / (S + eps)
        h = <g + weight_decay S |g| / (|p| + eps) p, delta>
        r <- beta r + clip(h, -m, m) s
        m <- max(beta m, |h| + eps)
        v <- beta^2 v + h^2
        s <- (s_init m / n + max(r, 0)) / (sqrt(v) + eps)
        u = x0 - S (delta - u') - p        (with the new S)

    All products and norms are over the whole tree. Give the base optimizer a learning rate of 1, or
    a schedule with a peak of 1. It suits SGD, momentum, Adam and Lion, and not normalized updates
    (LARS, LAMB). The steps begin at about `s_init`, below the resolution of 16-bit parameters: keep
    those in float32.

    Wrap it in `distributed.tower`, not the other way around: the scales depend on the gradient, and
    must be the same on all replicas. Put `apply_if_finite` around it too: a NaN in one gradient
    would stay in the scales. A base optimizer that keeps copies of the parameters is told where
    they go.

    The numbers are Optax's. Unlike the paper, both compute delta from x0 instead of keeping it, and
    clip h.

    Parameters in bfloat16 or float16 would round the first steps away and never move: wrap the
    whole in `master_weights(...)`.

    Of its own kind: a rule for the whole tree chooses the factor of all steps so far.

    Args:
      base_optimizer: the optimizer.
      weight_decay: the decay lambda inside h, at least 0.
      eps: added to norms, roots and sums, greater than 0.
      s_init: the first scale, greater than 0.
      num_betas: the number n of decays, at least 1: 0.9, 0.99, 0.999, ...

    Raises:
      ValueError: if the base optimizer exchanges something between replicas, or keeps a place of
        its own; at update, without the parameters.
      TypeError: at update, for complex gradients.

    Reference: Cutkosky, Defazio and Mehta, Mechanic: A Learning Rate Tuner, 2023, Algorithm 1.
    """

    base_optimizer: Any
    weight_decay: NonNegative = 1e-2
    eps: Positive = 1e-8
    s_init: Positive = 1e-6
    num_betas: Size = 6

    Kind = MechanicState

    def first_scalars(self):
        """Return scales of s_init in all."""
        n = self.num_betas
        zeros = {k: jnp.zeros(n, scalar_dtype()) for k in ("r", "m", "v")}
        return zeros | {"s": jnp.full(n, scalar(self.s_init))}

    def tuned(self, state, total, updates, leaves):
        """Return the new r, m, v and s."""
        eps = scalar(self.eps)
        old_s = cast(state.s, scalar_dtype())
        along_g, along_p, g_square, p_square = tree_sums(_mechanic_products, updates, leaves)
        g_square = saturated(g_square)
        decay = scalar(self.weight_decay) * total * root(g_square) / (root(p_square) + eps)
        h = bounded_square((along_g + decay * along_p) / (total + eps))
        betas = scalar(np.asarray(self.betas()))
        old_m = cast(state.m, h.dtype)
        m = jnp.maximum(betas * old_m, jnp.abs(h) + eps)  # r clips by the m of the last step
        v = saturated(jnp.square(betas) * cast(state.v, h.dtype) + jnp.square(h))
        r = betas * cast(state.r, h.dtype) + jnp.clip(h, -old_m, old_m) * old_s
        wealth = scalar(self.s_init) / self.num_betas * m + jnp.maximum(r, 0)
        return {"r": r, "m": m, "v": v, "s": wealth / (root(v) + eps)}


def _mechanic_products(g: Array, p: Array, x0: Array) -> tuple[Array, ...]:
    g = bounded_square(g)
    return g * (x0 - p), p * (x0 - p), g * g, p * p
