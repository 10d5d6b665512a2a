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
    streak: int = 1,
) -> dict[str, list[float]]:
    """Time calls in turn, a, b, b, a, a, b, ..., so that noise hits all alike.

    The order turns around from round to round: a call pays for what the one before it left to be
    done, and in a fixed order the same one would always pay for the other.

    Args:
      calls: what to time, by name. Each keeps its own state from call to call.
      budget: how many rounds.
      warmups: rounds that are not counted.
      streak: how many calls of a kind in a row are counted. Of more than one, as in training, the
        first is not: it pays for what the other kind left, which is full caches and memory still
        to be given back, and that takes longer than a short step.

    Returns:
      For each name its samples in seconds; those of equal index were taken side by side.
    """
    for _ in range(warmups):
        for call in calls.values():
            timed(call)
    samples: dict[str, list[float]] = {name: [] for name in calls}
    gc.collect()  # nobody pays for the garbage of what was measured before
    rounds = turns = 0
    start = time.perf_counter()
    while not budget.exhausted(rounds, time.perf_counter() - start):
        for name in turned(calls, turns):
            call = calls[name]
            if streak > 1:
                timed(call)
            samples[name] += [timed(call)[0] for _ in range(streak)]
        rounds += streak
        turns += 1
    return samples


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
