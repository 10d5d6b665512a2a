"""Section `backward`: steps that update each layer in the backward pass, beside ordinary ones.

What a step holds is from the compiler for TPUs, without one; seconds are of this machine.
"""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec as P
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table

import gradxform as gx
from benchmarks.options import Job, Options, Results, Section
from benchmarks.subjects import deep
from benchmarks.subjects.cases import LIBRARIES, OURS, THEIRS
from benchmarks.subjects.deep import ROWS, VOCABULARY, Row, Size
from benchmarks.timing import ahead
from benchmarks.timing.measure import Budget, interleave, summarize

DATA = Path(__file__).resolve().parents[2] / "docs" / "site" / "data" / "backward.json"
WIDTHS, QUICK_WIDTHS = (512, 1024, 2048), (128,)
HERE = (Size(128, 4, 64), Size(256, 4, 64))  # of the steps that run on this machine
QUICK = ("adamw",)
LIMIT = 240  # seconds for a step to compile
BACKWARD, ORDINARY = "in the backward pass", "ordinary"
KINDS = (BACKWARD, ORDINARY, THEIRS)


def step_of(row: Row, kind: str) -> tuple[Any, Any]:
    """Return the init of an optimizer, and the compiled step of one kind."""
    if kind != THEIRS:
        tx = row.make(LIBRARIES[OURS])
        return tx.init, gx.make_step(tx, deep.loss, update_in_backward=kind == BACKWARD)
    lib = LIBRARIES[THEIRS]
    tx = row.make(lib)

    def step(params: Any, state: Any, batch: Any) -> Any:
        loss, grads = jax.value_and_grad(deep.loss)(params, batch)
        updates, state = tx.update(grads, state, params)
        return lib.apply_updates(params, updates), state, loss

    return tx.init, jax.jit(step, donate_argnums=(0, 1))


def bytes_of(tree: Any) -> int:
    """Return the bytes of all arrays of a tree."""
    return sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(tree))


def compiled(name: str, width: int, kind: str) -> dict[str, float]:
    """Return what the compiler says of a step, in copies of the parameters in float32."""
    row, size, where = ROWS[name], Size(width), NamedSharding(ahead.mesh(), P())

    def placed(tree: Any) -> Any:
        return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=where), tree)

    init, step = step_of(row, kind)
    params = jax.eval_shape(lambda: deep.normal(size, row.dtype, 0))
    batch = jax.ShapeDtypeStruct((size.batch, size.length + 1), jnp.int32)
    given = placed((params, jax.eval_shape(init, params), batch))
    start = time.perf_counter()
    made = step.lower(*given).compile()
    seconds = time.perf_counter() - start
    memory = made.memory_analysis()
    copy = 4 * sum(x.size for x in jax.tree.leaves(params))
    # What no donated argument gives its place to comes on top.
    more = memory.output_size_in_bytes - memory.alias_size_in_bytes
    figures = {
        "arguments": memory.argument_size_in_bytes / copy,
        "temp": (memory.temp_size_in_bytes + more) / copy,
        "seconds": round(seconds, 1),
    }
    return {figure: float(f"{x:.4g}") for figure, x in figures.items()}


def parts(name: str, width: int) -> dict[str, float]:
    """Return the bytes of one layer's gradient, and of what all layers got, in such copies."""
    row, size = ROWS[name], Size(width)
    params = jax.eval_shape(lambda: deep.normal(size, row.dtype, 0))
    copy = 4 * sum(x.size for x in jax.tree.leaves(params))
    inputs = size.layers * size.batch * size.length * size.width * jnp.dtype(row.dtype).itemsize
    both = {"layer": bytes_of(params["layers"]) / size.layers / copy, "inputs": inputs / copy}
    return {part: float(f"{x:.4g}") for part, x in both.items()}


def timed(name: str, size: Size, options: Options) -> dict[str, Any]:
    """Return the seconds of both kinds of step on this machine, side by side."""
    row, calls = ROWS[name], {}
    for kind in (BACKWARD, ORDINARY):
        calls[kind] = _call(row, kind, size, options.seed)
    budget = Budget(options.repeats, min(options.repeats, 7), 15.0)
    samples = interleave(calls, budget)
    return summarize(samples, ORDINARY, BACKWARD)


def _call(row: Row, kind: str, size: Size, seed: int) -> Callable[[], Any]:
    init, step = step_of(row, kind)
    params = deep.normal(size, row.dtype, seed)
    random = np.random.default_rng(seed)
    batch = jnp.asarray(random.integers(0, VOCABULARY, (size.batch, size.length + 1)), jnp.int32)
    carry = [(params, jax.jit(init)(params))]

    def call() -> Any:
        *new, loss = step(*carry[0], batch)
        carry[0] = tuple(new)
        return loss, new

    return call


def run(options: Options, job: Job) -> Results:
    """Compile every row for a TPU, and time both kinds of step here."""
    compiler = ahead.Compiler("backward", compiled, LIMIT)
    results: Results = {
        "section": "backward",
        "machine": compiler.machine,
        "options": options.as_json(),
        "layers": deep.LAYERS,
        "cases": [],
        "here": [],
    }
    names = QUICK if options.quick else tuple(ROWS)
    widths = QUICK_WIDTHS if options.quick else WIDTHS
    sizes = HERE[: 1 if options.quick else None]
    pairs = [(n, w) for w in widths for n in names if w in (ROWS[n].widths or widths)]
    job.plan(len(pairs) + len(names) * len(sizes))
    for name, width in pairs:
        job.begin(f"{name}, {width}")
        case: Results = {"name": name, "width": width, **parts(name, width)}
        for kind in KINDS:
            if kind != THEIRS or ROWS[name].both:
                case[kind] = compiler.figures(name, width, kind)
        results["cases"].append(case)
        job.save(results)
        job.advance()
    compiler.end()
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        for size in sizes:
            for name in names:
                job.begin(f"{name}, {size.width}, seconds")
                figures = timed(name, size, options)
                results["here"].append({"name": name, "width": size.width, **figures})
                job.save(results)
                job.advance()
    if not (options.quick or options.elsewhere):
        keep(results)
    return results


def keep(results: Results) -> None:
    """Write the results where the page has them from."""
    kept = {name: value for name, value in results.items() if name != "options"}
    DATA.write_text(json.dumps(kept).replace('{"name"', '\n{"name"') + "\n")  # a line a case


def bound(case: Results) -> float:
    """Return what a step in the backward pass may hold beside its arguments."""
    return case["layer"] + case["inputs"] + ROWS[case["name"]].bound


def is_within(case: Results) -> bool:
    """Return whether a step in the backward pass holds no more than its bound."""
    return case[BACKWARD].get("temp", np.inf) <= bound(case)


def _held(figures: Results | None) -> str:
    if figures is None:
        return ""
    return figures.get("error") or f"{figures['arguments']:.2f} + {figures['temp']:.3f}"


def _seconds(case: Results) -> str:
    figures = (case.get(kind, {}).get("seconds") for kind in KINDS)
    return " / ".join(f"{x:.0f} s" for x in figures if x is not None)


def show(results: Results, console: Console) -> None:
    """Print what steps hold, and the seconds of those that ran."""
    cases = results["cases"]
    within = sum(map(is_within, cases))
    title = (
        f"what a step holds on a TPU v5e, arguments + temporaries, {results['layers']} layers; "
        f"{within} of {len(cases)} steps in the backward pass hold no more than allowed"
    )
    columns = ("width", BACKWARD, ORDINARY, "Optax, ordinary", "allowed", "compile")
    table = Table("optimizer", *columns, title=title)
    for case in cases:
        held = [_held(case.get(kind)) for kind in KINDS]
        allowed = f"{bound(case):.3f}" + ("" if is_within(case) else ", exceeded")
        table.add_row(case["name"], str(case["width"]), *held, allowed, _seconds(case))
    console.print(table)
    title = "seconds of a step on this machine, of the ordinary one"
    table = Table("optimizer", "width", BACKWARD, ORDINARY, "ratio", "its interval", title=title)
    for case in results["here"]:
        medians = [f"{1000 * case['median'][kind]:.0f} ms" for kind in (BACKWARD, ORDINARY)]
        low, high = case["interval"]
        ratio = f"{case['ratio']:.2f}", f"{low:.2f} to {high:.2f}"
        table.add_row(case["name"], str(case["width"]), *medians, *ratio)
    console.print(table)


def draw(results: Results, path: Path) -> None:
    """Write what steps hold at the largest width: arguments, and temporaries on top."""
    width = max(case["width"] for case in results["cases"])
    cases = [case for case in results["cases"] if case["width"] == width]
    figure = Figure(figsize=(7, 0.6 * len(cases) + 1.3), layout="constrained")
    FigureCanvasAgg(figure)  # no window, and pyplot's global state is left alone
    axes, places = figure.subplots(), np.arange(len(cases))
    for i, kind in enumerate(KINDS):
        figures = [case.get(kind, {}) for case in cases]
        arguments = [x.get("arguments", 0.0) for x in figures]
        temp = [x.get("temp", 0.0) for x in figures]
        look = {"height": 0.25, "color": f"C{i}"}
        axes.barh(places + 0.27 * i, arguments, alpha=0.4, **look)
        axes.barh(places + 0.27 * i, temp, left=arguments, label=kind, **look)
    axes.set_yticks(places + 0.27, [case["name"] for case in cases])
    axes.invert_yaxis()
    axes.set_xlabel(f"copies of the parameters, width {width}: arguments, and temporaries")
    axes.legend(frameon=False)
    figure.savefig(path, dpi=120)


SECTION = Section(
    about="steps that update layers in the backward pass: what they hold on a TPU, and seconds",
    run=run,
    show=show,
    draw=draw,
)
