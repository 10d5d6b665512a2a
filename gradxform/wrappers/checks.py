"""What the guards of a step look at, found once for all of them, on all replicas together.

Guards directly inside each other get the same gradients. The outermost finds, for itself and for
those inside, whether these are finite and what else each of them asks, with one maximum of a few
numbers over the replicas; the guards inside remember it. A part that is not a guard ends the line:
what is inside of it, such as the optimizer of one replica, looks for itself.
"""

import contextlib
import contextvars
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax

from gradxform import engine
from gradxform.base import Transform, unwrapped
from gradxform.base.traits import GuardTraits
from gradxform.types import Array, OptState, Params, Updates
from gradxform.wrappers.agree import as_number, axes_of, check_bound, largest
from gradxform.wrappers.finite import Sizes, sizes_of


class Guard(Transform, GuardTraits):
    """A wrapper that decides for a whole step whether its inner transform runs."""

    inner: Any

    def flags(self, state: Any, extra: dict[str, Any], sizes: Sizes | None) -> tuple[Array, ...]:
        """Return what this device says, boolean scalars: each counts as true if it is on all.

        Args:
          state: the state.
          extra: the extra arguments.
          sizes: of this device's gradients as the outermost guard gets them, if one looks at them.

        Raises:
          KeyError: if an extra argument is missing.
        """
        return ()

    def inner_extra(self, extra: dict[str, Any]) -> dict[str, Any]:
        """Return the extra arguments that its inner transform gets."""
        return extra

    def gradient_factor(self, state: Any) -> Array | None:
        """Return by what it multiplies the gradients for its inner transform; None for 1."""
        return None


class Found(NamedTuple):
    """What is known on all devices together, for a guard and those inside it.

    Attributes:
      guards: for each guard, what it is.
      flags: for each guard, its flags.
      sizes: for each guard, those of the gradients that it gets, times its own factor; None if no
        guard looks at them.
    """

    guards: tuple[Any, ...]
    flags: tuple[tuple[Array, ...], ...]
    sizes: tuple[Sizes | None, ...]

    @property
    def finite(self) -> Array:
        """Whether the gradients, times the first guard's factor, are finite."""
        sizes = self.sizes[0]
        assert sizes is not None, "the guard looks at gradients"
        return sizes.finite()

    @property
    def inside(self) -> "Found":
        """What is known for the guards inside the first."""
        return Found(self.guards[1:], self.flags[1:], self.sizes[1:])


class _Member(NamedTuple):
    """A guard of a line, and what it gets."""

    guard: Guard
    state: Any
    extra: dict[str, Any]


class _Known(NamedTuple):
    leaves: list[Any]
    found: Found


_KNOWN: contextvars.ContextVar[_Known | None] = contextvars.ContextVar("known", default=None)


@contextlib.contextmanager
def known(updates: Updates, found: Found | None) -> Iterator[None]:
    """Remember what is known of these very arrays for the guards that run in this context."""
    now = _Known(jax.tree.leaves(updates), found) if found and found.guards else None
    token = _KNOWN.set(now)
    try:
        yield
    finally:
        _KNOWN.reset(token)


def check(
    guard: Guard, updates: Updates, state: OptState, params: Params | None, extra: dict[str, Any]
) -> Found:
    """Return what a guard needs to know, the same on all replicas that its inner part involves.

    Outside of `distributed` wrappers nothing is sent. Inside one that divides arrays, as `zero1`
    does, all devices that have shards agree.

    Args:
      guard: the guard.
      updates: the gradients that it gets.
      state: its state.
      params: the parameters.
      extra: the extra arguments.
    """
    found = _known(guard, updates)
    if found is not None:
        return found
    check_bound(guard, guard.exchanges)
    inner_state = getattr(state, _inner_field(guard))
    axes = axes_of(guard.inner, updates, inner_state, params, extra) | set(guard.exchanges)
    line = list(_line(guard, state, extra))
    looks = any(one.looks_at_gradients for one, _, _ in line)
    if looks or any(one.flags_vary for one, _, _ in line):
        axes |= set(engine.shard_axes())
    return _found(line, updates, axes, looks)


def _line(guard: Any, state: Any, extra: dict[str, Any]) -> Iterator[_Member]:
    """Yield a guard and those directly inside it."""
    while isinstance(guard, Guard):
        yield _Member(guard, state, extra)
        if not guard.passes_gradients:
            return
        extra = guard.inner_extra(extra)
        guard, state = unwrapped(guard.inner), getattr(state, _inner_field(guard))


def _inner_field(guard: Guard) -> str:
    ((_, field),) = guard.holds
    return field


def _known(guard: Guard, updates: Updates) -> Found | None:
    """Return what an outer guard has found for this one and these very arrays."""
    now = _KNOWN.get()
    if now is None or now.found.guards[0] is not guard:
        return None
    leaves = jax.tree.leaves(updates)
    alike = len(leaves) == len(now.leaves) and all(map(_is, leaves, now.leaves))
    return now.found if alike else None


def _is(a: Any, b: Any) -> bool:
    return a is b


def _found(line: list[_Member], updates: Updates, axes: frozenset[str], looks: bool) -> Found:
    """Find what a line of guards needs to know."""
    sizes = sizes_of(updates) if looks else None
    flags: list[tuple[Array, ...]] = []
    for i, (guard, state, extra) in enumerate(line):
        try:
            flags.append(guard.flags(state, extra, sizes))
        except KeyError:  # the guard itself says which argument is missing
            if not i:
                raise
            break
    line = line[: len(flags)]
    factors = [guard.gradient_factor(state) for guard, state, _ in line]
    if axes:
        flags, sizes, factors = _on_all(flags, sizes, factors, axes)
    of_each: list[Sizes | None] = []
    for factor in factors:
        sizes = sizes if sizes is None or factor is None else sizes.times(factor)
        of_each.append(sizes)
    return Found(tuple(one.guard for one in line), tuple(flags), tuple(of_each))


def _on_all(
    flags: list[tuple[Array, ...]],
    sizes: Sizes | None,
    factors: list[Array | None],
    axes: frozenset[str],
) -> tuple[list[tuple[Array, ...]], Sizes | None, list[Array | None]]:
    """Return flags, sizes and factors over all devices along the axes, with one maximum."""
    numbers: dict[Any, list[Array]] = {}

    def place(x: Array) -> tuple[Any, int]:
        row = numbers.setdefault(x.dtype, [])
        row.append(x)
        return x.dtype, len(row) - 1

    # Where factors differ by mistake, the largest is the safe one.
    of_flags = [[place(as_number(flag)) for flag in some] for some in flags]
    of_sizes = {} if sizes is None else {k: place(x) for k, x in sizes.by_dtype.items()}
    of_factors = [None if x is None else place(x) for x in factors]
    rows = largest(numbers, axes)

    def at(where: tuple[Any, int]) -> Array:
        return rows[where[0]][where[1]]

    return (
        [tuple(at(where) == 0 for where in some) for some in of_flags],
        None if sizes is None else Sizes({k: at(where) for k, where in of_sizes.items()}),
        [None if where is None else at(where) for where in of_factors],
    )
