"""How a parameter of fewer than 32 bits takes a step of float32, and what it keeps beside it."""

import abc
import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from gradxform.leaves.storage.rounded import rounded_by_chance
from gradxform.leaves.storage.stored import StoredArray, stored_array
from gradxform.numerics import as_rounded, cast, same_bits
from gradxform.types import Array


@dataclasses.dataclass(frozen=True)
class NarrowForm(abc.ABC):
    """How a narrow parameter moves. Its slot is an array beside it, or None."""

    def first(self, p: Array) -> Any:
        """Return the slot of a parameter at the beginning."""
        return None

    def wide(self, p: Array, slot: Any) -> Array:
        """Return the float32 number that a parameter stands for."""
        return cast(p, jnp.float32)

    def kept(self, wide: Array, p: Array) -> Any:
        """Return the slot of a parameter that stands for a number of float32."""
        return None

    @abc.abstractmethod
    def taken(self, wide: Array, u: Array, slot: Any, key: Any, dtype: Any) -> tuple[Array, Any]:
        """Return the parameter after a step, and its slot.

        Args:
          wide: what `wide` returns.
          u: the step, in float32.
          slot: the slot.
          key: two numbers of uint32 that differ for each parameter and step, or None.
          dtype: that of the parameter.
        """

    def landed(self, new: Array, there: Array, slot: Any) -> Any:
        """Return the slot where a sum led to `there`, which may not be `new`."""
        return slot


class Master(NarrowForm):
    """With a copy in float32; the parameter is the number nearest to it."""

    def first(self, p: Array) -> Array:
        """Return the copy."""
        return cast(p, jnp.float32)

    def wide(self, p: Array, slot: Array) -> Array:
        """Return the copy, or the parameter where somebody else has moved it."""
        return jnp.where(same_bits(cast(slot, p.dtype), p), slot, cast(p, jnp.float32))

    def kept(self, wide: Array, p: Array) -> Array:
        """Return the copy."""
        return wide

    def taken(self, wide: Array, u: Array, slot: Any, key: Any, dtype: Any) -> tuple[Array, Any]:
        """Return the nearest parameter, and the copy."""
        return cast(wide + u, dtype), wide + u

    def landed(self, new: Array, there: Array, slot: Array) -> Array:
        """Return the copy of where the parameter is."""
        return jnp.where(same_bits(new, there), slot, cast(there, slot.dtype))


@dataclasses.dataclass(frozen=True)
class Remainder(NarrowForm):
    """With the 16 bits that a bfloat16 lacks of a float32, or the upper 8 of them, rounded.

    A bfloat16 is the upper half of a float32. Ties are rounded away from zero: the lower bits then
    tell whether the upper half was rounded up, which it would not with ties to even.

    Args:
      bits: 16 or 8.
    """

    bits: int = 16

    @property
    def _half(self) -> int:
        """Half of the last place of a bfloat16, in the bits that are kept."""
        return 1 << (self.bits - 1)

    @property
    def _dtype(self) -> Any:
        return jnp.uint16 if self.bits == 16 else jnp.uint8

    def first(self, p: Array) -> Array:
        """Return bits of 0."""
        return jnp.zeros(p.shape, self._dtype)

    def wide(self, p: Array, slot: Array) -> Array:
        """Return the float32 of all bits, or the parameter where the lower ones cannot fit."""
        upper = jax.lax.bitcast_convert_type(p, jnp.uint16).astype(jnp.uint32)
        # Rounding up never gives 0: the lower bits are from before somebody set the parameter to 0.
        is_zero = (upper & 0x7FFF) == 0
        low = jnp.where(is_zero & (slot >= self._half), 0, slot.astype(jnp.uint32))
        bits = ((upper - (low >= self._half).astype(jnp.uint32)) << self.bits) | low
        return jax.lax.bitcast_convert_type(bits << (16 - self.bits), jnp.float32)

    def kept(self, wide: Array, p: Array) -> Array:
        """Return the lower bits; for a tie that was rounded downwards, those of before it."""
        upper, low = self._parted(wide)
        is_down = (low == self._half) & (jnp.abs(upper) > jnp.abs(p))
        fits = same_bits(upper, p) | is_down
        return jnp.where(fits, low - is_down.astype(low.dtype), 0)

    def taken(self, wide: Array, u: Array, slot: Any, key: Any, dtype: Any) -> tuple[Array, Any]:
        """Return the sum as a bfloat16 and the bits below it."""
        return self._parted(wide + u)

    def landed(self, new: Array, there: Array, slot: Array) -> Array:
        """Return the lower bits where the upper half is as it should be."""
        return jnp.where(same_bits(new, there), slot, jnp.zeros_like(slot))

    def _parted(self, x: Array) -> tuple[Array, Array]:
        """Return a float32 as the nearest bfloat16, and the bits below it.

        Not a number has lower bits of 0, so that rounding does not make it a number.
        """
        bits = jax.lax.bitcast_convert_type(x, jnp.uint32)
        bits = jnp.where(jnp.isnan(x), jnp.uint32(0x7FC00000), bits)
        if self.bits == 8:  # to the nearest, and to the even one of two
            is_odd = (bits >> 8) & 1
            bits = (bits + jnp.uint32(0x7F) + is_odd) >> 8
        upper = ((bits + jnp.uint32(self._half)) >> self.bits).astype(jnp.uint16)
        low = (bits & jnp.uint32(2 * self._half - 1)).astype(self._dtype)
        return jax.lax.bitcast_convert_type(upper, jnp.bfloat16), low


class Chance(NarrowForm):
    """Rounded up or down by chance, to the same mean.

    In place of a slot, the rows of a larger array where this is a part of it.
    """

    def taken(self, wide: Array, u: Array, slot: Any, key: Any, dtype: Any) -> tuple[Array, Any]:
        """Return the sum, rounded by chance."""
        return rounded_by_chance(wide + u, key, dtype, slot), slot


class Compensated(NarrowForm):
    """With the rounding error of past steps, in the dtype of the parameter."""

    def first(self, p: Array) -> Array:
        """Return zeros."""
        return jnp.zeros_like(p)

    def taken(self, wide: Array, u: Array, slot: Any, key: Any, dtype: Any) -> tuple[Array, Any]:
        """Return the nearest parameter, and what its step lacks."""
        # What rounding took does not move the parameter by itself: else, it is from before somebody
        # set the parameter to another number, such as 0.
        wanted = u + self._lack_that_fits(wide, slot, dtype)
        new = cast(wide + wanted, dtype)
        there = as_rounded(new, wide.dtype)
        lack = cast(wanted - (there - wide), dtype)
        # Rounded itself, it may reach the middle between two neighbors.
        shorter = cast(as_rounded(lack, wide.dtype) * (1 - float(jnp.finfo(dtype).eps)), dtype)
        return new, jnp.where(self._fits(there, lack, dtype), lack, shorter)

    def landed(self, new: Array, there: Array, slot: Array) -> Array:
        """Return what the step lacks where the parameter is as it should be."""
        return jnp.where(same_bits(new, there), slot, jnp.zeros_like(slot))

    def _lack_that_fits(self, wide: Array, slot: Array, dtype: Any) -> Array:
        lack = cast(slot, wide.dtype)
        return jnp.where(self._fits(wide, slot, dtype), lack, jnp.zeros_like(lack))

    def _fits(self, wide: Array, slot: Array, dtype: Any) -> Array:
        """Return where a parameter stays what it is if it gets what the slot has."""
        return same_bits(cast(wide + cast(slot, wide.dtype), dtype), cast(wide, dtype))


@stored_array()
class NarrowParam(StoredArray):
    """A narrow parameter and its slot, which rules see as the wide number that they stand for."""

    param: Array
    slot: Array  # or None
    key: Array  # or None where nothing is left to chance
    _form: Any

    @classmethod
    def of(cls, param: Any, slot: Any, key: Any, form: Any) -> "NarrowParam":
        """Return a parameter with its slot and what `taken` gets."""
        x: Any = jnp.asarray(param)
        by_chance: Any = key if x.ndim else None
        rows = slot if by_chance is None else jnp.arange(x.shape[0], dtype=jnp.uint32)
        return cls(x, rows, key, form)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the parameter."""
        return self.param.shape

    @property
    def dtype(self) -> Any:
        """The dtype in which a rule sees it."""
        return jnp.dtype(jnp.float32)

    @property
    def kept_as(self) -> str:
        """The dtype of the parameter."""
        return str(self.param.dtype)

    def load(self) -> Array:
        """Return the wide number."""
        return self._form.wide(self.param, self.slot)

    def store(self, new: Array) -> "NarrowParam":
        """Return the parameter nearest to a wide number, and the slot beside it."""
        param = cast(new, self.param.dtype)
        return NarrowParam(param, self._form.kept(new, param), self.key, self._form)

    def moved(self, u: Array) -> "NarrowParam":
        """Return the parameter and the slot after a step in float32."""
        param, slot = self._form.taken(self.load(), u, self.slot, self.key, self.param.dtype)
        return NarrowParam(param, slot, self.key, self._form)

    def by_rows(self) -> tuple[tuple[Array, int], ...]:
        """Return the parameter and the slot."""
        return tuple((x, 1) for x in (self.param, self.slot) if x is not None)

    def with_rows(self, arrays: Sequence[Array], shape: tuple[int, ...]) -> "NarrowParam":
        """Return the same form of other rows."""
        slot: Any = arrays[1] if len(arrays) > 1 else None
        return NarrowParam(arrays[0], slot, self.key, self._form)

    def placed(self, place: Any, replicated: Any) -> "NarrowParam":
        """Return the shardings of both, which are the parameter's."""
        return NarrowParam(place, place, replicated, self._form)
