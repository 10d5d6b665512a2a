"""The model of `finetune.py`: a small transformer that predicts the next character."""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from finetune_text import CHARACTERS

from gradxform.losses import softmax_cross_entropy_with_integer_labels

HEADS = 4


class Attention(nn.Module):
    """Attention of every character to itself and to those before it."""

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        batch, length, width = x.shape
        split = (batch, length, 3, HEADS, width // HEADS)
        q, k, v = jnp.moveaxis(nn.Dense(3 * width, name="qkv")(x).reshape(split), 2, 0)
        scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / (width // HEADS) ** 0.5
        causal = jnp.tril(jnp.ones((1, 1, length, length), jnp.bool_))
        weights = nn.softmax(jnp.where(causal, scores, -1e30))
        mixed = jnp.einsum("bhqk,bkhd->bqhd", weights, v).reshape(x.shape)
        return nn.Dense(width, name="out")(mixed)


class Layer(nn.Module):
    """Attention, then two dense layers; each adds to what it reads."""

    dropout: float

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        drop = nn.Dropout(self.dropout, deterministic=not self.dropout)
        x = x + drop(Attention(name="attention")(nn.LayerNorm(name="norm_1")(x)))
        wide = nn.gelu(nn.Dense(4 * x.shape[-1], name="up")(nn.LayerNorm(name="norm_2")(x)))
        return x + drop(nn.Dense(x.shape[-1], name="down")(wide))


class Transformer(nn.Module):
    """Scores of the next character, at every character.

    The names of its parts, `embed...` and `layers_0`, ..., are those that `layerwise_decay` knows.
    """

    layers: int
    width: int
    dropout: float = 0.0

    @nn.compact
    def __call__(self, characters: jax.Array) -> jax.Array:
        length = characters.shape[-1]
        x = nn.Embed(len(CHARACTERS), self.width, name="embed")(characters)
        x = x + nn.Embed(length, self.width, name="embed_positions")(jnp.arange(length))[None]
        for i in range(self.layers):
            x = Layer(self.dropout, name=f"layers_{i}")(x)
        return nn.Dense(len(CHARACTERS), name="head")(nn.LayerNorm(name="head_norm")(x))


def loss_of(model: Transformer, params: Any, windows: jax.Array, key: Any = None) -> jax.Array:
    """Return the mean cross-entropy of every next character, in nats."""
    rngs = None if key is None else {"dropout": key}
    logits: Any = model.apply({"params": params}, windows[:, :-1], rngs=rngs)
    logits = logits.astype(jnp.float32)  # of a model in 16 bits, too
    return jnp.mean(softmax_cross_entropy_with_integer_labels(logits, windows[:, 1:]))
