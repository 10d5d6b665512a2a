"""Two tables of embeddings, which recommend words to the modules of a library.

A user is a module, and an item is a word that some modules use. From a module, the model must tell
a word that it uses from words that others use.
"""

import functools
import re
from collections import Counter
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.subjects.workloads.modules import modules
from benchmarks.subjects.workloads.workload import Start, Workload, checksum

WORD = re.compile(r"[A-Za-z_]\w*", re.ASCII)
ITEMS, WIDTH = 512, 16
BATCH, NEGATIVES = 128, 4
MOST = 0.5  # a word that more than this share of modules use says nothing about them
HELD_OUT = 10  # one use in so many is held out


class _Uses(NamedTuple):
    """Which user uses which item."""

    training: np.ndarray  # int32 [n, 2]
    held_out: np.ndarray


@functools.cache
def _uses() -> _Uses:
    words = [set(WORD.findall(text)) for text in modules()]
    counts = Counter(word for found in words for word in sorted(found))
    ranked = [word for word, n in counts.most_common() if n <= MOST * len(words)][:ITEMS]
    number_of = {word: i for i, word in enumerate(ranked)}
    known_of = [found & number_of.keys() for found in words]
    uses = [(user, number_of[word]) for user, found in enumerate(known_of) for word in found]
    pairs = np.array(uses, np.int32)
    pairs = pairs[np.lexsort(pairs.T)]  # sets are in another order in every process
    held_out = np.random.default_rng(0).permutation(len(pairs)) % HELD_OUT == 0
    return _Uses(pairs[~held_out], pairs[held_out])


def _loss(params: Any, batch: Any) -> jax.Array:
    users = params["users"]["embedding"][batch["user"]]
    items = params["items"]["embedding"][batch["items"]]
    scores = jnp.einsum("nd,nkd->nk", users, items)
    wrong = jax.nn.softplus(jnp.concatenate([-scores[:, :1], scores[:, 1:]], axis=1))
    return jnp.mean(jnp.sum(wrong, axis=1))


def recommendation() -> Workload:
    """Return the workload."""
    uses = _uses()

    def drawn(random: np.random.Generator, pairs: np.ndarray) -> dict[str, jax.Array]:
        # A random use has a word as often as it is used.
        others = uses.training[
            random.integers(len(uses.training), size=(*pairs.shape[:-1], NEGATIVES)), 1
        ]
        items = np.concatenate([pairs[..., 1:], others], axis=-1)
        return {"user": jnp.asarray(pairs[..., 0]), "items": jnp.asarray(items)}

    held_out = drawn(np.random.default_rng(0), uses.held_out)

    def start(seed: int, steps: int) -> Start:
        random = np.random.default_rng(seed)
        tables = {
            name: {"embedding": jnp.asarray(random.normal(size=(n, WIDTH)) / 4, jnp.float32)}
            for name, n in (("users", len(modules())), ("items", ITEMS))
        }
        picked = random.integers(len(uses.training), size=(steps, BATCH))
        return Start(tables, drawn(random, uses.training[picked]))

    return Workload(
        about="recommendation by two tables of embeddings: the held-out logistic loss",
        start=start,
        loss=_loss,
        total=lambda params: _loss(params, held_out),
        steps=240,
        every=8,
        over=3,
        data=checksum(uses.training, uses.held_out),
        tables="embedding$",
    )
