"""Torque-aware momentum: gradients count by how far they agree with the momentum."""

from dataclasses import field
from typing import NamedTuple

import jax.numpy as jnp

from gradxform import engine
from gradxform.base import ArrayRule, first_state_of, transform
from gradxform.errors import name_of
from gradxform.numerics import abs_sq, over, safe_increment
from gradxform.numerics.overflow import bounded_square
from gradxform.numerics.roots import over_root, root
from gradxform.slots import zero_scalars_like, zeros_like
from gradxform.transforms.matrices.array_norms import array_norms
from gradxform.types import (
    Array,
    Decay,
    NonNegative,
    NonNegativeSlot,
    Size,
    Slot,
    UnitInterval,
)


class ScaleByTamState(NamedTuple):
    """State of `scale_by_tam`."""

    count: Array  # int32 scalar; the number of updates so far
    trace: Slot  # like params, at least float32; the momentum m
    agreement: Slot  # a scalar per parameter, like params with `axis`; the average cosine s


class ScaleByAdaTamState(NamedTuple):
    """State of `scale_by_adatam`."""

    trace: Slot  # like params, at least float32; the momentum m
    agreement: Slot  # a scalar per parameter, like params with `axis`; the average cosine s
    nu: NonNegativeSlot  # like params, at least float32; the second moment v


class _TorqueAwareMomentum(ArrayRule):
    """Base of the rules: the damped gradient."""

    decay: Decay
    eps: NonNegative
    axis: Size | None

    locality = "array"
    sees_pieces = True

    def init(self, params):
        """Return zeros, one cosine per parameter unless there is an axis."""
        start = zero_scalars_like if self.axis is None else zeros_like
        return first_state_of(self, params, agreement=start(params))

    def damped(self, g: Array, m: Array, s: Array) -> tuple[Array, Array]:
        """Return the gradient times its damping, and the new average of cosines."""
        s = self.decay * s + (1 - self.decay) * self._cosine(m, g)
        return ((1 + s) / 2 + self.eps) * g, s

    def _cosine(self, m: Array, g: Array) -> Array:
        # With a largest entry of 1: squares neither overflow nor vanish.
        m, g = (over(x, engine.array_max(jnp.abs(x)), 0) for x in (m, g))
        if self.axis is None:
            mg, mm, gg = engine.array_sums(m * g, abs_sq(m), abs_sq(g))
            return over(mg, root(mm) * root(gg), 0)
        if g.ndim and not -g.ndim <= self.axis < g.ndim:
            raise ValueError(
                f"{name_of(self)}: an array of shape {g.shape} does not have the axis {self.axis}; "
                "leave it out with masked(...), or set another axis."
            )
        size_m, size_g = array_norms(m, g, axes=(self.axis,) if g.ndim else ())
        return over(m, size_m, 0) * over(g, size_g, 0)


@transform
class scale_by_tam(_TorqueAwareMomentum):
    """Accumulate gradients as TAM does: those that turn against the momentum count less.

    Update rule, with cos the cosine of the angle between two arrays (0 if one is all zeros), from
    m = s = 0:

        s <- decay s + (1 - decay) cos(m, g)
        m <- momentum m + ((1 + s) / 2 + eps) g
        u = m

    Gradients at right angles to the momentum count half, so that learning rates are about twice
    those of `trace`.

    Args:
      momentum: the share of the sum that is kept, in [0, 1].
      decay: the decay of the average cosine, in [0, 1).
      eps: the least weight of a gradient, at least 0.
      axis: with an axis, every entry has an s of its own, and in place of the cosine stands the
        product of the entries of m and g, each divided by its norm along the axis; -1, the outputs
        of layers of Flax, is the form of pytorch_optimizer. Keyword-only.
      first_gradient: whether m begins as the first gradient, as there, and not as 0. Keyword-only.

    Raises:
      ValueError: at update, if an array does not have the axis.

    Reference: Malviya et al., Torque-Aware Momentum, 2024, TAM.
    """

    momentum: UnitInterval = 0.9
    decay: Decay = 0.9
    eps: NonNegative = 1e-8
    axis: Size | None = field(default=None, kw_only=True)
    first_gradient: bool = field(default=False, kw_only=True)

    State = ScaleByTamState

    def prepare(self, updates, state, params):
        """Return the advanced count, and whether it is the first step."""
        return state._replace(count=safe_increment(state.count)), state.count == 0

    def rule(self, g, m, s, p, is_first):
        """Return the momentum as update and as slot, and the cosines."""
        if self.first_gradient:
            m = jnp.where(is_first, g, m)
        d, s = self.damped(g, m, s)
        m = self.momentum * m + d
        return m, m, s


@transform
class scale_by_adatam(_TorqueAwareMomentum):
    """Rescale updates as AdaTAM does: TAM's momentum over the root of the second moment.

    Update rule, with cos as in `scale_by_tam`, from m = s = v = 0:

        s <- decay s + (1 - decay) cos(m, g)
        m <- b1 m + ((1 + s) / 2 + eps) g
        v <- b2 v + (1 - b2) g^2
        u = m / (sqrt(v) + eps)

    m is a sum, and v is not corrected for its start: the first entries of u are about 1 / (2
    sqrt(1 - b2)). Start from a tenth of Adam's learning rate.

    Args:
      b1: the share of the sum that is kept, in [0, 1).
      b2: the decay of the second moment, in [0, 1).
      decay: the decay of the average cosine, in [0, 1).
      eps: the least weight of a gradient, also added to the root, at least 0.
      axis: as in `scale_by_tam`. Keyword-only.

    Raises:
      ValueError: at update, if an array does not have the axis.

    Reference: Malviya et al., Torque-Aware Momentum, 2024, AdaTAM.
    """

    b1: Decay = 0.9
    b2: Decay = 0.999
    decay: Decay = 0.9
    eps: NonNegative = 1e-8
    axis: Size | None = field(default=None, kw_only=True)

    State = ScaleByAdaTamState

    def rule(self, g, m, s, v, p):
        """Return the update, the momentum, the cosines and the second moment."""
        g = bounded_square(g)
        d, s = self.damped(g, m, s)
        m = self.b1 * m + d
        v = self.b2 * v + (1 - self.b2) * abs_sq(g)
        return over_root(m, v, self.eps), m, s, v
