"""Fit states of Optax into ours, matched by name: from its classes, or nested dicts and lists."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from gradxform.errors import did_you_mean, leaf_path, shown
from gradxform.leaves import dtype_of, entry_name
from gradxform.numerics import number_rank
from gradxform.wrappers.lookahead import LookaheadState, LookaheadWithSlowState

KeyPath = tuple[Any, ...]
# Converts a field of a state: from its shapes and dtypes, Optax's field, and the path.
Converter = Callable[[Any, Any, KeyPath], Any]

_SLOW = (
    " Optax keeps the slow weights in LookaheadParams(fast, slow): give such a pair as params. The "
    "states are LookaheadState(fast_state, steps_since_sync) then, the same in both libraries."
)
REMEDIES = {(LookaheadWithSlowState, "slow"): _SLOW, (LookaheadState, "slow"): _SLOW}


def optax_children(node: Any) -> tuple[dict[str, tuple[Any, Any]], Any] | None:
    """Return a node's children by name, each with its key, and its structure; None for a leaf."""
    flat, treedef = jax.tree_util.tree_flatten_with_path(node, is_leaf=lambda x: x is not node)
    if treedef == jax.tree.structure(0):
        return None
    return {entry_name(path[-1]): (path[-1], child) for path, child in flat}, treedef


def optax_children_by_name(node: Any) -> dict[str, Any] | None:
    """Return the children of a state, dict or list by name; None for a leaf."""
    if isinstance(node, Mapping):  # keys may be numbers in one place and strings in another
        return {str(name): child for name, child in node.items()}
    level = optax_children(node)
    return None if level is None else {name: child for name, (_, child) in level[0].items()}


def optax_fitted(
    like: Any,
    state: Any,
    path: KeyPath,
    converters: Mapping[Any, Converter] = {},
    leaf: Converter | None = None,
) -> Any:
    """Return the arrays of `state` in the structure of `like`, matched by name.

    Args:
      like: shapes and dtypes, in the structure to return.
      state: a state, or nested dicts and lists.
      path: the path of `state`, for messages.
      converters: converters of fields, by the class of the state and the name of the field.
      leaf: the converter of arrays. Defaults to `fitting_optax_array`.
    """
    level = optax_children(like)
    if level is None:
        return (leaf or fitting_optax_array)(like, state, path)
    expected, treedef = level
    actual = optax_children_by_name(state)
    if actual is None:
        raise TypeError(f"interop: {leaf_path(path)} is {shown(state)}, expected {_kind(like)}.")
    _check_names(like, {name: child for name, (_, child) in expected.items()}, actual, path)
    children = []
    for name, (key, child) in expected.items():
        convert = converters.get((type(like), name))
        if name not in actual:  # a child without arrays
            children.append(child)
        elif convert is not None:
            children.append(convert(child, actual[name], (*path, key)))
        else:
            children.append(optax_fitted(child, actual[name], (*path, key), converters, leaf))
    return jax.tree.unflatten(treedef, children)


def _kind(like: Any) -> str:
    return state_name_with_article(type(like).__name__)


def state_name_with_article(name: str) -> str:
    """Return the name of a class of states with its article, for messages."""
    return f"{'an' if name[0] in 'AEIO' else 'a'} {name}"


def _check_names(
    like: Any, expected: dict[str, Any], actual: dict[str, Any], path: KeyPath
) -> None:
    """Require every child with an array to be on both sides."""
    for names, others, verb in ((expected, actual, "lacks"), (actual, expected, "has")):
        for name, child in names.items():
            if name in others or not jax.tree.leaves(child):
                continue
            holds = "holds" if names is expected else "does not hold"
            raise ValueError(
                f"interop: {leaf_path(path)} {verb} {name!r}, which {_kind(like)} {holds}."
                f"{REMEDIES.get((type(like), name)) or did_you_mean(name, others)}"
                " Was this state made by the same call?"
            )


def fitting_optax_array(like: Any, x: Any, path: KeyPath) -> Any:
    """Return `x` as an array with the shape and dtype of `like`."""
    is_number = isinstance(x, bool | int | float | complex)
    if not (is_number or hasattr(x, "dtype")):
        raise TypeError(
            f"interop: {leaf_path(path)} is {shown(x)}, expected an array of shape {like.shape}. "
            "Was this state made by the same call?"
        )
    dtype = dtype_of(x)
    if jnp.shape(x) != like.shape:
        raise ValueError(
            f"interop: {leaf_path(path)} has shape {jnp.shape(x)}, expected {like.shape}. "
            "Was this state made for other parameters?"
        )
    if dtype == like.dtype:
        return x if isinstance(x, jax.Array) else jnp.asarray(x, dtype)
    # An integer may stand for a real number, such as a learning rate of 1, but not the reverse.
    if number_rank(dtype) > number_rank(like.dtype) or not number_rank(dtype):
        raise TypeError(f"interop: {leaf_path(path)} has dtype {dtype}, expected {like.dtype}.")
    return jnp.asarray(x).astype(like.dtype)
