"""Train a small network on handwritten digits with replicas in several processes.

    python examples/distributed_digits.py
    python examples/distributed_digits.py --method diloco --period 20 --processes 2
    python examples/distributed_digits.py --resume --processes 3
    python examples/distributed_digits.py --mode vmap
    srun python examples/distributed_digits.py --launcher cluster
    python examples/distributed_digits.py --launcher ray --address FIRST:6379

Outside a cluster, it starts --processes processes on this machine, each with a CPU as its device.
They communicate over the loopback interface. Every batch is divided over the replicas; images that
do not divide evenly are left out. --method says how replicas work together: `sync`, `sync_replicas`
and `zero1` exchange gradients at every step, the other methods exchange parameters every --period
steps. With --mode vmap, one process simulates all replicas.

It writes to --out: the figure `training.png` (the loss, and the distance between replicas),
checkpoints of the last epochs with the state of every replica, `options.json`, and
`optimizer.json`, the optimizer of a replica as a config. --resume continues a run that was stopped.
With the same number of processes, it reaches the same parameters, bit for bit. It also runs with
any other number of processes.

In a cluster, the launcher starts this script once for each process, in a directory that all of them
see. Every device is a replica. With --launcher ray, the workers of a cluster of Ray start
--processes processes, in the current directory, which all of them must see.
"""

import argparse
import dataclasses
import sys
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from extras import require

require("flax", "matplotlib", "orbax", "rich", "sklearn")  # before they are imported

import jax
import jax.numpy as jnp
import numpy as np
from command_line import Refused, one_line
from digits import Data, load_data
from digits_run import given, over_lines
from distributed_join import in_cluster, join_cluster, join_local
from distributed_launch import launch
from distributed_main import as_one_of_several, exit_code
from distributed_methods import AXIS, Sent, evaluated, make_method, resized
from distributed_run import History, Options, Run, draw, parse, restore, save, table, title
from jax import lax
from jax.experimental import multihost_utils
from ray_launch import launch_on_ray
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from train_digits import Net, batches, check_finite, make_optimizer, measure

import gradxform.distributed as gd
from gradxform.testing import hlo

NAME = "distributed_digits.py"
MEASURED = 64  # how often, at most, the distance between replicas is measured in an epoch

Carry = dict[str, Any]  # "params" and "state" of all replicas


# ---------------------------------------------------------------------- programs of a replica


def programs(tx: Any, r: gd.Replicas) -> tuple[Any, Any, Any]:
    """Return a step, an evaluation and a measurement, each written for one replica."""

    def train_step(carry: Carry, batch: Data) -> tuple[Carry, dict[str, Any]]:
        params, state = carry["params"], carry["state"]
        (loss, accuracy), grads = jax.value_and_grad(measure, has_aux=True)(params, batch)
        params, state = tx.step(grads, state, params)
        return {"params": params, "state": state}, {"loss": loss, "accuracy": accuracy}

    def evaluate(carry: Carry, data: Data) -> dict[str, Any]:
        together = evaluated(tx, carry["params"], carry["state"])
        return {"together": measure(together, data), "single": measure(carry["params"], data)}

    def distances(several: list[Any]) -> jax.Array:
        flat = [jnp.concatenate([jnp.ravel(x) for x in jax.tree.leaves(p)]) for p in several]
        mean = lax.pmean(jnp.stack(flat), AXIS)
        return jnp.linalg.norm(jnp.stack(flat) - mean, axis=1) / jnp.linalg.norm(mean, axis=1)

    return r.wrap(train_step), r.wrap(evaluate), r.wrap(distances)


# ----------------------------------------------------------------------------------- the training


class Prepared(NamedTuple):
    """The options and optimizers of a run."""

    options: Options
    inner: Any  # the optimizer of a replica
    tx: Any  # the wrapper that all replicas run


def prepare(args: argparse.Namespace, run: Run, images: int, n: int | None) -> Prepared:
    """Return the options and optimizers, from the command line or an earlier run.

    This does not write any files.

    Args:
      args: the command line.
      run: the directory of the run.
      images: the number of training images.
      n: the number of replicas; None if the options say it.
    """
    if args.resume:
        options, inner = run.load(given(args, Options))
    else:
        run.replaces()  # or refuses
        options, inner = Options(**given(args, Options)), None
    n = n or options.processes
    if not n <= options.batch_size <= images:
        raise Refused(
            f"--batch-size {options.batch_size}: must be from {n}, an image for each replica, to "
            f"{images}, the training images."
        )
    steps = options.epochs * (images // options.batch_size)
    if inner is None:
        inner, said = make_optimizer(options, steps)
        rate = {"learning_rate": said.learning_rate, "schedule": said.schedule}
        options = dataclasses.replace(options, **rate)
    tx = make_method(options.method, inner, options.period, n, steps)
    return Prepared(dataclasses.replace(options, processes=n), inner, tx)


def start(args: argparse.Namespace, run: Run, n: int | None) -> None:
    """Train in this process, alone or as one of several."""
    began = time.perf_counter()
    data = load_data()
    ready = prepare(args, run, len(data[0].labels), n)
    options = ready.options
    r = gd.Replicas(AXIS, n=options.processes, mode=options.mode)
    params = Net().init(jax.random.key(options.seed), data[0].images[:1])
    all_programs = programs(ready.tx, r)
    try:
        carry = {"params": r.replicate(params)}
        carry["state"] = r.wrap(ready.tx.init)(carry["params"])
        # Trace now, so that an unsuitable optimizer is refused before anything is written.
        first = divided(r, next(batches(data[0], options, 1)))
        lowered = all_programs[0].lower(carry, first)
    except (ValueError, TypeError) as error:
        raise Refused(one_line(error)) from error
    write_first(args, run, ready)
    sent = Sent(ready.tx, r, hlo.copy_bytes(params), lowered)
    history = train(run, r, ready, data, carry, all_programs, sent)
    if jax.process_index():
        return
    accuracy = history["held_out_accuracy"][-1]
    draw(run.figure, history, f"{title(options)}: held-out accuracy {accuracy:.4f}")
    Console().print(table(options, history, sent))
    print(
        f"Held-out accuracy {accuracy:.4f} in {time.perf_counter() - began:.1f} s; wrote "
        f"{run.figure}, {run.optimizer}, {run.options} and {run.checkpoints}/"
    )


def write_first(args: argparse.Namespace, run: Run, ready: Prepared) -> None:
    """Write the first files of a run, in the first process."""
    multihost_utils.sync_global_devices("all have read what is there")
    if jax.process_index() == 0:
        if args.resume:
            run.save(ready.options)
            done = f"after epoch {run.epochs_done()} of {ready.options.epochs}"
            print(f"Resuming the run in {run.out} {done}.")
        elif run.begin(ready.options, ready.inner):
            print(f"Starting over in {run.out}: the earlier run there is replaced.")
        print(over_lines(repr(ready.tx)), flush=True)
    multihost_utils.sync_global_devices("all is written")


def divided(r: gd.Replicas, batch: Data) -> Data:
    """Return a batch divided over the replicas, without images that do not divide evenly."""
    return r.split(Data(*(x[: len(x) - len(x) % r.n] for x in batch)))


def train(
    run: Run,
    r: gd.Replicas,
    ready: Prepared,
    data: tuple[Data, Data],
    carry: Carry,
    all_programs: tuple[Any, Any, Any],
    sent: Sent,
) -> History:
    """Train to the last epoch, from the last checkpoint if there is one; return the history."""
    options, tx = ready.options, ready.tx
    step, evaluate, distances = all_programs
    held_out = r.replicate(data[1])
    history: History = {}
    first = jax.process_index() == 0
    console = Console()
    bar = Progress(
        TextColumn("epoch"),
        MofNCompleteColumn(),
        BarColumn(bar_width=12),  # all fits in 80 columns
        TextColumn("{task.fields[numbers]}"),
        TimeRemainingColumn(),
        console=console,
        disable=not (first and console.is_terminal),  # a log gets a line for each epoch instead
    )
    with run.manager() as manager, bar:
        done = manager.latest_step() or 0
        if done:
            saved, history = restore(manager, done, carry)
            carry = r.place(resized(tx, saved, r.n))
            before = len(jax.tree.leaves(saved["params"])[0])
            if first and before != r.n:
                print(f"The checkpoint has {before} replicas; {r.n} go on.")
        task = bar.add_task("", total=options.epochs, completed=done, numbers="compiling")
        for epoch in range(done + 1, options.epochs + 1):
            began = time.perf_counter()
            steps, several = [], []
            every = -(-(len(data[0].labels) // options.batch_size) // MEASURED)
            for i, batch in enumerate(batches(data[0], options, epoch), 1):
                carry, measured = step(carry, divided(r, batch))
                steps.append(measured)
                if i % every == 0:
                    several.append(carry["params"])
            # One transfer per epoch: until here, Python runs ahead of the device.
            steps = r.gather(steps)
            seconds = (time.perf_counter() - began) / len(steps)
            end = r.gather(evaluate(carry, held_out))
            apart = r.gather(distances(several))
            note(history, steps, end, apart, every)
            check_finite([{"loss": float(np.mean(x["loss"]))} for x in steps], epoch)
            total = len(history["loss"])
            sent.note(history, total - len(steps) + 1, total)
            history.setdefault("seconds", []).append(seconds)
            save(manager, epoch, carry, history)
            numbers = summary(history, len(steps))
            bar.update(task, completed=epoch, numbers=numbers)
            if first and not console.is_terminal:
                print(f"epoch {epoch:>3}/{options.epochs}  {numbers}", flush=True)
    return history


def note(history: History, steps: list[Any], end: Any, apart: np.ndarray, every: int) -> None:
    """Add the measurements of an epoch, on all replicas, to the history."""

    def add(name: str, *values: Any) -> None:
        history.setdefault(name, []).extend(float(value) for value in values)

    before = len(history.get("loss", []))
    for name in ("loss", "accuracy"):
        add(name, *(np.mean(measured[name]) for measured in steps))
    # These are the same on all replicas: read them from the first one.
    add("held_out_loss", end["together"][0][0])
    add("held_out_accuracy", end["together"][1][0])
    add("lowest", np.min(end["single"][1]))
    add("highest", np.max(end["single"][1]))
    add("distance", *np.sqrt(np.mean(np.square(apart), axis=0)))
    add("distance_step", *(before + every * (i + 1) for i in range(apart.shape[1])))


def summary(history: History, steps: int) -> str:
    """Return a summary of the last epoch."""
    loss, accuracy = np.mean(history["loss"][-steps:]), history["held_out_accuracy"][-1]
    return f"loss {loss:.4f} held-out {accuracy:.4f} apart {history['distance'][-1]:.4f}"


# ------------------------------------------------------------------------------ the command line


def start_all(argv: Sequence[str], args: argparse.Namespace, run: Run) -> None:
    """Start processes here or on a cluster of Ray, or simulate them in this one."""
    jax.config.update("jax_platforms", "cpu")
    options = prepare(args, run, len(load_data()[0].labels), args.processes).options
    if args.launcher == "ray":
        if options.mode == "vmap":
            raise Refused("--launcher ray: --mode vmap is one process; leave one of them out.")
        name = f"{NAME}: "
        launch_on_ray(__file__, argv, options.processes, args.timeout, name, args.address)
    elif options.mode == "vmap":
        start(args, run, options.processes)
    else:
        launch(__file__, argv, options.processes, args.timeout, f"{NAME}: ")


def run(args: argparse.Namespace, argv: Sequence[str]) -> int:
    """Start processes, or train as one of several; return the exit code."""
    where = Run(args.out)

    def work() -> None:
        start(args, where, jax.device_count())

    if args.process_id is not None:
        join_local(args.coordinator, args.processes, args.process_id, args.heartbeat)
        return as_one_of_several(NAME, work)
    alone = args.launcher in ("local", "ray") or args.processes or not in_cluster()
    if args.launcher == "cluster" or not alone:
        join_cluster(args.heartbeat)
        return as_one_of_several(NAME, work)
    start_all(argv, args, where)
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    """Run the example; return the exit code."""
    words, about = sys.argv[1:] if argv is None else list(argv), (__doc__ or "").split("\n")[0]
    return exit_code(NAME, lambda: parse(words, about), lambda args: run(args, words), "epoch")


if __name__ == "__main__":
    sys.exit(main())
