"""Timing: calls that take turns, time limits, medians and ratios."""

import gc
import math
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import jax


class Budget(NamedTuple):
    """How often to repeat a measurement.

    Attributes:
      goal: the number of samples wanted.
      least: the number of samples to take even if that exceeds the time.
      seconds: the time after which to stop.
      linger: the time up to which cheap calls go on beyond the goal, to eight times as many:
        a millisecond on a busy machine is settled by more samples only.
    """

    goal: int
    least: int
    seconds: float
    linger: float = 0.0

    def divided(self, by: int) -> "Budget":
        """Return an equal part of the budget, rounded up."""
        return Budget(
            -(-self.goal // by), -(-self.least // by), self.seconds / by, self.linger / by
        )

    def exhausted(self, done: int, elapsed: float) -> bool:
        """Return whether `done` rounds in `elapsed` seconds are enough."""
        if done >= self.goal:
            return elapsed >= self.linger or done >= 8 * self.goal
        return done >= self.least and elapsed > self.seconds


def timed(call: Callable[[], Any]) -> tuple[float, Any]:
    """Return the seconds until the result of `call` is ready, and the result."""
    start = time.perf_counter()
    result = jax.block_until_ready(call())
    return time.perf_counter() - start, result


def turned(names: Iterable[str], turn: int) -> list[str]:
    """Return the names in order, in every other turn from the last to the first."""
    return list(names)[:: -1 if turn % 2 else 1]


def interleave(
    calls: Mapping[str, Callable[[], Any]],
    budget: Budget,
    warmups: int = 2,
    seconds: float = 0.0,
) -> dict[str, list[float]]:
    """Time calls in turn, a, b, b, a, a, b, ..., so that noise hits all alike.

    The order turns around from round to round: a call pays for what the one before it left to be
    done, and in a fixed order the same one would always pay for the other.

    Args:
      calls: what to time, by name. Each keeps its own state from call to call.
      budget: how many rounds.
      warmups: rounds that are not counted.
      seconds: how long a kind keeps its turn, calling again and again as in training; the sample
        is then the median of the calls of a turn, of which the first third of the time is not
        counted. 0: a turn is one call. For calls of very different length, of which the longer
        one leaves caches and page tables that several of the shorter have to fill again.

    Returns:
      For each name its samples in seconds; those of equal index were taken side by side.
    """
    for _ in range(warmups):
        for call in calls.values():
            timed(call)
    samples: dict[str, list[float]] = {name: [] for name in calls}
    gc.collect()  # nobody pays for the garbage of what was measured before
    rounds, start = 0, time.perf_counter()
    while not budget.exhausted(rounds, time.perf_counter() - start):
        for name in turned(calls, rounds):
            samples[name].append(_turn(calls[name], seconds))
        rounds += 1
    return samples


def _turn(call: Callable[[], Any], seconds: float) -> float:
    """Return the seconds of a call, or the median of those of a turn that lasts so many seconds."""
    if not seconds:
        return timed(call)[0]
    start = time.perf_counter()
    timed(call)
    while time.perf_counter() - start < seconds / 3:
        timed(call)
    found = [timed(call)[0]]
    while time.perf_counter() - start < seconds:
        found.append(timed(call)[0])
    return statistics.median(found)


def ratio(ours: float, theirs: float) -> float | None:
    """Return ours / theirs; 1 if neither uses any, None (infinite) if only theirs uses none."""
    if theirs:
        return ours / theirs
    return None if ours else 1.0


def summarize(samples: Mapping[str, Sequence[float]], theirs: str, ours: str) -> dict[str, Any]:
    """Return samples with their medians and ratios, ready for JSON.

    `ratio` is the median over rounds of ours / theirs in the same round: a disturbance that lasts
    longer than a round cancels out of it. `interval` is where that median lies with 95%
    confidence, or the whole range of less than six samples. `ratio_of_medians` is cruder.
    """
    medians = {name: statistics.median(values) for name, values in samples.items()}
    pairs = [ratio(a, b) for a, b in zip(samples[ours], samples[theirs], strict=True)]
    finite = sorted(r for r in pairs if r is not None)
    known = len(finite) == len(pairs)
    return {
        "samples": {name: list(values) for name, values in samples.items()},
        "median": medians,
        "ratio": statistics.median(finite) if known else None,
        "interval": _interval(finite) if known else None,
        "ratio_of_medians": ratio(medians[ours], medians[theirs]),
    }


def _interval(ordered: Sequence[float]) -> list[float]:
    """Return the order statistics between which the median lies with 95% confidence.

    Each sample is below the median with probability 1/2, so that the number below is binomial.
    """
    n = len(ordered)
    cut, tail = 0, 0.5**n
    while tail + math.comb(n, cut + 1) * 0.5**n <= 0.025:
        cut += 1
        tail += math.comb(n, cut) * 0.5**n
    return [ordered[cut], ordered[n - 1 - cut]]
