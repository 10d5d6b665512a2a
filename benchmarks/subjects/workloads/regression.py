"""Least squares to high precision: scikit-learn's diabetes data, of condition 470."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.subjects.workloads.workload import Start, Workload, checksum


def _data() -> tuple[np.ndarray, np.ndarray]:
    """Return the ten features and the target, each of mean 0 and deviation 1."""
    from sklearn.datasets import load_diabetes

    x, y = map(np.asarray, load_diabetes(return_X_y=True, scaled=False))
    return (x - x.mean(axis=0)) / x.std(axis=0), (y - y.mean()) / y.std()


def regression() -> Workload:
    """Return the workload."""
    x, y = _data()
    features = x.shape[1]
    best = np.linalg.lstsq(x, y, rcond=None)[0]
    inputs, targets = jnp.asarray(x, jnp.float32), jnp.asarray(y, jnp.float32)
    optimum = jnp.asarray(best, jnp.float32)

    def loss(params: Any, batch: Any) -> jax.Array:
        errors = inputs @ params["weights"] + params["bias"] - targets
        return 0.5 * jnp.mean(errors**2)

    def excess(params: Any) -> jax.Array:
        # The residuals of the optimum are orthogonal to all features, and drop out.
        errors = inputs @ (params["weights"] - optimum) + params["bias"]
        return 0.5 * jnp.mean(errors**2)

    def start(seed: int, steps: int) -> Start:
        weights = np.random.default_rng(seed).normal(size=features) / np.sqrt(features)
        params = {"weights": jnp.asarray(weights, jnp.float32), "bias": jnp.zeros(1)}
        return Start(params, jnp.zeros((steps, 0)))

    return Workload(
        about="least squares to high precision: the loss above the least one",
        start=start,
        loss=loss,
        total=excess,
        steps=300,
        every=5,
        over=1,
        data=checksum(x.astype(np.float32)),
        same_examples=True,
    )
