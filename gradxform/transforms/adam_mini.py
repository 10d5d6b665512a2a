"""Adam-mini: Adam with one second moment for each block of a parameter."""

import math
from dataclasses import field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from gradxform import engine
from gradxform.base import ArrayRule, transform
from gradxform.errors import must_be, name_of, require_at_least
from gradxform.leaves import is_hole, masks, path_str, shape_of, with_paths
from gradxform.numerics import abs_sq, count_and_debias
from gradxform.numerics.roots import over_root
from gradxform.slots import zero_count, zeros_like, zeros_of_sums
from gradxform.types import (
    Array,
    Decay,
    DType,
    NonNegative,
    NonNegativeSlot,
    Size,
    Slot,
    StaticTree,
    Updates,
)
from gradxform.values import FrozenTree, Value, is_function
from gradxform.values.fields import value


@value
class moment_blocks(Value):
    """Say which entries of a parameter share a second moment in `scale_by_adam_mini`.

    Args:
      axes: the axis or axes along which blocks differ; negative ones count from the end. -1 makes
        each output neuron of a kernel a block, 0 each row of an embedding; () the whole parameter,
        None each entry.
      size: how many neighbours along a single axis are in one block: for queries or keys of shape
        (d, heads * head_size), `moment_blocks(-1, head_size)` makes each head a block. At least 1.

    Raises:
      ValueError: if `size` is above 1 without a single axis.
    """

    axes: int | tuple[int, ...] | None
    size: Size = 1

    def __post_init__(self) -> None:
        require_at_least(self, 1, "size")
        if self.size > 1 and (self.axes is None or len(_axes(self)) != 1):
            raise ValueError(
                f"moment_blocks: size counts neighbours along one axis, got axes={self.axes!r}."
            )


def _axes(blocks: moment_blocks) -> tuple[int, ...]:
    axes: Any = blocks.axes
    return axes if isinstance(axes, tuple) else (axes,)


class _Blocks(NamedTuple):
    """The blocks of one array, or of this device's piece of it."""

    inside: tuple[int, ...]  # the axes that a block has in full
    axis: int  # the one along which `size` neighbours are in a block
    size: int
    entries: int  # of a block


class ScaleByAdamMiniState(NamedTuple):
    """State of `scale_by_adam_mini`."""

    count: Array  # int32 scalar; the number of updates so far
    mu: Slot  # like params, at least float32; the first moment m
    # At least float32 and real; the second moments v. The axes that a block has in full have length
    # 1, and neighbours along an axis that are in one block repeat it.
    nu: NonNegativeSlot


@transform
class scale_by_adam_mini(ArrayRule):
    """Rescale updates as Adam-mini does: the first moment over the root of a block's second one.

    Update rule, from m = v = 0 and t = 1, 2, ..., with one number v for each block B of entries:

        m <- b1 m + (1 - b1) g
        v <- b2 v + (1 - b2) (mean of |g|^2 over B)
        u = (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + eps)

    The state is half of Adam's. With each entry a block, this is `scale_by_adam`.

    By default, blocks follow from the shapes: each index of the last axis of a kernel, which is an
    output neuron in the layout of JAX; each row of a parameter named `embedding`, as in Flax; and
    all of a vector or scalar. The paper makes each head of queries and keys a block, and each row
    of the output layer, which you say by path:

        heads = moment_blocks(-1, head_size)     # kernels of shape (d, heads * head_size)
        blocks = label_by((heads, path_matches("query|key")), (None, True))

    An output layer of shape (d, vocabulary) has its rows along the last axis here, as by default.

    Args:
      b1: the decay of the first moment, in [0, 1).
      b2: the decay of the second moment, in [0, 1).
      eps: added to the root, at least 0; with 0, a block that never had a gradient stays put.
      mu_dtype: the dtype of m. Defaults to the parameter's, or float32 for 16-bit ones.
      blocks: `moment_blocks` for all parameters, a tree of them that may be a prefix of the
        parameters, `label_by((moment_blocks(...), mask), ...)`, or a function of the parameters
        that returns a tree. None, also for one parameter: those that follow from the shape.
        Keyword-only.

    Raises:
      ValueError: at init and update, if blocks do not fit a parameter, or a device has only a part
        of the neighbours of a block.

    Reference: Zhang et al., Adam-mini: Use Fewer Learning Rates To Gain More, 2024,
    Algorithm 1.
    """

    b1: Decay = 0.9
    b2: Decay = 0.999
    eps: NonNegative = 1e-8
    mu_dtype: DType = None
    blocks: StaticTree = field(default=None, kw_only=True)

    State = ScaleByAdamMiniState
    locality = "array"
    sees_pieces = True
    handles_complex = True

    def __post_init__(self) -> None:
        blocks = self.blocks
        entries = [blocks]
        if isinstance(blocks, masks.label_by):
            entries = [label for label, _ in blocks.pairs]
        elif isinstance(blocks, FrozenTree):
            entries = [x for _, x in with_paths(blocks.unfreeze(), _is_entry)]
        elif is_function(blocks):
            entries = []
        for entry in entries:
            if entry is not None and not isinstance(entry, moment_blocks):
                what = "moment_blocks, None, or a tree, label_by or function that says which"
                raise TypeError(must_be(self, "blocks", what, entry))

    def statics(self, updates: Updates) -> list[_Blocks]:
        """Return the blocks of every leaf."""
        whole = engine.whole_shapes(updates)
        cuts = engine.cuts_of(updates)
        entries = masks.entries_of(self, self.blocks, whole, object, _is_entry, whole=False)

        def of_leaves() -> list[_Blocks]:
            named = [(path, x) for path, x in with_paths(whole) if not is_hole(x)]
            return [
                self._of_leaf(path, x, entries.of_leaves[path], cut)
                for (path, x), cut in zip(named, cuts, strict=True)
            ]

        return entries.once(("blocks", *cuts), of_leaves)

    def _of_leaf(self, path: Any, x: Any, blocks: Any, cut: engine.Cut) -> _Blocks:
        shape = shape_of(x)
        n, where = len(shape), f"parameter {path_str(path)} of shape {shape}"
        if blocks is None:
            is_table = path[-1:] == ("embedding",)
            blocks = moment_blocks(() if n < 2 else 0 if is_table else -1)
        if not isinstance(blocks, moment_blocks):
            raise TypeError(must_be(self, f"the blocks of {where}", "moment_blocks", blocks))
        apart = tuple(range(n)) if blocks.axes is None else _axes(blocks)
        if not all(-n <= axis < n for axis in apart):
            raise ValueError(
                f"{name_of(self)}: {blocks!r} names an axis that {where} does not have."
            )
        apart = tuple(axis % n for axis in apart)
        size, axis = blocks.size, apart[0] if apart else 0
        if size > 1:
            devices = math.prod(dict(cut.sizes)[name] for name in cut.along(axis).axes)
            if shape[axis] % (size * devices):
                pieces = f", of which each of {devices} devices has a piece," if devices > 1 else ""
                raise ValueError(
                    f"{name_of(self)}: axis {axis} of {where}{pieces} does not divide into the "
                    f"blocks of {blocks!r}. Give a size that divides it."
                )
        inside = tuple(i for i in range(n) if i not in apart)
        return _Blocks(inside, axis, size, size * math.prod(shape[i] for i in inside))

    def init(self, params):
        """Return moments of zeros."""
        masks.check_patterns(self, self.blocks, params)
        blocks = jax.tree.unflatten(jax.tree.structure(params), self.statics(params))
        return ScaleByAdamMiniState(
            count=zero_count(),
            mu=zeros_like(params, self.mu_dtype),
            nu=jax.tree.map(
                lambda p, of_all, b: zeros_of_sums(p, b.inside, of_all),
                params,
                engine.whole_shapes(params),
                blocks,
            ),
        )

    def prepare(self, updates, state, params):
        """Return the advanced count and the factors that debias both moments."""
        return count_and_debias(state, self.b1, self.b2)

    def rule(self, g, m, v, p, of_m, of_v, blocks):
        """Return the update and the moments."""
        m = self.b1 * m + (1 - self.b1) * g
        # Divided first, because a sum of the largest squares would overflow.
        squares = abs_sq(g) / max(blocks.entries, 1)
        means = engine.array_sums((squares, blocks.inside), keepdims=True)
        if blocks.size > 1:
            shape, axis = means.shape, blocks.axis
            split = (*shape[:axis], -1, blocks.size, *shape[axis + 1 :])
            sums = jnp.sum(jnp.reshape(means, split), axis=axis + 1)
            means = jnp.repeat(sums, blocks.size, axis=axis)
        v = self.b2 * v + (1 - self.b2) * means
        return of_m * over_root(m, of_v * v, self.eps), m, v


def _is_entry(x: Any) -> bool:
    return x is None or isinstance(x, moment_blocks)
