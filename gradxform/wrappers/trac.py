"""TRAC: any optimizer, with its distance from the start tuned, for runs that never end."""

import math
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from gradxform.base import transform
from gradxform.engine import tree_sums
from gradxform.numerics import cast, scalar, scalar_dtype
from gradxform.numerics.erfi import erfi
from gradxform.numerics.overflow import bounded_square, clipped, saturated
from gradxform.numerics.roots import root
from gradxform.types import Array, Positive, Size, Slot
from gradxform.wrappers.learned_scale import LearnedScale

FIRST_SIGMA = 1e-8  # of the authors' code; from 0, no scale would ever leave 0
ERFI_AT_SIGMA = 0.9534382692512611  # erfi(1 / sqrt(2))


class TracState(NamedTuple):
    """State of `trac`."""

    base_optimizer_state: Any  # the state of the base optimizer
    count: Array  # int32 scalar; the number of updates so far
    sigma: Array  # (num_betas,), at least float32; minus the sum of h, which decays
    v: Array  # (num_betas,), at least float32; the sum of h^2, which decays
    s: Array  # (num_betas,), at least float32; the scales
    x0: Slot  # like params, at least float32; the first parameters

    def metrics(self) -> dict[str, Array]:
        """Return the count and the scale S."""
        return {"count": self.count, "scale": jnp.maximum(jnp.sum(self.s, -1), 0)}


@transform
class trac(LearnedScale):
    """Tune how far an optimizer moves from the first parameters, with nothing to choose.

    Update rule, with u' the update of the base optimizer, x0 the first parameters, S the sum of the
    n = `num_betas` scales s, at least 0, and from v = s = 0, sigma = 1e-8; per beta = 1 - 0.1^i:

        delta = (p - x0) / (S + eps)
        h = <g, delta>
        v <- beta^2 v + h^2
        sigma <- beta sigma - h
        s <- s_init erfi(sigma / (sqrt(2 v) + eps)) / erfi(1 / sqrt(2))
        u = x0 + S (delta + u') - p        (with the new S)

    The product h is over the whole tree. Made for a stream of tasks, as in lifelong reinforcement
    learning: where the gradients of a new task point back to x0, S falls, and the parameters return
    to where they can learn. `mechanize` is its relative for one task. The base optimizer keeps the
    learning rate that it would have alone.

    erfi grows like exp(x^2): a scale is bounded by erfi(9.3) = 3e36 times s_init in float32, which
    170 gradients in a row that all point away from x0, equally far, would reach.

    The steps begin at about 1e-7 of the base optimizer's: in bfloat16 or float16 the parameters
    would never move. Wrap the whole in `master_weights(...)`. As with `mechanize`, put
    `distributed.tower` and `apply_if_finite` around it. A base optimizer that keeps copies of the
    parameters is told where they go.

    Of its own kind: a rule for the whole tree chooses the factor of all steps so far.

    Args:
      base_optimizer: the optimizer.
      s_init: the scale of a tuner at sigma^2 = v, greater than 0: the authors' epsilon.
      eps: added to S and to the root, greater than 0.
      num_betas: the number n of decays, at least 1: 0.9, 0.99, 0.999, ...

    Raises:
      ValueError: if the base optimizer exchanges something between replicas, or keeps a place of
        its own; at update, without the parameters.
      TypeError: at update, for complex gradients.

    Reference: Muppidi, Zhang and Yang, Fast TRAC: A Parameter-Free Optimizer for Lifelong
    Reinforcement Learning, 2024, Algorithms 1 and 2; the authors' code for delta and sigma.
    """

    base_optimizer: Any
    s_init: Positive = 1e-8
    eps: Positive = 1e-8
    num_betas: Size = 6

    Kind = TracState

    def first_scalars(self):
        """Return scales of 0."""
        n, dtype = self.num_betas, scalar_dtype()
        zeros = {k: jnp.zeros(n, dtype) for k in ("v", "s")}
        return zeros | {"sigma": jnp.full(n, FIRST_SIGMA, dtype)}

    def scale_of(self, s):
        """Return S, which never points to the other side of x0."""
        return jnp.maximum(super().scale_of(s), 0)

    def tuned(self, state, total, updates, leaves):
        """Return the new sigma, v and s."""
        (along_g,) = tree_sums(_product, updates, leaves)
        # A scale of 0 has led to x0: what is seen of the way there is a rounding.
        h = jnp.where(total == 0, 0, bounded_square(along_g / (total + scalar(self.eps))))
        betas = scalar(np.asarray(self.betas()))
        v = saturated(jnp.square(betas) * cast(state.v, h.dtype) + jnp.square(h))
        sigma = clipped(betas * cast(state.sigma, h.dtype) - h)
        at = sigma / (math.sqrt(2) * root(v) + scalar(self.eps))
        return {"sigma": sigma, "v": v, "s": scalar(self.s_init) / ERFI_AT_SIGMA * erfi(at)}


def _product(g: Array, p: Array, x0: Array) -> tuple[Array]:
    return (bounded_square(g) * (p - x0),)
