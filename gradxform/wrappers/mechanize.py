"""Mechanic: any optimizer, with its scale learned during training."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from gradxform import engine
from gradxform.base import Transform, call_update, check_transform, tell_moved, transform
from gradxform.engine import tree_sums
from gradxform.errors import require_at_least
from gradxform.leaves import align_params, align_slot, require_params
from gradxform.leaves.states import check_state
from gradxform.numerics import cast, promote, safe_increment, scalar, scalar_dtype
from gradxform.numerics.overflow import bounded_square, saturated
from gradxform.numerics.roots import root
from gradxform.slots import zero_count
from gradxform.transforms.tree_rules import copied_params
from gradxform.tree.apply import apply_updates
from gradxform.types import (
    Array,
    NonNegative,
    Positive,
    Scalar,
    Size,
    Slot,
    Updates,
)
from gradxform.wrappers.agree import refuse_exchange
from gradxform.wrappers.changed_steps import check_changeable
from gradxform.wrappers.parts import check_movable, keeps_copies, refuse_complex


class MechanicState(NamedTuple):
    """State of `mechanize`."""

    base_optimizer_state: Any  # the state of the base optimizer
    count: Array  # int32 scalar; the number of updates so far
    r: Array  # (num_betas,), at least float32; the reward of each scale
    m: Array  # (num_betas,), at least float32; the largest |h|, which decays
    v: Array  # (num_betas,), at least float32; the sum of h^2, which decays
    s: Array  # (num_betas,), at least float32; the scales
    x0: Slot  # like params, at least float32; the first parameters


@transform
class mechanize(Transform):
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

    locality = "tree"
    begins_small = True
    asks_for_sums = True
    why_no_rows = "moves all rows at every step"
    holds = (("base_optimizer", "base_optimizer_state"),)
    follows = ("x0",)

    def __post_init__(self) -> None:
        check_transform(self, self.base_optimizer, "base_optimizer")
        require_at_least(self, 1, "num_betas")
        check_movable(self, self.base_optimizer)
        check_changeable(self, self.base_optimizer)
        refuse_exchange(self, self.base_optimizer)

    def init(self, params):
        """Return scales of s_init in all, and a copy of the parameters."""
        n = self.num_betas

        def zeros() -> Array:
            return jnp.zeros(n, scalar_dtype())

        return MechanicState(
            base_optimizer_state=self.base_optimizer.init(params),
            count=zero_count(),
            r=zeros(),
            m=zeros(),
            v=zeros(),
            s=jnp.full(n, scalar(self.s_init)),
            x0=copied_params(params),
        )

    def update(self, updates, state, params=None, **extra):
        """Return the scaled step from the first parameters."""
        require_params(self, params)
        state = check_state(self, state, MechanicState)
        refuse_complex(self, updates)
        base_updates, base_state = call_update(
            self.base_optimizer, updates, state.base_optimizer_state, params, extra
        )
        gs, treedef = jax.tree.flatten(updates)
        ps = align_params(self, updates, treedef, params).leaves
        x0 = align_slot(self, updates, treedef, state, "x0")
        # Parameters that were restored after `init` are where the run begins.
        is_first = state.count == 0
        firsts = engine.map_rows(_mechanic_start_of_run, [x0.leaves, ps], is_first)
        r, m, v, s = self._tuned(state, updates, [gs, ps, firsts])
        # Delta is relative to the old scale, as the parameters are; the step to the new one.
        before, after = jnp.sum(state.s) + scalar(self.eps), jnp.sum(s)
        columns = [treedef.flatten_up_to(base_updates), gs, ps, firsts]
        us = engine.map_rows(_mechanic_scaled_step, columns, before, after)
        new = jax.tree.unflatten(treedef, us)
        if keeps_copies(self.base_optimizer):  # its copies are where its own updates lead
            expected, actual = apply_updates(params, base_updates), apply_updates(params, new)
            base_state = tell_moved(self.base_optimizer, base_state, expected, actual)
        return new, state._replace(
            base_optimizer_state=base_state,
            count=safe_increment(state.count),
            r=r,
            m=m,
            v=v,
            s=s,
            x0=x0.rebuilt(firsts),
        )

    def _tuned(
        self, state: MechanicState, updates: Updates, leaves: list[list[Any]]
    ) -> tuple[Array, Array, Array, Array]:
        """Return the new r, m, v and s."""
        eps = scalar(self.eps)
        old_s = cast(state.s, scalar_dtype())
        total = jnp.sum(old_s)
        along_g, along_p, g_square, p_square = tree_sums(_mechanic_products, updates, leaves)
        g_square = saturated(g_square)
        decay = scalar(self.weight_decay) * total * root(g_square) / (root(p_square) + eps)
        h = bounded_square((along_g + decay * along_p) / (total + eps))
        betas = scalar(np.asarray([1 - 0.1**i for i in range(1, self.num_betas + 1)]))
        old_m = cast(state.m, h.dtype)
        m = jnp.maximum(betas * old_m, jnp.abs(h) + eps)  # r clips by the m of the last step
        v = saturated(jnp.square(betas) * cast(state.v, h.dtype) + jnp.square(h))
        r = betas * cast(state.r, h.dtype) + jnp.clip(h, -old_m, old_m) * old_s
        wealth = scalar(self.s_init) / self.num_betas * m + jnp.maximum(r, 0)
        s = wealth / (root(v) + eps)
        return (
            cast(r, state.r.dtype),
            cast(m, state.m.dtype),
            cast(v, state.v.dtype),
            cast(s, state.s.dtype),
        )


def _mechanic_start_of_run(x0: Array, p: Array, is_first: Array) -> Array:
    return jnp.where(is_first, cast(jnp.asarray(p), x0.dtype), x0)


def _mechanic_products(g: Array, p: Array, x0: Array) -> tuple[Array, ...]:
    g = bounded_square(g)
    return g * (x0 - p), p * (x0 - p), g * g, p * p


def _mechanic_scaled_step(
    u: Array, g: Array, p: Array, x0: Array, before: Scalar, after: Scalar
) -> Array:
    """Return x0 - S (delta - u) - p, summed so that x0 and p cancel first."""
    wide = promote(u.dtype, p.dtype, x0.dtype)
    share = 1 - after / before  # of the way from p back to x0
    moved = cast(x0, wide) - cast(p, wide)
    return cast(cast(share, wide) * moved + cast(after, wide) * cast(u, wide), g.dtype)
