"""Section `pods`: replicas made of slices that share one state, beside `tower`.

The characters of the standard library's sources on two slices of four devices, in a process of its
own with eight CPU devices. Every run gets the batches, the first parameters and the learning rates
of the others.
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table

import gradxform as gx
import gradxform.distributed as gd
from benchmarks.options import Job, Options, Results, Section
from benchmarks.sections.losses import EXAMPLES, characters
from benchmarks.sections.wire import on_devices
from benchmarks.timing import machine

STEPS, QUICK_STEPS, EVERY = 600, 60, 30  # all are multiples of the longest period
SLICES, DEVICES_A_SLICE = 2, 4
SECONDS = 3600


class Run(NamedTuple):
    """How a run divides the work.

    Attributes:
      make: returns the optimizer, from that of one device.
      dtype: of the parameters.
      period: the steps from one exchange between slices to the next.
      alike: whether all devices have the same parameters, without an axis of replicas for slices.
    """

    make: Callable[[Any], Any]
    dtype: Any = jnp.bfloat16
    period: int = 1
    alike: bool = False


def composed(period: int, **how: Any) -> Run:
    """Return DiLoCo between slices around ZeRO inside of each.

    An outer momentum of 0.9 is for periods of hundreds of steps: with 10 steps the loss ends at
    2.46, instead of 1.92 with 0.3.
    """

    def make(inner: Any) -> Any:
        inside = gx.apply_if_finite(gd.zero1(inner, "ici"), 5)
        return gd.diloco(
            inside, "dcn", period=period, inner_axes=("ici",), outer_momentum=0.3, **how
        )

    return Run(make, period=period)


RUNS: dict[str, Run] = {
    "tower, float32": Run(lambda tx: gd.tower(tx, ("ici", "dcn")), jnp.float32, alike=True),
    "zero1 over all": Run(lambda tx: gd.zero1(tx, ("ici", "dcn")), alike=True),
    "diloco(zero1), 10 steps": composed(10),
    "diloco(zero1), 10 steps, int8": composed(10, compress=gd.int8()),
    "diloco(zero1), 30 steps, int8": composed(30, compress=gd.int8()),
}


def curve(run: Run, task: Any, steps: int) -> Results:
    """Train, and return the losses held out, and the bytes that a device sends in a step."""
    mesh = jax.make_mesh((SLICES, DEVICES_A_SLICE), ("dcn", "ici"), axis_types=(AxisType.Auto,) * 2)
    # Where all are alike, "replicas" along both axes hold the same parameters.
    axes, inner = (("dcn", "ici"), ()) if run.alike else (("dcn",), ("ici",))
    replicas = gd.Replicas(
        axes, inner_axes=inner, mesh=mesh, manual=bool(inner), check_vma=not inner
    )
    rate = gx.warmup_cosine_decay_schedule(0.0, task.rate, steps // 10, steps)
    tx = run.make(gx.adamw(rate, b2=0.99, weight_decay=0.01))
    given = jax.tree.map(lambda p: p.astype(run.dtype), task.params)

    def train_step(params: Any, state: Any, windows: Any) -> Any:
        along = axes if run.alike else inner
        loss, grads = jax.value_and_grad(task.loss)(gd.local_view(params, along), windows)
        new = tx.step(grads, state, params)
        return new, {"loss": loss, "norm": gx.global_norm(grads).astype(jnp.float32)}

    params, state = replicas.init(lambda: given, tx=tx)
    step = replicas.wrap(train_step, donate_argnums=(0, 1), has_aux=True)
    held_out = jax.jit(task.loss)
    batch = replicas.split(jnp.asarray(task.batches[0]))
    between, everywhere = sent(step.lower(params, state, batch).compile(), run)
    losses, done, trained = [float(held_out(given, task.held_out))], [0], 0.0
    for i in range(steps):
        (params, state), metrics = step(params, state, replicas.split(jnp.asarray(task.batches[i])))
        if (i + 1) % EVERY == 0:  # all slices are equal here
            one = replicas.unreplicate(params)
            losses.append(float(held_out(one, task.held_out)))
            done.append(i + 1)
            trained = float(metrics["loss"])
    return {
        "steps": done,
        "losses": losses,
        "trained": trained,
        "between": between,
        "everywhere": everywhere,
    }


def sent(compiled: Any, run: Run) -> tuple[float, float]:
    """Return the bytes that a device sends in a step: between slices, and over all links."""
    from pod_method import between_slices  # pyright: ignore

    whole = 0.0
    for one in gd.hlo.collectives(compiled):
        crosses = any(len({d // DEVICES_A_SLICE for d in group}) > 1 for group in one.groups)
        # Inside a slice, the only condition is that of the guard, which holds.
        whole += one.sent / (run.period if crosses and one.conditional else 1)
    return between_slices(compiled, DEVICES_A_SLICE, run.period), whole


def measure(steps: int) -> dict[str, Results]:
    """Return a curve for every run; this needs eight devices."""
    sys.path.insert(0, str(EXAMPLES))
    task = characters(0, steps)
    return {name: curve(run, task, steps) for name, run in RUNS.items()}


def run(options: Options, job: Job) -> Results:
    """Train in a process with eight devices."""
    steps = QUICK_STEPS if options.quick else STEPS
    job.plan(1)
    job.begin("training")
    results: Results = {
        "section": "pods",
        "machine": machine.describe(),
        "options": options.as_json(),
        "steps": steps,
        "cases": on_devices("benchmarks.sections.pods", str(steps), seconds=SECONDS),
    }
    job.save(results)
    job.advance()
    return results


def show(results: Results, console: Console) -> None:
    """Print a row for each run."""
    title = f"characters, {results['steps']} steps; bytes that a device sends in a step"
    table = Table(title=title, title_justify="left")
    for name in ("run", "loss held out", "between slices", "over all links"):
        table.add_column(name, justify="left" if name == "run" else "right")
    first = next(iter(results["cases"].values()))["between"]
    for name, row in results["cases"].items():
        share = f"{row['between']:,.0f} (1/{first / row['between']:.1f})"
        table.add_row(name, f"{row['losses'][-1]:.3f}", share, f"{row['everywhere']:,.0f}")
    console.print(table)


def draw(results: Results, path: Path) -> None:
    """Write the losses over steps, and over the bytes that a device has sent between slices."""
    figure = Figure(figsize=(9, 4), layout="constrained")
    FigureCanvasAgg(figure)  # no window, and pyplot's global state is left alone
    left, right = figure.subplots(1, 2, sharey=True)
    for name, row in results["cases"].items():
        steps = np.asarray(row["steps"][1:])
        left.plot(steps, row["losses"][1:], label=name)
        right.plot(steps * row["between"] / 1e6, row["losses"][1:], ".-", label=name)
    left.set_xlabel("step")
    left.set_ylabel("held-out loss, nats a character")
    right.set_xlabel("MB that a device has sent between slices")
    right.set_xscale("log")
    left.legend(fontsize=8)
    figure.savefig(path, dpi=120)


SECTION = Section(
    about="replicas made of slices, beside tower: loss over steps and over bytes",
    run=run,
    show=show,
    draw=draw,
)


if __name__ == "__main__":
    print(json.dumps(measure(int(sys.argv[1]))))
