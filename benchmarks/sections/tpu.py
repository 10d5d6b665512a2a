"""Section `tpu`: what the compiler for TPUs makes of a step, without a TPU.

Rows are compiled in another process, which is ended and begun anew where a row takes too long.
"""

import json
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table

import gradxform as gx
from benchmarks.options import Job, Options, Results, Section
from benchmarks.subjects.cases import LIBRARIES, OURS, THEIRS
from benchmarks.subjects.tpu import GROUPS, REASONS, ROWS, Row, reason
from benchmarks.timing import ahead
from gradxform.testing import hlo

DATA = Path(__file__).resolve().parents[2] / "docs" / "site" / "data" / "tpu.json"
QUICK = ("adamw", "sgd")
LIMIT = 60  # seconds for a row
# Bytes moved as multiples of the least; temporary memory in copies of the parameters in float32.
MOST_MOVED, MOST_HELD = 1.2, 0.1


def _placed(tree: Any, specs: Any, mesh: Mesh) -> Any:
    def one(spec: P, part: Any) -> Any:
        where = NamedSharding(mesh, spec)
        return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=where), part)

    return jax.tree.map(one, specs, tree, is_leaf=lambda x: isinstance(x, P))


def _held(tree: Any) -> int:
    """Return the bytes of a placed tree on one device."""
    shards = ((x.sharding.shard_shape(x.shape), x.dtype) for x in jax.tree.leaves(tree))
    return sum(int(np.prod(shape)) * dtype.itemsize for shape, dtype in shards)


def prepared(row: Row, lib: Any) -> tuple[Any, Any]:
    """Return the step, and its arguments: parameters, a state and gradients."""
    tx, mesh = row.make(lib), ahead.mesh(row.topology)
    params = {f"w{i}": jax.ShapeDtypeStruct(s, row.dtype) for i, s in enumerate(row.shapes)}
    several = row.examples or (mesh.size if row.topology else None)
    lead = (several,) if several else ()
    grads = jax.tree.map(lambda p: jax.ShapeDtypeStruct((*lead, *p.shape), p.dtype), params)

    def step(params: Any, state: Any, grads: Any) -> Any:
        if lib is LIBRARIES[OURS]:
            return gx.apply_gradients(tx, grads, state, params, **row.extra)
        updates, state = tx.update(grads, state, params, **row.extra)
        return lib.apply_updates(params, updates), state

    program = step
    if not row.topology:
        state, specs = jax.eval_shape(tx.init, params), (P(), P(), P())
    else:
        of_state, mine = tx.state_specs(params, mesh), P(mesh.axis_names)

        def of_replica(params: Any, state: Any, grads: Any) -> Any:
            return step(params, state, jax.tree.map(lambda g: g[0], grads))

        init = jax.shard_map(tx.init, mesh=mesh, in_specs=P(), out_specs=of_state)
        state, specs = jax.eval_shape(init, params), (P(), of_state, mine)
        program = jax.shard_map(of_replica, mesh=mesh, in_specs=specs, out_specs=specs[:2])
    args = tuple(_placed(x, s, mesh) for x, s in zip((params, state, grads), specs, strict=True))
    return jax.jit(program, donate_argnums=(0, 1)), args


def compiled(row: Row, lib: Any) -> tuple[Any, dict[str, float]]:
    """Return a compiled step, and what the compiler says of it."""
    step, (params, state, grads) = prepared(row, lib)
    start = time.perf_counter()
    made = step.lower(params, state, grads).compile()
    seconds = time.perf_counter() - start
    copy = 4 * sum(x.size for x in jax.tree.leaves(params))
    least = 2 * _held((params, state)) + _held(grads)
    figures = {
        "least": least / copy,
        "moved": hlo.moved_bytes(made) / least,
        "temp": made.memory_analysis().temp_size_in_bytes / copy,
        "seconds": round(seconds, 1),
    }
    if row.topology:
        figures["collectives"] = len(hlo.collectives(made))
        figures["sent"] = hlo.wire_bytes(made).per_step / copy
    return made, {name: float(f"{x:.4g}") for name, x in figures.items()}


def of_row(name: str, lib: str) -> dict[str, float]:
    """Return what the compiler says of a row, of a library."""
    return compiled(ROWS[name], LIBRARIES[lib])[1]


def run(options: Options, job: Job) -> Results:
    """Compile every row, and Optax's beside it."""
    compiler = ahead.Compiler("tpu", of_row, LIMIT)
    results: Results = {
        "section": "tpu",
        "machine": compiler.machine,
        "options": options.as_json(),
        "cases": [],
    }
    groups = {name: group for group, rows in GROUPS.items() for name in rows}
    names = QUICK if options.quick else tuple(ROWS)
    job.plan(len(names))
    for name in names:
        job.begin(name)
        case = {"group": groups[name], "name": name, **compiler.figures(name, OURS)}
        if ROWS[name].both:
            case["optax"] = compiler.figures(name, THEIRS)
        results["cases"].append(case)
        job.save(results)
        job.advance()
    compiler.end()
    if not (options.quick or options.elsewhere):
        kept = {name: value for name, value in results.items() if name != "options"}
        DATA.write_text(json.dumps(kept).replace('{"group"', '\n{"group"') + "\n")  # a line a case
    return results


def _is_more(case: Results) -> bool:
    return case["moved"] > MOST_MOVED or case["temp"] > MOST_HELD


def _cells(case: Results, *names: str) -> list[str]:
    formats = {"seconds": "{:.1f} s", "collectives": "{:.0f}"}
    cells = [formats.get(n, "{:.2f}").format(case[n]) if n in case else "" for n in names]
    return [*cells[:-1], case["error"]] if "error" in case else cells


def show(results: Results, console: Console) -> None:
    """Print a table for each group of rows, and what the words for reasons mean."""
    found, figures = set[str](), ("moved", "temp", "seconds")
    for group in dict.fromkeys(case["group"] for case in results["cases"]):
        cases = [case for case in results["cases"] if case["group"] == group]
        within = sum("error" not in case and not _is_more(case) for case in cases)
        title = f"{group}, of which {within} of {len(cases)} move and hold what is in the bounds"
        several = group == "several devices"
        more = ("collectives", "sent") if several else ("Optax: moved", "temp", "compile")
        table = Table("step", "least", "moved", "temp", "compile", *more, "why more", title=title)
        for case in cases:
            own = _cells(case, "least", *figures)
            others = _cells(case, *more) if several else _cells(case.get("optax", {}), *figures)
            why = reason(case["name"]) if "error" in case or _is_more(case) else ""
            found.add(why)
            table.add_row(case["name"], *own, *others, why)
        console.print(table)
    reasons = Table("why more", "what happens")
    for why, (meaning, _) in REASONS.items():
        if why in found:
            reasons.add_row(why, meaning)
    if reasons.rows:
        console.print(reasons)


def draw(results: Results, path: Path) -> None:
    """Write what steps move, in order, beside Optax's."""
    figure = Figure(figsize=(6.5, 4), layout="constrained")
    FigureCanvasAgg(figure)  # no window, and pyplot's global state is left alone
    axes = figure.subplots()
    for label, cases in (
        (OURS, results["cases"]),
        (THEIRS, [case.get("optax", {}) for case in results["cases"]]),
    ):
        axes.plot(sorted(case["moved"] for case in cases if "moved" in case), ".-", label=label)
    axes.set_xlabel("steps, in order")
    axes.set_ylabel("bytes moved, of the least")
    axes.legend(frameon=False)
    figure.savefig(path, dpi=120)


SECTION = Section(
    about="steps compiled for a TPU: bytes moved, temporary memory, beside Optax",
    run=run,
    show=show,
    draw=draw,
)
