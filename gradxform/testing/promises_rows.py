"""The promise about row-sparse gradients."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gradxform.base import locality_of
from gradxform.leaves.row_sparse import RowSparse
from gradxform.testing.case import Case, inside
from gradxform.testing.promise import Broken, Skipped, check_close, is_key, leaves_of, promise, run
from gradxform.testing.rounding import sway
from gradxform.tree.apply import apply_updates
from gradxform.types import OptState, Params, PyTree, Updates
from gradxform.wrappers.sparse import only_dense, only_rows, sparse_semantics

# Rows of the table that no gradient touches.
UNTOUCHED = 3


@promise(
    'Declare how far the rule looks: locality = "entry", "row", "array" or "tree". A rule of the '
    "first two sees the touched rows only, of the gradient, of its slots and of the parameter."
)
def touches_rows_or_refuses(case: Case) -> None:
    """A row-sparse gradient changes its rows as a dense one would, and no others.

    A transform that looks further than a row refuses it instead, with `densify()` as the remedy.
    """
    if any(isinstance(x, sparse_semantics | only_dense | only_rows) for x in inside(case.tx)):
        raise Skipped("it chooses how to treat row-sparse gradients")
    tree = case.params()
    at = _index_of_table(tree)
    if at is None or case.examples is not None:
        raise Skipped("no parameter has rows")
    flat, treedef = jax.tree.flatten(tree)
    # The parameter becomes some rows of a larger table, whose other rows no gradient touches.
    rows = flat[at]
    n = rows.shape[0] + UNTOUCHED
    where = np.random.default_rng(3).permutation(n)[: rows.shape[0]]  # in any order
    table = jnp.asarray(np.random.default_rng(4).normal(size=(n, *rows.shape[1:])), rows.dtype)
    table = table.at[where].set(rows)
    large = jax.tree.unflatten(treedef, [*flat[:at], table, *flat[at + 1 :]])

    start, state = case.tx.init(large), case.tx.init(large)
    is_comparable = case.reference is not None or not _is_random(state)
    grads = case.gradients(tree, 2)
    for g in grads:
        dense = jax.tree.leaves(g)
        slices = _as_slices(where, dense[at], n)
        sparse = jax.tree.unflatten(treedef, [*dense[:at], slices, *dense[at + 1 :]])
        try:
            updates, state = case.tx.update(sparse, state, large, **case.extra_of(g, large))
        except (TypeError, ValueError) as error:
            if "densify()" not in str(error):
                raise
            if _must_take_rows(case):
                raise Broken(
                    f"a refusal: {error}", expected="that it takes row-sparse gradients"
                ) from error
            return
        if case.rows is False:
            raise Broken("an update", expected="that it refuses row-sparse gradients")
        if not isinstance(treedef.flatten_up_to(updates)[at], RowSparse):
            _check_dense(case, sparse, updates, large)
            return
        large = apply_updates(large, updates)
    _check_untouched(table, jax.tree.leaves(large)[at], where, "params")
    _check_untouched_rows(start, state, table, where)
    if is_comparable:
        leaves = jax.tree.leaves(large)
        touched = jax.tree.unflatten(treedef, [*leaves[:at], leaves[at][where], *leaves[at + 1 :]])
        run_dense = functools.partial(_run_dense, case)
        slack = functools.partial(sway, run_dense, tree, grads)
        expected = run_dense(tree, grads)
        check_close("params", touched, expected, 1e-5, what=" with dense gradients", sway=slack)


def _must_take_rows(case: Case) -> bool:
    if case.rows is not None:
        return case.rows
    return locality_of(case.tx) in ("entry", "row") and case.tx.handles_rows


def _run_dense(case: Case, tree: Params, grads: list[Updates]) -> Params:
    return run(case.bound, tree, grads)[0]


def _is_random(state: OptState) -> bool:
    """Whether the state has a PRNG key; random numbers depend on the shapes."""
    return any(x.dtype == jnp.uint32 or is_key(x) for x in jax.tree.leaves(state))


def _index_of_table(tree: PyTree) -> int | None:
    """Return the index of the largest real array with rows."""
    sizes = [x.size if x.ndim and not jnp.iscomplexobj(x) else 0 for x in jax.tree.leaves(tree)]
    return int(np.argmax(sizes)) if any(sizes) else None


def _as_slices(where: Any, g: jax.Array, n: int) -> RowSparse:
    """Return a gradient with every row as two slices, and a slice of padding."""
    # The slices of a row must be added up, and those with an index out of range left out.
    values = jnp.concatenate([g / 2, g[::-1] / 2, jnp.ones_like(g[:1])])
    return RowSparse(np.concatenate([where, where[::-1], [n]]), values, n)


def _check_dense(case: Case, sparse: PyTree, updates: PyTree, tree: PyTree) -> None:
    """Require dense updates of a row-sparse gradient to be those of the dense gradient."""
    g = jax.tree.map(
        lambda x: x.to_dense() if isinstance(x, RowSparse) else x,
        sparse,
        is_leaf=lambda x: isinstance(x, RowSparse),
    )
    extra = case.extra_of(g, tree)
    expected, _ = case.tx.update(g, case.tx.init(tree), tree, **extra)
    check_close("updates", updates, expected, 1e-6, what=" with the same gradient as an array")


def _check_untouched(old: Any, new: Any, where: Any, name: str) -> None:
    rest = np.setdiff1d(np.arange(old.shape[0]), where)
    if not np.array_equal(np.asarray(old)[rest], np.asarray(new)[rest], equal_nan=True):
        raise Broken("another value", expected="the old one in untouched rows", leaf=name)


def _check_untouched_rows(start: PyTree, state: PyTree, table: Any, where: Any) -> None:
    """Require every array in the state with as many rows as the table to keep untouched rows."""
    old = leaves_of("state", start)
    for path, new in leaves_of("state", state).items():
        if jnp.ndim(new) and new.shape[0] == table.shape[0]:
            _check_untouched(old[path], new, where, path)
