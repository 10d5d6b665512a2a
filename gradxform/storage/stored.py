"""What a state may keep in place of an array: fewer bytes, from which the array is made anew."""

import abc
from collections.abc import Callable, Sequence
from typing import Any, Self

import jax

from gradxform.types import Array

# Returns the means of an array along an axis, which stays, with length 1.
Mean = Callable[[Array, int], Array]


class StoredArray(abc.ABC):
    """An array that a state keeps in another form.

    A rule sees the array. It is a leaf to this library, and a pytree of arrays to JAX, so that it
    can be donated, sharded and saved as they are.
    """

    __slots__ = ()

    is_by_rows: bool | property = True  # whether a row is stored apart from most others
    needs_means = False  # whether it is made of means over the array

    @property
    @abc.abstractmethod
    def shape(self) -> tuple[int, ...]:
        """The shape of the array."""

    @property
    @abc.abstractmethod
    def dtype(self) -> Any:
        """The dtype in which a rule sees it."""

    @property
    @abc.abstractmethod
    def kept_as(self) -> str:
        """The form in words, such as "8 bits"."""

    @property
    def ndim(self) -> int:
        """The number of its dimensions."""
        return len(self.shape)

    @abc.abstractmethod
    def load(self) -> Array:
        """Return the array."""

    @abc.abstractmethod
    def store(self, new: Array) -> Self:
        """Return the form in which `new`, of the same shape, is kept."""

    def load_with(self, mean: Mean) -> Array:
        """Return what `load` does; `mean` may cover all pieces of a divided array."""
        return self.load()

    def store_with(self, new: Array, mean: Mean) -> Self:
        """Return what `store` does; `mean` may cover all pieces of a divided array."""
        return self.store(new)

    @abc.abstractmethod
    def by_rows(self) -> tuple[tuple[Array, int], ...]:
        """Return what it consists of, and how many rows of the array an entry of each spans.

        A row is an index of the first axis. What has no part for each row is left out.
        """

    @abc.abstractmethod
    def with_rows(self, arrays: Sequence[Array], shape: tuple[int, ...]) -> Self:
        """Return the same form of an array of that shape, made of what `by_rows` returns."""

    def opened(self, ways: int) -> "StoredArray":
        """Return what a loop over tiles of rows cuts and fills; `ways` as in `engine.tiles`."""
        return self

    def closed(self) -> "StoredArray":
        """Return what such a loop leaves, as the state keeps it."""
        return self

    @abc.abstractmethod
    def placed(self, place: Any, replicated: Any) -> Self:
        """Return the shardings of what it consists of, in its place, from that of the array."""

    def __repr__(self) -> str:
        arrays, form = jax.tree.flatten(self)
        return f"{type(self).__name__}({', '.join(map(repr, arrays))}, {form})"


def is_stored(x: Any) -> bool:
    """Whether a leaf is kept in another form than an array."""
    return isinstance(x, StoredArray)
