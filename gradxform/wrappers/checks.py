"""The findings of a step's guards: computed once for all guards, and on all replicas together.

Guards directly inside each other get the same gradients. The outermost finds, for itself and for
those inside, whether these are finite and what else each guard asks, with one maximum of a few
numbers over the replicas; the guards inside reuse the findings. A part that is not a guard ends the
line: the parts inside it, such as the optimizer of one replica, look for themselves.
"""

import contextlib
import contextvars
import operator
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax

from gradxform import engine
from gradxform.base import Transform, unwrapped
from gradxform.base.traits import GuardTraits
from gradxform.types import Array, OptState, Params, Updates
from gradxform.wrappers.agree import as_number, axes_of, check_bound, largest_over_devices
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


class Findings(NamedTuple):
    """The findings of all devices together, for a guard and those inside it.

    Attributes:
      guards: the guards, the outermost first.
      flags: the flags of each guard.
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
    def inside(self) -> "Findings":
        """The findings for the guards inside the first."""
        return Findings(self.guards[1:], self.flags[1:], self.sizes[1:])


class _GuardToCheck(NamedTuple):
    """A guard of a line, with its state and its extra arguments."""

    guard: Guard
    state: Any
    extra: dict[str, Any]


class _RememberedFindings(NamedTuple):
    leaves: list[Any]
    findings: Findings


_REMEMBERED: contextvars.ContextVar[_RememberedFindings | None] = contextvars.ContextVar(
    "findings", default=None
)


@contextlib.contextmanager
def remembering_findings(updates: Updates, findings: Findings | None) -> Iterator[None]:
    """Let the guards that run in this context reuse the findings about these very arrays."""
    record = (
        _RememberedFindings(jax.tree.leaves(updates), findings)
        if findings and findings.guards
        else None
    )
    token = _REMEMBERED.set(record)
    try:
        yield
    finally:
        _REMEMBERED.reset(token)


def check(
    guard: Guard, updates: Updates, state: OptState, params: Params | None, extra: dict[str, Any]
) -> Findings:
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
    findings = _remembered_findings(guard, updates)
    if findings is not None:
        return findings
    check_bound(guard, guard.exchanges)
    inner_state = getattr(state, _inner_field_of_guard(guard))
    axes = axes_of(guard.inner, updates, inner_state, params, extra) | set(guard.exchanges)
    line = list(_line_of_guards(guard, state, extra))
    looks = any(member.guard.looks_at_gradients for member in line)
    # Devices with shards of an array see different gradients, and may have other flags.
    if looks or any(member.guard.flags_vary for member in line):
        axes |= set(engine.shard_axes())
    return _findings_of_guards(line, updates, axes, looks)


def _line_of_guards(guard: Any, state: Any, extra: dict[str, Any]) -> Iterator[_GuardToCheck]:
    """Yield a guard and those directly inside it."""
    while isinstance(guard, Guard):
        yield _GuardToCheck(guard, state, extra)
        if not guard.passes_gradients:
            return
        extra = guard.inner_extra(extra)
        guard, state = unwrapped(guard.inner), getattr(state, _inner_field_of_guard(guard))


def _inner_field_of_guard(guard: Guard) -> str:
    ((_, field),) = guard.holds
    return field


def _remembered_findings(guard: Guard, updates: Updates) -> Findings | None:
    """Return the findings of an outer guard for this one, if it gets these very arrays."""
    record = _REMEMBERED.get()
    if record is None or record.findings.guards[0] is not guard:
        return None
    leaves = jax.tree.leaves(updates)
    alike = len(leaves) == len(record.leaves) and all(map(operator.is_, leaves, record.leaves))
    return record.findings if alike else None


def _findings_of_guards(
    line: list[_GuardToCheck], updates: Updates, axes: frozenset[str], looks: bool
) -> Findings:
    """Return the findings of a line of guards."""
    sizes = sizes_of(updates) if looks else None
    flags: list[tuple[Array, ...]] = []
    for i, (guard, state, extra) in enumerate(line):
        try:
            flags.append(guard.flags(state, extra, sizes))
        except KeyError:  # an extra argument is missing, and the guard itself says which one
            if not i:
                raise
            break  # it raises the error where it runs
    line = line[: len(flags)]
    factors = [guard.gradient_factor(state) for guard, state, _ in line]
    if axes:
        flags, sizes, factors = _findings_over_devices(flags, sizes, factors, axes)
    # The factors multiply up: a guard gets the gradients that all guards around it have scaled.
    guard_sizes: list[Sizes | None] = []
    for factor in factors:
        sizes = sizes if sizes is None or factor is None else sizes.times(factor)
        guard_sizes.append(sizes)
    return Findings(tuple(member.guard for member in line), tuple(flags), tuple(guard_sizes))


def _findings_over_devices(
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
    flag_places = [[place(as_number(flag)) for flag in guard_flags] for guard_flags in flags]
    size_places = {} if sizes is None else {k: place(x) for k, x in sizes.by_dtype.items()}
    factor_places = [None if x is None else place(x) for x in factors]
    rows = largest_over_devices(numbers, axes)

    def at(where: tuple[Any, int]) -> Array:
        return rows[where[0]][where[1]]

    return (
        [tuple(at(where) == 0 for where in places) for places in flag_places],
        None if sizes is None else Sizes({k: at(where) for k, where in size_places.items()}),
        [None if where is None else at(where) for where in factor_places],
    )
