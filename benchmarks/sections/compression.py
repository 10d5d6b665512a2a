"""Section `compression`: what compressed gradients send, and where training with them ends.

The digits of scikit-learn on eight replicas. Accuracies are simulated on one device; bytes are
counted in the program of eight, in a process of its own.
"""

import json
import sys
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
from benchmarks.sections.losses import EXAMPLES, digits
from benchmarks.sections.wire import on_devices
from benchmarks.subjects.sharded import DEVICES
from benchmarks.timing import machine

SEEDS, STEPS = 5, 630
AXIS = "replica"
FORMS: dict[str, dict[str, Any]] = {
    "float32": {},
    "bfloat16": {"wire_dtype": "bfloat16"},
    "int8": {"compress": gd.int8()},
    "float8": {"compress": gd.float8()},
    "sign": {"compress": gd.sign()},
    "top 1%": {"compress": gd.top_k(0.01)},
    "rank 4": {"compress": gd.powersgd(4)},
}
METHODS: dict[str, Callable[..., Any]] = {
    "tower, momentum": lambda rate, **how: gd.tower(gx.sgd(rate(0.03), 0.9), AXIS, **how),
    "tower, AdamW": lambda rate, **how: gd.tower(_adamw(rate), AXIS, **how),
    "averages, AdamW": lambda rate, **how: gd.model_average(_adamw(rate), AXIS, period=10, **how),
}


def _adamw(rate: Callable[[float], Any]) -> Any:
    return gx.adamw(rate(1e-3), b2=0.99, weight_decay=0.01)


def stepper(task: Any, tx: Any, replicas: Any) -> Any:
    """Return the step of replicas, each with its share of a batch."""

    def step(params: Any, state: Any, batch: Any) -> Any:
        grads = jax.grad(task.loss)(params, batch)
        return tx.step(grads, state, params)

    return replicas.wrap(step, donate_argnums=(0, 1))


def accuracy(task: Any, tx: Any, steps: int) -> float:
    """Return the held-out accuracy, in percent, at the end of training."""
    replicas = gd.Replicas(AXIS, n=DEVICES, mode="vmap")
    params = replicas.replicate(task.params)
    state = replicas.wrap(tx.init)(params)
    step = stepper(task, tx, replicas)
    split = jax.tree.map(lambda x: x.reshape(steps, DEVICES, -1, *x.shape[2:]), task.batches)

    @jax.jit
    def train(carry: Any) -> Any:
        return jax.lax.scan(lambda carry, batch: (step(*carry, batch), None), carry, split)[0]

    params, _ = train((params, state))
    mean = jax.tree.map(lambda p: jnp.mean(p, axis=0), params)
    images, labels = task.held_out
    return 100 * float(jnp.mean(jnp.argmax(scores(mean, images), axis=-1) == labels))


def scores(params: Any, x: Any) -> Any:
    """Return the scores of the ten digits."""
    last = len(params) - 1
    for i in range(last + 1):
        x = x @ params[f"layer{i}"]["kernel"] + params[f"layer{i}"]["bias"]
        x = jax.nn.relu(x) if i < last else x
    return x


def optimizer(method: str, form: str, steps: int) -> Any:
    """Return an optimizer of replicas that send their gradients, or parameters, in a form."""

    def rate(peak: float) -> Any:
        return gx.warmup_cosine_decay_schedule(0.0, peak, steps // 10, steps)

    return METHODS[method](rate, **FORMS[form])


def measure() -> dict[str, float]:
    """Return the bytes that an exchange sends, of a sum in float32; this needs eight devices."""
    sys.path.insert(0, str(EXAMPLES))
    task = digits(0, 1)
    replicas = gd.Replicas(AXIS, n=DEVICES)
    params = replicas.replicate(task.params)
    batch = replicas.split(jax.tree.map(lambda x: x[0], task.batches))
    sent = {}
    for method in METHODS:
        for form in FORMS:
            tx = optimizer(method, form, STEPS)
            state = replicas.wrap(tx.init)(params)
            program = stepper(task, tx, replicas).lower(params, state, batch).compile()
            wire = gd.hlo.wire_bytes(program, period=10)
            sent[f"{method}/{form}"] = wire.always + wire.conditional
    whole = sent["tower, AdamW/float32"]
    return {name: x / whole for name, x in sent.items()}


def run(options: Options, job: Job) -> Results:
    """Count the bytes, and train with every form and several seeds."""
    if str(EXAMPLES) not in sys.path:
        sys.path.insert(0, str(EXAMPLES))
    seeds, steps = (1, 20) if options.quick else (SEEDS, STEPS)
    job.plan(1 + len(METHODS) * len(FORMS))
    results: Results = {
        "section": "compression",
        "machine": machine.describe(),
        "options": options.as_json(),
        "steps": steps,
        "cases": [],
    }
    job.begin("counting")
    sent = on_devices("benchmarks.sections.compression")
    job.advance()
    tasks = [digits(options.seed + i, steps) for i in range(seeds)]
    for method in METHODS:
        for form in FORMS:
            job.begin(f"{method}, {form}")
            tx = optimizer(method, form, steps)
            reached = [accuracy(task, tx, steps) for task in tasks]
            row = {"method": method, "form": form, "sent": sent[f"{method}/{form}"]}
            row |= {"accuracy": float(np.mean(reached)), "deviation": float(np.std(reached))}
            results["cases"].append(row)
            job.advance()
            job.save(results)
    return results


def show(results: Results, console: Console) -> None:
    """Print a row for each method and form."""
    title = f"an exchange, of tower's in float32; held-out accuracy after {results['steps']} steps"
    table = Table("method", "form", "sent", "accuracy", title=title, title_justify="left")
    for row in results["cases"]:
        reached = f"{row['accuracy']:.2f} ± {row['deviation']:.2f}"
        table.add_row(row["method"], row["form"], f"1/{1 / row['sent']:.1f}", reached)
    console.print(table)


def draw(results: Results, path: Path) -> None:
    """Write the accuracy of each method and form over what it sends."""
    figure = Figure(figsize=(6.5, 4), layout="constrained")
    FigureCanvasAgg(figure)  # no window, and pyplot's global state is left alone
    axes = figure.subplots()
    for method in METHODS:
        rows = [row for row in results["cases"] if row["method"] == method]
        x, y = ([row[k] for row in rows] for k in ("sent", "accuracy"))
        axes.errorbar(x, y, [row["deviation"] for row in rows], fmt="o", capsize=3, label=method)
        for row in rows:
            axes.annotate(f" {row['form']}", (row["sent"], row["accuracy"]), fontsize=7)
    axes.set_xscale("log")
    axes.set_xlabel("bytes sent in an exchange, of a sum in float32")
    axes.set_ylabel("held-out accuracy, percent")
    axes.legend()
    figure.savefig(path, dpi=120)


SECTION = Section(
    about="compressed exchanges: bytes, and accuracy on the digits",
    run=run,
    show=show,
    draw=draw,
)


if __name__ == "__main__":
    print(json.dumps(measure()))
