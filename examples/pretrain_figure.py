"""The figures of `pretrain.py`, `low_memory.py` and `train_deep.py`: held-out losses, and bytes."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from matplotlib import color_sequences
from matplotlib.axes import Axes
from matplotlib.figure import Figure

STYLES = ("-", "--", "-.", ":")


class Curve(NamedTuple):
    """The held-out loss of one optimizer, at the best of its learning rates."""

    rate: float
    steps: list[int]
    seconds: list[float]
    losses: list[float]
    state_bytes: int = 0

    def add(self, step: int, seconds: float, loss: float) -> None:
        """Add a measurement."""
        self.steps.append(step)
        self.seconds.append(seconds)
        self.losses.append(loss)


def draw(path: Path, curves: dict[str, Curve], title: str) -> None:
    """Draw the held-out loss against the steps, and against the seconds.

    Args:
      path: the path of the figure.
      curves: the curves by optimizer.
      title: the title of the figure.
    """
    figure = Figure(figsize=(12, 4.8), dpi=120, layout="constrained")
    figure.suptitle(title, fontsize=13)
    by_steps, by_seconds = figure.subplots(1, 2, sharey=True)
    _draw_steps(by_steps, curves, "optimizer, loss at the end")
    for name, curve, look in _looks(curves):
        time = f"{name}, {curve.seconds[-1]:.1f} s"
        by_seconds.plot(curve.seconds[1:], curve.losses[1:], label=time, **look)
        by_seconds.plot(curve.seconds[-1], curve.losses[-1], "o", color=look["color"])
    by_steps.set(title="by steps")
    by_seconds.set(title="by seconds of training", xlabel="seconds, without compilation")
    _finish(by_seconds, "optimizer, seconds in all")
    figure.savefig(path)


def draw_by_steps(path: Path, curves: dict[str, Curve], title: str) -> None:
    """Draw the held-out loss against the steps.

    Args:
      path: the path of the figure.
      curves: the curves by run.
      title: the title of the figure.
    """
    figure = Figure(figsize=(8, 4.8), dpi=120, layout="constrained")
    figure.suptitle(title, fontsize=12)
    _draw_steps(figure.subplots(), curves, "run, loss at the end")
    figure.savefig(path)


def draw_with_bytes(
    path: Path, curves: dict[str, Curve], held: Mapping[str, tuple[int, int]], title: str
) -> None:
    """Draw the held-out loss against the steps, and beside it what each step holds.

    Args:
      path: the path of the figure.
      curves: the curves by kind of step.
      held: the bytes that a step is given, and those of its temporary arrays.
      title: the title of the figure.
    """
    figure = Figure(figsize=(12, 4.8), dpi=120, layout="constrained")
    figure.suptitle(title, fontsize=13)
    by_steps, memory = figure.subplots(1, 2, width_ratios=(3, 2))
    _draw_steps(by_steps, curves, "step, loss at the end")
    for i, (name, _, look) in enumerate(_looks(curves)):
        given, temporary = (x / 1e6 for x in held[name])
        memory.bar(i, given, 0.6, color=look["color"], alpha=0.35)
        memory.bar(i, temporary, 0.6, bottom=given, color=look["color"])
        memory.annotate(
            f"{given + temporary:.1f}", (i, given + temporary), ha="center", va="bottom"
        )
    memory.set_xticks(range(len(curves)), list(curves))
    memory.set(ylabel="MB", title="parameters and state (light), temporary arrays (dark)")
    memory.spines[["top", "right"]].set_visible(False)
    figure.savefig(path)


def _looks(curves: dict[str, Curve]) -> Iterator[tuple[str, Curve, dict[str, Any]]]:
    """Yield every curve with its name and its look."""
    for i, (name, curve) in enumerate(curves.items()):
        color, style = color_sequences["tab10"][i % 10], STYLES[i % len(STYLES)]
        yield name, curve, {"color": color, "linestyle": style, "linewidth": 1.8}


def _draw_steps(axis: Axes, curves: dict[str, Curve], title: str) -> None:
    for name, curve, look in _looks(curves):
        label = f"{name}, {curve.losses[-1]:.3f}"
        axis.plot(curve.steps[1:], curve.losses[1:], label=label, **look)
    axis.set(xlabel="step", ylabel="held-out loss, nats a character")
    _finish(axis, title)


def _finish(axis: Axes, title: str) -> None:
    axis.set_xlim(left=0)
    axis.grid(alpha=0.25)
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(title=title, frameon=False, alignment="left")
