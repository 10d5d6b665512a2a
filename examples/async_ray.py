"""Train on handwritten digits with workers of different speed, which come and go, and a center.

    python examples/async_ray.py
    python examples/async_ray.py --method drop_stale --workers 4 --steps 2000
    python examples/async_ray.py --shards 2 --no-kill
    python examples/async_ray.py --address 10.0.0.1:6379 --no-kill

It starts a cluster of Ray on this machine, with a center and --workers workers. The first worker is
the fastest; the last one pauses --slowest seconds at every step. After a third of the --steps of
the center it kills the center's process, which Ray restarts from its last save; after a half it
kills the fastest worker, and after two thirds it starts another in its place.

It writes to --out: the figure `async.png` (held-out accuracy, and the exchanges of each worker) and
the center's file `center.npz`, which replace those of an earlier run.
"""

import argparse
import dataclasses
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from extras import require

require("matplotlib", "rich", "sklearn")  # before they are imported

import jax
import jax.numpy as jnp
import numpy as np
import ray_cluster
from async_figure import Event, draw
from command_line import Parser, Refused, exit_code, positive, whole
from digits import load_data
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

import gradxform as gx
from gradxform.distributed import center as gc
from gradxform.distributed.ray import RayCenter, RayWorker

METHODS = ("elastic", "agn", "drop_stale")
LOOK = 0.25  # seconds between two looks at the center
PATIENCE = 120.0  # seconds for whatever Ray starts


class Failed(Exception):
    """The run cannot go on: one line on stderr and exit code 1."""


@dataclasses.dataclass(frozen=True)
class Options:
    """What a worker must know."""

    method: str
    period: int  # steps of a worker to an exchange
    steps: int  # of the center, to the end
    workers: int
    batch: int = 32

    def make(self) -> gc.Method:
        """Return the method of the center."""
        if self.method == "elastic":
            return gc.elastic(moving_rate=0.9 / self.workers)
        if self.method == "agn":
            return gc.agn(gx.sgd(0.2))
        return gc.drop_stale(gx.sgd(0.2), staleness=self.workers)


# --------------------------------------------------------------------------------- the network


def network(seed: int) -> Any:
    """Return the parameters of two layers."""
    first, second = jax.random.split(jax.random.key(seed))
    return {
        "hidden": {"kernel": jax.random.normal(first, (64, 48)) / 8, "bias": jnp.zeros(48)},
        "out": {"kernel": jax.random.normal(second, (48, 10)) / 7, "bias": jnp.zeros(10)},
    }


def logits(params: Any, images: Any) -> jax.Array:
    """Return the scores of the ten digits."""
    x = images.reshape(len(images), -1)
    x = jax.nn.relu(x @ params["hidden"]["kernel"] + params["hidden"]["bias"])
    return x @ params["out"]["kernel"] + params["out"]["bias"]


def loss(params: Any, images: Any, labels: Any) -> jax.Array:
    """Return the mean cross-entropy."""
    rows = jnp.arange(len(labels))
    return -jnp.mean(jax.nn.log_softmax(logits(params, images))[rows, labels])


# -------------------------------------------------------------------------------------- a worker


class Trainer:
    """A worker in a process of its own. It trains until the center has taken its steps."""

    def __init__(self, center: RayCenter, data: Any, options: Options, seed: int, pause: float):
        self.center, self.data, self.options = center, data, options
        self.seed, self.pause, self.exchanges = seed, pause, 0

    def pid(self) -> int:
        """Return the number of the process."""
        return os.getpid()

    def count(self) -> int:
        """Return the number of exchanges so far."""
        return self.exchanges

    def train(self) -> None:
        """Train to the end."""
        options, random = self.options, np.random.default_rng(self.seed)
        gradient, tx = jax.jit(jax.grad(loss)), gx.sgd(0.1)
        update = jax.jit(tx.update)
        worker = RayWorker(self.center, timeout=PATIENCE)
        params, step = worker.join()
        state = tx.init(params)

        def grads_of_a_batch() -> Any:
            time.sleep(self.pause)
            rows = random.choice(len(self.data.labels), options.batch)
            return gradient(params, self.data.images[rows], self.data.labels[rows])

        while step < options.steps:
            if options.method == "drop_stale":
                params, step, _ = worker.push(grads_of_a_batch(), step)
            else:
                mean = jax.tree.map(jnp.zeros_like, params)
                for _ in range(options.period):
                    grads = grads_of_a_batch()
                    updates, state = update(grads, state, params)
                    params = gx.apply_updates(params, updates)
                    mean = jax.tree.map(lambda m, g: m + g / options.period, mean, grads)
                if options.method == "elastic":
                    params, step = worker.exchange(params)
                else:
                    params, step, _ = worker.push(mean)
            self.exchanges += 1


# ---------------------------------------------------------------------------------------- the run


class Run:
    """A center, its workers, and what has been seen of them."""

    def __init__(self, ray: Any, args: argparse.Namespace, center: RayCenter):
        self.ray, self.args, self.center = ray, args, center
        self.options = options_of(args)
        train, self.held_out = load_data()
        self.data = ray.put(train)
        self.workers: list[Any] = []
        self.ends: dict[int, Any] = {}  # of the workers that run: what they will return
        self.asked: dict[int, Any] = {}  # of the workers: how many exchanges they have made
        self.names: list[str] = []
        self.began = time.perf_counter()
        self.events: list[Event] = []
        self.seen: list[tuple[float, int, float]] = []  # seconds, steps, held-out accuracy
        self.counts: list[list[tuple[float, int]]] = []  # of each worker: seconds, exchanges

    def seconds(self) -> float:
        """Return the seconds since the start."""
        return time.perf_counter() - self.began

    def start_worker(self, pause: float, name: str) -> None:
        """Start a worker with a pause of so many seconds at every step."""
        index = len(self.workers)
        trainer = self.ray.remote(Trainer).options(max_concurrency=2, num_cpus=0)
        worker = trainer.remote(self.center, self.data, self.options, self.args.seed + index, pause)
        self.workers.append(worker)
        self.ends[index] = worker.train.remote()
        self.names.append(name)
        self.counts.append([])

    def wait_for_workers(self) -> None:
        """Wait until all processes run; the clock starts then."""
        self.ray.get([worker.pid.remote() for worker in self.workers], timeout=PATIENCE)
        self.began = time.perf_counter()

    def kill_center(self) -> None:
        """Kill the process of the center, or of its first shard."""
        self.note("center killed")
        os.kill(self.center.pids()[0], signal.SIGKILL)

    def kill_worker(self) -> None:
        """Kill the process of the fastest worker."""
        self.note("worker killed")
        os.kill(self.ray.get(self.workers[0].pid.remote(), timeout=PATIENCE), signal.SIGKILL)
        del self.ends[0]

    def restart_worker(self) -> None:
        """Start another worker as fast as the one that was killed."""
        self.note("worker back")
        self.start_worker(0.0, "another, without pauses")

    def note(self, what: str) -> None:
        """Note an event for the figure."""
        self.events.append(Event(self.seconds(), what))

    def look(self) -> int:
        """Measure the center and count what the workers did; return the center's steps."""
        step, params = self.center.global_step, self.center.params
        right = np.argmax(logits(params, self.held_out.images), axis=1) == self.held_out.labels
        self.seen.append((self.seconds(), step, float(np.mean(right))))
        for i in self.ends:
            self.asked.setdefault(i, self.workers[i].count.remote())
        asked = {ref: i for i, ref in self.asked.items() if i in self.ends}
        told, _ = self.ray.wait([*asked], num_returns=len(asked), timeout=LOOK)
        for ref in told:  # but not of a worker that is starting
            self.counts[asked[ref]].append((self.seconds(), self.ray.get(ref)))
            del self.asked[asked[ref]]
        return step


def options_of(args: argparse.Namespace) -> Options:
    """Return the options of the workers."""
    return Options(args.method, args.period, args.steps, args.workers)


def watch(run: Run, tell: Callable[[int, float], None]) -> None:
    """Look at the center until it has taken its steps; kill and restart in the middle."""
    args = run.args
    plan = [
        (args.steps // 3, run.kill_center),
        (args.steps // 2, run.kill_worker),
        (2 * args.steps // 3, run.restart_worker),
    ]
    plan = plan if args.kill else []
    for i in range(args.workers):
        pause = args.slowest * i / max(1, args.workers - 1)
        run.start_worker(pause, f"a pause of {1e3 * pause:.0f} ms" if i else "without pauses")
    run.wait_for_workers()
    deadline = None
    while True:
        step = run.look()
        tell(min(step, args.steps), run.seen[-1][2])
        while plan and step >= plan[0][0]:
            plan.pop(0)[1]()
        if step >= args.steps and deadline is None:
            deadline = time.monotonic() + PATIENCE
        ended, working = run.ray.wait([*run.ends.values()], num_returns=len(run.ends), timeout=LOOK)
        run.ray.get(ended)  # raises what a worker raised
        if not working:
            run.look()
            return
        if deadline is not None and time.monotonic() > deadline:
            raise Failed(f"{len(working)} workers do not end; see `ray list actors`.")


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Return the parsed command line."""
    about = (__doc__ or "").split("\n")[0]
    parser = Parser("async_ray.py", description=about, allow_abbrev=False)
    add = parser.add_argument
    add("--method", choices=METHODS, default="elastic", help="(default: %(default)s)")
    add("--workers", type=whole(1), default=3, metavar="N", help="(default: %(default)s)")
    add("--steps", type=whole(1), default=900, metavar="N", help="(default: %(default)s)")
    add("--period", type=whole(1), default=5, metavar="N", help="to an exchange (default: 5)")
    add("--slowest", type=positive, default=0.05, metavar="SECONDS", help="(default: 0.05)")
    add("--shards", type=whole(1), default=1, metavar="N", help="of the center (default: 1)")
    add("--kill", action=argparse.BooleanOptionalAction, default=True, help="(default: kill)")
    add("--address", metavar="HOST:PORT", help="of a cluster that runs (default: start one here)")
    add("--seed", type=whole(0), default=0, metavar="N", help="(default: 0)")
    add("--out", type=Path, default="runs/async", metavar="DIR", help="(default: %(default)s)")
    args = parser.parse_strictly(argv)
    if args.address and args.kill:
        raise Refused("--address: processes elsewhere cannot be killed from here; add --no-kill.")
    if args.kill and args.workers < 2:
        raise Refused("--workers 1: nobody goes on when it is killed; add a worker, or --no-kill.")
    return args


def start(argv: Sequence[str] | None, console: Console) -> None:
    """Run the example."""
    args = parse(argv)
    jax.config.update("jax_platforms", "cpu")
    os.environ.setdefault("JAX_PLATFORMS", "cpu")  # of the processes that Ray starts
    args.out.mkdir(parents=True, exist_ok=True)
    for file in args.out.glob("center*.npz"):
        file.unlink()
    bar = Progress(
        TextColumn("step"),
        MofNCompleteColumn(),
        BarColumn(bar_width=20),
        TextColumn("{task.fields[numbers]}"),
        TimeElapsedColumn(),
        console=console,
        disable=not console.is_terminal,  # a log gets a line now and then instead
    )
    ray = ray_cluster.start(args.workers + args.shards, args.address)
    told = [0]

    def tell(step: int, accuracy: float) -> None:
        bar.update(task, completed=step, numbers=f"held-out {accuracy:.4f}")
        if not console.is_terminal and step * 10 // args.steps >= told[0]:
            told[0] = step * 10 // args.steps + 1
            print(f"step {step:>5}/{args.steps}  held-out {accuracy:.4f}", flush=True)

    try:
        with RayCenter(
            network(args.seed),
            options_of(args).make(),
            checkpoint=str(args.out / "center.npz"),
            save_every=20,
            shards=args.shards,
            timeout=PATIENCE,
        ) as center:
            run = Run(ray, args, center)
            with bar:
                task = bar.add_task("", total=args.steps, numbers="starting")
                watch(run, tell)
            counts = center.metrics()
    except ray.exceptions.RayError as error:
        raise Failed(f"{type(error).__name__}: {str(error).strip().splitlines()[-1]}") from error
    finally:
        ray.shutdown()
    for event in run.events:
        print(f"{event.seconds:6.1f} s  {event.what}")
    for name, seen in zip(run.names, run.counts, strict=True):
        print(f"{seen[-1][1] if seen else 0:>6}    exchanges of the worker {name}")
    print(
        f"{run.seen[-1][2]:.4f}    held-out accuracy after {counts['global_step']} steps, "
        f"{counts['stale_counter']} gradients dropped"
    )
    path = args.out / "async.png"
    title = f"{args.workers} workers of different speed, {args.method}"
    draw(path, title, run.seen, dict(zip(run.names, run.counts, strict=True)), run.events)
    print(f"Wrote {path}")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the example; return the exit code."""
    return exit_code("async_ray.py", lambda: start(argv, Console()), Failed)


if __name__ == "__main__":
    sys.exit(main())
