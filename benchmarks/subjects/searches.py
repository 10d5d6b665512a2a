"""Runs of methods with a line search: the loss in float64 after so many evaluations."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from scipy.optimize import minimize as scipy_minimize

import gradxform as gx
from benchmarks.subjects.problems import Problem

PAIRS = 10  # that a method remembers
Curve = tuple[np.ndarray, np.ndarray]  # evaluations so far, and the loss of the point after them


def in_float64(problem: Problem, points: np.ndarray) -> np.ndarray:
    """Return the losses of points, in float64."""
    with jax.enable_x64(True):
        losses = jax.jit(lambda xs: jax.lax.map(problem.loss, xs))
        return np.asarray(losses(jnp.asarray(points, jnp.float64)))


def scipys(problem: Problem, most: int) -> Curve:
    """Return the run of SciPy's L-BFGS-B in float64, until it can go no further."""
    losses = []
    with jax.enable_x64(True):
        value_and_grad = jax.jit(jax.value_and_grad(problem.loss))

        def fun(x):
            value, grad = value_and_grad(jnp.asarray(x, jnp.float64))
            losses.append(float(value))
            return losses[-1], np.asarray(grad)

        options = {"maxcor": PAIRS, "maxfun": most, "maxiter": most, "ftol": 0, "gtol": 0}
        scipy_minimize(fun, problem.start, jac=True, method="L-BFGS-B", options=options)
    return np.arange(1, len(losses) + 1), np.asarray(losses)


class Loop(NamedTuple):
    """A training loop: `step(carry, None)` returns the carry after an update, and what is kept."""

    step: Callable[..., Any]
    carry: Any


def trying(problem: Problem, tx: Any) -> Loop:
    """Return the loop of `lbfgs_steps` in float32: an evaluation at each update."""

    def step(carry, _):
        params, state = carry
        value, grad = jax.value_and_grad(problem.loss)(params)
        updates, state = tx.update(grad, state, params, value=value)
        return (gx.apply_updates(params, updates), state), params

    params = jnp.asarray(problem.start, jnp.float32)
    return Loop(step, (params, tx.init(params)))


def searching(problem: Problem, tx: Any) -> Loop:
    """Return the loop of `lbfgs` in float32, ours or Optax's: a whole search in each update."""

    def step(carry, _):
        params, state, count = carry
        value_and_grad = optax.value_and_grad_from_state(problem.loss)
        value, grad = value_and_grad(params, state=state)
        extra = {"value": value, "grad": grad, "value_fn": problem.loss}
        updates, state = tx.update(grad, state, params, **extra)
        count = count + state[-1].info.num_linesearch_steps
        return (optax.apply_updates(params, updates), state, count), (count, params)

    params = jnp.asarray(problem.start, jnp.float32)
    return Loop(step, (params, tx.init(params), jnp.ones((), jnp.int32)))


def program(loop: Loop, updates: int) -> Callable[[Any], Any]:
    """Return a function of the carry that takes so many updates, and returns what they keep."""
    return lambda carry: jax.lax.scan(loop.step, carry, None, length=updates)[1]


def ours(problem: Problem, most: int) -> Curve:
    """Return the run of `lbfgs_steps`."""
    loop = trying(problem, gx.lbfgs_steps(PAIRS))
    points = jax.jit(program(loop, most))(loop.carry)
    return np.arange(1, most + 1), in_float64(problem, np.asarray(points))


def optaxs(problem: Problem, most: int) -> Curve:
    """Return the run of Optax's `lbfgs`: the points between its searches."""
    loop = searching(problem, optax.lbfgs(memory_size=PAIRS))
    with jax.numpy_dtype_promotion("standard"):
        counts, points = jax.jit(program(loop, most))(loop.carry)
    # A point is reached by the search before.
    return np.concatenate([[1], counts[:-1]]), in_float64(problem, np.asarray(points))


def updates_until(curve: Curve, best: float, share: float = 1e-6) -> int | None:
    """Return the updates until the gap to `best` is that share of the first gap, if ever."""
    _, losses = curve
    reached = losses - best <= share * (losses[0] - best)
    return int(np.argmax(reached)) if reached.any() else None


def evaluations_until(curve: Curve, best: float, share: float = 1e-6) -> int | None:
    """Return the evaluations until then."""
    updates = updates_until(curve, best, share)
    return None if updates is None else int(curve[0][updates])
