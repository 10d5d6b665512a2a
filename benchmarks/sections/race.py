"""Section `race`: every optimizer of the library on six workloads, to a target of each.

Every optimizer gets the same budget of tuning: eight learning rates around its usual one, on one
seed, defaults otherwise. Five other seeds are scored at the best of them, to a target that comes
from ten more. The results are one file for each optimizer, and a run that was interrupted goes on
where it stopped. The rates never decay, because that would need to know the end.
"""

import json
import math
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from rich.console import Console
from rich.table import Column, Table

from benchmarks.options import Job, Options, Refused, Results, Section
from benchmarks.subjects.entrants import Entrant, entrant, names, rounded
from benchmarks.subjects.workloads.names import WORKLOADS, workload
from benchmarks.subjects.workloads.workload import Start, Workload
from benchmarks.tables import race as results_of
from benchmarks.timing import machine
from benchmarks.timing.racing import Budget, Runs, Try, best_rate

# Three sets of seeds that have nothing in common: a target or a rate that were chosen on the scored
# seeds would be reached on them by luck. `--seed` moves the first two.
SCORED, TUNED = range(5), range(5, 6)
OF_TARGETS = range(1000, 1010)
# A target is what AdamW reaches in this share of the steps, with all these seeds but one: another
# processor, or another seed, may take some steps more and reaches it all the same.
IN_TIME, MISSING = 0.75, 1
# In float32, rounding decides over what is below this share of the first loss.
PRECISION = 1e-6
COMMAND = "python -m benchmarks race"
QUICK = {"steps": 3, "every": 1, "over": 1}


def run(options: Options, job: Job) -> Results:
    """Race the optimizers, or measure the targets."""
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        if options.targets:
            return _targets(options, job)
        return _race(options, job)


def _race(options: Options, job: Job) -> Results:
    # All that is missing is said before the first run.
    chosen = [entrant(name) for name in options.entrants or names()]
    on = options.workloads or tuple(WORKLOADS)
    folder = _folder(options)
    folder.mkdir(parents=True, exist_ok=True)
    targets = _read_targets()
    budgets = {name: _budget(name, options, targets) for name in on}
    job.plan(len(chosen) * len(on))
    results: Results = {
        "section": "race",
        "machine": machine.describe(),
        "options": options.as_json(),
        "cases": results_of.read(folder),
    }
    for racer in chosen:
        file = _resumed(racer, folder)
        for each in on:
            job.begin(f"{racer.name} on {each}")
            row = _row(racer, each, budgets[each], file["workloads"].get(each), options.untimed)
            if row != file["workloads"].get(each):
                file["workloads"][each] = row
                file["machine"] = machine.one_line(machine.describe())
                results_of.write(file, folder)
            job.advance()
        jax.clear_caches()
        results["cases"] = results_of.read(folder)
        job.save(results)
    return results


def _folder(options: Options) -> Path:
    """Return where the files go: a smoke run does not touch what the site shows."""
    return options.out / "race" if options.quick or options.elsewhere else results_of.FOLDER


def _targets_file(options: Options) -> Path:
    """Return where the targets go."""
    return options.out / results_of.TARGETS.name if options.elsewhere else results_of.TARGETS


def _kept(options: Options) -> Path:
    return _targets_file(options) if options.targets else _folder(options)


def _budget(name: str, options: Options, targets: dict[str, Any]) -> Budget:
    """Return what every optimizer gets on a workload.

    Raises:
      Refused: if the target was measured on other data, or with another budget.
    """
    found, made = targets.get(name), workload(name)
    remedy = f"measure it anew: {COMMAND} --targets --workloads {name}"
    if found is None:
        raise Refused(f"{results_of.TARGETS.name} does not have the target of {name}; {remedy}")
    budget = [made.steps, made.every, made.over]
    for what, now in (("data", made.data), ("budget", budget)):
        if found[what] != now:
            raise Refused(
                f"the target of {name} is of another {what} ({found[what]}) than here ({now}): "
                f"{remedy}"
            )
    whole = {"steps": made.steps, "every": made.every, "over": made.over}
    return Budget(
        **(QUICK if options.quick else whole),
        tuning=tuple(options.seed + i for i in TUNED),
        seeds=tuple(options.seed + i for i in (SCORED[:1] if options.quick else SCORED)),
        target=found["target"],
    )


def _resumed(racer: Entrant, folder: Path) -> Results:
    """Return the file of an optimizer so far; a new one if it was another version of it."""
    path = folder / f"{racer.name}.json"
    new = {"name": racer.name, "config": racer.config, "machine": "", "workloads": {}}
    if not path.exists():
        return new
    old = json.loads(path.read_text(encoding="utf-8"))
    return old if old["config"] == racer.config else new


def _row(racer: Entrant, name: str, budget: Budget, old: Results | None, untimed: bool) -> Results:
    """Return the results of an optimizer on a workload, with what is there already."""
    made = workload(name)
    of = _of(racer, made, budget)
    if racer.same_examples and not made.same_examples:
        return {"of": of, "left out": "compares losses of the same examples"}
    if not racer.takes_rows and made.tables:
        return {"of": of, "left out": "does not take row-sparse gradients"}
    row = old if old is not None and old["of"] == of and "scored" in old else None
    try:
        runs = Runs(racer, made, budget)
        if row is None:
            row = {"of": of} | _tried(runs)
        if "seconds" not in row and not untimed:
            row = row | _timed(runs, row)  # another dict: the caller compares it with the old one
    except Exception as error:  # an optimizer may raise anything; the others go on
        return {"of": of, "error": f"{type(error).__name__}: {error}".split("\n")[0]}
    return row


def _of(racer: Entrant, made: Workload, budget: Budget) -> Results:
    """Return what results are of: when it changes, they are measured anew."""
    fields = budget._asdict() | {"tuning": list(budget.tuning), "seeds": list(budget.seeds)}
    return {"data": made.data, **fields, "rates": list(racer.rates)}


def _tried(runs: Runs) -> Results:
    began = time.process_time()
    tuned = runs.tuned()
    rate = best_rate(tuned)
    scored = runs.scored(rate)
    tables = bool(runs.workload.tables)
    return {
        "rate": rate,
        "state": runs.state_bytes(runs.start(runs.budget.seeds[0]).params),
        "gradients": ("row-sparse" if runs.sparse else "dense") if tables else "",
        "cpu seconds": round(time.process_time() - began, 1),
        "tuning": [each._asdict() for each in tuned],
        "scored": [each._asdict() for each in scored],
    }


def _timed(runs: Runs, row: Results) -> Results:
    steps = results_of.cell(row).steps
    if steps is None:
        return {"seconds": None}
    seconds, compiling = runs.seconds(row["rate"], int(steps))
    return {"seconds": rounded(seconds), "compile": rounded(compiling)}


# ------------------------------------------------------------------------------------ the targets


def _read_targets() -> dict[str, Any]:
    path = results_of.TARGETS
    return json.loads(path.read_text(encoding="utf-8"))["workloads"] if path.exists() else {}


def _targets(options: Options, job: Job) -> Results:
    """Measure what a tuned AdamW reaches in time, and write it down."""
    on = options.workloads or tuple(WORKLOADS)
    found = _read_targets()
    job.plan(len(on))
    results: Results = {"section": "race", "targets": True}
    for name in on:
        job.begin(f"the target of {name}")
        found[name] = _target(workload(name))
        ordered = {each: found[each] for each in WORKLOADS if each in found}
        content = {
            "command": f"{COMMAND} --targets",
            "machine": machine.one_line(machine.describe()),
            "workloads": ordered,
        }
        path = _targets_file(options)
        part = path.with_suffix(".part")
        part.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
        part.replace(path)
        job.advance()
    results["cases"] = found
    job.save(results)
    return results


def _target(made: Workload) -> dict[str, Any]:
    """Return the target of a workload, and how many of AdamW's seeds reach it."""
    adamw, seeds = entrant("adamw"), tuple(OF_TARGETS)
    steps = math.ceil(IN_TIME * made.steps)
    whole = Budget(made.steps, made.every, made.over, seeds, seeds, 0.0)
    in_time = Runs(adamw, made, whole._replace(steps=steps)).tuned()
    target, rate = _reached(in_time)
    first = max(float(made.total(made.start(seed, 1).params)) for seed in seeds)
    target = _rounded_up(max(target, PRECISION * first))
    moved = made._replace(start=lambda seed, n: _moved(made.start(seed, n)))
    again = Runs(adamw, moved, whole._replace(target=target)).scored(rate)
    return {
        "target": target,
        "rate": rate,
        "reached": sum(low is not None and low <= target for t in in_time for low in _at(t, rate)),
        "reached when moved": sum(t.steps[0] is not None for t in again),
        "seeds": list(seeds),
        "budget": [made.steps, made.every, made.over],
        "data": made.data,
    }


def _rounded_up(x: float) -> float:
    """Return a number to three digits that is not below it, so that who reached it still does."""
    unit = 10.0 ** (math.floor(math.log10(x)) - 2)
    return rounded(math.ceil(x / unit - 1e-6) * unit)  # the quotient is rounded, too


def _reached(tries: list[Try]) -> tuple[float, float]:
    """Return the lowest loss that all seeds but a few reach with one rate, and that rate."""
    worst: dict[float, float] = {}
    for rate in tries[0].rates:
        lows = sorted(math.inf if low is None else low for t in tries for low in _at(t, rate))
        worst[rate] = lows[-1 - MISSING]
    rate = min(worst, key=lambda r: worst[r])
    return worst[rate], rate


def _at(tried: Try, rate: float) -> list[float | None]:
    return [low for r, low in zip(tried.rates, tried.lowest, strict=True) if r == rate]


def _moved(start: Start) -> Start:
    """Return a start whose parameters are one rounding away, as on another processor."""
    return start._replace(params=jax.tree.map(lambda x: jnp.nextafter(x, jnp.inf), start.params))


# ------------------------------------------------------------------------------------- the tables


def show(results: Results, console: Console) -> None:
    """Print a row for each optimizer: its score, and its steps to each target."""
    if results.get("targets"):
        table = Table("workload", "target", "AdamW's rate", title_justify="left")
        for name, found in results["cases"].items():
            table.add_row(name, f"{found['target']:g}", f"{found['rate']:g}")
        console.print(table)
        return
    on = list(dict.fromkeys(n for case in results["cases"] for n in case["workloads"]))
    title = "steps to the target, median of seeds; score: the area below the profile"
    table = Table(
        Column("optimizer", min_width=12), "score", *on, title=title, title_justify="left"
    )
    for control in (False, True):
        for line in results_of.lines(results["cases"], control):
            cells = [line.cells.get(name, results_of.Cell()) for name in on]
            table.add_row(line.name, f"{line.score:.2f}", *map(_steps, cells))
    console.print(table)


def _steps(cell: results_of.Cell) -> str:
    if cell.steps is not None:
        return f"{cell.steps:g}"
    return "failed" if cell.note.startswith("failed") else "-"


SECTION = Section(
    about="every optimizer of the library on six workloads, to a target of each",
    run=run,
    show=show,
    kept=_kept,
)
