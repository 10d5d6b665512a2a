"""Section `model`: the whole training step of a Flax transformer, beside the same with Optax.

What a user waits for: the first step, which is traced and compiled, and then every other one. The
model is that of `examples/finetune.py`, its batches the characters of the standard library.
"""

import gc
import sys
import time
from collections.abc import Callable
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
from benchmarks.timing import machine
from benchmarks.timing.measure import turned
from benchmarks.timing.staging import static_costs
from gradxform.losses import softmax_cross_entropy_with_integer_labels

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
LAYERS, WIDTH, LENGTH, BATCH = 5, 64, 64, 16
RATE = 1e-3


class Pair(NamedTuple):
    """An optimizer here, and the one of Optax that it stands beside."""

    ours: Callable[[], Any]
    theirs: Callable[[], Any]


def _adamw() -> Any:
    return optax.adamw(RATE)


def _clipped() -> Any:
    return optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(RATE))


# Where Optax does not have the optimizer, its AdamW.
PAIRS: dict[str, Pair] = {
    "adamw": Pair(lambda: gx.adamw(RATE), _adamw),
    "clip + adamw": Pair(lambda: gx.chain(gx.clip_by_global_norm(1.0), gx.adamw(RATE)), _clipped),
    "MultiSteps": Pair(
        lambda: gx.MultiSteps(gx.adamw(RATE), 4), lambda: optax.MultiSteps(optax.adamw(RATE), 4)
    ),
    "muon": Pair(lambda: gx.muon(RATE), lambda: optax.contrib.muon(RATE)),
    # The least that an optimizer can cost: the rest of this first step is the model's.
    "sgd, beside adamw": Pair(lambda: gx.sgd(RATE), _adamw),
    "soap, beside adamw": Pair(lambda: gx.soap(RATE), _adamw),
    "8 bits, beside adamw": Pair(lambda: gx.quantize_state(gx.adamw(RATE)), _adamw),
}
# Temporary memory is in copies of the parameters; the rest is of the step with Optax.
COLUMNS = ("trace+lower", "compile", "first", "step", "temp", "temp, Optax")


class _Problem(NamedTuple):
    """The model with its parameters and a batch."""

    loss: Callable[[Any, Any], Any]
    params: Any
    batch: Any


def _problem(seed: int, layers: int) -> _Problem:
    if str(EXAMPLES) not in sys.path:
        sys.path.insert(0, str(EXAMPLES))
    from finetune_model import Transformer  # pyright: ignore
    from finetune_text import Text, read  # pyright: ignore

    text = Text(read(("json",)), LENGTH, BATCH, seed)
    model = Transformer(layers, WIDTH)
    params = model.init(jax.random.key(seed), text.held_out[:1, :-1])["params"]

    def loss(params: Any, windows: Any) -> Any:
        logits: Any = model.apply({"params": params}, windows[:, :-1])
        return jnp.mean(softmax_cross_entropy_with_integer_labels(logits, windows[:, 1:]))

    return _Problem(loss, params, jnp.asarray(text.batch(0), jnp.int32))


def _step(problem: _Problem, tx: Any, apply: Callable[[Any, Any], Any]) -> Any:
    def step(params: Any, state: Any, batch: Any) -> Any:
        loss, grads = jax.value_and_grad(problem.loss)(params, batch)
        updates, state = tx.update(grads, state, params)
        return apply(params, updates), state, loss

    return jax.jit(step, donate_argnums=(0, 1))


def _measured(problem: _Problem, pair: Pair, options: Options) -> dict[str, Any]:
    """Return the figures of a pair; the two are staged and timed in turns."""
    sides = {
        "ours": (pair.ours(), gx.apply_updates),
        "theirs": (pair.theirs(), optax.apply_updates),
    }
    seconds: dict[str, dict[str, list[float]]] = {
        figure: {side: [] for side in sides} for figure in ("trace+lower", "compile", "step")
    }
    compiled: dict[str, Any] = {}
    for i in range(1 if options.quick else 5):
        for side in turned(sides, i):
            step = _step(problem, *sides[side])
            arguments = problem.params, sides[side][0].init(problem.params), problem.batch
            jax.clear_caches()
            gc.collect()
            start = time.perf_counter()
            lowered = step.lower(*arguments)
            middle = time.perf_counter()
            compiled[side] = lowered.compile()
            seconds["trace+lower"][side].append(middle - start)
            seconds["compile"][side].append(time.perf_counter() - middle)
    carries = {
        side: jax.tree.map(jnp.copy, (problem.params, tx.init(problem.params)))
        for side, (tx, _) in sides.items()
    }
    for i in range(3 if options.quick else max(options.repeats, 20)):
        for side in turned(sides, i):
            start = time.perf_counter()
            *carry, _ = jax.block_until_ready(compiled[side](*carries[side], problem.batch))
            seconds["step"][side].append(time.perf_counter() - start)
            carries[side] = tuple(carry)
    medians = {
        figure: {side: float(np.median(x)) for side, x in by_side.items()}
        for figure, by_side in seconds.items()
    }
    medians["first"] = {
        side: medians["trace+lower"][side] + medians["compile"][side] for side in sides
    }
    size = gd.hlo.copy_bytes(problem.params)
    temp = {side: static_costs(x)["temp"] / size for side, x in compiled.items()}
    row: dict[str, Any] = {figure: x["ours"] / x["theirs"] for figure, x in medians.items()}
    return row | {"temp": temp["ours"], "temp, Optax": temp["theirs"], "seconds": medians}


def run(options: Options, job: Job) -> Results:
    """Measure the step of each pair."""
    names = list(PAIRS)[:1] if options.quick else list(PAIRS)
    job.plan(len(names))
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        problem = _problem(options.seed, 1 if options.quick else LAYERS)
        results: Results = {
            "section": "model",
            "machine": machine.describe(),
            "options": options.as_json(),
            "leaves": len(jax.tree.leaves(problem.params)),
            "cases": [],
        }
        for name in names:
            job.begin(name)
            results["cases"].append({"optimizer": name, **_measured(problem, PAIRS[name], options)})
            job.advance()
            job.save(results)
    return results


def show(results: Results, console: Console) -> None:
    """Print a row for each optimizer."""
    title = (
        f"the step of a transformer of {results['leaves']} arrays, of that with Optax; temp in "
        "copies of the parameters"
    )
    table = Table("optimizer", *COLUMNS, title=title, title_justify="left")
    for row in results["cases"]:
        table.add_row(row["optimizer"], *(f"{row[column]:.3g}" for column in COLUMNS))
    console.print(table)


def draw(results: Results, path: Path) -> None:
    """Write two bars for each optimizer: the first step and the others, of those with Optax."""
    cases = results["cases"]
    figure = Figure(figsize=(6.5, 0.5 * len(cases) + 1.3), layout="constrained")
    FigureCanvasAgg(figure)  # no window, and pyplot's global state is left alone
    axes = figure.subplots()
    places = np.arange(len(cases))
    for i, column in enumerate(("first", "step")):
        axes.barh(
            places + 0.4 * i,
            [c[column] for c in cases],
            0.4,
            label="first step" if column == "first" else "other steps",
        )
    axes.set_yticks(places + 0.2, [c["optimizer"] for c in cases])
    axes.axvline(1.0, color="black", linewidth=0.8)
    axes.invert_yaxis()
    axes.set_xlabel("of the step with Optax")
    axes.legend()
    figure.savefig(path, dpi=120)


SECTION = Section(
    about="the whole step of a Flax transformer: the first one, and the others",
    run=run,
    show=show,
    draw=draw,
)
