"""Helpers of the factories: their arguments, the originals' checks, parts that read the step."""

import math
import operator
import re
from collections.abc import Callable, Iterable
from typing import Any

import jax
import numpy as np

from gradxform.errors import must_be, shown
from gradxform.leaves import masks
from gradxform.schedules.basic import constant_schedule
from gradxform.schedules.join import join_schedules
from gradxform.schedules.schedule import Schedule
from gradxform.transforms.scaling import scale_by_learning_rate
from gradxform.wrappers.compose import chain
from gradxform.wrappers.external_step import external_step
from gradxform.wrappers.sparse import sparse_semantics


class _Required:
    """The default of a required argument that comes after an optional one."""

    def __repr__(self) -> str:
        return "<required>"


REQUIRED: Any = _Required()


def require_arguments(factory: str, **arguments: Any) -> None:
    """Require a value for every argument."""
    for name, value in arguments.items():
        if value is REQUIRED:
            raise TypeError(f"{factory}: {name} is required.")


def not_below_zero(factory: str, **arguments: Any) -> None:
    """Require every number to be at least 0, as the originals do."""
    for name, value in arguments.items():
        if isinstance(value, int | float) and value < 0:
            raise ValueError(f"{factory}: {name} must be at least 0, got {value!r}.")


def above_zero(factory: str, **arguments: Any) -> None:
    """Require every number to be greater than 0, as the originals do."""
    for name, value in arguments.items():
        if isinstance(value, int | float) and value <= 0:
            raise ValueError(f"{factory}: {name} must be greater than 0, got {value!r}.")


def call_factory(factory: Callable[..., Any], config: dict[str, Any], where: str) -> Any:
    """Return what a factory makes of a config.

    Raises:
      TypeError, ValueError: those of the factory, with the place.
    """
    try:
        return factory(**config)
    except (TypeError, ValueError) as error:
        kind = TypeError if isinstance(error, TypeError) else ValueError
        raise kind(f"{where}: {' '.join(str(error).split())}") from None


def descend(learning_rate: Any) -> Any:
    """Return the part that multiplies by the negative learning rate; a schedule reads the step."""
    return by_step(scale_by_learning_rate(learning_rate), learning_rate)


def by_step(part: Any, *numbers: Any) -> Any:
    """Return `part`, reading the step if any of `numbers` is a function of it."""
    return external_step(part) if any(callable(x) for x in numbers) else part


def at_global_step(factory: str, part: Any, global_step: Any) -> external_step:
    """Return `part`, reading the step from the `global_step` of the original.

    Args:
      factory: the name of the factory, for messages.
      part: the part that reads the step.
      global_step: an integer, which is constant as in the originals; or None for the extra argument
        `step` of `update`.

    Raises:
      TypeError: if `global_step` is neither an integer nor None.
      ValueError: if it is below 0, or does not fit an int32.
    """
    if global_step is None:
        return external_step(part)
    try:
        constant = None if isinstance(global_step, bool) else operator.index(global_step)
    except TypeError:
        constant = None
    if constant is None:
        raise TypeError(
            f"{factory}: global_step must be an integer, which stays the same in every update, or "
            f"None for the extra argument step of update, got {shown(global_step)}."
        )
    not_below_zero(factory, global_step=constant)
    if constant >= 2**31:
        raise ValueError(f"{factory}: global_step must be less than 2**31, got {constant}.")
    return external_step(part, constant)


def with_semantics(kind: str, part: Any, *more: Any) -> chain:
    """Return the chain of the parts, with the given `sparse_semantics`."""
    return chain(sparse_semantics(chain(part, *more) if more else part, kind))


def mask_of_names(factory: str, argument: str, names: Iterable[str] | None) -> masks.Mask | None:
    """Return a mask of the parameters of those names; None if `names` is None."""
    if names is None:
        return None
    if (
        not isinstance(names, Iterable)
        or isinstance(names, str)
        or not all(isinstance(n, str) for n in names)
    ):
        raise TypeError(must_be(factory, argument, "a list of the names of parameters", names))
    pattern = "|".join(re.escape(n) for n in names)
    return masks.path_matches(f"^(?:{pattern})$") if pattern else None


def piecewise(factory: str, boundaries: Any, values: Any) -> Schedule:
    """Return values[i] up to and including boundaries[i], and the last value after all of them."""
    limits = _entries(factory, "boundaries", boundaries)
    rates = _entries(factory, "values", values)
    if len(limits) != len(rates) - 1:
        raise ValueError(
            f"{factory}: values must have one more element than boundaries, got "
            f"{len(rates)} values and {len(limits)} boundaries."
        )
    starts: list[int] = []
    for i, limit in enumerate(limits):
        if not isinstance(limit, int | float | np.integer | np.floating) or type(limit) is bool:
            raise TypeError(must_be(factory, f"boundaries[{i}]", "a number", limit))
        # The next value starts at the first whole step after a boundary.
        if not math.isfinite(limit) or math.floor(limit) < -1:
            raise ValueError(must_be(factory, f"boundaries[{i}]", "finite and at least 0", limit))
        starts.append(math.floor(limit) + 1)
        if i and starts[i - 1] >= starts[i]:
            raise ValueError(
                f"{factory}: boundaries must increase by whole steps, got {shown(limits[i - 1])} "
                f"before {shown(limit)}."
            )
    constants = []
    for i, rate in enumerate(rates):
        try:
            constants.append(constant_schedule(rate))
        except (TypeError, ValueError) as error:
            kind = TypeError if isinstance(error, TypeError) else ValueError
            raise kind(must_be(factory, f"values[{i}]", "a number", rate)) from None
    return join_schedules(tuple(constants), tuple(starts))


def _entries(factory: str, argument: str, entries: Any) -> list[Any]:
    """Return the entries of a list, a tuple or a vector."""
    if isinstance(entries, jax.Array | np.ndarray) and np.ndim(entries) == 1:
        entries = np.asarray(entries).tolist()
    if not isinstance(entries, list | tuple):
        raise TypeError(must_be(factory, argument, "a list of numbers", entries))
    return list(entries)
