"""Rules that keep only the sign of each entry: signSGD and Lion."""

from dataclasses import field
from typing import NamedTuple

import jax.numpy as jnp

from gradxform.base import ArrayRule, transform
from gradxform.errors import require_one_of
from gradxform.numerics import safe_increment
from gradxform.numerics.roots import sign
from gradxform.types import Array, Choice, Decay, DType, Params, Positive, Slot

__all__ = [
    "scale_by_lion",
    "scale_by_sign",
    "ScaleByLionState",
]


@transform
class scale_by_sign(ArrayRule):
    """Replace updates as signSGD does: every entry by its sign.

    Update rule: u = sign(g), with sign(0) = 0.

    Reference: Bernstein et al., signSGD: Compressed Optimisation for Non-Convex Problems, 2018.
    """

    locality = "entry"
    handles_complex = True

    def rule(self, g: Array, p: Array | None) -> Array:
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

    def prepare(
        self, updates: None, state: ScaleByLionState, params: Params | None
    ) -> tuple[ScaleByLionState]:
        """Return the advanced count."""
        return (state._replace(count=safe_increment(state.count)),)

    def rule(self, g: Array, m: Array, p: Array | None) -> tuple[Array, Array]:
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
