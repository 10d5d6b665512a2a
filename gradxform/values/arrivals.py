"""Do something when another library is imported: at once if it is there, or else when it comes.

Flax, for one, may be imported at any time, or never: also by the function that saves a state.
"""

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

Greeting = Callable[[Any], None]

_WAITING: dict[str, list[Greeting]] = {}


def when_imported(name: str, greet: Greeting) -> None:
    """Call `greet(module)` once the module of that name has been imported."""
    if name in sys.modules:
        greet(sys.modules[name])
        return
    _WAITING.setdefault(name, []).append(greet)
    if _FINDER not in sys.meta_path:
        sys.meta_path.insert(0, _FINDER)


class _Finder(importlib.abc.MetaPathFinder):
    """Finds modules that somebody waits for as the other finders do."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname not in _WAITING:
            return None
        for finder in sys.meta_path:
            spec = None if finder is self else finder.find_spec(fullname, path, target)
            if spec is not None:
                if spec.loader is not None:
                    spec.loader = _Greeter(spec.loader)
                return spec
        return None


class _Greeter(importlib.abc.Loader):
    """Loads a module as its own loader does, and then calls who waits for it."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        module.__loader__ = self._loader
        self._loader.exec_module(module)
        for greet in _WAITING.pop(module.__name__, ()):
            greet(module)


_FINDER = _Finder()
