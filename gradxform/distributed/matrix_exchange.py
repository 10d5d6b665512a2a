"""Giving each device its share of whole matrices: all-to-alls before and after a rule.

Every device holds a piece of each matrix. One all-to-all sends the pieces of each matrix to one
device, its owner; a second one sends the pieces of the result back. Arrays that every device has
need no first exchange; their results are gathered.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from gradxform import engine
from gradxform.distributed.axis import as_varying, knows_what_varies, psum, size_of
from gradxform.distributed.bits import from_bits, to_bits
from gradxform.distributed.division import Division
from gradxform.numerics import at_least_float32, cast, promote
from gradxform.types import Array

# The update and the new slots of a leaf.
Done = tuple[Array, tuple[Array, ...]]
# A rule, applied to a batch: from what it gets and the slots to the update and the new slots.
Apply = Callable[[list[Array], list[Array]], tuple[Array, list[Array]]]


class MatrixExchange(NamedTuple):
    """Exchanges matrices between the devices along mesh axes."""

    axes: tuple[str, ...]

    def psum(self, x: Array, axes: tuple[str, ...]) -> Array:
        """Return the sum of an array, or of a scalar, over the devices along some axes."""
        return psum(x, axes)

    def pmax(self, x: Array, axes: tuple[str, ...]) -> Array:
        """Return the maximum of an array over the devices along some axes."""
        return lax.pmax(as_varying(x, axes), axes)

    def cut(self, x: Array, cuts: tuple[tuple[str, int], ...]) -> Array:
        """Return this device's piece of an array that all devices have."""
        return Division(cuts, ()).cut(x)

    def among_zeros(self, x: Array, cuts: tuple[tuple[str, int], ...]) -> Array:
        """Return an array of zeros of which this device's piece is `x`."""
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

    def run(self, members: Sequence[Any], apply: Apply, narrow: Any) -> list[Done]:
        """Apply a rule to the matrices of some leaves, each device to its share of them.

        Args:
          members: the leaves (`engine.Member`).
          apply: the rule.
          narrow: the dtype in which real matrices are sent; None for their own.
        """
        places = [member.view.place for member in members]
        count = size_of(self.axes)
        if set(places) == {"all"} and sum(m.view.sides()[0] for m in members) == 1:
            sections: list[_Section] = [_Here(members)]  # to share one matrix saves nothing
        else:
            here = [m for m, place in zip(members, places, strict=True) if place == "here"]
            everywhere = [m for m, place in zip(members, places, strict=True) if place == "all"]
            cut = [m for m, place in zip(members, places, strict=True) if place == "cut"]
            sections = [_Here(here)] if here else []
            sections += [_Cut(self, group, count) for group in _groups(cut, count)]
            sections += [_Everywhere(self, everywhere, count)] if everywhere else []
        cut = [s for s in sections if isinstance(s, _Cut)]
        self._to_owners(cut, narrow)
        given = [[*xs] for xs in zip(*(s.given() for s in sections), strict=True)]
        slots = [[*xs] for xs in zip(*(s.slots() for s in sections), strict=True)]
        with engine.as_share(*self._shares(members, sections)):
            u, new = apply([engine.joined(x) for x in given], [engine.joined(x) for x in slots])
        sizes = [s.share for s in sections]
        us, news = engine.parted(u, sizes), [engine.parted(x, sizes) for x in new]
        made_by = {id(s): (us[i], [x[i] for x in news]) for i, s in enumerate(sections)}
        self._from_owners(cut, [made_by[id(s)] for s in cut], narrow)
        done: dict[int, Done] = {}
        for section in sections:
            made = section.done(*made_by[id(section)])
            for member, x in zip(section.members, made, strict=True):
                done[id(member)] = x
        return [done[id(member)] for member in members]

    def _shares(
        self, members: Sequence[Any], sections: Sequence["_Section"]
    ) -> tuple[np.ndarray, Any]:
        """Return the numbers of the matrices of every device, and which device this is."""
        numbers = self._numbers(members, sections)
        if np.all(numbers == numbers[0]):  # then nothing in the rule varies from device to device
            return numbers[:1], 0
        return numbers, self.index()

    def _numbers(self, members: Sequence[Any], sections: Sequence["_Section"]) -> np.ndarray:
        """Return for every device the numbers of its matrices, among those of all `members`."""
        places = list(np.ndindex(*(size_of(axis) for axis in self.axes)))
        found, start = {}, 0
        for member in members:
            view = member.view
            axes, shape = view.axes.expanded(view.cut.whole(view.shape))
            batch = [shape[i] for i in axes.batch]
            start = start if view.first is None else view.first
            whole = start + np.arange(math.prod(batch)).reshape(batch)
            start += whole.size
            found[id(member)] = np.stack([self._own_part(view, whole, place) for place in places])
        of_sections = [s.numbers([found[id(m)] for m in s.members]) for s in sections]
        return np.concatenate(of_sections, axis=1)

    def _own_part(self, view: Any, whole: np.ndarray, place: tuple[int, ...]) -> np.ndarray:
        """Return the entries of a batch that the device at a place of the mesh has."""
        batch, sizes = view.axes.expanded(view.shape)[0].batch, dict(view.cut.sizes)
        for axis, dim in view.cut.cuts:
            moved = view.axes.moved(dim)
            at = view.axes.axis if moved is None else moved
            if at in batch:
                parts = np.split(whole, sizes[axis], batch.index(at))
                whole = parts[place[self.axes.index(axis)]]
        return whole.ravel()

    def _to_owners(self, sections: Sequence["_Cut"], narrow: Any) -> None:
        """Give each section the matrices that this device owns, and their divided slots."""
        rows = [s.rows() for s in sections]
        dtype = at_least_float32(promote(*(x.dtype for xs in rows for x in xs))) if rows else None
        rows = [[engine.rounded(cast(x, dtype), narrow) for x in xs] for xs in rows]
        slots = [s.slot_rows() for s in sections]
        got = self._swap(zip(rows, slots, strict=True))
        for s, (xs, kept) in zip(sections, got, strict=True):
            s.owned = [cast(s.join(x), dtype) for x in xs]
            s.owned_slots = kept

    def _from_owners(
        self, sections: Sequence["_Cut"], made: Sequence[tuple[Array, list[Array]]], narrow: Any
    ) -> None:
        """Give each section this device's pieces of the results of all owners."""
        parts = [
            ([s.part(engine.rounded(u, narrow))], s.slot_parts(new))
            for s, (u, new) in zip(sections, made, strict=True)
        ]
        got = self._swap(parts)
        for s, (u, _), ([x], kept) in zip(sections, made, got, strict=True):
            s.back = cast(x, u.dtype)
            s.slots_back = kept

    def _swap(self, trees: Any) -> Any:
        """Send entry i of the first axis of each array to device i, all of a dtype together."""
        given, treedef = jax.tree.flatten(list(trees))
        leaves = [to_bits(x) for x in given]
        kinds: dict[Any, list[int]] = {}
        for i, x in enumerate(leaves):
            kinds.setdefault(x.dtype, []).append(i)
        axes = self.axes[0] if len(self.axes) == 1 else self.axes
        for mine in kinds.values():
            # Arrays of one shape but for their second axis make a simpler program.
            alike = len({leaves[i].shape[2:] for i in mine}) == 1
            xs = [
                leaves[i] if alike else jnp.reshape(leaves[i], (leaves[i].shape[0], -1))
                for i in mine
            ]
            x = jnp.concatenate(xs, axis=1) if len(xs) > 1 else xs[0]
            x = lax.all_to_all(as_varying(x, self.axes), axes, 0, 0, tiled=True)
            ends = np.cumsum([x.shape[1] for x in xs])[:-1]
            for i, part in zip(
                mine, jnp.split(x, ends, axis=1) if len(xs) > 1 else [x], strict=True
            ):
                leaves[i] = jnp.reshape(part, leaves[i].shape)
        pairs = zip(leaves, given, strict=True)
        return jax.tree.unflatten(treedef, [from_bits(x, old.dtype) for x, old in pairs])

    def index(self) -> Array:
        """Return the number of this device."""
        return lax.axis_index(self.axes[0] if len(self.axes) == 1 else self.axes)

    def mine(self, x: Array, share: int) -> Array:
        """Return this device's share of a batch that all devices have."""
        return lax.dynamic_slice_in_dim(as_varying(x, self.axes), self.index() * share, share)

    def together(self, x: Array) -> Array:
        """Return the batch of all devices from their shares."""
        known = knows_what_varies(self.axes)
        return Division(tuple((axis, 0) for axis in self.axes), ()).gather(x, known)


class _Section:
    """Leaves whose matrices come to a device in the same way."""

    def __init__(self, members: Sequence[Any]):
        self.members = members
        self.sizes = [member.view.sides()[0] for member in members]
        self.share = sum(self.sizes)  # how many matrices a device gets

    def numbers(self, of_members: list[np.ndarray]) -> np.ndarray:
        """Return the numbers of every device's matrices from those that it has of each leaf."""
        return np.concatenate(of_members, axis=1)

    def given(self) -> list[Array]:
        """Return what the rule gets of this device's share."""
        return [
            engine.joined([m.view.batch(m.given[k]) for m in self.members])
            for k in range(len(self.members[0].given))
        ]

    def slots(self) -> list[Array]:
        """Return the slots of this device's share."""
        return [
            engine.joined([m.slots[k] for m in self.members])
            for k in range(len(self.members[0].slots))
        ]

    def done(self, u: Array, new: list[Array]) -> list[Done]:
        """Return the update and the new slots of each leaf."""
        us, news = engine.parted(u, self.sizes), [engine.parted(x, self.sizes) for x in new]
        return [
            (self.leaf(m, us[i]), tuple(x[i] for x in news)) for i, m in enumerate(self.members)
        ]

    def leaf(self, member: Any, u: Array) -> Array:
        """Return a leaf from its part of the results."""
        return member.view.leaf(u)


class _Here(_Section):
    """Matrices that this device has whole, and no other needs."""


class _Shared(_Section):
    """Matrices that the devices divide among them, the last ones repeated to equal shares."""

    def __init__(self, exchange: MatrixExchange, members: Sequence[Any], count: int):
        super().__init__(members)
        self.exchange, self.count, self.total = exchange, count, self.share
        self.share = -(-self.total // count)

    def numbers(self, of_members: list[np.ndarray]) -> np.ndarray:
        """Return the numbers of every device's matrices; all devices have a piece of each."""
        return np.resize(super().numbers(of_members)[0], (self.count, self.share))

    def filled(self, x: Array) -> Array:
        """Return a batch with some of its first entries repeated, so that shares are equal."""
        missing = self.share * self.count - self.total
        while missing:
            x, missing = (
                jnp.concatenate([x, x[: min(missing, self.total)]]),
                missing - min(missing, self.total),
            )
        return x

    def slots(self) -> list[Array]:
        """Return the slots of this device's share; all devices have those of all."""
        return [self.exchange.mine(self.filled(x), self.share) for x in super().slots()]

    def together(self, x: Array) -> Array:
        """Return the results of all devices, without the repeated ones."""
        return self.exchange.together(x)[: self.total]


class _Everywhere(_Shared):
    """Matrices that every device has."""

    def given(self) -> list[Array]:
        """Return what the rule gets of this device's share."""
        return [self.exchange.mine(self.filled(x), self.share) for x in super().given()]

    def done(self, u: Array, new: list[Array]) -> list[Done]:
        """Return the update and the new slots of each leaf."""
        return super().done(self.together(u), [self.together(x) for x in new])


def _groups(members: Sequence[Any], count: int) -> list[list[Any]]:
    """Divide leaves into groups whose matrices are shared together.

    Matrices that are cut alike are one group, unless all together fill fewer shares: then each
    device finds out how its matrices are cut, which takes more copies and fewer products.
    """
    kinds: dict[Any, list[Any]] = {}
    for member in members:
        kinds.setdefault(member.view.frame(), []).append(member)
    totals = [sum(m.view.sides()[0] for m in kind) for kind in kinds.values()]
    apart, together = sum(-(-total // count) for total in totals), -(-sum(totals) // count)
    if apart == together:
        return list(kinds.values())
    return [[m for kind in kinds.values() for m in kind]]


class _Cut(_Shared):
    """Matrices of which every device has a piece."""

    owned: list[Array]
    owned_slots: list[Array]  # the pieces (devices, share, ...) of the divided slots
    back: Array  # this device's pieces (devices, share, size) of the results
    slots_back: list[Array]  # and of the divided slots

    def __init__(self, exchange: MatrixExchange, members: Sequence[Any], count: int):
        super().__init__(exchange, members, count)
        of_leaf = [m.view.frame() for m in members]
        self.frames = list(dict.fromkeys(of_leaf))
        # The axis along which each slot is divided; leaves of one group have slots of equal shapes.
        self.slot_dims = members[0].view.slot_dims or (None,) * len(members[0].slots)
        # How each matrix of each share is cut: an index of `frames`.
        kinds = np.repeat([self.frames.index(f) for f in of_leaf], self.sizes)
        self.kinds = np.resize(kinds, (count, self.share))

    def join(self, pieces: Array) -> Array:
        """Return the matrices of this device's share from their pieces (devices, share, size)."""
        return self._each([frame.join(pieces) for frame in self.frames], 0)

    def part(self, x: Array) -> Array:
        """Undo `join`."""
        return self._each([frame.part(x) for frame in self.frames], 1)

    def _each(self, xs: list[Array], axis: int) -> Array:
        """Return along an axis of matrices the entry of the array that is of its kind."""
        out = xs[0]
        if len(xs) > 1:
            shape = [1] * out.ndim
            shape[axis] = self.share
            mine = jnp.reshape(jnp.asarray(self.kinds)[self.exchange.index()], shape)
            for kind, x in enumerate(xs[1:], 1):
                out = jnp.where(mine == kind, x, out)
        return out

    def rows(self) -> list[Array]:
        """Return this device's pieces, (devices, share, size): what each owner gets."""
        out = []
        for k in range(len(self.members[0].given)):
            x = self.filled(engine.joined([m.view.pieces(m.given[k]) for m in self.members]))
            out.append(jnp.reshape(x, (self.count, self.share, -1)))
        return out

    def slot_rows(self) -> list[Array]:
        """Return this device's pieces of the divided slots, (devices, share, ...)."""
        out = []
        for k, dim in enumerate(self.slot_dims):
            if dim is not None:
                x = self.filled(engine.joined([m.slots[k] for m in self.members]))
                out.append(jnp.reshape(x, (self.count, self.share, *x.shape[1:])))
        return out

    def slot_parts(self, new: Sequence[Array]) -> list[Array]:
        """Return the pieces (devices, share, ...) of the divided slots of this device's share."""
        out = []
        for x, dim in zip(new, self.slot_dims, strict=True):
            if dim is not None:
                shape = *x.shape[:dim], self.count, x.shape[dim] // self.count, *x.shape[dim + 1 :]
                out.append(jnp.moveaxis(jnp.reshape(x, shape), dim, 0))
        return out

    def given(self) -> list[Array]:
        """Return what the rule gets of this device's share."""
        return self.owned

    def slots(self) -> list[Array]:
        """Return the slots of this device's share, the divided ones from their pieces."""
        pieces, out = iter(self.owned_slots), []
        for k, dim in enumerate(self.slot_dims):
            if dim is None:
                x = self.filled(engine.joined([m.slots[k] for m in self.members]))
                out.append(self.exchange.mine(x, self.share))
            else:
                x = jnp.moveaxis(next(pieces), 0, dim)
                out.append(jnp.reshape(x, (*x.shape[:dim], -1, *x.shape[dim + 2 :])))
        return out

    def done(self, u: Array, new: list[Array]) -> list[Done]:
        """Return the update and the new slots of each leaf."""
        divided = iter(self.slots_back)
        slots = [
            self.together(x) if dim is None else self._without_copies(next(divided))
            for x, dim in zip(new, self.slot_dims, strict=True)
        ]
        return super().done(self._without_copies(self.back), slots)

    def _without_copies(self, x: Array) -> Array:
        """Return from pieces (devices, share, ...) those of each matrix once."""
        return jnp.reshape(x, (self.count * self.share, *x.shape[2:]))[: self.total]

    def leaf(self, member: Any, u: Array) -> Array:
        """Return a leaf from its part of the results."""
        return member.view.from_pieces(u)
