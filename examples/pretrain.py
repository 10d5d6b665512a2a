"""Train a small transformer on the standard library's sources with optimizers for matrices.

    python examples/pretrain.py
    python examples/pretrain.py --optimizers adamw,muon,soap --steps 400
    python examples/pretrain.py --rates 1 --layers 6 --width 128

The model predicts the next character. Each optimizer gets the same batches and the same number of
learning rates, which are apart by a factor of two around its own usual rate; the rate that ends
lowest counts. The rate warms up for a tenth of the steps and falls to zero by a cosine. The rules
for matrices get the matrices of the layers; embeddings, the last layer and vectors go to AdamW.

The figure `pretrain.png` in --out shows the held-out loss against steps and against seconds. The
seconds are those of the steps, without compilation and measurements. The table has the loss at the
end, the steps until the loss at which AdamW ended, the time of a step and the bytes of the state.
"""

import argparse
import functools
import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from extras import require

require("flax", "matplotlib", "rich")  # before they are imported

import jax
import jax.numpy as jnp
import numpy as np
from command_line import exit_code, whole
from finetune_model import Transformer, loss_of
from finetune_text import Text
from pretrain_figure import Curve, draw
from pretrain_options import Options, begun, chosen
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table

import gradxform as gx

MEASURED = 20  # the number of measurements in a run
Make = Callable[[Any], Any]  # of a learning rate


class Diverged(Exception):
    """No learning rate of an optimizer ended at a finite loss: one line on stderr, exit code 1."""


def in_layers(params: Any) -> Any:
    """Return dimension numbers for the matrices of the layers, and None for all other leaves."""

    def numbers(path: Any, x: Any) -> Any:
        layer = any(str(getattr(k, "key", k)).startswith("layers_") for k in path)
        return gx.MuonDimensionNumbers() if layer and jnp.ndim(x) == 2 else None

    return jax.tree_util.tree_map_with_path(numbers, params)


# Each optimizer with its usual learning rate, and how it is made with another.
METHODS: dict[str, tuple[float, Make]] = {
    "adamw": (
        8e-3,
        lambda lr: gx.adamw(lr, b2=0.99, weight_decay=0.01, weight_decay_mask=gx.ndim_at_least(2)),
    ),
    "muon": (
        2e-2,
        lambda lr: gx.muon(
            lr, weight_decay=0.01, consistent_rms=0.2, muon_weight_dimension_numbers=in_layers
        ),
    ),
    "normuon": (
        2e-2,
        lambda lr: gx.normuon(lr, weight_decay=0.01, weight_dimension_numbers=in_layers),
    ),
    "soap": (1e-2, lambda lr: gx.soap(lr, weight_dimension_numbers=in_layers)),
    "shampoo": (
        2e-2,
        lambda lr: gx.distributed_shampoo(
            lr,
            preconditioning_compute_steps=10,
            graft_type="adam",
            beta2=0.99,
            moving_average_for_momentum=True,
            adam_weight_decay=0.01,
            weight_dimension_numbers=in_layers,
        ),
    ),
    "kron": (
        8e-3,
        lambda lr: gx.psgd_kron(lr, weight_decay=0.01, weight_dimension_numbers=in_layers),
    ),
}


# ---------------------------------------------------------------------------------- the training


def schedule_of(rate: Any, steps: int) -> Any:
    """Return the learning rate by step: up for a tenth of the steps, then down to zero."""
    shape = gx.warmup_cosine_decay_schedule(0.0, 1.0, max(1, steps // 10), max(2, steps))
    return lambda count: rate * shape(count)


class Trainer:
    """The training with one optimizer; all its learning rates share the compiled programs."""

    def __init__(self, make: Make, steps: int, model: Transformer, params: Any):
        self.params = params
        self.state = jax.jit(make(schedule_of(0.0, steps)).init)(params)
        self.state_bytes = sum(x.nbytes for x in jax.tree.leaves(self.state))
        loss_fn = functools.partial(loss_of, model)

        def train(carry: Any, rate: jax.Array, batches: jax.Array) -> Any:
            tx = make(schedule_of(rate, steps))

            def step(carry: Any, windows: jax.Array) -> tuple[Any, None]:
                params, state = carry
                grads = jax.grad(loss_fn)(params, windows)
                updates, state = tx.update(grads, state, params)
                return (gx.apply_updates(params, updates), state), None

            return jax.lax.scan(step, carry, batches)[0]

        self.lower = jax.jit(train).lower
        self.compiled: dict[int, Any] = {}
        self.evaluate = jax.jit(loss_fn)

    def curve(self, rate: float, steps: int, text: Text) -> Iterator[Curve]:
        """Train at one learning rate, and yield the curve after every measurement."""
        every = math.ceil(steps / MEASURED)
        carry, seconds = (self.params, self.state), 0.0
        start = float(self.evaluate(self.params, text.held_out))
        curve = Curve(rate, [0], [0.0], [start], self.state_bytes)
        for done in range(0, steps, every):
            count = min(every, steps - done)  # the last call may have fewer steps
            batches = np.stack([text.batch(done + i) for i in range(count)])
            given = carry, jnp.float32(rate), jnp.asarray(batches, jnp.int32)
            if count not in self.compiled:
                self.compiled[count] = self.lower(*given).compile()
            began = time.perf_counter()
            carry = jax.block_until_ready(self.compiled[count](*given))
            seconds += time.perf_counter() - began
            curve.add(done + count, seconds, float(self.evaluate(carry[0], text.held_out)))
            yield curve


def train(
    args: argparse.Namespace, text: Text, model: Transformer, params: Any, console: Console
) -> dict[str, Curve]:
    """Train with every optimizer at every learning rate, and return the best curve of each."""
    best: dict[str, Curve] = {}
    with progress(console) as bar:
        for name in args.optimizers:
            usual, make = METHODS[name]
            rates = [usual * 2.0 ** (k - (args.rates - 1) / 2) for k in range(args.rates)]
            task = bar.add_task(f"{name:8}", total=args.steps * len(rates), numbers="compiling")
            trainer = Trainer(make, args.steps, model, params)
            for rate in rates:
                curve = Curve(rate, [], [], [])
                for curve in trainer.curve(rate, args.steps, text):
                    numbers = f"rate {rate:.2g}, loss {curve.losses[-1]:.3f}"
                    bar.update(task, advance=curve.steps[-1] - curve.steps[-2], numbers=numbers)
                loss = curve.losses[-1]
                if not console.is_terminal:
                    print(f"{name}, rate {rate:.2g}: held-out loss {loss:.3f}", flush=True)
                if math.isfinite(loss) and (name not in best or loss < best[name].losses[-1]):
                    best[name] = curve
            if name not in best:
                raise Diverged(f"the loss of {name} is not finite at any rate; try more --rates.")
    return best


def progress(console: Console) -> Progress:
    """Return a display with a bar for each optimizer; it is disabled for a log."""
    return Progress(
        TextColumn("{task.description}"),
        MofNCompleteColumn(),
        BarColumn(bar_width=16),  # all fits in 80 columns
        TextColumn("{task.fields[numbers]}"),
        console=console,
        disable=not console.is_terminal,
    )


# ----------------------------------------------------------------------------------- the results


def steps_until(curve: Curve, loss: float) -> float:
    """Return after how many steps a curve first reaches a loss, between two measurements."""
    pairs = zip(curve.steps, curve.losses, strict=True)
    before = next(pairs)
    for step, now in pairs:
        if now <= loss:
            share = (before[1] - loss) / max(before[1] - now, 1e-12)
            return before[0] + share * (step - before[0])
        before = step, now
    return math.inf


def results(curves: dict[str, Curve], params_bytes: int) -> Table:
    """Return the table of results."""
    result = Table()
    result.add_column("optimizer")
    columns = ["rate", "loss", "ms a step", "state / parameters"]
    if "adamw" in curves:
        columns.insert(2, "steps to AdamW's loss")
    for column in columns:
        result.add_column(column, justify="right")
    for name, curve in curves.items():
        cells = [
            f"{curve.rate:.2g}",
            f"{curve.losses[-1]:.3f}",
            f"{1000 * curve.seconds[-1] / curve.steps[-1]:.1f}",
            f"{curve.state_bytes / params_bytes:.2f}",
        ]
        if "adamw" in curves:
            reached = steps_until(curve, curves["adamw"].losses[-1])
            cells.insert(2, f"{reached:.0f}" if math.isfinite(reached) else "not reached")
        result.add_row(name, *cells)
    return result


# ------------------------------------------------------------------------------ the command line


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Return the options."""
    options = Options("pretrain", __doc__)
    options.add("--optimizers", ",".join(METHODS), str, "A,B", f"of {', '.join(METHODS)}")
    options.add("--steps", 140, whole(1), "N", "of each run")
    options.add("--rates", 3, whole(1), "N", "learning rates for each optimizer")
    args = options.parse(argv, width=64)
    args.optimizers = chosen("optimizer", args.optimizers, METHODS)
    return args


def start(argv: Sequence[str] | None, console: Console) -> None:
    """Train as the command line says."""
    args = parse(argv)
    text, model, params, size = begun(args)
    curves = train(args, text, model, params, console)
    console.print(results(curves, sum(x.nbytes for x in jax.tree.leaves(params))))
    path = args.out / "pretrain.png"
    draw(path, curves, f"Next characters of Python sources: {size}")
    print(f"wrote {path}")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the example; return the exit code."""
    return exit_code("pretrain.py", lambda: start(argv, Console()), Diverged)


if __name__ == "__main__":
    sys.exit(main())
