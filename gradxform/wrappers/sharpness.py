"""Kin of `sam` that use the gradient before the climb, too: GSAM, WSAM, LookSAM."""

from typing import Any

from gradxform.transforms.normalization import normalize, normalize_adaptively
from gradxform.transforms.scaling import scale, scale_by_learning_rate
from gradxform.transforms.two_gradients import (
    mix_gradients,
    reuse_sharpness,
    subtract_surrogate_gap,
)
from gradxform.types import Decay, NonNegativeOrSchedule, ScalarOrSchedule, Size
from gradxform.values.arguments import with_checked_arguments
from gradxform.values.registry import register
from gradxform.wrappers.compose import chain, sum_of
from gradxform.wrappers.sam import sam

__all__ = [
    "gsam",
    "looksam",
    "wsam",
]


def _climbing_sam(
    optimizer: Any,
    rho: ScalarOrSchedule,
    adaptive: bool,
    opaque_mode: bool,
    batch_axis_name: str | None,
    plain_steps: int = 0,
) -> sam:
    """Return `sam` with a climb of length rho, whose schedule counts the climbs."""
    along = normalize_adaptively(0.0) if adaptive else normalize()
    return sam(
        optimizer,
        chain(along, scale_by_learning_rate(rho)),
        reset_state=False,
        opaque_mode=opaque_mode,
        batch_axis_name=batch_axis_name,
        plain_steps=plain_steps,
    )


@with_checked_arguments
def gsam(
    optimizer: Any,
    rho: NonNegativeOrSchedule = 0.05,
    alpha: float = 0.4,
    *,
    adaptive: bool = False,
    opaque_mode: bool = False,
    batch_axis_name: str | None = None,
) -> sam:
    """Return `sam` whose steps also narrow the gap between the loss and that after the climb: GSAM.

    Update rule, with g the gradient at the parameters and h that after the climb:

        e = rho g / |g|                     (adaptive: rho p^2 g / |p g|)
        h = the gradient at p + e
        u = the optimizer's for h - alpha (g - <g, h> / |h|^2 h)

    Two calls make a step, as for `sam`, or one with opaque_mode. Without a climb in between, the
    gradients at both places are one vector, and nothing is subtracted.

    Args:
      optimizer: the outer optimizer.
      rho: the length of a climb, at least 0, or a schedule of the number of climbs; in the paper it
        falls with the learning rate.
      alpha: the weight of the gap, finite.
      adaptive: whether the climb is relative to the parameters, as in `asam`. Keyword-only.
      opaque_mode: see `sam`. Keyword-only.
      batch_axis_name: see `sam`. Keyword-only.

    Reference: Zhuang et al., Surrogate Gap Minimization Improves Sharpness-Aware Training, 2022,
    Algorithm 1.
    """
    outer = chain(subtract_surrogate_gap(alpha), optimizer)
    return _climbing_sam(outer, rho, adaptive, opaque_mode, batch_axis_name)


@with_checked_arguments
def wsam(
    optimizer: Any,
    learning_rate: ScalarOrSchedule | None,
    rho: NonNegativeOrSchedule = 0.05,
    gamma: Decay = 0.9,
    *,
    adaptive: bool = False,
    opaque_mode: bool = False,
    batch_axis_name: str | None = None,
) -> sam:
    """Return `sam` with a weight for the sharpness, and a step of its own for it: WSAM.

    Update rule, with g the gradient at the parameters, h that after the climb, and
    a = gamma / (1 - gamma):

        u = the optimizer's for g, - learning_rate a (h - g)
        u = the optimizer's for (1 - a) g + a h                 (without a learning_rate)

    A gamma of 0 is the optimizer alone, and 1/2 without a learning_rate is SAM.

    Args:
      optimizer: the outer optimizer.
      learning_rate: the rate of the sharpness, usually that of `optimizer`, at least 0, or a
        schedule; None to hand the sharpness to the optimizer together with the gradient.
      rho: the length of a climb, at least 0, or a schedule of the number of climbs.
      gamma: the weight of the sharpness, in [0, 1).
      adaptive: whether the climb is relative to the parameters, as in `asam`. Keyword-only.
      opaque_mode: see `sam`. Keyword-only.
      batch_axis_name: see `sam`. Keyword-only.

    Reference: Yue et al., Sharpness-Aware Minimization Revisited: Weighted Sharpness as a
    Regularization Term, 2023, Algorithm 1.
    """
    a = gamma / (1 - gamma)
    if learning_rate is None:
        outer: Any = chain(mix_gradients(1 - a, a), optimizer)
    else:
        sharpness = mix_gradients(-1.0, 1.0), scale(a), scale_by_learning_rate(learning_rate)
        outer = sum_of(chain(mix_gradients(1.0, 0.0), optimizer), chain(*sharpness))
    return _climbing_sam(outer, rho, adaptive, opaque_mode, batch_axis_name)


@with_checked_arguments
def looksam(
    optimizer: Any,
    rho: NonNegativeOrSchedule = 0.05,
    alpha: float = 0.7,
    period: Size = 5,
    *,
    adaptive: bool = False,
    opaque_mode: bool = False,
    batch_axis_name: str | None = None,
) -> sam:
    """Return `sam` that climbs once in several steps, and reuses what it found: LookSAM.

    Update rule, with g the gradient at the parameters and, at every `period`-th step from the first
    on, h that after the climb:

        u = the optimizer's for h,  v <- h - <g, h> / |g|^2 g       (at these steps)
        u = the optimizer's for g + alpha |g| / |v| v               (at the others)

    A period takes period + 1 calls, the first of which is the climb; with opaque_mode it takes
    `period` calls, of which only the first evaluates `grad_fn`.

    Args:
      optimizer: the outer optimizer.
      rho: the length of a climb, at least 0, or a schedule of the number of climbs.
      alpha: the size of what is added, relative to the gradient, finite.
      period: the number of steps from one climb to the next, an integer, at least 1.
      adaptive: whether the climb is relative to the parameters, as in `asam`. Keyword-only.
      opaque_mode: see `sam`. Keyword-only.
      batch_axis_name: see `sam`. Keyword-only.

    Reference: Liu et al., Towards Efficient and Scalable Sharpness-Aware Minimization, 2022,
    Algorithm 1.
    """
    if period < 1:
        raise ValueError(f"looksam: period must be at least 1, got {period!r}.")
    outer = chain(reuse_sharpness(alpha), optimizer)
    return _climbing_sam(outer, rho, adaptive, opaque_mode, batch_axis_name, period - 1)


for _factory in (gsam, looksam, wsam):
    register(_factory.__name__, _factory)
