"""Keras's form of an object as plain data: the name of a class, and a config."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from gradxform.errors import cut_name, did_you_mean, shown

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
        f"{where}: unknown {kind} {thing.class_name!r}{of_module}; pass its factory in "
        f"custom_objects.{hint}"
    )


def check_keys(
    factory: Callable[..., Any], config: Mapping[str, Any], where: str, error: type[Exception]
) -> None:
    """Require every key of a config to be an argument of a factory, else raise `error`."""
    keys = inspect.signature(factory).parameters
    for key in config:
        if key not in keys:
            raise error(
                f"{where}: {factory.__name__} has no argument {key!r}, only {', '.join(keys)}."
                f"{did_you_mean(key, keys)}"
            )


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
