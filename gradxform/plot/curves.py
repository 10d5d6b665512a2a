"""Schedules, drawn as their value over the steps."""

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from gradxform.errors import shown
from gradxform.plot.style import (
    axes_for,
    by_name,
    check_count,
    draw_grid,
    draw_legend,
    look_of,
    short_label,
    title_axes,
)
from gradxform.schedules.schedule import Schedule
from gradxform.types import SupportsTransform
from gradxform.values import Value
from gradxform.wrappers.hyperparams.schedule_states import is_stateful

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# A longer curve is drawn through this many of its points.
POINTS = 20_000
MOST = 2**31 - 1


def schedule(
    s: Any,
    steps: int,
    ax: Any = None,
    *,
    title: str | None = None,
    ylabel: str = "value",
    dark: bool = False,
) -> "Figure":
    """Draw one schedule or several over the counts 0 to `steps`.

    Beyond 20000 steps, the curve goes through that many evenly spaced counts.

    Args:
      s: a schedule, any function of the count, a number, a list of these, or a dict from the names
        in the legend.
      steps: the last count, at least 1.
      ax: matplotlib axes to draw on; by default those of a new figure.
      title: the title; by default the schedule as it prints. Keyword-only.
      ylabel: what the value is, such as "learning rate". Keyword-only.
      dark: whether to use colors for a dark page. Keyword-only.

    Returns:
      The matplotlib figure.

    Raises:
      TypeError: if `s` is not a schedule, or does not return one real number per count.
      ValueError: if `steps` is out of range, a value is not finite, or the list is empty.
      ModuleNotFoundError: if matplotlib is not installed.
    """
    named, look = by_name("schedule", "schedule", s, _is_curve, shown), look_of("schedule", dark)
    check_count("schedule", "steps", steps, MOST)
    counts = np.arange(steps + 1) if steps < POINTS else _steps(steps)
    values = {name: _values(name, each, counts) for name, each in named.items()}
    axes = axes_for("schedule", ax, 6.4, 3.4, look)
    for i, (name, y) in enumerate(values.items()):
        axes.plot(counts, y, linewidth=2.0, label=short_label(name), **look.line(i))
    if title is None and len(named) == 1:
        title = next(iter(named))
    title_axes(axes, title or "", look)
    axes.set_xlabel("step")
    axes.set_ylabel(ylabel)
    axes.set_xlim(0, steps)
    lowest, highest = (f([float(f(y)) for y in values.values()]) for f in (np.min, np.max))
    if lowest >= 0:
        axes.set_ylim(0, float(highest) * 1.06 or 1.0)
    if highest and max(abs(lowest), abs(highest)) < 1e-2:
        axes.ticklabel_format(axis="y", style="sci", scilimits=(0, 0), useMathText=True)
    draw_grid(axes, look)
    if len(named) > 1:
        draw_legend(axes, look, len(named))
    return axes.figure


def _steps(steps: int) -> Any:
    return np.unique(np.linspace(0, steps, POINTS).round().astype(np.int64)).astype(np.int32)


def _is_curve(x: Any) -> bool:
    if isinstance(x, bool | type):
        return False
    if isinstance(x, int | float | Schedule) or is_stateful(x):
        return True
    return callable(x) and not isinstance(x, Value | SupportsTransform)


def _values(name: str, s: Any, counts: Any) -> Any:
    """Return the values of a schedule at some counts."""
    if is_stateful(s):
        raise TypeError(
            f"schedule: {name} has a state, which a run decides; log its value with "
            "gradxform.metrics and draw that with plot.training."
        )
    if isinstance(s, int | float):
        y = np.full(len(counts), float(s))
    else:
        try:
            out = jax.vmap(s)(jnp.asarray(counts, jnp.int32))
        except (TypeError, ValueError) as error:
            reason = " ".join(str(error).split())
            raise TypeError(f"schedule: {name} failed for the count: {reason[:300]}") from error
        y = np.asarray(out) if isinstance(out, jax.Array) else None
        if y is None or y.shape != counts.shape or not jnp.issubdtype(y.dtype, jnp.number):
            raise TypeError(f"schedule: {name} must return one number, got {shown(out)}.")
        if jnp.issubdtype(y.dtype, jnp.complexfloating):
            raise TypeError(f"schedule: {name} must return a real number, got {y.dtype}.")
        y = y.astype(float)
    if not np.isfinite(y).all():
        first = int(np.argmin(np.isfinite(y)))
        raise ValueError(f"schedule: {name} is {y[first]} at step {int(counts[first])}.")
    return y
