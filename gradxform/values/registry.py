"""Names: the parts that a config may name, and where those of this library are."""

import importlib
import sys
from collections.abc import Callable, Iterator, MutableMapping
from typing import Any, TypeVar

from gradxform._names.homes import homes_of
from gradxform._names.table import CONFIG_NAMES
from gradxform.errors import shown

T = TypeVar("T")


class Registry(MutableMapping[str, Callable[..., Any]]):
    """Every class, recipe and function that a config may name; other packages register theirs.

    Those of this library register themselves when their module is loaded, which looking one up
    does. To know the names, nothing is loaded.
    """

    def __init__(self) -> None:
        self._parts: dict[str, Callable[..., Any]] = {}
        # Where the names of this library are. Those with a colon are factories of the modules of
        # `compat`, which do not register themselves.
        self._homes: dict[str, str] = {}
        for module, names in CONFIG_NAMES.items():
            homes = homes_of(module)
            self._homes |= {name: homes.get(name, module) for name in names.split()}

    def __getitem__(self, name: str) -> Callable[..., Any]:
        if name not in self._parts and name in self._homes:
            module = importlib.import_module(self._homes[name])
            if ":" in name:
                return getattr(module, name.rpartition(":")[2])
        return self._parts[name]

    def __setitem__(self, name: str, part: Callable[..., Any]) -> None:
        self._parts[name] = part

    def __delitem__(self, name: str) -> None:
        del self._parts[name]

    def __contains__(self, name: object) -> bool:
        return name in self._parts or name in self._homes

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys([*self._homes, *self._parts]))

    def __len__(self) -> int:
        return len(self._homes.keys() | self._parts.keys())

    def parts(self) -> list[Callable[..., Any]]:
        """Return all that register themselves, those of this library loaded."""
        return [self[name] for name in self if ":" not in name or name in self._parts]

    def known(self, name: str) -> Callable[..., Any] | None:
        """Return what has that name, but None for a part of this library that is not loaded yet."""
        return self.get(name) if ":" in name else self._parts.get(name)

    def name_of(self, part: Any) -> str | None:
        """Return the name of an object; None if it is not registered. Nothing is loaded."""
        for name, registered in list(self._parts.items()):
            if registered is part:
                return name
        for name, home in self._homes.items():
            factory = name.rpartition(":")[2]
            if ":" in name and getattr(sys.modules.get(home), factory, None) is part:
                return name
        return None


REGISTRY = Registry()


def register(name: str, made: Callable[..., T]) -> Callable[..., T]:
    """Register a class, a recipe or a function under a name for configs.

    Args:
      name: `"package:name"`; only names of this library do not have a package.
      made: a class under `@transform` or `@value`, a function that returns one, or any function
        that can be in a field, such as the `should_skip_update_fn` of `MultiSteps`.

    Returns:
      `made`.
    """
    check_name(name, made)
    holder = REGISTRY.known(name)
    if holder is not None and _origin(holder) != _origin(made):  # a notebook may define it again
        raise ValueError(
            f"{name!r} is already registered, by {'.'.join(_origin(holder))}; choose another name."
        )
    REGISTRY[name] = made
    return made


def _origin(x: Any) -> tuple[str, str]:
    """Return the module and the name under which what is registered was defined."""
    return str(getattr(x, "__module__", "")), str(getattr(x, "__qualname__", repr(x)))


def check_name(name: Any, made: Any) -> None:
    """Require a valid name for `register`."""
    if not callable(made):
        raise TypeError(f"register: needs a class or a function, got {shown(made)}.")
    own_name = getattr(made, "__name__", name)
    if not isinstance(name, str):
        raise TypeError(f"{own_name}: the name must be a string 'package:name', got {shown(name)}.")
    package, _, rest = name.rpartition(":")
    module = getattr(made, "__module__", None) or ""
    if not rest or not (package or module.split(".")[0] == "gradxform"):
        raise ValueError(
            f"{own_name}: the name {name!r} needs a package; register under 'package:{own_name}'."
        )
