"""Section `storage`: a step whose state is stored in fewer bits, beside that in float32."""

import time
from collections.abc import Callable
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
import gradxform.distributed as gd
from benchmarks.options import Job, Options, Results, Section
from benchmarks.subjects.cases import make_tree
from benchmarks.timing import machine
from benchmarks.timing.staging import static_costs

STORAGES: dict[str, Callable[[Any], Any]] = {
    "float32": lambda tx: tx,
    "bfloat16": gx.state_dtype,
    "bfloat16, by chance": lambda tx: gx.state_dtype(tx, stochastic=True, key=0),
    "8 bits": gx.quantize_state,
    "4 bits": lambda tx: gx.quantize_state(tx, 4, 128),
    "4 bits, rank1": lambda tx: gx.quantize_state(tx, 4, 128, "rank1"),
}
RULES: dict[str, Callable[[], Any]] = {
    "adam": lambda: gx.adam(1e-3),
    "adamw": lambda: gx.adamw(1e-3),
    "lion": lambda: gx.lion(1e-4),
    "momentum": lambda: gx.sgd(1e-2, momentum=0.9),
}
# Bytes of state a parameter; temporary memory, in copies of the parameters; the rest of float32's.
COLUMNS = ("bytes", "temp", "step", "trace+lower", "compile")


def wide(seed: int) -> tuple[Any, Any]:
    """Return parameters and gradients of 16 matrices with 512k entries."""
    rng = np.random.default_rng(seed)
    draw = lambda: jnp.asarray(rng.normal(size=(512, 1024)), jnp.float32)  # noqa: E731
    return tuple({f"w{i}": draw() for i in range(16)} for _ in range(2))  # pyright: ignore


def measured(rule: str, tree: str, options: Options) -> list[dict[str, Any]]:
    """Return a row for each storage of the state of a rule; steps are timed in turns."""
    params, grads = wide(options.seed) if tree == "16-wide" else make_tree(tree, options.seed)
    size = gd.hlo.copy_bytes(params)
    rows: list[dict[str, Any]] = []
    runs: dict[str, Any] = {}
    for name, stored in STORAGES.items():
        tx = stored(RULES[rule]())

        def step(params: Any, state: Any, grads: Any, tx: Any = tx) -> Any:
            updates, state = tx.update(grads, state, params)
            # The updates take the place of the gradients, which a training step computes itself.
            return gx.apply_updates(params, updates), state, updates

        state = jax.jit(tx.init)(params)
        start = time.perf_counter()
        lowered = jax.jit(step, donate_argnums=(0, 1, 2)).lower(params, state, grads)
        middle = time.perf_counter()
        compiled = lowered.compile()
        end = time.perf_counter()
        held = sum(x.nbytes for x in jax.tree.leaves(state))
        rows.append(
            {
                "rule": rule,
                "tree": tree,
                "state": name,
                "bytes": 4 * held / size,
                "temp": static_costs(compiled)["temp"] / size,
                "trace+lower": middle - start,
                "compile": end - middle,
            }
        )
        runs[name] = compiled, jax.tree.map(jnp.copy, (params, state, grads))
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(1 if options.quick else max(options.repeats, 10)):
        for name, (compiled, carry) in list(runs.items()):
            start = time.perf_counter()
            carry = jax.block_until_ready(compiled(*carry))
            times[name].append(time.perf_counter() - start)
            runs[name] = compiled, carry
    for row in reversed(rows):
        row["step"] = float(np.median(np.divide(times[row["state"]], times["float32"])))
        for figure in ("trace+lower", "compile"):
            row[figure] /= rows[0][figure]
    return rows


def run(options: Options, job: Job) -> Results:
    """Measure every rule on both trees."""
    rules = ("adam",) if options.quick else tuple(RULES)
    trees = options.trees or (("8-mixed",) if options.quick else ("16-wide", "256-mixed"))
    job.plan(len(rules) * len(trees))
    results: Results = {
        "section": "storage",
        "machine": machine.describe(),
        "options": options.as_json(),
        "cases": [],
    }
    for tree in trees:
        for rule in rules:
            job.begin(f"{rule} on {tree}")
            results["cases"] += measured(rule, tree, options)
            job.advance()
            job.save(results)
    return results


def show(results: Results, console: Console) -> None:
    """Print a row for each rule, tree and storage."""
    title = "bytes of state a parameter; temp in copies of the parameters; the rest of float32's"
    table = Table("rule", "tree", "state", *COLUMNS, title=title, title_justify="left")
    for row in results["cases"]:
        cells = (f"{row[column]:.3g}" for column in COLUMNS)
        table.add_row(row["rule"], row["tree"], row["state"], *cells)
    console.print(table)


def draw(results: Results, path: Path) -> None:
    """Write a bar for each rule and storage: bytes of state a parameter."""
    cases = [case for case in results["cases"] if case["tree"] == results["cases"][0]["tree"]]
    figure = Figure(figsize=(6.5, 0.3 * len(cases) + 1.3), layout="constrained")
    FigureCanvasAgg(figure)  # no window, and pyplot's global state is left alone
    axes = figure.subplots()
    labels = [f"{case['rule']}, {case['state']}" for case in cases]
    axes.barh(labels, [case["bytes"] for case in cases])
    axes.invert_yaxis()
    axes.set_xlabel("bytes of state a parameter")
    figure.savefig(path, dpi=120)


SECTION = Section(
    about="state in fewer bits: bytes, temporary memory and time of a step",
    run=run,
    show=show,
    draw=draw,
)
