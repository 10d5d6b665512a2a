"""Train a Keras model on handwritten digits, go on in Flax, and end in Keras, as one run.

    python examples/from_keras.py
    python examples/from_keras.py --optimizer nadam --learning-rate 3e-3 --epochs 4
    python examples/from_keras.py --optimizer rmsprop --out runs/mine

The run has three legs of --epochs epochs each. Keras trains and saves `model.keras`. From this
file come the weights and the optimizer, with its config and everything that it remembers
(`compat.keras.load_optimizer`), and a loop of Flax goes on. Its parameters and the state of its
optimizer then go back into the Keras model (`compat.keras.get_weights`), which trains on and saves
`back.keras`. Beside it, Keras trains all three legs alone, on the same batches.

It needs the extra `keras`. It writes to --out: both models, and the figure `from_keras.png`: the
held-out loss and accuracy of both runs, and by how much their parameters differ.
"""

import math
import os
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("KERAS_BACKEND", "jax")  # before Keras is imported

from extras import require

require(
    "flax", "keras", "h5py", "matplotlib", "sklearn", extras="examples,keras"
)  # before they are imported

import flax.linen as nn
import jax
import jax.numpy as jnp
import keras
import numpy as np
from command_line import Parser, Refused, did_you_mean, one_line, positive, whole
from digits import Data, load_data
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

import gradxform as gx
from gradxform import compat

# Those whose weights can be taken over, with learning rates that suit this network.
LEARNING_RATES = {
    "sgd": 0.3,
    "rmsprop": 3e-3,
    "adagrad": 0.05,
    "adadelta": 1.0,
    "adam": 5e-3,
    "adamw": 5e-3,
    "adamax": 1e-2,
    "nadam": 5e-3,
    "ftrl": 0.1,
    "lion": 5e-4,
}
LEGS = ("Keras", "Flax", "Keras again")
WIDTH = 64


class Diverged(Exception):
    """The loss is no longer finite: one line on stderr and exit code 1."""


# ------------------------------------------------------------------------------ the two networks


def keras_model(optimizer: str, learning_rate: float, seed: int) -> Any:
    """Return the model as Keras writes it."""
    keras.utils.set_random_seed(seed)
    model = keras.Sequential(
        [
            keras.Input((64,)),
            keras.layers.Dense(WIDTH, activation="relu", name="hidden"),
            keras.layers.Dense(10, name="out"),
        ]
    )
    config = {"class_name": optimizer, "config": {"learning_rate": learning_rate}}
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.get(config), loss=loss, metrics=["accuracy"])
    return model


class Net(nn.Module):
    """The same model in Flax; the layers have the same names."""

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        return nn.Dense(10, name="out")(nn.relu(nn.Dense(WIDTH, name="hidden")(x)))


def loss_fn(params: Any, batch: Data) -> jax.Array:
    """Return the mean cross-entropy."""
    logits: Any = Net().apply({"params": params}, batch.images)
    return -jnp.mean(jnp.take_along_axis(nn.log_softmax(logits), batch.labels[:, None], axis=-1))


@jax.jit
def measure(params: Any, data: Data) -> tuple[jax.Array, jax.Array]:
    """Return the mean cross-entropy and the accuracy."""
    logits: Any = Net().apply({"params": params}, data.images)
    return loss_fn(params, data), jnp.mean(jnp.argmax(logits, axis=-1) == data.labels)


# ------------------------------------------------------------------------------- there and back


def order_of(model: Any) -> list[str]:
    """Return the paths of the parameters in Flax, in the order of the Keras model."""
    return ["/".join(v.path.split("/")[-2:]) for v in model.trainable_variables]


def params_of(model: Any) -> dict[str, dict[str, Any]]:
    """Return the parameters of the Keras model as Flax has them."""
    params: dict[str, dict[str, Any]] = {}
    for path, v in zip(order_of(model), model.trainable_variables, strict=True):
        layer, name = path.split("/")
        params.setdefault(layer, {})[name] = jnp.array(keras.ops.convert_to_numpy(v))
    return params


def put_back(model: Any, tx: Any, params: Any, state: Any) -> None:
    """Put parameters, and the state of the optimizer, into the Keras model."""
    order = order_of(model)
    model.set_weights([np.asarray(params[k.split("/")[0]][k.split("/")[1]]) for k in order])
    model.optimizer.set_weights(compat.keras.get_weights(tx, state, params, version=3, order=order))


# ------------------------------------------------------------------------------------- training


class Row(NamedTuple):
    """What is measured after an epoch."""

    loss: float
    accuracy: float
    params: Any


def shuffled(data: Data, batch_size: int, seed: int, epoch: int) -> Data:
    """Return whole batches, one after another, in the order of an epoch."""
    n = len(data.labels)
    order = np.random.default_rng([seed, epoch]).permutation(n)[: n - n % batch_size]
    return Data(data.images[order].reshape(-1, 64), data.labels[order])


class Training:
    """A run: epochs in Keras or in Flax, on the same batches whoever trains."""

    def __init__(self, data: tuple[Data, Data], batch_size: int, seed: int, total: int):
        self.data, self.batch_size, self.seed, self.total = data[0], batch_size, seed, total
        self.held_out = Data(data[1].images.reshape(-1, 64), data[1].labels)

    def in_keras(self, model: Any, epochs: Sequence[int], who: str) -> Iterator[Row]:
        """Train a Keras model."""
        for epoch in epochs:
            batch = shuffled(self.data, self.batch_size, self.seed, epoch)
            model.fit(*batch, batch_size=self.batch_size, shuffle=False, verbose=0)
            yield self.row(params_of(model), epoch, who)

    def in_flax(self, tx: Any, params: Any, state: Any, epochs: Sequence[int]) -> Iterator[Any]:
        """Train Flax's parameters; yield the row, and the parameters and the state with it."""
        step = gx.make_step(tx, loss_fn)
        # A step donates what it is given.
        params = jax.tree.map(jnp.copy, params)
        for epoch in epochs:
            data = shuffled(self.data, self.batch_size, self.seed, epoch)
            for start in range(0, len(data.labels), self.batch_size):
                batch = Data(*(x[start : start + self.batch_size] for x in data))
                params, state, _ = step(params, state, batch)
            yield self.row(jax.tree.map(jnp.copy, params), epoch, LEGS[1]), params, state

    def row(self, params: Any, epoch: int, who: str) -> Row:
        """Measure the parameters after an epoch."""
        loss, accuracy = (float(x) for x in measure(params, self.held_out))
        if not math.isfinite(loss):
            raise Diverged(f"the loss is {loss} after epoch {epoch}; lower --learning-rate.")
        print(
            f"{who:<14} epoch {epoch:>2}/{self.total}  held-out loss {loss:.4f} "
            f"accuracy {accuracy:.4f}",
            flush=True,
        )
        return Row(loss, accuracy, params)


def relay(training: Training, model: Any, out: Path, epochs: int) -> list[Row]:
    """Train in Keras, in Flax and in Keras again."""
    first, second, third = (range(i * epochs + 1, (i + 1) * epochs + 1) for i in range(len(LEGS)))
    rows = list(training.in_keras(model, first, LEGS[0]))
    model.save(out / "model.keras")
    params = params_of(model)
    tx, state = compat.keras.load_optimizer(out / "model.keras", params, order=order_of(model))
    print(f"Read from {out / 'model.keras'}: {tx!r}", flush=True)
    for row, *carried in training.in_flax(tx, params, state, second):
        rows.append(row)
        params, state = carried
    put_back(model, tx, params, state)
    rows += training.in_keras(model, third, LEGS[2])
    model.save(out / "back.keras")
    return rows


def difference(a: Any, b: Any) -> float:
    """Return the largest difference between two sets of parameters."""
    each = jax.tree.map(lambda x, y: float(jnp.max(jnp.abs(x - y))), a, b)
    return max(jax.tree.leaves(each))


# ------------------------------------------------------------------------------------ the figure


def draw(path: Path, rows: Sequence[Row], alone: Sequence[Row], title: str) -> None:
    """Draw loss, accuracy and difference against the epochs."""
    colors = dict(zip(LEGS, ("#1f77b4", "#d95f02", "#1b9e77"), strict=True))
    figure = Figure(figsize=(13, 4.2), dpi=120, layout="constrained")
    figure.suptitle(title, fontsize=13)
    figure.subplots(1, 3)
    loss, accuracy, apart = figure.axes
    at = np.arange(1, len(rows) + 1)
    k = len(rows) // len(LEGS)
    for axis, name in ((loss, "loss"), (accuracy, "accuracy")):
        values = [getattr(row, name) for row in rows]
        for i, leg in enumerate(LEGS):
            part = slice(max(0, i * k - 1), (i + 1) * k)  # joined to the leg before
            axis.plot(at[part], values[part], color=colors[leg], linewidth=2.2, label=leg)
        theirs = [getattr(row, name) for row in alone]
        axis.plot(at, theirs, "k.", markersize=6, label="Keras alone, the same batches")
        axis.set(title=f"Held-out {name}")
    loss.set_ylim(0, None)
    loss.legend(frameon=False)
    largest = max(float(jnp.max(jnp.abs(x))) for x in jax.tree.leaves(alone[-1].params))
    gaps = [difference(a.params, b.params) for a, b in zip(rows, alone, strict=True)]
    apart.plot(at, gaps, color="#4d4d4d", marker="o", markersize=4)
    apart.set(title="Largest difference of parameters")
    apart.text(0.03, 0.94, f"parameters reach {largest:.2g}", transform=apart.transAxes)
    apart.set_ylim(0, 1.3 * max(*gaps, 1e-9))
    for axis in figure.axes:
        for i in (1, 2):
            axis.axvline(i * k + 0.5, color="#bbbbbb", linewidth=0.8, linestyle="--")
        axis.set_xlabel("epoch")
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))
        axis.grid(alpha=0.25)
        axis.spines[["top", "right"]].set_visible(False)
    figure.savefig(path)


# ----------------------------------------------------------------------------------------- the run


def start(argv: Sequence[str] | None) -> None:
    """Train as the command line says."""
    began = time.perf_counter()
    parser = Parser("from_keras.py", description=(__doc__ or "").split("\n")[0], allow_abbrev=False)
    add = parser.add_argument
    names = ", ".join(LEARNING_RATES)
    add("--optimizer", default="adam", metavar="NAME", help=f"one of {names} (default: adam)")
    add("--learning-rate", type=positive, metavar="RATE", help="(default: by optimizer)")
    add("--epochs", type=whole(1), default=5, metavar="N", help="of each leg (default: 5)")
    add("--batch-size", type=whole(1), default=64, metavar="N", help="(default: %(default)s)")
    add("--seed", type=whole(0), default=0, metavar="N", help="(default: %(default)s)")
    add("--out", type=Path, default="runs/from_keras", metavar="DIR", help="(default: %(default)s)")
    args = parser.parse_strictly(argv)
    if args.optimizer not in LEARNING_RATES:
        hint = did_you_mean(args.optimizer, LEARNING_RATES) or f"There are {names}."
        raise Refused(f"no optimizer named {args.optimizer!r}. {hint}")
    data = load_data()
    if args.batch_size > len(data[0].labels):
        raise Refused(
            f"--batch-size {args.batch_size}: there are {len(data[0].labels)} training images."
        )
    args.out.mkdir(parents=True, exist_ok=True)
    rate = args.learning_rate or LEARNING_RATES[args.optimizer]
    total = len(LEGS) * args.epochs
    training = Training(data, args.batch_size, args.seed, total)
    made = (keras_model(args.optimizer, rate, args.seed) for _ in range(2))
    rows = relay(training, next(made), args.out, args.epochs)
    alone = list(training.in_keras(next(made), range(1, total + 1), "Keras alone"))
    gap = difference(rows[-1].params, alone[-1].params)
    figure = args.out / "from_keras.png"
    draw(figure, rows, alone, f"{args.optimizer} from Keras to Flax and back")
    print(
        f"Held-out accuracy {rows[-1].accuracy:.4f}, of Keras alone {alone[-1].accuracy:.4f}; "
        f"parameters differ by at most {gap:.1e}. In {time.perf_counter() - began:.1f} s; wrote "
        f"{figure}, {args.out / 'model.keras'} and {args.out / 'back.keras'}"
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run the example; return the exit code."""
    try:
        start(argv)
    except (Refused, Diverged, OSError) as error:
        print(f"from_keras.py: error: {one_line(error)}", file=sys.stderr)
        return 1 if isinstance(error, Diverged) else 2
    except KeyboardInterrupt:
        print("from_keras.py: interrupted; start again, a run takes seconds.", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
