"""Train a deep model with ordinary steps and with updates in the backward pass; compare memory.

    python examples/train_deep.py
    python examples/train_deep.py --steps 300 --layers 48
    python examples/train_deep.py --optimizer muon --rate 0.01

The model predicts the next character of the standard library's sources. Its layers are stacked, and
its loss scans over them with `gx.scan_layers`. Two kinds of step train it from the same parameters,
on the same batches. The ordinary step has the gradients of all layers before it updates the first.
The other updates each layer in the backward pass, as soon as its gradient is known. Both compute
the same numbers, up to rounding.

The table has the bytes of each step as the compiler plans them: parameters and state, temporary
arrays on top, and both. Gradients are among the temporary arrays. The figure `train_deep.png` in
--out shows the held-out loss against steps, and the bytes.
"""

import argparse
import functools
import math
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from extras import require

require("flax", "matplotlib", "rich")  # before they are imported

import flax.linen as nn
import jax
import jax.numpy as jnp
from command_line import Refused, exit_code, make_by_name, one_line, positive, whole
from finetune_model import Layer
from finetune_text import CHARACTERS, Text, read
from pretrain import Diverged, progress, schedule_of
from pretrain_figure import Curve, draw_with_bytes
from pretrain_options import Options, split
from rich.console import Console
from rich.table import Table

import gradxform as gx
from gradxform.losses import softmax_cross_entropy_with_integer_labels

MEASURED = 20  # the number of measurements in a run
KINDS = {"ordinary": False, "in backward": True}

# ------------------------------------------------------------------------------------- the model

LAYER = Layer(dropout=0.0)
NORM = nn.LayerNorm()


def init(key: jax.Array, layers: int, width: int, length: int) -> Any:
    """Return the parameters: those of all layers are stacked along the first axis."""
    keys = jax.random.split(key, layers + 3)
    x = jnp.zeros((1, length, width))
    normal = jax.nn.initializers.normal(0.02)
    return {
        "embed": normal(keys[0], (len(CHARACTERS), width)),
        "embed_positions": normal(keys[1], (length, width)),
        "layers": jax.vmap(lambda key: LAYER.init(key, x)["params"])(keys[3:]),
        "norm": NORM.init(keys[2], x)["params"],
        "head": normal(keys[2], (width, len(CHARACTERS))),
    }


def block(p: Any, x: jax.Array) -> Any:
    """Return what one layer makes of what it gets."""
    return LAYER.apply({"params": p}, x)


def loss_fn(params: Any, windows: jax.Array) -> jax.Array:
    """Return the mean cross-entropy of every next character, in nats."""
    characters = windows[:, :-1]
    x = params["embed"][characters] + params["embed_positions"][: characters.shape[1]][None]
    x = gx.scan_layers(block, params["layers"], x)
    logits = NORM.apply({"params": params["norm"]}, x) @ params["head"]
    return jnp.mean(softmax_cross_entropy_with_integer_labels(logits, windows[:, 1:]))


# ---------------------------------------------------------------------------------- the training


class Bytes(NamedTuple):
    """What a step holds in memory, as the compiler plans it."""

    given: int  # parameters, state and batch
    temporary: int


class Trained(NamedTuple):
    """What came of one kind of step."""

    curve: Curve
    bytes: Bytes
    compiling: float  # seconds


def train(args: argparse.Namespace, text: Text, in_backward: bool, bar: Any) -> Trained:
    """Train with one kind of step.

    Args:
      args: the options.
      text: the text.
      in_backward: whether layers are updated in the backward pass.
      bar: is called with the number of steps after every measurement, and with the loss.
    """
    rate = schedule_of(args.rate, args.steps)
    try:
        # Norms, masks and matrices are those of one layer, in both kinds of step.
        tx = gx.stacked(make_by_name(args.optimizer, rate, args.seed), "layers")
        step = gx.make_step(tx, loss_fn, update_in_backward=in_backward)
        step = jax.jit(step, donate_argnums=(0, 1))
        params = init(jax.random.key(args.seed), args.layers, args.width, args.length)
        state = jax.jit(tx.init)(params)
        began = time.perf_counter()
        compiled = step.lower(params, state, jnp.asarray(text.batch(0))).compile()
    except (TypeError, ValueError) as error:
        raise Refused(one_line(error)) from error
    compiling = time.perf_counter() - began
    evaluate = jax.jit(loss_fn)
    memory: Any = compiled.memory_analysis()
    more = memory.output_size_in_bytes - memory.alias_size_in_bytes  # not in the place of a given
    held = Bytes(memory.argument_size_in_bytes, memory.temp_size_in_bytes + more)

    every, seconds = math.ceil(args.steps / MEASURED), 0.0
    curve = Curve(args.rate, [0], [0.0], [float(evaluate(params, text.held_out))])
    for done in range(1, args.steps + 1):
        batch = jnp.asarray(text.batch(done - 1))
        began = time.perf_counter()
        params, state, loss = jax.block_until_ready(compiled(params, state, batch))
        seconds += time.perf_counter() - began
        if not math.isfinite(loss):
            raise Diverged(f"the loss is {loss} at step {done}; try a smaller --rate.")
        if done % every == 0 or done == args.steps:
            curve.add(done, seconds, float(evaluate(params, text.held_out)))
            bar(done, curve.losses[-1])
    return Trained(curve, held, compiling)


def train_both(args: argparse.Namespace, text: Text, console: Console) -> dict[str, Trained]:
    """Train with both kinds of step."""
    trained = {}
    with progress(console) as bars:
        for name, in_backward in KINDS.items():
            task = bars.add_task(f"{name:11}", total=args.steps, numbers="compiling")

            def bar(done: int, loss: float, task: Any) -> None:
                bars.update(task, completed=done, numbers=f"loss {loss:.3f}")

            trained[name] = train(args, text, in_backward, functools.partial(bar, task=task))
            if not console.is_terminal:
                loss = trained[name].curve.losses[-1]
                print(f"{name}: held-out loss {loss:.4f}", flush=True)
    return trained


def results(trained: dict[str, Trained]) -> Table:
    """Return the table of results, bytes in MB."""
    table = Table()
    for column in ("step", "given", "temporary", "peak, MB", "loss", "seconds", "compiling"):
        table.add_column(column, justify="left" if column == "step" else "right")
    for name, (curve, held, compiling) in trained.items():
        cells = [f"{x / 1e6:.1f}" for x in (*held, sum(held))]
        seconds = f"{curve.seconds[-1]:.1f}", f"{compiling:.1f}"
        table.add_row(name, *cells, f"{curve.losses[-1]:.4f}", *seconds)
    return table


# ------------------------------------------------------------------------------ the command line


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Return the options."""
    options = Options("train_deep", __doc__)
    options.add("--optimizer", "adamw", str, "NAME", "an optimizer of gradxform")
    options.add("--steps", 60, whole(1), "N", "of each kind")
    options.add("--rate", 2e-3, positive, "X", "the largest learning rate")
    return options.parse(argv, width=128, layers=24, batch_size=8)


def start(argv: Sequence[str] | None, console: Console) -> None:
    """Train as the command line says."""
    args = parse(argv)
    text = Text(read(split(args.text)), args.length, args.batch_size, args.seed)
    args.out.mkdir(parents=True, exist_ok=True)
    shapes = jax.eval_shape(lambda: init(jax.random.key(0), args.layers, args.width, args.length))
    count = sum(x.size for x in jax.tree.leaves(shapes))
    size = f"{args.layers} layers of width {args.width}, {count} parameters"
    print(f"{len(text.training)} characters of the standard library's sources; {size}")
    trained = train_both(args, text, console)
    console.print(results(trained))
    path: Path = args.out / "train_deep.png"
    curves = {name: kind.curve for name, kind in trained.items()}
    held = {name: kind.bytes for name, kind in trained.items()}
    draw_with_bytes(path, curves, held, f"Next characters of Python sources: {size}")
    print(f"wrote {path}")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the example; return the exit code."""
    return exit_code("train_deep.py", lambda: start(argv, Console()), Diverged)


if __name__ == "__main__":
    sys.exit(main())
