"""JAX is imported by one thread, before any module that needs it.

JAX's modules need each other while they are loaded, so that two threads that load them at once may
wait for each other for ever. Python breaks such a knot with an error, and leaves half of a module.
"""

import sys
import threading
from collections.abc import Sequence
from types import ModuleType

# What a program may import without JAX: the names, and the help of the command line.
_WITHOUT = ("gradxform._names", "gradxform.commands", "gradxform.__main__")
_LOCK = threading.RLock()


class _Finder:
    """Finds nothing. It imports JAX when a module of this library is asked for."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> None:
        """Import JAX, or wait for the thread that does."""
        if fullname.startswith("gradxform.") and not fullname.startswith(_WITHOUT):
            with _LOCK:
                import jax.numpy  # noqa: F401


def install() -> None:
    """Let JAX be imported before the modules that need it."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())
