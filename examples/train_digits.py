"""Train a small Flax network on handwritten digits with any optimizer of gradxform, by name.

The 1797 images of 8 x 8 pixels come with scikit-learn. A quarter of them is held out.

    python examples/train_digits.py
    python examples/train_digits.py --optimizer lion --learning-rate 1e-3 --epochs 20
    python examples/train_digits.py --optimizer my_chain.json --out runs/mine
    python examples/train_digits.py --resume --out runs/mine

It writes to --out: the figure `training.png`, checkpoints of the last epochs, `options.json`, and
`optimizer.json`, the whole optimizer as a config, which --optimizer accepts. A run that is stopped
and resumed ends with the same parameters, bit for bit, as an uninterrupted run. Without --resume, a
run starts over and replaces an earlier run in the same directory.
"""

import dataclasses
import math
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from extras import require

require("flax", "matplotlib", "orbax", "rich", "sklearn")  # before they are imported

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
from command_line import Refused, has_learning_rate, make_by_name, one_line, takes_schedule
from digits import Data, load_data
from digits_run import (
    Options,
    Run,
    draw,
    flag,
    is_config,
    over_lines,
    parse,
    read_optimizer,
)
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

import gradxform as gx

# The peak learning rates with which this network trains well; others start from 1e-3.
LEARNING_RATES = {
    "sgd": 0.3,
    "adagrad": 0.1,
    "adam": 5e-3,
    "adamw": 5e-3,
    "amsgrad": 5e-3,
    "lamb": 1e-2,
    "lars": 3.0,
    "lion": 1e-3,
    "nadam": 5e-3,
    "nadamw": 5e-3,
    "rmsprop": 3e-3,
    "signum": 1e-3,
}


class Diverged(Exception):
    """The loss is no longer finite: one line on stderr and exit code 1."""


# ------------------------------------------------------------------------------- the optimizer


def make_optimizer(options: Options, steps: int) -> tuple[Any, Options]:
    """Return the optimizer for a run of this many steps, and the options with all defaults set."""
    name, peak = options.optimizer, options.learning_rate
    if is_config(name):
        for key in ("learning_rate", "schedule"):
            if getattr(options, key) is not None:
                raise Refused(f"{flag(key)}: {name} says it already; leave the option out.")
        return read_optimizer(Path(name)), options
    if not has_learning_rate(name):
        for key in ("learning_rate", "schedule"):
            if getattr(options, key) is not None:
                raise Refused(f"{flag(key)}: {name} takes no learning rate; leave the option out.")
        return make_by_name(name, None, options.seed), options
    peak = peak or LEARNING_RATES.get(name, 1e-3)
    schedule = options.schedule or ("cosine" if takes_schedule(name) else "constant")
    rate: Any = peak
    if schedule == "cosine":
        rate = gx.warmup_cosine_decay_schedule(
            init_value=peak / 10,
            peak_value=peak,
            warmup_steps=steps // 20,
            decay_steps=steps,
            end_value=peak / 100,
        )
    tx = make_by_name(name, rate, options.seed)
    return tx, dataclasses.replace(options, learning_rate=peak, schedule=schedule)


def learning_rate_of(tx: Any) -> Any:
    """Return the first learning rate in a chain, a number or a schedule, or None.

    Transforms are dataclasses, so a tool can look inside any chain. The figure shows the learning
    rate at the training steps, even if a wrapper such as `MultiSteps` counts its own steps.
    """
    parts = tx if isinstance(tx, tuple) else ()
    if dataclasses.is_dataclass(tx):
        fields = {field.name: getattr(tx, field.name) for field in dataclasses.fields(tx)}
        if "learning_rate" in fields:
            return fields["learning_rate"]
        parts = fields.values()
    return next((rate for part in parts if (rate := learning_rate_of(part)) is not None), None)


# --------------------------------------------------------------------- the data and the network


def batches(data: Data, options: Options, epoch: int) -> Iterator[Data]:
    """Yield the batches of an epoch, shuffled, each image shifted by up to one pixel.

    They depend only on the seed and the epoch, so that a resumed run sees the same batches.
    """
    random = np.random.default_rng([options.seed, epoch])
    n = len(data.labels)
    order = random.permutation(n)
    down, right = random.integers(3, size=(2, n, 1, 1))
    padded = np.pad(data.images, ((0, 0), (1, 1), (1, 1), (0, 0)))
    pixels = np.arange(8)
    images = padded[np.arange(n)[:, None, None], down + pixels[:, None], right + pixels]
    whole = n - n % options.batch_size  # one shape, hence one compilation
    for rows in order[:whole].reshape(-1, options.batch_size):
        yield Data(images[rows], data.labels[rows])


class Net(nn.Module):
    """Two convolutions, then two dense layers."""

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        x = nn.relu(nn.Conv(32, (3, 3))(x))
        x = nn.relu(nn.Conv(64, (3, 3), strides=2)(x))
        x = nn.relu(nn.Dense(64)(x.reshape(x.shape[0], -1)))
        return nn.Dense(10)(x)


def measure(params: Any, data: Data) -> tuple[jax.Array, jax.Array]:
    """Return the mean cross-entropy and the accuracy."""
    logits: Any = Net().apply(params, data.images)
    chosen = jnp.take_along_axis(nn.log_softmax(logits), data.labels[:, None], axis=-1)
    return -jnp.mean(chosen), jnp.mean(jnp.argmax(logits, axis=-1) == data.labels)


# ---------------------------------------------------------------------------------- the training


class State(NamedTuple):
    """Everything that a step changes."""

    step: jax.Array
    params: Any
    opt_state: Any


Step = Callable[[State, Data], tuple[State, dict[str, jax.Array]]]
History = dict[str, list[float]]


def prepare(tx: Any, options: Options, data: Data) -> tuple[State, Step]:
    """Return the initial state and the training step, to be compiled at its first call."""
    rate = learning_rate_of(tx)

    def train_step(state: State, batch: Data) -> tuple[State, dict[str, jax.Array]]:
        (loss, accuracy), grads = jax.value_and_grad(measure, has_aux=True)(state.params, batch)
        # Some optimizers also need the loss, as a number or a function; the others ignore it.
        updates, opt_state = tx.update(
            grads, state.opt_state, state.params, value=loss, obj_fn=lambda p: measure(p, batch)[0]
        )
        params = gx.apply_updates(state.params, updates)
        metrics = {"loss": loss, "accuracy": accuracy, "update_norm": gx.global_norm(updates)}
        if rate is not None:
            metrics["learning_rate"] = rate(state.step) if callable(rate) else jnp.float32(rate)
        return State(state.step + 1, params, opt_state), metrics

    step = jax.jit(train_step, donate_argnums=0)
    params = Net().init(jax.random.key(options.seed), data.images[:1])
    try:
        state = State(jnp.zeros((), jnp.int32), params, tx.init(params))
        # Trace now, so that an unsuitable optimizer is refused before anything is written.
        jax.eval_shape(step, state, next(batches(data, options, 1)))
    except (ValueError, TypeError) as error:
        raise Refused(one_line(error)) from error
    return state, step


def train(
    run: Run, options: Options, data: tuple[Data, Data], state: State, step: Step, console: Console
) -> History:
    """Train to the last epoch, from the last checkpoint if there is one; return the history."""
    training, held_out = data
    evaluate = jax.jit(measure)
    history: History = {}
    bar = Progress(
        TextColumn("epoch"),
        MofNCompleteColumn(),
        BarColumn(bar_width=14),  # all fits in 80 columns
        TextColumn("{task.fields[numbers]}"),
        TimeRemainingColumn(),
        console=console,
        disable=not console.is_terminal,  # a log gets a line for each epoch instead
    )
    with run.manager() as manager, bar:
        done = manager.latest_step() or 0
        if done:
            state, history = restore(manager, done, state)
        task = bar.add_task("", total=options.epochs, completed=done, numbers="compiling")
        for epoch in range(done + 1, options.epochs + 1):
            metrics = []
            for batch in batches(training, options, epoch):
                state, measured = step(state, batch)
                metrics.append(measured)
            loss, accuracy = evaluate(state.params, held_out)
            metrics.append({"held_out_loss": loss, "held_out_accuracy": accuracy})
            # One transfer per epoch: until here, Python runs ahead of the device.
            metrics = jax.device_get(metrics)
            check_finite(metrics, epoch)
            for name, value in ((k, v) for measured in metrics for k, v in measured.items()):
                history.setdefault(name, []).append(float(value))
            save(manager, epoch, state, history)
            numbers = summary(metrics)
            bar.update(task, completed=epoch, numbers=numbers)
            if not console.is_terminal:
                print(f"epoch {epoch:>3}/{options.epochs}  {numbers}", flush=True)
    return history


def save(manager: ocp.CheckpointManager, epoch: int, state: State, history: History) -> None:
    """Save a checkpoint: the training state, and the history for the figure."""
    parts = {"state": ocp.args.StandardSave(state), "history": ocp.args.JsonSave(history)}
    manager.save(epoch, args=ocp.args.Composite(**parts))


def restore(manager: ocp.CheckpointManager, epoch: int, like: State) -> tuple[State, History]:
    """Return the state and the history of a checkpoint; `like` has its structure and shapes."""
    parts = {"state": ocp.args.StandardRestore(like), "history": ocp.args.JsonRestore()}
    try:
        restored = manager.restore(epoch, args=ocp.args.Composite(**parts))
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise Refused(f"cannot read the checkpoint of epoch {epoch}: {one_line(error)}") from error
    return restored["state"], restored["history"]


def check_finite(metrics: list[dict[str, Any]], epoch: int) -> None:
    """Stop if a loss of this epoch is not finite."""
    for i, measured in enumerate(metrics):
        loss = measured["loss"] if "loss" in measured else measured["held_out_loss"]
        if not math.isfinite(loss):
            where = f"step {i + 1} of" if "loss" in measured else "the end of"
            raise Diverged(f"the loss is {loss} at {where} epoch {epoch}; lower the learning rate.")


def summary(metrics: list[dict[str, Any]]) -> str:
    """Return a summary of an epoch."""
    *steps, end = metrics
    loss, accuracy = (np.mean([m[name] for m in steps]) for name in ("loss", "accuracy"))
    return f"loss {loss:.4f} accuracy {accuracy:.3f} held-out {end['held_out_accuracy']:.3f}"


def start(given: dict[str, Any], out: Path, resume: bool, console: Console) -> None:
    """Train as the command line says."""
    began = time.perf_counter()
    run, data = Run(out), load_data()
    size = len(data[0].labels)
    if resume:
        options, tx = run.load(given)
    else:
        options = Options(**given)
        if options.batch_size > size:
            raise Refused(f"--batch-size {options.batch_size}: there are {size} training images.")
        tx, options = make_optimizer(options, options.epochs * (size // options.batch_size))
    state, step = prepare(tx, options, data[0])
    if resume:
        run.save(options)
        print(f"Resuming the run in {out} after epoch {run.epochs_done()} of {options.epochs}.")
    elif run.begin(options, tx):
        print(f"Starting over in {out}: the earlier run there is replaced.")
    print(over_lines(repr(tx)), flush=True)
    history = train(run, options, data, state, step, console)
    accuracy = history["held_out_accuracy"][-1]
    name = Path(options.optimizer).name
    draw(run.figure, history, f"{name} on handwritten digits: held-out accuracy {accuracy:.4f}")
    print(
        f"Held-out accuracy {accuracy:.4f} in {time.perf_counter() - began:.1f} s; wrote "
        f"{run.figure}, {run.optimizer}, {run.options} and {run.checkpoints}/"
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run the example; return the exit code."""
    out = None
    try:
        given, out, resume = parse(argv, (__doc__ or "").split("\n")[0])
        start(given, out, resume, Console())
    except (Refused, Diverged, OSError) as error:
        print(f"train_digits.py: error: {one_line(error)}", file=sys.stderr)
        return 1 if isinstance(error, Diverged) else 2
    except KeyboardInterrupt:
        go_on = "no epoch was saved."
        if out and (done := Run(out).epochs_done()):
            command = f"python examples/train_digits.py --resume --out {shlex.quote(str(out))}"
            go_on = f"epoch {done} is saved; go on with: {command}"
        print(f"train_digits.py: interrupted; {go_on}", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
