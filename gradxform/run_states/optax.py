"""Conversion of transforms to Optax, and of states to and from Optax.

Optax is imported only when one of these functions is called.
"""

import functools
import sys
from collections.abc import Mapping
from typing import Any

import jax

from gradxform.base import GradientTransformation, Transform, check_transform
from gradxform.base.methods import BoundMethod
from gradxform.errors import leaf_path, name_of
from gradxform.run_states.optax_differences import (
    FROM_OPTAX,
    HYPERPARAMS,
    TO_OPTAX,
    hyperparams_from_optax,
    hyperparams_in_optax,
    optax_hyperparams,
)
from gradxform.run_states.optax_fields import (
    REMEDIES,
    KeyPath,
    optax_children,
    optax_fitted,
    state_name_with_article,
)
from gradxform.schedules.numbers_of_now import of_this_moment
from gradxform.types import OptState, Params, SupportsTransform
from gradxform.wrappers.hyperparams.inject import InjectStatefulHyperparamsState


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
    return optax.GradientTransformationExtraArgs(_Init(tx, "init"), tx.update)


class _Init(BoundMethod):
    """The `init` of a transform, which returns a state in Optax's classes.

    The `update` does not need a counterpart: a state keeps the classes that it has.
    """

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return _presented(super().__call__(*args, **kwargs))

    def call(self, *args: Any, **kwargs: Any) -> Any:
        return _presented(super().call(*args, **kwargs))

    def __reduce__(self):
        return type(self), (self.owner, self.name)


def _presented(node: Any) -> Any:
    """Return a state with the classes of Optax where it has them, and ours elsewhere."""
    level = optax_children(node)
    if level is None:
        return node
    children = [_presented(child) for _, child in level[0].values()]
    theirs = None
    if _is_gradxform_state(type(node)) and type(node) not in TO_OPTAX:
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
    convert_hyperparams = functools.partial(hyperparams_from_optax, optax_hyperparams(tx))
    converters = FROM_OPTAX | dict.fromkeys(HYPERPARAMS, convert_hyperparams)
    return optax_fitted(jax.eval_shape(of_this_moment(tx).init, params), state, (), converters)


def fitted_state(
    caller: str, tx: SupportsTransform, state: Any, params: Params, remedy: str
) -> OptState:
    """Return a state in the structure that `tx.init(params)` has, for the function `caller`."""
    try:
        return from_optax_state(tx, state, params)
    except (TypeError, ValueError) as error:
        detail = str(error).removeprefix("interop: ")
        raise type(error)(
            f"{caller}: the state is not one of {name_of(tx)} for these parameters: {detail} "
            f"{remedy}"
        ) from None


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
    ours = optax_fitted(jax.eval_shape(of_this_moment(tx).init, params), state, ())
    convert_hyperparams = functools.partial(hyperparams_in_optax, optax_hyperparams(tx))
    converters = TO_OPTAX | {InjectStatefulHyperparamsState: convert_hyperparams}
    return _state_in_optax(ours, (), converters)


# ------------------------------------------------------------------------------ Optax's classes


def _state_in_optax(node: Any, path: KeyPath, converters: Mapping[Any, Any]) -> Any:
    """Return a state with every class of gradxform replaced by Optax's of the same name."""
    level = optax_children(node)
    if level is None:
        return node
    converted = converters[type(node)](node) if type(node) in converters else {}
    children = {
        name: _state_in_optax(converted.get(name, child), (*path, key), converters)
        for name, (key, child) in level[0].items()
    }
    if not _is_gradxform_state(type(node)):
        return jax.tree.unflatten(level[1], children.values())
    return _class(type(node), path)(**children)


def _is_gradxform_state(cls: type) -> bool:
    return cls.__module__.partition(".")[0] == "gradxform" and hasattr(cls, "_fields")


def _class(ours: Any, path: KeyPath) -> Any:
    """Return Optax's state of the same name and fields, which it must have."""
    theirs = _optax_class(ours)
    if theirs is not None:
        return theirs
    remedy = "".join(REMEDIES.get((ours, field), "") for field in ours._fields)
    kind = state_name_with_article(ours.__name__)
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
