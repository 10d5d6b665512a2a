"""The figure of the section `core`: small multiples of ratio bars."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from benchmarks.tables.figures import FIGURES, show_ratio
from benchmarks.timing import machine

# Ratios beyond these are drawn up to the edge; the label has the number.
LOW, HIGH = 1 / 32, 4.0
BETTER, SAME, WORSE = "#2a6fbb", "#8a8f98", "#d9622b"


def draw(results: dict[str, Any], path: Path) -> None:
    """Write one panel per tree (rows) and chain (columns), one bar per figure."""
    cases = {(case["tree"], case["chain"]): case for case in results["cases"]}
    trees = list(dict.fromkeys(tree for tree, _ in cases))
    chains = list(dict.fromkeys(chain for _, chain in cases))
    names = [n for n in FIGURES if any(n in case["figures"] for case in cases.values())]
    height = 0.26 * len(names) + 0.75
    figure = Figure(
        figsize=(3.0 * len(chains) + 1.6, height * len(trees) + 1.5), layout="constrained"
    )
    FigureCanvasAgg(figure)  # no window, and pyplot's global state is left alone
    panels = figure.subplots(len(trees), len(chains), sharex=True, sharey=True, squeeze=False)
    for i, tree in enumerate(trees):
        for j, chain in enumerate(chains):
            case = cases.get((tree, chain))
            panel(panels[i, j], names, [case and case["figures"].get(name) for name in names])
            panels[i, j].set_title(f"{tree}   {chain}", fontsize=10, loc="left")
    for lowest in panels[-1]:
        lowest.set_xlabel("gradxform / Optax")
    figure.suptitle(
        "Cost relative to Optax: left of the line gradxform costs less\n"
        + machine.one_line(results["machine"]),
        fontsize=10,
    )
    figure.savefig(path, dpi=120)


def panel(axes: Any, names: list[str], figures: Sequence[dict[str, Any] | None]) -> None:
    """Draw one bar per name, as long as the logarithm of its ratio.

    Args:
      axes: the axes to draw on.
      names: the names of the bars, from the top.
      figures: the figure of each bar; None leaves it out.
    """
    axes.set_xscale("log", base=2)
    axes.set_xlim(LOW, HIGH)
    ticks = [1 / 16, 1 / 4, 1 / 2, 1, 2]
    axes.set_xticks(ticks, ["1/16", "1/4", "1/2", "1", "2"])
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.4, -0.6)  # the first figure on top
    axes.axvline(1.0, color="black", linewidth=1)
    axes.grid(axis="x", color="#e3e5e8", linewidth=0.7)
    axes.set_axisbelow(True)
    axes.tick_params(axis="y", length=0)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    for y, one in enumerate(figures):
        if one:
            _bar(axes, y, one["ratio"])


def _bar(axes: Any, y: int, ratio: float | None) -> None:
    end = HIGH if ratio is None else min(max(ratio, LOW), HIGH)
    color = WORSE if ratio is None or ratio > 1.05 else BETTER if ratio < 0.95 else SAME
    axes.barh(y, end - 1.0, left=1.0, height=0.62, color=color)
    # Put the label on the free side of the line, where it does not cover the bar.
    right = end < 1.005
    axes.annotate(
        show_ratio(ratio),
        (1.0, y),
        xytext=(4 if right else -4, 0),
        textcoords="offset points",
        ha="left" if right else "right",
        va="center",
        fontsize=8.5,
        color="black",
    )
