"""The base of optimizers that are written as classes, in the place of Keras's `Optimizer`."""

from collections.abc import Mapping
from typing import Any, Self

from gradxform.base import ArrayRule
from gradxform.compat.keras import decays
from gradxform.errors import shown
from gradxform.values import fields_of

_FIELDS = "write its arguments as fields, such as `learning_rate: float = 0.01`"
_STATE = (
    "name its slots in `State`, a NamedTuple with an annotation `momentum: Slot` for each, and "
    "write `init(self, params)` only if they do not start with zeros"
)
_RULE = "write `rule(self, g, *slots, p)`, which returns the step of one array and its new slots"
_PREPARE = (
    "write `prepare(self, updates, state, params)`, which returns the state and the scalars of a "
    "step"
)
# The methods by which classes of Keras say what a rule says otherwise.
_INSTEAD = {
    "__init__": _FIELDS,
    "_set_hyper": _FIELDS,
    "_create_slots": _STATE,
    "build": _STATE,
    "_prepare": _PREPARE,
    "_prepare_local": _PREPARE,
    "_resource_apply_dense": _RULE,
    "update_step": _RULE,
    "_resource_apply_sparse": (
        "leave it out: with locality = 'entry' or 'row', `rule` gets the rows of a row-sparse "
        "gradient"
    ),
}


class Optimizer(ArrayRule):
    """An optimizer to inherit from: fields, a state, and the rule for one array.

        @gx.transform
        class Momentum(Optimizer):
            learning_rate: float = 0.01
            momentum: float = 0.9

            State = MomentumState                       a NamedTuple with `velocity: Slot`

            def rule(self, g, velocity, p):
                velocity = self.momentum * velocity - self.learning_rate * g
                return velocity, velocity

    It is an `ArrayRule`, with what Keras's classes have besides: `get_config` and `from_config`,
    by which `compat.keras.serialize` and `deserialize` write and read it; the latter finds its
    class in custom_objects. A class that has Keras's methods instead is refused when it is defined,
    with what to write in their place.

    Raises:
      TypeError: when a class is defined with a method of Keras's, such as `_create_slots`.

    Reference: `tf.keras.optimizers.Optimizer`, `keras.optimizers.Optimizer`.
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Require a class not to have methods that would never be called."""
        super().__init_subclass__(**kwargs)
        for method, instead in _INSTEAD.items():
            if method in cls.__dict__:
                raise TypeError(
                    f"{cls.__name__}: {method} is of Keras, and is not called here; {instead}."
                )

    def get_config(self) -> dict[str, Any]:
        """Return the fields by name, a schedule as plain data.

        Raises:
          ValueError: for a schedule that Keras does not have.
        """
        return {k: decays.serialize(x) if callable(x) else x for k, x in fields_of(self).items()}

    @classmethod
    def from_config(
        cls, config: Mapping[str, Any], custom_objects: Mapping[str, Any] | None = None
    ) -> Self:
        """Return the optimizer of a config.

        Args:
          config: the fields by name. A `name` is ignored.
          custom_objects: factories of schedules of your own, by the names of their classes.

        Raises:
          TypeError, ValueError: for an unknown field, or a wrong value.
        """
        where = f"{cls.__name__}.from_config: config"
        if not isinstance(config, Mapping) or not all(isinstance(k, str) for k in config):
            raise TypeError(f"{where} must be a dict of fields, got {shown(config)}.")
        fields = {k: x for k, x in config.items() if k != "name"}
        for k, x in fields.items():
            if isinstance(x, dict) and "class_name" in x:
                fields[k] = decays.deserialized(x, custom_objects, f"{where}.{k}")
        return cls(**fields)
