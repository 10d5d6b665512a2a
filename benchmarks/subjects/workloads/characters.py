"""A transformer for the next character of Python sources."""

import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.subjects.workloads.modules import modules
from benchmarks.subjects.workloads.workload import Start, Workload

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
LAYERS, WIDTH, LENGTH, BATCH = 1, 32, 32, 8


def characters() -> Workload:
    """Return the workload."""
    if str(EXAMPLES) not in sys.path:
        sys.path.insert(0, str(EXAMPLES))
    from finetune_model import Transformer, loss_of  # pyright: ignore
    from finetune_text import Text  # pyright: ignore

    written = "\n".join(modules())
    text = Text(written, LENGTH, BATCH, 0)
    model = Transformer(LAYERS, WIDTH)
    held_out = jnp.asarray(text.held_out, jnp.int32)
    initialized = jax.jit(model.init)  # once for all seeds

    def start(seed: int, steps: int) -> Start:
        windows = Text(written, LENGTH, BATCH, seed)
        params = initialized(jax.random.key(seed), held_out[:1, :-1])["params"]
        batches = np.stack([windows.batch(i) for i in range(steps)])
        return Start(params, jnp.asarray(batches, jnp.int32))

    def loss(params: Any, windows: Any) -> jax.Array:
        return loss_of(model, params, windows)

    return Workload(
        about="characters by a transformer: the held-out cross-entropy",
        start=start,
        loss=loss,
        total=lambda params: loss(params, held_out),
        steps=120,
        every=8,
        over=3,
        data=text.checksum,
    )
