"""Section `curvature`: gradients that Newton-CG needs, beside L-BFGS, in float64.

Counted, not timed: a product with a matrix is two gradients, the value after a step one.
"""

import math
from pathlib import Path

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table

from benchmarks.options import Job, Options, Results, Section
from benchmarks.subjects.regressions import all_regressions, of_lbfgs, of_newton_cg
from benchmarks.subjects.searches import evaluations_until
from benchmarks.timing import machine

METHODS = ("lbfgs_steps", "newton_cg, Gauss-Newton", "newton_cg, Hessian")
MOST = 20_000  # gradients of L-BFGS
UPDATES = 250  # of Newton-CG
SHARES = (1e-4, 1e-8)
QUICK = ("network on a wave, start 1",)


def run(options: Options, job: Job) -> Results:
    """Count on every problem."""
    problems = all_regressions()
    if options.quick:
        problems = {name: problems[name] for name in QUICK}
    results = {
        "section": "curvature",
        "machine": machine.describe(),
        "options": options.as_json(),
        "cases": [],
    }
    job.plan(len(problems))
    most, updates = (400, 40) if options.quick else (MOST, UPDATES)
    for name, problem in problems.items():
        job.begin(name)
        curves = dict(
            zip(
                METHODS,
                (
                    of_lbfgs(problem, most),
                    of_newton_cg(problem, updates, "gauss_newton"),
                    of_newton_cg(problem, updates, "hessian"),
                ),
                strict=True,
            )
        )
        # Starts lead to different minima: a run counts until it is near its own.
        case = {"problem": name, "lowest": {}, "gradients": {}}
        for method, curve in curves.items():
            lowest = float(np.nanmin(curve[1]))
            best = lowest if problem.best is None else problem.best
            case["lowest"][method] = lowest
            case["gradients"][method] = [evaluations_until(curve, best, s) for s in SHARES]
        results["cases"].append(case)
        job.save(results)
        job.advance()
    return results


def show(results: Results, console: Console) -> None:
    """Print a row for every problem and share of the first gap."""
    table = Table(title="gradients until f - f* is a share of f0 - f*", title_justify="left")
    for column in ("problem", "share"):
        table.add_column(column)
    for method in METHODS:
        table.add_column(method, justify="right")
    for case in results["cases"]:
        for i, share in enumerate(SHARES):
            cells = [str(case["gradients"][k][i] or "-") for k in METHODS]
            table.add_row(case["problem"], f"{share:.0e}", *cells)
    console.print(table)


def draw(results: Results, path: Path) -> None:
    """Write a bar per problem and matrix: gradients to 1e-8, of those of L-BFGS."""
    cases = results["cases"]
    figure = Figure(figsize=(6.5, 0.4 * len(cases) + 1.3), layout="constrained")
    FigureCanvasAgg(figure)  # no window, and pyplot's global state is left alone
    axes = figure.subplots()
    for i, method in enumerate(METHODS[1:]):
        counts = [
            [case["gradients"][k][1] or math.nan for k in (method, METHODS[0])] for case in cases
        ]
        ratios = [a / b for a, b in counts]
        axes.barh(np.arange(len(cases)) + 0.35 * i, ratios, height=0.35, label=method)
    axes.set_yticks(np.arange(len(cases)) + 0.175, [case["problem"] for case in cases])
    axes.axvline(1, color="black", linewidth=0.8)
    axes.invert_yaxis()
    axes.legend()
    axes.set_xlabel("gradients until the gap is 1e-8 of the first, of those of lbfgs_steps")
    figure.savefig(path, dpi=120)


SECTION = Section(
    about="gradients that Newton-CG needs on regressions with small networks, beside L-BFGS",
    run=run,
    show=show,
    draw=draw,
)
