"""The tables and the figure of `finetune.py`."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from finetune_run import History, numbered
from matplotlib import colormaps
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from rich.table import Table

import gradxform as gx

BLUE, ORANGE, RED, GREY = "#1f77b4", "#d95f02", "#c0202a", "#4d4d4d"


def groups(tx: Any, params: Any) -> Table:
    """Return the table of the groups of parameters."""
    result = Table("group", title="Groups of parameters")
    for column in ("arrays", "numbers", "learning rate", "bytes of slots"):
        result.add_column(column, justify="right")
    for row in gx.describe(tx, params).groups[0]:
        numbers = [str(len(row.parameters)), str(row.param_bytes // 4)]
        result.add_row(row.label, *numbers, f"x {row.learning_rate:.3g}", str(row.state_bytes))
    return result


def results(losses: Mapping[str, Mapping[str, float]]) -> Table:
    """Return the table of held-out losses, by model and text."""
    result = Table("held-out loss, in nats a character")
    for text in next(iter(losses.values())):
        result.add_column(text, justify="right")
    for model, by_text in losses.items():
        result.add_row(model, *(f"{loss:.3f}" for loss in by_text.values()))
    return result


def draw(path: Path, history: History, every: int, title: str) -> None:
    """Draw the losses, the learning rates, the relative updates and the skips.

    Args:
      path: the path of the figure.
      history: the numbers of every micro-batch and of every measurement.
      every: the number of micro-batches in a step.
      title: the title of the figure.
    """
    figure = Figure(figsize=(12, 8), dpi=120, layout="constrained")
    period = "micro-batch" if every == 1 else f"{every} micro-batches"
    figure.suptitle(f"{title}, a step of the optimizer every {period}", fontsize=13)
    figure.subplots(2, 2, sharex=True)
    loss, skips, rates, ratios = figure.axes
    taken = np.arange(1, len(history["loss"]) + 1)
    draw_losses(loss, history, taken)
    draw_skips(skips, history, taken)
    draw_groups(rates, dict(numbered(history, "learning_rate/")), taken)
    rates.set(title="Learning rate, by group")
    draw_groups(ratios, dict(numbered(history, "update_ratio/")), taken)
    ratios.set(title="Norm of the last update over that of the weights, by part")
    for axis in figure.axes:
        axis.grid(alpha=0.25)
        axis.spines[["top", "right"]].set_visible(False)
        axis.set_xlim(0, 1.01 * taken[-1])
    for axis in (rates, ratios):
        axis.set_xlabel("micro-batch")
    figure.savefig(path)


def draw_losses(axis: Any, history: History, taken: np.ndarray) -> None:
    """Draw the loss of every micro-batch, and the held-out losses."""
    axis.plot(taken, history["loss"], color=GREY, alpha=0.25, linewidth=0.8, label="training")
    base = history["raw"][0]
    axis.axhline(base, color=GREY, linestyle=":", label=f"held out, base model, {base:.3f}")
    for name, color, marker in (("raw", BLUE, "o"), ("averaged", ORANGE, "s")):
        label = f"held out, {name} weights, {history[name][-1]:.3f}"
        axis.plot(
            history["at"], history[name], color=color, marker=marker, markersize=3, label=label
        )
    # Do not reserve room for single micro-batches.
    shown = np.concatenate([history["raw"], history["averaged"]])
    low, high = np.nanpercentile(history["loss"], [3, 97])
    low, high = min(low, shown.min()), max(high, shown.max())
    axis.set_ylim(low, high + 0.4 * (high - low))  # with room for the legend
    axis.set(title="Loss, in nats a character")
    axis.legend(frameon=False, fontsize=9)


def draw_skips(axis: Any, history: History, taken: np.ndarray) -> None:
    """Draw how many micro-batches were skipped, and which."""
    skipped = np.asarray(history["skipped"])
    new = taken[np.diff(skipped, prepend=0) > 0]
    axis.step(taken, skipped, where="post", color=RED)
    axis.plot(new, skipped[new - 1], "o", color=RED, markersize=4)
    for i in new:
        axis.annotate(str(i), (i, skipped[i - 1]), xytext=(-4, 3), textcoords="offset points",
                      ha="right", fontsize=8)  # fmt: skip
    axis.set(title=f"Skipped micro-batches: {len(new)} of {len(taken)}, the others share the mean")
    axis.set_ylim(0, max(1.0, 1.15 * skipped[-1]))
    axis.yaxis.set_major_locator(MaxNLocator(integer=True))


def draw_groups(axis: Any, values: Mapping[str, list[float]], taken: np.ndarray) -> None:
    """Draw a line for each group, from the embeddings, dark, to the head, bright."""
    names = sorted(values, key=lambda name: np.max(values[name]))
    for i, name in enumerate(names):
        color = colormaps["viridis"](0.9 * i / max(1, len(names) - 1))
        axis.step(taken, values[name], where="post", color=color, linewidth=1.4, label=name)
    axis.set_ylim(0, 1.15 * max(map(max, values.values()), default=1.0) or 1.0)
    axis.legend(*(x[::-1] for x in axis.get_legend_handles_labels()), frameon=False, fontsize=9)
