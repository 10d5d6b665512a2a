"""Runs of one optimizer on one workload: at many learning rates, and once for the seconds."""

import collections
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

# CPU seconds of all learning rates and seeds. If the first seed takes its share of them, the other
# seeds run at its best rate alone.
LIMIT = 30.0


class Budget(NamedTuple):
    """What every optimizer gets on a workload."""

    steps: int
    every: int  # steps from one measurement to the next
    over: int  # measurements of which the mean counts
    seeds: tuple[int, ...]
    target: float


class Try(NamedTuple):
    """What the learning rates of one seed came to."""

    seed: int
    rates: list[float]  # empty for an optimizer that does not take one
    steps: list[int | None]  # after which the target was reached
    lowest: list[float | None]  # the lowest such mean; None if it was never finite


class Runs:
    """The programs of an optimizer on a workload.

    Args:
      entrant: the optimizer.
      workload: the workload.
      budget: how long a run is.
    """

    def __init__(self, entrant: Entrant, workload: Workload, budget: Budget) -> None:
        self.entrant, self.workload, self.budget = entrant, workload, budget
        self.rounds = -(-budget.steps // budget.every)
        self.sparse = bool(workload.tables) and entrant.takes_rows and self._takes_rows()
        self._one: Any = None

    def start(self, seed: int) -> Start:
        """Return the first parameters, and batches with rounds and steps along the first axes."""
        shape = self.rounds, self.budget.every
        params, batches = self.workload.start(seed, self.rounds * self.budget.every)
        return Start(params, jax.tree.map(lambda x: x.reshape(*shape, *x.shape[1:]), batches))

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
        params, state = carry

        def loss(p: Any, **_: Any) -> Any:
            return self.workload.loss(p, batch)

        where = gx.path_matches(self.workload.tables) if self.sparse else None
        differentiated = (
            gradxform.sparse.value_and_grad(loss, where=where)
            if self.sparse
            else jax.value_and_grad(loss)
        )
        value, grads = differentiated(params)
        # Some also need the loss, as a number or as a function; the others ignore it.
        extra = {"value": value, "grad": grads, "value_fn": loss, "obj_fn": loss}
        updates, state = self.entrant.make(rate).update(grads, state, params, **extra)
        return gx.apply_updates(params, updates), state

    def _steps(self, rate: Any, carry: Any, batches: Any) -> Any:
        return jax.lax.scan(lambda c, b: (self._step(rate, c, b), None), carry, batches)[0]

    def _measured(self, rate: Any, carry: Any, batches: Any) -> Any:
        params, state = carry = self._steps(rate, carry, batches)
        return carry, self.workload.total(gx.eval_params(state, params))

    def _losses(self, rate: Any, params: Any, batches: Any) -> Any:
        """Return what a run measures, after every round of steps."""

        def measured(carry: Any, batches: Any) -> Any:
            return self._measured(rate, carry, batches)

        return jax.lax.scan(measured, self._begin(rate, params), batches)[1]

    def _until_decided(self, rate: Any, params: Any, batches: Any) -> Any:
        """Return the same of a run alone, which ends at the target or without a finite loss."""

        def goes_on(now: Any) -> Any:
            i, _, losses = now
            first = jnp.maximum(i - self.budget.over, 0)
            last = jax.lax.dynamic_slice(losses, (first,), (self.budget.over,))
            # A little below the target, so that it is reached in other roundings of the mean, too.
            reached = jnp.mean(last) < 0.99999 * self.budget.target
            return (i < self.rounds) & ~reached & ~jnp.isnan(losses[jnp.maximum(i - 1, 0)])

        def step(now: Any) -> Any:
            i, carry, losses = now
            batch = jax.tree.map(lambda x: x[i], batches)
            carry, loss = self._measured(rate, carry, batch)
            return i + 1, carry, losses.at[i].set(loss)

        none = jnp.full(self.rounds, jnp.inf, jnp.float32)
        first = jnp.zeros((), jnp.int32), self._begin(rate, params), none
        return jax.lax.while_loop(goes_on, step, first)[2]

    def _program(self, rates: Any, start: Start) -> tuple[Callable[..., Any], bool]:
        """Return the compiled run of all rates, and whether they run as one program.

        They do not where one rate would wait for another: a condition that depends on the rate
        would take both branches, and a search would be as long as the longest.
        """
        if len(rates) > 1:
            alone = jax.jit(self._losses).trace(rates[0], *start)
            together = jax.jit(jax.vmap(self._losses, (0, None, None))).trace(rates, *start)
            if _waiting(alone.jaxpr) == _waiting(together.jaxpr):
                return together.lower().compile(), True
        alone = self._alone(start)
        return lambda r, *x: np.stack([alone(rate, *x) for rate in r]), False

    def tries(self) -> tuple[list[Try], bool]:
        """Return what all learning rates came to, seed by seed, and whether as one program."""
        known = self.entrant.rates
        rates = jnp.asarray(known or (1.0,), jnp.float32)
        starts = [self.start(seed) for seed in self.budget.seeds]
        program, as_one = self._program(rates, starts[0])
        tries: list[Try] = []
        best = None  # the only rate that the next seeds try, if all would take too long
        for seed, start in zip(self.budget.seeds, starts, strict=True):
            began = time.process_time()
            if best is None:
                losses = np.asarray(program(rates, *start))
            else:
                losses = np.asarray(self._alone(start)(rates[best], *start))[None]
            tried = [known[best]] if best is not None else list(known)
            tries.append(self._judged(seed, tried, losses))
            share = LIMIT / len(self.budget.seeds)
            if best is None and len(known) > 1 and time.process_time() - began > share:
                best = known.index(best_rate(tries) or known[0])
        return tries, as_one

    def _alone(self, start: Start) -> Callable[..., Any]:
        """Return the compiled run of one rate, which is compiled once."""
        if self._one is None:
            self._one = jax.jit(self._until_decided).lower(jnp.float32(1), *start).compile()
        return self._one

    def _judged(self, seed: int, rates: list[float], losses: np.ndarray) -> Try:
        over, every = self.budget.over, self.budget.every
        windows = np.lib.stride_tricks.sliding_window_view(losses.astype(np.float64), over, axis=1)
        means = windows.mean(axis=2)
        steps: list[int | None] = []
        for run in means:
            reached = run <= self.budget.target  # not where it is NaN
            after = (int(np.argmax(reached)) + over) * every
            steps.append(min(after, self.budget.steps) if reached.any() else None)
        finite = np.where(np.isfinite(means), means, np.inf).min(axis=1)
        lowest = [float(f"{x:.4g}") if np.isfinite(x) else None for x in finite]
        return Try(seed, rates, steps, lowest)

    def seconds(self, rate: float | None, steps: int) -> tuple[float, float]:
        """Return the seconds of so many steps at one learning rate, and those of compiling them."""
        params, batches = self.start(self.budget.seeds[0])
        one = jnp.float32(1.0 if rate is None else rate)
        carry = jax.jit(self._begin)(one, params)
        began = time.perf_counter()
        first = jax.tree.map(lambda x: x[0], batches)
        program = jax.jit(self._steps, donate_argnums=1).lower(one, carry, first).compile()
        compiling = time.perf_counter() - began
        rounds = -(-steps // self.budget.every)
        pieces = [jax.tree.map(lambda x, i=i: x[i], batches) for i in range(rounds)]
        carry = jax.block_until_ready(jax.tree.map(jnp.copy, carry))
        began = time.perf_counter()
        for piece in pieces:
            carry = program(one, carry, piece)
        jax.block_until_ready(carry)
        taken = time.perf_counter() - began
        return taken * steps / (rounds * self.budget.every), compiling


def best_rate(tries: list[Try]) -> float | None:
    """Return the rate with which most seeds reach the target, in the fewest steps; or come nearest.

    It is one that all seeds have tried. None for an optimizer that does not take one.
    """
    found: dict[float, list[tuple[int | None, float | None]]] = collections.defaultdict(list)
    for each in tries:
        for rate, steps, lowest in zip(each.rates, each.steps, each.lowest, strict=False):
            found[rate].append((steps, lowest))

    def order(rate: float) -> tuple[float, float, float]:
        steps = [n for n, _ in found[rate] if n is not None]
        lowest = [np.inf if x is None else x for _, x in found[rate]]
        return -len(steps), float(np.mean(steps)) if steps else 0.0, float(np.mean(lowest))

    by_all = [rate for rate in found if len(found[rate]) == len(tries)]
    return min(by_all, key=order, default=None)


def _waiting(jaxpr: Any) -> collections.Counter[str]:
    """Count the conditions of a program, and the loops in which one run waits for another."""
    found: collections.Counter[str] = collections.Counter()
    for eqn in getattr(jaxpr, "jaxpr", jaxpr).eqns:
        name = eqn.primitive.name
        if name == "cond":
            found["conditions"] += 1
        if name == "while":
            (goes_on,) = eqn.params["cond_jaxpr"].out_avals
            found["waiting"] += goes_on.shape != ()
        for parameter in eqn.params.values():
            for inner in parameter if isinstance(parameter, tuple | list) else (parameter,):
                if hasattr(getattr(inner, "jaxpr", inner), "eqns"):
                    found += _waiting(inner)
    return found
