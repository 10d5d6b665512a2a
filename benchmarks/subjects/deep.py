"""A transformer that scans over its layers, and the optimizers of the section `backward`."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

import gradxform as gx
from benchmarks.subjects.cases import LIBRARIES, OURS
from benchmarks.subjects.pairs import PAIRS
from gradxform.losses import softmax_cross_entropy_with_integer_labels

LAYERS, HEADS, VOCABULARY = 12, 8, 256
RATE = 1e-3
HALF = jnp.bfloat16


class Size(NamedTuple):
    """How large the model and its batch are."""

    width: int
    batch: int = 4
    length: int = 256
    layers: int = LAYERS


def shapes(size: Size) -> dict[str, Any]:
    """Return the shapes of the parameters; those of layers are stacked along the first axis."""
    n, d = size.layers, size.width
    layers = {
        "norm_1": (n, d),
        "qkv": (n, d, 3 * d),
        "out": (n, d, d),
        "norm_2": (n, d),
        "up": (n, d, 4 * d),
        "down": (n, 4 * d, d),
    }
    return {"embed": (VOCABULARY, d), "layers": layers, "head": (d, VOCABULARY)}


def normal(size: Size, dtype: Any, seed: int) -> Any:
    """Return random parameters, whose norms are ones."""
    key = jax.random.key(seed)

    def one(path: Any, shape: tuple[int, ...]) -> jax.Array:
        if path[-1].key.startswith("norm"):
            return jnp.ones(shape, dtype)
        own = jax.random.fold_in(key, hash_of(jax.tree_util.keystr(path)))
        return 0.02 * jax.random.normal(own, shape, dtype)

    return jax.tree.map_with_path(one, shapes(size), is_leaf=lambda x: isinstance(x, tuple))


def hash_of(text: str) -> int:
    """Return a number that is the same in every process."""
    return sum(map(ord, text))


def _norm(x: jax.Array, gain: jax.Array) -> jax.Array:
    return x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6) * gain


def block(p: Any, x: jax.Array) -> jax.Array:
    """Return what a layer makes of characters [batch, length, width]."""
    batch, length, width = x.shape
    split = (batch, length, HEADS, width // HEADS)
    q, k, v = (a.reshape(split) for a in jnp.split(_norm(x, p["norm_1"]) @ p["qkv"], 3, -1))
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / (width // HEADS) ** 0.5
    causal = jnp.tril(jnp.ones((length, length), jnp.bool_))
    weights = jax.nn.softmax(jnp.where(causal, scores, -1e9))
    x = x + jnp.einsum("bhqk,bkhd->bqhd", weights, v).reshape(x.shape) @ p["out"]
    return x + jax.nn.gelu(_norm(x, p["norm_2"]) @ p["up"]) @ p["down"]


def loss(params: Any, characters: jax.Array) -> jax.Array:
    """Return the mean cross-entropy of every next character."""
    x = gx.scan_layers(block, params["layers"], params["embed"][characters[:, :-1]])
    logits = (x @ params["head"]).astype(jnp.float32)
    return jnp.mean(softmax_cross_entropy_with_integer_labels(logits, characters[:, 1:]))


class Row(NamedTuple):
    """An optimizer of the model.

    Attributes:
      make: returns it, of a library.
      both: whether Optax has it, too.
      dtype: of the parameters.
      bound: what a step in the backward pass may hold beside a gradient and activations, in copies
        of the parameters in float32.
      widths: of the models; empty for all.
    """

    make: Callable[[Any], Any]
    both: bool = False
    dtype: Any = jnp.float32
    bound: float = 0.02
    widths: tuple[int, ...] = ()


def _stacked(lib: Any, tx: Any) -> Any:
    """Return a transform that sees single layers; Optax does not have it, and sees the stacks."""
    return gx.stacked(tx, "layers") if lib is LIBRARIES[OURS] else tx


def _numbers(lib: Any) -> Any:
    """Return which parameters are matrices for Muon and SOAP: those of layers."""
    ours = lib is LIBRARIES[OURS]
    one = gx.MuonDimensionNumbers(0, 1) if ours else lib.contrib.MuonDimensionNumbers(1, 2)
    layers = {k: one if len(x) == 3 else None for k, x in shapes(Size(HEADS))["layers"].items()}
    return {"embed": None, "layers": layers, "head": None}


def _muon(lib: Any) -> Any:
    home = lib if lib is LIBRARIES[OURS] else lib.contrib
    tx = home.muon(RATE, muon_weight_dimension_numbers=_numbers(lib))
    return _stacked(lib, tx)


def _soap(lib: Any) -> Any:
    return _stacked(lib, lib.soap(RATE, weight_dimension_numbers=_numbers(lib)))


def _adafactor(lib: Any) -> Any:
    return _stacked(lib, PAIRS["adafactor"].make(lib))


ROWS = {
    "adamw": Row(lambda lib: lib.adamw(RATE), True),
    "clip + adamw": Row(lambda lib: lib.chain(lib.clip_by_global_norm(1.0), lib.adamw(RATE)), True),
    "lion": Row(lambda lib: lib.lion(RATE), True),
    "adafactor, stacked": Row(_adafactor, True),
    "adamw in 8 bits": Row(lambda lib: gx.quantize_state(gx.adamw(RATE))),
    "adamw in 4 bits": Row(lambda lib: gx.quantize_state(gx.adamw(RATE), 4)),
    "master_weights(adamw), bfloat16": Row(
        lambda lib: gx.master_weights(gx.adamw(RATE)), dtype=HALF
    ),
    "muon, stacked": Row(_muon, True, bound=0.05),
    "soap, stacked": Row(_soap, bound=0.05, widths=(512,)),
}
