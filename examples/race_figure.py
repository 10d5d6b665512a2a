"""The figure of `race.py`: a row for each problem."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from matplotlib import color_sequences
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from problems import Plane, Problem

GREY = "#4d4d4d"
STYLES = ("-", "--", ":", "-.")


def draw(path: Path, races: Sequence[tuple[Problem, Sequence[Any]]]) -> None:
    """Draw loss against steps, and the paths of problems in the plane.

    Args:
      path: where to write the figure.
      races: problems with their results, the best first.
    """
    labels = sorted({r.label for _, results in races for r in results})
    looks = {label: look(i) for i, label in enumerate(labels)}
    figure = Figure(figsize=(13, 4.3 * len(races)), dpi=120, layout="constrained")
    rows = figure.subplots(len(races), 2, squeeze=False, width_ratios=(1, 1))
    for (left, right), (problem, results) in zip(rows, races, strict=True):
        draw_loss(left, problem, results, looks)
        if problem.plane:
            draw_paths(right, problem, problem.plane, results, looks)
        else:
            draw_accuracy(right, results, looks)
        for axis in (left, right):
            axis.spines[["top", "right"]].set_visible(False)
    figure.savefig(path)


def look(i: int) -> dict[str, Any]:
    """Return the color and the line of the i-th optimizer."""
    colors = color_sequences["tab10"]
    return {"color": colors[i % len(colors)], "linestyle": STYLES[i // len(colors) % len(STYLES)]}


def named(r: Any) -> str:
    """Return an optimizer with the learning rate that it had."""
    if r.rate is None or "=" in r.label:
        return r.label
    return f"{r.label}, {r.rate:.2g}"


def draw_loss(axis: Any, problem: Problem, results: Sequence[Any], looks: dict[str, Any]) -> None:
    """Draw the loss of every optimizer against the steps."""
    start = results[0].loss[0]
    floor = start * 1e-9  # below this float32 only shows its own rounding
    lowest, highest = start, start
    for r in reversed(results):  # the best on top
        loss = np.where(np.isfinite(r.loss), np.maximum(r.loss, floor), np.nan)
        axis.plot(r.steps, loss, label=named(r), linewidth=1.6, **looks[r.label])
        lowest = min(lowest, float(np.nanmin(loss)))
        highest = max(highest, float(np.nanmax(loss[: 1 + len(loss) // 2])))
    axis.set(
        title=f"{problem.title}: loss",
        xlabel="step",
        yscale="log",
        xlim=(0, results[0].steps[-1]),
        ylim=(lowest / 1.5, min(highest, 30 * start) * 1.5),
    )
    axis.grid(alpha=0.25)


def draw_paths(
    axis: Any, problem: Problem, plane: Plane, results: Sequence[Any], looks: dict[str, Any]
) -> None:
    """Draw the way of every optimizer over the contours of the loss."""
    x, y = np.meshgrid(np.linspace(*plane.x, 241), np.linspace(*plane.y, 241))
    heights = jax.vmap(problem.total)({"xy": np.stack([x.ravel(), y.ravel()], axis=1)})
    levels = np.geomspace(max(float(np.min(heights)), 1e-3), float(np.max(heights)), 16)
    axis.contour(
        x, y, np.reshape(heights, x.shape), levels=levels, colors="#b9bec6", linewidths=0.7
    )
    for r in reversed(results):  # the best on top
        marks = {"marker": ".", "markersize": 4, "markevery": max(1, len(r.path) // 60)}
        axis.plot(*r.path.T, linewidth=1.4, label=named(r), **marks, **looks[r.label])
    axis.plot(*results[0].path[0], "o", color="white", markeredgecolor=GREY, markersize=8)
    axis.plot(*plane.minimum, "*", color="gold", markeredgecolor=GREY, markersize=15, zorder=5)
    axis.set(title="the paths, from the circle to the star", xlim=plane.x, ylim=plane.y)
    beside(axis, results, looks)


def draw_accuracy(axis: Any, results: Sequence[Any], looks: dict[str, Any]) -> None:
    """Draw the accuracy of every optimizer on what is held out."""
    lowest = min(r.accuracy for r in results)
    left = max(0.0, np.floor(20 * lowest - 1) / 20)
    for i, r in enumerate(results):
        color = looks[r.label]["color"]
        axis.hlines(i, left, r.accuracy, color=color, linewidth=2, alpha=0.5)
        axis.plot(r.accuracy, i, "o", color=color, markersize=8)
        axis.annotate(
            f"{r.accuracy:.3f}",
            (r.accuracy, i),
            xytext=(9, 0),
            textcoords="offset points",
            va="center",
            fontsize=9,
        )
    axis.set(title="accuracy on held-out digits at the end", xlim=(left, 1.02))
    axis.set_yticks(range(len(results)), [r.label for r in results])
    axis.set_ylim(len(results) - 0.5, -0.5)
    axis.grid(axis="x", alpha=0.25)
    beside(axis, results, looks)


def beside(axis: Any, results: Sequence[Any], looks: dict[str, Any]) -> None:
    """Draw the legend of a row at its right, the best first."""
    handles = [Line2D([], [], linewidth=2, label=named(r), **looks[r.label]) for r in results]
    axis.legend(
        handles=handles,
        title="best first, with learning rate",
        loc="center left",
        bbox_to_anchor=(1.01, 0.5),
        frameon=False,
        alignment="left",
    )
