"""Measuring one transform beside another, pair by pair: the cases, their table, their picture."""

import gc
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table

from benchmarks.options import Job, Options, Results
from benchmarks.subjects.cases import LIBRARIES, OURS, THEIRS, make_tree
from benchmarks.subjects.pairs import Pair
from benchmarks.tables import plot, report
from benchmarks.tables.figures import FIGURES, title
from benchmarks.timing import machine
from benchmarks.timing.measure import Budget, summarize
from benchmarks.timing.staging import orders, stage, static_costs
from benchmarks.timing.stepping import size, time_steps

MEASURED = ("step", "temp", "trace+lower")
TREES, QUICK_TREES = ("256-mixed",), ("8-mixed",)
# Time limits that keep the whole default run to about twenty minutes on two cores.
STAGE_SECONDS, STEP_SECONDS = 6.0, 6.0


def run(section: str, pairs: Mapping[str, Pair], options: Options, job: Job) -> Results:
    """Measure every pair on every tree."""
    results: Results = {
        "section": section,
        "machine": machine.describe(),
        "options": options.as_json(),
        "cases": [],
    }
    trees = options.trees or (QUICK_TREES if options.quick else TREES)
    job.plan(len(trees) * len(pairs))
    for tree in trees:
        params, grads = make_tree(tree, options.seed)
        for name, pair in pairs.items():
            job.begin(f"{tree} {name}")
            results["cases"].append(_case(tree, name, pair, params, grads, options))
            job.save(results)
            job.advance()
        del params, grads  # before the next tree is made
    return results


def _case(
    tree: str, name: str, pair: Pair, params: Any, grads: Any, options: Options
) -> dict[str, Any]:
    case: dict[str, Any] = {
        "tree": tree,
        "chain": name,
        "load": machine.load(),
        "leaves": len(jax.tree.leaves(params)),
        "entries": sum(x.size for x in jax.tree.leaves(params)),
        "param_bytes": size(params),
        "figures": {},
    }
    if pair.examples is not None:
        n = pair.examples
        grads = jax.tree.map(lambda g: jnp.broadcast_to(g, (n, *g.shape)) / n, grads)
    goal = min(5, options.repeats)
    tracing = Budget(goal, min(2, goal), STAGE_SECONDS)
    linger = 0.0 if options.quick else 0.5
    stepping = Budget(options.repeats, min(5, options.repeats), STEP_SECONDS, linger)
    compiling = Budget(orders(options), orders(options), 0.0)
    wanted = [figure for figure in MEASURED if figure in options.only]
    if "trace+lower" not in wanted:
        tracing = Budget(0, 0, 0.0)
    if wanted in ([], ["trace+lower"]):
        compiling = Budget(0, 0, 0.0)
    try:
        txs = {lib: pair.make(module) for lib, module in LIBRARIES.items()}
        staged = stage(pair.make, params, grads, tracing, compiling, pair.extra)
        samples = staged.samples
        for lib, compiled in staged.last.items():
            samples.setdefault("temp", {})[lib] = [static_costs(compiled).get("temp", 0.0)]
        if "step" in wanted:
            samples["step"], difference = time_steps(staged.programs, txs, params, grads, stepping)
            if pair.same:
                case["difference"] = difference
    except Exception as error:  # do not lose the other pairs if one fails
        case["error"] = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
        samples = {}
    case["figures"] = {
        figure: {"unit": FIGURES[figure].unit, **summarize(samples[figure], THEIRS, OURS)}
        for figure in wanted
        if all(samples.get(figure, {}).get(lib) for lib in LIBRARIES)
    }
    jax.clear_caches()
    gc.collect()
    return case


def show(results: Results, console: Console, subject: str, explanation: str) -> None:
    """Print one table per tree, a row per pair; `subject` is the title of their names."""
    console.print(machine.one_line(results["machine"]), highlight=False)
    console.print(f"{explanation}\n")
    for tree in dict.fromkeys(case["tree"] for case in results["cases"]):
        cases = [case for case in results["cases"] if case["tree"] == tree]
        names = [figure for figure in MEASURED if any(figure in c["figures"] for c in cases)]
        table = Table(title=title(cases[0]), title_justify="left")
        table.add_column(subject, no_wrap=True)
        for name in names:
            table.add_column(name, justify="right", no_wrap=True)
        for case in cases:
            cells = [report.cell(case["figures"].get(name), " ") for name in names]
            table.add_row(case["chain"], *cells)
        console.print(table)
    for case in results["cases"]:
        if "error" in case:
            console.print(f"{case['chain']}: {case['error']}", style="yellow", highlight=False)
    report.warn(results["cases"], console)


def draw(results: Results, path: Path, headline: str, label: str) -> None:
    """Write one panel per figure, one bar per pair; `label` is that of the axis of ratios."""
    cases = [case for case in results["cases"] if case["figures"]]
    names = [figure for figure in MEASURED if any(figure in c["figures"] for c in cases)]
    labels = [case["chain"] for case in cases]
    if len({case["tree"] for case in cases}) > 1:
        labels = [f"{case['tree']} {case['chain']}" for case in cases]
    size_of = (3.2 * max(1, len(names)) + 2.0, 0.24 * len(cases) + 1.8)
    figure = Figure(figsize=size_of, layout="constrained")
    FigureCanvasAgg(figure)  # no window, and pyplot's global state is left alone
    panels = figure.subplots(1, max(1, len(names)), sharey=True, squeeze=False)[0]
    for panel, name in zip(panels, names, strict=False):
        plot.panel(panel, labels, [case["figures"].get(name) for case in cases])
        panel.set_title(name, fontsize=10, loc="left")
        panel.set_xlabel(label)
    figure.suptitle(f"{headline}\n{machine.one_line(results['machine'])}", fontsize=10)
    figure.savefig(path, dpi=120)
