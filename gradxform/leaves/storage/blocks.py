"""Arrays in blocks: a few bits for each entry, and a float32 scale for each block."""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from gradxform._jax.versions import with_whole_dims
from gradxform.leaves.storage.codes import CODE_FORMS, Code
from gradxform.leaves.storage.folds import Folds
from gradxform.leaves.storage.stored import StoredArray, stored_array
from gradxform.numerics import cast
from gradxform.numerics.overflow import quotient_by_shared
from gradxform.types import Array

_LEAST_BLOCK = 8  # half of the bytes of float32 would be scales, where blocks of 8 bits are shorter


class BlockForm(NamedTuple):
    """How an array is kept in blocks."""

    code: Code
    block: int  # the entries of a block, along the last axis; the last block may be shorter
    length: int | None  # of the last axis, where two codes share a byte and some are filled up
    dtype: Any  # in which a rule sees the array
    rows: int = 1  # the rows that share scales, where squares of them have scales of columns too


@stored_array(BlockForm, *CODE_FORMS)
class Blocks(StoredArray):
    """An array whose entries are codes, times the scale of their block.

    Blocks lie along the last axis, so that codes and scales have the other axes of the array, and
    are sharded as it is. The scale of a block is the largest magnitude in it.
    """

    codes: Array  # (..., n) uint8 or float8; of 4 bits (..., blocks, block / 2), two to a byte
    scales: Array  # (..., blocks) float32
    form: BlockForm

    @classmethod
    def of(cls, x: Array, code: Code, block: int, dtype: Any = None) -> "Blocks":
        """Return an array of at least one dimension in blocks of `block` entries."""
        return cls._of(x, BlockForm(code, block, None, jnp.dtype(dtype or x.dtype)))

    @classmethod
    def _of(cls, x: Array, form: BlockForm) -> "Blocks":
        x = finite_entries(x)
        scales = jnp.max(jnp.abs(as_blocks(x, form)), axis=-1, initial=0.0)
        return cls._scaled(x, scales, form)

    @classmethod
    def _scaled(cls, x: Array, scales: Array, form: BlockForm) -> "Blocks":
        return cls(_codes(x, scales, form), scales, fitted_form(form, x.shape[-1]))

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the array."""
        if self.form.code.bits == 8:
            return self.codes.shape
        *above, blocks, half = self.codes.shape
        length = 2 * blocks * half if self.form.length is None else self.form.length
        return (*above, length)

    @property
    def dtype(self) -> Any:
        """The dtype in which a rule sees it."""
        return self.form.dtype

    @property
    def kept_as(self) -> str:
        """The code and its bits."""
        return f"{self.form.code.bits} bits ({self.form.code.name}, blocks of {self.form.block})"

    def load(self) -> Array:
        """Return the array."""
        form, length = self.form, self.shape[-1]
        if form.code.bits == 4:
            blocks = form.code.decode(unpacked_codes(self.codes)) * self.scales[..., None]
            x = joined(blocks)[..., :length]
        else:
            x = _mapped(form.code.decode(self.codes), self.scales, form, jnp.multiply)
        return cast(x, form.dtype)

    def store(self, new: Array) -> "Blocks":
        """Return another array in the same form."""
        return self._of(new, self.form)

    @property
    def folds(self) -> Folds | None:
        """How the last axis is cut into parts of blocks; None if it cannot be."""
        # Of 4 bits, two of a block share a byte, whether there is something in all of it or not.
        return None if self.form.length is not None else _folds(self.form, self.shape[-1])

    def load_folded(self, folds: Folds) -> Array:
        """Return the array, cut."""
        form = self.form
        codes = self.codes if form.code.bits == 8 else joined(unpacked_codes(self.codes))
        scales = folds.scales(self.scales)
        scales = scales.reshape(*scales.shape, *[1] * len(folds.lengths))
        return cast(form.code.decode(folds.of(codes)) * scales, form.dtype)

    def store_scaled(self, new: Array, scales: Array) -> "Blocks":
        """Return another array in the same form, whose largest magnitudes in blocks are known."""
        return self._scaled(cast(new, jnp.float32), finite_entries(scales), self.form)

    def by_rows(self) -> tuple[tuple[Array, int], ...]:
        """Return codes and scales."""
        block = 1 if self.scales.ndim > 1 else block_length(self.form, self.shape[-1])
        return (self.codes, block if self.form.code.bits == 4 else 1), (self.scales, block)

    def with_rows(self, arrays: Sequence[Array], shape: tuple[int, ...]) -> "Blocks":
        """Return the same form of an array of that shape, made of other codes and scales."""
        codes, scales = arrays
        return Blocks(codes, scales, fitted_form(self.form, shape[-1]))

    def placed(self, place: Any, replicated: Any) -> "Blocks":
        """Return the shardings of codes and scales: that of the array."""
        return Blocks(place, place, self.form)


def block_between_cuts(x: Array, block: int, dim: int, even: bool) -> int | None:
    """Return how many indices of a dimension make a block that ends where devices divide it.

    Only types say where an array is cut, those of explicit axes: not those that the compiler
    divides.

    Args:
      x: the array.
      block: the largest number.
      dim: the dimension.
      even: whether the number must be even, because two codes share a byte.

    Returns:
      `block` where the dimension is not cut; None where only blocks of few indices would fit.
    """
    length = _length_between_cuts(x, dim)
    if length == x.shape[dim]:
        return block
    step = 2 if even else 1
    fits = [n for n in range(step, min(block, length) + 1, step) if length % n == 0]
    most = max(fits, default=0)
    return most if most >= min(block, length, _LEAST_BLOCK) else None


def _length_between_cuts(x: Array, dim: int) -> int:
    """Return how many indices of a dimension a device has."""
    sharding = jax.typeof(x).sharding
    axes = sharding.spec[dim]
    names = axes if isinstance(axes, tuple) else (axes,) if isinstance(axes, str) else ()
    return x.shape[dim] // math.prod(sharding.mesh.shape[name] for name in names)


def block_length(form: BlockForm, length: int) -> int:
    """Return the entries of a block of an axis of that length, an even number for 4 bits."""
    short = length + length % 2 if form.code.bits == 4 else length
    return max(1, min(form.block, short))


def fitted_form(form: BlockForm, length: int) -> BlockForm:
    """Return the form of an array whose last axis has that length."""
    filled = form.code.bits == 4 and (not length or length % block_length(form, length))
    return form._replace(length=length if filled else None)


def _folds(form: BlockForm, length: int) -> Folds | None:
    return Folds.into(block_length(form, length), length) if length else None


def _mapped(x: Array, scales: Array, form: BlockForm, f: Callable[[Array, Array], Array]) -> Array:
    """Return `f` of the array and the scales of its blocks, in the shape of the array."""
    folds = _folds(form, x.shape[-1])
    if folds is not None:  # without padding
        parts = x.reshape(*x.shape[:-1], folds.count, x.shape[-1] // folds.count)
        return joined(f(parts, folds.scales(scales)[..., None]))
    return joined(f(as_blocks(x, form), scales[..., None]))[..., : x.shape[-1]]


def joined(blocks: Array) -> Array:
    """Undo `as_blocks`, but for the zeros."""
    *above, count, block = blocks.shape
    return blocks.reshape(*above, count * block)


def as_blocks(x: Array, form: BlockForm) -> Array:
    """Return the array as (..., blocks, block), filled up with zeros."""
    block = block_length(form, x.shape[-1])
    missing = -x.shape[-1] % block
    if missing:
        x = jnp.pad(with_whole_dims(x, -1), [(0, 0)] * (x.ndim - 1) + [(0, missing)])
    return x.reshape(*x.shape[:-1], x.shape[-1] // block, block)


def _codes(x: Array, scales: Array, form: BlockForm) -> Array:
    """Return the codes of a float32 array; entries beyond the scale of their block become it."""
    below = block_divisors(scales)
    if form.code.bits == 4:
        return packed_codes(
            form.code.encode(quotient_by_shared(as_blocks(x, form), below[..., None]))
        )
    return form.code.encode(_mapped(x, below, form, quotient_by_shared))


def finite_entries(x: Array) -> Array:
    """Return an array in float32, where an infinity does not make the others of its block NaN.

    A NaN does.
    """
    most = float(jnp.finfo(jnp.float32).max)
    return jnp.maximum(jnp.minimum(cast(x, jnp.float32), most), -most)


def block_divisors(scales: Array) -> Array:
    """Return what the entries of blocks are divided by; those of a block of zeros stay 0."""
    return jnp.where(scales < jnp.finfo(jnp.float32).tiny, jnp.inf, scales)


def packed_codes(codes: Array) -> Array:
    """Return the two halves of each block in one byte each: the first in the low bits."""
    half, codes = codes.shape[-1] // 2, with_whole_dims(codes, -1)
    return codes[..., :half] | (codes[..., half:] << 4)


def unpacked_codes(packed: Array) -> Array:
    """Undo `packed_codes`."""
    # Shifts along an axis of two. Two halves side by side would be a choice for every entry.
    both = jnp.broadcast_to(packed[..., None, :], (*packed.shape[:-1], 2, packed.shape[-1]))
    shifts = 4 * jax.lax.broadcasted_iota(packed.dtype, both.shape, both.ndim - 2)
    return joined((both >> shifts) & 15)
