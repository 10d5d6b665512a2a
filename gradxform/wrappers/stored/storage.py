"""How a state keeps its slots: in another dtype, or in blocks of 8 or 4 bits."""

import zlib
from dataclasses import field
from typing import Any

import jax
import jax.numpy as jnp

from gradxform.base import transform
from gradxform.errors import name_of, require_at_least, require_one_of, shown
from gradxform.leaves import path_str, shape_of
from gradxform.leaves.storage import (
    CODES,
    Blocks,
    Crossed,
    Rounded,
    StoredArray,
    block_between_cuts,
    code_named,
)
from gradxform.numerics.overflow import cast_finite
from gradxform.transforms.tree_rules import live_key
from gradxform.types import Choice, DType, Key, NonNegativeSize, Size, StaticTree
from gradxform.wrappers.parts import at_least
from gradxform.wrappers.stored.wrapper import StateSlot, StorageWrapper


@transform
class quantize_state(StorageWrapper):
    """Keep the slots of an optimizer in 8 or 4 bits.

    The rule is that of `inner`, computed in float32; only what it remembers is rounded. An array of
    n entries takes n bytes and 4 more for each block (Adam: 2.03 bytes a parameter instead of 8).
    The scale of a block is its largest magnitude; blocks lie along the last axis. Arrays with fewer
    than `min_size` entries, integers, complex numbers and copies of the parameters, such as the
    starting points of `madgrad` and `prodigy`, keep their dtype.

    The codes of a block, from its largest entry down:

    - `"float"`: with 8 bits, steps of an eighth of a power of two, down to 2e-5 of the largest, or
      to 3e-10 without a sign. With 4 bits, steps of a half, down to 1/8, or to 1/128.
    - `"dynamic"`: fine steps from 1 to 0.1, coarse ones down to 1e-6, or to 1e-7 without a sign.
    - `"e4m3"` and `"e5m2"`: the float8 dtypes, of 8 bits. Slow where the hardware lacks them.
    - `"rank1"`, of 4 bits: matrices are cut into squares of `block` rows and columns, in which each
      row and each column has a scale, and the smaller of the two counts. Without a sign the codes
      are sixteenths of it, from 1 on; 0 becomes one of them too. With a sign they are `"float"`.

    A slot that is annotated `NonNegativeSlot`, as second moments are, spends no bit on a sign, and
    no entry but 0 becomes 0: a rule divides by its root.

    Args:
      inner: the transform. Its rules load what they get: those for arrays, rows and entries, for
        matrices, and for the whole tree. Slots of matrices that are not like the parameters, such
        as the factors and bases of Shampoo and SOAP, stay wide: few bits would spoil their roots.
      bits: 8 or 4.
      block: the entries that share a scale, a power of two from 2. Where devices divide an array
        along explicit axes, a block ends at the cut: it has as many entries as divide a device's.
      code: one of the codes above.
      min_size: smaller arrays are not changed, at least 0.
      which: what to change: the name of a slot, such as `"mu"`, several names, or a mask of
        parameters. By default everything that qualifies. Keyword-only.

    Raises:
      TypeError: if `inner` holds a transform of another library; at `init`, if a slot belongs to a
        transform that computes with it itself, and `which` does not leave it out.
      ValueError: if `which` names a slot that does not exist; at `init`, if only blocks of fewer
        than 8 entries would end where devices divide an array.

    Reference: Dettmers et al., 8-bit Optimizers via Block-wise Quantization, 2022, Section 2.
    """

    inner: Any
    bits: Size = 8
    block: Size = 256
    code: Choice = "float"
    min_size: NonNegativeSize = 4096
    which: StaticTree = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.bits not in CODES or isinstance(self.bits, bool):
            raise ValueError(f"{name_of(self)}: bits must be 8 or 4, got {shown(self.bits)}.")
        require_one_of(self, "code", CODES[self.bits])
        require_at_least(self, 2, "block")
        if self.block & (self.block - 1):
            near = 1 << self.block.bit_length()
            raise ValueError(
                f"{name_of(self)}: block must be a power of two, got {self.block}. Take "
                f"{near // 2} or {near}."
            )

    @property
    def locality(self) -> str:
        """At least the row. The scale of a block of a vector depends on several of its rows."""
        return at_least("row", self.inner)

    def qualifies(self, x: Any, slot: StateSlot) -> bool:
        shape = shape_of(x)
        is_large = bool(shape) and jnp.size(x) >= max(self.min_size, 1)
        return is_large and super().qualifies(x, slot)

    def stored(self, x: Any, slot: StateSlot) -> StoredArray:
        """Return the array in blocks."""
        code = code_named(self.code, self.bits, slot.is_signed)
        block = self._block(x, -1, slot)
        if self.code != "rank1" or x.ndim < 2:
            return Blocks.of(x, code, block)
        return Crossed.of(x, code, block, self._block(x, -2, slot))

    def _block(self, x: Any, dim: int, slot: StateSlot) -> int:
        """Return the entries of a block along a dimension."""
        even = self.bits == 4 and dim == -1
        block = block_between_cuts(x, self.block, dim, even)
        if block is None:
            raise ValueError(
                f"{name_of(self)}: the slot {slot.name} of {path_str(slot.path)}, of shape "
                f"{x.shape}, is cut as {jax.typeof(x).sharding.spec}, where no {'even ' * even}"
                f"number from {min(8, self.block)} to {self.block} divides what a device has of "
                "an axis. Cut another axis, or leave the slot out by which."
            )
        return block


@transform
class state_dtype(StorageWrapper):
    """Keep the slots of an optimizer in another floating dtype, such as bfloat16.

    The rule is that of `inner`, computed in float32; only what it remembers is rounded. In 16 bits
    a slow average stops moving when a step is below half of the last place, as with `b2 = 0.999` in
    bfloat16. With `stochastic`, the slots are rounded up or down by chance, so that such steps
    count on average. Copies of the parameters, such as the starting point of `madgrad`, keep their
    dtype.

    float16 ends at 65504, and so does a slot: Adam's v stays below it for gradients up to 250, and
    above it is too small by the square of their ratio. Below 6e-8 it becomes 0, which it does for
    gradients below 1e-3: prefer bfloat16, or leave second moments out by `which`.

    Args:
      inner: the transform, as for `quantize_state`.
      dtype: the dtype of the slots. Slots of integers and of complex numbers keep theirs.
      stochastic: whether to round by chance, for bfloat16. Keyword-only.
      key: the seed of the chance: an integer or a PRNG key; required with `stochastic`.
        Keyword-only.
      which: what to change, as in `quantize_state`. Keyword-only.

    Raises:
      TypeError: as `quantize_state`.
      ValueError: if `dtype` is not real and floating, or not bfloat16 with `stochastic`; if `which`
        names a slot that does not exist; if only one of `stochastic` and `key` is given.
    """

    inner: Any
    dtype: DType = jnp.bfloat16
    stochastic: bool = field(default=False, kw_only=True)
    key: Key | None = field(default=None, kw_only=True)
    which: StaticTree = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        dtype = jnp.dtype(self.dtype)
        if not jnp.issubdtype(dtype, jnp.floating):
            raise ValueError(f"{name_of(self)}: dtype must be real, got {dtype}.")
        if self.stochastic and dtype != jnp.bfloat16:
            raise ValueError(
                f"{name_of(self)}: stochastic=True rounds to bfloat16, got dtype {dtype}."
            )
        if self.stochastic != (self.key is not None):
            remedy = "Pass key=0" if self.stochastic else "Pass stochastic=True, or no key"
            raise ValueError(
                f"{name_of(self)}: stochastic and key go together, got stochastic="
                f"{self.stochastic} and key={shown(self.key)}. {remedy}."
            )

    def stored(self, x: Any, slot: StateSlot) -> Any:
        """Return the array in the other dtype."""
        if not self.stochastic:
            return cast_finite(jnp.asarray(x), jnp.dtype(self.dtype))
        where = zlib.crc32("/".join((slot.name, *slot.path)).encode())
        return Rounded.of(x, jax.random.fold_in(live_key(self.key), where))
