"""Section `losses`: the loss of small models at the end of training, beside that in float32.

The digits of scikit-learn and the characters of the standard library's sources, as the examples
train them. Every run gets the batches, the first parameters and the learning rates of the others.
"""

import itertools
import sys
import time
from collections.abc import Callable, Iterator
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
from benchmarks.timing import machine
from gradxform.losses import softmax_cross_entropy_with_integer_labels

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
SEEDS = 3
PARTS = ("asyncio", "collections", "email", "http", "importlib", "json")


class Run(NamedTuple):
    """How a run keeps its parameters and its state."""

    dtype: Any
    wrap: Callable[[Any], Any]


def bits(n: int, block: int, code: str, **more: Any) -> Callable[[Any], Any]:
    """Return a wrapper that quantizes states; the arrays of these models are small."""
    return lambda tx: gx.quantize_state(tx, n, block, code, 1024, **more)


RUNS: dict[str, Run] = {
    "float32": Run(jnp.float32, lambda tx: tx),
    "state in bfloat16": Run(jnp.float32, gx.state_dtype),
    "state in 8 bits": Run(jnp.float32, bits(8, 256, "float")),
    "state in 8 bits, dynamic": Run(jnp.float32, bits(8, 256, "dynamic")),
    "state in 4 bits": Run(jnp.float32, bits(4, 128, "float")),
    "state in 4 bits, dynamic": Run(jnp.float32, bits(4, 128, "dynamic")),
    "state in 4 bits, rank1": Run(jnp.float32, bits(4, 128, "rank1")),
    "nu as means": Run(jnp.float32, lambda tx: gx.factor_state(tx, min_dim_size_to_factor=32)),
    "mu in 4 bits, nu as means": Run(
        jnp.float32,
        lambda tx: gx.factor_state(
            bits(4, 128, "float", which="mu")(tx), min_dim_size_to_factor=32
        ),
    ),
    "bfloat16": Run(jnp.bfloat16, lambda tx: tx),
    "bfloat16, masters": Run(jnp.bfloat16, gx.master_weights),
    "bfloat16, remainders": Run(jnp.bfloat16, lambda tx: gx.master_weights(tx, remainders=True)),
    "bfloat16, 8 bits": Run(jnp.bfloat16, lambda tx: gx.master_weights(tx, remainders=8)),
    "bfloat16, by chance": Run(jnp.bfloat16, lambda tx: gx.stochastic_rounding(tx, key=0)),
    "bfloat16, Kahan": Run(jnp.bfloat16, gx.kahan),
}


class Task(NamedTuple):
    """A model and its data.

    Attributes:
      params: the first parameters.
      batches: the batches of all steps, stacked.
      loss: the loss of parameters and a batch.
      held_out: a batch that is not trained on.
      rate: the largest learning rate.
    """

    params: Any
    batches: Any
    loss: Callable[[Any, Any], Any]
    held_out: Any
    rate: float


def digits(seed: int, steps: int) -> Task:
    """Return a network of two hidden layers for the digits, and its batches."""
    from digits import load_data  # pyright: ignore

    train, test = load_data()
    rng = np.random.default_rng(seed)
    sizes = (64, 256, 256, 10)
    params = {
        f"layer{i}": {
            "kernel": jnp.asarray(rng.normal(size=(a, b)) * (2 / a) ** 0.5, jnp.float32),
            "bias": jnp.zeros(b),
        }
        for i, (a, b) in enumerate(itertools.pairwise(sizes))
    }

    def loss(params: Any, batch: Any) -> Any:
        x, labels = batch
        for i in range(3):
            layer = params[f"layer{i}"]
            x = x.astype(layer["kernel"].dtype) @ layer["kernel"] + layer["bias"]
            x = jax.nn.relu(x) if i < 2 else x
        return jnp.mean(softmax_cross_entropy_with_integer_labels(x.astype(jnp.float32), labels))

    picked = rng.integers(len(train.labels), size=(steps, 64))
    flat = train.images.reshape(-1, 64)
    held_out = jnp.asarray(test.images.reshape(-1, 64)), jnp.asarray(test.labels)
    return Task(params, (flat[picked], train.labels[picked]), loss, held_out, 1e-3)


def characters(seed: int, steps: int) -> Task:
    """Return a transformer of two layers for the next character, and its batches."""
    from finetune_model import Transformer  # pyright: ignore
    from finetune_text import Text, read  # pyright: ignore

    text = Text(read(PARTS), 64, 16, seed)
    model = Transformer(2, 64)
    params = model.init(jax.random.key(seed), text.held_out[:1, :-1])["params"]

    def loss(params: Any, windows: Any) -> Any:
        logits: Any = model.apply({"params": params}, windows[:, :-1])
        return jnp.mean(
            softmax_cross_entropy_with_integer_labels(logits.astype(jnp.float32), windows[:, 1:])
        )

    batches = np.stack([text.batch(i) for i in range(steps)]).astype(np.int32)
    return Task(params, batches, loss, jnp.asarray(text.held_out), 8e-3)


TASKS: dict[str, Callable[[int, int], Task]] = {"digits": digits, "characters": characters}


def trained(task: Task, run: Run, steps: int) -> float:
    """Return the held-out loss at the end of training."""
    rate = gx.warmup_cosine_decay_schedule(0.0, task.rate, steps // 10, steps)
    tx = run.wrap(gx.adamw(rate, b2=0.99, weight_decay=0.01))
    params = jax.tree.map(lambda p: p.astype(run.dtype), task.params)

    def step(carry: Any, batch: Any) -> tuple[Any, None]:
        params, state = carry
        updates, state = tx.update(jax.grad(task.loss)(params, batch), state, params)
        return (gx.apply_updates(params, updates), state), None

    train = jax.jit(lambda carry: jax.lax.scan(step, carry, task.batches)[0])
    params, _ = train((params, tx.init(params)))
    return float(jax.jit(task.loss)(params, task.held_out))


def _wanted(options: Options) -> Iterator[tuple[str, str]]:
    tasks = ("digits",) if options.quick else tuple(TASKS)
    names = list(RUNS)[:3] if options.quick else list(RUNS)
    return ((task, name) for task in tasks for name in names)


def run(options: Options, job: Job) -> Results:
    """Train every run on each task with several seeds."""
    if str(EXAMPLES) not in sys.path:
        sys.path.insert(0, str(EXAMPLES))
    steps = 20 if options.quick else 300
    seeds = 1 if options.quick else SEEDS
    wanted = list(_wanted(options))
    job.plan(len(wanted))
    results: Results = {
        "section": "losses",
        "machine": machine.describe(),
        "options": options.as_json(),
        "steps": steps,
        "cases": [],
    }
    tasks: dict[str, list[Task]] = {}
    for task, name in wanted:
        job.begin(f"{name} on the {task}")
        if task not in tasks:
            tasks[task] = [TASKS[task](options.seed + i, steps) for i in range(seeds)]
        start = time.perf_counter()
        losses = [trained(each, RUNS[name], steps) for each in tasks[task]]
        row = {"task": task, "run": name, "losses": losses, "seconds": time.perf_counter() - start}
        plain = next((c["losses"] for c in results["cases"] if c["task"] == task), losses)
        row["of float32"] = float(np.mean(losses) / np.mean(plain))
        results["cases"].append(row)
        job.advance()
        job.save(results)
    return results


def show(results: Results, console: Console) -> None:
    """Print a row for each run of each task."""
    title = f"held-out loss after {results['steps']} steps, mean over seeds; of that in float32"
    table = Table("task", "run", "loss", "of float32", title=title, title_justify="left")
    for row in results["cases"]:
        numbers = f"{np.mean(row['losses']):.4f}", f"{row['of float32']:.4f}"
        table.add_row(row["task"], row["run"], *numbers)
    console.print(table)


def draw(results: Results, path: Path) -> None:
    """Write a bar for each run: its loss, of that in float32."""
    cases = results["cases"]
    figure = Figure(figsize=(6.5, 0.3 * len(cases) + 1.3), layout="constrained")
    FigureCanvasAgg(figure)  # no window, and pyplot's global state is left alone
    axes = figure.subplots()
    axes.barh([f"{c['task']}, {c['run']}" for c in cases], [c["of float32"] for c in cases])
    axes.axvline(1.0, color="black", linewidth=0.8)
    axes.invert_yaxis()
    axes.set_xlabel("held-out loss, of that in float32")
    figure.savefig(path, dpi=120)


SECTION = Section(
    about="the loss of small models whose state or parameters have fewer bits",
    run=run,
    show=show,
    draw=draw,
)
