"""The base of learning rate schedules that are written as classes of Keras."""

import abc
from collections.abc import Mapping
from typing import Any, Self, TypeGuard

from gradxform.errors import name_of, shown
from gradxform.schedules.schedule import Schedule
from gradxform.values import frozen


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


LearningRateSchedule.register(Schedule)


def is_own(schedule: Any) -> TypeGuard[LearningRateSchedule]:
    """Whether a schedule is of a class that inherits from `LearningRateSchedule`."""
    return LearningRateSchedule in type(schedule).__mro__
