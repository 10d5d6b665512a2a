"""How a parameter of fewer than 32 bits takes a step of float32, and what it keeps beside it."""

import abc
import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from gradxform.leaves.storage.rounded import rounded_by_chance
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
    """Rounded up or down by chance, to the same mean."""

    def taken(self, wide: Array, u: Array, slot: Any, key: Any, dtype: Any) -> tuple[Array, Any]:
        """Return the sum, rounded by chance."""
        return rounded_by_chance(wide + u, key, dtype), None


class Compensated(NarrowForm):
    """With the rounding error of past steps, in the dtype of the parameter."""

    def first(self, p: Array) -> Array:
        """Return zeros."""
        return jnp.zeros_like(p)

    def taken(self, wide: Array, u: Array, slot: Any, key: Any, dtype: Any) -> tuple[Array, Any]:
        """Return the nearest parameter, and what its step lacks."""
        lack, kind = cast(slot, wide.dtype), jnp.finfo(dtype)
        # Rounding takes half of the last place at most: more is from before somebody set the
        # parameter to another number, such as 0.
        most = jnp.maximum(jnp.abs(wide), float(kind.tiny)) * (float(kind.eps) / 2)
        wanted = u + jnp.where(jnp.abs(lack) <= most, lack, 0)
        new = cast(wide + wanted, dtype)
        return new, cast(wanted - (as_rounded(new, wide.dtype) - wide), dtype)
