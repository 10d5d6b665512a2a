"""Bridges to other libraries; each is imported only when it is used."""

import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gradxform import trees
from gradxform.base import Transform, check_transform
from gradxform.errors import did_you_mean, leaf_path, name_of, shown
from gradxform.transforms.factored import ScaleBySM3State
from gradxform.transforms.step_size import ScaleByDistanceOverGradientsState
from gradxform.types import OptState, Params, SupportsTransform
from gradxform.wrappers.average import LookaheadState


def as_optax(tx: Transform) -> Any:
    """Return `tx` as a real `optax.GradientTransformationExtraArgs`.

    Needed only where a library checks for that class or would drop extra arguments of anything
    else, as `optax.chain` does; elsewhere our transforms can be used as they are. Equal transforms
    give equal, hashable and picklable results.

    Args:
      tx: a transform of this library.

    Raises:
      ImportError: if optax is not installed.
      TypeError: if `tx` is no transform of this library.
    """
    optax = _optax("as_optax")
    check_transform("as_optax", tx, "tx")
    if not isinstance(tx, Transform):
        raise TypeError(f"as_optax: {name_of(tx)} is not a transform of this library.")
    return optax.GradientTransformationExtraArgs(tx.init, tx.update)


def _optax(asker: str) -> Any:
    try:
        import optax
        import optax.contrib
    except ImportError as error:
        raise ImportError(f"{asker}: optax is not installed; install gradxform[optax].") from error
    return optax


# ---------------------------------------------------------------------------------------- states


def from_optax_state(tx: SupportsTransform, state: Any, params: Params) -> OptState:
    """Return the state that Optax has for the same call as a state of `tx`.

    Optax's states are ours, so that a live one can be handed to `tx.update`, and a checkpoint be
    restored onto `tx.init(params)`. This function is for what is neither: the nested dicts and
    lists of a checkpoint that was restored without a target, and the few states that lie
    differently here (`sm3`, `scale_by_distance_over_gradients`; see the table of differences).

    Everything is matched by name. Every array must have the shape that `tx` gives it, and gets its
    dtype; nothing may be left over.

    Args:
      tx: the transform that goes on.
      state: Optax's state, or what a checkpoint or `flax.serialization.to_state_dict` made of it.
      params: the parameters, or their shapes and dtypes.

    Raises:
      ValueError: if something is missing, left over or has another shape; with its path.
      TypeError: if something is no array, or one of another kind of numbers.
    """
    check_transform("from_optax_state", tx, "tx")
    return _fitted(jax.eval_shape(tx.init, params), state, (), _FROM_OPTAX)


def to_optax_state(tx: SupportsTransform, state: OptState, params: Params) -> Any:
    """Return a state of `tx` as Optax's state for the same call, in Optax's classes.

    Args:
      tx: the transform that made the state.
      state: its state, or what a checkpoint or `flax.serialization.to_state_dict` made of it.
      params: the parameters, or their shapes and dtypes.

    Raises:
      ImportError: if optax is not installed.
      ValueError: if Optax has no such state, or `state` is not one of `tx`; with the path.
      TypeError: if something is no array, or one of another kind of numbers.
    """
    _optax("to_optax_state")
    check_transform("to_optax_state", tx, "tx")
    ours = _fitted(jax.eval_shape(tx.init, params), state, (), _OURS)
    return _in_classes_of_optax(ours, ())


KeyPath = tuple[Any, ...]
Making = Callable[[Any, Any, KeyPath], Any]


def _children(node: Any) -> tuple[dict[str, tuple[Any, Any]], Any] | None:
    """Return a node's children by name, each with its key, and its structure; None for a leaf."""
    flat, treedef = jax.tree_util.tree_flatten_with_path(node, is_leaf=lambda x: x is not node)
    if treedef == jax.tree.structure(0):
        return None
    return {trees.entry_name(path[-1]): (path[-1], child) for path, child in flat}, treedef


def _named(given: Any) -> dict[str, Any] | None:
    """Return what lies in a state or in nested dicts and lists, by name; None for a leaf."""
    if isinstance(given, Mapping):  # whose keys may be numbers in one place and strings in another
        return {str(name): child for name, child in given.items()}
    found = _children(given)
    return None if found is None else {name: child for name, (_, child) in found[0].items()}


def _fitted(like: Any, given: Any, path: KeyPath, made: Mapping[Any, Making]) -> Any:
    """Return what `given` holds in the structure of `like`, matched by name.

    Args:
      like: shapes and dtypes, in the structure that is wanted.
      given: a state, or nested dicts and lists.
      path: where this is.
      made: what makes an array of what is given for it: under `None` the usual way, under the
        class of a state and the name of a field the way for that field.
    """
    level = _children(like)
    if level is None:
        return made[None](like, given, path)
    wanted, treedef = level
    have = _named(given)
    if have is None:
        raise TypeError(
            f"interop: {leaf_path(path)} is {shown(given)}, but {_kind(like)} is wanted."
        )
    _check_names(like, {k: child for k, (_, child) in wanted.items()}, have, path)
    children = []
    for name, (key, child) in wanted.items():
        way = made.get((type(like), name), made[None])
        new = (
            _fitted(child, have[name], (*path, key), {**made, None: way}) if name in have else child
        )
        children.append(new)
    return jax.tree.unflatten(treedef, children)


def _kind(like: Any) -> str:
    return f"{'an' if type(like).__name__[0] in 'AEIO' else 'a'} {type(like).__name__}"


def _check_names(like: Any, wanted: dict[str, Any], have: dict[str, Any], path: KeyPath) -> None:
    """Require everything that holds an array to be on both sides."""
    where = leaf_path(path)
    for name, child in wanted.items():
        if name not in have and jax.tree.leaves(child):
            raise ValueError(
                f"interop: {where} has no {name!r}, which {_kind(like)} holds."
                f"{_REMEDIES.get((type(like), name)) or did_you_mean(name, have)}"
                " Was this state made by the same call?"
            )
    for name, child in have.items():
        if name not in wanted and jax.tree.leaves(child):
            raise ValueError(
                f"interop: {where} has {name!r}, which {_kind(like)} does not hold."
                f"{_REMEDIES.get((type(like), name)) or did_you_mean(name, wanted)}"
                " Was this state made by the same call?"
            )


def _array(like: Any, given: Any, path: KeyPath) -> Any:
    """Return an array of the shape and dtype of `like`."""
    number = isinstance(given, bool | int | float | complex)
    if not (number or hasattr(given, "dtype")):
        raise TypeError(
            f"interop: {leaf_path(path)} is {shown(given)}, but an array of shape {like.shape} is "
            "wanted. Was this state made by the same call?"
        )
    dtype = trees.dtype_of(given)
    if jnp.shape(given) != like.shape:
        raise ValueError(
            f"interop: {leaf_path(path)} has shape {jnp.shape(given)}, but {like.shape} is wanted. "
            "Was this state made for other parameters?"
        )
    if dtype == like.dtype:
        return given if isinstance(given, jax.Array) else jnp.asarray(given)
    if not any(jnp.issubdtype(dtype, k) and jnp.issubdtype(like.dtype, k) for k in _KINDS):
        raise TypeError(
            f"interop: {leaf_path(path)} has dtype {dtype}, but {like.dtype} is wanted."
        )
    return jnp.asarray(given).astype(like.dtype)


_KINDS = (jnp.integer, jnp.floating, jnp.complexfloating)


# ------------------------------------------------------------------- states that lie differently


def _joined(like: Any, given: Any, path: KeyPath) -> Any:
    """Return the vectors of one parameter's axes as one."""
    parts = _named(given)
    if parts is None:  # it is one already
        return _array(like, given, path)
    vectors = [jnp.ravel(parts[str(i)]) for i in range(len(parts)) if str(i) in parts]
    if not vectors or len(vectors) < len(parts):
        raise ValueError(
            f"interop: {leaf_path(path)} must be a list of one vector for each axis of its "
            f"parameter, got {', '.join(map(repr, parts)) or 'none'}."
        )
    return _array(like, jnp.concatenate(vectors), path)


def _split(vector: Any, like: Any) -> list[Any]:
    """Return one vector as the vectors of its parameter's axes."""
    return jnp.split(vector, np.cumsum(like.shape)[:-1]) if like.ndim else [vector]


def _as_scalar(like: Any, given: Any, path: KeyPath) -> Any:
    """Return the entry of an array of shape (1,)."""
    return _array(like, given[0] if jnp.shape(given) == (1,) else given, path)


_OURS: dict[Any, Making] = {None: _array}
_FROM_OPTAX: dict[Any, Making] = _OURS | {
    (ScaleBySM3State, "mu"): _joined,
    (ScaleByDistanceOverGradientsState, "grad_sum_of_squares"): _as_scalar,
}
# Of a state of ours the fields that lie differently in Optax.
_TO_OPTAX: dict[type, Callable[[Any], dict[str, Any]]] = {
    ScaleBySM3State: lambda state: {"mu": jax.tree.map(_split, state.mu, state.nu)},
    ScaleByDistanceOverGradientsState: lambda state: {
        "grad_sum_of_squares": jax.tree.map(jnp.atleast_1d, state.grad_sum_of_squares)
    },
}
_REMEDIES = {
    (LookaheadState, "slow"): (
        " Optax keeps the slow weights in LookaheadParams(fast, slow): give such a pair as params, "
        "train it, and let the state have none (state._replace(slow=None))."
    ),
}


def _in_classes_of_optax(node: Any, path: KeyPath) -> Any:
    """Return a state with every class of ours replaced by Optax's of the same name."""
    level = _children(node)
    if level is None:
        return node
    changed = _TO_OPTAX.get(type(node), lambda _: {})(node)
    below = {
        name: _in_classes_of_optax(changed.get(name, child), (*path, key))
        for name, (key, child) in level[0].items()
    }
    if not _is_ours(type(node)):
        return jax.tree.unflatten(level[1], below.values())
    kind = _class_of_optax(type(node).__name__, path)
    for name, child in below.items():
        if name not in kind._fields and jax.tree.leaves(child):
            remedy = _REMEDIES.get((type(node), name), "")
            raise ValueError(
                f"interop: {leaf_path(path)} has {name!r}, which {kind.__name__} of Optax does not "
                f"hold.{remedy}"
            )
    return kind(**{name: below[name] for name in kind._fields})


def _is_ours(cls: type) -> bool:
    return cls.__module__.partition(".")[0] == "gradxform" and hasattr(cls, "_fields")


def _class_of_optax(name: str, path: KeyPath) -> Any:
    """Return Optax's state of that name; some are in its private modules only."""
    for module in _modules_of_optax():
        found = vars(module).get(name)
        if isinstance(found, type) and hasattr(found, "_fields"):
            return found
    raise ValueError(f"interop: {leaf_path(path)} is a {name}, which Optax does not have.")


def _modules_of_optax() -> Iterator[Any]:
    for name in sorted(sys.modules):
        if name.partition(".")[0] == "optax" and sys.modules[name] is not None:
            yield sys.modules[name]
