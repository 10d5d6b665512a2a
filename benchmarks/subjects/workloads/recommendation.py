"""Two tables of embeddings, which recommend names to the modules of the standard library.

A user is a module, and an item is a name that some modules use. From a module, the model must tell
a name that it uses from names that others use.
"""

import functools
import keyword
import sys
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.subjects.workloads.workload import Start, Workload, checksum

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
USERS, ITEMS, WIDTH = 256, 512, 16
BATCH, NEGATIVES = 128, 4
MOST = 0.5  # a name that more than this share of modules use says nothing about them
HELD_OUT = 10  # one use in so many is held out


class _Uses(NamedTuple):
    """Which user uses which item."""

    training: np.ndarray  # int32 [n, 2]
    held_out: np.ndarray


@functools.cache
def _uses() -> _Uses:
    if str(EXAMPLES) not in sys.path:
        sys.path.insert(0, str(EXAMPLES))
    from embeddings_corpus import WORD  # pyright: ignore
    from finetune_text import all_parts, files_of  # pyright: ignore

    # The largest modules have the most to learn from; equal ones are in the order of their paths.
    files = [path for part in all_parts() for path in files_of(part)]
    files = sorted(files, key=lambda path: -path.stat().st_size)[:USERS]
    known = set(keyword.kwlist)
    words = [
        set(WORD.findall(path.read_text(encoding="utf-8", errors="replace"))) - known
        for path in files
    ]
    counts = Counter(word for found in words for word in sorted(found))
    ranked = [word for word, n in counts.most_common() if n <= MOST * len(files)][:ITEMS]
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
        # A random use has a name as often as it is used.
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
            for name, n in (("users", USERS), ("items", ITEMS))
        }
        picked = random.integers(len(uses.training), size=(steps, BATCH))
        return Start(tables, drawn(random, uses.training[picked]))

    return Workload(
        about="recommendation by two tables of embeddings: the held-out logistic loss",
        start=start,
        loss=_loss,
        total=lambda params: _loss(params, held_out),
        steps=400,
        every=8,
        over=5,
        data=checksum(uses.training, uses.held_out),
        tables="embedding$",
    )
