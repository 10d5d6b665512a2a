"""Hyperparameters that can be read and changed during training."""

import inspect
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from gradxform._names.deferred import signature_of
from gradxform._names.guesses import argument_suggestion
from gradxform.base import (
    Transform,
    call_update,
    check_transform,
    locality_of,
    tell_moved,
    transform,
)
from gradxform.errors import did_you_mean, name_of, shown
from gradxform.leaves import Path, widest_dtype
from gradxform.leaves.states import check_state
from gradxform.numerics import at_least_float32, cast, safe_increment, scalar_dtype, scalars_as
from gradxform.slots import zero_count
from gradxform.types import Array, DType, Key, OptState, Params, StatefulSchedule, Updates
from gradxform.values import Value, frozen, keeping_arrays, printed, thawed
from gradxform.values.arguments import with_checked_arguments
from gradxform.values.content import flaw_of
from gradxform.values.field_kinds import static_key
from gradxform.values.fields import annotation_kinds, check_schedule, normalized_value, value
from gradxform.values.known_arguments import own_name
from gradxform.wrappers.hyperparams.arguments import (
    annotations_of,
    is_default,
    split_arguments,
    without_aliases,
)
from gradxform.wrappers.hyperparams.schedule_states import (
    checked_states,
    extra_names as schedule_extra_names,
    first_state,
    is_stateful,
    next_state,
    value_in,
    with_state,
)
from gradxform.wrappers.one_pass import call_update_params

__all__ = [
    "inject_hyperparams",
    "inject_stateful_hyperparams",
    "InjectHyperparamsState",
    "InjectStatefulHyperparamsState",
]


class InjectHyperparamsState(NamedTuple):
    """State of Optax's `inject_hyperparams` before 0.1.9, so that old pickles can be read."""

    count: Array  # int32 scalar; the number of updates so far
    hyperparams: Any  # a dict of scalars
    inner_state: Any  # the inner state


class InjectStatefulHyperparamsState(NamedTuple):
    """State of a transform made by `inject_hyperparams`."""

    count: Array  # int32 scalar; the number of updates so far
    hyperparams: Any  # a dict of scalars; set by the last update, read by the next
    hyperparams_states: Any  # a dict with one state for each schedule
    inner_state: Any  # the inner state


@value
class inject_hyperparams(Value):
    """Keep the hyperparameters of an optimizer in its state, where they can be read and set.

    `inject_hyperparams(adamw)(learning_rate=1e-3)` is an adamw with
    `state.hyperparams["learning_rate"]`. Any number may be a schedule, which is evaluated at every
    update. The others can be set between updates, also in a jitted step, without compiling again.
    A `StatefulSchedule` has a state of its own, in `state.hyperparams_states`, and is given the
    extra arguments of the update that it names.
    Hyperparameters are float32, or float64 for float64 parameters, and keep the dtype that init
    gives them. Arguments that decide shapes, keys and dtypes stay out of the state if the factory
    annotates them so (`gradxform.types.Size`, `Key`, `DType`, `StaticTree`, `Fixed`), and so do
    those whose 0 leaves a part out (`ZeroIsNone`) where they are 0; name others in `static_args`.

    Args:
      inner_factory: a transform class or an optimizer function, of this library or another.
      static_args: the names of arguments to keep out of the state (a string or several).
      hyperparam_dtype: the dtype of the hyperparameters, at least float32. Defaults to float64 for
        float64 parameters, else float32.

    Raises:
      ValueError: if `static_args` names an argument that the factory does not have.
    """

    never_schedule = True
    called_with = "arguments"

    inner_factory: Callable[..., Any]
    static_args: tuple[str, ...] | str = ()
    hyperparam_dtype: DType = None

    def __post_init__(self) -> None:
        names = (self.static_args,) if isinstance(self.static_args, str) else self.static_args
        arguments = list(signature_of(self.inner_factory).parameters)
        names = [own_name(name, arguments) for name in names]
        for name in names:
            if name not in arguments:
                raise ValueError(self._unknown_argument(name, arguments, "static_args: "))
        object.__setattr__(self, "static_args", tuple(sorted(names)))

    def _unknown_argument(self, name: str, names: list[str], where: str = "") -> str:
        return (
            f"inject_hyperparams: {where}{name_of(self.inner_factory)} has no argument {name!r}, "
            f"only {', '.join(names)}.{argument_suggestion(name, names)}"
        )

    def __call__(self, *args: Any, **kwargs: Any) -> "injected":
        """Return the transform that the factory makes of these arguments."""
        signature = signature_of(self.inner_factory)
        kinds = {p.kind for p in signature.parameters.values()}
        if inspect.Parameter.VAR_POSITIONAL in kinds or inspect.Parameter.VAR_KEYWORD in kinds:
            raise TypeError(
                f"inject_hyperparams: {name_of(self.inner_factory)} takes any number of "
                "arguments; give a factory whose arguments have names."
            )
        names = list(signature.parameters)
        kwargs = {own_name(name, names): x for name, x in kwargs.items()}
        for name in kwargs:
            if name not in names:
                raise TypeError(self._unknown_argument(name, names))
        try:
            bound = signature.bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(
                f"inject_hyperparams: {name_of(self.inner_factory)} {error}; its arguments are "
                f"{', '.join(names)}."
            ) from None
        bound.apply_defaults()
        annotations = annotations_of(self.inner_factory)
        arguments = without_aliases(annotations, bound.arguments).items()
        return injected(self, tuple((k, self._argument(k, v, annotations)) for k, v in arguments))

    def _argument(self, name: str, x: Any, annotations: dict[str, Any]) -> Any:
        """Return an argument as a hashable value, and an integer for a float as a float."""
        kinds = annotation_kinds(annotations.get(name))
        if Key in kinds and x is not None:
            return static_key(self.inner_factory, name, x)
        argument = frozen(x)
        if isinstance(x, int) and not isinstance(x, bool) and float in kinds and int not in kinds:
            argument = normalized_value(self.inner_factory, name, x, float)
        flaw = flaw_of(argument)
        if flaw is not None:
            raise TypeError(
                f"inject_hyperparams: {name} of {name_of(self.inner_factory)} must be a value, got "
                f"{flaw} (Annotate an argument that is a PRNG key as gradxform.types.Key.)"
            )
        return argument

    def __repr__(self) -> str:
        options = "".join(
            f", {k}={printed(v)}"
            for k, v in (
                ("static_args", self.static_args),
                ("hyperparam_dtype", self.hyperparam_dtype),
            )
            if v
        )
        return f"inject_hyperparams({printed(self.inner_factory)}{options})"


@with_checked_arguments
def inject_stateful_hyperparams(
    inner_factory: Callable[..., Any],
    static_args: tuple[str, ...] | str = (),
    hyperparam_dtype: DType = None,
) -> inject_hyperparams:
    """Return `inject_hyperparams` of the same arguments, with a DeprecationWarning, as in Optax."""
    message = "inject_stateful_hyperparams is deprecated; use inject_hyperparams."
    warnings.warn(message, DeprecationWarning, stacklevel=2)
    return inject_hyperparams(inner_factory, static_args, hyperparam_dtype)


@transform
class injected(Transform):
    """A transform with its hyperparameters in its state, as `inject_hyperparams` returns it.

    Args:
      factory: the `inject_hyperparams` value.
      arguments: pairs of name and value, one for every argument of the inner factory.
    """

    factory: inject_hyperparams
    arguments: tuple[Any, ...]

    handles_rows = True
    set_by = (("hyperparams", "numbers"),)

    def __post_init__(self) -> None:
        # An old pickle has the names of its time.
        names = signature_of(self.factory.inner_factory).parameters
        own = tuple((own_name(name, names), x) for name, x in self.arguments)
        object.__setattr__(self, "arguments", own)
        numbers, schedules, _ = self._split_arguments()
        for name, schedule in schedules.items():
            if not is_stateful(schedule):
                check_schedule(self.factory.inner_factory, name, schedule)

        def check(values: dict[str, Array]) -> None:
            inner = self.inner_with(numbers | values)
            check_transform("inject_hyperparams", inner, "what the factory returns")

        # A schedule reaches the factory as a traced number, which it must accept.
        jax.eval_shape(check, {k: jax.ShapeDtypeStruct((), jnp.float32) for k in schedules})

    def __repr__(self) -> str:
        return f"{self.factory!r}({', '.join(f'{k}={printed(v)}' for k, v in self._changed())})"

    def written(self) -> tuple[str | None, dict[str, Any]]:
        """Return the name and the fields of the factory, and the arguments of its call."""
        name, fields = self.factory.written()
        fields["static_args"] = list(self.factory.static_args)
        return name, fields | {"arguments": dict(self.arguments)}

    def _changed(self) -> list[tuple[str, Any]]:
        """Return the arguments that differ from the factory's defaults."""
        parameters = signature_of(self.factory.inner_factory).parameters
        return [
            (k, v) for k, v in self.arguments if not is_default(v, frozen(parameters[k].default))
        ]

    def _split_arguments(self) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
        """Return the numbers, the schedules, and all other arguments."""
        factory = self.factory
        return split_arguments(factory.inner_factory, self.arguments, factory.static_args)

    def _schedules(self) -> dict[str, StatefulSchedule]:
        """Return the schedules, each as one with a state."""
        return {k: with_state(x) for k, x in self._split_arguments()[1].items()}

    def _where(self, name: str) -> str:
        return f"inject_hyperparams: {name_of(self.factory.inner_factory)}: {name}"

    def extra_names(self) -> frozenset[str] | None:
        """Return the extra arguments that the inner transform and the schedules take."""
        names = super().extra_names()
        for schedule in self._split_arguments()[1].values():
            more = schedule_extra_names(schedule)
            names = None if names is None or more is None else names | more
        return names

    @property
    def numbers(self) -> dict[str, Any]:
        """The hyperparameters that are numbers, by name."""
        return self._split_arguments()[0]

    def others(self) -> dict[str, Any]:
        """Return the arguments that are not hyperparameters, by name."""
        return self._split_arguments()[2]

    def _as_scalar(self, x: Any) -> Array:
        x = jnp.asarray(x)
        if not jnp.issubdtype(x.dtype, jnp.floating):
            return cast(x, x.dtype)
        dtype = self.factory.hyperparam_dtype
        return x.astype(at_least_float32(dtype) if dtype else scalar_dtype())

    def _from_state(self, name: str, x: Any, first: Any) -> Array:
        """Return a hyperparameter of the state, which a user may have set, in the dtype of init."""
        dtype, number = self._as_scalar(first).dtype, jnp.asarray(x)
        if number.dtype == dtype:
            return cast(number, dtype)
        is_integer = jnp.issubdtype(number.dtype, jnp.integer) or number.dtype == bool
        if not (is_integer or jnp.issubdtype(number.dtype, jnp.floating)) or (
            jnp.issubdtype(dtype, jnp.integer) and not is_integer
        ):
            raise TypeError(
                f"inject_hyperparams: the hyperparameter {name!r} is of dtype {dtype} since init, "
                f"and cannot be set to {shown(x)} of dtype {number.dtype}. Make the optimizer with "
                "a number of that kind."
            )
        return cast(number, dtype)

    def inner_with(self, hyperparams: dict[str, Any]) -> Any:
        """Return the inner transform with these hyperparameters."""
        others = {k: thawed(v) for k, v in self.others().items()}
        with keeping_arrays():
            return self.factory.inner_factory(**(hyperparams | others))

    def with_plain_numbers(self, hyperparams: dict[str, Any] | None = None) -> Any:
        """Return the inner transform with constants for numbers, those of a state or the first."""
        numbers, schedules, _ = self._split_arguments()
        if hyperparams is not None:
            numbers = {k: jnp.asarray(hyperparams[k]).item() for k in numbers}
        return self.inner_with(numbers | schedules)

    def _check_hyperparams(self, hyperparams: dict[str, Any], names: list[str]) -> None:
        for name in names:
            if name not in hyperparams:
                raise ValueError(
                    f"inject_hyperparams: the state has no hyperparameter {name!r}, only "
                    f"{', '.join(hyperparams)}. Was this state made by another optimizer?"
                )
        for name, x in hyperparams.items():
            if name not in names and name in self.others():
                raise ValueError(
                    f"{self._where(name)} was {printed(self.others()[name])} when the optimizer "
                    "was made, which is not a hyperparameter in the state, because it decides "
                    "which parts, shapes or constants the optimizer has; make it anew with "
                    "another value."
                )
            if name not in names:
                raise ValueError(
                    f"inject_hyperparams: {name_of(self.factory.inner_factory)} has no "
                    f"hyperparameter {name!r}, only {', '.join(names)}.{did_you_mean(name, names)}"
                )
            if not isinstance(x, int | float) and getattr(x, "shape", None) != ():
                raise TypeError(
                    f"inject_hyperparams: the hyperparameter {name!r} must be a scalar, got "
                    f"{shown(x)}."
                )

    def init(self, params):
        """Return the hyperparameters at step 0 and the inner state."""
        return self.init_with(self.inner_with, params)

    def init_with(
        self, inner_with: Callable[[dict[str, Array]], Any], params: Params
    ) -> InjectStatefulHyperparamsState:
        """Return the first state, of the inner transform that `inner_with(hyperparams)` returns."""
        states, hyperparams = self._at_init()
        inner_state = inner_with(hyperparams).init(params)
        return InjectStatefulHyperparamsState(zero_count(), hyperparams, states, inner_state)

    def _at_init(self) -> tuple[dict[str, Any], dict[str, Array]]:
        """Return the states of the schedules and the hyperparameters of the first step."""
        numbers, schedules = self._split_arguments()[0], self._schedules()
        states = {k: first_state(x) for k, x in schedules.items()}
        hyperparams = {k: self._as_scalar(x) for k, x in numbers.items()}
        return states, hyperparams | self._scheduled(schedules, states, {}, "init")

    def _scheduled(
        self,
        schedules: dict[str, StatefulSchedule],
        states: dict[str, Any],
        extra: dict[str, Any],
        moment: str,
    ) -> dict[str, Array]:
        """Return the hyperparameters that are schedules, each in its state."""
        return {
            k: self._as_scalar(value_in(self._where(k), x, states[k], extra, moment))
            for k, x in schedules.items()
        }

    def _at_update(
        self, state: InjectStatefulHyperparamsState, extra: dict[str, Any], moment: str
    ) -> tuple[dict[str, Array], dict[str, StatefulSchedule], dict[str, Any]]:
        """Return the hyperparameters of the next step, the schedules, and their states."""
        numbers, schedules = self._split_arguments()[0], self._schedules()
        self._check_hyperparams(state.hyperparams, [*numbers, *schedules])
        states = checked_states("inject_hyperparams", state.hyperparams_states, schedules)
        hyperparams = {k: self._from_state(k, state.hyperparams[k], x) for k, x in numbers.items()}
        hyperparams |= self._scheduled(schedules, states, extra, moment)
        return hyperparams, schedules, states

    def at_first(self) -> Any:
        """Return the inner transform of the first step."""
        return self.inner_with(self._at_init()[1])

    def at_next(self, state: InjectStatefulHyperparamsState) -> Any:
        """Return the inner transform of the next step after a state."""
        return self.inner_with(self._at_update(state, {}, "init")[0])

    def inner_transforms(self) -> list[Any]:
        """Return the inner transform of the first step, as a list."""
        return [self.at_first()]

    def inner_states(self, state: OptState) -> list[tuple[Path, Any]]:
        """Return the place of the inner state, with the inner transform of the last step."""
        return [(("inner_state",), self.inner_with(dict(state.hyperparams)))]

    @property
    def locality(self) -> str:
        """How far the inner transform looks."""
        return locality_of(self.at_first())

    def moved(self, state, old, new):
        """Return the state after something else has moved the parameters."""
        inner = self.inner_with({k: self._as_scalar(x) for k, x in state.hyperparams.items()})
        return state._replace(inner_state=tell_moved(inner, state.inner_state, old, new))

    def update(self, updates, state, params=None, **extra):
        """Update with the state's hyperparameters, and those of schedules at their next value."""
        return self._updated_by(call_update, updates, state, params, extra)

    def update_params(self, updates, state, params, **extra):
        """Return the parameters after the update."""
        return self._updated_by(call_update_params, updates, state, params, extra)

    def _updated_by(
        self, call: Callable[..., Any], updates: Updates, state: Any, params: Any, extra: Any
    ) -> tuple[Any, Any]:
        """Return what `call` returns for the inner transform of this step, and the state."""
        check_state("inject_hyperparams", state, InjectStatefulHyperparamsState)
        with scalars_as(widest_dtype((updates, state.hyperparams) if params is None else params)):
            hyperparams, schedules, states = self._at_update(state, extra, "update")
            states = {
                k: next_state(self._where(k), x, states[k], extra) for k, x in schedules.items()
            }
        new, inner_state = call(
            self.inner_with(hyperparams), updates, state.inner_state, params, extra
        )
        return new, state._replace(
            count=safe_increment(state.count),
            hyperparams=hyperparams,
            hyperparams_states=states,
            inner_state=inner_state,
        )
