"""The results of the section `race`: a file for each optimizer, and what the files say together.

Of every workload a file has all tries. What readers see is made of them here: the median of the
steps over seeds, the performance profiles of AlgoPerf (Dahl et al., Benchmarking Neural Network
Training Algorithms, 2023, section 4.3), and how sure both are: the seeds are drawn again and again
with replacement (the bootstrap of Efron, 1979), and everything is computed of each draw.
"""

import functools
import json
import math
import statistics
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks.options import Results

DATA = Path(__file__).resolve().parents[2] / "docs" / "site" / "data"
FOLDER = DATA / "race"
TARGETS = DATA / "race_targets.json"
THEIRS = "optax."  # what names of the control begin with

# A profile goes up to this multiple of the best, and a score is the area below it.
MOST = 4.0

DRAWS = 2000  # of seeds; more do not move the second digit of an interval's ends
SURE = 0.95  # the share of draws in an interval; one in which more of them agree is sure


class Cell(NamedTuple):
    """What one optimizer came to on one workload.

    Attributes:
      steps: to the target, at the best rate, the median of the seeds; None if fewer than half of
        them reach it.
      seconds: of these steps, without compiling; None if they were not measured.
      of_seeds: the steps of each scored seed; infinite where it misses the target.
      rates: how many of the learning rates reach it, mean over tuning seeds; None without rates.
      rate: the best learning rate.
      state: bytes of the state.
      note: what is particular: the kind of gradients, or why it did not run.
    """

    steps: float | None = None
    seconds: float | None = None
    of_seeds: tuple[float, ...] = ()
    rates: float | None = None
    rate: float | None = None
    state: int | None = None
    note: str = ""

    @property
    def seeds(self) -> float:
        """The share of seeds that reach the target at the best rate."""
        return sum(map(math.isfinite, self.of_seeds)) / max(1, len(self.of_seeds))


class Line(NamedTuple):
    """What one optimizer came to.

    Attributes:
      name: its name.
      cells: what it came to on each workload.
      factors: steps, of the fewest steps of all; infinite without the target.
      slower: seconds, of the fewest; None where not all are measured.
      interval: of the score in steps, over the draws of seeds.
      place: 1 more than the number of ours whose score is surely higher; those that the seeds do
        not tell apart may share it.
    """

    name: str
    cells: dict[str, Cell]
    factors: dict[str, float]
    slower: dict[str, float] | None
    interval: tuple[float, float] = (0.0, 0.0)
    place: int = 1

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
    if "scored" not in row:
        return Cell(note=row.get("left out") or f"failed: {row['error']}")
    of_seeds = tuple(math.inf if n is None else n for t in row["scored"] for n in t["steps"])
    median = statistics.median(of_seeds)
    reached = [sum(n is not None for n in t["steps"]) for t in row["tuning"]]
    return Cell(
        steps=None if math.isinf(median) else median,
        seconds=row.get("seconds"),
        of_seeds=of_seeds,
        rates=statistics.mean(reached) if reached else None,
        rate=row["rate"],
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
    scores = _drawn_scores(cells, list(ours), names)
    found = [
        Line(
            name,
            cells[name],
            factors(name, "steps"),
            factors(name, "seconds") if timed else None,
            interval(scores[name]),
            1 + sum(surely_less(scores[name], scores[other]) for other in ours),
        )
        for name in shown
    ]
    return sorted(found, key=lambda line: (-line.score, line.name))


def share(one: Cell, other: Cell) -> tuple[float, tuple[float, float]] | None:
    """Return the steps of one as a share of another's, and the interval; None without either."""
    if one.steps is None or other.steps is None:
        return None
    drawn = _medians(one)
    with np.errstate(invalid="ignore"):  # both may miss the target in a draw
        return one.steps / other.steps, interval(np.nan_to_num(drawn / _medians(other), nan=1.0))


def interval(drawn: np.ndarray) -> tuple[float, float]:
    """Return the ends between which a number is in all draws but a few."""
    low, high = np.quantile(drawn, [(1 - SURE) / 2, (1 + SURE) / 2], method="nearest")
    return float(low), float(high)


def surely_less(drawn: np.ndarray, other: np.ndarray) -> bool:
    """Whether a number is less than another in all draws but a few."""
    return bool(np.mean(drawn < other) > (1 + SURE) / 2)


def digits_of(low: float, high: float) -> int:
    """Return how many digits after the point an interval allows: that of its half, and no more."""
    half = (high - low) / 2
    return 2 if half < 0.05 else 1


def _drawn_scores(
    cells: dict[str, dict[str, Cell]], ours: list[str], workloads: list[str]
) -> dict[str, np.ndarray]:
    """Return the scores of all, of each draw of seeds."""
    found = {name: np.zeros(DRAWS) for name in cells}
    for i, workload in enumerate(workloads):
        medians = {n: _medians(c[workload], i) for n, c in cells.items() if workload in c}
        best = np.min([medians[n] for n in ours if n in medians], axis=0, initial=math.inf)
        for name, drawn in medians.items():
            with np.errstate(invalid="ignore"):  # of a draw in which none reaches the target
                areas = np.nan_to_num((MOST - drawn / best) / (MOST - 1), nan=0.0, neginf=0.0)
            found[name] += np.maximum(0.0, areas) / len(workloads)
    return found


def _medians(found: Cell, workload: int = 0) -> np.ndarray:
    """Return the median steps of each draw of seeds, the same draws for all of a workload."""
    n = len(found.of_seeds)
    if not n:
        return np.full(DRAWS, math.inf)
    return np.median(np.asarray(found.of_seeds)[_draws(n, workload)], axis=1)


@functools.cache
def _draws(seeds: int, workload: int) -> np.ndarray:
    return np.random.default_rng(workload).integers(seeds, size=(DRAWS, seeds))


def _score(factors: dict[str, float]) -> float:
    areas = [max(0.0, (MOST - x) / (MOST - 1)) for x in factors.values()]
    return statistics.mean(areas) if areas else 0.0
