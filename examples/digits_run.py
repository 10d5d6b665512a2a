"""The command line, the files and the figure of `train_digits.py`."""

import argparse
import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import orbax.checkpoint as ocp
from command_line import Parser, Refused, one_line, positive, whole
from matplotlib.figure import Figure

import gradxform as gx

KEPT = 3  # the number of last checkpoints that are kept


@dataclasses.dataclass(frozen=True)
class Options:
    """The options that determine the result. They are saved, so that a run can be resumed."""

    optimizer: str = "adamw"
    learning_rate: float | None = None  # None where a JSON config says it
    schedule: str | None = None
    epochs: int = 30
    batch_size: int = 64
    seed: int = 0


# ---------------------------------------------------------------------------- the command line


def parse(argv: Sequence[str] | None, description: str) -> tuple[dict[str, Any], Path, bool]:
    """Return the options on the command line, the directory, and whether to resume."""
    parser = Parser("train_digits.py", description=description, allow_abbrev=False)
    add_options(parser, "runs/digits")
    args = parser.parse_strictly(argv)
    return given(args, Options), args.out, args.resume


def add_options(parser: Parser, out: str) -> None:
    """Add the options of a run. Its directory is `out` by default."""
    add = parser.add_argument
    add("--optimizer", metavar="NAME", help="a name, or the path of a JSON config (default: adamw)")
    add("--learning-rate", type=positive, metavar="RATE", help="the peak (default: by optimizer)")
    add("--schedule", choices=["cosine", "constant"], help="of the learning rate (default: cosine)")
    add("--epochs", type=whole(1), metavar="N", help=f"(default: {Options.epochs})")
    add("--batch-size", type=whole(1), metavar="N", help=f"(default: {Options.batch_size})")
    add("--seed", type=whole(0), metavar="N", help=f"(default: {Options.seed})")
    add("--out", type=Path, default=out, metavar="DIR", help="(default: %(default)s)")
    add("--resume", action="store_true", help="go on with the run in --out, with its options")


def given(args: argparse.Namespace, kind: type) -> dict[str, Any]:
    """Return the fields of a class of options that are on the command line."""
    values = {f.name: getattr(args, f.name) for f in dataclasses.fields(kind)}
    return {k: v for k, v in values.items() if v is not None}


def flag(key: str) -> str:
    """Return the command-line option of a field of `Options`."""
    return "--" + key.replace("_", "-")


def over_lines(text: str, indent: str = "", width: int = 92) -> str:
    """Break a long `name(a, b, ...)` into one argument per line, recursively."""
    start = text.find("(") + 1
    if len(indent + text) <= width or not start or not text.endswith(")"):
        return indent + text
    arguments, depth = [""], 0
    for char in text[start:-1]:
        depth += (char in "([{") - (char in ")]}")
        if char == "," and not depth:
            arguments.append("")
        else:
            arguments[-1] += char
    lines = [over_lines(a.strip(), indent + "  ", width) + "," for a in arguments if a.strip()]
    return "\n".join([indent + text[:start], *lines, indent + ")"])


# --------------------------------------------------------------------------- the run's files


def is_config(optimizer: str) -> bool:
    """Return whether --optimizer is the path of a JSON config, and not a name."""
    return optimizer.endswith(".json") or Path(optimizer).is_file()


def read_optimizer(path: Path) -> Any:
    """Return the optimizer that a JSON config describes."""
    try:
        tx = gx.from_json(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise Refused(one_line(error)) from error
    except (ValueError, TypeError, KeyError) as error:
        raise Refused(f"{path}: {one_line(error)}") from error
    if not isinstance(tx, gx.GradientTransformation):
        raise Refused(f"{path}: config: {tx!r} is not a transform.")
    return tx


class Run:
    """The directory of a run: its options, its optimizer, its checkpoints and its figure."""

    kind: Any = Options  # the class of its options

    def __init__(self, out: Path):
        self.out = out
        self.checkpoints = out / "checkpoints"
        self.options = out / "options.json"
        self.optimizer = out / "optimizer.json"
        self.figure = out / "training.png"

    def manager(self) -> ocp.CheckpointManager:
        """Open the checkpoints, for use in a `with` statement."""
        # Save synchronously, because the next step donates the arrays and overwrites them.
        options = ocp.CheckpointManagerOptions(
            max_to_keep=KEPT, enable_async_checkpointing=False, cleanup_tmp_directories=True
        )
        return ocp.CheckpointManager(self.checkpoints.absolute(), options=options)

    def epochs_done(self) -> int:
        """Return the epoch of the last checkpoint; 0 if there is none."""
        # Orbax gives a checkpoint its final name, the epoch, only when it is complete.
        names = [p.name for p in self.checkpoints.iterdir()] if self.checkpoints.is_dir() else []
        return max((int(name) for name in names if name.isdecimal()), default=0)

    def replaces(self) -> bool:
        """Return whether a new run replaces one here; refuse to replace anything else."""
        replaced = self.options.exists()  # marks a run of ours; nothing else is replaced
        if self.out.exists() and not replaced:
            if not self.out.is_dir() or any(self.out.iterdir()):
                raise Refused(f"--out {self.out} exists and holds no run; choose another.")
        return replaced

    def clear(self) -> None:
        """Delete the checkpoints."""
        with self.manager() as manager:
            for epoch in manager.all_steps():
                manager.delete(epoch)

    def begin(self, options: Any, tx: Any) -> bool:
        """Save the options and the optimizer; return whether they replace an earlier run."""
        replaced = self.replaces()
        if replaced:
            self.clear()
            self.figure.unlink(missing_ok=True)
        self.out.mkdir(parents=True, exist_ok=True)
        self.save(options)
        self.optimizer.write_text(gx.to_json(tx) + "\n", encoding="utf-8")
        return replaced

    def save(self, options: Any) -> None:
        """Save the options."""
        text = json.dumps(dataclasses.asdict(options), indent=2)
        self.options.write_text(text + "\n", encoding="utf-8")

    def load(self, given: dict[str, Any]) -> tuple[Any, Any]:
        """Return the saved options and optimizer; refuse options that contradict them."""
        (saved, tx), done = self.saved(), self.epochs_done()
        for key, value in given.items():
            was = getattr(saved, key)
            why = "" if value == was else f"was started with {was}"
            if key == "optimizer" and is_config(value):  # the file may have changed, or moved
                why = "" if read_optimizer(Path(value)) == tx else "has another optimizer"
            elif key == "epochs" and saved.schedule == "cosine" and why:
                why += ", where its schedule ends"
            elif key == "epochs":
                why = f"has {done} already" if value < done else ""
            elif was is None:
                why = "has it from its JSON config"
            if why:
                raise self.refusal(key, value, why)
        return dataclasses.replace(saved, epochs=given.get("epochs", saved.epochs)), tx

    def saved(self) -> tuple[Any, Any]:
        """Return the saved options and optimizer; raise `Refused` if no checkpoint exists."""
        if not self.epochs_done() or not self.options.exists():
            raise Refused(f"no checkpoint in {self.out} to resume; without --resume a run starts.")
        tx = read_optimizer(self.optimizer)
        try:
            return self.kind(**json.loads(self.options.read_text(encoding="utf-8"))), tx
        except (ValueError, TypeError) as error:
            raise Refused(f"{self.options}: {one_line(error)}") from error

    def refuse_changes(self, saved: Any, given: dict[str, Any]) -> None:
        """Refuse options that contradict the saved ones."""
        for key, value in given.items():
            was = getattr(saved, key)
            if value != was:
                raise self.refusal(key, value, f"was started with {was}")

    def refusal(self, key: str, value: Any, why: str) -> Refused:
        """Return the error for an option with which the run cannot go on."""
        return Refused(
            f"cannot resume with {flag(key)} {value}: the run in {self.out} {why}. Leave the "
            "option out, or start another run with another --out."
        )


# ----------------------------------------------------------------------------------- the figure


def draw(path: Path, history: dict[str, list[float]], title: str) -> None:
    """Draw loss, accuracy, learning rate and update norm against the steps."""
    blue, orange, grey = "#1f77b4", "#d95f02", "#4d4d4d"
    epochs = len(history["held_out_loss"])
    steps = np.arange(1, len(history["loss"]) + 1)
    ends = steps.reshape(epochs, -1)[:, -1]  # the step at which each epoch ended
    figure = Figure(figsize=(11, 7.5), dpi=120, layout="constrained")
    figure.suptitle(title, fontsize=13)
    figure.subplots(2, 2, sharex=True)
    loss, accuracy, rate, norm = figure.axes
    for axis, name in ((loss, "loss"), (accuracy, "accuracy")):
        mean = np.reshape(history[name], (epochs, -1)).mean(axis=1)
        held_out = history[f"held_out_{name}"]
        axis.plot(steps, history[name], color=blue, alpha=0.25, linewidth=0.8, label="train, step")
        axis.plot(ends, mean, color=blue, label="train, mean of the epoch")
        axis.plot(ends, held_out, color=orange, marker="o", markersize=3, label="held out")
        axis.legend(frameon=False)
    loss.set(title="Loss", yscale="log")
    # Do not reserve room for the first steps, which are near chance.
    lowest = min(
        *history["held_out_accuracy"], float(np.mean(history["accuracy"][ends[-1] // 2 :]))
    )
    accuracy.set(title="Accuracy", ylim=(max(0.0, min(0.9, lowest - 0.05)), 1.005))
    rate.set(title="Learning rate", xlabel="step")
    if "learning_rate" in history:
        rate.plot(steps, history["learning_rate"], color=grey)
        rate.set_ylim(0, 1.05 * max(history["learning_rate"]) or 1)
    else:
        rate.text(0.5, 0.5, "none found in this optimizer", ha="center", transform=rate.transAxes)
    norm.plot(steps, history["update_norm"], color=grey, linewidth=0.8)
    norm.set(title="Norm of the update", xlabel="step", yscale="log")
    for axis in figure.axes:
        axis.grid(alpha=0.25)
        axis.spines[["top", "right"]].set_visible(False)
    figure.savefig(path)
