"""Train one small model with states and parameters of fewer bits, and compare bytes and losses.

    python examples/low_memory.py
    python examples/low_memory.py --runs float32,8-bit --steps 600
    python examples/low_memory.py --layers 4 --width 128

The model predicts the next character of the standard library's sources, with AdamW. All runs get
the same batches, the same learning rate and the same first parameters, rounded where a run keeps
them in 16 bits. The figure `low_memory.png` in --out shows the held-out loss against steps.

The table has the bytes of the parameters, of the optimizer's state and of the temporary arrays of
its step, as the compiler plans them; the loss at the end; and the seconds of the steps, without
compilation and measurements.
"""

import argparse
import math
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from extras import require

require("flax", "matplotlib", "rich")  # before they are imported

import jax
import jax.numpy as jnp
import numpy as np
from command_line import exit_code, positive, whole
from finetune_model import Transformer
from finetune_text import Text
from pretrain import Diverged, progress, schedule_of
from pretrain_figure import Curve, draw_by_steps
from pretrain_options import Options, begun, chosen
from rich.console import Console
from rich.table import Table

import gradxform as gx
from gradxform.losses import softmax_cross_entropy_with_integer_labels

MEASURED = 20  # the number of measurements in a run


class Run(NamedTuple):
    """How a run keeps its parameters and its state."""

    about: str
    dtype: Any  # of the parameters
    wrap: Callable[[Any], Any]  # from AdamW to the optimizer of the run


RUNS: dict[str, Run] = {
    "float32": Run("parameters and state in float32", jnp.float32, lambda tx: tx),
    "bf16-state": Run("state in bfloat16", jnp.float32, gx.state_dtype),
    "8-bit": Run("state in 8 bits", jnp.float32, gx.quantize_state),
    "4-bit": Run(
        "state in 4 bits", jnp.float32, lambda tx: gx.quantize_state(tx, bits=4, block=128)
    ),
    "bf16": Run("bfloat16 parameters, whose small steps are lost", jnp.bfloat16, lambda tx: tx),
    "masters": Run("bfloat16 parameters with float32 copies", jnp.bfloat16, gx.master_weights),
    "remainders": Run(
        "the same, of which the state has the missing bits",
        jnp.bfloat16,
        lambda tx: gx.master_weights(tx, remainders=True),
    ),
    "remainders-8-bit": Run(
        "bfloat16 parameters with remainders, and state in 8 bits",
        jnp.bfloat16,
        lambda tx: gx.master_weights(gx.quantize_state(tx), remainders=True),
    ),
}


class Bytes(NamedTuple):
    """What a run holds in memory."""

    params: int
    state: int
    temporary: int  # of the optimizer's step


# ---------------------------------------------------------------------------------- the training


class Trainer:
    """The training of one run."""

    def __init__(self, run: Run, rate: float, steps: int, model: Transformer, params: Any):
        self.tx = run.wrap(gx.adamw(schedule_of(rate, steps), b2=0.99, weight_decay=0.01))
        self.params = jax.tree.map(lambda p: p.astype(run.dtype), params)
        self.state = jax.jit(self.tx.init)(self.params)

        def loss_fn(params: Any, windows: jax.Array) -> jax.Array:
            logits: Any = model.apply({"params": params}, windows[:, :-1])
            # Sums of exponentials need more bits than 16.
            logits = logits.astype(jnp.float32)
            return jnp.mean(softmax_cross_entropy_with_integer_labels(logits, windows[:, 1:]))

        def train(carry: Any, batches: jax.Array) -> Any:
            def step(carry: Any, windows: jax.Array) -> tuple[Any, None]:
                params, state = carry
                return self.step(jax.grad(loss_fn)(params, windows), state, params), None

            return jax.lax.scan(step, carry, batches)[0]

        self.evaluate = jax.jit(loss_fn)
        self.train = jax.jit(train)

    def step(self, grads: Any, state: Any, params: Any) -> tuple[Any, Any]:
        """Return the parameters and the state after one step."""
        updates, state = self.tx.update(grads, state, params)
        return gx.apply_updates(params, updates), state

    def bytes(self) -> Bytes:
        """Return the bytes of the parameters, the state, and the temporary arrays of a step."""
        given = self.params, self.state, self.params
        with warnings.catch_warnings():  # gradients are donated too, and not all become a result
            warnings.simplefilter("ignore", UserWarning)
            compiled = jax.jit(self.step, donate_argnums=(0, 1, 2)).lower(*given).compile()
        memory = compiled.memory_analysis()
        of_params, of_state = (
            sum(x.nbytes for x in jax.tree.leaves(tree)) for tree in (self.params, self.state)
        )
        return Bytes(of_params, of_state, getattr(memory, "temp_size_in_bytes", 0))

    def curve(self, rate: float, steps: int, text: Text) -> Iterator[Curve]:
        """Train, and yield the curve after every measurement."""
        every = math.ceil(steps / MEASURED)
        carry, seconds, compiled = (self.params, self.state), 0.0, {}
        start = float(self.evaluate(self.params, text.held_out))
        curve = Curve(rate, [0], [0.0], [start])
        for done in range(0, steps, every):
            count = min(every, steps - done)  # the last call may have fewer steps
            batches = np.stack([text.batch(done + i) for i in range(count)])
            given = carry, jnp.asarray(batches, jnp.int32)
            if count not in compiled:
                compiled[count] = self.train.lower(*given).compile()
            began = time.perf_counter()
            carry = jax.block_until_ready(compiled[count](*given))
            seconds += time.perf_counter() - began
            curve.add(done + count, seconds, float(self.evaluate(carry[0], text.held_out)))
            yield curve


def train(
    args: argparse.Namespace, text: Text, model: Transformer, params: Any, console: Console
) -> tuple[dict[str, Curve], dict[str, Bytes]]:
    """Train every run, and return its curve and its bytes."""
    curves, held = {}, {}
    with progress(console) as bar:
        for name in args.runs:
            task = bar.add_task(f"{name:16}", total=args.steps, numbers="compiling")
            trainer = Trainer(RUNS[name], args.rate, args.steps, model, params)
            held[name] = trainer.bytes()
            for curve in trainer.curve(args.rate, args.steps, text):
                curves[name] = curve
                numbers = f"loss {curve.losses[-1]:.3f}"
                bar.update(task, advance=curve.steps[-1] - curve.steps[-2], numbers=numbers)
            loss = curves[name].losses[-1]
            if not console.is_terminal:
                print(f"{name}: held-out loss {loss:.3f}", flush=True)
            if not math.isfinite(loss):
                raise Diverged(f"the loss of {name} is not finite; try a smaller --rate.")
    return curves, held


def results(curves: dict[str, Curve], held: dict[str, Bytes]) -> Table:
    """Return the table of results, bytes in kB."""
    result = Table()
    for column in ("run", "parameters", "state", "temporary", "in all, kB", "loss", "seconds"):
        result.add_column(column, justify="left" if column == "run" else "right")
    for name, curve in curves.items():
        kilobytes = [*held[name], sum(held[name])]
        cells = [f"{x / 1000:.0f}" for x in kilobytes]
        result.add_row(name, *cells, f"{curve.losses[-1]:.3f}", f"{curve.seconds[-1]:.1f}")
    return result


# ------------------------------------------------------------------------------ the command line


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Return the options."""
    options = Options("low_memory", __doc__)
    abouts = "; ".join(f"{name}: {run.about}" for name, run in RUNS.items())
    options.add("--runs", ",".join(RUNS), str, "A,B", f"{abouts}.")
    options.add("--steps", 150, whole(1), "N", "of each run")
    options.add("--rate", 8e-3, positive, "X", "the largest learning rate")
    args = options.parse(argv, width=128)
    args.runs = chosen("run", args.runs, RUNS)
    return args


def start(argv: Sequence[str] | None, console: Console) -> None:
    """Train as the command line says."""
    args = parse(argv)
    text, model, params, size = begun(args)
    curves, held = train(args, text, model, params, console)
    console.print(results(curves, held))
    path = args.out / "low_memory.png"
    draw_by_steps(path, curves, f"Next characters of Python sources: {size}")
    print(f"wrote {path}")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the example; return the exit code."""
    return exit_code("low_memory.py", lambda: start(argv, Console()), Diverged)


if __name__ == "__main__":
    sys.exit(main())
