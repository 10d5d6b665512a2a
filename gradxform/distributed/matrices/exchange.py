"""Giving each device its share of whole matrices: all-to-alls before and after a rule.

Every device holds a piece of each matrix. One all-to-all sends the pieces of each matrix to one
device, its owner; a second one sends the pieces of the result back. A matrix that is left over is
gathered instead, and computed by all. Where matrices have many more columns than rows, every device
keeps its columns, if the rule can sum its products over the devices. Arrays that every device has
do not need the first exchange; their results are gathered.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from gradxform import engine
from gradxform.distributed.matrices.sections import Cut, Done, Section, sections_of, stay_in_columns
from gradxform.distributed.shares.division import Division
from gradxform.distributed.wire.axis import as_varying, knows_what_varies, size_of, wide_psum
from gradxform.distributed.wire.bits import from_bits, to_bits
from gradxform.linalg.products import Columns
from gradxform.numerics import at_least_float32, cast, promote
from gradxform.types import Array

# A rule, applied to parts of a batch: from what it gets and the slots to updates and new slots.
Apply = Callable[[list[list[Array]], list[list[Array]]], tuple[list[Array], list[list[Array]]]]


class MatrixExchange(NamedTuple):
    """Exchanges matrices between the devices along mesh axes."""

    axes: tuple[str, ...]

    def psum(self, x: Array, axes: tuple[str, ...]) -> Array:
        """Return the sum of an array, or of a scalar, over the devices along some axes."""
        return wide_psum(x, axes)

    def pmax(self, x: Array, axes: tuple[str, ...]) -> Array:
        """Return the maximum of an array over the devices along some axes."""
        return lax.pmax(as_varying(x, axes), axes)

    def cut(self, x: Array, cuts: tuple[tuple[str, int], ...]) -> Array:
        """Return this device's piece of an array that all devices have."""
        return Division(cuts, ()).cut(x)

    def among_zeros(self, x: Array, cuts: tuple[tuple[str, int], ...]) -> Array:
        """Return an array of zeros with `x` in the place of this device's piece."""
        for axis, dim in reversed(cuts):
            length, shape = x.shape[dim], list(x.shape)
            shape[dim] *= lax.axis_size(axis)
            zeros, x = as_varying((jnp.zeros(shape, x.dtype), x), axis)
            start = lax.axis_index(axis) * length
            x = lax.dynamic_update_slice_in_dim(zeros, x, start, dim)
        return x

    def gather(self, x: Array, cuts: tuple[tuple[str, int], ...]) -> Array:
        """Return the whole array from this device's piece: undo `cut`."""
        return Division(cuts, ()).gather(x, knows_what_varies(self.axes))

    def scattered(self, xs: Sequence[Array], cuts: Sequence[tuple[str, int]]) -> list[Array]:
        """Return this device's pieces of the sums of arrays over the devices.

        Arrays of one axis and dtype share a reduce-scatter.

        Args:
          xs: what this device adds.
          cuts: for each array, the axis over which it is summed, and the dimension that it cuts.
        """

        def combine(flat: Array, axis: str) -> Array:
            return lax.psum_scatter(as_varying(flat, axis), axis)

        pieces = [Division((cut,), ()).pieces(x) for x, cut in zip(xs, cuts, strict=True)]
        flat = [jnp.reshape(x, (x.shape[0], -1)) for x in pieces]
        out = _combined(flat, [axis for axis, _ in cuts], combine)
        return [jnp.reshape(x, p.shape[1:]) for x, p in zip(out, pieces, strict=True)]

    def gathered(self, xs: Sequence[Array], cuts: Sequence[tuple[str, int]]) -> list[Array]:
        """Return whole arrays from this device's pieces: undo the cuts of `scattered`.

        Arrays of one axis and dtype share an all-gather.
        """

        def combine(flat: Array, axis: str) -> Array:
            return Division(((axis, 0),), ()).gather(flat, knows_what_varies(self.axes))

        flat = [jnp.reshape(x, (1, -1)) for x in xs]
        out = _combined(flat, [axis for axis, _ in cuts], combine)
        return [
            Division((cut,), ()).assembled(jnp.reshape(whole, (-1, *x.shape)))
            for x, whole, cut in zip(xs, out, cuts, strict=True)
        ]

    def run(
        self, members: Sequence[Any], apply: Apply, narrow: Any, grams: int | None = None
    ) -> list[Done]:
        """Apply a rule to the matrices of some leaves, each device to its share of them.

        Args:
          members: the leaves (`engine.Member`).
          apply: the rule.
          narrow: the dtype in which real matrices are sent; None for their own.
          grams: how many products X X^H the rule sums over devices that have columns of X; None if
            it needs whole matrices.
        """
        stay = stay_in_columns(self, members, grams, narrow)
        firsts = _first_exchanged_matrix_numbers(members)
        members = [
            m._replace(view=m.view._replace(first=first))
            for m, first in zip(members, firsts, strict=True)
        ]
        long = [m for m, stays in zip(members, stay, strict=True) if stays]
        others = [m for m, stays in zip(members, stay, strict=True) if not stays]
        in_columns = iter(self._in_columns(long, apply) if long else [])
        in_shares = iter(self._in_shares(others, apply, narrow) if others else [])
        return [next(in_columns if stays else in_shares) for stays in stay]

    def _in_columns(self, members: Sequence[Any], apply: Apply) -> list[Done]:
        """Apply a rule to this device's columns of long matrices; return each leaf's update."""
        axes, views = self.axes, [m.view for m in members]
        columns = Columns(size_of(axes), lambda x: wide_psum(x, axes), lambda x: self.pmax(x, axes))
        sizes = [view.sides()[0] for view in views]
        numbers = [view.first + np.arange(n) for view, n in zip(views, sizes, strict=True)]
        inputs = [[m.view.batch(m.given[k]) for m in members] for k in range(len(members[0].given))]
        with engine.by_columns(columns), engine.as_share(np.concatenate(numbers)[None], 0):
            us, _ = apply(inputs, [])
        return [(view.leaf(x), ()) for view, x in zip(views, us, strict=True)]

    def _in_shares(self, members: Sequence[Any], apply: Apply, narrow: Any) -> list[Done]:
        """Apply a rule to whole matrices; return each leaf's update and new slots."""
        sections = sections_of(self, members, narrow)
        cut = [s for s in sections if isinstance(s, Cut)]
        self._to_owners(cut, narrow)
        inputs = [[*xs] for xs in zip(*(s.given() for s in sections), strict=True)]
        slots = [[*xs] for xs in zip(*(s.slots() for s in sections), strict=True)]
        with engine.as_share(*self._shares(members, sections)):
            us, news = apply(inputs, slots)
        results_of = {id(s): (us[i], [x[i] for x in news]) for i, s in enumerate(sections)}
        self._from_owners(cut, [results_of[id(s)] for s in cut], narrow)
        by_member: dict[int, Done] = {}
        for section in sections:
            results = section.done(*results_of[id(section)])
            for member, x in zip(section.members, results, strict=True):
                by_member[id(member)] = x
        return [by_member[id(member)] for member in members]

    def _shares(
        self, members: Sequence[Any], sections: Sequence[Section]
    ) -> tuple[np.ndarray, Any]:
        """Return the numbers of the matrices of every device, and which device this is."""
        numbers = self._numbers(members, sections)
        if np.all(numbers == numbers[0]):  # then nothing in the rule varies from device to device
            return numbers[:1], 0
        return numbers, self.index()

    def _numbers(self, members: Sequence[Any], sections: Sequence[Section]) -> np.ndarray:
        """Return for every device the numbers of its matrices, among those of all `members`."""
        places = list(np.ndindex(*(size_of(axis) for axis in self.axes)))
        by_member = {}
        for member in members:
            view = member.view
            axes, shape = view.axes.expanded(view.cut.whole(view.shape))
            batch = [shape[i] for i in axes.batch]
            whole = view.first + np.arange(math.prod(batch)).reshape(batch)
            by_member[id(member)] = np.stack(
                [self._own_part(view, whole, place) for place in places]
            )
        of_sections = [s.numbers([by_member[id(m)] for m in s.members]) for s in sections]
        return np.concatenate(of_sections, axis=1)

    def _own_part(self, view: Any, whole: np.ndarray, place: tuple[int, ...]) -> np.ndarray:
        """Return the entries of a batch that the device at a place of the mesh has."""
        batch, sizes = view.axes.expanded(view.shape)[0].batch, dict(view.cut.sizes)
        for axis, dim in view.cut.cuts:
            target = view.axes.moved(dim)
            at = view.axes.axis if target is None else target
            if at in batch:
                parts = np.split(whole, sizes[axis], batch.index(at))
                whole = parts[place[self.axes.index(axis)]]
        return whole.ravel()

    def _to_owners(self, sections: Sequence[Cut], narrow: Any) -> None:
        """Give each section the matrices that this device owns, and their divided slots."""
        rows = [s.rows() for s in sections]
        dtype = at_least_float32(promote(*(x.dtype for xs in rows for x in xs))) if rows else None
        rows = [[engine.rounded(cast(x, dtype), narrow) for x in xs] for xs in rows]
        slots = [s.slot_rows() for s in sections]
        got = self._swap(zip(rows, slots, strict=True))
        for s, (xs, own_slots) in zip(sections, got, strict=True):
            s.owned = [cast(s.join(x), dtype) for x in xs]
            s.owned_slots = own_slots

    def _from_owners(
        self, sections: Sequence[Cut], results: Sequence[tuple[Array, list[Array]]], narrow: Any
    ) -> None:
        """Give each section this device's pieces of the results of all owners."""
        parts = [
            ([s.part(engine.rounded(u, narrow))], s.slot_parts(new))
            for s, (u, new) in zip(sections, results, strict=True)
        ]
        got = self._swap(parts)
        for s, (u, _), ([x], slot_pieces) in zip(sections, results, got, strict=True):
            s.back = cast(x, u.dtype)
            s.slots_back = slot_pieces

    def _swap(self, trees: Any) -> Any:
        """Send entry i of the first axis of each array to device i, all of a dtype together."""
        arrays, treedef = jax.tree.flatten(list(trees))
        leaves = [to_bits(x) for x in arrays]
        kinds: dict[Any, list[int]] = {}
        for i, x in enumerate(leaves):
            kinds.setdefault(x.dtype, []).append(i)
        axes = self.axes[0] if len(self.axes) == 1 else self.axes
        for group in kinds.values():
            # Arrays of one shape but for their second axis make a simpler program.
            alike = len({leaves[i].shape[2:] for i in group}) == 1
            xs = [
                leaves[i] if alike else jnp.reshape(leaves[i], (leaves[i].shape[0], -1))
                for i in group
            ]
            x = jnp.concatenate(xs, axis=1) if len(xs) > 1 else xs[0]
            x = lax.all_to_all(as_varying(x, self.axes), axes, 0, 0, tiled=True)
            ends = np.cumsum([x.shape[1] for x in xs])[:-1]
            for i, part in zip(
                group, jnp.split(x, ends, axis=1) if len(xs) > 1 else [x], strict=True
            ):
                leaves[i] = jnp.reshape(part, leaves[i].shape)
        pairs = zip(leaves, arrays, strict=True)
        return jax.tree.unflatten(treedef, [from_bits(x, old.dtype) for x, old in pairs])

    def index(self) -> Array:
        """Return the number of this device."""
        return lax.axis_index(self.axes[0] if len(self.axes) == 1 else self.axes)

    def mine(self, x: Array, share: int) -> Array:
        """Return this device's share of a batch that all devices have."""
        return lax.dynamic_slice_in_dim(as_varying(x, self.axes), self.index() * share, share)

    def together(self, x: Array) -> Array:
        """Return the batch of all devices from their shares."""
        is_tracked = knows_what_varies(self.axes)
        return Division(tuple((axis, 0) for axis in self.axes), ()).gather(x, is_tracked)


def _combined(
    xs: Sequence[Array], axes: Sequence[str], combine: Callable[[Array, str], Array]
) -> list[Array]:
    """Return what a collective makes of arrays (n, ...), joined along their last axis."""
    kinds: dict[Any, list[int]] = {}
    for i, (x, axis) in enumerate(zip(xs, axes, strict=True)):
        kinds.setdefault((axis, x.dtype), []).append(i)
    out = list(xs)
    for (axis, _), group in kinds.items():
        of_all = combine(jnp.concatenate([xs[i] for i in group], axis=-1), axis)
        ends = np.cumsum([xs[i].shape[-1] for i in group])[:-1]
        for i, part in zip(group, jnp.split(of_all, ends, axis=-1), strict=True):
            out[i] = part
    return out


def _first_exchanged_matrix_numbers(members: Sequence[Any]) -> list[int]:
    """Return the number of the first matrix of each leaf, among those of all devices."""
    out, start = [], 0
    for member in members:
        first = start if member.view.first is None else member.view.first
        out.append(first)
        start = first + member.view.count()
    return out
