"""Schedules given by steps and the scales of the value at them; one-cycle schedules."""

import itertools
import math
from typing import Any

import jax.numpy as jnp
import numpy as np

from gradxform.errors import name_of, require_one_of, require_positive
from gradxform.numerics import scalar
from gradxform.schedules.schedule import (
    LARGEST,
    Composite,
    Schedule,
    as_count,
    check_steps,
    fractions_of_period,
    half_cosine,
    is_known,
    is_open,
    number_of_field,
    segment_of_count,
)
from gradxform.types import Array, Choice, Finite, Positive, StaticTree
from gradxform.values import FrozenTree
from gradxform.values.fields import value


def _freeze_scales(part: Any) -> None:
    """Check `boundaries_and_scales`, and freeze it; with live scales keep sorted pairs instead."""
    tree = part.boundaries_and_scales
    if tree is None:
        return
    if isinstance(tree, FrozenTree):
        tree = tree.unfreeze()
    pairs = list(tree.items()) if isinstance(tree, dict) else tree
    if not isinstance(pairs, list | tuple) or not all(
        isinstance(p, list | tuple) and len(p) == 2 for p in pairs
    ):
        raise TypeError(
            f"{name_of(part)}: boundaries_and_scales must be a dict {{step: scale}}, got {tree!r}."
        )
    scales: dict[int, Any] = {}
    for step, scale in pairs:
        step = _boundary(part, step)
        if step in scales:
            raise ValueError(f"{name_of(part)}: boundaries_and_scales has the step {step} twice.")
        scales[step] = _scale(part, step, scale)
    if any(is_open(scale) for scale in scales.values()):
        # The library looks for live numbers in tuples, but not in frozen trees.
        frozen: Any = tuple(sorted(scales.items(), key=lambda pair: pair[0]))
    else:
        frozen = FrozenTree(scales)
    object.__setattr__(part, "boundaries_and_scales", frozen)


def _boundary(part: Any, step: Any) -> int:
    rule = f"{name_of(part)}: the steps of boundaries_and_scales must be"
    if hasattr(step, "item") and not is_open(step):
        step = step.item()
    if not is_known(step) or step != step or not float(step).is_integer():
        raise TypeError(f"{rule} integers, got {step!r}.")
    if step < 0:
        raise ValueError(f"{rule} at least 0, got {step!r}.")
    return int(step)


def _scale(part: Any, step: int, scale: Any) -> Any:
    rule = f"{name_of(part)}: the scale at step {step} must be"
    if is_open(scale):
        return scale
    if not is_known(scale):
        raise TypeError(f"{rule} a number, got {scale!r}.")
    if not (math.isfinite(scale) and scale >= 0):
        raise ValueError(f"{rule} finite and at least 0, got {scale!r}.")
    return float(scale)


def _steps_and_values(part: Any) -> tuple[list[int], list[Any]]:
    """Return the boundaries, and the values before the first and from each one on."""
    pairs = part.boundaries_and_scales or ()
    if isinstance(pairs, FrozenTree):
        pairs = sorted(pairs.unfreeze().items())
    values = [number_of_field(part.init_value)]
    for _, scale in pairs:
        values.append(values[-1] * number_of_field(scale))
    return [step for step, _ in pairs], values


@value
class piecewise_constant_schedule(Schedule):
    """Hold a value, and multiply it by a scale at each of the given steps.

    Value: y(n) = init_value times the product of the scales of all boundaries b <= n.

    The value changes at the boundary itself. TensorFlow's `piecewise_constant` changes one step
    later: its boundary b is b + 1 here.

    Args:
      init_value: the value at the start.
      boundaries_and_scales: a dict {step: scale}, or pairs (step, scale): the steps at least 0, in
        any order, the scales at least 0. Defaults to none, for a constant.
    """

    init_value: Finite
    boundaries_and_scales: StaticTree = None

    def __post_init__(self):
        _freeze_scales(self)

    def __call__(self, count: Any) -> Array:
        """Return the value at `count`."""
        steps, values = _steps_and_values(self)
        return jnp.stack([scalar(v) for v in values])[segment_of_count(as_count(count), steps)]


@value
class piecewise_interpolate_schedule(Schedule):
    """Interpolate between values, each given by a scale at a step.

    Value, with y_i the value at step b_i, that is init_value times the scales up to b_i (b_0 = 0,
    y_0 = init_value), for b_i <= n < b_(i+1) and t = (n - b_i) / (b_(i+1) - b_i):

        linear: y(n) = y_i + (y_(i+1) - y_i) t
        cosine: y(n) = y_(i+1) + (y_i - y_(i+1)) (1 + cos(pi t)) / 2

    and the last value after the last step.

    Args:
      interpolate_type: "linear" or "cosine".
      init_value: the value at the start.
      boundaries_and_scales: a dict {step: scale}, or pairs (step, scale): the steps at least 0, in
        any order, the scales at least 0. Defaults to none, for a constant.
    """

    interpolate_type: Choice
    init_value: Finite
    boundaries_and_scales: StaticTree = None

    def __post_init__(self):
        require_one_of(self, "interpolate_type", ("linear", "cosine"))
        _freeze_scales(self)

    def __call__(self, count: Any) -> Array:
        """Return the interpolated value."""
        count = as_count(count)
        steps, values = _steps_and_values(self)
        if steps and steps[-1] > LARGEST:  # which the dtype of counts cannot hold
            count = scalar(count)
        index = segment_of_count(count, steps)
        begins = np.asarray([0, *steps], np.dtype(count.dtype))
        lengths = np.append(np.maximum(np.diff(begins), 1), np.ones((), begins.dtype))
        since_begin = count - jnp.asarray(begins)[index]
        remaining, elapsed = fractions_of_period(since_begin, jnp.asarray(lengths)[index])
        if self.interpolate_type == "cosine":
            remaining, elapsed = half_cosine(remaining), half_cosine(elapsed)
        table = jnp.stack([scalar(v) for v in [*values, values[-1]]])
        return table[index] * remaining + table[index + 1] * elapsed


# ------------------------------------------------------------------------------------- one cycle


def _check_phases(part: Any, *names: str) -> None:
    """Require that the named fractions of `transition_steps` divide it into phases."""
    require_positive(part, "transition_steps")
    check_steps(part, "transition_steps")
    steps = part.transition_steps
    if not isinstance(steps, int):
        raise TypeError(f"{name_of(part)}: transition_steps must be an integer, got {steps!r}.")
    begins = []
    for name in names:
        fraction = getattr(part, name)
        if not is_known(fraction):
            raise TypeError(f"{name_of(part)}: {name} must be a Python number.")
        if not 0 <= fraction < 1:
            raise ValueError(f"{name_of(part)}: {name} must be in [0, 1), got {fraction!r}.")
        begins.append(int(fraction * steps))
    if any(a >= b for a, b in itertools.pairwise([*begins, steps])):
        raise ValueError(
            f"{name_of(part)}: the phases must begin at increasing steps, got "
            f"{', '.join(str(b) for b in begins)} and the end {steps}."
        )


@value
class linear_onecycle_schedule(Composite):
    """Climb to a peak, return to the first value, and fade out, in straight lines.

    Values, linear between, with T = transition_steps:

        peak_value / div_factor                        at 0
        peak_value                                     at int(pct_start T)
        peak_value / div_factor                        at int(pct_final T)
        peak_value / (div_factor final_div_factor)     at T

    Args:
      transition_steps: the length of the cycle, in steps, an integer greater than 0.
      peak_value: the largest value.
      pct_start: the fraction of the steps in the climb, in [0, 1).
      pct_final: the fraction of the steps before the last phase, in (pct_start, 1).
      div_factor: the peak over the value at the start, greater than 0.
      final_div_factor: the value at the start over the value at the end, greater than 0.

    Reference: Smith and Topin, Super-Convergence: Very Fast Training of Neural Networks Using Large
      Learning Rates, 2017, section 2.
    """

    transition_steps: int | float
    peak_value: Finite
    pct_start: float = 0.3
    pct_final: float = 0.85
    div_factor: Positive = 25.0
    final_div_factor: Positive = 1e4

    def __post_init__(self):
        _check_phases(self, "pct_start", "pct_final")

    def expand(self) -> piecewise_interpolate_schedule:
        """Return the piecewise interpolation."""
        steps, div = int(self.transition_steps), number_of_field(self.div_factor)
        scales = (
            (int(self.pct_start * steps), div),
            (int(self.pct_final * steps), 1.0 / div),
            (steps, 1.0 / number_of_field(self.final_div_factor)),
        )
        return piecewise_interpolate_schedule(
            "linear", number_of_field(self.peak_value) / div, scales
        )


@value
class cosine_onecycle_schedule(Composite):
    """Climb to a peak and come down, along half a cosine each.

    Values, half a cosine between, with T = transition_steps:

        peak_value / div_factor                        at 0
        peak_value                                     at int(pct_start T)
        peak_value / (div_factor final_div_factor)     at T

    Args:
      transition_steps: the length of the cycle, in steps, an integer greater than 0.
      peak_value: the largest value.
      pct_start: the fraction of the steps in the climb, in [0, 1).
      div_factor: the peak over the value at the start, greater than 0.
      final_div_factor: the value at the start over the value at the end, greater than 0.

    Reference: Smith and Topin, Super-Convergence: Very Fast Training of Neural Networks Using Large
      Learning Rates, 2017, section 2, which has straight lines.
    """

    transition_steps: int | float
    peak_value: Finite
    pct_start: float = 0.3
    div_factor: Positive = 25.0
    final_div_factor: Positive = 1e4

    def __post_init__(self):
        _check_phases(self, "pct_start")

    def expand(self) -> piecewise_interpolate_schedule:
        """Return the piecewise interpolation."""
        steps, div = int(self.transition_steps), number_of_field(self.div_factor)
        scales = (
            (int(self.pct_start * steps), div),
            (steps, 1.0 / (div * number_of_field(self.final_div_factor))),
        )
        return piecewise_interpolate_schedule(
            "cosine", number_of_field(self.peak_value) / div, scales
        )
