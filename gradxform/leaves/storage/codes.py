"""Codes: numbers from -1 to 1, or from 0 to 1, in 8 or 4 bits.

A code is arithmetic, because a table costs memory and minutes of compiling. 0 has a code of its
own, but for `LinearCode`. An unsigned code is for second moments, by whose root a rule divides: it
rounds no other number to 0.
"""

import abc
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from gradxform.types import Array


class Code(abc.ABC):
    """How numbers up to 1 are written in a few bits."""

    bits: int
    signed: bool

    __slots__ = ()

    @property
    @abc.abstractmethod
    def name(self) -> str:
        """How it is called in messages."""

    @property
    @abc.abstractmethod
    def least(self) -> float:
        """The least magnitude but 0."""

    @property
    @abc.abstractmethod
    def error(self) -> float:
        """The largest relative error of a number that is not smaller than `least`."""

    @property
    def dtype(self) -> Any:
        """The dtype of the codes."""
        return jnp.uint8

    @abc.abstractmethod
    def encode(self, x: Array) -> Array:
        """Return the codes of float32 numbers."""

    @abc.abstractmethod
    def decode(self, codes: Array) -> Array:
        """Return the float32 numbers of codes."""


class _FloatFields(NamedTuple):
    bits: int
    signed: bool
    mantissa: int


class FloatCode(_FloatFields, Code):
    """A float of a few bits whose largest number is 1.

    The codes of a sign are consecutive float32 numbers that end at 1, in steps of `2**-mantissa` of
    a power of two. No code is spent on an infinity or a NaN.
    """

    __slots__ = ()

    @property
    def name(self) -> str:
        """How it is called in messages."""
        return "float"

    @property
    def top(self) -> int:
        """The code of 1."""
        return 2 ** (self.bits - self.signed) - 1

    @property
    def least(self) -> float:
        """The least magnitude but 0."""
        octaves, part = divmod(self.top - 1, 2**self.mantissa)
        # The codes of the octave below a power of two are as many steps below it.
        return 2.0**-octaves * (1 - part / 2 ** (self.mantissa + 1))

    @property
    def error(self) -> float:
        """Half of a step."""
        return 2.0 ** -(self.mantissa + 1)

    @property
    def _dropped(self) -> int:
        """The bits of a float32's fraction, which has 23, that a code leaves out."""
        return 23 - self.mantissa

    @property
    def _below(self) -> int:
        """The bits of 1 that are kept, less its code; 127 is its exponent in a float32."""
        return (127 << self.mantissa) - self.top

    def encode(self, x: Array) -> Array:
        """Return the codes of float32 numbers."""
        bits = jax.lax.bitcast_convert_type(x, jnp.int32)
        size = bits & 0x7FFFFFFF  # all but the sign
        # Half of the last place that is kept rounds to nearest; it may carry into the exponent.
        code = ((size + (1 << (self._dropped - 1))) >> self._dropped) - self._below
        # The nearest of 0 and the least; without a sign, 0 is for 0 alone.
        least = int(np.float32(self.least / 2).view(np.int32)) if self.signed else 1
        code = jnp.minimum(jnp.maximum(code, (size >= least).astype(jnp.int32)), self.top)
        if self.signed:
            code = code | ((bits >> 31) & (self.top + 1))  # -1 where x is negative
        return code.astype(jnp.uint8)

    def decode(self, codes: Array) -> Array:
        """Return the float32 numbers of codes."""
        code = codes.astype(jnp.int32)
        size = code & self.top
        bits = (size + self._below) << self._dropped
        bits = jax.lax.select(size == 0, jnp.zeros_like(bits), bits)
        if self.signed:
            bits = bits | ((code & (self.top + 1)) << (32 - self.bits))
        return jax.lax.bitcast_convert_type(bits, jnp.float32)


class _LinearFields(NamedTuple):
    bits: int
    signed: bool = False


class LinearCode(_LinearFields, Code):
    """Numbers in equal steps from the first one to 1, without a sign. 0 does not have a code.

    Reference: Li et al., Memory Efficient Optimizers with 4-bit States, 2023, Section 4.1.
    """

    __slots__ = ()

    @property
    def name(self) -> str:
        """How it is called in messages."""
        return "linear"

    @property
    def least(self) -> float:
        """The first step, which 0 becomes too."""
        return 2.0**-self.bits

    @property
    def error(self) -> float:
        """Half of the first step, of itself."""
        return 0.5

    def encode(self, x: Array) -> Array:
        """Return the codes of float32 numbers."""
        steps = 2**self.bits
        return (jnp.clip(jnp.round(x * steps), 1, steps) - 1).astype(jnp.uint8)

    def decode(self, codes: Array) -> Array:
        """Return the float32 numbers of codes."""
        return (codes.astype(jnp.float32) + 1) * self.least


class _Float8Fields(NamedTuple):
    dtype_name: str
    signed: bool


class Float8Code(_Float8Fields, Code):
    """A float8 dtype of JAX, from its largest number down. Platforms without it are slow."""

    __slots__ = ()

    bits = 8

    @property
    def name(self) -> str:
        """How it is called in messages."""
        return self.dtype_name

    @property
    def dtype(self) -> Any:
        """The float8 dtype."""
        return jnp.dtype(self.dtype_name)

    @property
    def _top(self) -> float:
        return float(jnp.finfo(self.dtype).max)

    @property
    def least(self) -> float:
        """The least normal number, of the largest; those below it have fewer bits."""
        return float(jnp.finfo(self.dtype).smallest_normal) / self._top

    @property
    def error(self) -> float:
        """Half of a step."""
        return float(jnp.finfo(self.dtype).eps) / 2

    def encode(self, x: Array) -> Array:
        """Return the numbers in float8."""
        x = x * self._top
        if not self.signed:
            smallest = float(jnp.finfo(self.dtype).smallest_subnormal)
            x = jnp.where(x > 0, jnp.maximum(x, smallest), x)
        # A rounding above 1 must not overflow: some of these dtypes have a NaN above the largest.
        return jnp.clip(x, -self._top, self._top).astype(self.dtype)

    def decode(self, codes: Array) -> Array:
        """Return the numbers in float32."""
        return codes.astype(jnp.float32) / self._top


class _DynamicFields(NamedTuple):
    bits: int
    signed: bool


class DynamicCode(_DynamicFields, Code):
    """A code whose exponent takes as many bits as it needs, and leaves the others to the fraction.

    Zeros before the first one are a power of ten, and the bits behind it a fraction from 0.1 to 1:
    large numbers are fine, small ones coarse.

    Reference: Dettmers, 8-Bit Approximations for Parallelism in Deep Learning, 2016, Section 2.1.
    """

    __slots__ = ()

    @property
    def name(self) -> str:
        """How it is called in messages."""
        return "dynamic"

    @property
    def _width(self) -> int:
        """The bits of a fraction of the largest power of ten."""
        return self.bits - self.signed - 1

    @property
    def least(self) -> float:
        """The only number of the least power of ten."""
        return 10.0**-self._width

    @property
    def error(self) -> float:
        """Half of the step from the least number, 1, to the next one, 5.5, over what is between."""
        return (5.5 - 1.0) / (5.5 + 1.0)

    def encode(self, x: Array) -> Array:
        """Return the codes of float32 numbers."""
        size = jnp.minimum(jnp.abs(x), 1.0)
        least = 10.0 ** -(self._width + 1)
        power = jnp.floor(-jnp.log10(jnp.maximum(size, least)))
        power = jnp.clip(power, 0, self._width).astype(jnp.int32)
        steps = jnp.left_shift(1, self._width - power)
        scaled = size * 10.0 ** power.astype(jnp.float32)
        index = jnp.round((scaled - 0.1) / 0.9 * steps.astype(jnp.float32)).astype(jnp.int32) - 1
        # The number before the first of a power of ten is the last of the one below, whose code
        # comes before it.
        code = jnp.maximum(steps + jnp.clip(index, -1, steps - 1), 1)
        zero = size < 0.5 * self.least if self.signed else size == 0
        code = jnp.where(zero, 0, code)
        if self.signed:
            code = jnp.where(x < 0, code | (2 << self._width), code)
        return code.astype(jnp.uint8)

    def decode(self, codes: Array) -> Array:
        """Return the float32 numbers of codes."""
        code = codes.astype(jnp.int32)
        size = code & ((2 << self._width) - 1)
        width = 31 - jax.lax.clz(jnp.maximum(size, 1))
        steps = jnp.left_shift(1, width)
        share = (size - steps + 1).astype(jnp.float32) / steps.astype(jnp.float32)
        x = (0.1 + 0.9 * share) * 10.0 ** (width - self._width).astype(jnp.float32)
        x = jnp.where(size == 0, 0.0, x)
        return jnp.where(code != size, -x, x) if self.signed else x


def code_named(name: str, bits: int, signed: bool) -> Code:
    """Return the code of that name, with so many bits, with a sign or without one."""
    if name == "float":
        return FloatCode(bits, signed, 3 if bits == 8 else 1)
    if name == "rank1" and not signed:
        return LinearCode(bits)
    if name == "rank1":
        return FloatCode(bits, signed, 1)
    if name == "dynamic":
        return DynamicCode(bits, signed)
    return Float8Code({"e4m3": "float8_e4m3fn", "e5m2": "float8_e5m2"}[name], signed)


# By the number of bits: the names of the codes, the usual one first.
CODES = {8: ("float", "dynamic", "e4m3", "e5m2"), 4: ("float", "dynamic", "rank1")}

CODE_FORMS = FloatCode, LinearCode, Float8Code, DynamicCode
