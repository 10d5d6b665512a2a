"""Rules that keep only the sign of each entry: signSGD, Lion and FOCUS."""

from dataclasses import field
from typing import NamedTuple

import jax.numpy as jnp

from gradxform.base import ArrayRule, first_state_of, transform
from gradxform.errors import require_one_of
from gradxform.numerics import count_and_debias
from gradxform.numerics.roots import sign
from gradxform.transforms.tree_rules import copied_params
from gradxform.types import Array, Choice, Decay, DType, NonNegative, Positive, Slot


@transform
class scale_by_sign(ArrayRule):
    """Replace updates as signSGD does: every entry by its sign.

    Update rule: u = sign(g), with sign(0) = 0.

    Reference: Bernstein et al., signSGD: Compressed Optimisation for Non-Convex Problems, 2018.
    """

    locality = "entry"
    handles_complex = True

    def rule(self, g, p):
        """Return the sign."""
        return sign(g)


class ScaleByLionState(NamedTuple):
    """State of `scale_by_lion`."""

    count: Array  # int32 scalar; the number of updates so far
    mu: Slot  # like params, at least float32; the momentum m


@transform
class scale_by_lion(ArrayRule):
    """Replace updates as Lion does: by the sign of an interpolated momentum.

    Update rule, from m = 0:

        c = b1 m + (1 - b1) g
        u = sign(c)
        m <- b2 m + (1 - b2) g

    Every entry of u is -1, 0 or 1: choose a learning rate about ten times smaller than Adam's, and
    a weight decay about ten times larger. The sign of a complex number is c / |c|, and "smooth" is
    tanh(smooth_beta |c|) c / |c|.

    Args:
      b1: the weight of the old momentum in c, in [0, 1).
      b2: the decay of the momentum itself, in [0, 1).
      mu_dtype: the dtype of m. Defaults to the parameter's, or float32 for 16-bit ones.
      mode: "hard" for the sign; "smooth" for tanh(smooth_beta c); "refined" for c where |c| < 1 and
        sign(c) elsewhere. Keyword-only.
      smooth_beta: the slope of "smooth" at 0, greater than 0. Keyword-only.

    Reference: Chen et al., Symbolic Discovery of Optimization Algorithms, 2023, Algorithm 2.
    """

    b1: Decay = 0.9
    b2: Decay = 0.99
    mu_dtype: DType = None
    mode: Choice = field(default="hard", kw_only=True)
    smooth_beta: Positive = field(default=1.0, kw_only=True)

    State = ScaleByLionState
    locality = "entry"
    handles_complex = True
    averages_of = (("mu", "g"),)

    def __post_init__(self) -> None:
        require_one_of(self, "mode", ("hard", "smooth", "refined"))

    def prepare(self, updates, state, params):
        """Return the advanced count."""
        return count_and_debias(state)

    def rule(self, g, m, p):
        """Return the direction and the momentum."""
        c = self.b1 * m + (1 - self.b1) * g
        if self.mode == "hard":
            u = sign(c)
        elif self.mode == "smooth":
            size = jnp.abs(c) if jnp.iscomplexobj(c) else c
            u = jnp.tanh(self.smooth_beta * size)
            u = sign(c) * u if jnp.iscomplexobj(c) else u
        else:
            u = jnp.where(jnp.abs(c) < 1, c, sign(c))
        return u, self.b2 * m + (1 - self.b2) * g


class ScaleByFocusState(NamedTuple):
    """State of `scale_by_focus`."""

    count: Array  # int32 scalar; the number of updates so far
    mu: Slot  # like params, at least float32; the momentum m
    target: Slot  # like params, at least float32; the debiased average q of the parameters


@transform
class scale_by_focus(ArrayRule):
    """Replace updates as FOCUS does: by a sign, and one that points away from averaged parameters.

    Update rule, from m = 0, q = the parameter at `init` and t = 1, 2, ...:

        m <- b1 m + (1 - b1) g
        q <- q + (1 - b2) / (1 - b2^t) (p - q)
        u = sign(m) + gamma sign(p - q) + weight_decay q

    q is the average of the parameters with the decay b2, debiased. Descending along u pulls them
    towards it. At the first step p is q, and the second sign is 0.

    Args:
      b1: the decay of the momentum, in [0, 1).
      b2: the decay of the average of the parameters, in [0, 1).
      gamma: how strong the pull is beside the momentum, at least 0.
      mu_dtype: the dtype of m. Defaults to the parameter's, or float32 for 16-bit ones.
      weight_decay: of the average, at least 0. `add_decayed_weights` in its place is that of the
        parameter. Keyword-only.

    Raises:
      ValueError: at update, if no parameters are given.

    Reference: Liu et al., FOCUS: First Order Concentrated Updating Scheme, 2025, Algorithm 1.
    """

    b1: Decay = 0.9
    b2: Decay = 0.999
    gamma: NonNegative = 0.1
    mu_dtype: DType = None
    weight_decay: NonNegative = field(default=0.0, kw_only=True)

    State = ScaleByFocusState
    locality = "entry"
    needs_params = True
    follows = ("target",)

    def init(self, params):
        """Return a momentum of zeros and a copy of the parameters."""
        return first_state_of(self, params, target=copied_params(params))

    def prepare(self, updates, state, params):
        """Return the advanced count, and the share of p in q, exactly 1 at first."""
        new, of_p = count_and_debias(state, self.b2)
        return new, jnp.where(new.count == 1, 1, (1 - self.b2) * of_p)

    def rule(self, g, m, q, p, share):
        """Return the direction, the momentum and the average."""
        m = self.b1 * m + (1 - self.b1) * g
        away = p - q
        q = q + share * away
        u = sign(m) + self.gamma * sign((1 - share) * away)
        return u + self.weight_decay * q, m, q
