"""Section `optimizers`: every optimizer that both libraries have, on one tree."""

from pathlib import Path

from rich.console import Console

from benchmarks.options import Job, Options, Results, Section
from benchmarks.subjects.pairs import PAIRS
from benchmarks.tables import paired


def run(options: Options, job: Job) -> Results:
    """Measure every optimizer on every tree."""
    pairs = {name: PAIRS[name] for name in options.optimizers}
    return paired.run("optimizers", pairs, options, job)


def show(results: Results, console: Console) -> None:
    """Print one table per tree, a row per optimizer."""
    explanation = "Ratio gradxform / Optax, beside it the medians of both; less is better."
    paired.show(results, console, "optimizer", explanation)


def draw(results: Results, path: Path) -> None:
    """Write one panel per figure, one bar per optimizer."""
    headline = "Every optimizer relative to Optax: left of the line gradxform costs less"
    paired.draw(results, path, headline, "gradxform / Optax")


SECTION = Section(
    about="donated step, temporary memory, trace and lower of every optimizer that both have",
    run=run,
    show=show,
    draw=draw,
)
