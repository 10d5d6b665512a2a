"""The results of the section `race`: a file for each optimizer, and what the files say together.

Of every workload a file has all tries. What readers see is made of them here: the median of the
steps over seeds, and the performance profiles of AlgoPerf (Dahl et al., Benchmarking Neural Network
Training Algorithms, 2023, section 4.3).
"""

import json
import math
import statistics
from pathlib import Path
from typing import Any, NamedTuple

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from benchmarks.options import Results

DATA = Path(__file__).resolve().parents[2] / "docs" / "site" / "data"
FOLDER = DATA / "race"
TARGETS = DATA / "race_targets.json"
THEIRS = "optax."  # what names of the control begin with

# A profile goes up to this multiple of the best, and a score is the area below it.
MOST = 4.0
DRAWN = 8  # the number of profiles in a picture


class Cell(NamedTuple):
    """What one optimizer came to on one workload.

    Attributes:
      steps: to the target, at the best rate, the median of the seeds; None if fewer than half of
        them reach it.
      seconds: of these steps, without compiling; None if they were not measured.
      seeds: the share of seeds that reach the target at the best rate.
      rates: how many of the learning rates reach it, mean over seeds; None without rates.
      rate: the best learning rate.
      state: bytes of the state.
      note: what is particular: the kind of gradients, or why it did not run.
    """

    steps: float | None = None
    seconds: float | None = None
    seeds: float = 0.0
    rates: float | None = None
    rate: float | None = None
    state: int | None = None
    note: str = ""


class Line(NamedTuple):
    """What one optimizer came to."""

    name: str
    cells: dict[str, Cell]
    factors: dict[str, float]  # steps, of the fewest steps of all; inf without the target
    slower: dict[str, float] | None  # seconds, of the fewest; None where not all are measured

    @property
    def score(self) -> float:
        """The area below the profile in steps, in [0, 1]."""
        return _score(self.factors)

    @property
    def score_in_seconds(self) -> float | None:
        """The area below the profile in seconds."""
        return None if self.slower is None else _score(self.slower)


# ------------------------------------------------------------------------------------- the files


def read(folder: Path = FOLDER) -> list[Results]:
    """Return the results of every optimizer in a folder, by name."""
    return [json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.json"))]


def write(results: Results, folder: Path) -> None:
    """Write the results of an optimizer, a workload a line; an interruption leaves the old file."""
    head = {key: value for key, value in results.items() if key != "workloads"}
    lines = [f" {json.dumps(key)}: {json.dumps(value)}" for key, value in head.items()]
    rows = results["workloads"].items()
    inner = ",\n".join(f"  {json.dumps(name)}: {json.dumps(row)}" for name, row in rows)
    lines.append(f' "workloads": {{\n{inner}\n }}')
    path = folder / f"{results['name']}.json"
    part = path.with_suffix(".part")
    part.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
    part.replace(path)


# -------------------------------------------------------------------------------------- the lines


def cell(row: Results) -> Cell:
    """Return what the tries on a workload came to."""
    if "tries" not in row:
        return Cell(note=row.get("left out") or f"failed: {row['error']}")
    best, tries = row["rate"], row["tries"]
    at_best = [t["steps"][t["rates"].index(best)] if t["rates"] else t["steps"][0] for t in tries]
    reached = [n for n in at_best if n is not None]
    median = statistics.median(math.inf if n is None else n for n in at_best)
    whole = [t for t in tries if len(t["rates"]) == len(row["of"]["rates"])]
    rates = statistics.mean(sum(n is not None for n in t["steps"]) for t in whole)
    return Cell(
        steps=None if math.isinf(median) else median,
        seconds=row.get("seconds"),
        seeds=len(reached) / len(at_best),
        rates=rates if row["of"]["rates"] else None,
        rate=best,
        state=row["state"],
        note="dense gradients" if row.get("gradients") == "dense" else "",
    )


def lines(files: list[Results], control: bool = False) -> list[Line]:
    """Return the lines of optimizers, the highest score first.

    Args:
      files: as `read` returns them.
      control: whether the lines of Optax's own, instead of ours; factors are of the best of ours.
    """
    names = list(dict.fromkeys(name for file in files for name in file["workloads"]))
    cells = {file["name"]: {n: cell(r) for n, r in file["workloads"].items()} for file in files}
    ours = {name: found for name, found in cells.items() if not name.startswith(THEIRS)}

    def fewest(field: str, workload: str) -> float:
        found = (getattr(c[workload], field) for c in ours.values() if workload in c)
        return min((x for x in found if x is not None), default=math.inf)

    best = {field: {n: fewest(field, n) for n in names} for field in ("steps", "seconds")}

    def factors(name: str, field: str) -> dict[str, float]:
        values = {n: getattr(cells[name].get(n, Cell()), field) for n in names}
        return {n: math.inf if x is None else x / best[field][n] for n, x in values.items()}

    timed = all(c.seconds is not None for found in ours.values() for c in found.values() if c.steps)
    shown = [name for name in cells if name.startswith(THEIRS) == control]
    found = [
        Line(name, cells[name], factors(name, "steps"), factors(name, "seconds") if timed else None)
        for name in shown
    ]
    return sorted(found, key=lambda line: (-line.score, line.name))


def _score(factors: dict[str, float]) -> float:
    areas = [max(0.0, (MOST - x) / (MOST - 1)) for x in factors.values()]
    return statistics.mean(areas) if areas else 0.0


# ------------------------------------------------------------------------------------ the picture


def profile(files: list[Results]) -> Figure:
    """Return the profiles of the optimizers with the highest scores, and of AdamW.

    A profile is, of every factor, the share of workloads on which the optimizer needs at most that
    factor of the steps of the best.
    """
    found = lines(files)
    timed = bool(found) and found[0].slower is not None
    figure = Figure(figsize=(7.5, 3.4), layout="constrained")
    FigureCanvasAgg(figure)  # no window, and pyplot's global state is left alone
    axes = figure.subplots(1, 1 + timed, sharey=True, squeeze=False)[0]
    _draw(axes[0], {line.name: line.factors for line in found}, "steps")
    if timed:
        _draw(axes[1], {line.name: line.slower or {} for line in found}, "seconds")
    axes[0].set_ylabel("share of workloads")
    return figure


def _draw(axes: Any, factors: dict[str, dict[str, float]], what: str) -> None:
    ranked = sorted(factors, key=lambda name: (-_score(factors[name]), name))
    shown = ranked[:DRAWN]
    if "adamw" in ranked and "adamw" not in shown:
        shown.append("adamw")
    for i, name in enumerate(shown):
        values = sorted(factors[name].values())
        along = [1.0, *(x for x in values if x <= MOST), MOST]
        up = [sum(v <= x for v in values) / len(values) for x in along]
        # Lines that meet stay apart.
        moved = [y + 0.004 * (i - len(shown) / 2) for y in up]
        style = {"color": "black", "linestyle": "--"} if name == "adamw" else {}
        axes.step(along, moved, where="post", label=name, **style)
    axes.set(xlim=(1, MOST), ylim=(-0.03, 1.03), xlabel=f"{what}, of the best")
    axes.grid(color="#e3e5e8", linewidth=0.7)
    if shown:
        axes.legend(fontsize=8)
