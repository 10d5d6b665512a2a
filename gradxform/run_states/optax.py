"""Conversion of transforms to Optax, and of states to and from Optax.

Optax is imported only when one of these functions is called.
"""

import functools
import inspect
import sys
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gradxform.base import GradientTransformation, Transform, check_transform
from gradxform.base.methods import BoundMethod
from gradxform.errors import did_you_mean, leaf_path, name_of, shown
from gradxform.leaves import dtype_of, entry_name
from gradxform.numerics import number_rank
from gradxform.schedules.numbers_of_now import of_this_moment
from gradxform.schedules.stateful import WrappedScheduleState
from gradxform.transforms.factored import ScaleBySM3State
from gradxform.transforms.step_size import ScaleByDistanceOverGradientsState
from gradxform.types import OptState, Params, SupportsTransform
from gradxform.values.content import parts_of
from gradxform.wrappers.hyperparams.inject import InjectStatefulHyperparamsState, injected
from gradxform.wrappers.lookahead import LookaheadState, LookaheadWithSlowState
from gradxform.wrappers.low_rank.galore import GaLoreState


def as_optax(tx: Transform) -> Any:
    """Return `tx` as a real `optax.GradientTransformationExtraArgs`.

    Needed only where a library checks for that class, or drops the extra arguments of other
    classes, as `optax.chain` does. Elsewhere a transform works as it is. Equal transforms give
    equal, hashable and picklable results.

    Its states are of Optax's classes, wherever Optax has one of the same name and fields, so that
    `isinstance(state[0], optax.ScaleByAdamState)` holds.

    Args:
      tx: a transform of this library.

    Raises:
      ImportError: if optax is not installed.
      TypeError: if `tx` is not a transform of this library.
    """
    optax = _optax_for_conversion("as_optax")
    check_transform("as_optax", tx, "tx")
    if not isinstance(tx, GradientTransformation):
        raise TypeError(f"as_optax: {name_of(tx)} is not a transform of this library.")
    return optax.GradientTransformationExtraArgs(_InitInOptax(tx, "init"), tx.update)


class _InitInOptax(BoundMethod):
    """The `init` of a transform, which returns a state in Optax's classes.

    The `update` does not need a counterpart: a state keeps the classes that it has.
    """

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return _presented_in_optax(super().__call__(*args, **kwargs))

    def call(self, *args: Any, **kwargs: Any) -> Any:
        return _presented_in_optax(super().call(*args, **kwargs))

    def __reduce__(self):
        return type(self), (self.owner, self.name)


def _presented_in_optax(node: Any) -> Any:
    """Return a state with the classes of Optax where it has them, and ours elsewhere."""
    level = _optax_children(node)
    if level is None:
        return node
    children = [_presented_in_optax(child) for _, child in level[0].values()]
    theirs = None
    if _is_gradxform_state(type(node)) and type(node) not in _TO_OPTAX:
        theirs = _optax_class(type(node))
    return jax.tree.unflatten(level[1], children) if theirs is None else theirs(*children)


def _optax_for_conversion(caller: str) -> Any:
    try:
        import optax
        import optax.contrib
    except ImportError as error:
        raise ImportError(f"{caller}: optax is not installed; install gradxform[optax].") from error
    return optax


# ---------------------------------------------------------------------------------------- states


def from_optax_state(tx: SupportsTransform, state: Any, params: Params) -> OptState:
    """Return Optax's state for the same call as a state of `tx`.

    Most states have the same structure in both libraries: pass Optax's state to `tx.update`, or
    restore its checkpoint onto `tx.init(params)`. This function is for the other cases: the nested
    dicts and lists of a checkpoint restored without a target, and the few states that are stored
    differently here (`sm3`, `galore`, `scale_by_distance_over_gradients`; see the table of
    differences).

    Everything is matched by name. Every array must have the shape that `tx` gives it, and is cast
    to its dtype. Nothing may be left over.

    Args:
      tx: the transform that continues.
      state: Optax's state, as it is, from a checkpoint or `flax.serialization.to_state_dict`.
      params: the parameters, or their shapes and dtypes.

    Raises:
      ValueError: if something is missing, left over or has another shape; with its path.
      TypeError: if something is not an array, or holds another kind of numbers.
    """
    check_transform("from_optax_state", tx, "tx")
    convert_hyperparams = functools.partial(_hyperparams_from_optax, _optax_hyperparams(tx))
    converters = _FROM_OPTAX | dict.fromkeys(_HYPERPARAMS, convert_hyperparams)
    return _optax_fitted(jax.eval_shape(of_this_moment(tx).init, params), state, (), converters)


def to_optax_state(tx: SupportsTransform, state: OptState, params: Params) -> Any:
    """Return a state of `tx` as Optax's state for the same call, in Optax's classes.

    Args:
      tx: the transform of the state.
      state: its state, as it is, from a checkpoint or `flax.serialization.to_state_dict`.
      params: the parameters, or their shapes and dtypes.

    Raises:
      ImportError: if optax is not installed.
      ValueError: if Optax does not have the state, or it is not one of `tx`; with the path.
      TypeError: if something is not an array, or holds another kind of numbers.
    """
    _optax_for_conversion("to_optax_state")
    check_transform("to_optax_state", tx, "tx")
    ours = _optax_fitted(jax.eval_shape(of_this_moment(tx).init, params), state, ())
    convert_hyperparams = functools.partial(_hyperparams_in_optax, _optax_hyperparams(tx))
    converters = _TO_OPTAX | {InjectStatefulHyperparamsState: convert_hyperparams}
    return _state_in_optax(ours, (), converters)


KeyPath = tuple[Any, ...]
# Converts a field of a state: from its shapes and dtypes, Optax's field, and the path.
Converter = Callable[[Any, Any, KeyPath], Any]


def _optax_children(node: Any) -> tuple[dict[str, tuple[Any, Any]], Any] | None:
    """Return a node's children by name, each with its key, and its structure; None for a leaf."""
    flat, treedef = jax.tree_util.tree_flatten_with_path(node, is_leaf=lambda x: x is not node)
    if treedef == jax.tree.structure(0):
        return None
    return {entry_name(path[-1]): (path[-1], child) for path, child in flat}, treedef


def _optax_children_by_name(node: Any) -> dict[str, Any] | None:
    """Return the children of a state, dict or list by name; None for a leaf."""
    if isinstance(node, Mapping):  # keys may be numbers in one place and strings in another
        return {str(name): child for name, child in node.items()}
    level = _optax_children(node)
    return None if level is None else {name: child for name, (_, child) in level[0].items()}


def _optax_fitted(
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
      leaf: the converter of arrays. Defaults to `_fitting_optax_array`.
    """
    level = _optax_children(like)
    if level is None:
        return (leaf or _fitting_optax_array)(like, state, path)
    expected, treedef = level
    actual = _optax_children_by_name(state)
    if actual is None:
        raise TypeError(
            f"interop: {leaf_path(path)} is {shown(state)}, expected {_optax_kind(like)}."
        )
    if hasattr(type(like), "completed"):  # it knows older forms of itself
        actual = type(like).completed(actual)
    _check_optax_names(like, {name: child for name, (_, child) in expected.items()}, actual, path)
    children = []
    for name, (key, child) in expected.items():
        convert = converters.get((type(like), name))
        if name not in actual:  # a child without arrays
            children.append(child)
        elif convert is not None:
            children.append(convert(child, actual[name], (*path, key)))
        else:
            children.append(_optax_fitted(child, actual[name], (*path, key), converters, leaf))
    return jax.tree.unflatten(treedef, children)


def _optax_kind(like: Any) -> str:
    return _state_name_with_article(type(like).__name__)


def _state_name_with_article(name: str) -> str:
    return f"{'an' if name[0] in 'AEIO' else 'a'} {name}"


def _check_optax_names(
    like: Any, expected: dict[str, Any], actual: dict[str, Any], path: KeyPath
) -> None:
    """Require every child with an array to be on both sides."""
    for names, others, verb in ((expected, actual, "lacks"), (actual, expected, "has")):
        for name, child in names.items():
            if name in others or not jax.tree.leaves(child):
                continue
            holds = "holds" if names is expected else "does not hold"
            raise ValueError(
                f"interop: {leaf_path(path)} {verb} {name!r}, which {_optax_kind(like)} {holds}."
                f"{_REMEDIES.get((type(like), name)) or did_you_mean(name, others)}"
                " Was this state made by the same call?"
            )


def _fitting_optax_array(like: Any, x: Any, path: KeyPath) -> Any:
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


# -------------------------------------------------------------- states that are stored differently


def _sm3_vectors_from_optax(like: Any, field: Any, path: KeyPath) -> Any:
    """Return SM3's maxima: the vectors of a parameter's axes, concatenated."""

    def join(like: Any, x: Any, path: KeyPath) -> Any:
        parts = _optax_children_by_name(x)
        if parts is None:  # one vector already
            return _fitting_optax_array(like, x, path)
        vectors = [jnp.asarray(parts[str(i)]) for i in range(len(parts)) if str(i) in parts]
        if not vectors or len(vectors) < len(parts) or any(v.ndim != 1 for v in vectors):
            raise ValueError(
                f"interop: {leaf_path(path)} must be a list of vectors, one for each axis of the "
                f"parameter, got {shown(x)}."
            )
        return _fitting_optax_array(like, jnp.concatenate(vectors), path)

    return _optax_fitted(like, field, path, leaf=join)


def _sm3_vectors_in_optax(vector: Any, like: Any) -> list[Any]:
    """Split a vector into the vectors of its parameter's axes."""
    return jnp.split(vector, np.cumsum(like.shape)[:-1]) if like.ndim else [vector]


def _scalars_from_optax(like: Any, field: Any, path: KeyPath) -> Any:
    """Return arrays of shape (1,) as scalars."""

    def entry(like: Any, x: Any, path: KeyPath) -> Any:
        has_axis = hasattr(x, "shape") and x.shape == (1,)
        return _fitting_optax_array(like, x[0] if has_axis else x, path)

    return _optax_fitted(like, field, path, leaf=entry)


def _galore_projectors_from_optax(like: Any, field: Any, path: KeyPath) -> Any:
    """Return GaLore's projectors, with a scalar for each array that is not projected."""

    def projector(like: Any, x: Any, path: KeyPath) -> Any:
        is_empty = like.shape == () and jnp.shape(x) == (0, 0)
        return _fitting_optax_array(like, x.sum() if is_empty else x, path)

    return _optax_fitted(like, field, path, leaf=projector)


def _galore_projectors_in_optax(state: Any) -> dict[str, Any]:
    """Return GaLore's projectors, without an entry where an array is not projected."""
    return {
        "projector": jax.tree.map(
            lambda x: x if x.ndim else jnp.zeros((0, 0), x.dtype), state.projector
        )
    }


_FROM_OPTAX: dict[Any, Converter] = {
    (GaLoreState, "projector"): _galore_projectors_from_optax,
    (ScaleBySM3State, "mu"): _sm3_vectors_from_optax,
    (ScaleByDistanceOverGradientsState, "grad_sum_of_squares"): _scalars_from_optax,
}
# For a class of states, the fields that Optax stores differently.
_TO_OPTAX: dict[type, Callable[[Any], dict[str, Any]]] = {
    GaLoreState: _galore_projectors_in_optax,
    ScaleBySM3State: lambda state: {"mu": jax.tree.map(_sm3_vectors_in_optax, state.mu, state.nu)},
    ScaleByDistanceOverGradientsState: lambda state: {
        "grad_sum_of_squares": jax.tree.map(jnp.atleast_1d, state.grad_sum_of_squares)
    },
}
_SLOW = (
    " Optax keeps the slow weights in LookaheadParams(fast, slow): give such a pair as params. The "
    "states are LookaheadState(fast_state, steps_since_sync) then, the same in both libraries."
)
_REMEDIES = {(LookaheadWithSlowState, "slow"): _SLOW, (LookaheadState, "slow"): _SLOW}

_HYPERPARAMS = [
    (InjectStatefulHyperparamsState, field) for field in ("hyperparams", "hyperparams_states")
]


def _optax_hyperparams(x: Any) -> dict[str, Any]:
    """Return the arguments in a transform that are hyperparameters only to Optax.

    Optax's `inject_hyperparams` takes a class, such as a dtype, for a schedule, and a seed or a
    size for a number.
    """
    if isinstance(x, injected):
        factory = x.factory.inner_factory
        theirs = getattr(sys.modules.get("optax"), name_of(factory), factory)
        parameters = inspect.signature(theirs).parameters
        arguments = {k: v for k, v in x.others().items() if k not in x.factory.static_args}
        numbers = {k: v for k, v in arguments.items() if type(v) is int}
        defaults = {k: parameters[k].default if k in parameters else None for k in arguments}
        dtypes = {k: _dtype_hyperparam_of_optax(v, defaults[k]) for k, v in arguments.items()}
        return numbers | {k: v for k, v in dtypes.items() if v is not None}
    return {k: v for part in parts_of(x) or () for k, v in _optax_hyperparams(part).items()}


def _dtype_hyperparam_of_optax(x: Any, default: Any) -> Any:
    """Return the dtype that an argument, or else Optax's default for it, names as a class."""
    cls = default if x is None or x == default else x
    try:
        return jnp.dtype(cls) if isinstance(cls, type) else None
    except TypeError:  # a class that is not a dtype
        return None


def _hyperparams_from_optax(static: dict[str, Any], like: Any, field: Any, path: KeyPath) -> Any:
    """Return hyperparameters without those that are only Optax's."""
    actual = _optax_children_by_name(field) or {}
    return _optax_fitted(
        like, {k: x for k, x in actual.items() if k in like or k not in static}, path
    )


def _hyperparams_in_optax(static: dict[str, Any], state: Any) -> dict[str, Any]:
    """Return the hyperparameters with those that are only Optax's."""
    last = jnp.maximum(state.count - 1, 0)  # the step that set them
    dtypes = {k: x for k, x in static.items() if isinstance(x, jnp.dtype)}
    values = {k: last.astype(x) if k in dtypes else jnp.asarray(x) for k, x in static.items()}
    counts = {k: WrappedScheduleState(jnp.array(state.count, copy=True)) for k in dtypes}
    return {
        "hyperparams": state.hyperparams | values,
        "hyperparams_states": state.hyperparams_states | counts,
    }


# ------------------------------------------------------------------------------ Optax's classes


def _state_in_optax(node: Any, path: KeyPath, converters: Mapping[Any, Any]) -> Any:
    """Return a state with every class of gradxform replaced by Optax's of the same name."""
    level = _optax_children(node)
    if level is None:
        return node
    converted = converters[type(node)](node) if type(node) in converters else {}
    children = {
        name: _state_in_optax(converted.get(name, child), (*path, key), converters)
        for name, (key, child) in level[0].items()
    }
    if not _is_gradxform_state(type(node)):
        return jax.tree.unflatten(level[1], children.values())
    return _class_of_optax(type(node), path)(**children)


def _is_gradxform_state(cls: type) -> bool:
    return cls.__module__.partition(".")[0] == "gradxform" and hasattr(cls, "_fields")


def _class_of_optax(ours: Any, path: KeyPath) -> Any:
    """Return Optax's state of the same name and fields, which it must have."""
    theirs = _optax_class(ours)
    if theirs is not None:
        return theirs
    remedy = "".join(_REMEDIES.get((ours, field), "") for field in ours._fields)
    kind = _state_name_with_article(ours.__name__)
    raise ValueError(f"interop: {leaf_path(path)} is {kind}, which Optax does not have.{remedy}")


@functools.cache
def _optax_class(ours: Any) -> Any:
    """Return Optax's state of the same name and fields, or None; some are in private modules."""
    for name, module in sorted(sys.modules.items()):
        if name.partition(".")[0] == "optax":
            theirs = vars(module).get(ours.__name__)
            if getattr(theirs, "_fields", None) == ours._fields:
                return theirs
    return None
