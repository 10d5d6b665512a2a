"""The numbers in a transform and in its state: found by name, changed, made arguments."""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from gradxform.base import GradientTransformation
from gradxform.errors import name_of, shown
from gradxform.leaves import names_of
from gradxform.types import OptState
from gradxform.values import FrozenTree, Hole, fields_of, replace
from gradxform.values.content import parts_of, with_parts
from gradxform.wrappers.hyperparams.inject import injected

# Where a number is: indices of parts, as `parts_of` returns them, from the outside in.
Place = tuple[int, ...]


class Number(NamedTuple):
    """A field of a part that holds a floating number."""

    owner: GradientTransformation
    field: str
    place: Place
    names: tuple[str, ...]  # of the parts around it, and the field: the longest name
    value: float


def _walk(x: Any, place: Place = (), names: tuple[str, ...] = ()) -> Iterator[Number]:
    if isinstance(x, injected):  # its numbers are in its state
        return
    if isinstance(x, GradientTransformation):
        here = (*names, name_of(x))
        fields = fields_of(x)
        for i, (field, part) in enumerate(fields.items()):
            if type(part) is float:
                yield Number(x, field, (*place, i), (*here, field), part)
            else:
                # The fields tell the transforms in it apart, where there are several.
                several = sum(isinstance(y, GradientTransformation) for y in fields.values()) > 1
                yield from _walk(part, (*place, i), (*here, field) if several else here)
    elif type(x) is tuple or isinstance(x, FrozenTree):
        for i, (label, part) in enumerate(zip(_labels(x), parts_of(x) or (), strict=True)):
            yield from _walk(part, (*place, i), (*names, *label))


def _labels(x: Any) -> list[tuple[str, ...]]:
    """Return what the parts of a tuple or of a static tree are called."""
    if isinstance(x, FrozenTree):
        flat = jax.tree_util.tree_flatten_with_path(x.unfreeze(), is_leaf=lambda leaf: leaf is None)
        return [names_of(path) for path, _ in flat[0]]
    if len(x) == 2 and isinstance(x[0], str):  # a name and a transform
        return [(x[0],)] * 2
    return [(str(i),) for i in range(len(x))]


def numbers_of(tx: Any) -> dict[str, Number]:
    """Return the numbers of a transform by name.

    A number is called as its field. Where several are called so, the name of the part comes before,
    `scale_by_adam/eps`; and where these are alike too, all that leads to it, with the names of the
    fields that hold transforms: `sam/optimizer/chain/0/scale_by_learning_rate/learning_rate`.
    """
    numbers = list(_walk(tx))
    forms = [[n.names[-1:], n.names[-2:], n.names] for n in numbers]
    counts = [Counter(form[i] for form in forms) for i in range(3)]
    keys = []
    for form in forms:
        unique = [name for i, name in enumerate(form) if counts[i][name] == 1]
        keys.append("/".join(unique[0]))
    return dict(zip(keys, numbers, strict=True))


def injected_parts(x: Any) -> Iterator[injected]:
    """Yield the parts of a transform whose numbers are in its state."""
    if isinstance(x, injected):
        yield x
    elif isinstance(x, GradientTransformation | FrozenTree) or type(x) is tuple:
        for part in parts_of(x) or ():
            yield from injected_parts(part)


def always_live(tx: Any) -> list[Place]:
    """Return where the numbers are that are arguments of the program before they are first set."""
    return [n.place for n in numbers_of(tx).values() if n.field == "learning_rate"]


def with_number(tx: Any, number: Number, value: Any) -> Any:
    """Return the transform with another number, checked as by the constructor of its part."""
    checked = replace(number.owner, **{number.field: value})
    new = getattr(checked, number.field)
    if type(new) is not float:
        raise TypeError(
            f"Optimizer: the hyperparameter {number.field!r} of {name_of(number.owner)} must stay "
            f"a number, got {shown(new)}. For a schedule make another optimizer."
        )
    return put_at(tx, number.place, new)


def put_at(x: Any, place: Place, new: Any) -> Any:
    """Return a value with something else at that place."""
    if not place:
        return new
    first, *rest = place
    parts = list(parts_of(x) or ())
    parts[first] = put_at(parts[first], tuple(rest), new)
    return with_parts(x, parts)


def with_holes(tx: Any, places: Sequence[Place], first: int) -> Any:
    """Return the transform with holes at those places, numbered from `first`."""
    for i, place in enumerate(places):
        tx = put_at(tx, place, Hole(first + i))
    return tx


def as_arguments(tx: Any, places: Sequence[Place]) -> list[np.float64]:
    """Return the numbers at those places as arguments of a program, which JAX may narrow."""
    by_place = {n.place: n.value for n in numbers_of(tx).values()}
    return [np.float64(by_place[place]) for place in places]


class Injected(NamedTuple):
    """The dict of hyperparameters in a state, and where it is."""

    place: tuple[Any, ...]  # keys, fields and indices
    hyperparams: dict[str, Any]
    scheduled: frozenset[str]  # those that the next update computes anew


def injected_in(state: OptState, place: tuple[Any, ...] = ()) -> Iterator[Injected]:
    """Yield the dicts of hyperparameters that `inject_hyperparams`, ours or Optax's, keeps."""
    names = getattr(state, "_fields", ())
    hyperparams = getattr(state, "hyperparams", None) if "hyperparams" in names else None
    if isinstance(hyperparams, dict):
        scheduled = getattr(state, "hyperparams_states", None)
        of_schedules = frozenset(scheduled if isinstance(scheduled, dict) else ())
        yield Injected((*place, "hyperparams"), hyperparams, of_schedules)
    if isinstance(state, dict):
        for k, x in state.items():
            yield from injected_in(x, (*place, k))
    elif isinstance(state, tuple | list):
        for i, x in enumerate(state):
            yield from injected_in(x, (*place, names[i] if names else i))


def with_state_at(state: Any, place: tuple[Any, ...], new: Any) -> Any:
    """Return a state with something else at that place."""
    if not place:
        return new
    first, *rest = place
    names = getattr(state, "_fields", ())
    if names:
        changed = with_state_at(getattr(state, first), tuple(rest), new)
        return state._replace(**{first: changed})
    if isinstance(state, dict):
        return type(state)(state | {first: with_state_at(state[first], tuple(rest), new)})
    items = [with_state_at(x, tuple(rest), new) if i == first else x for i, x in enumerate(state)]
    return type(state)(items)
