"""A matrix of condition 100, to be written as a product of two of low rank."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.subjects.workloads.workload import Start, Workload, checksum

ROWS, COLUMNS, RANK = 64, 48, 8
CONDITION = 100


def factorization() -> Workload:
    """Return the workload."""
    random = np.random.default_rng(0)
    left, right = (np.linalg.qr(random.normal(size=(n, RANK)))[0] for n in (ROWS, COLUMNS))
    values = np.logspace(0, -np.log10(CONDITION), RANK)
    # Entries of about one, as the parameters of a network have them at their best.
    wanted = (left * values) @ right.T
    wanted *= np.sqrt(ROWS * COLUMNS) / np.linalg.norm(wanted)
    target = jnp.asarray(wanted, jnp.float32)

    def loss(params: Any) -> jax.Array:
        return jnp.mean((params["left"] @ params["right"] - target) ** 2)

    def start(seed: int, steps: int) -> Start:
        draws = np.random.default_rng(seed)
        shapes = {"left": (ROWS, RANK), "right": (RANK, COLUMNS)}
        params = {
            name: jnp.asarray(0.1 * draws.normal(size=shape), jnp.float32)
            for name, shape in shapes.items()
        }
        return Start(params, jnp.zeros((steps, 0)))

    return Workload(
        about="an ill-conditioned matrix factorization: the mean squared error",
        start=start,
        loss=lambda params, batch: loss(params),
        total=loss,
        steps=400,
        every=5,
        over=1,
        data=checksum(np.round(wanted, 4)),
        same_examples=True,
    )
