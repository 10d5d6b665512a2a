"""The command line and the files of `train_pod.py`."""

import argparse
import dataclasses
import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import digits_run
import orbax.checkpoint as ocp
from command_line import Parser, Refused, one_line, positive, whole
from digits_run import flag, given
from finetune_model import HEADS
from pod_method import COMPRESSIONS, METHODS
from pretrain_options import PARTS

LAUNCHERS = ("local", "here", "cluster")
PERIOD, COMPRESS = 10, "int8"  # of DiLoCo
FREE = ("slices", "devices")  # what may change when a run goes on


@dataclasses.dataclass(frozen=True)
class Options:
    """The options of a run. They are saved, so that it can go on."""

    method: str = "diloco"
    period: int | None = None
    compress: str | None = None
    outer_momentum: float = 0.3
    slices: int = 2
    devices: int = 4
    steps: int = 300
    save_every: int | None = None
    text: str = PARTS
    batch_size: int = 24
    length: int = 64
    layers: int = 2
    width: int = 64
    learning_rate: float = 8e-3
    seed: int = 0

    @property
    def n(self) -> int:
        """The number of all devices."""
        return self.slices * self.devices


def parse(argv: Sequence[str], description: str) -> argparse.Namespace:
    """Return the parsed command line."""
    parser = Parser("train_pod.py", description=description, allow_abbrev=False)
    add = parser.add_argument

    def count(name: str, text: str, least: int = 1) -> None:
        default = getattr(Options, name)
        note = text if default is None else f"{text} (default: {default})".strip()
        add(flag(name), type=whole(least), metavar="N", help=note)

    add("--method", metavar="NAME", help=f"{' or '.join(METHODS)} (default: {Options.method})")
    count("slices", "one process each, on this machine")
    count("devices", "of a slice")
    count("period", f"steps to an exchange of diloco (default: {PERIOD})")
    add("--compress", choices=COMPRESSIONS, help=f"(default: {COMPRESS} for diloco, else none)")
    add("--outer-momentum", type=positive, metavar="M", help="below 1 (default: 0.3)")
    count("steps", "")
    count("save_every", "steps to a checkpoint (default: about 50, after an exchange)")
    add("--text", metavar="A,B", help=f"parts of the standard library (default: {PARTS})")
    count("batch_size", "windows in a step, over all devices")
    count("length", "characters in a window", 2)
    count("layers", "")
    count("width", f"a multiple of {HEADS}")
    add("--learning-rate", type=positive, metavar="RATE", help="the peak (default: 0.008)")
    count("seed", "", 0)
    add("--out", type=Path, default="runs/pod", metavar="DIR", help="(default: %(default)s)")
    add("--beside", type=Path, metavar="DIR", help="draw the run in DIR, too")
    add("--resume", action="store_true", help="go on with the run in --out, with its options")
    add("--elastic", action="store_true", help="when a process dies, go on with a slice less")
    add(
        "--launcher",
        choices=LAUNCHERS,
        help="here: in this process (default: cluster if there is one)",
    )
    add("--heartbeat", type=whole(1), metavar="SECONDS", help="until a dead process is noticed")
    add("--timeout", type=positive, metavar="SECONDS", help="until local processes are killed")
    add("--coordinator", metavar="ADDRESS", help=argparse.SUPPRESS)  # from here on for one process
    add("--processes", type=whole(1), help=argparse.SUPPRESS)
    add("--process-id", type=whole(0), help=argparse.SUPPRESS)
    args = parser.parse_strictly(argv)
    if args.elastic and args.launcher in ("here", "cluster"):
        raise Refused(f"--elastic: --launcher {args.launcher} does not start processes again.")
    return args


def completed(options: Options) -> Options:
    """Return the options with the defaults that depend on others; refuse what does not fit."""
    alone = options.method == "diloco"
    if not alone and options.period is not None:
        raise Refused(f"--period: {options.method} exchanges at every step; leave the option out.")
    if not options.outer_momentum < 1:
        raise Refused(f"--outer-momentum {options.outer_momentum:g}: must be below 1.")
    period = options.period or (PERIOD if alone else 1)
    compress = options.compress or (COMPRESS if alone else "none")
    every = options.save_every or -(-50 // period) * period
    for name, value in (("steps", options.steps), ("save_every", every)):
        if value % period:
            raise Refused(
                f"{flag(name)} {value}: must be a multiple of {period}, the steps to an exchange; "
                "between exchanges, the slices are apart."
            )
    if options.batch_size < options.n:
        raise Refused(
            f"--batch-size {options.batch_size}: must be at least {options.n}, a window for each "
            f"device of {options.slices} slices."
        )
    if options.width % HEADS:
        raise Refused(f"--width {options.width}: must be a multiple of {HEADS}, the heads.")
    new = {"compress": compress, "save_every": every, "period": period if alone else None}
    return dataclasses.replace(options, **new)


class Run(digits_run.Run):
    """The directory of a run. All processes write checkpoints; one process writes the rest."""

    kind = Options

    def __init__(self, out: Path):
        super().__init__(out)
        self.history = out / "history.json"

    def manager(self) -> ocp.CheckpointManager:
        """Open the checkpoints, for use in a `with` statement; they are written in background."""
        options = ocp.CheckpointManagerOptions(
            max_to_keep=digits_run.KEPT, cleanup_tmp_directories=True
        )
        return ocp.CheckpointManager(self.checkpoints.absolute(), options=options)

    def clear(self) -> None:
        """Delete the checkpoints, and the history."""
        shutil.rmtree(self.checkpoints, ignore_errors=True)
        self.history.unlink(missing_ok=True)

    def when(self) -> int:
        """Return when the run was started or resumed, in nanoseconds; 0 if there is none."""
        return self.options.stat().st_mtime_ns if self.options.exists() else 0

    def load(self, given: dict[str, Any]) -> tuple[Options, Any]:
        """Return the saved options and optimizer; slices and devices may change."""
        saved, tx = self.saved()
        self.refuse_changes(saved, {k: v for k, v in given.items() if k not in FREE})
        free = {name: value for name, value in given.items() if name in FREE}
        return dataclasses.replace(saved, **free), tx

    def save_history(self, history: dict[str, list[float]]) -> None:
        """Save the history, for the figures of other runs."""
        self.history.write_text(json.dumps(history) + "\n", encoding="utf-8")

    def read_history(self) -> dict[str, list[float]]:
        """Return the history that the run has written."""
        try:
            return json.loads(self.history.read_text(encoding="utf-8"))
        except OSError as error:
            raise Refused(f"no run of this example: {one_line(error)}") from error
        except ValueError as error:
            raise Refused(f"{self.history}: {one_line(error)}") from error


def options_of(args: argparse.Namespace, run: Run) -> tuple[Options, Any]:
    """Return the options of a run, and its optimizer if there is one, without writing anything."""
    if args.resume:
        options, tx = run.load(given(args, Options))
    else:
        run.replaces()  # or refuses
        options, tx = Options(**given(args, Options)), None
    return completed(options), tx
