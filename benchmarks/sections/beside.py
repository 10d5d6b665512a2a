"""Optimizers of matrices beside those of other libraries: steps of whole periods, and programs."""

import contextlib
import io
import itertools
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.options import Options
from benchmarks.subjects import peers
from benchmarks.subjects.cases import LIBRARIES, OURS, THEIRS
from benchmarks.tables import report
from benchmarks.tables.figures import FIGURES
from benchmarks.timing import machine
from benchmarks.timing.measure import Budget, interleave, summarize, turned
from benchmarks.timing.staging import stage, static_costs

LAYERS, WIDTH = 4, 128
MEASURED = ("step", "temp", "trace", "lower", "compile")
STAGE_SECONDS, COMPILE_SECONDS, STEP_SECONDS = 2.0, 4.0, 3.0
GRADIENTS = 3  # how many are taken in turns, so that statistics are not those of one


def matrices(layers: int, width: int) -> dict[str, tuple[int, int]]:
    """Return the shapes of the matrices of some layers, in a flat dict, as Dion's peer takes it."""
    d = width
    one = {"query": (d, d), "out": (d, d), "up": (d, 2 * d), "down": (2 * d, d)}
    return {f"{name}_{i}": shape for i in range(layers) for name, shape in one.items()}


def drawn(shapes: dict[str, tuple[int, int]], seed: int) -> tuple[Any, list[Any]]:
    """Return parameters and some gradients."""
    rng = np.random.default_rng(seed)

    def tree(scale: float) -> Any:
        return {k: jnp.asarray(scale * rng.normal(size=s), jnp.float32) for k, s in shapes.items()}

    return tree(0.02), [tree(1.0) for _ in range(GRADIENTS)]


def row(match: peers.Match, options: Options) -> dict[str, Any]:
    """Return the figures of an optimizer of ours beside a peer's, or why there are none."""
    names = {"rule": match.rule, "peer": match.label}
    out: dict[str, Any] = {**names, "load": machine.load(), "figures": {}}
    try:
        with _quiet():
            module = peers.load(match.peer, options.peers)
            out["version"] = peers.version(match.peer)
            out |= _measured(
                lambda lib: match.ours() if lib is LIBRARIES[OURS] else match.theirs(module),
                options,
            )
    except ImportError as error:
        out["missing"] = f"not installed ({error}). It is {match.peer.source}."
    except Exception as error:  # do not lose the other rows if one fails
        out["error"] = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
    jax.clear_caches()
    return out


def _measured(make: Callable[[Any], Any], options: Options) -> dict[str, Any]:
    layers, width = (1, 16) if options.quick else (LAYERS, WIDTH)
    params, grads = drawn(matrices(layers, width), options.seed)
    rounds = 1 if options.quick else 2
    tracing = Budget(2 * rounds, rounds, STAGE_SECONDS)
    staged = stage(make, params, grads[0], tracing, Budget(rounds, 1, COMPILE_SECONDS))
    samples = {figure: staged.samples[figure] for figure in MEASURED if figure in staged.samples}
    samples["temp"] = {
        name: [static_costs(compiled).get("temp", 0.0)] for name, compiled in staged.last.items()
    }
    goal = min(2, options.repeats) if options.quick else options.repeats
    budget = Budget(goal, min(4, goal), STEP_SECONDS).divided(2)
    txs = {name: make(lib) for name, lib in LIBRARIES.items()}
    samples["step"] = {name: [] for name in LIBRARIES}
    moved = {}
    for turn in range(2):  # the one whose memory is allocated first may be faster
        runs = {
            name: _Run(staged.last[name], txs[name], params, grads)
            for name in turned(LIBRARIES, turn)
        }
        for name, seconds in interleave(runs, budget, warmups=1).items():
            samples["step"][name] += [x / peers.PERIOD for x in seconds]
        moved = {name: run.moved(params) for name, run in runs.items()}
    figures = {
        figure: {"unit": FIGURES[figure].unit, **summarize(samples[figure], THEIRS, OURS)}
        for figure in MEASURED
    }
    return {"figures": figures, "moved": moved[OURS] / moved[THEIRS]}


class _Run:
    """A run of one library; a call takes the steps of a period, with its renewals."""

    def __init__(self, compiled: Any, tx: Any, params: Any, grads: list[Any]) -> None:
        # What is donated must not be shared.
        params = jax.tree.map(lambda x: jnp.array(x, copy=True), params)
        state = jax.tree.map(lambda x: jnp.array(x, copy=True), tx.init(params))
        self.compiled, self.carry, self.grads = compiled, (params, state), itertools.cycle(grads)

    def __call__(self) -> Any:
        for _ in range(peers.PERIOD):
            self.carry = self.compiled(*self.carry, next(self.grads))
        return self.carry

    def moved(self, start: Any) -> float:
        """Return how far the parameters are from where they began."""
        squares = jax.tree.map(lambda a, b: jnp.sum((a - b) ** 2), self.carry[0], start)
        return float(sum(jax.tree.leaves(squares)) ** 0.5)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Leave out what peers print, and their warnings about numbers of 64 bits."""
    with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
            yield


def show(rows: list[dict[str, Any]], console: Console) -> None:
    """Print a row for each peer, and below them which are missing."""
    title = (
        f"beside other libraries: ours / theirs, the medians of both; a step is the mean of "
        f"{peers.PERIOD}; moved: how far the parameters went"
    )
    table = Table("rule", "peer", *MEASURED, "moved", title=title, title_justify="left")
    for row in rows:
        if row["figures"]:
            cells = [report.cell(row["figures"].get(name)) for name in MEASURED]
            table.add_row(row["rule"], row["peer"], *cells, f"{row['moved']:.2g}")
    if table.rows:
        console.print(table)
    for row in rows:
        reason = row.get("missing") or row.get("error")
        if reason:
            console.print(
                f"{row['rule']}, {row['peer']}: {reason}", style="yellow", highlight=False
            )
