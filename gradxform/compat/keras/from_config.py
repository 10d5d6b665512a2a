"""A door from the arguments in a config of Keras: `Adam.from_config(config)`."""

import importlib
from collections.abc import Callable, Mapping
from typing import Any, ParamSpec, Protocol, TypeVar

from gradxform.compat.keras import decays
from gradxform.compat.keras.objects import call_factory, check_keys, written_object
from gradxform.errors import shown

P = ParamSpec("P")
T_co = TypeVar("T_co", covariant=True)

# What Keras writes and an optimizer here does not have.
IGNORED = ("name", "jit_compile", "is_legacy_optimizer")


class Door(Protocol[P, T_co]):
    """A function that makes one of Keras's optimizers."""

    __name__: str

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> T_co:
        """Return the optimizer with these arguments."""
        ...

    def from_config(
        self, config: Mapping[str, Any], custom_objects: Mapping[str, Any] | None = None
    ) -> T_co:
        """Return the optimizer of a config of Keras.

        Args:
          config: the arguments, as `get_config` of Keras's class returns them. A schedule may be a
            dict with class_name and config.
          custom_objects: factories of schedules of your own, by the names of their classes.

        Raises:
          TypeError, ValueError, KeyError: as `compat.keras.deserialize`.
        """
        ...


def with_from_config(factory: Callable[P, T_co], is_new: bool) -> Door[P, T_co]:
    """Return a factory with the attribute `from_config`.

    Args:
      factory: makes the optimizer.
      is_new: whether it is of Keras 2.11 or later.
    """

    def read(config: Mapping[str, Any], custom_objects: Any, where: str) -> Any:
        rates = with_schedules(config, custom_objects, where)
        return made_of(factory, is_new, rates, where)

    return _with_from_config_method(factory, read)


def around_others(factory: Callable[P, T_co]) -> Door[P, T_co]:
    """Return a factory, whose optimizer holds others, with the attribute `from_config`."""

    def read(config: Mapping[str, Any], custom_objects: Any, where: str) -> Any:
        # It knows the classes of all optimizers, and so is above each of them.
        deserialize = importlib.import_module("gradxform.compat.keras.keras").deserialize
        return deserialize(
            written_object(_factory_name(factory), dict(config), None), custom_objects
        )

    return _with_from_config_method(factory, read)


def _with_from_config_method(factory: Any, read: Callable[..., Any]) -> Any:
    def from_config(
        config: Mapping[str, Any], custom_objects: Mapping[str, Any] | None = None
    ) -> Any:
        where = f"{_factory_name(factory)}.from_config: config"
        if not isinstance(config, Mapping) or not all(isinstance(k, str) for k in config):
            raise TypeError(f"{where} must be a dict of arguments, got {shown(config)}.")
        return read(config, custom_objects, where)

    from_config.__doc__ = Door.from_config.__doc__
    from_config.__qualname__ = f"{_factory_name(factory)}.from_config"
    factory.from_config = from_config
    return factory


def _factory_name(factory: Any) -> str:
    return factory.__name__


def with_schedules(config: Mapping[str, Any], custom_objects: Any, where: str) -> dict[str, Any]:
    """Return a config with a schedule in the place of its plain data."""
    config = dict(config)
    for key in ("learning_rate", "lr"):
        if isinstance(config.get(key), dict):
            config[key] = decays.deserialized(config[key], custom_objects, f"{where}.{key}")
    return config


def made_of(
    factory: Callable[..., Any], is_new: bool, config: Mapping[str, Any], where: str
) -> Any:
    """Return the optimizer of a config, whose schedules have been read; see `with_from_config`."""
    arguments = _new_config_arguments(config, where) if is_new else _old_config_arguments(config)
    # Of the classes that Keras raises itself.
    check_keys(factory, arguments, where, ValueError if is_new else TypeError)
    return call_factory(factory, arguments, where)


def _old_config_arguments(config: Mapping[str, Any]) -> dict[str, Any]:
    # The decay of Nadam's config is its schedule_decay, which Keras and our factory do not read.
    return {k: v for k, v in config.items() if k not in IGNORED}


def _new_config_arguments(config: Mapping[str, Any], where: str) -> dict[str, Any]:
    if config.get("decay"):
        raise ValueError(
            f"{where}: decay={config['decay']!r} is not of this generation of Keras, which "
            "ignores it; use a schedule, such as InverseTimeDecay."
        )
    # Keras 2.11 to 2.15 begin an average with the parameters, Keras 3 with those of the first step.
    arguments = {k: v for k, v in config.items() if k not in (*IGNORED, "decay")}
    if config.get("use_ema") and "jit_compile" in config:
        arguments["ema_from_start"] = True
    return arguments
