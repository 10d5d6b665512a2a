"""Compare gradxform with Optax; print tables, write JSON and PNG files."""

import argparse
import json
import sys
import uuid
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NoReturn

import jax
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks.options import Options, Refused, Results
from benchmarks.sections.names import DEFAULT_SECTIONS, SECTIONS
from benchmarks.subjects.cases import CHAINS, TREES
from benchmarks.subjects.entrants import names as racing
from benchmarks.subjects.pairs import PAIRS
from benchmarks.subjects.workloads.names import WORKLOADS
from benchmarks.tables.figures import FIGURES

RESULTS = Path(__file__).parent / "results"


class Parser(argparse.ArgumentParser):
    """A parser that reports errors on one line."""

    def error(self, message: str) -> NoReturn:
        """Print the message without the usage and exit with status 2."""
        self.exit(2, f"{self.prog}: {message}\n")


class Bar:
    """The `Job` of the command line: a progress bar, and a JSON file that grows case by case."""

    def __init__(self, name: str, progress: Progress, path: Path) -> None:
        self.task = progress.add_task(name, total=None)
        self.progress, self.path = progress, path

    def plan(self, total: int) -> None:
        self.progress.update(self.task, total=total)

    def begin(self, label: str) -> None:
        self.progress.update(self.task, description=label)

    def advance(self) -> None:
        self.progress.advance(self.task)

    def save(self, results: Results) -> None:
        # Rename a complete file, so that an interruption leaves the previous one whole. Its name is
        # its own: two processes may share the optimizers of a race.
        part = self.path.with_suffix(f".{uuid.uuid4().hex}.part")
        part.write_text(json.dumps(results, indent=1) + "\n")
        part.replace(self.path)


def main(argv: list[str] | None = None) -> int:
    """Run the sections of the command line."""
    names, options = parse(argv)
    # A program from a cache on disk would not be compiled.
    jax.config.update("jax_enable_compilation_cache", False)
    console, errors = Console(), Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    for name in names:
        section = SECTIONS[name]
        path = options.out / f"{name}.json"
        try:
            with Progress(*columns, console=errors, transient=True) as progress:
                results = section.run(options, Bar(name, progress, path))
        except KeyboardInterrupt:
            kept = path if section.kept is None else section.kept(options)
            said = f"Interrupted. {kept} holds the cases that were complete, if any."
            errors.print(said, soft_wrap=True, highlight=False)
            return 130
        except Refused as error:
            errors.print(f"python -m benchmarks: {error}", soft_wrap=True, highlight=False)
            return 2
        section.show(results, console)
        wrote = str(path)
        if section.draw is not None:
            picture = path.with_suffix(".png")
            section.draw(results, picture)
            wrote += f" and {picture}"
        console.print(f"Wrote {wrote}.", soft_wrap=True)
    return 0


def parse(argv: list[str] | None) -> tuple[tuple[str, ...], Options]:
    """Return the names of the sections and the options; exit with status 2 if they are wrong."""
    about = "; ".join(f"{name}: {section.about}" for name, section in SECTIONS.items())
    parser = Parser(prog="python -m benchmarks", description=f"{__doc__} Sections: {about}.")
    add = parser.add_argument
    add("sections", nargs="*", type=_one_of(SECTIONS), help=f"from {_listed(SECTIONS)}")
    add("--trees", type=_some_of(TREES), metavar="A,B", help=f"from {_listed(TREES)}")
    add("--chains", type=_some_of(CHAINS), metavar="A,B", help=f"from {_listed(CHAINS)}")
    add("--optimizers", type=_some_of(PAIRS), metavar="A,B", help="that both libraries have (all)")
    only = f"figures, of {_listed(FIGURES)}; of race alone, optimizers"
    add("--only", metavar="A,B", help=only)
    add("--workloads", type=_some_of(WORKLOADS), metavar="A,B", help=f"of {_listed(WORKLOADS)}")
    add("--targets", action="store_true", help="measure the targets of the workloads of race")
    add("--untimed", action="store_true", help="race without the runs that measure seconds")
    add("--repeats", type=_positive, metavar="N", help="samples per timing (25)")
    add("--seed", type=_seed, default=0, help="of parameters and gradients (0)")
    add("--out", type=Path, metavar="DIR", help="(benchmarks/results; of race, docs/site/data)")
    add("--peers", type=Path, metavar="DIR", help="with other libraries, for matrix; see README.md")
    add("--quick", action="store_true", help="small trees and few samples, under a minute")
    args = parser.parse_args(argv)
    race = tuple(args.sections) == ("race",)
    for name in ("only", "untimed", "quick"):
        if args.targets and getattr(args, name):
            parser.error(f"--targets measures AdamW alone, in full: leave out --{name}")
    if race and args.seed and not (args.quick or args.out):
        parser.error("the files that the site shows are of seed 0: with --seed, give --out DIR")
    only = _only(parser, args.only, racing() if race else FIGURES)
    options = Options(
        trees=args.trees or (),
        chains=args.chains or tuple(CHAINS),
        optimizers=args.optimizers or tuple(PAIRS),
        only=tuple(FIGURES) if race else only or tuple(FIGURES),
        entrants=only if race else (),
        workloads=args.workloads or (),
        targets=args.targets,
        untimed=args.untimed,
        repeats=args.repeats or (3 if args.quick else 25),
        seed=args.seed,
        out=args.out or RESULTS,
        elsewhere=args.out is not None,
        peers=args.peers,
        quick=args.quick,
    )
    if options.peers is not None and not options.peers.is_dir():
        parser.error(f"--peers: {options.peers} is not a folder")
    try:
        options.out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        parser.error(f"cannot write to {options.out}: {error.strerror}")
    return tuple(dict.fromkeys(args.sections)) or DEFAULT_SECTIONS, options


def _only(parser: Parser, text: str | None, names: Iterable[str]) -> tuple[str, ...]:
    """Return the names of `--only`, of which the sections decide what they are."""
    try:
        return _some_of(tuple(names))(text) if text is not None else ()
    except argparse.ArgumentTypeError as error:
        parser.error(f"argument --only: {error}")


def _listed(names: Iterable[str]) -> str:
    return ", ".join(names)


def _one_of(names: Iterable[str]) -> Callable[[str], str]:
    def convert(text: str) -> str:
        if text not in names:
            raise argparse.ArgumentTypeError(f"{text!r} is none of {_listed(names)}")
        return text

    return convert


def _some_of(names: Iterable[str]) -> Callable[[str], tuple[str, ...]]:
    one = _one_of(names)

    def convert(text: str) -> tuple[str, ...]:
        return tuple(dict.fromkeys(one(part.strip()) for part in text.split(",")))

    return convert


def _seed(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not an integer from 0")
    return int(text)


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive integer")
    return int(text)


if __name__ == "__main__":
    sys.exit(main())
