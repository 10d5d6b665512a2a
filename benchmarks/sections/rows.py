"""Section `rows`: row-sparse and dense steps on embedding tables of several sizes."""

import gc
import itertools
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table

import gradxform as gx
from benchmarks.options import Job, Options, Results, Section
from benchmarks.subjects.cases import OURS, THEIRS
from benchmarks.tables.figures import show_value
from benchmarks.timing import machine
from benchmarks.timing.measure import Budget, interleave, summarize
from benchmarks.timing.staging import static_costs

WIDTH, IDS, QUICK_IDS, HIDDEN = 64, 4096, 64, 16
SIZES = (1_000, 4_000, 16_000, 64_000, 100_000, 1_000_000, 4_000_000)
QUICK_SIZES = (1_000, 16_000)
# Larger dense steps would take much memory and time, and show nothing new.
LARGEST_DENSE = 1_000_000
# From this size on, a row-sparse step should not depend on the size of the table.
FLAT_FROM = 100_000
# Enough batches for the rows of one to have left every cache before it is used again.
BATCHES = 64
SECONDS, LINGER = 20.0, 4.0
# Seconds in a turn. After a dense step on a million rows, row-sparse steps need about 16 steps, or
# 30 ms, to become as fast as they are by themselves.
TURN, QUICK_TURN = 0.3, 0.01


def loss(params: Any, ids: Any) -> Any:
    """Return a loss of looked-up rows after a small layer."""
    hidden = jnp.tanh(params["table"][ids] @ params["kernel"])
    return jnp.mean(hidden**2)


def make_steps(n: int) -> dict[str, dict[str, Any]]:
    """Return for each library a training step, and its update alone, on a table of n rows.

    They are called as `step(params, state, ids)` and `update(params, state, ids, values)`.
    """
    ours, theirs = gx.adam(1e-3), optax.adam(1e-3)
    sparse_grad = gx.sparse.value_and_grad(loss, where=gx.path_matches("table"))

    def ours_step(params: Any, state: Any, ids: Any) -> tuple[Any, Any]:
        _, grads = sparse_grad(params, ids)
        updates, state = ours.update(grads, state, params)
        return gx.apply_updates(params, updates), state

    def theirs_step(params: Any, state: Any, ids: Any) -> tuple[Any, Any]:
        grads = jax.grad(loss)(params, ids)
        updates, state = theirs.update(grads, state, params)
        return optax.apply_updates(params, updates), state

    def ours_update(params: Any, state: Any, ids: Any, values: Any) -> tuple[Any, Any]:
        grads = {"table": gx.RowSparse(ids, values, n), "kernel": params["kernel"]}
        updates, state = ours.update(grads, state, params)
        return gx.apply_updates(params, updates), state

    def theirs_update(params: Any, state: Any, ids: Any, values: Any) -> tuple[Any, Any]:
        dense = jnp.zeros((n, WIDTH)).at[ids].add(values)
        grads = {"table": dense, "kernel": params["kernel"]}
        updates, state = theirs.update(grads, state, params)
        return optax.apply_updates(params, updates), state

    return {
        OURS: {"step": ours_step, "update": ours_update, "init": ours.init},
        THEIRS: {"step": theirs_step, "update": theirs_update, "init": theirs.init},
    }


def run(options: Options, job: Job) -> Results:
    """Measure tables of every size."""
    results: Results = {
        "section": "rows",
        "machine": machine.describe(),
        "options": options.as_json(),
        "ids": QUICK_IDS if options.quick else IDS,
        "cases": [],
    }
    sizes = QUICK_SIZES if options.quick else SIZES
    job.plan(len(sizes) + 1)
    for n in sizes:
        job.begin(f"{n} rows")
        results["cases"].append(_case(n, options))
        job.save(results)
        job.advance()
    job.begin("row-sparse steps of all sizes in turns")
    results["alone"] = _alone([n for n in sizes if n >= FLAT_FROM] or sizes, options)
    results["summary"] = _summary(results)
    job.save(results)
    job.advance()
    return results


def _case(n: int, options: Options) -> dict[str, Any]:
    steps = make_steps(n)
    if n > LARGEST_DENSE:
        del steps[THEIRS]
    case: dict[str, Any] = {
        "rows": n,
        "load": machine.load(),
        "table_bytes": 4 * n * WIDTH,
        "temp": {},
        "figures": {},
    }
    for figure in ("step", "update"):
        calls = {}
        for lib, functions in steps.items():
            calls[lib], temp = _prepare(functions, figure, n, options)
            if figure == "step":
                case["temp"][lib] = temp
        samples = _in_turns(calls, options)
        if THEIRS in samples:
            summary = summarize(samples, THEIRS, OURS)
        else:
            summary = {"samples": samples, "median": {OURS: float(np.median(samples[OURS]))}}
        case["figures"][figure] = {"unit": "s", **summary}
        del calls
        gc.collect()
    return case


def _alone(sizes: Sequence[int], options: Options) -> dict[str, Any]:
    """Time row-sparse steps of several sizes in turns, without dense steps that evict caches."""
    calls = {str(n): _prepare(make_steps(n)[OURS], "step", n, options)[0] for n in sizes}
    samples = _in_turns(calls, options)
    return {
        "unit": "s",
        "samples": samples,
        "median": {n: float(np.median(values)) for n, values in samples.items()},
    }


def _in_turns(calls: dict[str, Any], options: Options) -> dict[str, list[float]]:
    linger = 0 if options.quick else LINGER
    budget = Budget(options.repeats, min(5, options.repeats), SECONDS, linger)
    return interleave(calls, budget, seconds=QUICK_TURN if options.quick else TURN)


def _prepare(functions: dict[str, Any], figure: str, n: int, options: Options) -> tuple[Any, float]:
    """Return a call of a compiled step or update on n rows, and its temporary bytes."""
    rng = np.random.default_rng(options.seed)
    ids = QUICK_IDS if options.quick else IDS
    batches = [jnp.asarray(rng.integers(0, n, ids), jnp.int32) for _ in range(BATCHES)]
    values = jnp.asarray(rng.normal(size=(ids, WIDTH)), jnp.float32)
    rest = (values,) if figure == "update" else ()
    params = {
        "table": jax.random.normal(jax.random.key(options.seed), (n, WIDTH)),
        "kernel": jnp.ones((WIDTH, HIDDEN)) / WIDTH,
    }
    state = jax.tree.map(jnp.copy, functions["init"](params))
    jitted = jax.jit(functions[figure], donate_argnums=(0, 1))
    compiled = jitted.lower(params, state, batches[0], *rest).compile()
    temp = static_costs(compiled).get("temp", 0.0)
    return _stepper(compiled, params, state, batches, rest), temp


def _stepper(
    compiled: Any, params: Any, state: Any, batches: list[Any], rest: tuple[Any, ...]
) -> Callable[[], Any]:
    carry, all_ids = (params, state), itertools.cycle(batches)

    def step() -> Any:
        nonlocal carry
        carry = compiled(*carry, next(all_ids), *rest)
        return carry

    return step


def _summary(results: Results) -> dict[str, Any]:
    """Return how flat the row-sparse step is, and from which size on it is faster."""
    medians = {case["rows"]: case["figures"]["step"]["median"] for case in results["cases"]}
    alone = results["alone"]["median"].values()
    both = sorted((n, m[THEIRS] / m[OURS]) for n, m in medians.items() if THEIRS in m)
    return {"flat": max(alone) / min(alone), "break_even_rows": _crossing(both)}


def _crossing(speedups: list[tuple[int, float]]) -> float | None:
    """Return the number of rows with a speedup of 1, by interpolation between logarithms."""
    for (a, x), (b, y) in itertools.pairwise(speedups):
        if x < 1 <= y:
            part = -math.log(x) / (math.log(y) - math.log(x))
            return a * (b / a) ** part
    return None


# ----------------------------------------------------------------------------------- results


def show(results: Results, console: Console) -> None:
    """Print one row per size, then a summary."""
    console.print(machine.one_line(results["machine"]), highlight=False)
    ids = results["ids"]
    title = f"Adam on a table of width {WIDTH}, {ids} ids a step: row-sparse, and Optax's dense"
    table = Table(title=title, title_justify="left")
    for name in ("rows", "step", "dense", "faster", "update", "dense", "faster", "temp of dense"):
        table.add_column(name, justify="right", no_wrap=True)
    for case in results["cases"]:
        cells = [f"{case['rows']:,}"]
        for figure in ("step", "update"):
            summary = case["figures"][figure]
            theirs = summary["median"].get(THEIRS)
            cells.append(show_value(summary["median"][OURS], "s"))
            cells.append(show_value(theirs, "s") if theirs else "")
            cells.append(f"{1 / summary['ratio']:.1f}x" if theirs else "")
        temp = case["temp"]
        share = f"{temp[OURS] / temp[THEIRS]:.1%}" if temp.get(THEIRS) else ""
        table.add_row(*cells, share)
    console.print(table)
    for case in results["cases"]:
        if case["rows"] >= FLAT_FROM and case["temp"][OURS] >= case["table_bytes"]:
            console.print(f"{case['rows']} rows: a copy of the table!", style="bold red")
    summary = results["summary"]
    alone = results["alone"]["median"]
    console.print(
        "Row-sparse steps by themselves, sizes in turns: "
        + ", ".join(f"{int(n):,} rows {show_value(t, 's')}" for n, t in alone.items())
        + f"; slowest over fastest {summary['flat']:.2f}.",
        highlight=False,
    )
    if summary["break_even_rows"]:
        console.print(
            f"Row-sparse is faster from {summary['break_even_rows']:,.0f} rows on "
            f"({summary['break_even_rows'] / results['ids']:.1f} rows for each id).",
            highlight=False,
        )


def draw(results: Results, path: Path) -> None:
    """Write the time of a step against the size of the table."""
    figure = Figure(figsize=(6.5, 4.2), layout="constrained")
    FigureCanvasAgg(figure)  # no window, and pyplot's global state is left alone
    axes = figure.subplots()
    for lib, label, color in ((OURS, "row-sparse", "#2a6fbb"), (THEIRS, "dense", "#d9622b")):
        points = [
            (case["rows"], 1e3 * case["figures"]["step"]["median"][lib])
            for case in results["cases"]
            if lib in case["figures"]["step"]["median"]
        ]
        if points:
            axes.plot(*zip(*points, strict=True), "o-", color=color, label=label)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("rows of the table")
    axes.set_ylabel("milliseconds a step, median")
    axes.grid(color="#e3e5e8", linewidth=0.7)
    axes.legend(frameon=False)
    axes.set_title(
        f"Adam, {results['ids']} ids a step\n{machine.one_line(results['machine'])}", fontsize=9
    )
    figure.savefig(path, dpi=120)


SECTION = Section(
    about="row-sparse Adam on a table of embeddings beside the dense one, over sizes",
    run=run,
    show=show,
    draw=draw,
)
