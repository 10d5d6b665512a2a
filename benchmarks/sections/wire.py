"""Section `bytes`: the bytes that each distributed optimizer sends and holds.

They are counted in compiled programs, in a process of its own with eight CPU devices.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, PartitionSpec
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table

import gradxform as gx
import gradxform.distributed as gd
from benchmarks.options import Job, Options, Results, Section
from benchmarks.subjects.sharded import DEVICES
from benchmarks.timing import machine
from benchmarks.timing.staging import static_costs

PERIOD, FRAGMENTS = 10, 5
SECONDS = 600
# Bytes sent in a step (mean over a period, at most, outside of exchanges), and bytes that a device
# holds; in copies of the parameters.
COLUMNS = ("per step", "peak", "outside", "arguments", "temp")


def parameters() -> Any:
    """Return a tree of ten equal matrices."""
    return {f"layer{i}": jnp.ones((128, 512)) for i in range(10)}


def methods() -> dict[str, tuple[Any, int]]:
    """Return the transforms with Adam inside, and the steps from one exchange to the next."""
    adam, axis = gx.adam(1e-3), "replica"
    pieces = gd.diloco(adam, axis, period=PERIOD, fragments=FRAGMENTS)
    waiting = gd.diloco(adam, axis, period=PERIOD, fragments=FRAGMENTS, delay=1, blend=0.5)
    return {
        "tower": (gd.tower(adam, axis), 1),
        "sync_replicas": (gd.sync_replicas(adam, axis), 1),
        "model_average": (gd.model_average(adam, axis, period=PERIOD), PERIOD),
        "elastic_average": (gd.elastic_average(adam, axis, period=PERIOD, rho=0.1), PERIOD),
        "agn": (gd.agn(adam, axis, period=PERIOD), PERIOD),
        "diloco": (gd.diloco(adam, axis, period=PERIOD), PERIOD),
        f"diloco, {FRAGMENTS} fragments": (pieces, PERIOD // FRAGMENTS),
        f"diloco, {FRAGMENTS} fragments, delay": (waiting, PERIOD // FRAGMENTS),
    }


def of_replicas(tx: Any, mode: str) -> Any:
    """Return the compiled step of replicas that have their own parameters."""
    r = gd.Replicas("replica", n=DEVICES, mode=mode)
    params = r.replicate(parameters())
    state = r.wrap(tx.init)(params)
    step: Any = r.wrap(lambda p, s, g: tx.step(g, s, p), donate_argnums=(0, 1))
    return step.lower(params, state, params).compile()


def of_zero1() -> Any:
    """Return the compiled step of `zero1`, on parameters that all devices have."""
    mesh = jax.make_mesh((DEVICES,), ("replica",), axis_types=(AxisType.Auto,))
    tx, params = gd.zero1(gx.adam(1e-3), "replica"), parameters()
    specs, whole = tx.state_specs(params, mesh), PartitionSpec()

    def mapped(f: Any, ins: Any, outs: Any) -> Any:
        return jax.jit(jax.shard_map(f, mesh=mesh, in_specs=ins, out_specs=outs, check_vma=False))

    def step(params: Any, state: Any, grads: Any) -> Any:
        return tx.step(jax.tree.map(lambda g: g[0], grads), state, params)

    state = jax.eval_shape(mapped(tx.init, (whole,), specs), params)
    grads = jax.tree.map(lambda p: jax.ShapeDtypeStruct((DEVICES, *p.shape), p.dtype), params)
    ins = (whole, specs, PartitionSpec("replica"))
    return mapped(step, ins, (whole, specs)).lower(params, state, grads).compile()


def measure() -> list[dict[str, Any]]:
    """Return a row for every method and mode; this needs eight devices."""
    copy = gd.hlo.copy_bytes(parameters())
    rows = []
    for name, (tx, period) in methods().items():
        for mode in ("shard_map", "jit"):
            rows.append(_row(name, mode, of_replicas(tx, mode), period, copy))
    rows.append(_row("zero1", "shard_map", of_zero1(), 1, copy))
    return rows


def _row(name: str, mode: str, compiled: Any, period: int, copy: int) -> dict[str, Any]:
    wire = gd.hlo.wire_bytes(compiled, period=period)
    memory = compiled.memory_analysis()
    # Only one fragment is exchanged at a time, although the program contains all of them.
    figures = (
        wire.always + wire.conditional / period,
        wire.peak,
        wire.always if period > 1 else 0.0,
        getattr(memory, "argument_size_in_bytes", 0),
        static_costs(compiled).get("temp", 0.0),
    )
    shares = {column: x / copy for column, x in zip(COLUMNS, figures, strict=True)}
    return {"method": name, "mode": mode, "period": period, **shares}


def on_devices(module: str, *argv: str, seconds: float = SECONDS) -> Any:
    """Return what a module prints as JSON in a process of its own with eight CPU devices.

    Args:
      module: its name.
      *argv: its arguments.
      seconds: how long it may take.
    """
    env = dict(os.environ)
    flags = env.get("XLA_FLAGS", "")
    env["XLA_FLAGS"] = f"{flags} --xla_force_host_platform_device_count={DEVICES}".strip()
    env["JAX_PLATFORMS"] = "cpu"
    # With a thread for each device only, all of them may wait in collectives for one whose own work
    # waits for a thread.
    env.setdefault("PJRT_NPROC", str(4 * DEVICES))
    done = subprocess.run(
        [sys.executable, "-m", module, *argv],
        env=env,
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"{module}: the process that measures failed: {done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def run(options: Options, job: Job) -> Results:
    """Measure in a process with eight devices."""
    job.plan(1)
    job.begin("compiling")
    results = {
        "section": "bytes",
        "machine": machine.describe(),
        "options": options.as_json(),
        "cases": on_devices("benchmarks.sections.wire"),
    }
    job.save(results)
    job.advance()
    return results


def show(results: Results, console: Console) -> None:
    """Print a row for every method and mode."""
    title = f"Adam on {DEVICES} devices, period {PERIOD}; in copies of the parameters, per device"
    table = Table(title=title, title_justify="left")
    for name in ("method", "mode", *COLUMNS):
        table.add_column(name, justify="left" if name in ("method", "mode") else "right")
    for case in results["cases"]:
        cells = [f"{case[column]:.3f}" for column in COLUMNS]
        table.add_row(case["method"], case["mode"], *cells)
    console.print(table)
    console.print(
        "sent per step, over a period; at most in one step; outside of exchanges. Arguments and "
        "temp: what a device holds. For zero1 the local gradient, 1.000, is among the arguments.",
        highlight=False,
    )


def draw(results: Results, path: Path) -> None:
    """Write a bar per method for the bytes that it sends in a step."""
    cases = [case for case in results["cases"] if case["mode"] == "shard_map"]
    figure = Figure(figsize=(6.5, 0.4 * len(cases) + 1.3), layout="constrained")
    FigureCanvasAgg(figure)  # no window, and pyplot's global state is left alone
    axes = figure.subplots()
    axes.barh([case["method"] for case in cases], [case["per step"] for case in cases])
    axes.invert_yaxis()
    axes.set_xlabel("sent per step by each device, in copies of the parameters")
    figure.savefig(path, dpi=120)


SECTION = Section(
    about="bytes that distributed optimizers send and hold on eight devices, counted",
    run=run,
    show=show,
    draw=draw,
)

if __name__ == "__main__":
    print(json.dumps(measure()))
