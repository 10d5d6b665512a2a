"""Writing transforms, schedules and masks as plain data, and reading them back.

A config is made of dicts, lists, strings, numbers, booleans and None. A value is a dict with its
registered name under "name" and all its fields; the outermost also has the library's version.
Reading one looks names up in the registry and nowhere else: it never imports or runs what a config
says, beyond the registered constructors.
"""

import dataclasses
import inspect
import json
import math
from collections.abc import Callable
from typing import Any, cast

from gradxform._version import __version__
from gradxform.base import Transform
from gradxform.errors import did_you_mean, name_of, shown
from gradxform.registry import REGISTRY
from gradxform.types import SupportsTransform
from gradxform.values import FrozenTree, Value, fields_of, is_live, rebuild
from gradxform.wrappers.tune import injected

Config = dict[str, Any]

_NUMBERS = {"inf": math.inf, "-inf": -math.inf}


def to_config(tx: Any) -> Config:
    """Return a transform, schedule or mask as plain data, with all its fields.

    Args:
      tx: a value of this library, or of a class registered under a name.

    Returns:
      A dict of which `from_config` makes an equal value, and that `json` can write.

    Raises:
      TypeError: naming the place of anything that cannot be written: a function that is not
        registered, a class that is not, a transform of another library, a live array.
    """
    body = _write(tx, "inject_hyperparams" if isinstance(tx, injected) else name_of(tx))
    if not isinstance(body, dict) or "name" not in body:
        raise TypeError(f"to_config: a transform, schedule or mask is wanted, got {shown(tx)}.")
    return {"version": __version__, **body}


def to_json(tx: Any, indent: int | None = 2) -> str:
    """Return `to_config(tx)` as JSON text.

    Args:
      tx: as in `to_config`.
      indent: spaces per level; None for one line.
    """
    return json.dumps(to_config(tx), indent=indent, allow_nan=False)


def from_config(config: Config) -> Any:
    """Return the value that a config describes.

    Fields that are left out have their defaults, so that a config can be written by hand; a name
    may be that of an optimizer function, such as "adamw".

    Args:
      config: what `to_config` returns, or plain data of that form.

    Raises:
      ValueError, TypeError: naming the place of what is wrong, with the nearest names.
    """
    if not isinstance(config, dict):
        raise TypeError(
            f"config: must be a dict with a 'name', got {type(config).__name__}."
            + (" For JSON text there is from_json." if isinstance(config, str) else "")
        )
    body = dict(config)
    version = body.pop("version", None)
    if version is not None and not isinstance(version, str):
        raise TypeError(f"config.version: must be a string, got {version!r}.")
    if "name" not in body:
        raise ValueError("config: no 'name'; it says which transform this is.")
    return _read(body, "config")


def from_json(text: str) -> Any:
    """Return the value that JSON text describes, as `from_config` does.

    Raises:
      ValueError: if the text is not JSON, or names a thing twice.
    """
    if not isinstance(text, str):
        raise TypeError(f"config: JSON text is wanted, got {shown(text)}.")
    try:
        data = json.loads(text, object_pairs_hook=_no_repeats, parse_constant=_no_constants)
    except json.JSONDecodeError as error:
        raise ValueError(
            f"config: not JSON: {error.msg} at line {error.lineno}, column {error.colno}."
        ) from None
    return from_config(data)


def _no_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [k for k, _ in pairs]
        twice = next(k for k in names if names.count(k) > 1)
        raise ValueError(f"config: {twice!r} is given twice.")
    return found


def _no_constants(text: str) -> Any:
    raise ValueError(f"config: {text} is not JSON; write an infinity as {{'number': 'inf'}}.")


# --------------------------------------------------------------------------------------- writing


def _write(x: Any, path: str) -> Any:
    if is_live(x):
        raise TypeError(f"{path}: holds a live number, which has no value to write.")
    if isinstance(x, float) and not math.isfinite(x):
        return {"number": str(x)}
    if x is None or isinstance(x, bool | int | float | str):
        return x
    if isinstance(x, injected):
        return _write_injected(x, path)
    if isinstance(x, Value):
        return _write_value(x, path)
    if isinstance(x, FrozenTree):
        return _write(x.unfreeze(), path)
    if type(x) in (tuple, list, dict):
        return _write_tree(x, path)
    if isinstance(x, SupportsTransform) and not isinstance(x, type):
        raise TypeError(
            f"{path}: {name_of(x)} is not a registered transform and cannot be written. Use "
            "gradxform's of that name, or make it a class with @transform(name='package:name')."
        )
    if callable(x):
        for name, made in REGISTRY.items():
            if made is x:
                return {"function": name}
        what = "a lambda" if getattr(x, "__name__", "") == "<lambda>" else shown(x)
        raise TypeError(
            f"{path}: {what} cannot be written. Use a schedule or a mask of the library, or "
            "register it with register('package:name', ...)."
        )
    raise TypeError(f"{path}: {shown(x)} cannot be written.")


def _write_value(x: Value, path: str) -> Config:
    name = type(x).registered_name
    if name is None:
        raise TypeError(
            f"{path}: the class {type(x).__name__} is not registered; decorate it with "
            f"{'@transform' if isinstance(x, Transform) else '@value'}"
            f"(name='package:{type(x).__name__}')."
        )
    fields = {}
    for field, v in fields_of(x).items():
        if field == x.variadic:
            fields[field] = [_write(item, f"{path}.{field}[{i}]") for i, item in enumerate(v)]
        else:
            fields[field] = _write(v, f"{path}.{field}")
    return {"name": name, **fields}


def _write_injected(x: injected, path: str) -> Config:
    return {
        "name": "inject_hyperparams",
        "inner_factory": _write(x.factory.inner_factory, f"{path}.inner_factory"),
        "static_args": list(x.factory.static_args),
        "hyperparam_dtype": x.factory.hyperparam_dtype,
        "arguments": {k: _write(v, f"{path}.arguments.{k}") for k, v in x.arguments},
    }


def _write_tree(x: Any, path: str) -> Any:
    """Lists and dicts with plain keys as they are; the others with their kind."""
    if isinstance(x, dict):
        items = {k: _write(v, f"{path}[{k!r}]") for k, v in x.items()}
        if all(isinstance(k, str) for k in items) and not _RESERVED & items.keys():
            return items
        return {"dict": [[_write(k, path), v] for k, v in items.items()]}
    items = [_write(v, f"{path}[{i}]") for i, v in enumerate(x)]
    return {"tuple": items} if isinstance(x, tuple) else items


_RESERVED = {"name", "dict", "tuple", "function", "number"}


# --------------------------------------------------------------------------------------- reading


def _read(x: Any, path: str) -> Any:
    if isinstance(x, list):
        return [_read(v, f"{path}[{i}]") for i, v in enumerate(x)]
    if not isinstance(x, dict):
        if x is None or isinstance(x, bool | int | float | str):
            return x
        raise TypeError(f"{path}: plain data is wanted, got {shown(x)}.")
    if "name" in x:
        return _read_value(x, path)
    if len(x) == 1:
        (kind, body), *_ = x.items()
        if kind == "tuple":
            return tuple(_read(_list(body, path), path))
        if kind == "dict":
            return _read_dict(body, path)
        if kind == "number":
            if not isinstance(body, str) or body not in _NUMBERS:
                raise ValueError(f"{path}: a number is one of 'inf', '-inf', got {body!r}.")
            return _NUMBERS[body]
        if kind == "function":
            return _look_up(body, path, "function")
    return {k: _read(v, f"{path}.{k}") for k, v in x.items()}


def _list(x: Any, path: str) -> list[Any]:
    if not isinstance(x, list):
        raise TypeError(f"{path}: a list is wanted, got {x!r}.")
    return x


def _read_dict(body: Any, path: str) -> dict[Any, Any]:
    out = {}
    for i, pair in enumerate(_list(body, path)):
        if not isinstance(pair, list) or len(pair) != 2:
            raise TypeError(f"{path}[{i}]: a pair [key, value] is wanted, got {pair!r}.")
        key = _read(pair[0], f"{path}[{i}]")
        if isinstance(key, list | dict):
            raise TypeError(f"{path}[{i}]: a {type(key).__name__} cannot be a key, got {key!r}.")
        if key in out:
            raise ValueError(f"{path}[{i}]: the key {key!r} is given twice.")
        out[key] = _read(pair[1], f"{path}[{key!r}]")
    return out


def _look_up(name: Any, path: str, what: str) -> Callable[..., Any]:
    if not isinstance(name, str):
        raise TypeError(f"{path}: the name of a {what} must be a string, got {name!r}.")
    if name not in REGISTRY:
        hint = did_you_mean(name, REGISTRY)
        if not hint and ":" in name:
            hint = f" Import the package that registers {name!r} first."
        raise ValueError(f"{path}: no {what} named {name!r}.{hint}")
    return REGISTRY[name]


def _read_value(x: Config, path: str) -> Any:
    made = _look_up(x["name"], path, "transform")
    if _is_plain_function(made):
        raise TypeError(
            f"{path}: {x['name']!r} is a function, not a transform, schedule or mask; where a "
            f"field takes a function, write it as {{'function': {x['name']!r}}}."
        )
    given = {k: v for k, v in x.items() if k != "name"}
    if x["name"] == "inject_hyperparams" and "arguments" in given:
        return _read_injected(given, path)
    variadic = getattr(made, "variadic", None)
    parameters = inspect.signature(made).parameters
    known = list(parameters) if variadic is None else _field_names(made)
    for field in given:
        if field not in known:
            raise ValueError(
                f"{path}: {x['name']} has no field {field!r}, only {', '.join(known) or 'none'}."
                f"{did_you_mean(field, known)}"
            )
    fields = {k: _read(v, f"{path}.{k}") for k, v in given.items()}
    if variadic is not None and not isinstance(fields.get(variadic, []), list | tuple):
        raise TypeError(f"{path}.{variadic}: a list is wanted, got {given[variadic]!r}.")
    for field in known:
        if variadic is None and field not in given and _required(parameters[field]):
            raise ValueError(f"{path}: {x['name']} needs the field {field!r}.")
    try:
        if variadic is not None:
            return rebuild(cast(type, made), {variadic: ()} | fields)
        found = made(**fields)
    except (TypeError, ValueError) as error:
        raise _placed(error, path) from None
    if not isinstance(found, Value | SupportsTransform):
        raise TypeError(f"{path}: {x['name']!r} makes no transform, schedule or mask.")
    return found


def _field_names(cls: Any) -> list[str]:
    return [f.name for f in dataclasses.fields(cls)]


def _is_plain_function(made: Any) -> bool:
    """Whether what is registered says of itself that it returns no value: it is then not called."""
    if isinstance(made, type):
        return False
    said = getattr(made, "__annotations__", {}).get("return", Value)
    return not (isinstance(said, type) and issubclass(said, Value))


def _required(parameter: inspect.Parameter) -> bool:
    varies = parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    return parameter.default is parameter.empty and not varies


def _placed(error: Exception, path: str) -> Exception:
    kind = TypeError if isinstance(error, TypeError) else ValueError
    return kind(f"{path}: {error}")


def _read_injected(given: Config, path: str) -> Any:
    arguments = _read(given.pop("arguments"), f"{path}.arguments")
    factory = _read_value({"name": "inject_hyperparams", **given}, path)
    if not isinstance(arguments, dict):
        raise TypeError(f"{path}.arguments: a dict is wanted, got {shown(arguments)}.")
    try:
        return factory(**arguments)
    except (TypeError, ValueError) as error:
        raise _placed(error, f"{path}.arguments") from None
