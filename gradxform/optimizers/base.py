"""What the famous optimizers share: their table by name."""

from collections.abc import Callable
from typing import Any, TypeVar

from gradxform.base import Transform
from gradxform.functions import identity
from gradxform.registry import register
from gradxform.transforms.momentum import trace

F = TypeVar("F", bound=Callable[..., Transform])

# Every optimizer by name: what command lines and configs can ask for.
OPTIMIZERS: dict[str, Callable[..., Transform]] = {}


def optimizer(function: F) -> F:
    """Register a function that returns a transform under its own name."""
    register(function.__name__, function)
    OPTIMIZERS[function.__name__] = function
    return function


def momentum_or_none(
    name: str, momentum: Any, nesterov: bool, accumulator_dtype: Any = None
) -> trace | identity:
    """Return `trace`; without momentum nothing, refusing the arguments that only it reads."""
    made = trace(0.0 if momentum is None else momentum, nesterov, accumulator_dtype)
    if momentum is not None:
        return made
    for field, given in (("nesterov", nesterov), ("accumulator_dtype", accumulator_dtype)):
        if given:
            raise ValueError(f"{name}: {field}={given!r} has no effect without a momentum.")
    return identity()
