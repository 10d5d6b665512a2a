"""The command line, the files and the progress bar of `finetune.py`."""

import argparse
import contextlib
import dataclasses
import json
import shutil
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import digits_run
import orbax.checkpoint as ocp
from command_line import Parser, Refused, one_line, positive, whole
from digits_run import flag
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

BASE = "argparse,ast,collections,concurrent,configparser,dataclasses,datetime,email,http,importlib,"
BASE += "inspect,json,logging,pickle,subprocess,typing,urllib,xml"
History = dict[str, list[float]]


@dataclasses.dataclass(frozen=True)
class BaseOptions:
    """The options that determine the base model."""

    base: str = BASE
    base_steps: int = 500
    base_batch_size: int = 20
    base_learning_rate: float = 0.006
    layers: int = 4
    width: int = 64
    length: int = 64
    seed: int = 0


@dataclasses.dataclass(frozen=True)
class Options(BaseOptions):
    """The options that determine the result. They are saved, so that a run can be resumed."""

    text: str = "asyncio"
    steps: int = 90
    every: int = 4
    batch_size: int = 8
    learning_rate: float = 0.01
    layer_decay: float = 0.8
    average: float = 0.95
    dropout: float = 0.05
    bad_batches: int = 6

    @property
    def micro_batches(self) -> int:
        """The number of micro-batches in the whole run."""
        return self.steps * self.every


# ---------------------------------------------------------------------------- the command line


def share(text: str) -> float:
    """Read a number from 0 to 1, without 1."""
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 <= number < 1:
        raise argparse.ArgumentTypeError(f"must be a number in [0, 1), got {text!r}")
    return number


def factor(text: str) -> float:
    """Read a number from 0 to 1, without 0."""
    number = positive(text)
    if number > 1:
        raise argparse.ArgumentTypeError(f"must be a number in (0, 1], got {text!r}")
    return number


def parse(argv: Sequence[str] | None, description: str) -> argparse.Namespace:
    """Return the parsed command line; an option of a run that is not on it is None."""
    parser = Parser("finetune.py", description=description, allow_abbrev=False)

    def add(name: str, kind: Any, metavar: str, text: str) -> None:
        default = "18 packages and modules" if name == "base" else getattr(Options, name)
        text = f"{text} (default: {default})".strip()
        parser.add_argument(flag(name), type=kind, metavar=metavar, help=text)

    add("text", str, "A,B", "the packages or modules to fine-tune on")
    add("steps", whole(1), "N", "steps of the optimizer")
    add("every", whole(1), "N", "micro-batches in a step")
    add("batch_size", whole(1), "N", "windows of text in a micro-batch")
    add("learning_rate", positive, "RATE", "of the head, at its peak")
    add("layer_decay", factor, "X", "the rate of a layer over that of the next")
    add("average", share, "X", "the decay of the average of the weights")
    add("dropout", share, "X", "")
    add("bad_batches", whole(0), "N", "micro-batches to spoil with NaN, to see them skipped")
    add("base", str, "A,B", "what the base model is trained on")
    add("base_steps", whole(1), "N", "its steps")
    add("base_batch_size", whole(1), "N", "windows in each of them")
    add("base_learning_rate", positive, "RATE", "its learning rate, at its peak")
    add("layers", whole(1), "N", "of the model")
    add("width", whole(4), "N", "of the model, a multiple of 4")
    add("length", whole(2), "N", "characters in a window")
    add("seed", whole(0), "N", "")
    more = parser.add_argument
    more("--out", type=Path, default=Path("runs/finetune"), metavar="DIR")
    more("--resume", action="store_true", help="go on with the run in --out, with its options")
    more("--stop-after", type=whole(1), metavar="N", help="save and stop after N micro-batches")
    args = parser.parse_strictly(argv)
    if (args.width or 4) % 4:
        raise Refused(f"--width {args.width}: must be a multiple of 4, the number of heads.")
    return args


def words(text: str) -> list[str]:
    """Return the words between commas."""
    return [word.strip() for word in text.split(",") if word.strip()]


def check(options: Options, stop_after: int | None, done: int) -> None:
    """Refuse numbers that do not fit to each other."""
    total = options.micro_batches
    if options.bad_batches > total:
        raise Refused(f"--bad-batches {options.bad_batches}: there are {total} micro-batches.")
    if stop_after is not None and stop_after <= done:
        raise Refused(f"--stop-after {stop_after}: the run in --out has {done} already.")
    for name in ("text", "base"):
        if not words(getattr(options, name)):
            raise Refused(f"{flag(name)} names no part; name packages or modules such as asyncio.")
    if set(words(options.text)) & set(words(options.base)):
        both = ", ".join(sorted(set(words(options.text)) & set(words(options.base))))
        raise Refused(f"--text and --base both name {both}; the base model must not have seen it.")


# ------------------------------------------------------------------------------ the run's files


class Run(digits_run.Run):
    """The directory of a run: its options, optimizer, checkpoints, figure, and base model.

    A checkpoint is numbered by the micro-batches that were taken.
    """

    kind = Options

    def __init__(self, out: Path) -> None:
        super().__init__(out)
        self.base = out / "base"
        self.figure = out / "finetune.png"

    def load(self, given: dict[str, Any]) -> tuple[Options, Any]:
        """Return the saved options and optimizer; refuse options that contradict them."""
        saved, tx = self.saved()
        self.refuse_changes(saved, given)
        return saved, tx


def save(manager: ocp.CheckpointManager, taken: int, state: Any, history: History) -> None:
    """Save a checkpoint: all that a micro-batch changes, and the history for the figure."""
    parts = {"state": ocp.args.StandardSave(state), "history": ocp.args.JsonSave(history)}
    manager.save(taken, args=ocp.args.Composite(**parts))


def restore(manager: ocp.CheckpointManager, taken: int, like: Any) -> tuple[Any, History]:
    """Return the state and the history of a checkpoint; `like` has its structure and shapes."""
    parts = {"state": ocp.args.StandardRestore(like), "history": ocp.args.JsonRestore()}
    try:
        restored = manager.restore(taken, args=ocp.args.Composite(**parts))
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise Refused(
            f"cannot read the checkpoint of micro-batch {taken}: {one_line(error)}"
        ) from error
    return restored["state"], restored["history"]


class Base:
    """The checkpoint of the base model, and what it was made from.

    Args:
      directory: where it lies.
      options: the options of the run.
      checksum: of the text that it is trained on, which another Python does not have.
    """

    def __init__(self, directory: Path, options: Options, checksum: int) -> None:
        self.params = (directory / "params").absolute()
        self.made_from = directory / "made_from.json"
        names = [field.name for field in dataclasses.fields(BaseOptions)]
        self.recipe = {name: getattr(options, name) for name in names} | {"checksum": checksum}

    def load(self, like: Any) -> Any:
        """Return the parameters; None if there are none that were made from the same."""
        try:
            if json.loads(self.made_from.read_text(encoding="utf-8")) != self.recipe:
                return None
            with ocp.StandardCheckpointer() as checkpointer:
                return checkpointer.restore(self.params, like)
        except (OSError, ValueError, TypeError, KeyError):  # absent, or damaged: train it again
            return None

    def save(self, params: Any) -> None:
        """Save the parameters; what says that they are there is written last."""
        self.made_from.unlink(missing_ok=True)
        shutil.rmtree(self.params, ignore_errors=True)
        with ocp.StandardCheckpointer() as checkpointer:
            checkpointer.save(self.params, params)
        self.made_from.write_text(json.dumps(self.recipe, indent=2) + "\n", encoding="utf-8")


def numbered(history: History, prefix: str) -> Iterator[tuple[str, list[float]]]:
    """Yield the numbers of a history whose names begin with a prefix, without it."""
    for name, values in history.items():
        if name.startswith(prefix):
            yield name.removeprefix(prefix), values


# -------------------------------------------------------------------------------- while it runs


def progress(console: Console) -> Progress:
    """Return a progress bar; it is disabled for a log."""
    return Progress(
        TextColumn("{task.description}"),
        MofNCompleteColumn(),
        BarColumn(bar_width=8),  # all fits in 80 columns
        TextColumn("{task.fields[numbers]}"),
        TimeRemainingColumn(compact=True),
        console=console,
        disable=not console.is_terminal,
    )


@contextlib.contextmanager
def noticed_interrupts() -> Iterator[list[int]]:
    """Collect the first Ctrl-C instead of raising it, so that a run can be saved first."""
    noticed: list[int] = []

    def notice(number: int, frame: Any) -> None:
        noticed.append(number)
        signal.signal(signal.SIGINT, before)

    before = signal.signal(signal.SIGINT, notice)
    try:
        yield noticed
    finally:
        signal.signal(signal.SIGINT, before)
