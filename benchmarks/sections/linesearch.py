"""Section `linesearch`: evaluations that methods with a line search need, beside SciPy's.

They are counted, the same on every machine up to roundings. On four problems, of which the loss is
cheap on three, the time is measured, too: that is not the number of evaluations times that of one.
"""

import math
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table

import gradxform as gx
from benchmarks.options import Job, Options, Results, Section
from benchmarks.subjects.problems import all_problems, rosenbrock
from benchmarks.subjects.searches import (
    evaluations_until,
    optaxs,
    ours,
    scipys,
    updates_until,
)
from benchmarks.timing import machine, searching

METHODS = {"SciPy, float64": scipys, "lbfgs_steps": ours, "Optax's lbfgs": optaxs}
# The best value is that of a long run of SciPy's; the others stop earlier.
MOST = {"SciPy, float64": 3000, "lbfgs_steps": 600, "Optax's lbfgs": 400}
QUICK = ("Beale", "Himmelblau")
SCIPY, OURS, OPTAX = METHODS
STARTS = 64
TIMED = ("Beale", "Rosenbrock, 100", "logistic regression", "softmax regression")


def run(options: Options, job: Job) -> Results:
    """Count on every problem."""
    problems = all_problems()
    if options.quick:
        problems = {name: problems[name] for name in QUICK}
    results = {
        "section": "linesearch",
        "machine": machine.describe(),
        "options": options.as_json(),
        "cases": [],
    }
    job.plan(len(problems) + 1)
    for name, problem in problems.items():
        job.begin(name)
        curves = {method: make(problem, MOST[method]) for method, make in METHODS.items()}
        best = float(curves[SCIPY][1].min())
        first = curves[SCIPY][1][0] - best
        case = {
            "problem": name,
            "best": best,
            "evaluations": {k: evaluations_until(v, best) for k, v in curves.items()},
            "gap": {k: float(v[1].min() - best) / first for k, v in curves.items()},
        }
        updates = {k: updates_until(curves[k], best) for k in (OURS, OPTAX)}
        if name in TIMED and None not in updates.values():
            rounds = max(1, options.repeats // 5)
            case["times"] = searching.times(
                problem, {k: n or 0 for k, n in updates.items()}, rounds
            )
        results["cases"].append(case)
        job.save(results)
        job.advance()
    job.begin("under vmap")
    results["vmap"] = under_vmap()
    job.save(results)
    job.advance()
    return results


def under_vmap() -> dict[str, int]:
    """Return how often a batch of starts is evaluated until the last one ends.

    The starts are uniform in [-2, 2]^2. A run ends at a gradient of length 1e-5, or where roundings
    do not let it become as short.
    """
    starts = jnp.asarray(np.random.default_rng(0).uniform(-2, 2, (STARTS, 2)), jnp.float32)
    counts = {}
    for name, tx in (("lbfgs_steps", gx.lbfgs_steps()), ("lbfgs", gx.lbfgs())):
        solve = jax.jit(jax.vmap(lambda x, tx=tx: gx.minimize(rosenbrock, x, tx, 1e-5)))
        solved = solve(starts)
        # A search inside an update waits for the slowest: these runs are a lower bound for it.
        counts[name] = int(solved.evaluations.max())
        counts[f"{name}, not minimized"] = int(jnp.sum(~(solved.value <= 1e-9)))
    return counts


def mean_ratio(cases: list[dict[str, Any]], method: str) -> float | None:
    """Return the geometric mean of evaluations over SciPy's, if all problems are reached."""
    pairs = [(case["evaluations"][method], case["evaluations"][SCIPY]) for case in cases]
    if any(a is None or b is None for a, b in pairs):
        return None
    return math.exp(sum(math.log(a / b) for a, b in pairs) / len(pairs))


def show(results: Results, console: Console) -> None:
    """Print a row for every problem, then the figures of all."""
    title = "evaluations until f - f* is 1e-6 of f0 - f*"
    table = Table(title=title, title_justify="left")
    table.add_column("problem")
    for method in METHODS:
        table.add_column(method, justify="right")
    for case in results["cases"]:
        counts = case["evaluations"]
        table.add_row(case["problem"], *(str(counts[k] or "-") for k in METHODS))
    means = [mean_ratio(results["cases"], k) for k in METHODS]
    cells = ["-" if mean is None else f"{mean:.3f}" for mean in means]
    table.add_row("geometric mean, of SciPy's", *cells)
    console.print(table)
    for case in results["cases"]:
        if case["problem"] == "Rosenbrock, 100":
            gap = f"{case['gap'][OURS]:.1e} (Optax {case['gap'][OPTAX]:.1e})"
            console.print(f"Rosenbrock, 100, {MOST[OURS]} evaluations: best gap {gap}")
    table = Table(title=f"of {OPTAX}: the time until then, and to compile", title_justify="left")
    table.add_column("problem")
    for method in (searching.OURS, searching.SAME):
        table.add_column(method, justify="right")
        table.add_column("compile", justify="right")
    for case in results["cases"]:
        found = case.get("times", {}).values()
        if found:
            cells = [f"{x[what]['ratio']:.2f}" for x in found for what in ("time", "compile")]
            table.add_row(case["problem"], *cells)
    console.print(table)
    if "vmap" in results:
        counts = results["vmap"]
        console.print(
            f"{STARTS} Rosenbrocks under vmap, evaluations of the batch: "
            f"{counts['lbfgs_steps']} (lbfgs at least {counts['lbfgs']})",
            highlight=False,
        )


def draw(results: Results, path: Path) -> None:
    """Write a bar per problem and method: evaluations, of SciPy's."""
    cases = results["cases"]
    figure = Figure(figsize=(6.5, 0.4 * len(cases) + 1.3), layout="constrained")
    FigureCanvasAgg(figure)  # no window, and pyplot's global state is left alone
    axes = figure.subplots()
    for i, method in enumerate((OURS, OPTAX)):
        ratios = [
            (case["evaluations"][method] or math.nan) / (case["evaluations"][SCIPY] or math.nan)
            for case in cases
        ]
        axes.barh(np.arange(len(cases)) + 0.35 * i, ratios, height=0.35, label=method)
    axes.set_yticks(np.arange(len(cases)) + 0.175, [case["problem"] for case in cases])
    axes.axvline(1, color="black", linewidth=0.8)
    axes.invert_yaxis()
    axes.legend()
    axes.set_xlabel("evaluations in float32, of those of SciPy's L-BFGS-B in float64")
    figure.savefig(path, dpi=120)


SECTION = Section(
    about="evaluations of methods with a line search on 14 problems, times on four, beside Optax's",
    run=run,
    show=show,
    draw=draw,
)
