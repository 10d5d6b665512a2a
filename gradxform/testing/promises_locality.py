"""The promise about locality: a rule depends on nothing beyond its declared locality."""

import functools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gradxform.base import LOCALITIES, GradientTransformation
from gradxform.testing.case import Case
from gradxform.testing.promise import Broken, Skipped, as_numpy, promise, run
from gradxform.types import Array, PyTree

STEPS = 3
# Changes of a number: to another one, and to NaN, which spreads through every sum.
CHANGES = {
    "another number": lambda x: jnp.asarray(0.3, x.dtype) - x * jnp.asarray(1.7, x.dtype),
    "NaN": lambda x: jnp.full_like(x, jnp.nan),
}


@promise(
    'Declare how far the rule looks: locality = "entry", "row", "array" or "tree", the nearest '
    "that holds."
)
def looks_no_further_than_it_says(case: Case) -> None:
    """Changes in other entries, rows or arrays, as its locality says, do not affect a result."""
    if not isinstance(case.tx, GradientTransformation):
        raise Skipped("it is not a transform of gradxform and does not declare a locality")
    locality = case.tx.locality
    if locality == "tree":
        raise Skipped("it declares that it looks at the whole tree")
    for leaf, kind in changes_beyond(case, locality):
        raise Broken(
            f"another value where another {locality} is {kind}",
            expected=f"the same for a locality of {locality!r}",
            leaf=leaf,
        )


def shows_how_far_it_looks(case: Case) -> bool:
    """Whether the rule visibly depends on something beyond the next nearer locality."""
    nearer = LOCALITIES[: LOCALITIES.index(case.tx.locality)]
    return not nearer or any(changes_beyond(case, nearer[-1]))


def changes_beyond(case: Case, locality: str) -> Iterator[tuple[str, str]]:
    """Change an entry, a row or an array, in parameters and gradients, and compare the results.

    Yields:
      The path of each leaf of updates and state that differs elsewhere, and the kind of change.
    """
    tree = case.params()
    grads = case.gradients(tree, STEPS)
    flat, treedef = jax.tree_util.tree_flatten_with_path(tree)
    steps = functools.partial(run, case.bound, update=case.compiled)
    _, *before = steps(tree, grads)
    for i, (path, x) in enumerate(flat):
        region = _region(x.shape, locality)
        for kind, change in CHANGES.items():

            def changed(
                tree: PyTree,
                lead: tuple[slice, ...] = (),
                i: int = i,
                region: tuple[int, ...] = region,
                change: Callable[[Array], Array] = change,
            ) -> PyTree:
                leaves = treedef.flatten_up_to(tree)
                index = (*lead, *region)
                leaves[i] = leaves[i].at[index].set(change(leaves[i][index]))
                return jax.tree.unflatten(treedef, leaves)

            # The axis of examples comes first in a gradient, and all of them change.
            lead = () if case.examples is None else (slice(None),)
            _, *after = steps(changed(tree), [changed(g, lead) for g in grads])
            for leaf in _differing(before, after, path, x.shape, locality, region):
                yield leaf, kind


def _region(shape: tuple[int, ...], locality: str) -> tuple[int, ...]:
    """Return the index of an entry, a row or a whole array; not the first one."""
    axes = {"entry": len(shape), "row": min(1, len(shape)), "array": 0}[locality]
    return tuple(n // 2 for n in shape[:axes])


def _differing(
    before: PyTree, after: PyTree, path: Any, shape: Any, locality: str, region: tuple[int, ...]
) -> Iterator[str]:
    """Yield the leaves that differ outside of `region` of the parameter at `path`."""
    new_leaves = jax.tree.leaves(after)
    old_leaves = jax.tree_util.tree_leaves_with_path(before)
    for (leaf_path, old), new in zip(old_leaves, new_leaves, strict=True):
        a, b = as_numpy(old), as_numpy(new)
        differs = np.asarray((a != b) & ((a == a) | (b == b)))  # two NaNs do not
        starts = range(len(leaf_path) - len(path) + 1)
        if any(leaf_path[i : i + len(path)] == path for i in starts):
            has_region = {"entry": a.shape == shape, "row": a.shape[:1] == shape[:1], "array": True}
            if has_region[locality]:
                differs[region] = False
        if np.any(differs):
            name, rest = (("updates", leaf_path[2:]), ("state", leaf_path[1:]))[leaf_path[0].idx]
            yield name + jax.tree_util.keystr(rest)
