"""A variational autoencoder of the handwritten digits of scikit-learn."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.subjects.workloads.workload import Start, Workload, applied, checksum, dense
from examples.digits import load_data

PIXELS, HIDDEN, LATENT = 64, 64, 8
BATCH = 64


def _loss(params: Any, images: Any, noise: Any) -> jax.Array:
    """Return the negative evidence lower bound of an image, in nats."""
    hidden = jax.nn.relu(applied(params["encoder"], images))
    mean, log_variance = jnp.split(applied(params["latent"], hidden), 2, axis=-1)
    code = mean + jnp.exp(0.5 * log_variance) * noise
    logits = applied(params["out"], jax.nn.relu(applied(params["decoder"], code)))
    written = jnp.sum(jax.nn.softplus(logits) - images * logits, axis=-1)
    told = 0.5 * jnp.sum(jnp.exp(log_variance) + mean**2 - 1 - log_variance, axis=-1)
    return jnp.mean(written + told)


def variational() -> Workload:
    """Return the workload."""
    training, held_out = (part.images.reshape(-1, PIXELS) for part in load_data())
    images, held_images = jnp.asarray(training), jnp.asarray(held_out)
    fixed = np.random.default_rng(0).normal(size=(len(held_out), LATENT))
    held_noise = jnp.asarray(fixed, jnp.float32)

    def start(seed: int, steps: int) -> Start:
        random = np.random.default_rng(seed)
        params = {
            "encoder": dense(random, PIXELS, HIDDEN),
            "latent": dense(random, HIDDEN, 2 * LATENT),
            "decoder": dense(random, LATENT, HIDDEN),
            "out": dense(random, HIDDEN, PIXELS),
        }
        picked = random.integers(len(training), size=(steps, BATCH), dtype=np.int32)
        noise = random.normal(size=(steps, BATCH, LATENT))
        return Start(params, {"picked": jnp.asarray(picked), "noise": jnp.asarray(noise, "f4")})

    return Workload(
        about="a variational autoencoder of digits: the held-out bound, in nats",
        start=start,
        loss=lambda params, batch: _loss(params, images[batch["picked"]], batch["noise"]),
        total=lambda params: _loss(params, held_images, held_noise),
        steps=200,
        every=5,
        over=4,
        data=checksum(training),
    )
