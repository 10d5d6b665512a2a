"""Fourteen smooth functions with their starts, to compare line searches on.

The starts of the classic ones are those of Moré, Garbow and Hillstrom, Testing Unconstrained
Optimization Software, 1981, where they have the function. The last three learn from real data.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np


class Problem(NamedTuple):
    """A function of one vector, in the dtype of the vector, and its start in float64."""

    loss: Callable[[Any], Any]
    start: Any


def rosenbrock(x):
    return jnp.sum(100 * (x[1::2] - x[::2] ** 2) ** 2 + (1 - x[::2]) ** 2)


def beale(x):
    a, b = x
    return (1.5 - a * (1 - b)) ** 2 + (2.25 - a * (1 - b**2)) ** 2 + (2.625 - a * (1 - b**3)) ** 2


def powell_singular(x):
    a, b, c, d = x
    return (a + 10 * b) ** 2 + 5 * (c - d) ** 2 + (b - 2 * c) ** 4 + 10 * (a - d) ** 4


def wood(x):
    a, b, c, d = x
    first = 100 * (b - a**2) ** 2 + (1 - a) ** 2 + 90 * (d - c**2) ** 2 + (1 - c) ** 2
    return first + 10 * (b + d - 2) ** 2 + 0.1 * (b - d) ** 2


def himmelblau(x):
    a, b = x
    return (a**2 + b - 11) ** 2 + (a + b**2 - 7) ** 2


def dixon_price(x):
    weights = jnp.arange(2, len(x) + 1, dtype=x.dtype)
    return (x[0] - 1) ** 2 + jnp.sum(weights * (2 * x[1:] ** 2 - x[:-1]) ** 2)


def trigonometric(x):
    i, n = jnp.arange(1, len(x) + 1, dtype=x.dtype), len(x)
    return jnp.sum((n - jnp.sum(jnp.cos(x)) + i * (1 - jnp.cos(x)) - jnp.sin(x)) ** 2)


def variably_dimensioned(x):
    total = jnp.sum(jnp.arange(1, len(x) + 1, dtype=x.dtype) * (x - 1))
    return jnp.sum((x - 1) ** 2) + total**2 + total**4


def penalty(x):
    return 1e-5 * jnp.sum((x - 1) ** 2) + (jnp.sum(x**2) - 0.25) ** 2


def quadratic(x):
    return jnp.sum(jnp.logspace(0, 4, len(x), dtype=x.dtype) * (x - 1) ** 2) / 2


def _data(name: str) -> tuple[np.ndarray, np.ndarray]:
    """Return one of scikit-learn's data sets: features of mean 0 and deviation 1, and classes."""
    from sklearn import datasets

    x, y = getattr(datasets, f"load_{name}")(return_X_y=True)
    spread = x.std(axis=0)
    return (x - x.mean(axis=0)) / np.where(spread > 0, spread, 1), y


def _cross_entropy(logits, classes):
    chosen = jnp.take_along_axis(jax.nn.log_softmax(logits), classes[:, None], axis=1)
    return -jnp.mean(chosen)


def logistic_regression() -> Problem:
    features, classes = _data("breast_cancer")
    signs = np.where(classes == 1, 1.0, -1.0)

    def loss(x):
        margins = jnp.asarray(signs, x.dtype) * (jnp.asarray(features, x.dtype) @ x[:-1] + x[-1])
        return jnp.mean(jax.nn.softplus(-margins)) + 1e-3 * jnp.sum(x[:-1] ** 2)

    return Problem(loss, np.zeros(features.shape[1] + 1))


def softmax() -> Problem:
    features, classes = _data("digits")

    def loss(x):
        weights = x.reshape(features.shape[1] + 1, 10)
        logits = jnp.asarray(features, x.dtype) @ weights[:-1] + weights[-1]
        return _cross_entropy(logits, classes) + 1e-3 * jnp.sum(weights[:-1] ** 2)

    return Problem(loss, np.zeros((features.shape[1] + 1) * 10))


def network(hidden: int = 8) -> Problem:
    features, classes = _data("wine")
    sizes = ((features.shape[1] + 1, hidden), (hidden + 1, 3))
    ends = np.cumsum([n * m for n, m in sizes])

    def loss(x):
        first = x[: ends[0]].reshape(sizes[0])
        second = x[ends[0] :].reshape(sizes[1])
        units = jnp.tanh(jnp.asarray(features, x.dtype) @ first[:-1] + first[-1])
        logits = units @ second[:-1] + second[-1]
        return _cross_entropy(logits, classes) + 1e-3 * jnp.sum(x**2)

    return Problem(loss, 0.5 * np.random.default_rng(0).normal(size=ends[-1]))


def all_problems() -> dict[str, Problem]:
    """Return the fourteen problems by name."""
    ten = np.arange(1, 11)
    return {
        "Rosenbrock, 2": Problem(rosenbrock, np.array([-1.2, 1.0])),
        "Rosenbrock, 100": Problem(rosenbrock, np.array([-1.2, 1.0] * 50)),
        "Beale": Problem(beale, np.ones(2)),
        "Powell singular": Problem(powell_singular, np.array([3.0, -1.0, 0.0, 1.0])),
        "Wood": Problem(wood, np.array([-3.0, -1.0, -3.0, -1.0])),
        "Himmelblau": Problem(himmelblau, np.ones(2)),
        "Dixon-Price, 10": Problem(dixon_price, np.ones(10)),
        "trigonometric, 10": Problem(trigonometric, np.full(10, 0.1)),
        "variably dimensioned, 10": Problem(variably_dimensioned, 1 - ten / 10),
        "penalty I, 10": Problem(penalty, ten.astype(float)),
        "quadratic of condition 1e4, 100": Problem(quadratic, np.zeros(100)),
        "logistic regression": logistic_regression(),
        "softmax regression": softmax(),
        "network of 8 units": network(),
    }
