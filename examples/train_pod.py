"""Train a small transformer on slices of devices that come and go.

    python examples/train_pod.py
    python examples/train_pod.py --method tower --out runs/tower
    python examples/train_pod.py --slices 3 --devices 2 --elastic --beside runs/tower
    python examples/train_pod.py --resume --slices 1
    srun python examples/train_pod.py --launcher cluster --out /shared/run

Every slice is a process with --devices CPUs as its devices. Inside a slice, ZeRO-1 averages the
gradients at every step and divides the state; between slices, DiLoCo exchanges every --period
steps, in 8 bits. Parameters are bfloat16, and steps whose gradients are not finite are left out.
`--method tower` averages gradients over all devices at every step instead. The model predicts the
next character of the standard library's sources.

A checkpoint is written in shards, in background, every --save-every steps. --resume goes on from
the last one, also with other --slices and --devices. To see it, end a process by its number, which
is printed, with `kill -9`: the run ends, and says how to go on with a slice less; with --elastic it
does so by itself.

It writes to --out: the figure `training.png` (the held-out loss against steps, and against what a
device has sent between slices), checkpoints, `options.json`, `history.json`, and `optimizer.json`,
the optimizer as a config. In a cluster, the launcher starts this script once for each process, and
the slices are those of the machine, or else the processes.
"""

import argparse
import contextlib
import functools
import os
import shlex
import sys
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from extras import require

require("flax", "matplotlib", "orbax", "rich", "sklearn")  # before they are imported

import jax
import jax.numpy as jnp
import numpy as np
from command_line import Refused
from digits_run import over_lines
from distributed_join import in_cluster, join_cluster, join_local
from distributed_launch import Died, launch, threads_for_devices_here
from distributed_main import as_one_of_several, exit_code
from finetune_model import Transformer, loss_of
from finetune_text import Text, read
from jax.experimental import multihost_utils
from jax.sharding import AxisType, Mesh
from pod_checkpoints import History, restore, save
from pod_figure import draw, name_of, table, title
from pod_method import BETWEEN, INSIDE, adamw, between_slices, in_16_bits, make_method
from pod_options import Options, Run, options_of, parse
from pretrain_options import split
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from train_digits import Diverged

import gradxform as gx
import gradxform.distributed as gd

NAME = "train_pod.py"
MEASURED = 30  # how often the held-out loss is measured, about


# --------------------------------------------------------------------------------------- the pod


def pod_of(slices: int, devices: int) -> gd.Replicas:
    """Return the replicas of a pod, one a slice."""
    by_slice: dict[int, list[Any]] = {}
    for device in jax.devices():
        by_slice.setdefault(getattr(device, "slice_index", device.process_index), []).append(device)
    rows = list(by_slice.values())
    if len(rows) == 1:  # one process: its devices form the slices
        rows = [rows[0][i * devices : (i + 1) * devices] for i in range(slices)]
    if len(rows) < slices or any(len(row) < devices for row in rows[:slices]):
        there = ", ".join(str(len(row)) for row in by_slice.values())
        raise Refused(
            f"--slices {slices} --devices {devices}: there are too few devices; the slices here "
            f"have {there}. Lower these options, or leave out --launcher to start a process for "
            "each slice."
        )
    used = np.array([row[:devices] for row in rows[:slices]])
    mesh = Mesh(used, (BETWEEN, INSIDE), axis_types=(AxisType.Auto,) * 2)
    return gd.Replicas((BETWEEN,), inner_axes=(INSIDE,), mesh=mesh, manual=True)


class Programs(NamedTuple):
    """What all devices run."""

    step: Any  # from parameters, state and windows to the next ones, and metrics
    evaluate: Any  # from parameters and windows to the loss


def programs(tx: Any, replicas: gd.Replicas, model: Transformer, tower: bool) -> Programs:
    """Return the programs, each written for one device."""
    along = (BETWEEN, INSIDE) if tower else (INSIDE,)

    def train_step(params: Any, state: Any, windows: jax.Array) -> Any:
        local = gd.local_view(params, along)
        loss, grads = jax.value_and_grad(functools.partial(loss_of, model))(local, windows)
        norm = gx.global_norm(grads).astype(jnp.float32)
        return tx.step(grads, state, params), {"loss": loss, "norm": norm}

    def evaluate(params: Any, windows: jax.Array) -> Any:
        return (), loss_of(model, params, windows)

    return Programs(
        replicas.wrap(train_step, donate_argnums=(0, 1), has_aux=True),
        replicas.wrap(evaluate, has_aux=True),
    )


# ----------------------------------------------------------------------------------- the training


class Prepared(NamedTuple):
    """What a run is made of."""

    options: Options
    tx: Any
    text: Text
    model: Transformer


def prepare(args: argparse.Namespace, run: Run) -> Prepared:
    """Return what the command line, or an earlier run, says; this does not write any files."""
    options, tx = options_of(args, run)
    if tx is None:
        inner = adamw(options.learning_rate, options.steps)
        how = options.period or 1, options.outer_momentum, options.compress or "none"
        tx = make_method(options.method, inner, *how)
    text = Text(read(split(options.text)), options.length, options.batch_size, options.seed)
    return Prepared(options, tx, text, Transformer(options.layers, options.width))


def start(args: argparse.Namespace, run: Run) -> None:
    """Train in this process, alone or as one of several."""
    began = time.perf_counter()
    ready = prepare(args, run)
    options = ready.options
    here = args.launcher == "here"
    with threads_for_devices_here(options.n) if here else contextlib.nullcontext():
        replicas = pod_of(options.slices, options.devices)
    other = {str(args.beside): Run(args.beside).read_history()} if args.beside else {}
    write_first(args, run, ready)
    history = train(run, replicas, ready)
    if jax.process_index():
        return
    run.save_history(history)
    draw(run.figure, {name_of(options): history} | other, title(options))
    Console().print(table(options, history))
    print(
        f"Held-out loss {history['losses'][-1]:.3f} in {time.perf_counter() - began:.1f} s; wrote "
        f"{run.figure}, {run.history}, {run.optimizer}, {run.options} and {run.checkpoints}/"
    )


def write_first(args: argparse.Namespace, run: Run, ready: Prepared) -> None:
    """Write the first files of a run, in the first process."""
    multihost_utils.sync_global_devices("all have read what is there")
    if jax.process_index() == 0:
        options = ready.options
        if args.resume:
            run.save(options)
            done = f"after step {run.epochs_done()} of {options.steps}"
            print(f"Resuming the run in {run.out} {done}.")
        elif run.begin(options, ready.tx):
            print(f"Starting over in {run.out}: the earlier run there is replaced.")
        print(over_lines(repr(ready.tx)), flush=True)
    several = np.ravel(multihost_utils.process_allgather(np.int32(os.getpid())))
    if jax.process_index() == 0 and len(several) > 1:
        print(f"The slices are the processes {', '.join(map(str, several))}.", flush=True)


def train(run: Run, replicas: gd.Replicas, ready: Prepared) -> History:
    """Train to the last step, from the last checkpoint if there is one; return the history."""
    options, tx, text, model = ready
    period, every = options.period or 1, options.save_every or options.steps
    measured = period * -(-options.steps // (MEASURED * period))
    key, first = jax.random.key(options.seed), jax.process_index() == 0
    all_programs = programs(tx, replicas, model, options.method == "tower")

    def make(key: jax.Array) -> Any:
        return in_16_bits(model.init(key, text.held_out[:1, :-1])["params"])

    def windows(i: int) -> jax.Array:  # those that do not divide evenly are left out
        return replicas.split(text.batch(i)[: options.batch_size // options.n * options.n])

    # Some are measured twice where the devices cannot divide them evenly.
    several = np.arange(-(-len(text.held_out) // options.n) * options.n) % len(text.held_out)
    held_out = replicas.split(text.held_out[several])
    with run.manager() as manager, progress(first) as bar:
        done = manager.latest_step() or 0
        if done:
            carry, history = restore(manager, done, replicas, make, key, tx)
        else:
            params, state = replicas.init(make, key, tx=tx)
            carry, history = {"params": params, "state": state}, {}
        params, state = carry["params"], carry["state"]
        note_pod(history, done, options)
        train_step = all_programs.step.lower(params, state, windows(done)).compile()
        sent = between_slices(train_step, options.devices, period)
        task = bar.add_task("", total=options.steps, completed=done, numbers="compiling")
        if not done:
            note(history, 0, 0.0, *evaluated(all_programs, params, state, held_out))
        for i in range(done, options.steps):
            (params, state), metrics = train_step(params, state, windows(i))
            step = i + 1
            if step % measured and step % every and step < options.steps:
                continue
            since = step - history["steps"][-1]
            loss, skipped = evaluated(all_programs, params, state, held_out)
            if not np.isfinite(loss):
                raise Diverged(
                    f"the held-out loss is {loss} at step {step}; lower --learning-rate."
                )
            note(history, step, history["sent"][-1] + since * sent, loss, skipped)
            now = {name: float(x) for name, x in metrics.items()}
            numbers = f"loss {now['loss']:.3f} norm {now['norm']:.2f} held-out {loss:.3f}"
            bar.update(task, completed=step, numbers=numbers)
            if step % every == 0 or step == options.steps:
                save(manager, step, {"params": params, "state": state}, history)
                if first:
                    run.save_history(history)
                if first and bar.disable:
                    print(f"step {step:>4}/{options.steps}  {numbers}", flush=True)
    return history


def note_pod(history: History, done: int, options: Options) -> None:
    """Note which pod goes on from a step, if it is another one."""
    now = options.slices, options.devices
    if history and (history["slices"][-1], history["devices"][-1]) == now:
        return
    for name, value in zip(("began", "slices", "devices"), (done, *now), strict=True):
        history.setdefault(name, []).append(value)


def note(history: History, step: int, sent: float, loss: float, skipped: float) -> None:
    """Add a measurement to the history."""
    new = {"steps": step, "sent": sent, "losses": loss, "skipped": skipped}
    for name, value in new.items():
        history.setdefault(name, []).append(value)


def evaluated(
    all_programs: Programs, params: Any, state: Any, held_out: jax.Array
) -> tuple[float, float]:
    """Return the held-out loss, and how many steps were left out."""
    loss = float(all_programs.evaluate(params, held_out)[1])
    counts = gx.metrics(state, params, replicas=True)
    skipped = next(x for name, x in counts.items() if name.endswith("total_notfinite"))
    return loss, float(skipped)


def progress(shown: bool) -> Progress:
    """Return a display with a bar; a log gets a line for each checkpoint instead."""
    console = Console()
    return Progress(
        TextColumn("step"),
        MofNCompleteColumn(),
        BarColumn(bar_width=12),  # all fits in 80 columns
        TextColumn("{task.fields[numbers]}"),
        TimeRemainingColumn(),
        console=console,
        disable=not (shown and console.is_terminal),
    )


# ------------------------------------------------------------------------------ the command line


def start_all(argv: Sequence[str], args: argparse.Namespace, run: Run) -> None:
    """Start a process for each slice; with --elastic, go on with a slice less when one dies."""
    jax.config.update("jax_platforms", "cpu")
    options, earlier = prepare(args, run).options, not args.resume and run.when()
    while True:
        try:
            name = f"{NAME}: "
            launch(__file__, argv, options.slices, args.timeout, name, options.devices)
            return
        except Died as error:
            done = run.epochs_done()
            if not done or options.slices == 1 or earlier == run.when():
                raise
            fewer = ["--resume", "--out", str(args.out), "--slices", str(options.slices - 1)]
            if not args.elastic:
                command = shlex.join(["python", f"examples/{NAME}", *fewer])
                said = f"{error} Step {done} is saved; go on with a slice less: {command}"
                raise Died(said) from error
            print(f"{NAME}: {error}", file=sys.stderr)
            argv = [*fewer, *kept(args)]
            args = parse(argv, "")
            options = prepare(args, run).options
            left = "1 slice goes" if options.slices == 1 else f"{options.slices} slices go"
            print(f"{left} on from step {done}.", flush=True)


def kept(args: argparse.Namespace) -> list[str]:
    """Return the options that are not those of the run, for the processes that go on."""
    words = ["--elastic"]
    for name in ("beside", "heartbeat", "timeout"):
        if getattr(args, name) is not None:
            words += [f"--{name}", str(getattr(args, name))]
    return words


def run(args: argparse.Namespace, argv: Sequence[str]) -> int:
    """Start processes, or train as one of several; return the exit code."""
    where = Run(args.out)
    if args.process_id is not None:
        join_local(args.coordinator, args.processes, args.process_id, args.heartbeat)
        return as_one_of_several(NAME, lambda: start(args, where))
    if args.launcher == "cluster" or (args.launcher is None and in_cluster()):
        join_cluster(args.heartbeat)
        return as_one_of_several(NAME, lambda: start(args, where))
    if args.launcher == "here":
        start(args, where)
    else:
        start_all(argv, args, where)
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    """Run the example; return the exit code."""
    words, about = sys.argv[1:] if argv is None else list(argv), (__doc__ or "").split("\n")[0]
    return exit_code(NAME, lambda: parse(words, about), lambda args: run(args, words), "step")


if __name__ == "__main__":
    sys.exit(main())
