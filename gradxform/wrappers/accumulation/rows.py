"""One step of an optimizer from several micro-batches of row-sparse gradients."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from gradxform import engine
from gradxform.base import Transform, check_transform, locality_of, transform
from gradxform.errors import must_be, name_of, require_at_least, require_in, shown
from gradxform.leaves import (
    Aligned,
    Path,
    align,
    align_params,
    align_slot,
    dtype_of,
    flatten_updates,
    leaves_of,
    like_params,
    map_with_paths,
    masks,
    path_at,
    path_str,
)
from gradxform.leaves.row_sparse import RowSparse
from gradxform.leaves.states import check_state
from gradxform.numerics import at_least_float32, cast, safe_increment, scalar
from gradxform.slots import zero_count, zeros_like
from gradxform.types import (
    Array,
    DType,
    MaskedNode,
    PyTree,
    Range,
    Size,
    Slot,
    StaticTree,
    Updates,
)
from gradxform.values import FrozenTree
from gradxform.wrappers.accumulation.accumulate import running_mean, running_sum
from gradxform.wrappers.agree import agreed_flags
from gradxform.wrappers.update_when import update_when

__all__ = [
    "RowBuffer",
    "accumulate_rows",
    "AccumulateRowsState",
]


class RowBuffer(NamedTuple):
    """The slices of one table from the micro-batches of a step so far."""

    indices: Array  # int32 [every_k_schedule * rows]; num_rows where a slice is missing yet
    values: Array  # [every_k_schedule * rows, ...], in accumulator_dtype


class AccumulateRowsState(NamedTuple):
    """State of `accumulate_rows`."""

    mini_step: Array  # int32 scalar; micro-batches accumulated
    gradient_step: Array  # int32 scalar; steps of the inner optimizer so far
    inner_opt_state: Any  # the inner optimizer's state
    acc_grads: Slot  # like params, in accumulator_dtype; for dense gradients; holes for tables
    acc_rows: Any  # like params: a RowBuffer for every table, holes for others


def _accumulator_emptied_if_due(acc: Array, due: Array) -> Array:
    return jnp.where(due, jnp.zeros_like(acc), acc)


_COUNT = Range("less than 2**31", lambda n: n < 2**31)


@transform
class accumulate_rows(Transform):
    """Take one step of an optimizer every k micro-batches, for row-sparse gradients too.

    Like `MultiSteps`, with a buffer of fixed size for every table that has row-sparse gradients.
    The buffer holds the slices of k micro-batches. The optimizer sees them as one row-sparse
    gradient, the mean over the micro-batches: a row that m of the k touch gets the sum of its m
    gradients, divided by k. Between steps the updates are zeros and the optimizer does not run.
    The cost is proportional to the slices, not to the table.

    Of its own kind: it keeps slices until there is a step, which a `Guard`, that only keeps or
    drops one, does not.

    Args:
      inner: the optimizer.
      every_k_schedule: k, an int of at least 1. It decides the sizes of the buffers, so that it
        cannot be a function as in `MultiSteps`.
      rows: how many slices the gradient of one micro-batch has, for every parameter: 0 for dense
        gradients. A tree of ints that may be a prefix of the parameters, a function of the
        parameters, or labels by mask: `label_by((4096, path_matches("embedding")), (0, True))`.
      use_grad_mean: whether the optimizer sees the mean of the micro-batches, else their sum.
      accumulator_dtype: the dtype of accumulator and buffers. Defaults to the parameter's, or
        float32 for 16-bit ones.

    Raises:
      TypeError: at update, for a row-sparse gradient where `rows` has 0, or the reverse.
      ValueError: at update, for a row-sparse gradient with another number of slices.
    """

    inner: Any
    every_k_schedule: Size
    rows: StaticTree
    use_grad_mean: bool = True
    accumulator_dtype: DType = None

    handles_rows = True
    holds = (("inner", "inner_opt_state"),)
    step_fields = ("gradient_step",)
    counts_inner_steps = True

    @property
    def zeros_unless(self) -> str | None:
        """The count of micro-batches, where a step takes several."""
        return None if self.every_k_schedule == 1 else "mini_step"

    def __post_init__(self) -> None:
        check_transform(self, self.inner, "inner")
        require_at_least(self, 1, "every_k_schedule")
        rows = FrozenTree(self.rows) if isinstance(self.rows, bool) else self.rows
        for n in rows.leaves if isinstance(rows, FrozenTree) else ():
            if n is not None and (not isinstance(n, int) or isinstance(n, bool) or n < 0):
                raise ValueError(must_be(self, "rows", "ints of at least 0", n))
            require_in(self, "rows", n, _COUNT)

    @property
    def locality(self) -> str:
        """How far the optimizer looks."""
        return locality_of(self.inner)

    def _sizes(self, params: PyTree) -> PyTree:
        """Return the number of slices for every parameter."""

        def checked_size(path: Path, n: Any) -> int:
            if not isinstance(n, int) or isinstance(n, bool) or n < 0:
                raise ValueError(
                    f"{name_of(self)}: rows must be ints of at least 0, got {shown(n)} for "
                    f"{path_str(path)}."
                )
            return n

        sizes = masks.resolve(self, self.rows, params, kind=object)
        return map_with_paths(checked_size, sizes)

    def init(self, params):
        """Return an empty accumulator, empty buffers and the optimizer's state."""

        def buffer(p: Array, n: int) -> RowBuffer | MaskedNode:
            if not n:
                return MaskedNode()
            if not jnp.ndim(p):
                raise ValueError(
                    f"{name_of(self)}: rows is {n} for a parameter without dimensions, which has "
                    "no rows."
                )
            size = n * self.every_k_schedule
            dtype = self.accumulator_dtype or at_least_float32(dtype_of(p))
            return RowBuffer(
                jnp.full(size, p.shape[0], jnp.int32), jnp.zeros((size, *p.shape[1:]), dtype)
            )

        sizes = self._sizes(params)
        dense = jax.tree.map(lambda p, n: MaskedNode() if n else p, params, sizes)
        return AccumulateRowsState(
            mini_step=zero_count(),
            gradient_step=zero_count(),
            inner_opt_state=self.inner.init(params),
            acc_grads=zeros_like(dense, self.accumulator_dtype),
            acc_rows=jax.tree.map(buffer, params, sizes),
        )

    def _check_kinds(self, updates: Updates, sizes: list[int]) -> None:
        """Require a gradient of the right kind and number of slices for every parameter."""
        for i, (g, n) in enumerate(zip(leaves_of(updates), sizes, strict=True)):
            if not isinstance(g, RowSparse):
                if n:
                    raise TypeError(self._mismatch(path_at(updates, i), n, "a dense gradient"))
                continue
            slices = g.indices.shape[0]
            if not n:
                raise TypeError(self._mismatch(path_at(updates, i), n, f"{slices} slices"))
            if slices != n:
                raise ValueError(self._mismatch(path_at(updates, i), n, f"{slices} slices"))

    def _mismatch(self, path: str, n: int, actual: str) -> str:
        return (
            f"{name_of(self)}: rows is {n} for {path}, which has {actual}. Give the number of "
            "slices of one micro-batch, 0 for dense gradients, or put gradxform.sparse.densify() "
            "before it."
        )

    def update(self, updates, state, params=None, **extra):
        """Accumulate, and take a step if it is due."""
        check_state(self, state, AccumulateRowsState)
        gs, treedef = flatten_updates(updates)
        sizes = self._sizes(like_params(updates) if params is None else params)
        sizes = align(self, updates, treedef, sizes, "the parameters have").leaves
        self._check_kinds(updates, sizes)
        if params is not None:
            align_params(self, updates, treedef, params)

        dense, accs = self._accumulated(treedef, gs, state)
        tables = [g for g in gs if isinstance(g, RowSparse)]
        buffers = self._filled_buffers(tables, state)
        next_dense, next_buffer = iter(dense), iter(buffers)
        total = [
            self._gradient_of(next(next_buffer), g)
            if isinstance(g, RowSparse)
            else next(next_dense)
            for g in gs
        ]
        total, inner_state = jax.tree.unflatten(treedef, total), state.inner_opt_state
        due = state.mini_step >= self.every_k_schedule - 1
        (due,) = agreed_flags(self.inner, (due,), total, inner_state, params, extra)
        out, inner_state = update_when(self, self.inner, due, total, inner_state, params, extra)
        us = treedef.flatten_up_to(out)
        if not tables:  # with tables, the updates are zeros already where no step was due
            us = [_accumulator_emptied_if_due(u, ~due) for u in us]
        out = [_update_in_dtype(u, g.dtype) for u, g in zip(us, gs, strict=True)]
        buffers = [
            buffer._replace(indices=jnp.where(due, g.num_rows, buffer.indices))
            for buffer, g in zip(buffers, tables, strict=True)
        ]
        buffers_def = jax.tree.structure(state.acc_rows, is_leaf=_is_buffer)
        return jax.tree.unflatten(treedef, out), AccumulateRowsState(
            mini_step=jnp.where(due, 0, safe_increment(state.mini_step)),
            gradient_step=jnp.where(due, safe_increment(state.gradient_step), state.gradient_step),
            inner_opt_state=inner_state,
            acc_grads=accs.rebuilt(engine.map_rows(_accumulator_emptied_if_due, [dense], due)),
            acc_rows=jax.tree.unflatten(buffers_def, buffers),
        )

    def _accumulated(
        self, treedef: Any, gs: list[Any], state: AccumulateRowsState
    ) -> tuple[list[Array], Aligned]:
        """Return the dense gradients accumulated so far, and the accumulator in the state."""
        tree = [MaskedNode() if isinstance(g, RowSparse) else g for g in gs]
        tree = jax.tree.unflatten(treedef, tree)
        dense, dense_def = jax.tree.flatten(tree)
        accs = align_slot(self, tree, dense_def, state, "acc_grads")
        add = running_mean if self.use_grad_mean else running_sum
        weight = 1.0 / scalar(state.mini_step + 1)
        return engine.map_rows(add, [dense, accs.leaves], weight, None), accs

    def _filled_buffers(
        self, tables: list[RowSparse], state: AccumulateRowsState
    ) -> list[RowBuffer]:
        """Return the buffers with the slices of this micro-batch."""
        buffers = jax.tree.leaves(state.acc_rows, is_leaf=_is_buffer)
        if len(buffers) != len(tables):
            raise ValueError(
                f"{name_of(self)}: the state has buffers for {len(buffers)} tables, the updates "
                f"have row-sparse gradients for {len(tables)}. A table that a micro-batch does not "
                "look up has a gradient of padding, not of None."
            )
        return [_buffer(b, g, state.mini_step) for b, g in zip(buffers, tables, strict=True)]

    def _gradient_of(self, buffer: RowBuffer, g: RowSparse) -> RowSparse:
        """Return the slices of a buffer as one gradient."""
        rows = RowSparse(buffer.indices, buffer.values, g.num_rows)
        return rows / self.every_k_schedule if self.use_grad_mean else rows


def _update_in_dtype(u: Any, dtype: Any) -> Any:
    return u.with_values(cast(u.values, dtype)) if isinstance(u, RowSparse) else cast(u, dtype)


def _is_buffer(x: Any) -> bool:
    return isinstance(x, RowBuffer)


def _buffer(buffer: RowBuffer, g: RowSparse, mini_step: Array) -> RowBuffer:
    """Return the buffer with the slices of this micro-batch at their place."""
    start = mini_step * g.indices.shape[0]
    return RowBuffer(
        lax.dynamic_update_slice_in_dim(buffer.indices, g.indices, start, 0),
        lax.dynamic_update_slice_in_dim(
            buffer.values, cast(g.values, buffer.values.dtype), start, 0
        ),
    )
