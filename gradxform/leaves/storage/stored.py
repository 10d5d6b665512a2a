"""Forms that a state may keep in place of an array: fewer bytes, from which it is made anew."""

import abc
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Self, TypeVar, dataclass_transform

import jax

from gradxform.leaves.storage.folds import Folds
from gradxform.types import Array
from gradxform.values.export_names import announce_node
from gradxform.values.flax_bytes import announce_to_flax

T = TypeVar("T", bound=type)

# Returns the means of an array along an axis, which stays, with length 1.
Mean = Callable[[Array, int], Array]


class StoredArray(abc.ABC):
    """An array that a state keeps in another form.

    A rule sees the array. It is a leaf to this library, and a pytree of arrays to JAX, so that it
    can be donated, sharded and saved as they are.
    """

    __slots__ = ()

    part_names: ClassVar[tuple[str, ...]]  # of the arrays that it is made of
    is_by_rows: bool | property = True  # whether a row is stored apart from most others
    # What several rows share where they are not stored apart from each other.
    shared_by_rows: ClassVar[str] = "as means, each of which several rows share"
    needs_means = False  # whether it is made of means over the array
    first_row: Any = 0  # where its rows begin among those of what it consists of

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

        A row is an index of the first axis. Arrays without a part for each row are left out.
        """

    @abc.abstractmethod
    def with_rows(self, arrays: Sequence[Array], shape: tuple[int, ...]) -> Self:
        """Return the same form of an array of that shape, made of what `by_rows` returns."""

    @property
    def folds(self) -> Folds | None:
        """How the array is cut into blocks whose scale is their largest magnitude.

        Then there are `load_folded` and `store_scaled`, as in `Blocks`. None if it is not.
        """
        return None

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


@dataclass_transform(eq_default=False)
def stored_array(*forms: type) -> Callable[[T], T]:
    """Make a class a dataclass and a pytree; the fields annotated `Array` are its children.

    Args:
      *forms: the NamedTuples among the other fields.
    """
    return lambda cls: _as_array(cls, forms)


def _as_array(cls: T, forms: tuple[type, ...]) -> T:
    new_class: Any = dataclasses.dataclass(eq=False, repr=False, slots=True)(cls)
    fields = dataclasses.fields(new_class)
    arrays = [f.name for f in fields if f.type is Array]
    jax.tree_util.register_dataclass(
        new_class, data_fields=arrays, meta_fields=[f.name for f in fields if f.name not in arrays]
    )
    announce_to_flax(new_class, parts_of_stored, with_parts)
    announce_node(new_class, forms)
    new_class.part_names = tuple(arrays)
    return new_class


def parts_of_stored(x: StoredArray) -> dict[str, Any]:
    """Return the arrays that make up a stored array, by name."""
    return {name: getattr(x, name) for name in x.part_names}


def with_parts(like: StoredArray, parts: Mapping[str, Any]) -> StoredArray:
    """Return a stored array of the form of another, made of other arrays."""
    arrays = parts if isinstance(parts, Mapping) else {}
    missing = [name for name in like.part_names if name not in arrays]
    if missing:
        raise ValueError(
            f"{type(like).__name__}: the saved state lacks {missing[0]!r} here, only "
            f"{', '.join(map(str, arrays)) or 'an array'}. Was it stored in another way?"
        )
    form: Any = like
    return dataclasses.replace(form, **{name: arrays[name] for name in like.part_names})


def is_stored(x: Any) -> bool:
    """Whether a leaf is kept in another form than an array."""
    return isinstance(x, StoredArray)


def has_stored(tree: Any) -> bool:
    """Whether any leaf of a tree is kept in another form than an array."""
    return any(map(is_stored, jax.tree.leaves(tree, is_leaf=is_stored)))
