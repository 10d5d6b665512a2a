"""Row-sparse arrays: the rows that a batch touched, and their indices.

A `RowSparse` is a leaf to this library and a pytree to JAX. Its indices are stored in a dtype
without arithmetic, so that a tree map that does not know about them cannot change them.
"""

import operator
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from gradxform._jax.versions import as_opaque, from_opaque, is_tracer
from gradxform.errors import shown
from gradxform.numerics import abs_sq, at_least_float32, cast, looked_up, promote
from gradxform.types import Array
from gradxform.values.export_names import announce_node
from gradxform.values.flax_bytes import announce_to_flax

MAX_ROWS = 2**31 - 2


class _Type(type):
    """Prints the class with a remedy, for messages of JAX about trees that do not match."""

    def __repr__(cls) -> str:
        return (
            f"<class 'gradxform.sparse.{cls.__name__}' (an array after gradxform.sparse.densify)>"
        )


class RowSparse(metaclass=_Type):
    """An array that is zero except in a few rows, such as the gradient of an embedding table.

    Represents zeros of shape `(num_rows, *values.shape[1:])` with `values[i]` added to row
    `indices[i]`, for every i. Rows may repeat, in any order. Entries with the index `num_rows` are
    padding and ignored, as are entries with an index out of range that is known only at run time.

    `params + row_sparse` adds the rows, in the dtype of the array and in place if it is donated;
    the same holds in `optax.apply_updates`, `flax.training.train_state.TrainState` and
    `nnx.Optimizer`. The sum of two and the product with a scalar are row-sparse. Any other
    operation needs `to_dense()`, or the transform `gradxform.sparse.densify()` before it. JAX maps
    over its two leaves; the one that holds the rows does not allow arithmetic.

    Args:
      indices: integers of shape [n], each at least 0 and at most num_rows.
      values: floating (or complex), of shape [n, ...].
      num_rows: the size of the array's first axis, an int.

    Raises:
      TypeError: if the indices are not integers or the values not floating.
      ValueError: if the shapes do not fit, or a known index is out of range.
    """

    __slots__ = ("_rows", "coalesced", "num_rows", "raw", "values")

    _rows: Any  # [n], opaque: no arithmetic
    values: Array
    num_rows: int
    coalesced: bool  # whether the indices are sorted and, but for padding, unique
    raw: bool  # whether repeated rows must stay apart: each acts by itself

    __array_ufunc__ = None  # so that `numpy_array + row_sparse` calls `__radd__`

    def __init__(self, indices: Any, values: Any, num_rows: int):
        if isinstance(num_rows, bool | np.bool_) or not hasattr(num_rows, "__index__"):
            raise TypeError(f"RowSparse: num_rows must be an int, got {shown(num_rows)}.")
        rows = operator.index(num_rows)
        if not 0 <= rows <= MAX_ROWS:
            raise ValueError(f"RowSparse: num_rows must be from 0 to 2**31 - 2, got {rows}.")
        indices, values = _array("indices", indices), _array("values", values)
        if not jnp.issubdtype(indices.dtype, jnp.integer):
            if indices.size:
                raise TypeError(f"RowSparse: indices must be integers, got dtype {indices.dtype}.")
            indices = jnp.zeros(indices.shape, jnp.int32)  # an empty list becomes a float array
        if not jnp.issubdtype(values.dtype, jnp.inexact):
            raise TypeError(f"RowSparse: values must be floating, got dtype {values.dtype}.")
        if indices.ndim != 1:
            raise ValueError(
                f"RowSparse: indices must have shape [n], got {indices.shape}; for a lookup of any "
                "shape pass indices.reshape(-1) and values.reshape(-1, *row_shape)."
            )
        if values.ndim < 1 or values.shape[0] != indices.shape[0]:
            raise ValueError(
                f"RowSparse: values must have one row for each of the {indices.shape[0]} indices, "
                f"got shape {values.shape}."
            )
        self._fill(_hidden(_rows_in_range(indices, rows)), values, rows, False, False)

    def _fill(self, rows: Any, values: Any, num_rows: int, coalesced: bool, raw: bool) -> None:
        object.__setattr__(self, "_rows", rows)
        object.__setattr__(self, "values", values)
        object.__setattr__(self, "num_rows", num_rows)
        object.__setattr__(self, "coalesced", coalesced)
        object.__setattr__(self, "raw", raw)

    def __setattr__(self, name: str, value: Any):
        raise AttributeError(f"a RowSparse is immutable: {name} cannot be set")

    # ------------------------------------------------------------------------------- properties

    @property
    def indices(self) -> Array:
        """The rows, int32 of shape [n]; `num_rows` for padding."""
        return _revealed(self._rows, self.num_rows)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the represented array."""
        return (self.num_rows, *self.values.shape[1:])

    @property
    def ndim(self) -> int:
        """The number of dimensions of the represented array."""
        return len(self.shape)

    @property
    def dtype(self) -> Any:
        """The dtype of the values."""
        return self.values.dtype

    @property
    def padding(self) -> Array:
        """Booleans of shape [n]: which entries are padding."""
        return self.indices >= self.num_rows

    def __repr__(self) -> str:
        is_array = isinstance(self._rows, jax.Array)
        rows = self.indices if is_array else self._rows
        return f"RowSparse(indices={rows}, values={self.values}, num_rows={self.num_rows})"

    def __reduce__(self):
        return _restored, (self.indices, self.values, self.num_rows, self.coalesced, self.raw)

    # ----------------------------------------------------------------------------- conversions

    def with_values(self, values: Array) -> "RowSparse":
        """Return the same rows with other values, set to zero in the padding."""
        masked = jnp.where(_flags_beside_rows(self.padding, values), jnp.zeros_like(values), values)
        return _row_sparse(self._rows, masked, self.num_rows, self.coalesced, self.raw)

    def with_raw(self, raw: bool) -> "RowSparse":
        """Return the same rows, marked as to whether repeated ones must stay apart."""
        return _row_sparse(self._rows, self.values, self.num_rows, self.coalesced, raw)

    def coalesce(self) -> "RowSparse":
        """Return the same array with every row once, in order, and padding after the last.

        The size n stays. Repeated rows are summed in their order, in float32 or wider; a row with
        values that sum to zero is kept, because it was touched.
        """
        if self.coalesced and not self.raw:
            return self
        indices, values = _coalesced(self.indices, self.values, self.num_rows)
        return _row_sparse(_hidden(indices), values, self.num_rows, True, False)

    def to_dense(self) -> Array:
        """Return the represented array."""
        return self.add_to(jnp.zeros(self.shape, self.dtype))

    def sum_of_squares(self) -> Array:
        """Return the sum of |x|^2 over the array, a scalar in float32 or wider."""
        rows = self.with_values(self.values) if self.raw else self.coalesce()
        return jnp.sum(abs_sq(cast(rows.values, at_least_float32(self.dtype))))

    # --------------------------------------------------------------------- the rows of an array

    def take(self, array: Any) -> Array:
        """Return the rows of `array` at the indices, [n, ...]; any row for padding."""
        array = jnp.asarray(array)
        rows = array.at[self.indices].get(
            mode="clip",
            indices_are_sorted=self.coalesced,
            out_sharding=_sharding(array, of_rows=True),
        )
        return looked_up(rows)

    def put(self, array: Any, rows: Array) -> Array:
        """Return `array` with these rows replaced; if a row repeats, by its last value."""
        array = jnp.asarray(array)
        indices = self.indices if self.coalesced else _last(self.indices, self.num_rows)
        return array.at[indices].set(
            rows,
            mode="drop",  # padding, which is out of range
            indices_are_sorted=self.coalesced,
            unique_indices=True,
            out_sharding=_sharding(array),
        )

    def add_to(self, array: Any) -> Array:
        """Return `array` with the rows added, in its dtype."""
        array = jnp.asarray(array)
        if array.shape != self.shape:
            raise ValueError(
                f"RowSparse: rows of an array of shape {self.shape} cannot be added to one of "
                f"shape {array.shape}."
            )
        wide = promote(array.dtype, self.dtype)
        if not jnp.issubdtype(array.dtype, jnp.complexfloating) and jnp.issubdtype(
            wide, jnp.complexfloating
        ):
            raise TypeError(
                f"RowSparse: complex rows cannot be added to an array of dtype {array.dtype}."
            )
        if wide == array.dtype and at_least_float32(wide) == wide:
            return array.at[self.indices].add(
                cast(self.values, wide),
                mode="drop",
                indices_are_sorted=self.coalesced,
                unique_indices=self.coalesced,
                out_sharding=_sharding(array),
            )
        # Rounded only once, after the entries of each row are summed.
        rows = self.coalesce()
        wide = at_least_float32(wide)
        new = cast(rows.take(array), wide) + cast(rows.values, wide)
        return rows.put(array, cast(new, array.dtype))

    # ------------------------------------------------------------------------------- arithmetic

    def __add__(self, other: Any) -> Any:
        if isinstance(other, RowSparse):
            return _sum(self, other)
        if isinstance(other, int | float) and other == 0:  # the start of a `sum`
            return self
        if getattr(other, "shape", None) is None:
            return NotImplemented
        return self.add_to(other)

    __radd__ = __add__

    def __neg__(self) -> "RowSparse":
        return self * -1.0

    def __sub__(self, other: Any) -> Any:
        return self + (-other)

    def __rsub__(self, other: Any) -> Any:
        return (-self) + other

    def __mul__(self, other: Any) -> "RowSparse":
        return self._scaled("multiplied", other, operator.mul)

    __rmul__ = __mul__

    def __truediv__(self, other: Any) -> "RowSparse":
        return self._scaled("divided", other, operator.truediv)

    def _scaled(self, verb: str, other: Any, op: Any) -> "RowSparse":
        is_number = isinstance(other, int | float | complex) or hasattr(other, "dtype")
        if isinstance(other, RowSparse) or not is_number or np.shape(other) != ():
            raise TypeError(
                f"RowSparse: can only be {verb} by a scalar, got {shown(other)}; call to_dense() "
                "first, or put gradxform.sparse.densify() before the transform."
            )
        wide = at_least_float32(self.dtype)
        values = cast(op(cast(self.values, wide), cast(jnp.asarray(other), wide)), self.dtype)
        return _row_sparse(self._rows, values, self.num_rows, self.coalesced, self.raw)


# Whether an object is a RowSparse. JAX asks this of every node of a tree in every step, so it is
# what `isinstance` calls, without a frame of Python.
is_row_sparse: Callable[[Any], bool] = RowSparse.__instancecheck__


def coalesced(x: Any) -> Any:
    """Return a `RowSparse` coalesced, unless its rows must stay apart; anything else as it is."""
    return x if not isinstance(x, RowSparse) or x.raw else x.coalesce()


def _row_sparse(rows: Any, values: Any, num_rows: int, coalesced: bool, raw: bool) -> RowSparse:
    """Return a RowSparse of these fields; its values need not be arrays (see `_unflatten`)."""
    new = object.__new__(RowSparse)
    new._fill(rows, values, num_rows, coalesced, raw)
    return new


# ----------------------------------------------------------------------------------- the indices

# Stored inverted, so that a `zeros_like` of them is padding, not row 0.


def _hidden(indices: Array) -> Any:
    return as_opaque(~indices.astype(jnp.uint32))


def _revealed(rows: Any, num_rows: int) -> Array:
    return jnp.minimum(~from_opaque(rows), jnp.uint32(num_rows)).astype(jnp.int32)


def _array(name: str, x: Any) -> Array:
    try:
        return jnp.asarray(x)
    except (TypeError, ValueError) as error:
        raise TypeError(f"RowSparse: {name} must be an array, got {shown(x)}.") from error


def _rows_in_range(indices: Array, num_rows: int) -> Array:
    """Return the indices as int32; if they are traced, those out of range become padding."""
    if not is_tracer(indices) and indices.size and indices.is_fully_addressable:
        values = np.asarray(indices)
        for extreme in (values.min(), values.max()):
            if not 0 <= extreme <= num_rows:
                raise ValueError(
                    f"RowSparse: indices must be at least 0 and less than num_rows, {num_rows} "
                    f"({num_rows} itself is padding), got {extreme}."
                )
    if jnp.iinfo(indices.dtype).max <= jnp.iinfo(jnp.int32).max:
        indices = indices.astype(jnp.int32)  # num_rows may not fit fewer bits
    in_range = (indices >= 0) & (indices < num_rows)
    return jnp.where(in_range, indices, num_rows).astype(jnp.int32)


def _flags_beside_rows(flags: Array, values: Array) -> Array:
    """Return `flags` of shape [n] in a shape that broadcasts against `values`."""
    return flags.reshape(-1, *[1] * (values.ndim - 1))


def _coalesced(indices: Array, values: Array, num_rows: int) -> tuple[Array, Array]:
    n = indices.shape[0]
    if not n:
        return indices, values
    # Sorting integers and a binary search take half the time of sorting pairs.
    order = jnp.sort(indices)
    first = jnp.concatenate([jnp.ones(1, jnp.bool_), order[1:] != order[:-1]])
    place = jnp.cumsum(first, dtype=jnp.int32) - 1
    unique = jnp.full(n, num_rows, jnp.int32).at[place].set(order, indices_are_sorted=True)
    destination = jnp.searchsorted(unique, indices, method="scan_unrolled")
    wide = at_least_float32(values.dtype)
    sums = jnp.zeros(values.shape, wide).at[destination].add(cast(values, wide))
    padding = _flags_beside_rows(unique >= num_rows, values)
    return unique, cast(jnp.where(padding, jnp.zeros_like(sums), sums), values.dtype)


def _sharding(array: Array, of_rows: bool = False) -> NamedSharding | None:
    """Return the sharding of an array, or of rows of it, that an Explicit mesh requires."""
    sharding = jax.typeof(array).sharding
    if AxisType.Explicit not in sharding.mesh.axis_types:
        return None
    if not of_rows:
        return sharding
    return NamedSharding(sharding.mesh, PartitionSpec(None, *sharding.spec[1:]))


def _last(indices: Array, num_rows: int) -> Array:
    """Return the indices with all but the last of equal ones replaced by padding."""
    if not indices.shape[0]:
        return indices
    order = jnp.argsort(indices, stable=True)
    in_order = indices[order]
    last = jnp.concatenate([in_order[1:] != in_order[:-1], jnp.ones(1, jnp.bool_)])
    is_last = jnp.zeros(indices.shape, jnp.bool_).at[order].set(last, unique_indices=True)
    return jnp.where(is_last, indices, num_rows)


def _sum(a: RowSparse, b: RowSparse) -> RowSparse:
    if a.shape != b.shape:
        raise ValueError(f"RowSparse: arrays of shapes {a.shape} and {b.shape} cannot be added.")
    dtype = promote(a.dtype, b.dtype)
    values = jnp.concatenate([cast(a.values, dtype), cast(b.values, dtype)])
    rows = _hidden(jnp.concatenate([a.indices, b.indices]))
    return _row_sparse(rows, values, a.num_rows, False, a.raw and b.raw)


def _restored(indices: Array, *rest: Any) -> RowSparse:
    """Return a RowSparse from its pickled form; pickles name this function."""
    return _row_sparse(_hidden(indices), *rest)


def _flatten(x: RowSparse) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    return (x._rows, x.values), (x.num_rows, x.coalesced, x.raw)


def _rows_with_keys(x: RowSparse) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    children, aux = _flatten(x)
    names = map(jax.tree_util.GetAttrKey, ("indices", "values"))
    return tuple(zip(names, children, strict=True)), aux


def _unflatten(aux: tuple[Any, ...], children: Any) -> RowSparse:
    rows, values = children  # not always arrays: JAX unflattens with placeholders, too
    return _row_sparse(rows, values, *aux)


jax.tree_util.register_pytree_with_keys(RowSparse, _rows_with_keys, _unflatten, _flatten)


def _row_sparse_as_dict(x: RowSparse) -> dict[str, Any]:
    return {"indices": x.indices, "values": x.values}


def _row_sparse_of_dict(like: RowSparse, arrays: Any) -> RowSparse:
    return _restored(arrays["indices"], arrays["values"], like.num_rows, like.coalesced, like.raw)


announce_to_flax(RowSparse, _row_sparse_as_dict, _row_sparse_of_dict)
announce_node(RowSparse)
