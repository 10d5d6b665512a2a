"""Conditions on which all replicas agree.

A part that communicates must run on all replicas or on none. If only some run it, they wait for the
others forever; where one program computes all replicas, what some should have left out is summed
into all.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from gradxform._jax import jaxprs, versions as _compat
from gradxform.base import GradientTransformation, Transform, call_update
from gradxform.engine import check_bound as check_bound, largest_of_parts
from gradxform.errors import name_of
from gradxform.types import Array, PyTree
from gradxform.wrappers.parts import OF_FUNCTIONS, all_parts, remembered_by_transform


def refuse_exchange(part: Any, tx: Any) -> None:
    """Require that no part of `tx`, inside `part`, exchanges anything between replicas.

    Raises:
      ValueError: if one does: `part` would decide on the gradients before the exchange, and its
        state would differ from replica to replica.
    """
    for inner in _exchanging(tx)[0]:
        raise ValueError(
            f"{name_of(part)}: {name_of(inner)} in it combines the gradients of all replicas, and "
            f"{name_of(part)} would decide on those of one. Put it inside: "
            f"{name_of(inner)}({name_of(part)}(...), ...)."
        )


def agreed_flags(
    tx: Any,
    flags: tuple[Array, ...],
    updates: PyTree,
    state: PyTree,
    params: PyTree | None,
    extra: dict[str, Any],
) -> tuple[Array, ...]:
    """Return for each flag whether it is true on all replicas between which `tx` communicates.

    This costs one maximum of one number per flag. If `tx` does not communicate, the flags are
    returned as they are. The other arguments are those of the update that depends on the flags.
    """
    return true_on_all(flags, axes_of(tx, updates, state, params, extra))


def true_on_all(flags: tuple[Array, ...], axes: Collection[str]) -> tuple[Array, ...]:
    """Return for each flag whether it is true on all devices along the axes."""
    if not axes or not flags:
        return flags
    maxima = largest_over_devices({jnp.float32: [as_number(flag) for flag in flags]}, axes)[
        jnp.float32
    ]
    return tuple(maxima[i] == 0 for i in range(len(flags)))


def axes_of(
    tx: Any, updates: PyTree, state: PyTree, params: PyTree | None, extra: dict[str, Any]
) -> frozenset[str]:
    """Return the axes along which `tx` communicates, and require them to be bound."""
    parts, any_undeclared = remembered_by_transform(tx, "_exchanging", _exchanging)
    for part in parts:
        check_bound(part, part.exchanges)
    axes = {name for part in parts for name in part.exchanges}
    if any_undeclared:  # only its program shows the axes
        program = jax.make_jaxpr(lambda u, s: call_update(tx, u, s, params, extra))(updates, state)
        axes |= jaxprs.collective_axes(program)
    return frozenset(axes)


def largest_over_devices(
    numbers: Mapping[Any, Sequence[Array]], axes: Collection[str]
) -> dict[Any, Array]:
    """Return for each dtype the largest of each of its scalars over the devices along the axes.

    The results decide what runs, and do not have a derivative.
    """
    rows = {dtype: jnp.stack(xs) for dtype, xs in numbers.items() if xs}
    of_parts = {dtype: largest_of_parts(x, axes) for dtype, x in rows.items()}
    rows = {dtype: x for dtype, (x, _) in of_parts.items()}
    axes = frozenset().union(*(left for _, left in of_parts.values()))
    if not axes:
        return rows
    tracked = [name for name in axes if _compat.knows_what_varies(name)]
    return {
        dtype: lax.pmax(
            _compat.marked_as_varying(lax.stop_gradient(x), tracked), tuple(sorted(axes))
        )
        for dtype, x in rows.items()
    }


def as_number(flag: Array) -> Array:
    """Return 0.0 for true and 1.0 for false: if any is false, the maximum is 1.0."""
    return jnp.where(flag, 0, 1).astype(jnp.float32)


def _exchanging(tx: Any) -> tuple[list[Any], bool]:
    """Return the parts of `tx` with `exchanges` set, and whether any part may not have set it."""
    parts = list(all_parts(tx))
    exchanging = [
        part for part in parts if isinstance(part, GradientTransformation) and part.exchanges
    ]
    return exchanging, any(map(_is_agreement_undeclared, parts))


def _is_agreement_undeclared(part: Any) -> bool:
    """Whether only the traced program of a part shows if it communicates."""
    if not isinstance(part, GradientTransformation) or type(part) in OF_FUNCTIONS:
        return True
    is_ours = type(part).__module__.split(".")[0] == "gradxform"
    return not is_ours and type(part).exchanges is Transform.exchanges
