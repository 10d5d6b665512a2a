"""The parts inside a transform, and which of them keep copies of the parameters."""

import contextlib
import contextvars
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import jax.numpy as jnp

from gradxform.base import (
    LOCALITIES,
    GradientTransformation,
    Transform,
    check_transform,
    locality_of,
    tell_moved,
    unwrapped,
)
from gradxform.errors import name_of
from gradxform.interop import OfFunctions, OfFunctionsExtraArgs, stateless, stateless_with_tree_map
from gradxform.leaves import Path, dtype_of, is_hole, path_str, with_paths
from gradxform.leaves.states import node_at
from gradxform.types import OptState, Updates

T = TypeVar("T")

# Transforms made of a function; only its traced program shows what it does.
OF_FUNCTIONS = (
    OfFunctions,
    OfFunctionsExtraArgs,
    stateless,
    stateless_with_tree_map,
)


class StatelessWrapper(Transform):
    """Base of wrappers whose state is the inner state."""

    inner: Any

    handles_rows = True

    def __post_init__(self) -> None:
        check_transform(self, self.inner, "inner")

    @property
    def locality(self) -> str:
        """How far the inner transform looks."""
        return locality_of(self.inner)

    def init(self, params):
        """Return the inner state, with slots for all parameters."""
        return self.inner.init(params)

    def with_stored_arrays(self, state: OptState, like: Any) -> OptState:
        """Return the state with stored arrays in their classes; see `only_stores`."""
        return state

    def inner_states(self, state: OptState) -> list[tuple[Path, Any]]:
        """Return that the state is the inner transform's."""
        return [((), self.inner)]

    def moved(self, state, old, new):
        """Return the inner state after something else has moved the parameters."""
        return tell_moved(self.inner, state, old, new)


def at_least(reach: str, tx: Any) -> str:
    """Return how far a transform looks, or `reach` if that is farther."""
    return max(reach, locality_of(tx), key=LOCALITIES.index)


def inner_parts(tx: Any) -> list[Any]:
    """Return the transforms that a transform holds, unwrapped, in the order of its fields."""
    if not isinstance(tx, GradientTransformation):
        return []
    return list(remembered_by_transform(tx, "_inner_parts", _inner_parts))


def _inner_parts(tx: Any) -> tuple[Any, ...]:
    return tuple(map(unwrapped, tx.inner_transforms()))


def all_parts(tx: Any) -> Iterator[Any]:
    """Yield a transform, unwrapped, and all transforms in it."""
    tx = unwrapped(tx)
    yield tx
    # Several questions walk through all parts at each step: who exchanges, who keeps copies, ...
    yield from remembered_by_transform(tx, "_parts_inside", _parts_inside)


def _parts_inside(tx: Any) -> tuple[Any, ...]:
    return tuple(part for inner in inner_parts(tx) for part in all_parts(inner))


def exact_part(tx: Any) -> Any:
    """Return the first part whose updates of narrow parameters are float32, or None."""
    return next((part for part in all_parts(tx) if getattr(part, "exact_updates", False)), None)


def remembered_by_transform(tx: Any, name: str, compute: Callable[[Any], T]) -> T:
    """Return `compute(tx)`, which a transform caches under `name`."""
    if not isinstance(tx, GradientTransformation):
        return compute(tx)
    if name not in vars(tx):
        object.__setattr__(tx, name, compute(tx))
    return vars(tx)[name]


def refuse_complex(part: Any, updates: Updates) -> None:
    """Refuse complex updates, for which `part` is not defined."""
    for path, g in with_paths(updates):
        if not is_hole(g) and jnp.issubdtype(dtype_of(g), jnp.complexfloating):
            raise TypeError(
                f"{name_of(part)}: gradient of {path_str(path)} has dtype {dtype_of(g)}, for which "
                f"it is not defined. Wrap it as split_real_and_imaginary({name_of(part)}(...))."
            )


# ------------------------------------------------------------------- rates that parts find out


def estimates_rate(part: Any) -> bool:
    """Whether a part itself estimates the learning rate, and its state has the estimate."""
    own = getattr(type(part), "estimated_rate", None)
    return own not in (None, GradientTransformation.estimated_rate)


def estimated_rates(tx: Any, state: OptState) -> list[Any]:
    """Return the estimates in a state, of a transform and of all transforms in it."""
    tx = unwrapped(tx)
    if not isinstance(tx, GradientTransformation):
        return []
    own = tx.estimated_rate(state) if estimates_rate(tx) else None
    found = [] if own is None else [own]
    if any(map(estimates_rate, all_parts(tx))):
        for place, part in tx.inner_states(state):
            found += estimated_rates(part, node_at(state, place))
    return found


# ------------------------------------------------------------ copies of the parameters in states


def keeps_copies(tx: Any) -> bool:
    """Whether a part of `tx` must be told when something else moves the parameters."""
    return remembered_by_transform(tx, "_keeps_copies", _keeps_copies)


def _keeps_copies(tx: Any) -> bool:
    return any(map(_keeps_copy, all_parts(tx)))


def _keeps_copy(part: Any) -> bool:
    """Whether a part itself reacts to a move, rather than only telling the parts in it."""
    if not isinstance(part, GradientTransformation):
        return False
    return bool(part.follows) or (type(part).moved is not Transform.moved and not inner_parts(part))


_STARTING: contextvars.ContextVar[bool] = contextvars.ContextVar("starting", default=False)


@contextlib.contextmanager
def starting_elsewhere() -> Iterator[None]:
    """Tell of moves at the start of a step: where the last one led stays as it is."""
    token = _STARTING.set(True)
    try:
        yield
    finally:
        _STARTING.reset(token)


def starts_elsewhere() -> bool:
    """Whether a part is told of a move at the start of a step."""
    return _STARTING.get()


def records_params(tx: Any) -> bool:
    """Whether a part of `tx` records where the parameters go."""
    return remembered_by_transform(tx, "_records_params", _records_params)


def _records_params(tx: Any) -> bool:
    return any(
        isinstance(part, GradientTransformation) and part.records_params for part in all_parts(tx)
    )


def check_movable(mover: Any, tx: Any) -> None:
    """Require that `mover` may move the parameters that `tx` optimizes.

    Raises:
      ValueError: if a part of `tx` would undo the move, or keeps a copy and would not be told.
    """
    for part in all_parts(tx):
        if not isinstance(part, GradientTransformation):
            continue
        if part.undoes_moves:
            raise ValueError(
                f"{name_of(mover)}: it moves the parameters, and {name_of(part)} goes on from a "
                "place of its own, so that its next step would undo the move; use another inner "
                "transform."
            )
        forwards = part.holds or type(part).moved is not Transform.moved
        if not forwards and any(map(keeps_copies, inner_parts(part))):
            copy = next(filter(_keeps_copy, all_parts(part)))
            raise ValueError(
                f"{name_of(mover)}: it moves the parameters, {name_of(copy)} keeps a copy of them, "
                f"and {name_of(part)} around it does not tell it when they move; let it define "
                "`holds` or `moved`."
            )
