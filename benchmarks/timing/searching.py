"""The time that methods with a line search take until a gap is closed, and to compile.

Seconds are those of the processor: a run may take a hundred microseconds, in which a clock measures
what else the machine does.
"""

import time
from collections.abc import Callable, Mapping
from typing import Any

import jax
import optax

import gradxform as gx
from benchmarks.subjects.problems import Problem
from benchmarks.subjects.searches import PAIRS, Loop, program, searching, trying
from benchmarks.timing.measure import summarize, turned

TURN = 0.1  # CPU seconds in which one program runs again and again
OURS, SAME, THEIRS = "lbfgs_steps", "lbfgs", "Optax's lbfgs"
LOOPS: dict[str, Callable[[Problem], Loop]] = {
    OURS: lambda problem: trying(problem, gx.lbfgs_steps(PAIRS)),
    SAME: lambda problem: searching(problem, gx.lbfgs(memory_size=PAIRS)),
    THEIRS: lambda problem: searching(problem, optax.lbfgs(memory_size=PAIRS)),
}


def times(problem: Problem, updates: Mapping[str, int], rounds: int) -> dict[str, Any]:
    """Return the CPU seconds of so many updates of each method, and those of their compilation.

    All take turns in changing order. `lbfgs` takes the updates of Optax's.

    Args:
      problem: what is minimized.
      updates: of `lbfgs_steps` and of Optax's, until the gap is closed.
      rounds: the number of turns.
    """
    compiling: dict[str, list[float]] = {name: [] for name in LOOPS}
    programs: dict[str, Any] = {}
    with jax.numpy_dtype_promotion("standard"):
        loops = {name: make(problem) for name, make in LOOPS.items()}
        for turn in range(rounds):
            for name in turned(loops, turn):
                jax.clear_caches()
                run = jax.jit(program(loops[name], updates[name if name == OURS else THEIRS]))
                began = time.process_time()
                programs[name] = run.lower(loops[name].carry).compile()
                compiling[name].append(time.process_time() - began)
        running: dict[str, list[float]] = {name: [] for name in LOOPS}
        for turn in range(5 * rounds):
            for name in turned(loops, turn):
                running[name].append(_seconds_of_run(programs[name], loops[name].carry))
    return {
        f"{name} / {THEIRS}": {
            "time": summarize(running, THEIRS, name),
            "compile": summarize(compiling, THEIRS, name),
        }
        for name in (OURS, SAME)
    }


def _seconds_of_run(run: Callable[[Any], Any], carry: Any) -> float:
    """Return the CPU seconds of a run, the mean over those of a turn."""
    jax.block_until_ready(run(carry))
    began, runs = time.process_time(), 0
    while time.process_time() - began < TURN:
        jax.block_until_ready(run(carry))
        runs += 1
    return (time.process_time() - began) / runs
