"""Lift rules for whole matrices to an update of a tree: matrices of equal sides share batches.

A rule sees a batch `(B, m, n)`. Leaves whose matrices have the same two sides share it, and so do
the matrices of one leaf: stacked layers, experts or heads. A tall matrix is turned, so that m <= n,
unless the rule must know which side is which. A batch is as large as a processor holds at once: a
program has a copy of the rule for each batch, and one for all batches of a leaf. Where leaves are
divided over devices, an exchange gives each device its share of the matrices, or has it keep its
columns of long ones.
"""

import contextlib
import functools
import math
import sys
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import AxisType

from gradxform._jax.versions import platform_of, settled_carry
from gradxform.engine.calls import compiled_calls
from gradxform.engine.chunks import is_traced, places, signature
from gradxform.engine.cuts import UNCUT, Cut, columns_now, exchange_now
from gradxform.engine.in_place import InPlace, run_in_place
from gradxform.engine.renewal import as_share, part_of_share, turn_of_share
from gradxform.engine.slices import slice_of_axis, with_slice_of_axis
from gradxform.errors import name_of
from gradxform.leaves.storage import is_on_host
from gradxform.numerics import at_least_float32, cast, promote, real_dtype
from gradxform.numerics.overflow import cast_slot
from gradxform.types import Array
from gradxform.values import put_live, take_live


class View(NamedTuple):
    """How one leaf is a batch of matrices."""

    axes: Any  # with `to_matrices`, `from_matrices`, `sizes` and `expanded`
    shape: tuple[int, ...]  # of the leaf, as this device has it
    turned: bool  # whether rows and columns are exchanged
    cut: Cut = UNCUT
    # The number of its first matrix among those of equal sides, where some leaves lack a gradient.
    first: int | None = None
    # Along which axis each slot is divided over the devices; () or None for those that are whole.
    slot_dims: tuple[int | None, ...] = ()
    layers: tuple[str, ...] = ()  # the axes of the stacks of which it is a layer

    @property
    def place(self) -> str:
        """How the matrices lie on the devices; see `Cut.place`."""
        return self.cut.place(self.axes, self.shape)

    def batch(self, x: Array) -> Array:
        """Return the matrices of a leaf, (B, m, n)."""
        return self._turn(self.axes.to_matrices(x))

    def leaf(self, x: Array) -> Array:
        """Undo `batch`."""
        return self.axes.from_matrices(self._turn(x), self.shape)

    def _turn(self, x: Array) -> Array:
        return jnp.swapaxes(x, -1, -2) if self.turned else x

    def sides(self) -> tuple[int, int, int]:
        """Return the number of matrices, and their sides as the rule sees them.

        A matrix counts, with the sides of the whole, also where this device has a piece of it.
        """
        here = self.cut == UNCUT or self.place == "here"
        whole = self.shape if here else self.cut.whole(self.shape)
        count, rows, columns = self.axes.sizes(whole)
        return (count, columns, rows) if self.turned else (count, rows, columns)

    def count(self) -> int:
        """Return the number of matrices on all devices."""
        return self.axes.sizes(self.cut.whole(self.shape))[0]

    def frame(self) -> "Frame":
        """Return how a piece of each of the matrices is part of it."""
        whole = self.cut.whole(self.shape)
        dim = self.axes.moved(self.cut.cuts[0][1])
        axes, shape = self.axes.expanded(self.shape)
        _, full = self.axes.expanded(whole)
        order = axes.rows + axes.columns
        return Frame(
            tuple(shape[i] for i in order),
            order.index(dim),
            full[dim] // shape[dim],
            self.axes.sizes(whole)[1:],
            self.turned,
        )

    def has_columns(self) -> bool:
        """Whether this device's piece of each matrix is some of its columns, as the rule sees it.

        Columns are those of the whole; their order does not matter.
        """
        if self.place != "cut":
            return False
        axes, _ = self.axes.expanded(self.shape)
        return self.axes.moved(self.cut.cuts[0][1]) in (axes.rows if self.turned else axes.columns)

    def pieces(self, x: Array) -> Array:
        """Return this device's piece of every matrix of a leaf, as rows (B, size)."""
        axes, shape = self.axes.expanded(x.shape)
        batch = math.prod(shape[i] for i in axes.batch)
        size = math.prod(shape[i] for i in axes.rows + axes.columns)
        x = jnp.transpose(jnp.reshape(x, shape), axes.batch + axes.rows + axes.columns)
        return jnp.reshape(x, (batch, size))

    def from_pieces(self, x: Array) -> Array:
        """Undo `pieces`."""
        axes, shape = self.axes.expanded(self.shape)
        return jnp.reshape(axes.from_matrices(x, shape), self.shape)


class Frame(NamedTuple):
    """How pieces of matrices make whole ones; leaves with equal frames are cut alike."""

    piece: tuple[int, ...]  # the shape of a piece: its dimensions of rows, then of columns
    dim: int  # the dimension that is cut
    pieces: int  # how many make a matrix
    sides: tuple[int, int]  # the rows and columns of a matrix
    turned: bool

    def join(self, x: Array) -> Array:
        """Return the matrices (B, m, n) that pieces (pieces, B, size) make."""
        x = jnp.reshape(x, (*x.shape[:2], *self.piece))
        x = jnp.moveaxis(x, 0, self.dim + 1)
        x = jnp.reshape(x, (x.shape[0], *self.sides))
        return jnp.swapaxes(x, -1, -2) if self.turned else x

    def part(self, x: Array) -> Array:
        """Undo `join`."""
        x = jnp.swapaxes(x, -1, -2) if self.turned else x
        i = self.dim
        x = jnp.reshape(x, (x.shape[0], *self.piece[:i], self.pieces, *self.piece[i:]))
        x = jnp.moveaxis(x, i + 1, 0)
        return jnp.reshape(x, (*x.shape[:2], -1))


def view_of(axes: Any, shape: Sequence[int], oriented: bool, cut: Cut = UNCUT) -> View:
    """Return the view of a leaf; `oriented` keeps rows and columns as the axes say."""
    whole = cut.whole(tuple(shape))
    _, rows, columns = axes.sizes(whole)
    return View(axes, tuple(shape), not oriented and rows > columns, cut)


Parts = Sequence[Sequence[Array]]  # of each array of a rule, the matrices of each part


class Member(NamedTuple):
    """One leaf, as the lift of a matrix rule sees it."""

    given: tuple[Array, ...]  # arrays of the leaf's shape: what the rule gets
    slots: tuple[Array, ...]  # (B, ...) each, an entry for each matrix of the leaf
    view: View
    moved: tuple[Array, ...] = ()  # arrays of the leaf's shape that the rules after this one change


def map_matrices(
    rule: Any, members: Sequence[Member], scalars: Sequence[Any], then: Any = None
) -> list[tuple[Any, tuple[Array, ...]]]:
    """Run a rule for a batch of matrices over leaves, all of equal sides at once.

    Within `as_pieces`, leaves are pieces, and every device applies the rule to its share of the
    matrices.

    Args:
      rule: with a method `rule(*given, *slots, *scalars)` that returns `(u, *new_slots)`; it may
        also have `exchange_dtype`, `grams_needed` and `renews`, as a `MatrixRule` has them.
      members: the leaves.
      scalars: what every call gets.
      then: in a trace, the rules by entry that follow, `then(u, *moved)`; None for none.

    Returns:
      For each leaf the update, in the leaf's shape and as wide as the batch, and its new slots.
      With `then`, what that returns in place of the update.
    """
    groups: dict[Any, list[int]] = {}
    counts: dict[Any, int] = {}  # of the matrices so far that could make a batch
    members = [*members]
    is_apart = bool(members) and _are_leaves_apart(rule, members[0].given[0])
    numbers: list[Any] = [None] * len(members)
    out: list[Any] = [None] * len(members)
    where = places([member.given[0] for member in members])
    for i, member in enumerate(members):
        x = member.given[0]
        if not x.size:  # nothing to compute, and nothing that devices could exchange
            u = cast(x, at_least_float32(x.dtype))
            out[i] = then(u, *member.moved) if then else u, member.slots
            continue
        kind = tuple(str(x.dtype) for x in (*member.given, *member.slots))
        # Arrays that make one batch must have one dtype, and be on the same devices.
        key = member.view.sides()[1:], kind, where[i], member.view.layers
        if is_apart:
            count, view = member.view.sides()[0], member.view
            first = counts.get(key, 0) if view.first is None else view.first
            counts[key] = counts.get(key, 0) + count
            # The number of a single one is an argument, so that leaves of one shape share a trace.
            numbers[i] = np.int32(first) if count == 1 else None
            view = view._replace(first=None if count == 1 else first)
            members[i], key = member._replace(view=view), (*key, i)
        groups.setdefault(key, []).append(i)
    live: list[Any] = []
    bare = rule if rule.is_static else take_live(rule, live)
    for group in groups.values():
        batch = [members[i] for i in group]
        views = tuple(member.view for member in batch)
        arrays = [(member.given, member.slots) for member in batch]
        far = any([view.cut != UNCUT for view in views])
        exchange = exchange_now() if far else None
        arguments = tuple(live), arrays, tuple(scalars), numbers[group[0]]
        static = bare, views, exchange
        if is_traced(batch[0].given[0]):
            moved = [member.moved for member in batch]
            results = _GROUP.plain(*static, *arguments, then, moved)
        elif exchange is None:
            results = _GROUP.run(signature(arguments), *static, *arguments)
        else:
            results = _GROUP.called(*static, *arguments)
        for i, x in zip(group, results, strict=True):
            out[i] = x
    return out


def _run_group(
    rule: Any,
    views: Any,
    exchange: Any,
    live: Any,
    arrays: Any,
    scalars: Any,
    number: Any,
    then: Any = None,
    moved: Any = (),
) -> list[tuple[Any, tuple[Array, ...]]]:
    """Run the rule on the batch that the leaves of a group make together.

    `number` is that of the only matrix, or None for those that the views tell.
    """
    rule = put_live(rule, live) if live else rule
    if then is not None:
        if exchange is None and _is_in_place(rule, *_parts_of(views, arrays)):
            with _numbered(views, number):
                return _run_group_in_place(rule, views, arrays, scalars, then, moved)
        results = _run_group(rule, views, exchange, (), arrays, scalars, number)
        pairs = zip(results, moved, strict=True)
        return [(then(u, *its), new) for (u, new), its in pairs]
    if exchange is not None:
        members = [Member(x, old, view) for (x, old), view in zip(arrays, views, strict=True)]
        return exchange.run(
            members,
            lambda inputs, old: run_parts(rule, inputs, old, scalars),
            getattr(rule, "exchange_dtype", None),
            grams_needed(rule, *views[0].sides()[1:]),
        )
    inputs, old = _parts_of(views, arrays)
    with _numbered(views, number):
        us, news = run_parts(rule, inputs, old, scalars)
    return [(view.leaf(us[i]), tuple(parts[i] for parts in news)) for i, view in enumerate(views)]


def _parts_of(views: Any, arrays: Any) -> tuple[Any, Any]:
    """Return the parts of what the rule gets, as batches, and of its slots."""
    inputs = [
        [view.batch(x[k]) for view, (x, _) in zip(views, arrays, strict=True)]
        for k in range(len(arrays[0][0]))
    ]
    return inputs, [[slots[k] for _, slots in arrays] for k in range(len(arrays[0][1]))]


def _run_group_in_place(
    rule: Any, views: Any, arrays: Any, scalars: Any, then: Any, moved: Any
) -> list[tuple[Any, tuple[Array, ...]]]:
    """Run the rule, and those after it, matrix by matrix."""
    # Turned one by one: a copy of each array would be as large as all parameters.
    flat = [view._replace(turned=False) for view in views]
    given = [view.batch(x[0]) for view, (x, _) in zip(flat, arrays, strict=True)]
    columns = [map(view.batch, xs) for view, xs in zip(flat, moved, strict=True)]
    _, old = _parts_of(flat, arrays)
    turned = [view.turned for view in views]
    at = _in_place(
        rule, given, old, scalars, then, [*map(list, zip(*columns, strict=True))], turned
    )
    new = zip(*at.moved, strict=True)
    slots = zip(*at.slots, strict=True)
    return [
        (tuple(map(view.leaf, xs)), its) for view, xs, its in zip(flat, new, slots, strict=True)
    ]


def _is_in_place(rule: Any, inputs: Parts, slots: Parts) -> bool:
    """Whether a rule computes one matrix after the other, so that it holds few of them at once."""
    goes = getattr(rule, "goes_in_place", None)
    if goes is None or columns_now() is not None or len(inputs) != 1:
        return False
    arrays = [x for parts in (*inputs, *slots) for x in parts]
    return (
        all(x.dtype == jnp.float32 and _may_be_cut(x) and not is_on_host(x) for x in arrays)
        and len({x.shape[1:] for x in inputs[0]}) == 1
        and goes(*(parts[0] for parts in slots))
    )


def _in_place(
    rule: Any,
    given: Sequence[Array],
    slots: Parts,
    scalars: Sequence[Any],
    then: Any = None,
    moved: Parts = (),
    turned: Sequence[bool] = (),
) -> InPlace:
    """Apply a rule to one matrix after the other, each of its arrays where its leaf keeps it."""
    narrow = getattr(rule, "exchange_dtype", None)
    dtype = given[0].dtype
    wide = [None if x is None else widened(x, dtype) for x in scalars]
    seen = lambda x: cast(rounded(x, narrow), dtype)  # noqa: E731
    lists = ((), ([*given],)) if then is None else (([*given],), tuple([*xs] for xs in moved))

    def move(*arrays: Array) -> Sequence[Array]:
        *old, u = arrays
        return [seen(u)] if then is None else then(seen(u), *old)

    return run_in_place(
        lambda at: rule.rule_in_place(at, *wide),
        [x.shape[0] for x in given],
        tuple([*xs] for xs in slots),
        *lists,
        turned=turned,
        seen=seen,
        move=move,
    )


def _are_leaves_apart(rule: Any, x: Array) -> bool:
    """Whether each leaf is a batch of its own.

    XLA for CPUs compiles equal loops once, but each copy into a batch and out of it by itself.
    LAPACK decomposes the matrices of a batch one after the other. Several devices exchange less for
    a batch.
    """
    if not getattr(rule, "renews", False) or exchange_now() is not None:
        return False
    x = jnp.asarray(x)
    return platform_of(x) == "cpu" and math.prod(jax.typeof(x).sharding.mesh.axis_sizes) == 1


def _numbered(views: Sequence[View], number: Any) -> contextlib.AbstractContextManager[None]:
    """Return a context that knows the numbers of matrices, where they are not 0, 1, ..."""
    if number is not None:
        return as_share(jnp.reshape(number, (1, 1)), 0)
    if all(view.first is None for view in views):
        return contextlib.nullcontext()
    numbers = [(view.first or 0) + np.arange(view.sides()[0]) for view in views]
    return as_share(np.concatenate(numbers)[None], 0)


def grams_needed(rule: Any, m: int, n: int) -> int | None:
    """Return how many products X X^H a rule sums over devices that have columns of X.

    None if it needs whole matrices, also if its class inherits `grams_needed` and has a `rule` of
    its own: the inherited number says nothing about that rule.
    """
    kinds = type(rule).__mro__
    says = next((kind for kind in kinds if "grams_needed" in vars(kind)), None)
    does = next((kind for kind in kinds if "rule" in vars(kind)), None)
    if says is None or does is None or not issubclass(says, does):
        return None
    return rule.grams_needed(m, n)


# The entries of the matrices that are computed at once: few enough that X, its Gram matrix, the
# square of that and the next X stay near the processor. On a TPU these are 4 times 16 MiB of the
# on-chip memory; with 16 M entries they do not stay, nor those of a hundred small matrices. On CPUs
# these batches take 0.6 to 0.8 of the time of a whole one, and a third to two thirds of its memory.
ON_CPU, ELSEWHERE = 1 << 18, 1 << 22
MOST_MATRICES = 64


def run_parts(
    rule: Any, inputs: Parts, slots: Parts, scalars: Sequence[Any]
) -> tuple[list[Array], list[list[Array]]]:
    """Apply a rule to matrices of equal sides in batches that a processor holds at once.

    Args:
      rule: the rule.
      inputs: for each array that the rule gets its parts, (B, m, n) each.
      slots: for each slot its parts.
      scalars: what every call gets.

    Returns:
      The updates of the parts; and for each slot its new parts.
    """
    sizes = [x.shape[0] for x in inputs[0]]
    if _is_in_place(rule, inputs, slots):
        at = _in_place(rule, inputs[0], slots, scalars)
        return at.moved[0], [*at.slots]
    most = _most_at_once(inputs[0][0])
    if _are_in_one_loop(rule, inputs[0], most):
        return _run_leaves_in_turns(rule, inputs, slots, scalars, most)
    us: list[Array] = []
    news: list[list[Array]] = [[] for _ in slots]
    start = 0
    for first, last in _batches(sizes, most):
        part, count = slice(first, last), sum(sizes[first:last])
        arrays = [joined(xs[part]) for xs in inputs], [joined(xs[part]) for xs in slots]
        with part_of_share(start, count, sum(sizes)):
            if count > most and _may_be_cut(arrays[0][0]):
                u, new = _run_in_turns(rule, *arrays, scalars, most)
            else:
                u, new = run_batch(rule, *arrays, scalars)
        us += parted(u, sizes[part])
        for parts, x in zip(news, new, strict=True):
            parts += parted(x, sizes[part])
        start += count
    return us, news


def _most_at_once(x: Array) -> int:
    if columns_now() is not None:  # the devices sum over all of them in one exchange
        return sys.maxsize
    entries = ON_CPU if platform_of(x) == "cpu" else ELSEWHERE
    return min(MOST_MATRICES, max(1, entries // math.prod(x.shape[1:])))


def _may_be_cut(batch: Array) -> bool:
    """Whether no devices divide the matrices of a batch among them, as far as its type says.

    Over those that do, a loop would send each matrix to every device.
    """
    sharding = jax.typeof(batch).sharding
    kinds = zip(sharding.mesh.axis_sizes, sharding.mesh.axis_types, strict=True)
    by_compiler = any(kind == AxisType.Auto and size > 1 for size, kind in kinds)
    return not by_compiler and sharding.spec[0] is None


def _batches(sizes: Sequence[int], most: int) -> Iterator[tuple[int, int]]:
    """Yield the parts of each batch, from the first up to the last: as many as fit."""
    first = count = 0
    for i, size in enumerate(sizes):
        if i > first and count + size > most:
            yield first, i
            first, count = i, 0
        count += size
    yield first, len(sizes)


def _are_in_one_loop(rule: Any, leaves: Sequence[Array], most: int) -> bool:
    """Whether a program has one copy of a rule for several batches, and a loop over these.

    The compiler for TPUs takes some 50 seconds for one with a decomposition, and as long for the
    next one.
    """
    x = leaves[0]
    return (
        getattr(rule, "decomposes", False)
        and len({leaf.shape for leaf in leaves}) == 1
        and sum(leaf.shape[0] for leaf in leaves) > most
        and len(leaves) > 1
        and platform_of(x) == "tpu"
        and _may_be_cut(x)
        and not is_on_host(x)
    )


def _run_leaves_in_turns(
    rule: Any, inputs: Parts, slots: Parts, scalars: Sequence[Any], most: int
) -> tuple[list[Array], list[list[Array]]]:
    """Apply a rule to the matrices of some leaves after those of others, in place."""
    leaves, size = len(inputs[0]), inputs[0][0].shape[0]
    dtype = _wide_dtype([xs[0] for xs in inputs])
    is_in_place = inputs[0][0].dtype == dtype  # as in `_run_in_turns`
    each = max(k for k in range(1, leaves + 1) if leaves % k == 0 and (k == 1 or k * size <= most))
    turns, count = leaves // each, each * size
    groups = [slice(i * each, (i + 1) * each) for i in range(turns)]

    def turn(i: Any, now: Any) -> Any:
        us, old = now

        def cut(parts: Sequence[Array]) -> Array:
            return lax.switch(i, [lambda xs, g=g: joined(xs[g]) for g in groups], [*parts])

        def put(parts: Sequence[Array], new: Array) -> list[Array]:
            def into(group: slice) -> Any:
                return lambda xs, new: [
                    *xs[: group.start],
                    *parted(new, [size] * each),
                    *xs[group.stop :],
                ]

            return lax.switch(i, [into(group) for group in groups], [*parts], new)

        given = [cut(us if is_in_place else inputs[0]), *map(cut, inputs[1:])]
        with turn_of_share(i, turns, count, leaves * size):
            run = functools.partial(_run_in_turns, most=most) if count > most else run_batch
            u, new = run(rule, given, [*map(cut, old)], scalars)
        return put(us, u), [*map(put, old, new)]

    now = [cast(x, dtype) for x in inputs[0]], [[*parts] for parts in slots]
    start = settled_carry(lambda now: turn(0, now), now, inputs)
    return lax.fori_loop(0, turns, turn, start)


def _run_in_turns(
    rule: Any, inputs: Sequence[Array], slots: Sequence[Array], scalars: Sequence[Any], most: int
) -> tuple[Array, list[Array]]:
    """Apply a rule to some matrices of a batch after the others, in place."""
    count = inputs[0].shape[0]
    even = [n for n in range(-(-most // 2), most + 1) if count % n == 0]
    each = even[-1] if even else most
    turns, rest = divmod(count, each)
    dtype = _wide_dtype(inputs)
    is_in_place = inputs[0].dtype == dtype  # the update takes the place of what the rule gets first

    def turn(start: Any, size: int, share: Any, now: Any) -> Any:
        u, old = now
        cut = lambda x: slice_of_axis(x, start, size, 0)  # noqa: E731
        given = [u if is_in_place else inputs[0], *inputs[1:]]
        with share:
            new_u, new = run_batch(rule, [*map(cut, given)], [*map(cut, old)], scalars)
        put = lambda x, y: with_slice_of_axis(x, y, start, 0)  # noqa: E731
        return put(u, new_u), [*map(put, old, new)]

    def one(i: Any, now: Any) -> Any:
        return turn(i * each, each, turn_of_share(i, turns, each, count), now)

    now = cast(inputs[0], dtype), [*slots]
    now = lax.fori_loop(0, turns, one, settled_carry(lambda now: one(0, now), now, inputs))
    if rest:
        now = turn(count - rest, rest, part_of_share(count - rest, rest, count), now)
    return now


def run_batch(
    rule: Any, inputs: Sequence[Array], slots: Sequence[Array], scalars: Sequence[Any]
) -> tuple[Array, list[Array]]:
    """Apply a rule to a batch in float32 or wider; return the update, and the slots as narrow."""
    dtype = _wide_dtype(inputs)
    narrow = getattr(rule, "exchange_dtype", None)
    wide = [cast(rounded(x, narrow), dtype) for x in inputs]
    others = [None if x is None else widened(x, dtype) for x in (*slots, *scalars)]
    result = rule.rule(*wide, *others)
    u, *new = result if isinstance(result, tuple) else (result,)
    shapes = [wide[0].shape, *(x.shape for x in slots)]
    if [x.shape for x in (u, *new)] != shapes:
        raise ValueError(
            f"{name_of(rule)}: rule must return the update and then its slots, of shapes "
            f"{shapes}; got {[x.shape for x in (u, *new)]}."
        )
    u = cast(rounded(u, narrow), dtype)
    return u, list(map(cast_slot, new, slots))


def _wide_dtype(inputs: Sequence[Array]) -> Any:
    return at_least_float32(promote(*(x.dtype for x in inputs)))


def rounded(x: Array, narrow: Any) -> Array:
    """Return a real array as it is after an exchange in a narrower dtype, in that dtype.

    A rule rounds so without an exchange too: its numbers must not depend on the devices.
    """
    return x if narrow is None or jnp.iscomplexobj(x) else cast(x, jnp.dtype(narrow))


def widened(x: Any, dtype: Any) -> Array:
    """Return a scalar or a slot as wide as the arrays that it meets; integers stay."""
    x = jnp.asarray(x)
    if not jnp.issubdtype(x.dtype, jnp.inexact):
        return x
    return cast(x, dtype if jnp.issubdtype(x.dtype, jnp.complexfloating) else real_dtype(dtype))


def joined(xs: Sequence[Array]) -> Array:
    """Return batches as one."""
    return xs[0] if len(xs) == 1 else jnp.concatenate(xs)


def parted(x: Array, sizes: Sequence[int]) -> list[Array]:
    """Return batches of these sizes from one: undo `joined`."""
    if len(sizes) == 1:
        return [x]
    ends = [sum(sizes[: i + 1]) for i in range(len(sizes) - 1)]
    return jnp.split(x, ends)


_GROUP = compiled_calls(_run_group, static=3)
