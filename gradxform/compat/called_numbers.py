"""Numbers of an optimizer as functions without arguments: `Adam(beta_1=lambda: 0.9)`."""

import functools
import inspect
import typing
from collections.abc import Callable, Collection, Mapping
from typing import Any, ParamSpec, TypeVar

import jax
import jax.numpy as jnp

from gradxform._jax.versions import is_tracer, is_tracing
from gradxform._names.deferred import signature_of
from gradxform.base import Transform, call_update, locality_of, tell_moved, transform
from gradxform.compat.keras.schedules import LearningRateSchedule
from gradxform.errors import name_of
from gradxform.leaves import Path
from gradxform.numerics import ScheduleError, as_number, value_at
from gradxform.slots import zero_count
from gradxform.types import OptState, Params
from gradxform.values import frozen, keeping_arrays, printed, put_live, thawed
from gradxform.values.arguments import checked_call
from gradxform.values.called import Called, number_or_called
from gradxform.values.content import all_in, is_hashable
from gradxform.values.fields import annotation_kinds
from gradxform.wrappers.hyperparams.arguments import without_aliases

P = ParamSpec("P")
T = TypeVar("T")


def takes_called_numbers(factory: Callable[P, T]) -> Callable[P, T]:
    """Let a factory take a function without arguments for any number, and check its arguments.

    The originals call a number that is a function without arguments. So does a factory, wherever
    the function allows it: `lambda rate=0.1: rate` is 0.1. What needs the count is a schedule.
    """
    signature = signature_of(factory)

    @functools.wraps(factory)
    def made(*args: P.args, **kwargs: P.kwargs) -> Any:
        return with_called_numbers(factory, made, args, kwargs, signature)

    return made


def with_called_numbers(
    factory: Callable[..., Any],
    door: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    signature: inspect.Signature,
    of_step: Collection[str] = (),
) -> Any:
    """Return the optimizer of a factory, of which any number may be a function without arguments.

    Args:
      factory: makes the optimizer.
      door: does the same, and is what the optimizer remembers and calls again with other numbers.
      args: the arguments by position.
      kwargs: the arguments by name.
      signature: the arguments of the factory, with their annotations.
      of_step: the numbers of which the original calls a function with the step, where it can be.
    """
    try:
        arguments = signature.bind(*args, **kwargs).arguments
    except TypeError:  # the factory refuses them in its own words
        arguments = {}
    annotations = {k: p.annotation for k, p in signature.parameters.items()}
    called: dict[str, Called] = {}
    numbers: dict[str, Called] = {}
    arguments = without_aliases(annotations, arguments)
    for k, x in arguments.items():
        kinds = annotation_kinds(annotations[k])
        if float not in kinds or isinstance(x, LearningRateSchedule):
            continue
        if isinstance(x := number_or_called(x, k in of_step), Called):
            # Where a schedule may be, the factory knows what to do.
            (called if any(map(_is_kind, kinds)) else numbers)[k] = x
    if called and not numbers:
        args, kwargs = (), arguments | called
    if not numbers:
        return checked_call(factory, args, dict(kwargs), signature, door.__name__)
    others = {k: frozen(x) for k, x in (arguments | called).items() if k not in numbers}
    tx = called_numbers(door, tuple(numbers.items()), tuple(others.items()))
    tx.check_others()
    return tx


def _is_kind(kind: Any) -> bool:
    return typing.get_origin(kind) is Callable


@transform
class called_numbers(Transform):
    """An optimizer whose numbers functions without arguments return, at each update anew.

    The state is that of the optimizer. `init` and `update` call the functions, outside of
    `jax.jit`; `make_step` and `Optimizer` pass the numbers to their compiled program.

    Args:
      factory: makes the optimizer.
      numbers: pairs of the name of an argument and the function in its place.
      others: pairs of the names of the other arguments and their values.

    Raises:
      TypeError: at init and update, if a function does not return a real number, or under
        `jax.jit`, which would keep its first; a first state that does not depend on it is made.
      ValueError: there, if the factory refuses the number.
    """

    factory: Callable[..., Any]
    numbers: tuple[Any, ...]
    others: tuple[Any, ...]

    handles_rows = True

    def __repr__(self) -> str:
        arguments = ", ".join(f"{k}={printed(x)}" for k, x in (*self.numbers, *self.others))
        return f"{printed(self.factory)}({arguments})"

    def _made(self, numbers: Mapping[str, Any]) -> Any:
        """Return the optimizer with these numbers, arrays or not."""
        others = {k: thawed(x) for k, x in self.others}
        with keeping_arrays():
            return self.factory(**numbers, **others)

    def _numbers_of_now(self) -> dict[str, Any]:
        numbers = {}
        for k, x in self.numbers:
            try:
                numbers[k] = value_at(x, zero_count())
            except ScheduleError as error:
                raise TypeError(f"{name_of(self.factory)}: {k}: {error}") from None
        return numbers

    def of_now(self) -> Any:
        """Return the optimizer with the numbers of this moment."""
        numbers = self._numbers_of_now()
        if not any(map(is_tracer, numbers.values())) and is_hashable(self):
            _check(self, tuple((k, float(x)) for k, x in numbers.items()))
        return self._made(numbers)

    def with_plain_numbers(self) -> Any:
        """Return the optimizer that has the numbers of this moment as constants."""
        # As the functions return them: in 32 bits, 0.9 would be 0.8999999761581421.
        numbers = {k: called(zero_count()) for k, called in self.numbers}
        for k, x in numbers.items():
            as_number(self.factory, k, x)
        return self._made({k: float(x) for k, x in numbers.items()})

    def check_others(self) -> None:
        """Require the other arguments to be right, with any numbers."""
        _ = self._of_any

    @functools.cached_property
    def _of_any(self) -> Any:
        """The optimizer with any numbers, which has the parts and slots of all others."""
        with jax.ensure_compile_time_eval():
            return self._made({k: jnp.asarray(0.5) for k, _ in self.numbers})

    def _of_now_or_any(self) -> Any:
        return self._of_any if is_tracing() and _calls(self) else self.of_now()

    def inner_transforms(self) -> list[Any]:
        """Return the optimizer with some numbers, as a list."""
        return [self._of_any]

    def inner_states(self, state: OptState) -> list[tuple[Path, Any]]:
        """Return that the state is the optimizer's."""
        return [((), self._of_now_or_any())]

    @property
    def locality(self) -> str:
        """How far the optimizer looks."""
        return locality_of(self._of_any)

    def moved(self, state, old, new):
        """Return the state after something else has moved the parameters."""
        return tell_moved(self._of_now_or_any(), state, old, new)

    def init(self, params):
        """Return the state of the optimizer."""
        if is_tracing() and _calls(self) and not self._starts_with_numbers(params):
            return self._of_any.init(params)  # the same with all numbers, and not a constant
        return self.of_now().init(params)

    def _starts_with_numbers(self, params: Params) -> bool:
        """Whether the first state depends on the numbers."""

        def first(numbers: list[Any], params: Params) -> OptState:
            return self._made({k: x for (k, _), x in zip(self.numbers, numbers, strict=True)}).init(
                params
            )

        anything = [jnp.zeros(())] * len(self.numbers)
        program = jax.make_jaxpr(first)(anything, params).jaxpr
        numbers = program.invars[: len(anything)]
        read = [x for eqn in program.eqns for x in eqn.invars] + list(program.outvars)
        return any(x is number for x in read for number in numbers)

    def update(self, updates, state, params=None, **extra):
        """Update the optimizer with the numbers of this moment."""
        return call_update(self.of_now(), updates, state, params, extra)


def _calls(tx: called_numbers) -> bool:
    """Whether functions are called, and do not stand as arguments of a program."""
    return any(isinstance(x, Called) for _, x in tx.numbers)


def check_numbers(tx: Any, live: tuple[Any, ...]) -> None:
    """Require numbers of this moment that their factories take.

    Args:
      tx: a transform with holes for the numbers.
      live: the numbers.
    """
    if live:
        for part in all_in(put_live(tx, tuple(float(x) for x in live))):
            if isinstance(part, called_numbers):
                part.of_now()


@functools.lru_cache(maxsize=256)
def _check(tx: called_numbers, numbers: tuple[tuple[str, float], ...]) -> None:
    """Require numbers that the factory takes."""
    tx.factory(**dict(numbers), **{k: thawed(x) for k, x in tx.others})
