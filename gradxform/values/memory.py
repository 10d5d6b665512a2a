"""Results that are computed once for a structure or a value, and remembered."""

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


class Recent(Generic[K, V]):
    """A dict that forgets what has not been asked for during the last `most` new keys."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._new: dict[K, V] = {}
        self._old: dict[K, V] = {}

    def get(self, key: K) -> V | None:
        """Return what is remembered for a key, or None."""
        x = self._new.get(key)
        if x is None and (x := self._old.get(key)) is not None:
            self.keep(key, x)
        return x

    def keep(self, key: K, x: V) -> None:
        """Remember something for a key."""
        if len(self._new) >= self._most:
            self._old, self._new = self._new, {}
        self._new[key] = x
