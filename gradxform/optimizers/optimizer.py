"""The decorator of optimizers, and the parts that several of them share."""

import functools
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, cast

from gradxform._names.deferred import signature_of
from gradxform.base import Transform
from gradxform.interop import identity
from gradxform.transforms.momentum import trace
from gradxform.transforms.scaling import add_decayed_weights, scale_by_learning_rate
from gradxform.types import DType, ScalarOrSchedule, StaticMask
from gradxform.values.arguments import checked_call
from gradxform.values.docstrings import completed_doc
from gradxform.values.registry import register
from gradxform.wrappers.compose import chain

__all__ = [
    "optimizer",
]

F = TypeVar("F", bound=Callable[..., Transform])
T = TypeVar("T", bound=Transform)

# The optimizers that have been loaded, by name; `by_name.py` has all.
LOADED: dict[str, Callable[..., Transform]] = {}


def optimizer(function: F) -> F:
    """Register a function that returns a transform, check its arguments, complete its docstring.

    The docstring describes only the arguments that differ from those of its parts. For the others,
    it names the parts: "See `trace` and `scale_by_learning_rate` for the other arguments." It says
    nothing of the `weight_decay` and the `weight_decay_mask` of `decayed_descent`, nor of a
    reference that is the first part's.
    """

    @functools.wraps(function)
    def made(*args: Any, **kwargs: Any) -> Transform:
        tx = checked_call(function, args, kwargs)
        object.__setattr__(tx, "written_as", function.__name__)
        return tx

    made.__doc__ = completed_doc(function, otherwise=decayed_descent)
    register(function.__name__, made)
    LOADED[function.__name__] = made
    return cast(F, made)


def with_arguments(part: Callable[..., T], arguments: Mapping[str, Any], **others: Any) -> T:
    """Return a part of an optimizer, made of those of its arguments that have the part's names.

    What shares a name means the same: docstrings are completed by names, too.

    Args:
      part: a transform or an optimizer.
      arguments: what the optimizer got, `locals()` at its beginning.
      **others: arguments of the part that the optimizer does not have, or calls otherwise.
    """
    return part(**{k: x for k, x in arguments.items() if k in _arguments(part)} | others)


@functools.cache
def _arguments(part: Callable[..., Any]) -> frozenset[str]:
    return frozenset(signature_of(part).parameters)


def trace_or_identity(
    name: str,
    momentum: float | None,
    nesterov: bool,
    accumulator_dtype: DType = None,
) -> trace | identity:
    """Return `trace`, or `identity` without a momentum.

    Raises:
      ValueError: without a momentum, if an argument is set that only `trace` reads.
    """
    if momentum is not None:
        return trace(momentum, nesterov, accumulator_dtype)
    trace(0.0, nesterov, accumulator_dtype)  # check the types
    for argument, value in (("nesterov", nesterov), ("accumulator_dtype", accumulator_dtype)):
        if value:
            raise ValueError(f"{name}: {argument}={value!r} does nothing without a momentum.")
    return identity()


def decayed_descent(
    name: str,
    direction: Transform,
    learning_rate: ScalarOrSchedule,
    weight_decay: ScalarOrSchedule | None,
    weight_decay_mask: StaticMask | None,
) -> chain:
    """Return a descent along `direction`, with decoupled weight decay unless that is None.

    Args:
      name: the name of the recipe.
      direction: what the learning rate multiplies.
      learning_rate: at least 0, or a schedule.
      weight_decay: the multiple of the parameter that is added to the direction, not to the
        gradient, at least 0, or a schedule; the learning rate multiplies it. Defaults to no decay.
      weight_decay_mask: which parameters decay, such as `ndim_at_least(2)`. Defaults to all.

    Raises:
      ValueError: without a weight decay, if there is a mask.
    """
    if weight_decay is not None:
        return with_weight_decay(direction, learning_rate, weight_decay, weight_decay_mask)
    if weight_decay_mask is not None:
        raise ValueError(f"{name}: weight_decay_mask does nothing without a weight_decay.")
    return chain(direction, scale_by_learning_rate(learning_rate))


def with_weight_decay(
    direction: Transform,
    learning_rate: ScalarOrSchedule,
    weight_decay: ScalarOrSchedule | None,
    mask: StaticMask | None,
    by_learning_rate: bool = True,
) -> chain:
    """Return a descent along `direction` with decoupled weight decay, unless that is None.

    Args:
      direction: what the learning rate multiplies.
      learning_rate: as in `scale_by_learning_rate`.
      weight_decay: as in `add_decayed_weights`.
      mask: as in `add_decayed_weights`.
      by_learning_rate: whether the learning rate multiplies the decay too.
    """
    rate = scale_by_learning_rate(learning_rate)
    if weight_decay is None:
        return decayed_descent("add_decayed_weights", direction, learning_rate, None, mask)
    if by_learning_rate:
        return chain(direction, add_decayed_weights(weight_decay, mask), rate)
    decay = add_decayed_weights(weight_decay, mask, flip_sign=True)
    return chain(direction, rate, decay)
