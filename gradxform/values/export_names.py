"""Tell `jax.export` the names of the classes in a state, so that it writes compiled steps.

A program that is written names the containers of its arguments. Whoever reads it must know the
classes of these names: those of an optimizer are known as soon as its module is loaded.
"""

import contextlib
import json
import sys
from typing import Any

import jax.numpy as jnp
import numpy as np

from gradxform.types import MaskedNode
from gradxform.values.arrivals import when_imported

_NAMED: set[type] = set()


def _class_label(cls: type) -> str:
    """Return the name of a class: of ours without the module, which may change."""
    home = "gradxform" if cls.__module__.split(".")[0] == "gradxform" else cls.__module__
    return f"{home}.{cls.__qualname__}"


def announce_named_tuples(module: str) -> None:
    """Tell `jax.export` of the NamedTuples that a module defines or imports."""
    for x in list(vars(sys.modules[module]).values()) if module in sys.modules else ():
        if isinstance(x, type) and issubclass(x, tuple) and hasattr(x, "_fields"):
            announce_named_tuple(x)


def announce_named_tuple(cls: type) -> None:
    """Tell `jax.export` of a class of states."""
    if cls in _NAMED:
        return
    _NAMED.add(cls)

    def register(export: Any) -> None:
        with contextlib.suppress(ValueError):  # somebody has told it, or a class has this name
            export.register_namedtuple_serialization(cls, serialized_name=_class_label(cls))

    when_imported("jax.export", register)


announce_named_tuple(MaskedNode)


def announce_node(cls: type, forms: tuple[type, ...] = ()) -> None:
    """Tell `jax.export` of a class that is a node of JAX's trees.

    Args:
      cls: the class.
      forms: the NamedTuples among its static fields; all else there is a number, a string, a dtype
        or None.
    """
    by_name = {form.__name__: form for form in forms}

    def as_bytes(aux: Any) -> bytes:
        return json.dumps(_aux_to_json(aux)).encode()

    def of_bytes(data: bytes) -> Any:
        return _aux_of_json(json.loads(data), by_name)

    def register(export: Any) -> None:
        with contextlib.suppress(ValueError):
            export.register_pytree_node_serialization(
                cls,
                serialized_name=_class_label(cls),
                serialize_auxdata=as_bytes,
                deserialize_auxdata=of_bytes,
            )

    when_imported("jax.export", register)


def _aux_to_json(x: Any) -> Any:
    """Return static fields as JSON; a list begins with what it is."""
    if isinstance(x, np.dtype):
        return ["dtype", x.name]
    if type(x) in (tuple, list):
        return ["", *map(_aux_to_json, x)]
    if isinstance(x, tuple):
        return [type(x).__name__, *map(_aux_to_json, x)]
    return x


def _aux_of_json(x: Any, forms: dict[str, type]) -> Any:
    if not isinstance(x, list):
        return x
    kind, *parts = x
    if kind == "dtype":
        return jnp.dtype(parts[0])
    values = [_aux_of_json(part, forms) for part in parts]
    return tuple(values) if kind == "" else forms[kind](*values)
