"""A cooldown that begins where somebody decides it, and warm-up, plateau and cooldown in one."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp

from gradxform.errors import (
    did_you_mean,
    must_be,
    name_of,
    require_non_negative,
    require_positive,
)
from gradxform.numerics import scalar
from gradxform.schedules.basic import schedule_of
from gradxform.schedules.join import add_joined_steps, warmup_constant_schedule
from gradxform.schedules.schedule import (
    Composite,
    Schedule,
    as_count,
    check_steps,
    exact_at_ends,
    fractions_of_period,
    half_cosine,
    is_known,
    number_of_field,
    same_dtype,
    steps_since,
)
from gradxform.types import Array, Finite
from gradxform.values.fields import value

# What is left of the way down, from the remaining and the elapsed fraction of the cooldown.
_SHAPES: dict[str, Callable[[Array, Array], Array]] = {
    # 1 - sqrt(t), of which little is left near the end, without the difference.
    "1-sqrt": lambda remaining, elapsed: remaining / (1.0 + jnp.sqrt(elapsed)),
    "linear": lambda remaining, elapsed: remaining,
    "cosine": lambda remaining, elapsed: half_cosine(remaining),
    "1-square": lambda remaining, elapsed: remaining * (1.0 + elapsed),
}
# The code of the paper and torchtitan call the first one so.
_ALIASES = {"sqrt": "1-sqrt"}


def _check_shape(part: Any) -> None:
    """Require a shape to be a name of one, or a schedule; keep one name of each."""
    shape = part.shape
    if callable(shape):
        object.__setattr__(part, "shape", schedule_of(part, "shape", shape))
        return
    shape = _ALIASES.get(shape, shape) if isinstance(shape, str) else shape
    if not (isinstance(shape, str) and shape in _SHAPES):
        listed = ", ".join(map(repr, _SHAPES))
        hint = did_you_mean(shape, _SHAPES)
        raise ValueError(must_be(part, "shape", f"one of {listed}, or a schedule", shape) + hint)
    object.__setattr__(part, "shape", shape)


@value
class cooldown_from(Schedule):
    """Follow a schedule up to a step, and cool down from the value that it has there.

    Value, with y0 = schedule(start), k = n - start and t = min(k / steps, 1):

        y(n) = schedule(n)                                for n < start
        y(n) = end_value + (y0 - end_value) s             from start on, with

        1-sqrt:      s = 1 - sqrt(t)
        linear:      s = 1 - t
        cosine:      s = (1 + cos(pi t)) / 2
        1-square:    s = 1 - t^2
        a schedule:  s = shape(min(k, steps)) / shape(0)

    A run need not know its length in advance: train at a constant rate, and cool down from any
    checkpoint. The state has the form that it has with the schedule alone, which must not be a
    number; if the run began with a number, `migrate_state` adds the count:

        plateau = warmup_constant_schedule(0.0, 1e-3, 100)
        tx = adamw(plateau)
        ...                              # any number of steps, saved and restored
        tx = adamw(cooldown_from(plateau, current_step(state), 200))

    Args:
      schedule: a schedule, plain function of the count, or number.
      start: the number of steps before the cooldown, at least 0; step `start` is still at y0.
      steps: the length of the cooldown, in steps, greater than 0.
      shape: "1-sqrt" (also called "sqrt"), "linear", "cosine", "1-square", or a schedule that
        counts from `start`. Of a schedule only the ratios matter; its first value must not be 0.
      end_value: the value at the end, and after it.

    Reference: Hägele et al., Scaling Laws and Compute-Optimal Training Beyond Fixed Training
      Durations, 2024, section 3, for "1-sqrt" and "linear"; its code, for the others.
    """

    schedule: Any
    start: int | float
    steps: int | float
    shape: Any = "1-sqrt"
    end_value: Finite = 0.0

    def __post_init__(self):
        object.__setattr__(self, "schedule", schedule_of(self, "schedule", self.schedule))
        require_non_negative(self, "start")
        require_positive(self, "steps")
        check_steps(self, "start", "steps")
        _check_shape(self)

    def __call__(self, count: Any) -> Array:
        """Return the value of the schedule, or that of the cooldown."""
        count = as_count(count)
        now, start = same_dtype(count, as_count(self.start))
        y = jnp.broadcast_to(scalar(self.schedule(jnp.minimum(now, start))), count.shape)
        left = self._left(steps_since(count, self.start))
        end = number_of_field(self.end_value)
        # Of a schedule, the first value may round to less than all that is left.
        left = jnp.where(now <= start, 1.0, left)
        return exact_at_ends(end, y, left, end + (y - end) * left)

    def _left(self, k: Array) -> Array:
        """Return s, the share of the way down that is left after k steps of the cooldown."""
        if callable(self.shape):
            k, steps = same_dtype(k, self.steps)
            first = scalar(self.shape(jnp.zeros_like(steps)))
            return jnp.broadcast_to(scalar(self.shape(jnp.minimum(k, steps))) / first, k.shape)
        return _SHAPES[self.shape](*fractions_of_period(k, self.steps))


@value
class warmup_stable_decay_schedule(Composite):
    """Climb to a peak in a straight line, stay there, and cool down at the end of the run.

    Value, with W = warmup_steps, D = decay_steps, T = total_steps and t = (n - (T - D)) / D:

        y(n) = init_value + (peak_value - init_value) n / W    for n < W
        y(n) = peak_value                                      for W <= n < T - D
        y(n) = end_value + (peak_value - end_value) s(t)       from T - D on; end_value from T on

    with s(t) of `shape` as in `cooldown_from`, 1 - sqrt(t) by default.

    `decay_steps` is the length of the cooldown alone; in `warmup_cosine_decay_schedule` it is that
    of the whole run. Where the length of the run is not known yet, use `warmup_constant_schedule`,
    and `cooldown_from` when it is.

    Args:
      init_value: the value at the start.
      peak_value: the value after the warm-up, until the cooldown.
      warmup_steps: the length of the climb, in steps, at least 0; or, as a float below 1, as a
        fraction of `total_steps`, rounded to a whole step.
      decay_steps: the length of the cooldown, greater than 0; in steps or as a fraction, likewise.
      total_steps: the length of the run, in steps, at least the sum of both.
      end_value: the value at the end, and after it.
      shape: of the cooldown: "1-sqrt" (also called "sqrt"), "linear", "cosine", "1-square", or a
        schedule that counts from the start of the cooldown.

    Reference: Hägele et al., Scaling Laws and Compute-Optimal Training Beyond Fixed Training
      Durations, 2024, section 3; Hu et al., MiniCPM, 2024, section 4, for the name.
    """

    init_value: Finite
    peak_value: Finite
    warmup_steps: int | float
    decay_steps: int | float
    total_steps: int | float
    end_value: Finite = 0.0
    shape: Any = "1-sqrt"

    def __post_init__(self):
        require_non_negative(self, "warmup_steps")
        require_positive(self, "decay_steps", "total_steps")
        for name in ("warmup_steps", "decay_steps"):
            if type(getattr(self, name)) is float and getattr(self, name) == 1:
                raise ValueError(
                    f"{name_of(self)}: {name}=1.0 may be one step or the whole run; write 1 for "
                    "one step, and total_steps for the whole run."
                )
        check_steps(self, "warmup_steps", "decay_steps", "total_steps")
        _check_shape(self)
        if all(map(is_known, (self.warmup_steps, self.decay_steps, self.total_steps))):
            self._check_lengths(*self._lengths())

    def _check_lengths(self, warmup: Any, decay: Any) -> None:
        total = self.total_steps
        if decay == 0:
            raise ValueError(
                f"{name_of(self)}: decay_steps={self.decay_steps!r} of {total!r} steps rounds "
                "to 0; give at least one step."
            )
        if warmup + decay > total:
            raise ValueError(
                f"{name_of(self)}: total_steps must be at least warmup_steps + decay_steps, got "
                f"{total!r} for {warmup!r} + {decay!r}."
            )

    def _lengths(self) -> tuple[Any, Any]:
        """Return the lengths of the climb and of the cooldown, in steps."""
        warmup, decay = (
            _in_steps(x, self.total_steps) for x in (self.warmup_steps, self.decay_steps)
        )
        return warmup, decay

    def expand(self) -> cooldown_from:
        """Return the cooldown from the plateau."""
        warmup, decay = self._lengths()
        plateau = warmup_constant_schedule(self.init_value, self.peak_value, warmup)
        start = add_joined_steps(self.total_steps, decay, sign=-1)
        return cooldown_from(plateau, start, decay, self.shape, self.end_value)


def _in_steps(x: Any, total: Any) -> Any:
    """Return a length in steps; a number between 0 and 1 is a fraction of `total`."""
    if is_known(x):
        if not 0 < x < 1:
            return x
        return round(x * total) if is_known(total) else jnp.round(x * scalar(total))
    if jnp.issubdtype(x.dtype, jnp.integer):
        return x
    return jnp.where((x > 0) & (x < 1), jnp.round(scalar(x) * scalar(total)), scalar(x))
