"""The command line, the files and the figure of `distributed_digits.py`."""

import argparse
import dataclasses
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import digits_run
import jax
import numpy as np
import orbax.checkpoint as ocp
from command_line import Parser, Refused, one_line, positive, whole
from distributed_methods import EVERY_PERIOD, METHODS, PERIOD, Sent
from matplotlib.figure import Figure
from rich.table import Table

MODES = ("shard_map", "pmap", "jit", "vmap")
LAUNCHERS = ("local", "cluster", "ray")
History = dict[str, list[float]]


@dataclasses.dataclass(frozen=True)
class Options(digits_run.Options):
    """The options that determine the result. They are saved, so that a run can be resumed."""

    method: str = "model_average"
    period: int | None = None  # None if every step ends in an exchange
    processes: int = 4  # or devices, in a cluster
    mode: str = "shard_map"


# ---------------------------------------------------------------------------- the command line


def parse(argv: Sequence[str] | None, description: str) -> argparse.Namespace:
    """Return the parsed command line."""
    parser = Parser("distributed_digits.py", description=description, allow_abbrev=False)
    add = parser.add_argument
    add("--method", metavar="NAME", help=f"one of {', '.join(METHODS)} (default: {Options.method})")
    add("--period", type=whole(1), metavar="N", help=f"steps to an exchange (default: {PERIOD})")
    add("--processes", type=whole(1), metavar="N", help=f"here (default: {Options.processes})")
    add("--mode", choices=MODES, help="vmap: all in one process (default: shard_map)")
    add("--launcher", choices=LAUNCHERS, help="(default: cluster if there is one, else local)")
    add("--address", metavar="HOST:PORT", help="of a cluster of Ray (default: start one here)")
    add("--heartbeat", type=whole(1), metavar="SECONDS", help="until a dead process is noticed")
    add("--timeout", type=positive, metavar="SECONDS", help="until local processes are killed")
    add("--coordinator", metavar="ADDRESS", help=argparse.SUPPRESS)  # from here on for one process
    add("--process-id", type=whole(0), help=argparse.SUPPRESS)
    digits_run.add_options(parser, "runs/distributed")
    args = parser.parse_strictly(argv)
    if args.launcher == "cluster" and (args.processes or args.mode == "vmap"):
        raise Refused("--launcher cluster: the cluster says how many processes there are.")
    if args.address is not None and args.launcher != "ray":
        raise Refused("--address: only --launcher ray takes it.")
    return args


# ------------------------------------------------------------------------------ the run's files


class Run(digits_run.Run):
    """The directory of a run. All processes write checkpoints; one process writes the rest."""

    kind = Options

    def clear(self) -> None:
        """Delete the checkpoints."""
        shutil.rmtree(self.checkpoints, ignore_errors=True)

    def load(self, given: dict[str, Any]) -> tuple[Options, Any]:
        """Return the saved options and optimizer; the number of processes may change."""
        free = {k: v for k, v in given.items() if k in ("processes", "mode")}
        options, inner = super().load({k: v for k, v in given.items() if k not in free})
        return dataclasses.replace(options, **free), inner


def save(manager: ocp.CheckpointManager, epoch: int, carry: Any, history: History) -> None:
    """Save a checkpoint; every process writes its own replicas."""
    parts = {"carry": ocp.args.PyTreeSave(carry), "history": ocp.args.JsonSave(history)}
    manager.save(epoch, args=ocp.args.Composite(**parts))


def restore(manager: ocp.CheckpointManager, epoch: int, like: Any) -> tuple[Any, History]:
    """Return a checkpoint as NumPy arrays in the shapes saved; `like` has its structure."""
    kinds = jax.tree.map(lambda _: ocp.RestoreArgs(restore_type=np.ndarray), like)
    parts = {
        "carry": ocp.args.PyTreeRestore(like, restore_args=kinds),
        "history": ocp.args.JsonRestore(),
    }
    try:
        restored = manager.restore(epoch, args=ocp.args.Composite(**parts))
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise Refused(f"cannot read the checkpoint of epoch {epoch}: {one_line(error)}") from error
    return restored["carry"], restored["history"]


# ------------------------------------------------------------------------------- the results


def title(options: Options) -> str:
    """Return a title for the run."""
    period = f", period {options.period or PERIOD}" if options.method in EVERY_PERIOD else ""
    return f"{options.processes} replicas by {options.method}{period}"


def table(options: Options, history: History, sent: Sent) -> Table:
    """Return the results of a run."""

    def in_copies(number: float) -> str:
        return f"{number / 1e3:.1f} kB, {number / sent.size:.3f} P"

    steps, last = len(history["loss"]), {name: values[-1] for name, values in history.items()}
    rows = {
        "held-out accuracy": f"{last['held_out_accuracy']:.4f}",
        "of single replicas": f"{last['lowest']:.4f} to {last['highest']:.4f}",
        "steps": f"{steps}, {1e3 * np.median(history['seconds']):.1f} ms each",
        "exchanges": f"{last['exchanges']:.0f}",
        "sent in an exchange": in_copies(sent.wire.peak),
        "sent in a step, mean": in_copies(last["sent"] / steps),
        "sent in all": f"{last['sent'] / 1e6:.2f} MB by each device",
        "bytes": "counted in the compiled step" if sent.counted else "by the rule, not counted",
    }
    result = Table("P: a copy of the parameters", f"{sent.size / 1e3:.1f} kB", title=title(options))
    for row in rows.items():
        result.add_row(*row)
    return result


def draw(path: Path, history: History, title: str) -> None:
    """Draw the loss, and the distance between the replicas, against the steps."""
    blue, orange, grey = "#1f77b4", "#d95f02", "#4d4d4d"
    epochs = len(history["held_out_loss"])
    steps = np.arange(1, len(history["loss"]) + 1)
    ends = steps.reshape(epochs, -1)[:, -1]
    mean = np.reshape(history["loss"], (epochs, -1)).mean(axis=1)
    figure = Figure(figsize=(10, 7.5), dpi=120, layout="constrained")
    figure.suptitle(title, fontsize=13)
    loss, distance = figure.subplots(2, 1, sharex=True)
    label = "train, mean of the replicas"
    loss.plot(steps, history["loss"], color=blue, alpha=0.25, linewidth=0.8, label=label)
    loss.plot(ends, mean, color=blue, label="train, mean of the epoch")
    loss.plot(ends, history["held_out_loss"], color=orange, marker="o", markersize=3)
    loss.lines[-1].set_label("held out")
    loss.set(title="Loss", yscale="log")
    loss.legend(frameon=False)
    distance.plot(history["distance_step"], history["distance"], color=grey, linewidth=0.8)
    distance.set(
        title="Distance of the replicas from their mean, over the norm of the mean", xlabel="step"
    )
    if max(history["distance"]) < 1e-6:  # rounding, of the mean itself
        distance.set_ylim(-0.05, 1)
        distance.text(0.5, 0.5, "none", ha="center", transform=distance.transAxes)
    else:
        distance.set_ylim(0, 1.05 * max(history["distance"]))
    for axis in (loss, distance):
        axis.grid(alpha=0.25)
        axis.spines[["top", "right"]].set_visible(False)
    figure.savefig(path)
