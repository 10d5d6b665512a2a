"""Resizing parameters and states to another number of replicas."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, NoReturn

import jax
import jax.numpy as jnp
import numpy as np

from gradxform.distributed.replicas.mesh import resharding_program
from gradxform.distributed.shares.shared_leaves import is_shared
from gradxform.errors import did_you_mean, leaf_path, must_be, require_choice, require_dict
from gradxform.leaves import dtype_of, is_variable, names_of
from gradxform.leaves.states import kinds_of_params
from gradxform.numerics import at_least_float32
from gradxform.types import PyTree

__all__ = [
    "resize_replicas",
]

WAYS = ("mean", "cycle", "equal", "reset")

# The defaults.
POLICY = {
    "params": "mean",
    "slots": "cycle",
    "counts": "equal",
    "center": "cycle",
    "local_center": "cycle",
    "anchor": "cycle",
    "feedback": "reset",
}
# Fields of states that are copies of the parameters. They are resized as the parameters are, since
# otherwise the next step would undo it.
COPIES = ("slow", "x0", "init_particles", "average", "averages", "z", "x", "master")


class _Place(NamedTuple):
    """The place of a leaf in a tree."""

    path: tuple[Any, ...]
    names: tuple[str, ...]
    in_state: bool


def resize_replicas(
    tree: PyTree,
    new_n: int,
    policy: Mapping[str, str] | None = None,
    *,
    fresh: PyTree | None = None,
) -> PyTree:
    """Resize parameters and states of N replicas to another number of replicas.

    Every array [N, ...] becomes [new_n, ...]. Fields of states that are the same on all replicas
    (annotated `Everywhere`) stay. Use it to continue a run that was saved with 4 replicas with 2 or
    6: restore it in the shapes that were saved, then resize it. Nothing resizes implicitly: arrays
    of 4 replicas are an error for 2.

    There are four ways to resize an array x of N replicas to rows j = 0, ..., new_n - 1:

    - "mean": row j is the mean of all rows, formed in float32 or wider;
    - "cycle": row j is x[j % N];
    - "equal": row j is x[0], and all rows must be equal;
    - "reset": row j comes from the same place in `fresh`.

    The policy maps names to ways. "params" are floating arrays outside of states (a state is a
    NamedTuple), "slots" are floating arrays in states, and "counts" are all arrays that are not
    floating. Any other name is a field or a dict key and applies to all arrays under it; the
    innermost name wins. The defaults are "mean", "cycle" and "equal". By default, centers and
    anchors cycle, because they are the same on all replicas. What a compression still has to send
    is reset, because its pieces belong to N replicas: `fresh` must then have the axis of new_n
    replicas, as `tx.init` returns it under `Replicas.wrap`. Copies of the parameters in states
    (averages, the slow weights of `lookahead`, the starting points of `scale_by_madgrad` and
    `scale_by_cocob`, the masters of 16-bit parameters) are resized as the parameters are. If
    "slots" are reset, counts in states are reset too, because bias corrections depend on them,
    unless the policy names "counts".

    Cycled PRNG keys repeat: replicas j and j + N then draw the same numbers.

    Args:
      tree: any tree with a leading axis of replicas, such as `{"params": ..., "state": ...}`.
      new_n: the new number of replicas, at least 1. If it is N, nothing changes, except that what
        a compression has to send is reset where `fresh` has another shape.
      policy: ways by name, over the defaults.
      fresh: a tree of the same structure for "reset", with an axis of new_n replicas or without.
        Where its arrays are divided over devices, the results lie as they do. Keyword-only.

    Returns:
      The tree with its arrays on the host, as NumPy arrays. Arrays that are divided over several
      devices stay there, and no host holds a whole one.

    Raises:
      TypeError: if `policy` is not a dict.
      ValueError: for a bad number, an unknown way, a name that does not occur in the tree, arrays
        without a common leading axis, or rows that must be equal but are not.
    """
    require_dict("resize_replicas", "policy", policy)
    ways = _ways(policy)
    if not isinstance(new_n, int) or isinstance(new_n, bool) or new_n < 1:
        raise ValueError(must_be("resize_replicas", "new_n", "an int of at least 1", new_n))
    leaves, treedef = jax.tree.flatten(tree)
    shared = is_shared(tree)
    places = list(_places(tree, _Place((), (), False), kinds_of_params(tree)))
    _check_policy_names(policy or {}, places)
    n = _replicas_to_resize(leaves, shared, places)
    if n is None or (n == new_n and fresh is None):
        return tree
    fresh_leaves = [None] * len(leaves) if fresh is None else _fresh_leaves(fresh, treedef)
    resets_counts = (policy or {}).get("slots") == "reset" and "counts" not in (policy or {})
    out = []
    for x, is_shared_leaf, place, new in zip(leaves, shared, places, fresh_leaves, strict=True):
        if is_shared_leaf:
            out.append(x)
            continue
        way = _way(x, place, ways, resets_counts)
        is_piece = way == "reset" and "feedback" in place.names
        if n == new_n and not (is_piece and new is not None and x.shape != new.shape):
            out.append(_resized_lying_as(new, x))
            continue
        out.append(_resized_lying_as(new, _leaf(x, new_n, way, place, new)))
    return jax.tree.unflatten(treedef, out)


def _is_divided(x: Any) -> bool:
    return isinstance(x, jax.Array) and len(x.sharding.device_set) > 1


def _resized_lying_as(fresh: Any, x: Any) -> Any:
    """Return an array on the devices of a fresh one of its shape, if both are on several."""
    if not (_is_divided(fresh) and _is_divided(x)) or x.shape != fresh.shape:
        return x
    return resharding_program(fresh.sharding)(x)


def _ways(policy: Mapping[str, str] | None) -> dict[str, str]:
    """Return the policy over the defaults, once its ways are checked."""
    for name, way in (policy or {}).items():
        require_choice("resize_replicas", f"the policy of {name!r}", way, WAYS)
    return POLICY | dict(policy or {})


def _check_policy_names(policy: Mapping[str, str], places: list[_Place]) -> None:
    known = {name for place in places for name in place.names} | set(POLICY)
    for name in policy:
        if name not in known:
            raise ValueError(
                f"resize_replicas: the policy has {name!r}, but nothing in the tree has that name."
                f"{did_you_mean(name, sorted(known))}"
            )


def _places(x: PyTree, here: _Place, of_params: frozenset[type]) -> Iterator[_Place]:
    """Yield the place of every leaf of `x`, which is itself at `here`, in order."""
    flat, treedef = jax.tree_util.tree_flatten_with_path(x, is_leaf=lambda y: y is not x)
    if treedef == _LEAF:
        yield here
        return
    in_state = here.in_state or (hasattr(type(x), "_fields") and type(x) not in of_params)
    for path, child in flat:
        names = () if is_variable(x) else names_of(path)
        place = _Place((*here.path, *path), (*here.names, *names), in_state)
        yield from _places(child, place, of_params)


_LEAF = jax.tree.structure(0)


def _replicas_to_resize(leaves: list[Any], shared: list[bool], places: list[_Place]) -> int | None:
    """Return the number of replicas of the arrays; None without arrays."""
    per_replica = [
        (x, leaf_path(place.path))
        for x, is_shared_leaf, place in zip(leaves, shared, places, strict=True)
        if not is_shared_leaf
    ]
    if not per_replica:
        return None
    for x, path in per_replica:
        if not jnp.ndim(x):
            raise ValueError(
                f"resize_replicas: {path} is a scalar; it does not have an axis of replicas."
            )
    first, first_path = per_replica[0]
    n = jnp.shape(first)[0]
    for x, path in per_replica:
        if jnp.shape(x)[0] != n:
            raise ValueError(
                f"resize_replicas: {path} of shape {jnp.shape(x)} has {jnp.shape(x)[0]} "
                f"replicas, {first_path} has {n}."
            )
    return n


def _fresh_leaves(fresh: PyTree, treedef: Any) -> list[Any]:
    leaves, other = jax.tree.flatten(fresh)
    if other != treedef:
        raise ValueError("resize_replicas: fresh does not have the structure of the tree.")
    return leaves


def _is_floating(x: Any) -> bool:
    return jnp.issubdtype(dtype_of(x), jnp.inexact)


def _way(x: Any, place: _Place, ways: dict[str, str], resets_counts: bool) -> str:
    """Return the way to resize a leaf."""
    names = [name for name in reversed(place.names) if name in ways and name not in _KINDS]
    if names:
        way = ways[names[0]]
    elif not _is_floating(x):
        way = "reset" if resets_counts and place.in_state else ways["counts"]
    else:
        is_slot = place.in_state and not (_is_resized_as_copy(place) and ways["slots"] != "reset")
        way = ways["slots" if is_slot else "params"]
    return ways["counts"] if way == "mean" and not _is_floating(x) else way


def _is_resized_as_copy(place: _Place) -> bool:
    fields = [k.name for k in place.path if isinstance(k, jax.tree_util.GetAttrKey)]
    return any(name in COPIES for name in fields)


_KINDS = ("params", "slots", "counts")


def _leaf(x: Any, new_n: int, way: str, place: _Place, fresh: Any) -> Any:
    path, n = leaf_path(place.path), jnp.shape(x)[0]
    if way == "reset" and "feedback" in place.names and fresh is not None:
        return _resized_feedback_pieces(x, new_n, path, fresh)
    if way == "reset":
        return _resized_by_reset(x, new_n, path, fresh)
    if jnp.issubdtype(dtype_of(x), jax.dtypes.prng_key):
        data = np.asarray(jax.random.key_data(x))
        rows = _resized_rows(data, new_n, "cycle" if way == "mean" else way, path, n)
        return jax.random.wrap_key_data(jnp.asarray(rows), impl=jax.random.key_impl(x))
    if _is_divided(x):
        return _resized_rows_on_devices(x, new_n, way, path, n)
    return _resized_rows(np.asarray(x), new_n, way, path, n)


def _resized_rows_on_devices(x: jax.Array, new_n: int, way: str, path: str, n: int) -> jax.Array:
    """Return what `_resized_rows` does, from shards to shards."""
    if way == "mean":
        mean = jnp.mean(x, axis=0, dtype=at_least_float32(x.dtype)).astype(x.dtype)
        return jnp.stack([mean] * new_n)
    same = (x == x[:1]) | ((x != x) & (x[:1] != x[:1]))  # a NaN equals itself
    if way == "equal" and not bool(jnp.all(same)):
        _refuse_different(path, n)
    return jnp.stack([x[j % n] for j in range(new_n)])


def _refuse_different(path: str, n: int) -> NoReturn:
    raise ValueError(
        f"resize_replicas: {path} differs between the {n} replicas, but the policy requires "
        'them to be equal; give its name, or "counts", the policy "cycle".'
    )


def _resized_rows(x: np.ndarray, new_n: int, way: str, path: str, n: int) -> np.ndarray:
    if way == "mean":
        mean = np.mean(x, axis=0, dtype=at_least_float32(x.dtype)).astype(x.dtype)
        return np.stack([mean] * new_n)
    # Compare bytes, so that a NaN equals itself.
    if way == "equal" and any(x[i].tobytes() != x[0].tobytes() for i in range(1, n)):
        _refuse_different(path, n)
    return np.stack([x[j % n] for j in range(new_n)])


def _resized_feedback_pieces(x: Any, new_n: int, path: str, fresh: Any) -> Any:
    """Return what a compression has to send in a fresh state; its pieces have other lengths."""
    if jnp.ndim(fresh) != jnp.ndim(x) or jnp.shape(fresh)[0] != new_n:
        raise ValueError(
            f"resize_replicas: {path} of fresh must have an axis of {new_n} replicas and "
            f"{jnp.ndim(x)} axes in all, got shape {jnp.shape(fresh)}; make it with "
            "Replicas.wrap(tx.init)."
        )
    return fresh if _is_divided(fresh) else np.asarray(fresh)


def _resized_by_reset(x: Any, new_n: int, path: str, fresh: Any) -> Any:
    if fresh is None:
        raise ValueError(
            f"resize_replicas: the policy resets {path}; pass fresh=, such as a tree with "
            "tx.init(params) in the place of the state."
        )
    shape = tuple(jnp.shape(x)[1:])
    if dtype_of(fresh) != dtype_of(x) or jnp.shape(fresh) not in (shape, (new_n, *shape)):
        raise ValueError(
            f"resize_replicas: {path} of fresh must have dtype {dtype_of(x)} and shape {shape} or "
            f"{(new_n, *shape)}, got {dtype_of(fresh)} and {jnp.shape(fresh)}."
        )
    if jnp.shape(fresh) != shape:
        return fresh
    if jnp.issubdtype(dtype_of(x), jax.dtypes.prng_key):
        return jnp.stack([fresh] * new_n)
    return np.stack([np.asarray(fresh)] * new_n)
