"""`tf.keras.optimizers.schedules`, and the form in which Keras writes any object as plain data."""

import abc
import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, Self, TypeGuard

import jax.numpy as jnp

from gradxform._names.deferred import signature_of
from gradxform.compat.arguments import call_factory, piecewise
from gradxform.compat.inversion import Unknown, arguments_of
from gradxform.errors import (
    TOO_DEEP,
    check_nesting,
    cut_name,
    did_you_mean,
    name_of,
    parts_of_data,
    shown,
)
from gradxform.numerics import scalar
from gradxform.schedules.basic import (
    constant_schedule,
    linear_schedule,
    polynomial_schedule,
    schedule_of,
)
from gradxform.schedules.decay import (
    cosine_decay_restarts,
    cosine_decay_schedule,
    exponential_decay,
    inverse_time_decay,
    linear_cosine_decay,
)
from gradxform.schedules.join import join_schedules
from gradxform.schedules.schedule import Schedule as _Schedule, as_count
from gradxform.types import Array, PositiveInt, Schedule
from gradxform.values import frozen
from gradxform.values.arguments import with_checked_arguments
from gradxform.values.fields import value


class LearningRateSchedule(abc.ABC):
    """A schedule to inherit from: the learning rate after a number of steps.

        class Root(LearningRateSchedule):
            def __init__(self, first):
                self.first = first

            def __call__(self, step):
                return self.first * jnp.float32(step + 1) ** -0.5

            def get_config(self):
                return {"first": self.first}

    Its objects are learning rates of all optimizers. Those of one class with equal configs are
    equal, so that a program is compiled once for them: the config must say all that the rate
    depends on, and must not change. `schedules.serialize` writes them, and `schedules.deserialize`
    reads them by `from_config` of the class, which it finds in custom_objects. `to_config` does not
    know their classes.

    Every schedule of the library is an instance of this class, as Keras's own are of Keras's.

    Reference: `tf.keras.optimizers.schedules.LearningRateSchedule`.
    """

    @abc.abstractmethod
    def __call__(self, step: Any) -> Any:
        """Return the learning rate after `step` updates, an integer array; 0 at the first."""

    @abc.abstractmethod
    def get_config(self) -> dict[str, Any]:
        """Return the arguments of the class that make this schedule, as plain data."""

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Self:
        """Return the schedule of a config, by default `cls(**config)`."""
        return cls(**config)

    def _key(self) -> Any:
        config = self.get_config()
        if not isinstance(config, dict):
            raise TypeError(
                f"{name_of(self)}: get_config must return a dict of arguments, got {shown(config)}."
            )
        key = (type(self), frozen(config))
        try:
            hash(key)
        except TypeError:
            raise TypeError(
                f"{name_of(self)}: get_config must return plain data, numbers and strings, in "
                f"dicts and lists, got {shown(config)}."
            ) from None
        return key

    def __eq__(self, other: object) -> bool:
        """Whether it is a schedule of the same class with an equal config."""
        if type(self) is not type(other) or not isinstance(other, LearningRateSchedule):
            return NotImplemented
        return self._key() == other._key()

    def __hash__(self) -> int:
        """Return a hash of the class and the config."""
        return hash(self._key())

    def __repr__(self) -> str:
        arguments = ", ".join(f"{k}={x!r}" for k, x in self.get_config().items())
        return f"{type(self).__name__}({arguments})"


LearningRateSchedule.register(_Schedule)


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


@value
class last_of_every(_Schedule):
    """Read a schedule at the last of the k calls that make one step.

    Value: y(n) = schedule(k n + k - 1).

    Args:
      schedule: a schedule, or a plain function of the count.
      k: the number of calls, at least 1.
    """

    schedule: Any
    k: PositiveInt

    def __post_init__(self):
        object.__setattr__(self, "schedule", schedule_of(self, "schedule", self.schedule))

    def __call__(self, count: Any) -> Array:
        """Return the value at the last call of a step."""
        return scalar(self.schedule(as_count(count) * self.k + (self.k - 1)))


@value
class at_most_inverse_sqrt(_Schedule):
    """Bound a schedule by the inverse root of the number of steps.

    Value: y(n) = min(schedule(n), 1 / sqrt(n + 1)).

    Args:
      schedule: a schedule, a plain function of the count, or a number.

    Reference: Shazeer and Stern, Adafactor: Adaptive Learning Rates with Sublinear Memory Cost,
    2018, section 8.
    """

    schedule: Any

    def __post_init__(self):
        object.__setattr__(self, "schedule", schedule_of(self, "schedule", self.schedule))

    def __call__(self, count: Any) -> Array:
        """Return the smaller of both."""
        return jnp.minimum(scalar(self.schedule(count)), 1 / jnp.sqrt(scalar(count) + 1))


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
        arguments = _arguments(factory, schedule)
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


def _arguments(factory: Callable[..., Schedule], schedule: Any) -> dict[str, Any] | None:
    if factory is PiecewiseConstantDecay:
        return _piecewise_arguments(schedule)
    names = signature_of(factory).parameters.keys() - {"name"}
    warm = {"warmup_target", "warmup_steps"} & names
    choices: dict[str, Any] = {}
    for name in signature_of(factory).parameters:
        if name in _SWITCHES:
            choices[name] = [False, True]
        elif name in names - warm:
            choices[name] = [Unknown(_SAMPLES[name])]
    found = arguments_of(factory, schedule, choices)
    if found is None and warm:
        more = {name: [Unknown(_SAMPLES[name])] for name in sorted(warm)}
        found = arguments_of(factory, schedule, choices | more)
    return found


def _piecewise_arguments(schedule: Any) -> dict[str, Any] | None:
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
    with reading(config, "config"):
        return deserialized(config, custom_objects, "config")


def deserialized(config: Any, custom_objects: Any, where: str) -> Schedule:
    """Return `deserialize(config, custom_objects)`, with messages that say where it stands."""
    thing = described_object(config, where)
    factory = known_factory(thing, _CLASSES, custom_objects, where, "schedule")
    if factory in _FACTORIES:
        schedule = made_by(factory, thing.config, f"{where}.config", TypeError)
    else:
        schedule = read_by(factory, thing.config, f"{where}.config")
    if not callable(schedule):
        raise TypeError(f"{where}: {thing.class_name} returns {shown(schedule)}, not a schedule.")
    return schedule


def with_schedules(config: Mapping[str, Any], custom_objects: Any, where: str) -> dict[str, Any]:
    """Return a config with a schedule in the place of its plain data."""
    config = dict(config)
    for key in ("learning_rate", "lr"):
        if isinstance(config.get(key), dict):
            config[key] = deserialized(config[key], custom_objects, f"{where}.{key}")
    return config


def is_own(schedule: Any) -> TypeGuard[LearningRateSchedule]:
    """Whether a schedule is of a class that inherits from `LearningRateSchedule`."""
    return LearningRateSchedule in type(schedule).__mro__


# ------------------------------------------------------------------------------------------ objects

_KEYS = ("class_name", "config", "module", "registered_name", "build_config", "shared_object_id")
_MODULES = ("keras", "tf_keras", "tensorflow.keras", "tensorflow.python.keras")


class Described(NamedTuple):
    """An object as plain data."""

    class_name: str
    config: dict[str, Any]
    module: str | None  # None before Keras 2.13
    registered_name: str | None  # of a class that is not Keras's own

    @property
    def is_keras(self) -> bool:
        """Whether Keras has this class, as far as the module says."""
        return self.module is None or any(
            self.module == m or self.module.startswith(f"{m}.") for m in _MODULES
        )


@contextlib.contextmanager
def reading(data: Any, where: str) -> Iterator[None]:
    """Within it, plain data is read that must not be too deep.

    Raises:
      ValueError: for data that is nested more than 200 deep or contains itself, or has an integer
        beyond the range of a float.
    """
    check_nesting(data, where, parts_of_data)
    try:
        yield
    except RecursionError:  # the caller's stack is deep too
        raise ValueError(f"{where}: {TOO_DEEP} to be read here.") from None


def described_object(data: Any, where: str) -> Described:
    """Return an object of plain data.

    Args:
      data: a dict with class_name and config.
      where: its place, for messages.

    Raises:
      KeyError: if the class_name is missing, as in Keras.
      ValueError: if the config is missing, a key is unknown, or class_name is not the name of
        a class.
      TypeError: if a part has another type.
    """
    if not isinstance(data, dict):
        raise TypeError(f"{where}: must be a dict with class_name and config, got {shown(data)}.")
    for key in data:
        if key not in _KEYS:
            raise ValueError(
                f"{where}: unknown key {shown(key)}, only {', '.join(_KEYS)}."
                f"{did_you_mean(key, _KEYS)}"
            )
    if "class_name" not in data:
        raise KeyError(f"{where}: no class_name; it says which class this is.")
    name, config = data["class_name"], data.get("config")
    module, registered = data.get("module"), data.get("registered_name")
    for key in ("class_name", "module", "registered_name"):
        if not isinstance(data.get(key, ""), str) and not (key != "class_name" and not data[key]):
            raise TypeError(f"{where}.{key}: must be a string, got {shown(data[key])}.")
    # The optimizers of Keras 2.11 and 2.12 were registered like classes of users.
    name = name.removeprefix("Custom>")
    if not all(part.isidentifier() for part in name.split(">")):
        raise ValueError(
            f"{where}.class_name: must be the name of a class, got {shown(cut_name(name))}; "
            "nothing is imported."
        )
    if config is None:
        raise ValueError(f"{where}: no config; without arguments it is {{}}.")
    if not isinstance(config, dict) or not all(isinstance(k, str) for k in config):
        raise TypeError(f"{where}.config: must be a dict of arguments, got {shown(config)}.")
    return Described(name, dict(config), module, registered)


def known_factory(
    thing: Described, classes: Mapping[str, Any], custom_objects: Any, where: str, kind: str
) -> Any:
    """Return the factory of a class by its name, in any case.

    Args:
      thing: the object.
      classes: Keras's own, by their names in lower case.
      custom_objects: classes of the caller by name, which go before; or None.
      where: its place, for messages.
      kind: what the classes are, for messages.

    Raises:
      ValueError: if there is none.
      TypeError: if custom_objects is not a dict of factories.
    """
    own = {} if custom_objects is None else custom_objects
    if not isinstance(own, Mapping) or not all(callable(x) for x in own.values()):
        raise TypeError(
            f"custom_objects: must be a dict from names of classes to factories, got {shown(own)}."
        )
    for name in (thing.registered_name, thing.class_name):
        if name in own:
            return own[name]
    if thing.is_keras and thing.class_name.lower() in classes:
        return classes[thing.class_name.lower()]
    of_module = "" if thing.is_keras else f" of {cut_name(str(thing.module))}"
    hint = did_you_mean(thing.class_name.lower(), classes) if thing.is_keras else ""
    raise ValueError(
        f"{where}: unknown {kind} {cut_name(thing.class_name)!r}{of_module}; pass its factory in "
        f"custom_objects.{hint}"
    )


def made_by(
    factory: Callable[..., Any], config: Mapping[str, Any], where: str, error: type[Exception]
) -> Any:
    """Return what a factory of this library makes of a config.

    Raises:
      Exception: `error`, if a key of the config is not an argument of the factory.
      TypeError, ValueError: those of the factory, with the place.
    """
    keys = signature_of(factory).parameters
    for key in config:
        if key not in keys:
            raise error(
                f"{where}: {factory.__name__} has no argument {cut_name(key)!r}, only "
                f"{', '.join(keys)}.{did_you_mean(key, keys)}"
            )
    return call_factory(factory, dict(config), where)


def read_by(factory: Any, config: dict[str, Any], where: str) -> Any:
    """Return what a factory of the caller makes of a config, by its `from_config` if it has one.

    Raises:
      TypeError, ValueError: those of the factory, with the place.
    """
    if not hasattr(factory, "from_config"):
        return call_factory(factory, config, where)
    return call_factory(lambda **arguments: factory.from_config(arguments), config, where)


def written_own(kind: type, config: dict[str, Any], is_keras_3: bool) -> dict[str, Any]:
    """Return an object of a class of the caller as plain data."""
    plain = written_object(kind.__name__, config, kind.__module__ if is_keras_3 else None)
    return plain | ({"registered_name": kind.__name__} if is_keras_3 else {})


def written_object(class_name: str, config: dict[str, Any], module: str | None) -> dict[str, Any]:
    """Return an object as plain data; `module` is what Keras 3 adds, None for Keras 2."""
    if module is None:
        return {"class_name": class_name, "config": config}
    return {
        "module": module,
        "class_name": class_name,
        "config": config,
        "registered_name": None,
    }
