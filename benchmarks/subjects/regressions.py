"""Regressions with small networks in float64, and what methods need for them.

The unit is a gradient: an evaluation of L-BFGS is one, with its value; a product with a curvature
matrix counts as two, and the value after a step as one.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import gradxform as gx
from gradxform import curvature

Counts = tuple[np.ndarray, np.ndarray]  # gradients so far, and the loss there


class Regression(NamedTuple):
    """A loss of the outputs of a model, and a start in float64."""

    model: Callable[[Any], Any]
    loss: Callable[[Any], Any]
    start: np.ndarray
    best: float | None  # the lowest loss; None where it is that of the long run of L-BFGS


def teacher(seed: int, hidden: int = 6) -> Regression:
    """Return the regression on another network of the same size: 25 parameters, no residual."""
    rng = np.random.default_rng(3)
    inputs = rng.uniform(-1, 1, (256, 2))
    first, second = 1.5 * rng.normal(size=(3, hidden)), rng.normal(size=hidden + 1)
    labels = np.tanh(inputs @ first[:-1] + first[-1]) @ second[:-1] + second[-1]
    return _network(inputs, labels, hidden, seed, 0.0)


def wave(seed: int, hidden: int = 6) -> Regression:
    """Return the regression on sin(3 x) cos(2 y) with a penalty: it leaves a residual."""
    inputs = np.random.default_rng(3).uniform(-1, 1, (256, 2))
    labels = np.sin(3 * inputs[:, 0]) * np.cos(2 * inputs[:, 1])
    return _network(inputs, labels, hidden, seed, 1e-3)


def _network(
    inputs: np.ndarray, labels: np.ndarray, hidden: int, seed: int, decay: float
) -> Regression:
    columns = inputs.shape[1] + 1
    end = columns * hidden

    def model(x):
        first, second = x[:end].reshape(columns, hidden), x[end:]
        units = jnp.tanh(jnp.asarray(inputs) @ first[:-1] + first[-1][None])
        return units @ second[:-1] + second[-1], x

    def loss(outputs):
        z, x = outputs
        return jnp.mean((z - jnp.asarray(labels)) ** 2) / 2 + decay / 2 * jnp.sum(x**2)

    start = 0.5 * np.random.default_rng(seed).normal(size=end + hidden + 1)
    return Regression(model, loss, start, None if decay else 0.0)


def all_regressions() -> dict[str, Regression]:
    """Return the problems by name."""
    found = {f"network on a network, start {i + 1}": teacher(i) for i in range(4)}
    return found | {f"network on a wave, start {i + 1}": wave(i) for i in range(2)}


def of_lbfgs(problem: Regression, most: int) -> Counts:
    """Return the run of `lbfgs_steps`: a gradient at each update."""
    tx = gx.lbfgs_steps(10)

    def loss(x):
        return problem.loss(problem.model(x))

    def step(carry, _):
        x, state = carry
        value, grad = jax.value_and_grad(loss)(x)
        updates, state = tx.update(grad, state, x, value=value)
        return (gx.apply_updates(x, updates), state), value

    with jax.enable_x64(True):
        x = jnp.asarray(problem.start)
        run = jax.jit(lambda carry: jax.lax.scan(step, carry, length=most)[1])
        return np.arange(1, most + 1), np.asarray(run((x, tx.init(x))))


def of_newton_cg(problem: Regression, updates: int, matrix: str) -> Counts:
    """Return the run of `newton_cg` with as many steps of conjugate gradients as parameters.

    The loss after so many gradients is that at the start of an update, with its own gradient.
    """
    product = curvature.hessian_product()
    if matrix == "gauss_newton":
        product = curvature.gauss_newton_product(problem.model, problem.loss)
    tx = gx.newton_cg(product=product, steps=problem.start.size, damping=1e-2, warm_start=0.0)

    def loss(x):
        return problem.loss(problem.model(x))

    def step(carry, _):
        x, state, count = carry
        value, grad = jax.value_and_grad(loss)(x)
        updates, state = tx.update(grad, state, x, value=value, value_fn=loss)
        after = count + 2 + 2 * state[0].info.num_products
        return (gx.apply_updates(x, updates), state, after), (count + 1, value)

    with jax.enable_x64(True):
        x = jnp.asarray(problem.start)
        run = jax.jit(lambda carry: jax.lax.scan(step, carry, length=updates)[1])
        counts, values = run((x, tx.init(x), jnp.zeros((), jnp.int32)))
        return np.asarray(counts), np.asarray(values)
