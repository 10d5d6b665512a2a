"""A promise about the mesh axes that a transform names: where it exchanges, what it divides."""

from typing import Any

import jax

from gradxform._jax.jaxprs import collective_axes, traced_along
from gradxform.base import GradientTransformation, Transform, call_update
from gradxform.distributed.averaging.exchange import Exchanging
from gradxform.distributed.specs.slot_dims import as_seen
from gradxform.distributed.wire.axis import axis_names
from gradxform.distributed.wire.decisions import differing_results
from gradxform.errors import name_of
from gradxform.testing.case import Case
from gradxform.testing.promise import Broken, Skipped, leaves_of, promise
from gradxform.types import Params
from gradxform.wrappers.parts import all_parts, inner_parts


@promise(
    "Declare exchanges, divides or takes_whole, of gradxform/base/traits.py, as they are in each "
    "part: a property may name the axes of its fields."
)
def names_the_axes_that_it_needs(case: Case) -> None:
    """What it holds exchanges and divides along the axes that it names, and no others.

    The transform itself is run without any axis, by every promise.
    """
    if case.foreign or not isinstance(case.tx, Transform):
        raise Skipped("other libraries do not promise this")
    held = [part for part in inner_parts(case.tx) if isinstance(part, Transform)]
    if not [part for part in held if _check_axes(case, part)]:
        raise Skipped("it holds nothing that names an axis")


def _check_axes(case: Case, part: Any) -> bool:
    """Check the axes that one part names; whether it names any."""
    p = case.params()
    (g,) = case.gradients(p, 1)
    extra = case.extra_of(g, p)
    says = {name for one in _ours_in(part) for name in one.exchanges}

    def step(g: Any, state: Any, p: Params) -> Any:
        return call_update(part, g, state, p, extra)

    try:
        if not says:
            jax.eval_shape(step, g, jax.eval_shape(part.init, p), p)
            return False
        sizes = dict.fromkeys(says, 2)
        state = traced_along(part.init, (p,), sizes)[1]
        program, (updates, _) = traced_along(step, (g, state, p), sizes)
    except NameError as error:  # of an axis that is not bound
        raise Broken(
            f"{name_of(part)}: exchanges = {tuple(sorted(says))}, and a step that needs more: "
            f"{error}",
            expected="all axes along which it exchanges",
        ) from error
    except (TypeError, ValueError):  # it takes other parameters, or needs other arguments
        return False
    does, may = collective_axes(program), {x for one in _ours_in(part) for x in one.divides}
    if not does <= says or not says <= does | may:  # what divides matrices may have none to bring
        raise Broken(
            f"{name_of(part)}: exchanges = {tuple(sorted(says))}",
            expected=f"{tuple(sorted(does))}, along which it exchanges",
        )
    apart = [one.axis for one in _ours_in(part) if isinstance(one, Exchanging)]
    for name in says - {name for axis in apart for name in axis_names(axis)}:
        divided = _check_division(part, name, p, says)
        flags = [True] * len(jax.tree.leaves(g)) + divided + [False] * len(jax.tree.leaves(p))
        differs = any(differing_results(program, flags, name)[: len(jax.tree.leaves(updates))])
        _check_wholeness(part, name, not differs)
    return True


def _ours_in(part: Any) -> list[Any]:
    return [one for one in all_parts(part) if isinstance(one, GradientTransformation)]


def _check_division(part: Any, name: str, p: Params, says: set[str]) -> list[bool]:
    """Return which leaves of the state an axis divides, and require it to be in `divides`."""
    whole, piece = (
        leaves_of("state", as_seen(traced_along(part.init, (p,), sizes)[1]))
        for sizes in (dict.fromkeys(says, 1) | {name: n} for n in (1, 2))
    )
    divided = {path: x.shape != whole[path].shape for path, x in piece.items()}
    path = next((path for path, is_divided in divided.items() if is_divided), None)
    if path is not None and not any(name in one.divides for one in _ours_in(part)):
        raise Broken(
            f"{name_of(part)}: divides without {name!r}",
            expected=f"{name!r} in it: the shape is {whole[path].shape} on one device, and "
            f"{piece[path].shape} on each of two",
            leaf=path,
        )
    return list(divided.values())


def _check_wholeness(part: Any, name: str, is_same: bool) -> None:
    """Require `takes_whole` of what divides along an axis and gives all devices the same."""
    dividing = [one for one in _ours_in(part) if name in one.divides]
    says = any(one.takes_whole for one in dividing)
    if dividing and says != is_same:
        raise Broken(
            f"{name_of(part)}: takes_whole = {says}",
            expected=f"{is_same}: its updates {'are equal' if is_same else 'differ'} on the "
            f"devices along {name!r}",
        )
