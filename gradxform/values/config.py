"""Transforms, schedules and masks as plain data, and back.

A config consists of dicts, lists, strings, numbers, booleans and None. A value is a dict with its
registered name under "name" and all its fields; the outermost dict also has the library's version.
Names are looked up only in the registry: a config can call registered constructors, but it cannot
import or run anything else.
"""

import dataclasses
import inspect
import json
import math
from collections.abc import Callable, Iterable
from typing import Any, NoReturn, cast

from gradxform._names.deferred import annotations_of, signature_of
from gradxform._names.guesses import argument_suggestion, suggestion
from gradxform._names.version import __version__
from gradxform.errors import (
    TOO_DEEP,
    check_nesting,
    cut_name,
    extended_path,
    name_of,
    parts_of_data,
    shown,
)
from gradxform.types import SupportsTransform
from gradxform.values.known_arguments import own_name
from gradxform.values.registry import REGISTRY
from gradxform.values.value import FrozenTree, Value, as_dicts, fields_of, is_live, rebuild, thawed

Config = dict[str, Any]

_NUMBERS = {"inf": math.inf, "-inf": -math.inf}

# Enough digits for any number in the range of a float.
_DIGITS = 400


def to_config(tx: Any) -> Config:
    """Return a transform, schedule or mask as plain data, with all its fields.

    Args:
      tx: a value of this library, or of a class registered under a name.

    Returns:
      A dict that `json` can write, and that `from_config` turns into an equal value.

    Raises:
      TypeError: with the path of anything that cannot be written: a function or class that is not
        registered, a transform of another library, a live array.
      ValueError: with the path of a value that is nested more than 200 deep or contains itself, or
        of an integer beyond the range of a float.
    """
    if type(tx) in (tuple, list, dict):
        kind = f"a {type(tx).__name__}"
        raise TypeError(f"to_config: needs a transform, schedule or mask, got {kind}.")
    path = cut_name((isinstance(tx, Value) and tx.written()[0]) or name_of(tx))
    check_nesting(tx, path, _parts)
    body = _write(tx, path)
    if not isinstance(body, dict) or "name" not in body:
        raise TypeError(f"to_config: needs a transform, schedule or mask, got {shown(tx)}.")
    return {"version": __version__, **body}


def to_json(tx: Any, indent: int | None = 2) -> str:
    """Return `to_config(tx)` as JSON text.

    Args:
      tx: as in `to_config`.
      indent: spaces per level; None writes one line.
    """
    return json.dumps(to_config(tx), indent=indent, allow_nan=False)


def from_config(config: Config) -> Any:
    """Return the value that a config describes.

    Fields that are left out have their defaults, so that a config can be written by hand. A name
    may be that of an optimizer function, such as "adamw".

    Args:
      config: the result of `to_config`, or plain data of that form.

    Raises:
      ValueError, TypeError: with the path of the error and the closest names. Data that is nested
        more than 200 deep or contains itself, and integers beyond the range of a float, are errors
        too.
    """
    if not isinstance(config, dict):
        raise TypeError(
            f"config: must be a dict with a 'name', got {type(config).__name__}."
            + (" For JSON text there is from_json." if isinstance(config, str) else "")
        )
    check_nesting(config, "config", parts_of_data)
    body = dict(config)
    version = body.pop("version", None)
    if version is not None and not isinstance(version, str):
        raise TypeError(f"config.version: must be a string, got {shown(version)}.")
    if "name" not in body:
        raise ValueError("config: no 'name'; it says which transform this is.")
    try:
        return _read(body, "config")
    except RecursionError:  # the caller's stack is deep too
        raise ValueError(f"config: {TOO_DEEP} to be read here.") from None


def from_json(text: str) -> Any:
    """Return the value that JSON text describes, as `from_config` does.

    Raises:
      ValueError: if the text is not JSON, or has a key twice.
    """
    if not isinstance(text, str):
        raise TypeError(f"config: must be JSON text, got {shown(text)}.")
    try:
        data = json.loads(
            text,
            object_pairs_hook=_json_without_repeats,
            parse_constant=_refuse_json_constant,
            parse_int=lambda digits: int(digits[:_DIGITS]),
            parse_float=_number_of_json,
        )
    except json.JSONDecodeError as error:
        raise ValueError(
            f"config: not JSON: {error.msg} at line {error.lineno}, column {error.colno}."
        ) from None
    except RecursionError:
        raise ValueError(f"config: {TOO_DEEP}.") from None
    return from_config(data)


def _json_without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    items: dict[str, Any] = {}
    for k, v in pairs:
        if k in items:
            raise ValueError(f"config: {shown(k)} is given twice.")
        items[k] = v
    return items


def _refuse_json_constant(text: str) -> NoReturn:
    raise ValueError(f"config: {text} is not JSON; write an infinity as {{'number': 'inf'}}.")


def _number_of_json(text: str) -> float | int:
    """Return a number of JSON; one beyond floats as an integer, which `check_nesting` refuses."""
    number = float(text)
    return number if math.isfinite(number) else 10**_DIGITS


# --------------------------------------------------------------------------------------- nesting


def _parts(x: Any) -> Iterable[tuple[str, Any]] | None:
    """Return the parts of a value, as `parts_of_data` does for plain data."""
    return parts_of_data(fields_of(x) if isinstance(x, Value) else thawed(x))


# --------------------------------------------------------------------------------------- writing


def _write(x: Any, path: str) -> Any:
    if is_live(x):
        raise TypeError(f"{path}: holds a live number, which cannot be written.")
    if isinstance(x, float) and not math.isfinite(x):
        return {"number": str(x)}
    if x is None or isinstance(x, bool | int | float | str):
        return x
    if isinstance(x, Value):
        return _write_config_of_value(x, path)
    if isinstance(x, FrozenTree):
        return _write(as_dicts(x.unfreeze()), path)
    if type(x) in (tuple, list, dict):
        return _write_tree(x, path)
    if isinstance(x, SupportsTransform) and not isinstance(x, type):
        raise TypeError(
            f"{path}: {cut_name(name_of(x))} is not a registered transform and cannot be written. "
            "Use gradxform's of that name, or make it a class with @transform(name='package:name')."
        )
    if callable(x):
        name = REGISTRY.name_of(x)
        if name is not None:
            return {"function": name}
        function = "a lambda" if getattr(x, "__name__", "") == "<lambda>" else shown(x)
        raise TypeError(
            f"{path}: {function} cannot be written. Use a schedule or a mask of the library, or "
            "register it with register('package:name', ...)."
        )
    raise TypeError(f"{path}: {shown(x)} cannot be written.")


def _write_config_of_value(x: Value, path: str) -> Config:
    name, fields = x.written()
    if name is None:
        raise TypeError(
            f"{path}: the class {cut_name(type(x).__name__)} is not registered; decorate it with "
            f"{'@transform' if isinstance(x, SupportsTransform) else '@value'}"
            f"(name='package:{cut_name(type(x).__name__)}')."
        )
    config: Config = {"name": name}
    for field, v in fields.items():
        here = extended_path(path, f".{field}")
        config[field] = _write_config_of_all(v, here) if field == x.variadic else _write(v, here)
    return config


def _write_tree(x: Any, path: str) -> Any:
    """Return lists and dicts with plain keys as they are, others as a dict with their kind."""
    if isinstance(x, dict):
        items = {}
        for k, v in x.items():
            items[k] = _write(v, extended_path(path, f"[{k!r}]"))
        if all(isinstance(k, str) for k in items):
            return _escaped(items)
        return {"dict": [[_write(k, path), v] for k, v in items.items()]}
    items = _write_config_of_all(x, path)
    return {"tuple": items} if isinstance(x, tuple) else items


def _escaped(items: dict[str, Any]) -> dict[str, Any]:
    """Return a dict of what is written, as a list of pairs if it could be read as a value."""
    return {"dict": [[k, v] for k, v in items.items()]} if _RESERVED & items.keys() else items


def _write_config_of_all(x: Iterable[Any], path: str) -> list[Any]:
    items = []  # loops, here and below, because a comprehension costs one more call per level
    for i, v in enumerate(x):
        items.append(_write(v, extended_path(path, f"[{i}]")))
    return items


_RESERVED = {"name", "dict", "tuple", "function", "number"}


# --------------------------------------------------------------------------------------- reading


def _read(x: Any, path: str) -> Any:
    if isinstance(x, list):
        items = []
        for i, v in enumerate(x):
            items.append(_read(v, extended_path(path, f"[{i}]")))
        return items
    if not isinstance(x, dict):
        if x is None or isinstance(x, bool | int | float | str):
            return x
        raise TypeError(f"{path}: must be plain data, got {shown(x)}.")
    if "name" in x:
        return _read_config_value(x, path)
    if len(x) == 1:
        (kind, body), *_ = x.items()
        if kind == "tuple":
            return tuple(_read(_list(body, path), path))
        if kind == "dict":
            return _read_dict(body, path)
        if kind == "number":
            if not isinstance(body, str) or body not in _NUMBERS:
                raise ValueError(f"{path}: a number is one of 'inf', '-inf', got {shown(body)}.")
            return _NUMBERS[body]
        if kind == "function":
            return _look_up_name(body, path, "function")
    return _read_fields(x, path)


def _read_fields(x: dict[str, Any], path: str) -> dict[str, Any]:
    items = {}
    for k, v in x.items():
        items[k] = _read(v, extended_path(path, f".{k}"))
    return items


def _list(x: Any, path: str) -> list[Any]:
    if not isinstance(x, list):
        raise TypeError(f"{path}: must be a list, got {shown(x)}.")
    return x


def _read_dict(body: Any, path: str) -> dict[Any, Any]:
    items = {}
    for i, pair in enumerate(_list(body, path)):
        here = extended_path(path, f"[{i}]")
        if not isinstance(pair, list) or len(pair) != 2:
            raise TypeError(f"{here}: must be a pair [key, value], got {shown(pair)}.")
        key = _read(pair[0], here)
        if isinstance(key, list | dict):
            raise TypeError(f"{here}: a {type(key).__name__} cannot be a key, got {shown(key)}.")
        if key in items:
            raise ValueError(f"{here}: the key {shown(key)} is given twice.")
        items[key] = _read(pair[1], extended_path(path, f"[{key!r}]"))
    return items


def _look_up_name(name: Any, path: str, kind: str) -> Callable[..., Any]:
    if not isinstance(name, str):
        raise TypeError(f"{path}: the name of a {kind} must be a string, got {shown(name)}.")
    if name not in REGISTRY:
        hint = suggestion(name, REGISTRY)
        if not hint and ":" in name:
            hint = f" Import the package that registers {cut_name(name)!r} first."
        raise ValueError(f"{path}: no {kind} named {cut_name(name)!r}.{hint}")
    return REGISTRY[name]


def _read_config_value(x: Config, path: str) -> Any:
    registered = _look_up_name(x["name"], path, "transform")
    if is_plain_function(registered):
        raise TypeError(
            f"{path}: {x['name']!r} is a function, not a transform, schedule or mask; where a "
            f"field takes a function, write it as {{'function': {x['name']!r}}}."
        )
    data = {k: v for k, v in x.items() if k != "name"}
    if (call := getattr(registered, "called_with", None)) in data:
        return _read_call(x, call, path)
    variadic = getattr(registered, "variadic", None)
    parameters = signature_of(registered).parameters
    names = list(parameters) if variadic is None else _field_names(registered)
    data = {own_name(k, names): v for k, v in data.items()}
    for field in data:
        if field not in names:
            raise ValueError(
                f"{path}: {x['name']} does not have a field {cut_name(str(field))!r}, only "
                f"{', '.join(names) or 'none'}."
                f"{argument_suggestion(str(field), names)}"
            )
    fields = _read_fields(data, path)
    if variadic is not None and not isinstance(fields.get(variadic, []), list | tuple):
        raise TypeError(f"{path}.{variadic}: must be a list, got {shown(data[variadic])}.")
    for field in names:
        if variadic is None and field not in data and _needs(parameters[field]):
            raise ValueError(f"{path}: {x['name']} needs the field {field!r}.")
    try:
        if variadic is not None:
            return rebuild(cast(type, registered), {variadic: ()} | fields)
        value = registered(**fields)
    except (TypeError, ValueError, OverflowError) as error:
        raise _error_at_path(error, path) from None
    if not isinstance(value, Value | SupportsTransform):
        raise TypeError(f"{path}: {x['name']!r} does not return a transform, schedule or mask.")
    return value


def _field_names(cls: Any) -> list[str]:
    return [f.name for f in dataclasses.fields(cls)]


def is_plain_function(registered: Any) -> bool:
    """Whether it is a function annotated to return something else than a value."""
    if isinstance(registered, type):
        return False
    returns = annotations_of(registered).get("return", Value)
    return not (isinstance(returns, type) and issubclass(returns, Value))


def _needs(parameter: inspect.Parameter) -> bool:
    is_variadic = parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    return parameter.default is parameter.empty and not is_variadic


def _error_at_path(error: Exception, path: str) -> Exception:
    kind = TypeError if isinstance(error, TypeError) else ValueError
    return kind(f"{path}: {' '.join(str(error).split())}")


def _read_call(x: Config, call: str, path: str) -> Any:
    """Call the value that a config describes with the arguments beside its fields."""
    here = extended_path(path, f".{call}")
    arguments = _read(x[call], here)
    factory = _read_config_value({k: v for k, v in x.items() if k != call}, path)
    if not isinstance(arguments, dict):
        raise TypeError(f"{here}: must be a dict, got {shown(arguments)}.")
    try:
        return factory(**arguments)
    except (TypeError, ValueError, OverflowError) as error:
        raise _error_at_path(error, here) from None
