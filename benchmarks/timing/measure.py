"""Timing: interleaved calls, time limits, medians and ratios."""

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
      goal: the number of samples to take.
      least: the number of samples to take even if that exceeds the time limit.
      seconds: the time limit.
      linger: the time up to which cheap calls continue beyond the goal, to eight times as many
        samples, because milliseconds on a busy machine need more samples.
    """

    goal: int
    least: int
    seconds: float
    linger: float = 0.0

    def divided(self, by: int) -> "Budget":
        """Return one of `by` equal parts of the budget, rounded up."""
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
    """Return the names in order; in reverse order in every second turn."""
    return list(names)[:: -1 if turn % 2 else 1]


def interleave(
    calls: Mapping[str, Callable[[], Any]],
    budget: Budget,
    warmups: int = 2,
    seconds: float = 0.0,
) -> dict[str, list[float]]:
    """Time calls in turn, a, b, b, a, a, b, ..., so that noise affects all alike.

    The order is reversed from round to round, because a call may leave work to the next one. In a
    fixed order, the same call would always pay for it.

    Args:
      calls: the functions to time, by name. Each keeps its own state from call to call.
      budget: the number of rounds.
      warmups: the number of first rounds that are not counted.
      seconds: the length of a turn, in which one function is called again and again as in training.
        The sample is then the median of its calls, without those in the first third of the turn.
        Use it if one call is much longer than another and evicts its data from the caches. Defaults
        to 0: a turn is one call.

    Returns:
      For each name its samples in seconds; those of equal index were taken side by side.
    """
    for _ in range(warmups):
        for call in calls.values():
            timed(call)
    samples: dict[str, list[float]] = {name: [] for name in calls}
    gc.collect()  # so that no sample pays for garbage from before
    rounds, start = 0, time.perf_counter()
    while not budget.exhausted(rounds, time.perf_counter() - start):
        for name in turned(calls, rounds):
            samples[name].append(_turn(calls[name], seconds))
        rounds += 1
    return samples


def _turn(call: Callable[[], Any], seconds: float) -> float:
    """Return the seconds of one call, or the median over a turn that lasts this many seconds."""
    if not seconds:
        return timed(call)[0]
    start = time.perf_counter()
    timed(call)
    while time.perf_counter() - start < seconds / 3:
        timed(call)
    samples = [timed(call)[0]]
    while time.perf_counter() - start < seconds:
        samples.append(timed(call)[0])
    return statistics.median(samples)


def ratio(ours: float, theirs: float) -> float | None:
    """Return ours / theirs; 1 if both are 0, and None, for infinity, if only theirs is 0."""
    if theirs:
        return ours / theirs
    return None if ours else 1.0


def summarize(samples: Mapping[str, Sequence[float]], theirs: str, ours: str) -> dict[str, Any]:
    """Return samples with their medians and ratios, ready for JSON.

    `ratio` is the median over rounds of ours / theirs in the same round, so that disturbances that
    last longer than a round cancel. `interval` is its 95% confidence interval, or the whole range
    if there are fewer than six samples. `ratio_of_medians` is cruder.
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
    """Return the 95% confidence interval of the median, as two order statistics.

    Each sample is below the median with probability 1/2, so that the number below is binomial.
    """
    n = len(ordered)
    cut, tail = 0, 0.5**n
    while tail + math.comb(n, cut + 1) * 0.5**n <= 0.025:
        cut += 1
        tail += math.comb(n, cut) * 0.5**n
    return [ordered[cut], ordered[n - 1 - cut]]
