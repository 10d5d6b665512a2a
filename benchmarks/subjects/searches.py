"""Runs of methods with a line search: the loss in float64 after so many evaluations."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from scipy.optimize import minimize as scipy_minimize

import gradxform as gx
from benchmarks.subjects.problems import Problem

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

        options = {"maxcor": 10, "maxfun": most, "maxiter": most, "ftol": 0, "gtol": 0}
        scipy_minimize(fun, problem.start, jac=True, method="L-BFGS-B", options=options)
    return np.arange(1, len(losses) + 1), np.asarray(losses)


def ours(problem: Problem, most: int) -> Curve:
    """Return the run of `lbfgs_steps` in float32: an evaluation at each update."""
    tx = gx.lbfgs_steps(10)

    def step(carry, _):
        params, state = carry
        value, grad = jax.value_and_grad(problem.loss)(params)
        updates, state = tx.update(grad, state, params, value=value)
        return (gx.apply_updates(params, updates), state), params

    params = jnp.asarray(problem.start, jnp.float32)
    run = jax.jit(lambda carry: jax.lax.scan(step, carry, None, length=most)[1])
    return np.arange(1, most + 1), in_float64(problem, np.asarray(run((params, tx.init(params)))))


def optaxs(problem: Problem, most: int) -> Curve:
    """Return the run of Optax's `lbfgs` in float32: the points between its searches."""
    tx: Any = optax.lbfgs(memory_size=10)

    def step(carry, _):
        params, state, count = carry
        value_and_grad = optax.value_and_grad_from_state(problem.loss)
        value, grad = value_and_grad(params, state=state)
        extra = {"value": value, "grad": grad, "value_fn": problem.loss}
        updates, state = tx.update(grad, state, params, **extra)
        count = count + state[-1].info.num_linesearch_steps
        return (optax.apply_updates(params, updates), state, count), (count, params)

    params = jnp.asarray(problem.start, jnp.float32)
    carry = params, tx.init(params), jnp.ones((), jnp.int32)
    with jax.numpy_dtype_promotion("standard"):
        run = jax.jit(lambda carry: jax.lax.scan(step, carry, None, length=most)[1])
        counts, points = run(carry)
    # A point is reached by the search before.
    return np.concatenate([[1], counts[:-1]]), in_float64(problem, np.asarray(points))


def evaluations_until(curve: Curve, best: float, share: float = 1e-6) -> int | None:
    """Return the evaluations until the gap to `best` is that share of the first gap, if ever."""
    counts, losses = curve
    reached = losses - best <= share * (losses[0] - best)
    return int(counts[np.argmax(reached)]) if reached.any() else None
