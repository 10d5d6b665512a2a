"""Timing compiled steps in turns. Each library continues from its own parameters."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.subjects.cases import OURS, THEIRS
from benchmarks.timing.measure import Budget, interleave


def time_steps(
    programs: Sequence[dict[str, Any]],
    txs: dict[str, Any],
    params: Any,
    grads: Any,
    budget: Budget,
) -> tuple[dict[str, list[float]], float]:
    """Return the seconds of each step, and the difference between the libraries' parameters.

    Args:
      programs: compiled steps by library, which may donate parameters and state. Each dict gets an
        equal part of the budget, and its libraries allocate memory in its order: the first one was
        measured to be a few percent faster.
      txs: the optimizers of these steps.
      params: the initial parameters.
      grads: the gradients of every step.
      budget: the number of steps.
    """
    current: dict[str, tuple[Any, Any]] = {}

    def stepper(name: str, compiled: Any) -> Callable[[], Any]:
        def step() -> Any:
            current[name] = compiled(*current[name], grads)
            return current[name]

        return step

    samples: dict[str, list[float]] = {name: [] for name in txs}
    for compiled in programs:
        current.clear()
        for name in compiled:
            own = jax.tree.map(lambda x: jnp.array(x, copy=True), params)  # will be donated
            # Some states of Optax contain the parameters' buffers, which cannot be donated twice.
            state = jax.tree.map(lambda x: jnp.array(x, copy=True), txs[name].init(own))
            current[name] = own, state
        steps = {name: stepper(name, call) for name, call in compiled.items()}
        for name, seconds in interleave(steps, budget.divided(len(programs))).items():
            samples[name] += seconds
    return samples, difference(current[OURS][0], current[THEIRS][0])


def size(tree: Any) -> int:
    """Return the number of bytes of all arrays in a tree."""
    return sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(tree))


def difference(ours: Any, theirs: Any) -> float:
    """Return max |ours - theirs| / max |theirs|, which is small if both computed the same."""
    pairs = [
        (np.max(np.abs(np.asarray(a) - np.asarray(b))), np.max(np.abs(np.asarray(b))))
        for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True)
    ]
    return float(np.max([d for d, _ in pairs]) / np.max([m for _, m in pairs]))
