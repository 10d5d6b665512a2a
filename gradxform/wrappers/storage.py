"""How a state keeps its slots: in another dtype, or in blocks of 8 or 4 bits."""

import abc
import zlib
from collections.abc import Callable
from dataclasses import field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from gradxform import masks
from gradxform.base import ArrayRule, GradientTransformation, call_update, transform
from gradxform.engine import reach_of
from gradxform.errors import did_you_mean, name_of, require_at_least, require_one_of, shown
from gradxform.leaves import Path, dtype_of, path_names, path_str, shape_of
from gradxform.methods import changing_states
from gradxform.states import non_negative_fields, slot_fields
from gradxform.storage import CODES, Blocks, Rounded, StoredArray, code_named, is_stored
from gradxform.transforms.tree_rules import live_key
from gradxform.types import (
    Choice,
    DType,
    Key,
    NonNegativeInt,
    OptState,
    Params,
    PyTree,
    Size,
    StaticTree,
    Updates,
)
from gradxform.values import FrozenTree
from gradxform.wrappers.parts import OF_FUNCTIONS, StatelessWrapper, all_parts

__all__ = [
    "quantize_state",
    "state_dtype",
]


class _Slot(NamedTuple):
    """An array of a state, for which a wrapper chooses the form."""

    name: str  # of the field of the state
    path: Path  # of the parameter
    is_signed: bool  # whether it may have negative entries


class _Stored(StatelessWrapper):
    """Base of wrappers that change in which form `init` returns the slots."""

    which: Any

    def __post_init__(self) -> None:
        super().__post_init__()
        for part in all_parts(self.inner):
            if not isinstance(part, GradientTransformation) or isinstance(part, OF_FUNCTIONS):
                raise TypeError(
                    f"{name_of(self)}: inner holds {shown(part)}, which keeps its state itself. "
                    "Use the transform of gradxform in its place, or chain it outside of "
                    f"{name_of(self)}."
                )
        if self.which is not None and self._names() is None:
            masks.check_mask(self, self.which, "which")

    def _names(self) -> tuple[str, ...] | None:
        """Return the slots that `which` names; None if it does not name slots."""
        if isinstance(self.which, str):
            return (self.which,)
        names = self.which.leaves if isinstance(self.which, FrozenTree) else self.which
        is_names = isinstance(names, tuple | list) and all(isinstance(x, str) for x in names)
        return tuple(names) if names and is_names else None

    def init(self, params: Params) -> OptState:
        """Return the inner state, with its slots in another form."""
        wanted = self._wanted(params)
        seen: set[str] = set()

        def changed(owner: Any, state: Any) -> Any:
            kind = type(state)
            slots = slot_fields(kind) if hasattr(kind, "_fields") else ()
            seen.update(slots)
            new = {}
            for name in slots:
                signed = name not in non_negative_fields(kind)
                new[name] = self._stored(owner, wanted, name, signed, getattr(state, name))
            return state._replace(**new) if new else state

        with changing_states(changed):
            state = self.inner.init(params)
        for name in self._names() or ():
            if name not in seen:
                raise ValueError(
                    f"{name_of(self)}: which names {name!r}, which is not a slot of "
                    f"{name_of(self.inner)}; there are {', '.join(sorted(seen)) or 'none'}."
                    f"{did_you_mean(name, seen)}"
                )
        return state

    def _wanted(self, params: Params) -> Callable[[_Slot], bool]:
        """Return a function that tells of a slot whether `which` selects it."""
        names = self._names()
        if names is not None:
            return lambda slot: slot.name in names
        if self.which is None:
            return lambda slot: True
        leaves, branches = masks.by_path(self, self.which, params)
        chosen = {**branches, **leaves}

        def by_mask(slot: _Slot) -> bool:
            above = [slot.path[:n] for n in range(len(slot.path), -1, -1)]
            return next((chosen[path] for path in above if path in chosen), False)

        return by_mask

    def _stored(
        self, owner: Any, wanted: Callable[[_Slot], bool], name: str, signed: bool, tree: PyTree
    ) -> PyTree:
        """Return the slot `name` of a state in another form."""
        flat, treedef = jax.tree_util.tree_flatten_with_path(tree, is_leaf=is_stored)
        out = []
        for key_path, x in flat:
            slot = _Slot(name, path_names(key_path), signed)
            if self._qualifies(x) and wanted(slot):
                self._check_owner(owner, slot)
                x = self.stored(x, slot)
            out.append(x)
        return jax.tree.unflatten(treedef, out)

    def _qualifies(self, x: Any) -> bool:
        """Whether an array of a state may be kept in another form."""
        return not is_stored(x) and jnp.issubdtype(dtype_of(x), jnp.floating)

    def _check_owner(self, owner: Any, slot: _Slot) -> None:
        """Require a rule for arrays that looks no further than a row."""
        where = f"the slot {slot.name} of {path_str(slot.path)}"
        leave = "Leave it out: name the slots to store in which=(...)."
        if not isinstance(owner, ArrayRule):
            raise TypeError(
                f"{name_of(self)}: {name_of(owner)} computes with {where} itself, so it cannot be "
                f"stored in another form. {leave}"
            )
        if reach_of(owner) not in ("entry", "row"):
            raise TypeError(
                f"{name_of(self)}: {name_of(owner)} looks at whole arrays, so {where} cannot be "
                f"stored in another form. {leave}"
            )

    @abc.abstractmethod
    def stored(self, x: Any, slot: _Slot) -> Any:
        """Return an array in the form in which the state keeps it."""

    def update(
        self, updates: Updates, state: OptState, params: Params | None = None, **extra: Any
    ) -> tuple[Updates, OptState]:
        """Run the inner transform, which loads the slots that it needs and stores them again."""
        return call_update(self.inner, updates, state, params, extra)


@transform
class quantize_state(_Stored):
    """Keep the slots of an optimizer in 8 or 4 bits.

    The rule is that of `inner`, computed in float32 tile by tile; only what it remembers is
    rounded. An array of n entries takes n bytes and 4 more for each block (Adam: 2.03 bytes a
    parameter instead of 8). The scale of a block is its largest magnitude; blocks lie along the
    last axis. Arrays with fewer than `min_size` entries, integers and complex numbers keep their
    dtype.

    The codes of a block, from its largest entry down:

    - `"float"`: with 8 bits, steps of an eighth of a power of two, down to 2e-5 of the largest, or
      to 3e-10 without a sign. With 4 bits, steps of a half, down to 1/8, or to 1/128.
    - `"dynamic"`: fine steps from 1 to 0.1, coarse ones down to 1e-6, or to 1e-7 without a sign.
    - `"e4m3"` and `"e5m2"`: the float8 dtypes, of 8 bits. Slow where the hardware lacks them.

    A slot that is annotated `NonNegativeSlot`, as second moments are, spends no bit on a sign, and
    no entry but 0 becomes 0: a rule divides by its root.

    Args:
      inner: a transform whose rules look no further than a row.
      bits: 8 or 4.
      block: the entries that share a scale, a power of two from 2.
      code: one of the codes above.
      min_size: smaller arrays are not changed, at least 0.
      which: what to change: the name of a slot, such as `"mu"`, several names, or a mask of
        parameters. By default everything that qualifies. Keyword-only.

    Raises:
      TypeError: if `inner` holds a transform of another library; at `init`, if a slot belongs to a
        rule that looks at whole arrays, and `which` does not leave it out.
      ValueError: if `which` names a slot that does not exist.

    Reference: Dettmers et al., 8-bit Optimizers via Block-wise Quantization, 2022, Section 2.
    """

    inner: Any
    bits: Size = 8
    block: Size = 256
    code: Choice = "float"
    min_size: NonNegativeInt = 4096
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
        inner = super().locality
        return "row" if inner == "entry" else inner

    def _qualifies(self, x: Any) -> bool:
        shape = shape_of(x)
        is_large = bool(shape) and jnp.size(x) >= max(self.min_size, 1)
        return is_large and super()._qualifies(x)

    def stored(self, x: Any, slot: _Slot) -> StoredArray:
        """Return the array in blocks."""
        return Blocks.of(x, code_named(self.code, self.bits, slot.is_signed), self.block)


@transform
class state_dtype(_Stored):
    """Keep the slots of an optimizer in another floating dtype, such as bfloat16.

    The rule is that of `inner`, computed in float32; only what it remembers is rounded. In 16 bits
    a slow average stops moving when a step is below half of the last place, as with `b2 = 0.999` in
    bfloat16. With `stochastic`, the slots are rounded up or down by chance, so that such steps
    count on average.

    Args:
      inner: a transform whose rules look no further than a row.
      dtype: the dtype of the slots. Those of integers and of complex numbers keep theirs.
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

    def stored(self, x: Any, slot: _Slot) -> Any:
        """Return the array in the other dtype."""
        if not self.stochastic:
            return jnp.asarray(x).astype(self.dtype)
        where = zlib.crc32("/".join((slot.name, *slot.path)).encode())
        return Rounded.of(x, jax.random.fold_in(live_key(self.key), where))
