"""Names for the arrays of a state, and the list of weights that they make."""

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from gradxform.compat.keras import weights as keras_weights
from gradxform.compat.tf1 import checkpoints as tf1_checkpoints
from gradxform.errors import did_you_mean, leaf_path, name_of, shown
from gradxform.leaves import is_hole, with_paths
from gradxform.leaves.states import holds_states, kinds_of_params
from gradxform.run_states.slot_names import get_slots
from gradxform.types import OptState, Params, PyTree

# A weight is the name of an array, and the array.
Weights = list[tuple[str, Any]]


@dataclass(frozen=True)
class StateNames:
    """One way to call what is in a state; every choice of `Optimizer(names=)` is one.

    Args:
      slots: returns for `(tx, state)` the slots by name: trees like the parameters, or scalars.
      weights: returns for `(tx, state, params, iterations)` the weights in their order; of the
        parameters it needs only the shapes.
      with_weights: returns for `(tx, state, params, arrays)` the state with these weights, and the
        iterations; None if they are not among the weights.
    """

    slots: Callable[[Any, OptState], dict[str, PyTree]]
    weights: Callable[[Any, OptState, Params, int], Weights]
    with_weights: Callable[[Any, OptState, Params, Sequence[Any]], tuple[OptState, int | None]]


class _NamedField(NamedTuple):
    """A field of a state: what it holds, and where it is."""

    name: str
    place: tuple[str, ...]  # all keys, fields and indices that lead to it, with its name
    value: PyTree


def _fields(
    state: Any, of_params: Collection[type], place: tuple[str, ...] = ()
) -> Iterator[_NamedField]:
    """Yield the fields of all states in a state, in the order of its leaves.

    NamedTuples of the classes `of_params` are not states.
    """
    if is_hole(state):
        return
    children: list[tuple[str, Any]] = []
    names = getattr(state, "_fields", None)
    if names is not None:
        children = list(zip(names, state, strict=True))
    elif isinstance(state, Mapping):  # in the order in which JAX flattens it
        children = [(str(k), state[k]) for k in (sorted(state) if type(state) is dict else state)]
    elif isinstance(state, tuple | list):
        children = [(str(i), x) for i, x in enumerate(state)]
    for name, x in children:
        here = (*place, name)
        if names is not None and not holds_states(x, of_params):
            if jax.tree.leaves(x):
                yield _NamedField(name, here, x)
        else:
            yield from _fields(x, of_params, here)


def own_slots(tx: Any, state: OptState) -> dict[str, PyTree]:
    """Return the fields of a state by name; of several with one name, by all that leads there."""
    fields = list(_fields(state, kinds_of_params(state)))
    count = Counter(field.name for field in fields)
    return {("/".join(f.place) if count[f.name] > 1 else f.name): f.value for f in fields}


def _own_weights(tx: Any, state: OptState, params: Params, iterations: int) -> Weights:
    weights: Weights = [("iterations", iterations)]
    for name, value in own_slots(tx, state).items():
        for path, leaf in with_paths(value):
            weights += [("/".join((name, *path)), x) for x in jax.tree.leaves(leaf)]
    return weights


def _with_own_weights(
    tx: Any, state: OptState, params: Params, arrays: Sequence[Any]
) -> tuple[OptState, int | None]:
    names = [name for name, _ in _own_weights(tx, state, params, 0)]
    check_count(names, arrays)
    iterations = as_like(names[0], arrays[0], jnp.zeros((), jnp.int32))
    old, treedef = jax.tree.flatten(state)
    new = [as_like(*row) for row in zip(names[1:], arrays[1:], old, strict=True)]
    return jax.tree.unflatten(treedef, new), int(iterations)


def check_count(names: Sequence[str], arrays: Sequence[Any]) -> None:
    """Require one array for every weight."""
    if len(arrays) != len(names):
        listed = ", ".join(map(repr, names[:8])) + (", ..." if len(names) > 8 else "")
        raise ValueError(
            f"Optimizer: set_weights needs {len(names)} arrays ({listed}), got {len(arrays)}. Were "
            "these weights of another optimizer?"
        )


def as_like(name: str, new: Any, old: Any) -> Any:
    """Return a weight as an array of JAX like the old one, which must have its shape and kind."""
    if _is_prng_key(old):
        return _key_like(name, new, old)
    array = _array(new)
    if array.shape != jnp.shape(old):
        raise ValueError(
            f"Optimizer: the weight {name!r} has shape {jnp.shape(old)}, got {array.shape}."
        )
    dtype = jnp.result_type(old)
    kinds = jnp.bool_, jnp.integer, jnp.floating, jnp.inexact  # real numbers are complex ones too
    kind = next(k for k in kinds if jnp.issubdtype(dtype, k))
    if not jnp.issubdtype(array.dtype, kind):
        raise TypeError(
            f"Optimizer: the weight {name!r} has dtype {dtype}, got {array.dtype} ({shown(new)})."
        )
    if jnp.issubdtype(dtype, jnp.integer) and array.size:
        # Integers of a state count steps, or are codes, unless one of them is negative already.
        least = 0 if np.min(np.asarray(old)) >= 0 else int(jnp.iinfo(dtype).min)
        most = int(jnp.iinfo(dtype).max)
        if np.min(array) < least or np.max(array) > most:
            raise ValueError(
                f"Optimizer: the weight {name!r} must be in [{least}, {most}], got {shown(new)}."
            )
    return jnp.array(array, dtype)


def _key_like(name: str, new: Any, old: Any) -> Any:
    """Return a random key from its words, as `get_weights` returns them, or from a key."""
    words = jax.eval_shape(jax.random.key_data, old)
    is_key = _is_prng_key(new)
    array = _array(jax.random.key_data(new) if is_key else new)
    wrong = array.shape != words.shape or not jnp.issubdtype(array.dtype, jnp.integer)
    most = int(jnp.iinfo(words.dtype).max)
    if wrong or np.min(array, initial=0) < 0 or np.max(array, initial=0) > most:
        raise ValueError(
            f"Optimizer: the weight {name!r} is a random key, and needs its words, integers in [0, "
            f"{most}] of shape {words.shape}, as jax.random.key_data returns them; got shape "
            f"{array.shape} and dtype {array.dtype} ({shown(new)})."
        )
    return jax.random.wrap_key_data(jnp.asarray(array, words.dtype), impl=jax.random.key_impl(old))


def _array(x: Any) -> np.ndarray:
    """Return an array; one of objects for what cannot be one."""
    try:
        return np.asarray(x)
    except (TypeError, ValueError):
        return np.asarray(None)


def fitting_state(tx: Any, state: OptState, like: OptState) -> OptState:
    """Return a state that was set, and require it to be like that of `init`."""
    wanted = jax.tree_util.tree_flatten_with_path(like)
    if jax.tree.structure(state) != wanted[1]:
        raise TypeError(
            f"Optimizer: the state must have the structure of {name_of(tx)}'s init, got "
            f"a {type(state).__name__} of another. Was it made by another transform's init?"
        )
    for (path, old), new in zip(wanted[0], jax.tree.leaves(state), strict=True):
        if jnp.shape(new) != jnp.shape(old):
            raise ValueError(
                f"Optimizer: the state's {leaf_path(path)} must have shape {jnp.shape(old)}, "
                f"got {jnp.shape(new)}. Was it made for other parameters?"
            )
    return state


def as_numpy(x: Any) -> np.ndarray:
    """Return a copy of an array for the host; of a random key, its words."""
    return np.array(jax.random.key_data(x) if _is_prng_key(x) else x)


def _is_prng_key(x: Any) -> bool:
    return isinstance(x, jax.Array) and jnp.issubdtype(x.dtype, jax.dtypes.prng_key)


def _state_names_of_keras(version: int, style: str) -> StateNames:
    """Return the names and the order of Keras 2 or 3."""

    def weights(tx: Any, state: OptState, params: Params, iterations: int) -> Weights:
        return list(keras_weights.named_weights("Optimizer", tx, state, params, version))

    def with_weights(
        tx: Any, state: OptState, params: Params, arrays: Sequence[Any]
    ) -> tuple[OptState, int | None]:
        new = keras_weights.with_weights(tx, state, params, arrays, version)
        return new, int(weights(tx, new, params, 0)[0][1])

    return StateNames(lambda tx, state: get_slots(tx, state, style), weights, with_weights)


def _tf1_weights(tx: Any, state: OptState, params: Params, iterations: int) -> Weights:
    """Return the variables of TensorFlow 1's optimizer, sorted by name, as it does."""
    param_names = {"/".join(path) for path, _ in with_paths(params)}
    absent = jax.tree.map(lambda p: np.broadcast_to(np.float32(0), p.shape), params)
    variables = tf1_checkpoints.to_checkpoint(tx, state, absent)
    return sorted((name, x) for name, x in variables.items() if name not in param_names)


def _with_tf1_weights(
    tx: Any, state: OptState, params: Params, arrays: Sequence[Any]
) -> tuple[OptState, int | None]:
    old = dict(_tf1_weights(tx, state, params, 0))
    names = [*old]
    check_count(names, arrays)
    arrays = [x if hasattr(x, "dtype") else _array(x) for x in arrays]
    for name, new in zip(names, arrays, strict=True):
        if np.iscomplexobj(new) and not np.iscomplexobj(old[name]):
            raise TypeError(
                f"Optimizer: the weight {name!r} has dtype {old[name].dtype}, got {shown(new)}."
            )
    variables = dict(zip(names, arrays, strict=True))
    return tf1_checkpoints.with_variables(tx, state, params, variables), None


NAMES = {
    "gradxform": StateNames(own_slots, _own_weights, _with_own_weights),
    "tf1": StateNames(
        lambda tx, state: get_slots(tx, state, "tf1"), _tf1_weights, _with_tf1_weights
    ),
    "keras": _state_names_of_keras(2, "keras"),
    "keras3": _state_names_of_keras(3, "keras3"),
}


def names_of(choice: Any) -> StateNames:
    """Return the way of naming with that name."""
    if not isinstance(choice, str) or choice not in NAMES:
        listed = ", ".join(map(repr, NAMES))
        raise ValueError(
            f"Optimizer: names must be {'one of ' * (len(NAMES) > 1)}{listed}, got "
            f"{shown(choice)}.{did_you_mean(choice, NAMES)}"
        )
    return NAMES[choice]
