"""The promise about locality: what is further off than a rule looks changes nothing."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gradxform.base import LOCALITIES, Transform
from gradxform.testing.case import Case
from gradxform.testing.promise import Broken, Skipped, as_numpy, leaves_of, promise, run

STEPS = 3


@promise(
    'Declare how far the rule looks: locality = "entry", "row", "array" or "tree", the nearest '
    "that holds."
)
def looks_no_further_than_it_says(case: Case) -> None:
    """Another gradient and parameter beyond its locality change no update in three steps."""
    if not isinstance(case.tx, Transform):
        raise Skipped("it is no transform of gradxform, and says nothing of its locality")
    says = case.tx.locality
    if says == "tree":
        raise Skipped("it says that it looks at the whole tree")
    changed = changed_beyond(case, says)
    if changed:
        raise Broken(
            f"another one after a change of another {says}",
            expected=f"the same update, for a locality of {says!r}",
            leaf=changed,
        )


def changed_beyond(case: Case, locality: str) -> str | None:
    """Change one entry, row or array of gradients and parameters, and see whether others follow.

    Returns:
      The path of a leaf of the updates that changes outside of it; None if there is none.
    """
    tree = case.params()
    grads = case.gradients(tree, STEPS)
    leaves, treedef = jax.tree.flatten(tree)
    at = int(np.argmax([x.size for x in leaves]))
    region = _region(leaves[at].shape, locality)
    lead = () if case.examples is None else (slice(None),)

    def change(tree, index):
        flat = list(treedef.flatten_up_to(tree))
        x = flat[at]
        flat[at] = x.at[index].set(jnp.asarray(0.3, x.dtype) - x[index] * jnp.asarray(1.7, x.dtype))
        return jax.tree.unflatten(treedef, flat)

    steps = functools.partial(run, case.bound, update=jax.jit(case.bound.update))
    _, before, _ = steps(tree, grads)
    _, after, _ = steps(change(tree, region), [change(g, (*lead, *region)) for g in grads])
    for old, new in zip(before, after, strict=True):
        theirs = jax.tree.leaves(new)
        for i, (path, x) in enumerate(leaves_of("updates", old).items()):
            differs = ~_same(x, theirs[i])
            if i == at:
                differs[region] = False
            if np.any(differs):
                return path
    return None


def _region(shape: tuple[int, ...], locality: str) -> tuple[int, ...]:
    """Return the index of an entry, of a row or of all of an array, not at its beginning."""
    assert locality in LOCALITIES[:3], locality
    axes = {"entry": len(shape), "row": min(1, len(shape)), "array": 0}[locality]
    return tuple(n // 2 for n in shape[:axes])


def _same(a: Any, b: Any) -> Any:
    a, b = as_numpy(a), as_numpy(b)
    return np.asarray((a == b) | ((a != a) & (b != b)))


def as_far_as_it_says(case: Case) -> bool:
    """Whether a change just beyond the next nearer locality shows that its own is none too far."""
    says = LOCALITIES.index(case.tx.locality)
    return says == 0 or changed_beyond(case, LOCALITIES[says - 1]) is not None
