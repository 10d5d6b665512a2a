"""The figure of `pretrain.py`: the held-out loss of each optimizer against steps and seconds."""

from pathlib import Path
from typing import Any, NamedTuple

from matplotlib import color_sequences
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
    for i, (name, curve) in enumerate(curves.items()):
        look: dict[str, Any] = {
            "color": color_sequences["tab10"][i % 10],
            "linestyle": STYLES[i % len(STYLES)],
            "linewidth": 1.8,
        }
        end = f"{name}, {curve.losses[-1]:.3f}"
        by_steps.plot(curve.steps[1:], curve.losses[1:], label=end, **look)
        time = f"{name}, {curve.seconds[-1]:.1f} s"
        by_seconds.plot(curve.seconds[1:], curve.losses[1:], label=time, **look)
        by_seconds.plot(curve.seconds[-1], curve.losses[-1], "o", color=look["color"])
    by_steps.set(title="by steps", xlabel="step", ylabel="held-out loss, nats a character")
    by_seconds.set(title="by seconds of training", xlabel="seconds, without compilation")
    for axis in (by_steps, by_seconds):
        axis.set_xlim(left=0)
        axis.grid(alpha=0.25)
        axis.spines[["top", "right"]].set_visible(False)
    by_steps.legend(title="optimizer, loss at the end", frameon=False, alignment="left")
    by_seconds.legend(title="optimizer, seconds in all", frameon=False, alignment="left")
    figure.savefig(path)
