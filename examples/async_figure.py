"""The figure of `async_ray.py`: accuracy, and what each worker did, in the course of time."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from matplotlib.figure import Figure

BLUE, GREY = "#1f77b4", "#4d4d4d"


class Event(NamedTuple):
    """What happened when."""

    seconds: float
    what: str


def draw(
    path: Path,
    title: str,
    seen: Sequence[tuple[float, int, float]],
    counts: Mapping[str, Sequence[tuple[float, int]]],
    events: Sequence[Event],
) -> None:
    """Draw a run.

    Args:
      path: where to write the figure.
      title: its title.
      seen: seconds, steps of the center, and held-out accuracy.
      counts: of each worker, by name: seconds, and the number of its exchanges.
      events: what happened in between.
    """
    figure = Figure(figsize=(10, 7.5), dpi=120, layout="constrained")
    figure.suptitle(title, fontsize=13)
    accuracy, exchanges = figure.subplots(2, 1, sharex=True)
    seconds, _, right = zip(*seen, strict=True)
    accuracy.plot(seconds, right, color=BLUE)
    accuracy.set(title="Held-out accuracy of the center's parameters", ylim=(0, 1))
    for name, points in counts.items():
        if points:
            exchanges.plot(*zip(*points, strict=True), label=name)
    exchanges.set(title="Exchanges of each worker", xlabel="seconds")
    exchanges.legend(frameon=False)
    for axis in (accuracy, exchanges):
        _mark(axis, events, named=axis is accuracy)
        axis.grid(alpha=0.25)
        axis.spines[["top", "right"]].set_visible(False)
    figure.savefig(path)


def _mark(axis: Any, events: Sequence[Event], named: bool) -> None:
    """Draw a line for each event."""
    for i, event in enumerate(events):
        axis.axvline(event.seconds, color=GREY, linestyle=":", linewidth=1)
        if named:
            height = 0.05 + 0.08 * (i % 3)  # so that names of near events do not overlap
            axis.annotate(
                event.what,
                (event.seconds, height),
                xytext=(4, 0),
                textcoords="offset points",
                xycoords=("data", "axes fraction"),
                fontsize=9,
                color=GREY,
            )
