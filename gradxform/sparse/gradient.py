"""Gradients of a loss with row-sparse leaves for the tables in which it looks rows up."""

import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gradxform.errors import must_be, require_choice, shown
from gradxform.leaves import flatten_with_names, map_with_paths, masks, path_str
from gradxform.sparse.loss import DifferentiatedLeaf, Loss
from gradxform.types import PyTree
from gradxform.values import FrozenTree, is_function

MIXED = ("error", "dense")


def value_and_grad(
    loss_fn: Callable[..., Any],
    where: Any,
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
    mixed: str = "error",
) -> Callable[..., tuple[Any, Any]]:
    """Return the function of a loss and its gradients, with a `RowSparse` for chosen tables.

    Like `jax.value_and_grad`, for an unchanged model: it finds `table[ids]`, `jnp.take`, and the
    embedding layers of Flax, Haiku and Equinox. The gradient of a table that `where` selects holds
    every looked-up row, once for each lookup, and no array of the table's size is allocated. All
    other gradients are the ordinary ones.

    The loss is traced once a call, as by `jax.jit`, so a Python `if` must not depend on the
    differentiated arguments. Other arguments are passed on as they are. For speed put the whole
    step under `jax.jit`.

    A lookup is indexing along the first axis with indices of any shape, or a slice that leaves out
    some rows. It may be inside `jax.jit`, `jax.checkpoint`, `jax.vmap`, `jax.custom_jvp` (its rule
    is used) and, if the table does not change from step to step, `jax.lax.scan`. The table may be
    cast before the lookup. Results that only `aux` or a `stop_gradient` needs may use the table in
    any way. Inside `shard_map` the rows of all devices are joined where `jax.grad` would sum.

    Args:
      loss_fn: returns a real scalar, or with `has_aux` a pair of that and anything else.
      where: the tables: a function `where(path, leaf)` of the path as a tuple of strings, a mask
        such as `path_matches("embedding")`, or a tree of booleans. Paths are those of the
        gradients: with a tuple of argnums they begin with the position in the tuple.
      argnums: the argument to differentiate, or a sequence of them; as in `jax.grad`.
      has_aux: whether `loss_fn` returns a pair.
      mixed: what to do if a table is also used in another way, such as for tied logits. "error"
        raises an error; "dense" makes the gradient of that table an ordinary array.

    Returns:
      The function; it returns `(loss, gradients)`, or `((loss, aux), gradients)`.

    Raises:
      ValueError: if mixed is not one of these; when called, if a table is used in another way and
        mixed is "error", or if `where` selects nothing, or a scalar.
      TypeError: when called, if a differentiated leaf is not a real floating array, or the loss is
        not a real scalar.
    """
    return value_and_grad_of_part("value_and_grad", loss_fn, where, argnums, has_aux, mixed)


def grad(
    loss_fn: Callable[..., Any],
    where: Any,
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
    mixed: str = "error",
) -> Callable[..., Any]:
    """Return the function of the gradients of a loss, with a `RowSparse` for chosen tables.

    Like `jax.grad`; see `value_and_grad`.

    Args:
      loss_fn: returns a real scalar, or with `has_aux` a pair of that and anything else.
      where: the tables: a function `where(path, leaf)`, a mask, or a tree of booleans.
      argnums: the argument to differentiate, or a sequence of them.
      has_aux: whether `loss_fn` returns a pair.
      mixed: "error" or "dense": what to do if a table is used for more than lookups.

    Returns:
      The function; it returns the gradients, or `(gradients, aux)`.

    Raises:
      ValueError: as `value_and_grad`.
      TypeError: as `value_and_grad`.
    """
    both = value_and_grad_of_part("grad", loss_fn, where, argnums, has_aux, mixed)

    @functools.wraps(loss_fn, updated=())
    def gradient(*args: Any, **kwargs: Any) -> Any:
        value, gradients = both(*args, **kwargs)
        return (gradients, value[1]) if has_aux else gradients

    return gradient


def value_and_grad_of_part(
    part: str,
    loss_fn: Any,
    where: Any,
    argnums: Any,
    has_aux: bool,
    mixed: str,
    unused: Any = "without rows",
) -> Callable[..., tuple[Any, Any]]:
    """Return `value_and_grad`, with the name of the part in messages.

    With `unused=None`, the gradient of a table that the loss does not use is None.
    """
    if not callable(loss_fn):
        raise TypeError(f"{part}: loss_fn must be a function, got {shown(loss_fn)}.")
    require_choice(part, "mixed", mixed, MIXED)
    single, numbers = _grad_argnums(part, argnums)
    select = _table_selection(part, where)

    @functools.wraps(loss_fn, updated=())
    def value_and_gradient(*args: Any, **kwargs: Any) -> tuple[Any, Any]:
        places = _grad_positions(part, numbers, len(args))
        tree = args[places[0]] if single else tuple(args[i] for i in places)
        structure, leaves = (
            jax.tree.structure(tree),
            _leaves_for_grad(part, tree, select(tree)),
        )

        def of_leaves(*values: Any) -> Any:
            tree = jax.tree.unflatten(structure, values)
            all_args = list(args)
            for i, arg in zip(places, (tree,) if single else tree, strict=True):
                all_args[i] = arg
            return loss_fn(*all_args, **kwargs)

        value, aux, gradients = Loss(part, of_leaves, has_aux, leaves).differentiate(mixed, unused)
        gradients = jax.tree.unflatten(structure, gradients)
        return ((value, aux) if has_aux else value), gradients

    return value_and_gradient


# ---------------------------------------------------------------------------------- the arguments


def _grad_argnums(part: str, argnums: Any) -> tuple[bool, tuple[int, ...]]:
    """Return whether `argnums` is a single number, and the numbers as a tuple."""
    single = hasattr(argnums, "__index__")
    try:
        entries = [argnums] if single else list(argnums)
        numbers = tuple(operator.index(i) for i in entries)
    except TypeError:
        entries, numbers = [], ()
    if not numbers or any(isinstance(i, bool) for i in entries):
        raise TypeError(must_be(part, "argnums", "an int or a sequence of ints", argnums))
    return single, numbers


def _grad_positions(part: str, numbers: tuple[int, ...], count: int) -> list[int]:
    """Return the positions, from 0, that `numbers` stand for among `count` arguments."""
    if not all(-count <= i < count for i in numbers):
        raise TypeError(
            f"{part}: argnums {', '.join(map(str, numbers))} asks for more positional arguments "
            f"than the {count} given."
        )
    places = [i % count for i in numbers]
    if len(set(places)) < len(places):
        raise ValueError(f"{part}: argnums must name each argument once, got {list(numbers)}.")
    return places


def _table_selection(part: str, where: Any) -> Callable[[PyTree], PyTree]:
    """Return the function that resolves `where` for a tree, to a tree of booleans."""
    if not isinstance(where, bool | masks.Mask | FrozenTree):
        leaves = jax.tree.leaves(where)
        if leaves and all(isinstance(leaf, bool | np.bool_) for leaf in leaves):
            where = FrozenTree(jax.tree.map(bool, where))  # a container may be callable, too
        elif is_function(where):
            test = where
            return lambda tree: map_with_paths(lambda p, leaf: bool(test(p, leaf)), tree)
        else:
            raise TypeError(
                f"{part}: where must be a function where(path, leaf), a mask such as "
                f'path_matches("embedding") or a tree of booleans, got {shown(where)}.'
            )
    return lambda tree: masks.resolve(part, where, tree)


def _leaves_for_grad(part: str, tree: PyTree, selected: PyTree) -> list[DifferentiatedLeaf]:
    flat, _ = flatten_with_names(tree)
    leaves = []
    for (path, value), is_table in zip(flat, jax.tree.leaves(selected), strict=True):
        dtype = _dtype_for_grad(value)
        if dtype is None or not jnp.issubdtype(dtype, jnp.floating):
            flaw = f"is a {type(value).__name__}" if dtype is None else f"has dtype {dtype}"
            raise TypeError(
                f"{part}: leaf {path_str(path)} {flaw}; only real floating arrays can be "
                "differentiated. Put None in its place, or pass it in another argument."
            )
        if is_table and not jnp.ndim(value):
            raise ValueError(
                f"{part}: where selects leaf {path_str(path)}, which has shape () and no rows."
            )
        leaves.append(DifferentiatedLeaf(path, jnp.asarray(value), is_table))
    if not any(leaf.is_table for leaf in leaves):
        paths = ", ".join(path_str(leaf.path) for leaf in leaves[:8])
        more = ", ..." if len(leaves) > 8 else ""
        raise ValueError(
            f"{part}: where selects none of the leaves ({paths}{more}). For ordinary gradients "
            f"only, call jax.{part}."
        )
    return leaves


def _dtype_for_grad(x: Any) -> Any:
    """Return the dtype of an array or a number, and None for anything else."""
    if isinstance(x, bool | int | float | complex):
        return jnp.result_type(x)
    return getattr(x, "dtype", None)
