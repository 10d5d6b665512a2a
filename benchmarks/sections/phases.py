"""Whether the steps of a period cost alike, where a rule renews something every ten steps."""

import statistics
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import gradxform as gx

PERIOD, RUNS = 10, 8
RULES: dict[str, Any] = {
    "soap": gx.soap(1e-3, precondition_frequency=PERIOD),
    "distributed_shampoo": gx.distributed_shampoo(
        1e-3, preconditioning_compute_steps=PERIOD, start_preconditioning_step=0
    ),
}
COLUMNS = ("median", "longest", "ratio")


def phases(layers: int, width: int, runs: int = RUNS) -> list[dict[str, Any]]:
    """Return for each rule the median and the longest of the phases of a period, in ms.

    The time of a phase is the least of several runs.

    Args:
      layers: the number of layers of four matrices, each a parameter.
      width: their shorter sides.
      runs: the number of periods.
    """
    rng = np.random.default_rng(0)
    shapes = {"q": (width, width), "o": (width, width)}
    shapes |= {"up": (width, 2 * width), "down": (2 * width, width)}

    def drawn() -> Any:
        return {
            f"layer{i}": {
                k: jnp.asarray(rng.normal(size=s), jnp.float32) for k, s in shapes.items()
            }
            for i in range(layers)
        }

    params, grads = drawn(), [drawn() for _ in range(3)]
    rows = []
    for name, tx in RULES.items():
        step: Any = jax.jit(tx.update, donate_argnums=1)
        state = jax.block_until_ready(tx.init(params))
        least = [float("inf")] * PERIOD
        for turn in range(runs + 1):  # the first one compiles
            for phase in range(PERIOD):
                start = time.perf_counter()
                _, state = jax.block_until_ready(step(grads[phase % 3], state, params))
                taken = 1e3 * (time.perf_counter() - start)
                least[phase] = min(least[phase], taken) if turn else least[phase]
        median = statistics.median(least)
        longest = max(least)
        row = {"rule": name, "median": median, "longest": longest, "ratio": longest / median}
        rows.append(row)
    return rows
