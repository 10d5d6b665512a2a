"""Fine-tune a small transformer on the standard library's sources, a step every few micro-batches.

    python examples/finetune.py
    python examples/finetune.py --text unittest,doctest --every 8 --batch-size 4 --out runs/mine
    python examples/finetune.py --stop-after 150
    python examples/finetune.py --resume

It first trains a base model on some packages, character by character, unless --out has one that was
made with the same options. Then it fine-tunes the model on a package that the base model has not
seen, here `asyncio`. The optimizer is AdamW, with learning rates that decay from the head down to
the embeddings (`layerwise_decay`), after a clip of the gradient's norm, with an average of the
weights beside it (`moving_average`). All of that takes a step every few micro-batches
(`accumulate`). Some micro-batches are spoiled with NaN on purpose, to see that they are skipped;
--bad-batches 0 leaves all of them alone.

It writes to --out: the base model, checkpoints, `options.json`, `optimizer.json`, the whole
optimizer as a config, and the figure `finetune.png`: losses on held-out text with and without the
average, skipped micro-batches, and learning rates and relative updates by group. With --stop-after
or Ctrl-C it saves a checkpoint and stops, also in the middle of a step. A run that is stopped and
resumed ends with the same parameters, bit for bit, as an uninterrupted run.
"""

import functools
import math
import shlex
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from extras import require

require("flax", "matplotlib", "orbax", "rich")  # before they are imported

import jax
import jax.numpy as jnp
import numpy as np
from command_line import Refused, one_line
from digits_run import given
from finetune_figure import draw, groups, results
from finetune_model import Transformer, loss_of
from finetune_run import (
    Base,
    History,
    Options,
    Run,
    check,
    noticed_interrupts,
    parse,
    progress,
    restore,
    save,
    words,
)
from finetune_text import Text, read
from rich.console import Console

import gradxform as gx

MEASURED = 20  # how often held-out text is measured
SAVED = 4  # how often a checkpoint is saved, besides where a run stops


class Diverged(Exception):
    """The loss is no longer finite: one line on stderr and exit code 1."""


class Stopped(Exception):
    """--stop-after: the run is saved, and to be resumed. Exit code 0."""


# ------------------------------------------------------------------------------- the optimizers


def schedule(peak: float, steps: int, end: float) -> Any:
    """Return a rate that rises for a tenth of the steps, then falls to `end` times its peak."""
    return gx.warmup_cosine_decay_schedule(peak / 10, peak, steps // 10, steps, end * peak)


def base_optimizer(options: Options) -> Any:
    """Return the optimizer of the base model."""
    rate = schedule(options.base_learning_rate, options.base_steps, 0.1)
    return gx.chain(gx.clip_by_global_norm(1.0), gx.adamw(rate, b2=0.99))


def tuning_optimizer(options: Options, params: Any) -> Any:
    """Return the optimizer of the fine-tuning: what a step does, and around it, when."""
    # The average does what a rate that falls to 0 would do.
    rate = schedule(options.learning_rate, options.steps, 0.5)
    step = gx.adamw(rate, b2=0.99, weight_decay=0.01, weight_decay_mask=gx.ndim_at_least(2))
    step = gx.param_groups(step, gx.layerwise_decay(params, options.layer_decay))
    step = gx.chain(gx.clip_by_global_norm(1.0), step)
    step = gx.moving_average(step, options.average, num_updates="count")
    step = gx.with_metrics(step, per="group", norms=("update", "parameter"))
    return gx.accumulate(step, options.every)


# ---------------------------------------------------------------------------------- the training


class State(NamedTuple):
    """Everything that a micro-batch changes."""

    taken: jax.Array  # micro-batches, which say where in the text the next one is
    key: jax.Array  # of the dropout
    params: Any
    opt_state: Any


BaseStep = Callable[[Any, Any, Any], tuple[Any, Any]]
MicroStep = Callable[[State, Any, Any], tuple[State, dict[str, jax.Array]]]
Measure = Callable[[Any, Any], jax.Array]


@functools.cache
def micro_step_of(tx: Any, options: Options) -> MicroStep:
    """Return the work of a micro-batch: of a state, windows, and a factor of the loss.

    Optimizers and options are values: for equal ones, it is compiled only once.
    """
    model = model_of(options, options.dropout)

    def micro_step(state: State, windows: Any, scale: Any) -> tuple[State, dict[str, jax.Array]]:
        key, of_dropout = jax.random.split(state.key)

        def loss_fn(params: Any) -> jax.Array:
            return scale * loss_of(model, params, windows, of_dropout)

        loss, grads = jax.value_and_grad(loss_fn)(state.params)
        rates = gx.current_learning_rates(tx, state.opt_state)
        updates, opt_state = tx.update(grads, state.opt_state, state.params)
        params = gx.apply_updates(state.params, updates)
        numbers = gx.metrics(opt_state)
        ratios = {name: x for name, x in numbers.items() if name.startswith("update_ratio/")}
        shown = {"loss": loss, "skipped": numbers["total_skipped"], **rates, **ratios}
        return State(state.taken + 1, key, params, opt_state), shown

    return jax.jit(micro_step, donate_argnums=0)


def model_of(options: Options, dropout: float = 0.0) -> Transformer:
    """Return the model."""
    return Transformer(options.layers, options.width, dropout)


def bad_batches(options: Options) -> list[int]:
    """Return the numbers, from 0, of the micro-batches to spoil."""
    random = np.random.default_rng([options.seed, 1])
    return sorted(random.permutation(options.micro_batches)[: options.bad_batches].tolist())


@functools.cache
def base_step_of(tx: Any, options: Options) -> BaseStep:
    """Return a step of the base model."""
    model = model_of(options)

    def train_step(params: Any, opt_state: Any, windows: Any) -> tuple[Any, Any]:
        grads = jax.grad(lambda params: loss_of(model, params, windows))(params)
        updates, opt_state = tx.update(grads, opt_state, params)
        return gx.apply_updates(params, updates), opt_state

    return jax.jit(train_step, donate_argnums=(0, 1))


@functools.cache
def measure_of(options: Options) -> Measure:
    """Return the loss of the model without dropout, of parameters and windows."""
    model = model_of(options)
    return jax.jit(lambda params, windows: loss_of(model, params, windows))


def train_base(
    options: Options, text: Text, params: Any, measure: Measure, console: Console
) -> Any:
    """Train the base model; return its parameters."""
    tx = base_optimizer(options)
    step = base_step_of(tx, options)
    opt_state, steps = tx.init(params), options.base_steps
    often = math.ceil(steps / (MEASURED // 2))
    with progress(console) as bar:
        task = bar.add_task("base model", total=steps, numbers="compiling")
        for i in range(steps):
            params, opt_state = step(params, opt_state, text.batch(i))
            bar.update(task, completed=i + 1)
            if (i + 1) % often == 0 or i + 1 == steps:
                loss = float(measure(params, text.held_out))
                check_finite(loss, f"step {i + 1} of the base model", "--base-learning-rate")
                report(console, f"base model {i + 1:>4}/{steps}  held-out loss {loss:.3f}")
                bar.update(task, numbers=f"held-out loss {loss:.3f}")
    return params


def tune(
    run: Run,
    options: Options,
    text: Text,
    state: State,
    step: MicroStep,
    measure: Measure,
    stop_after: int | None,
    console: Console,
) -> tuple[State, History]:
    """Fine-tune to the end or to --stop-after, from the last checkpoint if there is one."""
    total, bad = options.micro_batches, set(bad_batches(options))
    measured_every = options.every * math.ceil(options.steps / MEASURED)
    saved_every = options.every * math.ceil(options.steps / SAVED)
    history: History = {}
    with run.manager() as manager, noticed_interrupts() as interrupts, progress(console) as bar:
        saved = manager.latest_step()
        if saved is not None:
            state, history = restore(manager, saved, state)
        else:
            losses = measured(state, text, measure)
            append(history, [{"at": 0, **losses}])
        done = int(state.taken)
        task = bar.add_task("tuning", total=total, completed=done, numbers="compiling")
        waiting: list[dict[str, Any]] = []  # numbers that are still on the device
        for taken in range(done + 1, total + 1):
            scale = math.nan if taken - 1 in bad else 1.0
            state, shown = step(state, text.batch(taken - 1), np.float32(scale))
            waiting.append(shown)
            bar.update(task, completed=taken)
            stops = bool(interrupts) or taken == stop_after
            if taken % measured_every == 0 or taken == total:
                append(history, waiting)
                losses = measured(state, text, measure)
                check_finite(losses["raw"], f"micro-batch {taken}", "--learning-rate")
                append(history, [{"at": taken, **losses}])
                numbers = summary(history)
                report(console, f"micro-batch {taken:>4}/{total}  {numbers}")
                bar.update(task, numbers=numbers)
            if taken % saved_every == 0 or taken == total or stops:
                append(history, waiting)
                save(manager, taken, state, history)
            if stops and taken < total:
                command = f"python examples/finetune.py --resume --out {shlex.quote(str(run.out))}"
                where = (
                    f"micro-batch {taken} is saved, {inside(options, taken)}; go on with: {command}"
                )
                raise KeyboardInterrupt(where) if interrupts else Stopped(where)
    return state, history


def measured(state: State, text: Text, measure: Measure) -> dict[str, float]:
    """Return the held-out losses of the weights and of their average."""
    average = gx.eval_params(state.opt_state, state.params)
    each = {"raw": state.params, "averaged": average}
    return {name: float(measure(params, text.held_out)) for name, params in each.items()}


def append(history: History, waiting: list[dict[str, Any]]) -> None:
    """Move numbers to the history."""
    for shown in jax.device_get(waiting):
        for name, value in shown.items():
            history.setdefault(name, []).append(float(value))
    waiting.clear()


def summary(history: History) -> str:
    """Return the last measurement."""
    raw, averaged, skipped = (history[name][-1] for name in ("raw", "averaged", "skipped"))
    return f"held-out loss {raw:.3f}, averaged {averaged:.3f}, {skipped:.0f} skipped"


def go_on(run: Run) -> str:
    """Return the command that goes on with a run."""
    return f"go on with: python examples/finetune.py --resume --out {shlex.quote(str(run.out))}"


def inside(options: Options, taken: int) -> str:
    """Return where in a step the next micro-batch is."""
    step, part = divmod(taken, options.every)
    return f"{part} of {options.every} into step {step + 1}" if part else f"after step {step}"


def check_finite(loss: float, where: str, remedy: str) -> None:
    """Stop if a loss is not finite."""
    if not math.isfinite(loss):
        raise Diverged(f"the loss is {loss} after {where}; lower {remedy}.")


def report(console: Console, line: str) -> None:
    """Print a line of a log; a terminal has a progress bar instead."""
    if not console.is_terminal:
        print(line, flush=True)


# --------------------------------------------------------------------------------------- the run


def start(argv: Sequence[str] | None, console: Console) -> None:
    """Train as the command line says."""
    began = time.perf_counter()
    args = parse(argv, (__doc__ or "").split("\n")[0])
    run, chosen = Run(args.out), given(args, Options)
    options, tx = run.load(chosen) if args.resume else (Options(**chosen), None)
    done = run.epochs_done() if args.resume else 0
    check(options, args.stop_after, done)
    base_text, text = (
        Text(read(words(parts)), options.length, batch_size, options.seed)
        for parts, batch_size in (
            (options.base, options.base_batch_size),
            (options.text, options.batch_size),
        )
    )
    key = jax.random.key(options.seed)
    params = model_of(options).init(key, jnp.zeros((1, options.length), jnp.int32))["params"]
    tx = tx or tuning_optimizer(options, params)
    step = micro_step_of(tx, options)
    measure = measure_of(options)
    if args.resume:
        print(f"Resuming the run in {args.out}, {inside(options, done)}.")
    elif run.begin(options, tx):
        print(f"Starting over in {args.out}: the earlier run there is replaced.")
    console.print(groups(tx, params))
    base = Base(run.base, options, base_text.checksum)
    base_params = base.load(params)
    if base_params is None:
        parts = (
            f"{len(words(options.base))} packages and modules"
            if options.base == Options.base
            else options.base
        )
        print(f"Training the base model on {size(base_text)} of {parts}.", flush=True)
        base_params = train_base(options, base_text, params, measure, console)
        base.save(base_params)
    else:
        print(f"Using the base model in {run.base}.")
    bad = ", ".join(str(i + 1) for i in bad_batches(options))
    print(f"Fine-tuning it on {size(text)} of {some(options.text)}.")
    if bad:
        print(f"Spoiled with NaN on purpose (--bad-batches): the micro-batches {bad}.", flush=True)
    params = jax.tree.map(jnp.copy, base_params)  # a micro-batch donates its own
    state = State(jnp.zeros((), jnp.int32), jax.random.key(options.seed), params, tx.init(params))
    state, history = tune(run, options, text, state, step, measure, args.stop_after, console)
    average = gx.eval_params(state.opt_state, state.params)
    models = {"base": base_params, "fine-tuned": state.params, "averaged": average}
    texts = {options.text: text, "text of the base": base_text}
    losses = {
        who: {what: float(measure(params, of.held_out)) for what, of in texts.items()}
        for who, params in models.items()
    }
    console.print(results(losses))
    draw(run.figure, history, options.every, f"Fine-tuning on the sources of {options.text}")
    seconds = time.perf_counter() - began
    print(
        f"{summary(history).capitalize()} in {seconds:.1f} s; wrote {run.figure}, "
        f"{run.optimizer}, {run.options}, {run.base}/ and {run.checkpoints}/"
    )


def some(parts: str) -> str:
    """Return the names of a few parts, or how many there are."""
    names = words(parts)
    return ", ".join(names) if len(names) < 5 else f"{len(names)} packages and modules"


def size(text: Text) -> str:
    """Return how much there is to train on."""
    return f"{len(text.training) / 1e3:.0f} thousand characters"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the example; return the exit code."""
    try:
        start(argv, Console())
    except Stopped as stopped:
        print(f"Stopped: {stopped}")
    except (Refused, Diverged, OSError) as error:
        print(f"finetune.py: error: {one_line(error)}", file=sys.stderr)
        return 1 if isinstance(error, Diverged) else 2
    except KeyboardInterrupt as interrupt:
        where = str(interrupt) or "nothing new was saved."
        print(f"finetune.py: interrupted; {where}", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
