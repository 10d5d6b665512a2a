"""Race optimizers of gradxform, by name, each at its best learning rate.

    python examples/race.py
    python examples/race.py --optimizers adam,lion,muon --problem digits
    python examples/race.py --optimizers adam=0.01,adam=0.1 --problem rosenbrock --steps 2000

An optimizer without a learning rate after its name tries many at once, under `jax.vmap`. It is
shown with the one that ends lowest, ignoring those that ever rise above three times the first loss.
If the race would take long, learning rates that lag early are dropped. `adam=0.01` tries only that
one. The figure `race.png` in --out shows loss against steps, and the paths of problems with two
parameters.
"""

import argparse
import math
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from extras import require

require("matplotlib", "rich", "sklearn")  # before they are imported

import jax
import jax.numpy as jnp
import numpy as np
from command_line import (
    Parser,
    Refused,
    did_you_mean,
    has_learning_rate,
    make_by_name,
    one_line,
    positive,
    whole,
)
from problems import PROBLEMS, Problem
from race_figure import draw
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

import gradxform as gx

DEFAULT = "sgd,adam,adagrad,lion,shampoo"
CHUNKS = 20  # the number of pieces of a race, so that the progress bar moves
WILD = 3.0  # a learning rate that exceeds this multiple of the first loss cannot win
LIMIT = 12.0  # seconds that all learning rates of an optimizer may take on a problem


class Entrant(NamedTuple):
    """An optimizer that races."""

    name: str
    rate: float | None  # its learning rate; None to try many
    own: bool  # whether it determines its own

    def rates(self, problem: Problem) -> list[Any]:
        """Return the learning rates to try; [None] for an optimizer that determines its own."""
        if self.own:
            return [None]
        return [self.rate] if self.rate else list(problem.rates)

    @property
    def label(self) -> str:
        """The text that asked for it."""
        return f"{self.name}={self.rate:g}" if self.rate else self.name


class Result(NamedTuple):
    """The result of one optimizer on one problem, at its best learning rate."""

    label: str
    rate: float | None
    steps: np.ndarray  # at which the loss was measured, from 0
    loss: np.ndarray  # inf where it was not finite
    path: np.ndarray | None  # the parameters at those steps, on a plane
    accuracy: float | None
    state_bytes: int
    seconds: float

    @property
    def score(self) -> float:
        """The mean loss over the last tenth."""
        return float(np.mean(self.loss[-max(1, len(self.loss) // 10) :]))


# ------------------------------------------------------------------------------------- one race


class Carry(NamedTuple):
    """The values that a step passes to the next."""

    params: Any
    state: Any


def run(
    problem: Problem, entrant: Entrant, steps: int, seed: int, tick: Callable[[], Any]
) -> Result:
    """Run one optimizer on one problem and return its result; call `tick` CHUNKS times."""
    began = time.perf_counter()

    def make(rate: Any) -> Any:
        return make_by_name(entrant.name, rate, seed)

    def begin(rate: Any) -> Carry:
        return Carry(problem.params, make(rate).init(problem.params))

    def step(rate: Any, carry: Carry, batch: Any) -> Carry:
        params, state = carry

        def loss(p: Any) -> jax.Array:
            return problem.loss(p, batch)

        value, grads = jax.value_and_grad(loss)(params)
        # Some also need the loss, as a number or as a function; the others ignore it.
        updates, state = make(rate).update(
            grads, state, params, value=value, grad=grads, value_fn=loss, obj_fn=loss
        )
        return Carry(gx.apply_updates(params, updates), state)

    def measured(rate: Any, carry: Carry, batches: Any) -> tuple[Carry, Any]:
        """Take the steps up to the next measurement, then measure."""
        carry, _ = jax.lax.scan(lambda c, b: (step(rate, c, b), None), carry, batches)
        params = gx.eval_params(carry.state, carry.params)  # averages, where it keeps them
        return carry, (problem.total(params), params if problem.plane else None)

    def chunk(rate: Any, carry: Carry, batches: Any) -> tuple[Carry, Any]:
        return jax.lax.scan(lambda c, b: measured(rate, c, b), carry, batches)

    every = min(problem.every, steps)
    rounds = math.ceil(steps / every / CHUNKS)  # measurements in a chunk
    shape = CHUNKS, rounds, every
    batches = problem.batches(math.prod(shape))
    batches = batches.reshape(*shape, *batches.shape[1:])

    tried = entrant.rates(problem)
    check(entrant, problem, lambda: measured(tried[0], begin(tried[0]), batches[0, 0]))
    if entrant.own:
        rates, axis = None, None
        carry = jax.tree.map(lambda x: x[None], begin(None))
    else:
        rates, axis = jnp.asarray(tried, jnp.float32), 0
        carry = jax.vmap(begin)(rates)
    many = jax.jit(jax.vmap(chunk, in_axes=(axis, 0, None)))
    many.lower(rates, carry, batches[0]).compile()
    losses = [np.asarray(jax.vmap(problem.total)(carry.params))[:, None]]
    paths = [np.asarray(carry.params["xy"])[:, None]] if problem.plane else []
    for i, piece in enumerate(batches):
        start = time.perf_counter()
        carry, (loss, path) = jax.block_until_ready(many(rates, carry, piece))
        losses.append(np.asarray(loss))
        if path is not None:
            paths.append(np.asarray(path["xy"]))
        share = LIMIT / CHUNKS / (time.perf_counter() - start)
        if i == 0 and share < 1 and len(tried) > 1:  # keep as many as there is time for
            ends = np.where(np.isfinite(loss[:, -1]), loss[:, -1], np.inf)
            kept = np.sort(np.argsort(ends)[: max(1, int(share * len(tried)))])
            tried, rates = [tried[k] for k in kept], jnp.asarray(tried, jnp.float32)[kept]
            carry = jax.tree.map(lambda x, kept=kept: x[kept], carry)
            losses, paths = [x[kept] for x in losses], [x[kept] for x in paths]
        tick()
    seconds = time.perf_counter() - began
    return best(problem, entrant, tried, steps, every, losses, paths, carry, seconds)


def check(entrant: Entrant, problem: Problem, trial: Callable[[], Any]) -> None:
    """Refuse an optimizer that does not fit, before it runs."""
    try:
        jax.eval_shape(trial)
    except (TypeError, ValueError) as error:
        raise Refused(
            f"{entrant.name} cannot race on {problem.title}: {one_line(error)}"
        ) from error


def best(
    problem: Problem,
    entrant: Entrant,
    tried: list[Any],
    steps: int,
    every: int,
    losses: list[Any],
    paths: list[Any],
    carry: Carry,
    seconds: float,
) -> Result:
    """Return the result at the learning rate that ends lowest without becoming wild."""
    keep = 1 + math.ceil(steps / every)  # the last chunk may exceed the steps
    loss = np.concatenate([np.asarray(x) for x in losses], axis=1)[:, :keep]
    loss = np.where(np.isfinite(loss), loss, np.inf)
    tail = np.mean(loss[:, -max(1, keep // 10) :], axis=1)
    wild = np.max(loss, axis=1) > WILD * loss[:, 0]
    i = int(np.lexsort((tail, wild))[0])  # a wild one only if all are
    path = np.concatenate([np.asarray(x) for x in paths], axis=1)[i, :keep] if paths else None
    last = jax.tree.map(lambda x: x[i], carry)
    params = gx.eval_params(last.state, last.params)
    accuracy = None if problem.accuracy is None else float(problem.accuracy(params))
    tx = make_by_name(entrant.name, tried[i], 0)
    return Result(
        label=entrant.label,
        rate=tried[i],
        steps=np.minimum(np.arange(loss.shape[1]) * every, steps),
        loss=loss[i],
        path=path,
        accuracy=accuracy,
        state_bytes=gx.describe(tx, problem.params).total_bytes or 0,
        seconds=seconds,
    )


# ------------------------------------------------------------------------------ the command line


def parse(argv: Sequence[str] | None) -> tuple[list[Entrant], list[str], int | None, int, Path]:
    """Return the optimizers, the problems, the steps, the seed and the directory."""
    parser = Parser("race.py", description=(__doc__ or "").split("\n")[0], allow_abbrev=False)
    add = parser.add_argument
    add("--optimizers", default=DEFAULT, metavar="A,B=RATE", help="by name (default: %(default)s)")
    add(
        "--problem",
        action="append",
        metavar="A,B",
        help=f"of {', '.join(PROBLEMS)} (default: all)",
    )
    add("--steps", type=whole(1), metavar="N", help="(default: 200 to 500, by problem)")
    add("--seed", type=whole(0), default=0, metavar="N", help="(default: 0)")
    add("--out", type=Path, default="runs/race", metavar="DIR", help="(default: %(default)s)")
    args = parser.parse_strictly(argv)
    names = [name for text in args.problem or [",".join(PROBLEMS)] for name in split(text)]
    for name in names:
        if name not in PROBLEMS:
            hint = did_you_mean(name, PROBLEMS) or f"There are {', '.join(PROBLEMS)}."
            raise Refused(f"no problem named {name!r}. {hint}")
    entrants = [entrant(text) for text in dict.fromkeys(split(args.optimizers))]
    if not entrants or not names:
        raise Refused("name at least one optimizer and one problem.")
    return entrants, list(dict.fromkeys(names)), args.steps, args.seed, args.out


def split(text: str) -> list[str]:
    """Return the words between commas."""
    return [word.strip() for word in text.split(",") if word.strip()]


def entrant(text: str) -> Entrant:
    """Read `adam` or `adam=0.01`."""
    name, given, rate = text.partition("=")
    own = not has_learning_rate(name)  # refuses unknown names
    if given and own:
        raise Refused(f"--optimizers {text}: {name} takes no learning rate; leave it out.")
    if given:
        try:
            return Entrant(name, positive(rate), own)
        except argparse.ArgumentTypeError as error:
            raise Refused(f"--optimizers {text}: the learning rate {error}.") from error
    make_by_name(name, None if own else 0.1, 0)  # refuses what needs more than a name
    return Entrant(name, None, own)


def ranked(results: list[Result]) -> list[Result]:
    """Return the results from the lowest loss to the highest."""
    return sorted(results, key=lambda r: r.score)


def table(problem: Problem, results: list[Result], steps: int) -> Table:
    """Return the final table of a problem."""
    held_out = problem.accuracy is not None
    result = Table(title=f"{problem.title}, {steps} steps", title_justify="left")
    result.add_column("", justify="right")
    result.add_column("optimizer", min_width=max(len(r.label) for r in results))
    for name in ("learning rate", "loss at the end"):
        result.add_column(name, justify="right")
    if held_out:
        result.add_column("held-out accuracy", justify="right")
    result.add_column("state", justify="right")
    result.add_column("seconds", justify="right")
    for place, r in enumerate(ranked(results), 1):
        accuracy = [f"{r.accuracy:.3f}"] if r.accuracy is not None else []
        result.add_row(
            str(place),
            r.label,
            "its own" if r.rate is None else f"{r.rate:.2g}",
            f"{r.score:.3g}" if math.isfinite(r.score) else "diverged",
            *accuracy,
            f"{r.state_bytes} B",
            f"{r.seconds:.1f}",
        )
    return result


def start(argv: Sequence[str] | None, console: Console) -> None:
    """Run the races of the command line."""
    entrants, names, steps, seed, out = parse(argv)
    out.mkdir(parents=True, exist_ok=True)
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=30),
        TaskProgressColumn(),
        TimeElapsedColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,  # a log gets a line for each result instead
    )
    done: dict[str, list[Result]] = {}
    problems = {name: PROBLEMS[name](seed) for name in names}
    with bar:
        task = bar.add_task("", total=len(names) * len(entrants) * CHUNKS)
        for name, problem in problems.items():
            done[name] = []
            for one in entrants:
                bar.update(task, description=f"{name}: {one.label}")
                n = steps or problem.steps
                result = run(problem, one, n, seed, lambda: bar.advance(task))
                done[name].append(result)
                if not console.is_terminal:
                    print(
                        f"{name}: {one.label}: {result.score:.3g} in {result.seconds:.1f} s",
                        flush=True,
                    )
    for name, problem in problems.items():
        console.print(table(problem, done[name], steps or problem.steps))
    path = out / "race.png"
    draw(path, [(problems[name], ranked(done[name])) for name in names])
    print(f"Wrote {path}")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the example; return the exit code."""
    try:
        start(argv, Console())
    except (Refused, OSError) as error:
        print(f"race.py: error: {one_line(error)}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("race.py: interrupted; nothing was written.", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
