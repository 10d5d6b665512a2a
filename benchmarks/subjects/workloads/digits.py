"""A convolutional network for the handwritten digits of scikit-learn."""

import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.subjects.workloads.workload import Start, Workload, applied, checksum, dense
from examples.digits import load_data
from gradxform.losses import softmax_cross_entropy_with_integer_labels

CHANNELS = (1, 12, 24)
BATCH = 64


def _convolved(x: Any, kernel: Any) -> jax.Array:
    """Return a 3 x 3 convolution as one product: with a kernel for each rate, XLA's is slow."""
    height, width = x.shape[1:3]
    padded = jnp.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
    shifted = [padded[:, i : i + height, j : j + width] for i in range(3) for j in range(3)]
    return jnp.concatenate(shifted, axis=-1) @ kernel.reshape(-1, kernel.shape[-1])


def _halved(x: Any) -> jax.Array:
    n, height, width, channels = x.shape
    return x.reshape(n, height // 2, 2, width // 2, 2, channels).mean(axis=(2, 4))


def _logits(params: Any, x: Any) -> jax.Array:
    for name in ("conv1", "conv2"):
        x = _halved(jax.nn.relu(_convolved(x, params[name]["kernel"]) + params[name]["bias"]))
    return applied(params["out"], x.reshape(len(x), -1))


def _loss(params: Any, images: Any, labels: Any) -> jax.Array:
    logits = _logits(params, images)
    return jnp.mean(softmax_cross_entropy_with_integer_labels(logits, labels))


def digits() -> Workload:
    """Return the workload."""
    training, held_out = load_data()
    images, labels = jnp.asarray(training.images), jnp.asarray(training.labels)
    held_images, held_labels = jnp.asarray(held_out.images), jnp.asarray(held_out.labels)

    def start(seed: int, steps: int) -> Start:
        random = np.random.default_rng(seed)
        params: dict[str, Any] = {}
        for i, (n, m) in enumerate(itertools.pairwise(CHANNELS), 1):
            layer = dense(random, 9 * n, m)
            params[f"conv{i}"] = layer | {"kernel": layer["kernel"].reshape(3, 3, n, m)}
        params["out"] = dense(random, 4 * CHANNELS[-1], 10)
        picked = random.integers(len(labels), size=(steps, BATCH), dtype=np.int32)
        return Start(params, jnp.asarray(picked))

    return Workload(
        about="digits by a convolutional network: the held-out cross-entropy",
        start=start,
        loss=lambda params, batch: _loss(params, images[batch], labels[batch]),
        total=lambda params: _loss(params, held_images, held_labels),
        steps=120,
        every=6,
        over=3,
        data=checksum(training.images, training.labels),
    )
