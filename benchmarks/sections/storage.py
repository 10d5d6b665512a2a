"""Section `storage`: a step whose state is stored in fewer bits, beside that in float32."""

import importlib.util
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table

import gradxform as gx
from benchmarks.options import Job, Options, Results, Section
from benchmarks.subjects.cases import make_tree
from benchmarks.timing import machine
from benchmarks.timing.staging import static_costs


class Subject(NamedTuple):
    """An optimizer as a step of training uses it.

    Attributes:
      init: returns a state.
      step: returns new parameters and a new state, from parameters, a state and gradients.
    """

    init: Callable[[Any], Any]
    step: Callable[[Any, Any, Any], tuple[Any, Any]]


def ours(tx: Any) -> Subject:
    """Return a transform as a step of training uses it."""

    def step(params: Any, state: Any, grads: Any) -> tuple[Any, Any]:
        updates, state = tx.update(grads, state, params)
        return gx.apply_updates(params, updates), state

    return Subject(tx.init, step)


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
# Masters of parameters in bfloat16, whose gradients are too.
MASTERS: dict[str, Callable[[Any], Any]] = {
    "float32": gx.master_weights,
    "8 bits, masters": lambda tx: gx.master_weights(gx.quantize_state(tx)),
    "8 bits, remainders": lambda tx: gx.master_weights(gx.quantize_state(tx), remainders=True),
    "8 bits, remainders of 8": lambda tx: gx.master_weights(gx.quantize_state(tx), remainders=8),
}
NARROW = "adamw, bfloat16"
TREES = ("8-square", "16-mixed")
# Bytes of state a parameter; temporary memory, in bytes of the parameters; the rest of the first
# row's; the bytes that a step must move in its time, of those that a loop in place moves.
COLUMNS = ("bytes", "temp", "step", "trace+lower", "compile", "bandwidth")


def subjects(rule: str) -> dict[str, Subject]:
    """Return what is compared, by name; the others are measured in shares of the first."""
    if rule != NARROW:
        return {name: ours(stored(RULES[rule]())) for name, stored in STORAGES.items()}
    found = {name: ours(stored(gx.adamw(1e-3))) for name, stored in MASTERS.items()}
    if importlib.util.find_spec("flashoptim_jax"):
        peer: Any = importlib.import_module("flashoptim_jax")
        # Its kernels are of Pallas for GPUs.
        fused = jax.default_backend() == "gpu"
        tx = peer.flash_adamw(1e-3, weight_decay=1e-4, master_weight_bits=24, fused=fused)
        found["flashoptim-jax"] = Subject(tx.init, tx.step)
    return found


def measured(rule: str, tree: str, options: Options) -> list[dict[str, Any]]:
    """Return a row for each storage of the state of a rule; steps are timed in turns."""
    params, grads = make_tree(tree, options.seed)
    if rule == NARROW:
        params, grads = (_cast(x, jnp.bfloat16) for x in (params, grads))
    size, entries = (sum(f(x) for x in jax.tree.leaves(params)) for f in (_bytes, jnp.size))
    rows: list[dict[str, Any]] = []
    runs: dict[str, Any] = {}
    for name, (init, step) in subjects(rule).items():
        state = jax.jit(init)(params)
        stages, compiled = staged(step, (params, state, grads), 1 if options.quick else 5)
        held = sum(map(_bytes, jax.tree.leaves(state)))
        rows.append(
            {
                "rule": rule,
                "tree": tree,
                "state": name,
                "bytes": held / entries,
                "temp": static_costs(compiled)["temp"] / size,
                "trace+lower": stages[0],
                "compile": stages[1],
                # Parameters and state are read and written, gradients read.
                "moved": 2 * (size + held) + sum(map(_bytes, jax.tree.leaves(grads))),
            }
        )
        runs[name] = compiled, jax.tree.map(jnp.copy, (params, state))
    copied, times = _bandwidth(4 * entries), {name: [] for name in runs}
    for _ in range(1 if options.quick else max(options.repeats, 10)):
        for name, (compiled, carry) in list(runs.items()):
            start = time.perf_counter()
            carry = jax.block_until_ready(compiled(*carry, grads))
            times[name].append(time.perf_counter() - start)
            runs[name] = compiled, carry
    first = times[rows[0]["state"]]
    for row in reversed(rows):
        taken = times[row["state"]]
        row["step"] = float(np.median(np.divide(taken, first)))
        row["bandwidth"] = row.pop("moved") / float(np.median(taken)) / copied
        for figure in ("trace+lower", "compile"):
            row[figure] /= rows[0][figure]
    return rows


def staged(step: Any, arguments: Any, times: int) -> tuple[tuple[float, float], Any]:
    """Return the median seconds to trace and lower a step and to compile it, and the program."""
    samples, compiled = [], None
    for _ in range(times):
        jax.clear_caches()
        start = time.perf_counter()
        lowered = jax.jit(step, donate_argnums=(0, 1)).lower(*arguments)
        middle = time.perf_counter()
        compiled = lowered.compile()
        samples.append((middle - start, time.perf_counter() - middle))
    trace, compile_ = np.median(samples, axis=0)
    return (float(trace), float(compile_)), compiled


def _cast(tree: Any, dtype: Any) -> Any:
    return jax.tree.map(lambda x: x.astype(dtype), tree)


def _bytes(x: Any) -> int:
    return x.nbytes


def _bandwidth(size: int) -> float:
    """Return the bytes a second that a loop over an array of so many bytes reads and writes."""
    # In place: a copy in new memory would wait for its pages.
    x, add = jnp.zeros(size // 4, jnp.float32), jax.jit(lambda x: x + 1, donate_argnums=0)
    times = []
    for _ in range(11):
        start = time.perf_counter()
        x = jax.block_until_ready(add(x))
        times.append(time.perf_counter() - start)
    return 2 * size / float(np.median(times[1:]))


def run(options: Options, job: Job) -> Results:
    """Measure every rule on every tree."""
    rules = ("adam",) if options.quick else (*RULES, NARROW)
    trees = options.trees or (("8-mixed",) if options.quick else TREES)
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
    title = (
        "bytes of state a parameter; temp in copies of the parameters; bandwidth as a share of "
        "that of a loop in place; the rest of the first row's"
    )
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
