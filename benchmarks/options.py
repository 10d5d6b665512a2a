"""The options of a run, and the protocol between the command line and a section."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from rich.console import Console

Results = dict[str, Any]


class Refused(Exception):
    """What a section cannot do, and the remedy: one line on stderr and exit code 2."""


@dataclasses.dataclass(frozen=True)
class Options:
    """The options of the command line.

    Attributes:
      trees: names of parameter trees, see `cases.TREES`; empty for those of the section.
      chains: names of chains of the section `core`, see `cases.CHAINS`.
      optimizers: names of optimizers of the section `optimizers`, see `pairs.PAIRS`.
      only: names of the figures to measure, see `figures.FIGURES`.
      entrants: names of optimizers of the section `race`, see `entrants.names`; empty for all.
      workloads: names of workloads of the section `race`; empty for all.
      targets: whether `race` measures the targets of workloads instead.
      untimed: whether `race` leaves out the runs that measure seconds.
      repeats: the number of samples of a timing; a time limit may stop it earlier.
      seed: the seed of the random parameters and gradients.
      out: the directory for JSON and PNG files.
      elsewhere: whether the command line names that directory.
      peers: a folder with modules of other libraries, for the section `matrix`; None if they are
        in the environment.
      quick: whether this is a smoke run.
    """

    trees: tuple[str, ...]
    chains: tuple[str, ...]
    optimizers: tuple[str, ...]
    only: tuple[str, ...]
    entrants: tuple[str, ...]
    workloads: tuple[str, ...]
    targets: bool
    untimed: bool
    repeats: int
    seed: int
    out: Path
    elsewhere: bool
    peers: Path | None
    quick: bool

    def as_json(self) -> Results:
        """Return the options as a results file has them: all except folders."""
        fields = dataclasses.asdict(self)
        del fields["out"], fields["elsewhere"], fields["peers"]
        return fields


class Job(Protocol):
    """The reports of a running section: progress, and the results so far."""

    def plan(self, total: int) -> None:
        """Announce the number of parts."""

    def begin(self, label: str) -> None:
        """Announce what is measured now."""

    def advance(self) -> None:
        """Report that one part is complete."""

    def save(self, results: Results) -> None:
        """Write the results so far, so that an interrupted run loses only one case."""


@dataclasses.dataclass(frozen=True)
class Section:
    """A group of measurements that can be asked for by name.

    Attributes:
      about: one line for `--help`.
      run: measures, and returns the content of `<name>.json`.
      show: prints the results.
      draw: writes the results as a picture; None if what is printed says it.
      kept: returns where the cases are that an interrupted run completed; None if in its results.
    """

    about: str
    run: Callable[[Options, Job], Results]
    show: Callable[[Results, Console], None]
    draw: Callable[[Results, Path], None] | None = None
    kept: Callable[[Options], Path] | None = None
