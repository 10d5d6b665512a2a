"""Results that are computed once for a structure, and remembered."""

import contextlib
from typing import Generic, TypeVar

__all__ = []

K = TypeVar("K")
V = TypeVar("V")

# So many structures are remembered. A program has a few; tests have thousands.
MOST = 512


class Memory(Generic[K, V]):
    """A dict that forgets everything when it is full; keys that cannot be hashed are not kept."""

    def __init__(self) -> None:
        self._items: dict[K, V] = {}

    def get(self, key: K) -> V | None:
        """Return what is remembered for a key, or None."""
        try:
            return self._items.get(key)
        except (TypeError, ValueError):  # static data of a node, such as an array, cannot be hashed
            return None

    def keep(self, key: K, x: V) -> None:
        """Remember something for a key, if it can be."""
        if len(self._items) >= MOST:
            self._items.clear()
        with contextlib.suppress(TypeError, ValueError):
            self._items[key] = x
