"""Arrays without negative entries as the means of their rows and of their columns."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

from gradxform.leaves.storage.stored import Mean, StoredArray, stored_array
from gradxform.numerics import cast
from gradxform.types import Array


def matrix_axes(shape: tuple[int, ...], least: int) -> tuple[int, int] | None:
    """Return the second largest and the largest axis of an array; they form a matrix.

    The later of two axes of equal size counts as larger. None for an array with fewer than two
    axes, or one whose second largest is shorter than `least`, or empty.
    """
    if len(shape) < 2:
        return None
    *_, second, first = sorted(range(len(shape)), key=shape.__getitem__)
    return (second, first) if shape[second] >= max(least, 1) else None


_HUGE = 2.0**125  # the inverses of larger numbers are not normal, and may count as 0


class FactoredForm(NamedTuple):
    """How an array is kept as means."""

    rows: int  # the axis whose indices are the rows: the second largest
    columns: int  # the axis whose indices are the columns: the largest
    dtype: Any  # in which a rule sees the array


class _StoredFactors(StoredArray):
    """An array that is kept as means."""

    __slots__ = ()

    form: FactoredForm

    @property
    def dtype(self) -> Any:
        """The dtype in which a rule sees it."""
        return self.form.dtype

    @property
    def kept_as(self) -> str:
        """Its means."""
        return "row and column means"


@stored_array(FactoredForm)
class Factored(_StoredFactors):
    """A matrix, or a stack of them, as the means of each row and of each column.

    It is the matrix of rank 1 with these means: of all such the closest in the generalized
    Kullback-Leibler divergence.

    Reference: Shazeer and Stern, Adafactor: Adaptive Learning Rates with Sublinear Memory Cost,
    2018, section 3, Lemma 1.
    """

    needs_means = True

    row: Array  # the shape without `form.columns`; float32, the mean of each row
    col: Array  # the shape without `form.rows`; float32, the mean of each column
    form: FactoredForm

    @classmethod
    def of(cls, x: Array, axes: tuple[int, int], mean: Mean | None = None) -> "Factored":
        """Return the means of an array over the axes of a matrix, as `matrix_axes` has them."""
        form = FactoredForm(*axes, jnp.dtype(x.dtype))
        return cls(*_means(x, form, mean or _mean_for_factors), form)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the array."""
        axis = self.form.columns
        # The column means lack the axis of the rows.
        length = self.col.shape[axis - (axis > self.form.rows)]
        return (*self.row.shape[:axis], length, *self.row.shape[axis:])

    def load(self) -> Array:
        """Return the product of the means, over the mean of all."""
        return self.load_with(_mean_for_factors)

    def load_with(self, mean: Mean) -> Array:
        """Return the product of the means, over the mean of all."""
        rows, columns, dtype = self.form
        # Shares of the rows first: the product of two means may leave float32.
        share = _shares_of_factor(jnp.expand_dims(self.row, columns), rows, mean)
        return cast(_outer_product_of_factors(share, jnp.expand_dims(self.col, rows)), dtype)

    def store(self, new: Array) -> "Factored":
        """Return the means of another array."""
        return self.store_with(new, _mean_for_factors)

    def store_with(self, new: Array, mean: Mean) -> "Factored":
        """Return the means of another array."""
        return Factored(*_means(new, self.form, mean), self.form)

    @property
    def is_by_rows(self) -> bool:
        """Whether the array is a stack of matrices, so that a row is one or several of them."""
        return 0 not in (self.form.rows, self.form.columns)

    def by_rows(self) -> tuple[tuple[Array, int], ...]:
        """Return the means that have the first axis."""
        return tuple((x, 1) for x, axis in self._parts() if axis != 0)

    def with_rows(self, arrays: Sequence[Array], shape: tuple[int, ...]) -> "Factored":
        """Return the same form of an array of that shape, made of other such means."""
        some = iter(arrays)
        row, col = (x if axis == 0 else next(some) for x, axis in self._parts())
        return Factored(row, col, self.form)

    def _parts(self) -> tuple[tuple[Array, int], ...]:
        """Return the means, each with the axis that it lacks."""
        return (self.row, self.form.columns), (self.col, self.form.rows)

    def opened(self, ways: int) -> "StoredArray":
        """Return the means for a loop over the rows of a matrix."""
        if self.is_by_rows:
            return self
        (along,), (across,) = (
            [x for x, axis in self._parts() if (axis == 0) == is_across]
            for is_across in (False, True)
        )
        share = _shares_of_factor(along, 0, _mean_for_factors)
        total = jnp.zeros((ways, *across.shape), across.dtype)
        return OpenMeans(share, across, total, self.form, self.shape[0])

    def placed(self, place: Any, replicated: Any) -> "Factored":
        """Return the shardings of the means: that of the array, along the axes that they have."""
        rows, columns, _ = self.form
        return Factored(_factor_place(place, columns), _factor_place(place, rows), self.form)


@stored_array(FactoredForm)
class OpenMeans(_StoredFactors):
    """The means of a matrix, or of a stack of them, in the middle of a loop over its rows.

    The means along the first axis become those of the new array tile by tile. The others stay,
    and those of the new array add up beside them, each part of the rows for itself.
    """

    along: Array  # with the first axis: shares of the old means, and behind the loop new means
    across: Array  # without it: the old means
    total: Array  # (ways, *across.shape): what the tiles so far contribute to the new means
    form: FactoredForm
    length: int  # of the first axis of the whole array

    @property
    def _axis(self) -> int:
        """The axis of the matrix that is not the first: that which `along` lacks."""
        return max(self.form.rows, self.form.columns)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the array."""
        axis = self._axis
        return (*self.along.shape[:axis], self.across.shape[axis - 1], *self.along.shape[axis:])

    def load(self) -> Array:
        """Return the product of the shares and the means."""
        share = jnp.expand_dims(self.along, self._axis)
        return cast(_outer_product_of_factors(share, self.across[None]), self.dtype)

    def store(self, new: Array) -> "OpenMeans":
        """Return the means of other rows, and add to the others what these rows make of them."""
        new = _non_negative_for_factors(new)
        along = jnp.squeeze(_mean_for_factors(new, self._axis), self._axis)
        parts = new.reshape(self.total.shape[0], -1, *new.shape[1:])
        total = self.total + jnp.sum(parts / self.length, axis=1)
        return OpenMeans(along, self.across, total, self.form, self.length)

    def by_rows(self) -> tuple[tuple[Array, int], ...]:
        """Return the means along the first axis."""
        return ((self.along, 1),)

    def with_rows(self, arrays: Sequence[Array], shape: tuple[int, ...]) -> "OpenMeans":
        """Return the same with other means along the first axis."""
        (along,) = arrays
        return OpenMeans(along, self.across, self.total, self.form, self.length)

    def closed(self) -> Factored:
        """Return the means of the new array."""
        means = self.along, jnp.sum(self.total, axis=0)
        row, col = means if self.form.rows == 0 else means[::-1]
        return Factored(row, col, self.form)

    def placed(self, place: Any, replicated: Any) -> Any:
        """Refuse: no state keeps it."""
        raise TypeError("means in the middle of a loop do not have a place in a state")


def _non_negative_for_factors(x: Array) -> Array:
    return jnp.maximum(cast(x, jnp.float32), 0.0)


def _mean_for_factors(x: Array, axis: int) -> Array:
    # A sum of the largest numbers would overflow.
    return jnp.sum(x / x.shape[axis], axis=axis, keepdims=True)


def _shares_of_factor(means: Array, axis: int, mean_of: Mean) -> Array:
    """Return means over their mean along an axis; 0 where that is 0, infinite where it is huge."""
    mean = mean_of(means, axis)
    is_zero = mean == 0
    shares = jnp.where(is_zero, 0.0, means / jnp.where(is_zero, 1, mean))
    return jnp.where(mean > _HUGE, jnp.inf, shares)


def _outer_product_of_factors(shares: Array, means: Array) -> Array:
    """Return the matrix. One with an infinity is infinite: no other entry may seem to be small."""
    return jnp.where(jnp.isinf(shares), shares, shares * means)


def _means(x: Array, form: FactoredForm, mean: Mean) -> tuple[Array, Array]:
    """Return the means over the columns and over the rows."""
    x = _non_negative_for_factors(x)
    row, col = (jnp.squeeze(mean(x, axis), axis) for axis in (form.columns, form.rows))
    return row, col


def _factor_place(place: Any, axis: int) -> Any:
    """Return a sharding of an array without one of its axes."""
    if isinstance(place, NamedSharding):
        spec = PartitionSpec(*_factor_spec(place.spec, axis))
        return NamedSharding(place.mesh, spec, memory_kind=place.memory_kind)
    return PartitionSpec(*_factor_spec(place, axis)) if isinstance(place, PartitionSpec) else place


def _factor_spec(entries: Any, axis: int) -> list[Any]:
    rest = [entry for i, entry in enumerate(entries) if i != axis]
    while rest and rest[-1] is None:
        rest.pop()
    return rest
