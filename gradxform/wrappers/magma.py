"""Random steps whose size follows how gradients agree with their average."""

from dataclasses import field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from gradxform import engine
from gradxform.base import ArrayRule, Transform, call_update, check_transform, transform
from gradxform.engine import PerLeaf
from gradxform.leaves import leaves_of
from gradxform.leaves.states import check_state
from gradxform.numerics import abs_sq, cast, over, scalar
from gradxform.numerics.roots import root
from gradxform.slots import zero_scalars_like, zeros_like
from gradxform.transforms.tree_rules import live_key
from gradxform.types import Array, Decay, Key, Positive, Slot, UnitInterval
from gradxform.wrappers.agree import refuse_exchange
from gradxform.wrappers.changed_steps import check_changeable, told_change
from gradxform.wrappers.parts import check_movable


class MagmaState(NamedTuple):
    """State of `magma`."""

    rng_key: Array  # the PRNG key of the next draw
    score: Slot  # a real scalar per parameter, at least float32; the averaged score s
    mu: Slot  # like params, at least float32; the average m of the gradient
    inner_state: Any  # the inner state


@transform
class _mask_aligned(ArrayRule):
    """Mask and scale the updates of another transform: the rule of `magma`."""

    State = MagmaState
    # The draws depend on the number of leaves.
    locality = "tree"
    rule_locality = "array"
    sees_pieces = True
    handles_complex = True

    def init(self, params):
        """Return a key, scores of 0 and averages of zeros, without an inner state."""
        return MagmaState(live_key(0), zero_scalars_like(params), zeros_like(params), ())

    def prepare(self, updates, state, params, *, own, probability, numbers):
        """Return the state with the next key, for every leaf its update and draw, and numbers."""
        us = leaves_of(own)
        rng_key, step_key = jax.random.split(state.rng_key)
        moves = jax.random.bernoulli(step_key, probability, (len(us),))
        return state._replace(rng_key=rng_key), PerLeaf(us), PerLeaf(list(moves)), *numbers

    def rule(self, g, s, m, p, u, moves, tau, b1, ema):
        """Return the scaled update or zeros, and the averages."""
        m = b1 * m + (1 - b1) * g
        x, y = (over(z, engine.array_max(jnp.abs(z)).astype(z.dtype), 0) for z in (m, g))
        terms = jnp.real(x * jnp.conj(y)), abs_sq(x), abs_sq(y)
        xy, xx, yy = engine.array_sums(*terms)
        cosine = over(xy, root(xx) * root(yy), 0)
        s = ema * s + (1 - ema) * jax.nn.sigmoid(cosine / tau)
        return jnp.where(moves, cast(s, u.dtype) * u, jnp.zeros_like(u)), s, m


@transform
class magma(Transform):
    """Take the steps of an optimizer in some arrays only, shorter where gradients disagree.

    Update rule, with u' the update of the inner transform, per array, from m = 0 and
    s = first_score:

        m <- b1 m + (1 - b1) g
        s <- ema s + (1 - ema) sigmoid(<m, g> / (|m| |g| tau))
        u = s u'    with probability `probability`, else 0

    All arrays draw for themselves, anew at each step. The inner state goes on in all of them. What
    the inner optimizer adds to its direction, such as weight decay, is left out and shortened with
    it. With a tau of 2, s ends between 0.38 and 0.62, so that the mean step is about a quarter of
    that of the inner optimizer.

    Leave embeddings out: `partition({"blocks": magma(tx), "embeddings": tx}, ...)`.

    Differs from the paper in that m is its own, and not the average of the inner optimizer. Codes
    begin the score at 1 or at 0.5, which no longer matters after some 30 steps.

    Of its own kind: it changes each array of a step, and remembers something of each.

    Wrap it in `distributed.tower`, not the other way around, so that all replicas draw alike.

    Args:
      inner: an optimizer, such as `adam(1e-3)`.
      probability: that an array moves, in [0, 1].
      tau: the temperature of the sigmoid, greater than 0.
      b1: the decay of m, in [0, 1).
      ema: the decay of s, in [0, 1).
      first_score: the first s, in [0, 1]. Keyword-only.
      key: the seed of the draws: an integer or a PRNG key. Keyword-only.

    Raises:
      ValueError: if the inner transform exchanges something between replicas, or goes on from a
        place of its own.

    Reference: Joo et al., On Surprising Effectiveness of Masking Updates in Adaptive Optimizers,
    2026, Algorithm 1.
    """

    inner: Any
    probability: UnitInterval = 0.5
    tau: Positive = 2.0
    b1: Decay = 0.9
    ema: Decay = 0.9
    first_score: UnitInterval = field(default=1.0, kw_only=True)
    key: Key = field(default=0, kw_only=True)

    State = MagmaState
    locality = "tree"
    sees_pieces = True
    why_no_rows = "compares whole arrays"
    holds = (("inner", "inner_state"),)
    set_by = (("rng_key", "key"),)

    def __post_init__(self) -> None:
        check_transform(self, self.inner, "inner")
        refuse_exchange(self, self.inner)
        check_movable(self, self.inner)
        check_changeable(self, self.inner)

    def init(self, params):
        """Return the key, first scores, averages of zeros, and the inner state."""
        state = _mask_aligned().init(params)
        scores = jax.tree.map(lambda s: s + self.first_score, state.score)
        inner_state = self.inner.init(params)
        return state._replace(rng_key=live_key(self.key), score=scores, inner_state=inner_state)

    def update(self, updates, state, params=None, **extra):
        """Return some of the inner updates, scaled, and zeros for the others."""
        state = check_state(self, state, MagmaState)
        own, inner_state = call_update(self.inner, updates, state.inner_state, params, extra)
        given = {
            "own": own,
            "probability": self.probability,
            "numbers": tuple(scalar(x) for x in (self.tau, self.b1, self.ema)),
        }
        changed, state = _mask_aligned().update(updates, state, params, **given)
        inner_state = told_change(self.inner, inner_state, params, own, changed)
        return changed, state._replace(inner_state=inner_state)
