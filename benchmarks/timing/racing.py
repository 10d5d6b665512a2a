"""Runs of one optimizer on one workload: to choose a rate, to be scored, and for the seconds.

A step is two programs. The gradient's is compiled once for a workload, since compiling it takes
longer than the runs of an optimizer; the update's is the optimizer's own.
"""

import collections
import functools
import math
import statistics
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import gradxform as gx
import gradxform.sparse
from benchmarks.subjects.entrants import Entrant
from benchmarks.subjects.workloads.workload import Start, Workload


class Budget(NamedTuple):
    """What every optimizer gets on a workload."""

    steps: int
    every: int  # steps from one measurement to the next
    over: int  # measurements of which the mean counts
    tuning: tuple[int, ...]  # the seeds on which the rate is chosen
    seeds: tuple[int, ...]  # those that are scored, at that rate
    target: float


class Try(NamedTuple):
    """What the learning rates of one seed came to."""

    seed: int
    rates: list[float]  # empty for an optimizer that does not take one
    steps: list[int | None]  # after which the target was reached
    lowest: list[float | None]  # the lowest such mean so far; None if it was never finite


class Programs(NamedTuple):
    """What all optimizers have in common on a workload."""

    gradient: Callable[..., Any]  # (params, batch) -> (loss, gradient)
    total: Callable[..., Any]  # params -> the loss that is measured


class Runs:
    """The runs of an optimizer on a workload.

    Args:
      entrant: the optimizer.
      workload: the workload.
      budget: how long a run is.
    """

    def __init__(self, entrant: Entrant, workload: Workload, budget: Budget) -> None:
        self.entrant, self.workload, self.budget = entrant, workload, budget
        self.rounds = -(-budget.steps // budget.every)
        self.sparse = bool(workload.tables) and entrant.takes_rows and self._takes_rows()
        self._first_state = jax.jit(lambda rate, params: entrant.make(rate).init(params))
        self._update = jax.jit(self._updated)
        self._measured = jax.jit(gx.eval_params)

    def start(self, seed: int) -> Start:
        """Return the first parameters, and the batches of all steps along the first axes."""
        return _started(self.workload, seed, self.rounds * self.budget.every)

    def state_bytes(self, params: Any) -> int:
        """Return the bytes of the state."""
        state = jax.eval_shape(self.entrant.make(1e-3).init, params)
        return sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(state))

    def _takes_rows(self) -> bool:
        """Whether a step with row-sparse gradients can be traced; others get dense ones."""
        self.sparse = True
        params, batches = self.workload.start(0, 1)
        batch = jax.tree.map(lambda x: x[0], batches)
        try:
            jax.eval_shape(lambda: self._step(1e-3, self._begin(1e-3, params), batch))
        except (TypeError, ValueError):
            return False
        return True

    def _begin(self, rate: Any, params: Any) -> Any:
        return params, self.entrant.make(rate).init(params)

    def _step(self, rate: Any, carry: Any, batch: Any) -> Any:
        value, grads = _differentiated(self.workload, self.sparse)(carry[0], batch)
        return self._updated(rate, carry, value, grads, batch)

    def _updated(self, rate: Any, carry: Any, value: Any, grads: Any, batch: Any) -> Any:
        params, state = carry

        def loss(p: Any, **_: Any) -> Any:
            return self.workload.loss(p, batch)

        # Some also need the loss, as a number or as a function; the others ignore it.
        extra = {"value": value, "grad": grads, "value_fn": loss, "obj_fn": loss}
        updates, state = self.entrant.make(rate).update(grads, state, params, **extra)
        return gx.apply_updates(params, updates), state

    def losses(self, rate: float, start: Start) -> list[float]:
        """Return what a run measures, until it reaches the target or a loss is not a number."""
        made = _programs(self.workload, self.sparse)
        number = np.float32(rate)
        carry = start.params, self._first_state(number, start.params)
        found: list[float] = []
        for i in range(self.rounds * self.budget.every):
            batch = jax.tree.map(lambda x, i=i: x[i], start.batches)
            value, grads = made.gradient(carry[0], batch)
            carry = self._update(number, carry, value, grads, batch)
            if (i + 1) % self.budget.every == 0:
                params, state = carry
                found.append(float(made.total(self._measured(state, params))))
                if math.isnan(found[-1]) or self._steps_of(found) is not None:
                    break
        return found

    def tuned(self) -> list[Try]:
        """Return what all learning rates came to, seed by seed; nothing without rates to choose."""
        rates = list(self.entrant.rates)
        return [self._try(seed, rates) for seed in self.budget.tuning] if rates else []

    def scored(self, rate: float | None) -> list[Try]:
        """Return what one learning rate came to on the seeds that count."""
        return [self._try(seed, [] if rate is None else [rate]) for seed in self.budget.seeds]

    def _try(self, seed: int, rates: list[float]) -> Try:
        start = self.start(seed)
        runs = [self.losses(rate, start) for rate in rates or [1.0]]
        finite = [m[np.isfinite(m)] for m in map(self._means, runs)]
        lowest = [float(f"{m.min():.4g}") if m.size else None for m in finite]
        return Try(seed, rates, [self._steps_of(run) for run in runs], lowest)

    def _means(self, losses: list[float]) -> np.ndarray:
        """Return the means that count, from the first that has all its measurements."""
        over = self.budget.over
        if len(losses) < over:
            return np.zeros(0)
        return np.lib.stride_tricks.sliding_window_view(np.asarray(losses), over).mean(axis=1)

    def _steps_of(self, losses: list[float]) -> int | None:
        """Return the steps after which the mean reaches the target, if it does."""
        reached = self._means(losses) <= self.budget.target  # not where it is NaN
        if not reached.any():
            return None
        after = (int(np.argmax(reached)) + self.budget.over) * self.budget.every
        return min(after, self.budget.steps)

    def seconds(self, rate: float | None, steps: int) -> tuple[float, float]:
        """Return the seconds of so many steps at one learning rate, and those of compiling them.

        Both are of the processor, which others that use the machine make little longer.
        """
        params, batches = self.start(self.budget.seeds[0])
        every = self.budget.every
        one = jnp.float32(1.0 if rate is None else rate)

        def some_steps(rate: Any, carry: Any, batches: Any) -> Any:
            return jax.lax.scan(lambda c, b: (self._step(rate, c, b), None), carry, batches)[0]

        rounds = -(-steps // every)
        pieces = [
            jax.tree.map(lambda x, i=i: jnp.asarray(x[i * every : (i + 1) * every]), batches)
            for i in range(rounds)
        ]
        first = jax.jit(self._begin)(one, params)
        began = time.process_time()
        program = jax.jit(some_steps, donate_argnums=1).lower(one, first, pieces[0]).compile()
        compiling = time.process_time() - began
        taken = []
        for _ in range(3):
            carry = jax.block_until_ready(jax.tree.map(jnp.copy, first))
            began = time.process_time()
            for piece in pieces:
                carry = program(one, carry, piece)
            jax.block_until_ready(carry)
            taken.append(time.process_time() - began)
        return statistics.median(taken) * steps / (rounds * every), compiling


@functools.lru_cache(maxsize=64)
def _started(workload: Workload, seed: int, steps: int) -> Start:
    """Return the start of a seed, which is the same for all optimizers."""
    params, batches = workload.start(seed, steps)
    return Start(params, jax.tree.map(np.asarray, batches))


def _differentiated(workload: Workload, sparse: bool) -> Callable[..., Any]:
    """Return the loss with its gradient, of parameters and a batch."""
    if not sparse:
        return jax.value_and_grad(workload.loss)
    tables = gx.path_matches(workload.tables)

    def of_rows(params: Any, batch: Any) -> Any:
        loss = functools.partial(_swapped, workload.loss, batch)
        return gradxform.sparse.value_and_grad(loss, where=tables)(params)

    return of_rows


def _swapped(loss: Callable[..., Any], batch: Any, params: Any) -> Any:
    return loss(params, batch)


@functools.cache
def _programs(workload: Workload, sparse: bool) -> Programs:
    params, batches = workload.start(0, 1)
    batch = jax.tree.map(lambda x: np.asarray(x)[0], batches)
    gradient = jax.jit(_differentiated(workload, sparse)).lower(params, batch).compile()
    return Programs(gradient, jax.jit(workload.total).lower(params).compile())


def best_rate(tries: list[Try]) -> float | None:
    """Return the rate with which most seeds reach the target, in the fewest steps; or come nearest.

    None for an optimizer that does not take one.
    """
    found: dict[float, list[tuple[int | None, float | None]]] = collections.defaultdict(list)
    for each in tries:
        for rate, steps, lowest in zip(each.rates, each.steps, each.lowest, strict=True):
            found[rate].append((steps, lowest))

    def order(rate: float) -> tuple[float, float, float]:
        steps = [n for n, _ in found[rate] if n is not None]
        lowest = [np.inf if x is None else x for _, x in found[rate]]
        return -len(steps), float(np.mean(steps)) if steps else 0.0, float(np.mean(lowest))

    return min(found, key=order, default=None)
