"""Matrices in squares: a few bits for each entry, and scales for its row and for its column."""

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp

from gradxform._jax.versions import with_whole_dims
from gradxform.leaves.storage.blocks import (
    BlockForm,
    Blocks,
    as_blocks,
    block_divisors,
    finite_entries,
    fitted_form,
    joined,
    packed_codes,
    unpacked_codes,
)
from gradxform.leaves.storage.codes import CODE_FORMS, Code
from gradxform.leaves.storage.stored import StoredArray, stored_array
from gradxform.numerics import cast
from gradxform.numerics.overflow import quotient_by_shared
from gradxform.types import Array


@stored_array(BlockForm, *CODE_FORMS)
class Crossed(StoredArray):
    """An array whose entries are codes of 4 bits, times the smaller of two scales.

    The last two axes are cut into squares. The scales of an entry are the largest magnitudes in
    its row and in its column of the square, so that a row or a column of large entries leaves the
    others what they are.

    Reference: Li et al., Memory Efficient Optimizers with 4-bit States, 2023, Section 4.2, with the
    whole matrix for a square.
    """

    codes: Array  # (..., m, squares, block / 2) uint8, two to a byte
    rows: Array  # (..., m, squares) float32, of the rows of each square
    columns: Array  # (..., squares, n) float32, of its columns
    form: BlockForm

    shared_by_rows = "by rank1, with scales that several rows share"

    @classmethod
    def of(cls, x: Array, code: Code, block: int, rows: int | None = None) -> StoredArray:
        """Return an array in squares of `rows` rows and `block` columns; a vector in blocks.

        By default there are as many rows as columns.
        """
        if x.ndim < 2:
            return Blocks.of(x, code, block)
        return cls._of(x, BlockForm(code, block, None, jnp.dtype(x.dtype), rows or block))

    @classmethod
    def _of(cls, x: Array, form: BlockForm) -> "Crossed":
        x = finite_entries(x)
        size = jnp.abs(x)
        rows = jnp.max(as_blocks(size, form), axis=-1, initial=0.0)
        columns = jnp.max(_matrix_in_squares(size, form), axis=-2, initial=0.0)
        scales = _scales(rows, columns, form, x.shape[-2])
        codes = packed_codes(
            form.code.encode(quotient_by_shared(as_blocks(x, form), block_divisors(scales)))
        )
        return cls(codes, rows, columns, fitted_form(form, x.shape[-1]))

    @property
    def is_by_rows(self) -> bool:
        """Whether the array is a stack of matrices; rows of one share the scales of its columns."""
        return self.columns.ndim > 2

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the array."""
        return (*self.rows.shape[:-1], self.columns.shape[-1])

    @property
    def dtype(self) -> Any:
        """The dtype in which a rule sees it."""
        return self.form.dtype

    @property
    def kept_as(self) -> str:
        """The code and its bits."""
        block, rows = self.form.block, self.form.rows
        square = f"{block}" if block == rows else f"{rows} x {block}"
        return f"{self.form.code.bits} bits ({self.form.code.name}, squares of {square})"

    def load(self) -> Array:
        """Return the array."""
        scales = _scales(self.rows, self.columns, self.form, self.shape[-2])
        blocks = self.form.code.decode(unpacked_codes(self.codes)) * scales
        x = joined(blocks)[..., : self.shape[-1]]
        return cast(x, self.dtype)

    def store(self, new: Array) -> "Crossed":
        """Return another array in the same form."""
        return self._of(new, self.form)

    def by_rows(self) -> tuple[tuple[Array, int], ...]:
        """Return codes and scales."""
        span = 1 if self.is_by_rows else self.form.rows
        return (self.codes, 1), (self.rows, 1), (self.columns, span)

    def with_rows(self, arrays: Sequence[Array], shape: tuple[int, ...]) -> "Crossed":
        """Return the same form of an array of that shape, made of other codes and scales."""
        codes, rows, columns = arrays
        return Crossed(codes, rows, columns, fitted_form(self.form, shape[-1]))

    def placed(self, place: Any, replicated: Any) -> "Crossed":
        """Return the shardings of codes and scales: that of the array."""
        return Crossed(place, place, place, self.form)


def _matrix_in_squares(x: Array, form: BlockForm) -> Array:
    """Return the array as (..., squares, rows, n), filled up with zeros."""
    missing = -x.shape[-2] % form.rows
    if missing:
        x = jnp.pad(with_whole_dims(x, -2), [(0, 0)] * (x.ndim - 2) + [(0, missing), (0, 0)])
    return x.reshape(*x.shape[:-2], x.shape[-2] // form.rows, form.rows, x.shape[-1])


def _scales(rows: Array, columns: Array, form: BlockForm, m: int) -> Array:
    """Return the scale of each entry, as (..., m, squares, block)."""
    below = jnp.repeat(columns, form.rows, axis=-2)[..., :m, :]
    return jnp.minimum(rows[..., None], as_blocks(below, form))
