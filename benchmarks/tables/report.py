"""The tables of the section `core`."""

from itertools import groupby
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from benchmarks.subjects.cases import OURS, THEIRS
from benchmarks.tables.figures import FIGURES, at_most, show_ratio, show_value, title
from benchmarks.tables.targets import OTHERWISE
from benchmarks.timing import machine

# Two libraries that compute the same numbers agree much better than this after some steps.
SUSPICIOUS_DIFFERENCE = 1e-3
# This process alone causes a load of 1 to 2.
BUSY_LOAD = 3.0


def show(results: dict[str, Any], console: Console) -> None:
    """Print one table per tree, then the targets."""
    console.print(machine.one_line(results["machine"]), highlight=False)
    console.print("Ratio gradxform / Optax, below it the medians of both; less is better.\n")
    for _, group in groupby(results["cases"], key=lambda case: case["tree"]):
        cases = list(group)
        console.print(title(cases[0]), style="bold", highlight=False)
        console.print(_table(cases))
    warn(results["cases"], console)
    console.print(_targets(results["targets"]))
    reached = sum(row["reached"] for row in results["targets"])
    console.print(
        f"{reached} of {len(results['targets'])} targets reached "
        "(missed~: by less than the spread of the samples, or they are too few).",
        highlight=False,
    )


def _table(cases: list[dict[str, Any]]) -> Table:
    table = Table(show_lines=True)
    table.add_column("figure", no_wrap=True)
    for case in cases:
        table.add_column(case["chain"], justify="right", no_wrap=True)
    for name in FIGURES:
        cells = [cell(case["figures"].get(name)) for case in cases]
        if any(cells):
            table.add_row(name, *cells)
    return table


def cell(figure: dict[str, Any] | None, between: str = "\n") -> Text:
    """Return a ratio and the medians of both; empty if the figure was not measured."""
    if figure is None:
        return Text()
    ours, theirs = figure["median"][OURS], figure["median"][THEIRS]
    unit = figure["unit"]
    return Text.assemble(
        (show_ratio(figure["ratio"]), _style(figure["ratio"])),
        between,
        (f"{show_value(ours, unit)}/{show_value(theirs, unit)}", "dim"),
    )


def _style(ratio: float | None) -> str:
    if not at_most(ratio, OTHERWISE):
        return "bold red"
    return "bold green" if at_most(ratio, 0.95) else "bold"


def warn(cases: list[dict[str, Any]], console: Console) -> None:
    """Print where the machine was busy, and where the libraries seem to differ."""
    for case in cases:
        if (case["load"] or 0.0) > BUSY_LOAD:
            console.print(
                f"{case['tree']} {case['chain']}: the machine was busy (load {case['load']}).",
                style="yellow",
                highlight=False,
            )
        difference = case.get("difference", 0.0)
        if not difference <= SUSPICIOUS_DIFFERENCE:  # also if it is NaN
            console.print(
                f"{case['tree']} {case['chain']}: the two libraries' parameters differ by "
                f"{difference:.1e} of the largest; they may not compute the same.",
                style="yellow",
                highlight=False,
            )


def _verdict(row: dict[str, Any]) -> Text:
    if row["reached"]:
        return Text("reached", "green")
    return Text("missed~", "yellow") if row["unsettled"] else Text("missed", "bold red")


def _targets(rows: list[dict[str, Any]]) -> Table:
    table = Table(title="Targets", title_justify="left")
    for name in ("case", "target", "measured", ""):
        table.add_column(name)
    for row in rows:
        table.add_row(row["case"], row["target"], row["measured"], _verdict(row))
    return table
