"""`tf.keras.optimizers.schedules`, and their configs."""

import inspect
from collections.abc import Callable
from typing import Any

from gradxform.compat.arguments import piecewise
from gradxform.compat.inversion import Unknown, arguments_of
from gradxform.compat.keras.learning_rate_schedule import (
    LearningRateSchedule as LearningRateSchedule,
    is_own,
)
from gradxform.compat.keras.objects import (
    call_factory,
    check_keys,
    described_object,
    known_factory,
    read_by,
    written_object,
    written_own,
)
from gradxform.errors import shown
from gradxform.schedules.basic import constant_schedule, linear_schedule, polynomial_schedule
from gradxform.schedules.decay import (
    cosine_decay_restarts,
    cosine_decay_schedule,
    exponential_decay,
    inverse_time_decay,
    linear_cosine_decay,
)
from gradxform.schedules.join import join_schedules
from gradxform.types import Schedule
from gradxform.values.arguments import with_checked_arguments


@with_checked_arguments
def ExponentialDecay(
    initial_learning_rate: float,
    decay_steps: int | float,
    decay_rate: float,
    staircase: bool = False,
    name: Any = None,
) -> Schedule:
    """Return `exponential_decay`: initial_learning_rate decay_rate^(n / decay_steps)."""
    return exponential_decay(initial_learning_rate, decay_steps, decay_rate, staircase=staircase)


@with_checked_arguments
def PiecewiseConstantDecay(boundaries: Any, values: Any, name: Any = None) -> Schedule:
    """Return values[i] up to and including step boundaries[i]: `join_schedules` of constants.

    Raises:
      ValueError: unless there is one more value than boundaries.
    """
    return piecewise("PiecewiseConstantDecay", boundaries, values)


@with_checked_arguments
def PolynomialDecay(
    initial_learning_rate: float,
    decay_steps: int | float,
    end_learning_rate: float = 0.0001,
    power: float = 1.0,
    cycle: bool = False,
    name: Any = None,
) -> Schedule:
    """Return `polynomial_schedule` to end_learning_rate in decay_steps."""
    return polynomial_schedule(
        initial_learning_rate, end_learning_rate, power, decay_steps, cycle=cycle
    )


@with_checked_arguments
def InverseTimeDecay(
    initial_learning_rate: float,
    decay_steps: int | float,
    decay_rate: float,
    staircase: bool = False,
    name: Any = None,
) -> Schedule:
    """Return `inverse_time_decay`: initial_learning_rate / (1 + decay_rate n / decay_steps)."""
    return inverse_time_decay(initial_learning_rate, decay_steps, decay_rate, staircase=staircase)


@with_checked_arguments
def CosineDecay(
    initial_learning_rate: float,
    decay_steps: int | float,
    alpha: float = 0.0,
    name: Any = None,
    warmup_target: float | None = None,
    warmup_steps: int | float = 0,
) -> Schedule:
    """Return `cosine_decay_schedule`, down to alpha initial_learning_rate.

    With a warmup_target, of Keras 2.13 and later, the rate first goes in a line from
    initial_learning_rate to it in warmup_steps, and then decays from there in decay_steps: the two
    in `join_schedules`.
    """
    if warmup_target is None:
        return cosine_decay_schedule(initial_learning_rate, decay_steps, alpha)
    decay = cosine_decay_schedule(warmup_target, decay_steps, alpha)
    if not warmup_steps:
        return decay
    climb = linear_schedule(initial_learning_rate, warmup_target, warmup_steps)
    return join_schedules((climb, decay), (warmup_steps,))


@with_checked_arguments
def CosineDecayRestarts(
    initial_learning_rate: float,
    first_decay_steps: int | float,
    t_mul: float = 2.0,
    m_mul: float = 1.0,
    alpha: float = 0.0,
    name: Any = None,
) -> Schedule:
    """Return `cosine_decay_restarts`."""
    return cosine_decay_restarts(initial_learning_rate, first_decay_steps, t_mul, m_mul, alpha)


@with_checked_arguments
def LinearCosineDecay(
    initial_learning_rate: float,
    decay_steps: int | float,
    num_periods: float = 0.5,
    alpha: float = 0.0,
    beta: float = 0.001,
    name: Any = None,
) -> Schedule:
    """Return `linear_cosine_decay`, of `tf.keras.experimental`."""
    return linear_cosine_decay(initial_learning_rate, decay_steps, num_periods, alpha, beta)


# --------------------------------------------------------------------------------------- configs

_FACTORIES: tuple[Callable[..., Schedule], ...] = (
    ExponentialDecay,
    PiecewiseConstantDecay,
    PolynomialDecay,
    InverseTimeDecay,
    CosineDecay,
    CosineDecayRestarts,
    LinearCosineDecay,
)
_CLASSES = {factory.__name__.lower(): factory for factory in _FACTORIES}

# What the arguments of each may be; see `arguments_of`. The samples are in every argument's range.
_SAMPLES = {
    "initial_learning_rate": 0.5137,
    "decay_steps": 71.37,
    "first_decay_steps": 71.37,
    "decay_rate": 0.6137,
    "end_learning_rate": 0.0137,
    "power": 1.6137,
    "alpha": 0.2137,
    "beta": 0.1137,
    "num_periods": 0.7137,
    "t_mul": 2.137,
    "m_mul": 0.8137,
    "warmup_target": 0.9137,
    "warmup_steps": 17.37,
}
_SWITCHES = ("staircase", "cycle")
# What Keras 3 writes with every config; Keras 2.8 does not know it.
_OF_KERAS_3 = {"CosineDecay": {"warmup_target": None, "warmup_steps": 0}}
_NAMES_OF_KERAS_3 = {
    "PiecewiseConstantDecay": "PiecewiseConstant",
    "CosineDecayRestarts": "SGDRDecay",
}


def serialize(schedule: Any, name: str | None = None, *, version: int = 2) -> dict[str, Any]:
    """Return a schedule of this module as Keras's plain data.

    Args:
      schedule: what one of the functions of this module has returned, or an equal schedule; or an
        object of a class of yours that inherits from `LearningRateSchedule`.
      name: the name in the config. Schedules do not have one here.
      version: the Keras whose form it has, 2 or 3.

    Returns:
      A dict with class_name and config.

    Raises:
      TypeError: if it is not callable.
      ValueError: if no schedule of Keras has these values; `to_config` writes any of the library.
    """
    if not callable(schedule):
        raise TypeError(f"schedules.serialize: needs a schedule, got {shown(schedule)}.")
    if is_own(schedule):
        config = schedule.get_config() | ({} if name is None else {"name": name})
        return written_own(type(schedule), config, version == 3)
    module = "keras.optimizers.schedules" if version == 3 else None
    for factory in _FACTORIES:
        if version == 3 and factory is LinearCosineDecay:  # of TensorFlow only
            continue
        arguments = _decay_arguments(factory, schedule)
        if arguments is not None:
            kind = factory.__name__
            if version == 3:
                arguments = _OF_KERAS_3.get(kind, {}) | arguments
                name = name or _NAMES_OF_KERAS_3.get(kind, kind)
            return written_object(kind, {**arguments, "name": name}, module)
    raise ValueError(
        f"schedules.serialize: no schedule of Keras is {shown(schedule)}; to_config writes any "
        "schedule of the library."
    )


def _decay_arguments(factory: Callable[..., Schedule], schedule: Any) -> dict[str, Any] | None:
    if factory is PiecewiseConstantDecay:
        return _piecewise_decay_arguments(schedule)
    names = inspect.signature(factory).parameters.keys() - {"name"}
    warm = {"warmup_target", "warmup_steps"} & names
    choices: dict[str, Any] = {}
    for name in inspect.signature(factory).parameters:
        if name in _SWITCHES:
            choices[name] = [False, True]
        elif name in names - warm:
            choices[name] = [Unknown(_SAMPLES[name])]
    found = arguments_of(factory, schedule, choices)
    if found is None and warm:
        more = {name: [Unknown(_SAMPLES[name])] for name in sorted(warm)}
        found = arguments_of(factory, schedule, choices | more)
    return found


def _piecewise_decay_arguments(schedule: Any) -> dict[str, Any] | None:
    """Return the boundaries and values of constants one after another."""
    if not isinstance(schedule, join_schedules):
        return None
    parts = schedule.schedules
    if not all(isinstance(part, constant_schedule) for part in parts):
        return None
    boundaries = [start - 1 for start in schedule.boundaries]
    arguments = {"boundaries": boundaries, "values": [part.value for part in parts]}
    return arguments if PiecewiseConstantDecay(**arguments) == schedule else None


def deserialize(config: dict[str, Any], custom_objects: dict[str, Any] | None = None) -> Schedule:
    """Return the schedule that Keras's plain data describes.

    Args:
      config: a dict with class_name and config, as Keras 2 and Keras 3 write it.
      custom_objects: factories of schedules of your own, by the names of their classes. Of a class
        that has `from_config`, this makes the schedule.

    Raises:
      ValueError, TypeError, KeyError: for an unknown class or key, or a wrong number.
    """
    return deserialized(config, custom_objects, "config")


def deserialized(config: Any, custom_objects: Any, where: str) -> Schedule:
    """Return `deserialize(config, custom_objects)`, with messages that say where it stands."""
    thing = described_object(config, where)
    factory = known_factory(thing, _CLASSES, custom_objects, where, "schedule")
    if factory in _FACTORIES:
        check_keys(factory, thing.config, f"{where}.config", TypeError)
        schedule = call_factory(factory, thing.config, f"{where}.config")
    else:
        schedule = read_by(factory, thing.config, f"{where}.config")
    if not callable(schedule):
        raise TypeError(f"{where}: {thing.class_name} returns {shown(schedule)}, not a schedule.")
    return schedule
