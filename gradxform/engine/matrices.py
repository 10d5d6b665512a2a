"""Lift rules for whole matrices to an update of a tree: the matrices of equal sides are one batch.

A rule sees a batch `(B, m, n)`. Leaves whose matrices have the same two sides share it, and so do
the matrices of one leaf: stacked layers, experts or heads. A tall matrix is turned, so that m <= n,
unless the rule must know which side is which. A program then has one copy of the rule for each pair
of sides, whatever the number of layers.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp

from gradxform.engine.calls import compiled
from gradxform.engine.chunks import devices, is_traced
from gradxform.errors import name_of
from gradxform.numerics import at_least_float32, cast, promote, real_dtype
from gradxform.types import Array
from gradxform.values import put_live, take_live


class View(NamedTuple):
    """How one leaf is a batch of matrices."""

    axes: Any  # with `to_matrices`, `from_matrices` and `sizes`
    shape: tuple[int, ...]  # of the leaf
    turned: bool  # whether rows and columns are exchanged

    def batch(self, x: Array) -> Array:
        """Return the matrices of a leaf, (B, m, n)."""
        x = self.axes.to_matrices(x)
        return jnp.swapaxes(x, -1, -2) if self.turned else x

    def leaf(self, x: Array) -> Array:
        """Undo `batch`."""
        x = jnp.swapaxes(x, -1, -2) if self.turned else x
        return self.axes.from_matrices(x, self.shape)

    def sides(self) -> tuple[int, int, int]:
        """Return the number of matrices, and their sides as the rule sees them."""
        count, rows, columns = self.axes.sizes(self.shape)
        return (count, columns, rows) if self.turned else (count, rows, columns)


def view_of(axes: Any, shape: Sequence[int], oriented: bool) -> View:
    """Return the view of a leaf; `oriented` keeps rows and columns as the axes say."""
    _, rows, columns = axes.sizes(tuple(shape))
    return View(axes, tuple(shape), not oriented and rows > columns)


class Member(NamedTuple):
    """One leaf, as the lift of a matrix rule sees it."""

    given: tuple[Array, ...]  # arrays of the leaf's shape: what the rule gets
    slots: tuple[Array, ...]  # (B, ...) each, an entry for each matrix of the leaf
    view: View


def map_matrices(
    rule: Any, members: Sequence[Member], scalars: Sequence[Any]
) -> list[tuple[Array, tuple[Array, ...]]]:
    """Run a rule for a batch of matrices over leaves, all of equal sides at once.

    Args:
      rule: with a method `rule(*given, *slots, *scalars)` that returns `(u, *new_slots)`.
      members: the leaves.
      scalars: what every call gets.

    Returns:
      For each leaf the update, in the leaf's shape and as wide as the batch, and its new slots.
    """
    groups: dict[Any, list[int]] = {}
    for i, member in enumerate(members):
        kind = tuple(str(x.dtype) for x in (*member.given, *member.slots))
        key = member.view.sides()[1:], kind, devices(member.given[0])
        groups.setdefault(key, []).append(i)
    live: list[Any] = []
    bare = rule if rule.is_static else take_live(rule, live)
    out: list[Any] = [None] * len(members)
    for group in groups.values():
        mine = [members[i] for i in group]
        views = tuple(member.view for member in mine)
        arrays = [(member.given, member.slots) for member in mine]
        run = _GROUP.choose(False, is_traced(mine[0].given[0]), brief=False)
        done = run(bare, views, tuple(live), arrays, tuple(scalars))
        for i, x in zip(group, done, strict=True):
            out[i] = x
    return out


def _of_group(
    rule: Any, views: Any, live: Any, arrays: Any, scalars: Any
) -> list[tuple[Array, tuple[Array, ...]]]:
    """Run the rule on the batch that the leaves of a group make together."""
    given = [
        _joined([view.batch(x[k]) for view, (x, _) in zip(views, arrays, strict=True)])
        for k in range(len(arrays[0][0]))
    ]
    old = [_joined([slots[k] for _, slots in arrays]) for k in range(len(arrays[0][1]))]
    u, new = run_batch(put_live(rule, live) if live else rule, given, old, scalars)
    sizes = [view.sides()[0] for view in views]
    us, news = _parted(u, sizes), [_parted(x, sizes) for x in new]
    return [(view.leaf(us[i]), tuple(parts[i] for parts in news)) for i, view in enumerate(views)]


def run_batch(
    rule: Any, given: Sequence[Array], slots: Sequence[Array], scalars: Sequence[Any]
) -> tuple[Array, list[Array]]:
    """Apply a rule to a batch in float32 or wider; return the update, and the slots as narrow."""
    dtype = at_least_float32(promote(*(x.dtype for x in given)))
    wide = [cast(x, dtype) for x in given]
    others = [None if x is None else widened(x, dtype) for x in (*slots, *scalars)]
    made = rule.rule(*wide, *others)
    u, *new = made if isinstance(made, tuple) else (made,)
    shapes = [wide[0].shape, *(x.shape for x in slots)]
    if [x.shape for x in (u, *new)] != shapes:
        raise ValueError(
            f"{name_of(rule)}: rule must return the update and then its slots, of shapes "
            f"{shapes}; got {[x.shape for x in (u, *new)]}."
        )
    return u, [cast(x, o.dtype) for x, o in zip(new, slots, strict=True)]


def widened(x: Any, dtype: Any) -> Array:
    """Return a scalar or a slot as wide as the arrays that it meets; integers stay."""
    x = jnp.asarray(x)
    if not jnp.issubdtype(x.dtype, jnp.inexact):
        return x
    return cast(x, dtype if jnp.issubdtype(x.dtype, jnp.complexfloating) else real_dtype(dtype))


def _joined(xs: Sequence[Array]) -> Array:
    return xs[0] if len(xs) == 1 else jnp.concatenate(xs)


def _parted(x: Array, sizes: Sequence[int]) -> list[Array]:
    if len(sizes) == 1:
        return [x]
    ends = [sum(sizes[: i + 1]) for i in range(len(sizes) - 1)]
    return jnp.split(x, ends)


_GROUP = compiled(_of_group, static=(0, 1))
