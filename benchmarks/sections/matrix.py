"""Section `matrix`: rules for whole matrices beside Optax's, on eight devices and on one.

What a device sends, computes and holds is counted in compiled programs. Steps are timed in turns.
"""

import json
import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table

import gradxform as gx
import gradxform.distributed as gd
from benchmarks.options import Job, Options, Results, Section
from benchmarks.sections import beside, phases
from benchmarks.sections.wire import on_devices
from benchmarks.subjects.peers import MATCHES, one_of_each
from benchmarks.subjects.sharded import (
    DEVICES,
    LAYERS,
    abstract,
    in_shares,
    program,
    shapes,
    step_of,
)
from benchmarks.timing import machine
from benchmarks.timing.staging import static_costs
from gradxform._jax.jaxprs import jaxprs_of

APART = 24  # the layers of one device, which are not stacked
# Their widths. At 16 the calls take the time, at 64 the products do, which are as many as Optax's.
WIDTHS = (16, 32, 64)
# Of one step on each of the eight devices: collectives; bytes sent, in shares of the matrices;
# products and sums, of Optax's.
COLUMNS = ("collectives", "sent", "FLOPs")
ON_ONE = ("width", "dots", "temp", "step")


def on_mesh(tx: Any, shard: bool) -> dict[str, float]:
    """Return the figures of a step on eight devices."""
    compiled, step, args = program(in_shares(tx) if shard else tx, shard)
    # What the program asks for: XLA for CPUs sends 16-bit numbers as 32 bits.
    counted = gd.hlo.count_jaxpr(step, *args) if shard else compiled
    share = gd.hlo.copy_bytes(args[0]) / DEVICES
    return {
        "collectives": len(gd.hlo.collectives(compiled)),
        "sent": gd.hlo.wire_bytes(counted).per_step / share,
        # XLA counts the body of a loop once, so that this is fewer than Optax's program computes.
        "FLOPs": product_flops(step, *args) if shard else (compiled.cost_analysis() or {})["flops"],
    }


def product_flops(step: Any, *args: Any) -> int:
    """Return the multiplications and additions of all products, those in loops at every turn."""
    return sum(x.flops * x.times for x in products(jax.make_jaxpr(step)(*args)))


class Product(NamedTuple):
    """A matrix product of a program."""

    flops: int
    times: int  # how often it runs


def products(jaxpr: Any, times: int = 1) -> Iterator[Product]:
    """Yield the matrix products of a traced program, and of those that it calls."""
    for eqn in getattr(jaxpr, "jaxpr", jaxpr).eqns:
        if eqn.primitive.name == "dot_general":
            (axes, _), _ = eqn.params["dimension_numbers"]
            sides = [eqn.invars[0].aval.shape[i] for i in axes]
            yield Product(2 * math.prod(sides) * eqn.outvars[0].aval.size, times)
        turns = eqn.params["length"] if eqn.primitive.name == "scan" else 1
        for _, inner in jaxprs_of(eqn):
            yield from products(inner, times * turns)


def measure() -> list[dict[str, Any]]:
    """Return a row for each rule on eight devices; this needs them."""
    rows = []
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        rows.append({"rule": "optax.contrib.muon", **on_mesh(optax.contrib.muon(0.02), False)})
    for name, tx in OURS.items():
        rows.append({"rule": name, **on_mesh(tx, True)})
    for row in reversed(rows):
        row["FLOPs"] /= rows[0]["FLOPs"]
    return rows


OURS = {
    "muon": gx.muon(0.02),
    "muon, bfloat16": gx.muon(0.02, compute_dtype="bfloat16"),
    "muon, gram": gx.muon(0.02, iteration="gram"),
}


def on_one(repeats: int, width: int, layers: int = APART) -> list[dict[str, Any]]:
    """Return a row for each rule on one device, with layers that are not stacked."""
    rng = np.random.default_rng(0)
    params = jax.tree.map(
        lambda x: jnp.asarray(rng.normal(size=x.shape), x.dtype), abstract(shapes(layers, width))
    )
    rules: dict[str, Any] = {"optax.contrib.muon": optax.contrib.muon(0.02), **OURS}
    del rules["muon, bfloat16"]  # CPUs compute 16-bit products in 32 bits
    rows, runs = [], {}
    for name, tx in rules.items():
        with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
            state = jax.jit(tx.init)(params)
            compiled = jax.jit(step_of(tx)).lower(params, state, params).compile()
            dots = len(list(products(jax.make_jaxpr(step_of(tx))(params, state, params))))
        runs[name] = compiled, state
        temp = static_costs(compiled)["temp"] / gd.hlo.copy_bytes(params)
        rows.append({"rule": name, "width": width, "dots": dots, "temp": temp})
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(repeats):
        for name, (compiled, state) in runs.items():
            start = time.perf_counter()
            jax.block_until_ready(compiled(params, state, params))
            times[name].append(time.perf_counter() - start)
    for row in rows:
        ratios = np.divide(times[row["rule"]], times["optax.contrib.muon"])
        row["step"] = float(np.median(ratios))
    return rows


def run(options: Options, job: Job) -> Results:
    """Measure on one device here, and on eight in another process."""
    matches = one_of_each() if options.quick else MATCHES
    job.plan(3 + len(matches))
    job.begin("on one device")
    layers, repeats = (2, 1) if options.quick else (APART, max(options.repeats, 15))
    one = [row for width in WIDTHS for row in on_one(repeats, width, layers)]
    job.advance()
    job.begin("timing the phases of a period")
    of_period = phases.phases(2, 16, 1) if options.quick else phases.phases(4, 128)
    job.advance()
    job.begin("compiling for eight devices")
    results = {
        "section": "matrix",
        "machine": machine.describe(),
        "options": options.as_json(),
        "one": one,
        "phases": of_period,
        "cases": on_devices("benchmarks.sections.matrix"),
        "peers": [],
    }
    job.save(results)
    job.advance()
    for match in matches:
        job.begin(f"{match.rule} beside {match.label}")
        results["peers"].append(beside.row(match, options))
        job.save(results)
        job.advance()
    return results


def show(results: Results, console: Console) -> None:
    """Print a table for eight devices, those for one, and one of peers."""
    titles = (
        f"{LAYERS} layers on {DEVICES} devices; sent in shares of the matrices, FLOPs of Optax's",
        "layers that are not stacked on one device; temp in copies of the parameters, step of "
        "Optax's",
        f"the {phases.PERIOD} steps of a period: ms, and the longest over the median",
    )
    tables = (results["cases"], results["one"], results["phases"])
    for title, rows, columns in zip(titles, tables, (COLUMNS, ON_ONE, phases.COLUMNS), strict=True):
        table = Table("rule", *columns, title=title, title_justify="left")
        for row in rows:
            table.add_row(row["rule"], *(f"{row[column]:.3g}" for column in columns))
        console.print(table)
    beside.show(results["peers"], console)


def draw(results: Results, path: Path) -> None:
    """Write a bar for each rule for what a device sends."""
    cases = results["cases"]
    figure = Figure(figsize=(6.5, 0.4 * len(cases) + 1.3), layout="constrained")
    FigureCanvasAgg(figure)  # no window, and pyplot's global state is left alone
    axes = figure.subplots()
    axes.barh([case["rule"] for case in cases], [case["sent"] for case in cases])
    axes.invert_yaxis()
    axes.set_xlabel("sent per step by each device, in shares of the matrices")
    figure.savefig(path, dpi=120)


SECTION = Section(
    about="rules for whole matrices: what eight devices send, and the program of one",
    run=run,
    show=show,
    draw=draw,
)

if __name__ == "__main__":
    print(json.dumps(measure()))
