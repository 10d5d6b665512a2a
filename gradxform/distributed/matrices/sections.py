"""How the matrices of some leaves come to a device, and how their results go back.

Leaves whose matrices come in the same way make a section. The rule then runs once, on what all
sections give a device.
"""

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from gradxform import engine
from gradxform.distributed.wire.axis import size_of
from gradxform.linalg.products import hermitian_size
from gradxform.numerics import at_least_float32, cast, promote
from gradxform.types import Array

# The update and the new slots of a leaf.
Done = tuple[Array, tuple[Array, ...]]


class Section:
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


class Here(Section):
    """Matrices that this device has whole, and no other needs."""


class Shared(Section):
    """Matrices that the devices divide among them, the last ones repeated to equal shares."""

    def __init__(self, exchange: Any, members: Sequence[Any], count: int):
        super().__init__(members)
        self.exchange, self.count, self.total = exchange, count, self.share
        self.share = -(-self.total // count)

    def numbers(self, of_members: list[np.ndarray]) -> np.ndarray:
        """Return the numbers of every device's matrices; all devices have a piece of each."""
        return np.resize(super().numbers(of_members)[0], (self.count, self.share))

    def filled(self, x: Array) -> Array:
        """Return a batch with some of its first entries repeated, so that shares are equal."""
        missing = self.share * self.count - self.total
        while missing:  # more than once, if there are fewer matrices than are missing
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


class Everywhere(Shared):
    """Matrices that every device has."""

    def given(self) -> list[Array]:
        """Return what the rule gets of this device's share."""
        return [self.exchange.mine(self.filled(x), self.share) for x in super().given()]

    def done(self, u: Array, new: list[Array]) -> list[Done]:
        """Return the update and the new slots of each leaf."""
        return super().done(self.together(u), [self.together(x) for x in new])


class Cut(Shared):
    """Matrices that are cut: every device has a piece of each."""

    owned: list[Array]
    owned_slots: list[Array]  # the pieces (devices, share, ...) of the divided slots
    back: Array  # this device's pieces (devices, share, size) of the results
    slots_back: list[Array]  # and of the divided slots

    def __init__(self, exchange: Any, members: Sequence[Any], count: int):
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
            own_kind = jnp.reshape(jnp.asarray(self.kinds)[self.exchange.index()], shape)
            for kind, x in enumerate(xs[1:], 1):
                out = jnp.where(own_kind == kind, x, out)
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


class ByAll(Section):
    """One matrix that is cut: every device has a piece of it, and all gather it and compute it.

    The devices together have one matrix more than fills equal shares. An all-to-all would send
    copies of it that fill the shares up, there and back: twice the bytes, to compute as many
    matrices.
    """

    def __init__(self, exchange: Any, member: Any, narrow: Any):
        super().__init__([member])
        self.exchange, self.member, self.narrow = exchange, member, narrow
        self.frame = member.view.frame()

    def given(self) -> list[Array]:
        """Return what the rule gets: the matrix."""
        dtype = at_least_float32(promote(*(x.dtype for x in self.member.given)))
        out = []
        for x in self.member.given:
            piece = engine.rounded(cast(self.member.view.pieces(x), dtype), self.narrow)
            whole = self.frame.join(self.exchange.together(piece)[:, None])
            out.append(cast(whole, dtype))
        return out

    def slots(self) -> list[Array]:
        """Return the slots of the matrix."""
        pairs = zip(self.member.slots, self._slot_cuts(), strict=True)
        return [self.exchange.gather(x, cuts) for x, cuts in pairs]

    def done(self, u: Array, new: list[Array]) -> list[Done]:
        """Return this device's pieces of the update and of the new slots."""
        piece = self.exchange.mine(self.frame.part(u), 1)[0]
        slots = [self.exchange.cut(x, cuts) for x, cuts in zip(new, self._slot_cuts(), strict=True)]
        return [(self.member.view.from_pieces(piece), tuple(slots))]

    def _slot_cuts(self) -> list[tuple[tuple[str, int], ...]]:
        dims = self.member.view.slot_dims
        return [tuple((axis, dim) for axis in self.exchange.axes) for dim in dims]


# ----------------------------------------------------------------------------- choosing sections


def sections_of(exchange: Any, members: Sequence[Any], narrow: Any) -> list[Section]:
    """Return the sections of leaves whose matrices have the same sides.

    Args:
      exchange: a `MatrixExchange`.
      members: the leaves (`engine.Member`).
      narrow: the dtype in which real matrices are sent; None for their own.
    """
    count = size_of(exchange.axes)
    by_place: dict[str, list[Any]] = {"here": [], "cut": [], "all": []}
    for member in members:
        by_place[member.view.place].append(member)
    here, cut, everywhere = by_place.values()
    if len(everywhere) == len(members) and _matrix_count(members) == 1:
        return [Here(members)]  # to share one matrix saves nothing
    alone = _leaf_left_over_sections(cut, count)
    shared = [m for m in cut if m is not alone]
    sections: list[Section] = [Here(here)] if here else []
    sections += [Cut(exchange, group, count) for group in _groups_of_leaves(shared, count)]
    sections += [ByAll(exchange, alone, narrow)] if alone is not None else []
    sections += [Everywhere(exchange, everywhere, count)] if everywhere else []
    return sections


def stay_in_columns(
    exchange: Any, members: Sequence[Any], grams: int | None, narrow: Any
) -> list[bool]:
    """Return for each leaf whether its matrices stay as devices have their columns.

    The devices then sum products of the shorter sides. That is chosen for all such leaves, some or
    none, whichever sends the fewest bytes.

    Args:
      exchange: a `MatrixExchange`.
      members: the leaves (`engine.Member`), whose matrices have the same sides.
      grams: how many products the rule sums for each matrix; None if it needs whole matrices.
      narrow: the dtype in which real matrices are sent; None for their own.
    """
    count, (m, n) = size_of(exchange.axes), members[0].view.sides()[1:]
    can = [grams is not None and not x.slots and x.view.has_columns() for x in members]
    if grams is None or count == 1 or not any(can):
        return [False] * len(members)
    cut = [x for x in members if x.view.place == "cut"]
    columns = [x for x, able in zip(members, can, strict=True) if able]
    alone = _leaf_left_over_sections(cut, count)
    x = members[0].given[0]
    # In matrices, without the part of each that stays at the device itself. The maximum and the sum
    # for a norm are two scalars.
    wide = at_least_float32(x.dtype).itemsize
    sent = jnp.dtype(narrow).itemsize if narrow and not jnp.iscomplexobj(x) else wide
    of_columns = 2 * (grams * hermitian_size(m) + 2) / (m * n) * wide / sent
    # As many as leave full shares, or these and one that is left over.
    over, ends = (
        _matrix_count(cut) % count,
        np.cumsum([_matrix_count([x]) for x in columns]),
    )
    some = [columns[: k + 1] for k, end in enumerate(ends) if end in (over - 1, over)]
    some = [[], columns, *some, *([alone] for x in columns if x is alone)]
    best = min(
        some,
        key=lambda xs: _matrix_count(xs) * of_columns + _sent(cut, xs, count),
    )
    return [any(x is y for y in best) for x in members]


def _sent(cut: Sequence[Any], without: Sequence[Any], count: int) -> int:
    """Return how many matrices a device sends for the leaves that are cut, without some."""
    rest = [m for m in cut if all(m is not x for x in without)]
    alone = _leaf_left_over_sections(rest, count)
    shared = [m for m in rest if m is not alone]
    shares = sum(-(-_matrix_count(group) // count) for group in _groups_of_leaves(shared, count))
    return 2 * shares + (alone is not None)


def _matrix_count(members: Sequence[Any]) -> int:
    """Return the number of matrices of some leaves."""
    return sum(m.view.sides()[0] for m in members)


def _leaf_left_over_sections(members: Sequence[Any], count: int) -> Any:
    """Return the leaf whose matrix all devices gather; None if there is none.

    The others then fill equal shares. Its slots must be divided as it is: a slot that all devices
    have would have to be seen to stay equal.
    """
    if count == 1 or _matrix_count(members) % count != 1:
        return None
    kinds = _kinds_of_leaves(members)
    odd = [
        m for kind in kinds if _matrix_count(kind) % count == 1 for m in kind
    ]  # others stay by kinds
    for m in (*odd, *members):
        dims = m.view.slot_dims or (None,) * len(m.slots)
        if m.view.sides()[0] == 1 and None not in dims:
            return m
    return None


def _kinds_of_leaves(members: Sequence[Any]) -> list[list[Any]]:
    """Return the leaves whose matrices are cut alike, together."""
    kinds: dict[Any, list[Any]] = {}
    for member in members:
        kinds.setdefault(member.view.frame(), []).append(member)
    return list(kinds.values())


def _groups_of_leaves(members: Sequence[Any], count: int) -> list[list[Any]]:
    """Divide leaves into groups whose matrices are shared together.

    Matrices that are cut alike are one group, unless all together fill fewer shares: then each
    device finds out how its matrices are cut, which takes more copies and fewer products.
    """
    kinds = _kinds_of_leaves(members)
    totals = [_matrix_count(kind) for kind in kinds]
    apart, together = sum(-(-total // count) for total in totals), -(-sum(totals) // count)
    return kinds if apart == together else [[m for kind in kinds for m in kind]]
