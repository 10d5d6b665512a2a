"""The numbers in a state, for a logger: one flat dict of scalars, from any state at any depth."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple, get_args, get_origin

import jax
import jax.numpy as jnp

from gradxform import engine
from gradxform.base.transformation import rules_with_state
from gradxform.errors import name_of, shown
from gradxform.leaves import dtype_of, is_hole, is_update_leaf, path_str, with_paths
from gradxform.leaves.states import hints_of, holds_states, slot_fields
from gradxform.leaves.storage import fetched, is_stored
from gradxform.numerics import at_least_float32, cast
from gradxform.types import Array, OptState, Params, PyTree

# The fields that count steps; of several in one state the first of these is its step.
STEPS = ("step", "gradient_step", "schedule_step", "global_step", "count", "t")
# The fields that hold dicts of numbers, or trees of them, by name.
DICTS = ("hyperparams", "measurements", "skip_state")
# The slots that are places among the parameters, to which these have a distance.
PLACES = ("anchor", "center", "local_center", "slow")


class _Number(NamedTuple):
    """A number in a state, and what its key may be made of."""

    name: str
    kind: str  # the class of the state that has it
    labels: tuple[str, ...]  # the keys of the dicts on the way to it: groups, named parts
    place: tuple[str, ...]  # all keys, fields and indices on the way
    depth: int  # how many states are around it
    value: Any

    def keys(self) -> tuple[str, ...]:
        """Return the keys it may have, the shortest first; the last is unique."""
        owner = self.kind.removesuffix("State")
        parts = (), self.labels, (owner,), (*self.labels, owner), self.place
        return tuple("/".join((*part, self.name)) for part in parts)


def metrics(
    state: OptState,
    params: Params | None = None,
    *,
    slots: bool = False,
    replicas: bool = False,
) -> dict[str, Array]:
    """Return the numbers in a state as one flat dict of scalars, for any logger.

    `{"step": 7, "learning_rate": 0.01, "total_notfinite": 0, ...}`: the step (see `current_step`),
    and every number in a field of a state, at any depth, in states of this library, of Optax and of
    your own. A number's key is the name of its field. Where two would have the same, the label of a
    group or of a named part comes before it, or the state's class: `"ScaleByAdam/count"`.

    The scalars are copies, so that they outlive a step that donates the state. By default no slot
    is read. Works under `jax.jit`; the keys depend only on the structure of the state. A state's
    class that has a method `metrics()` says itself which numbers it shows, by name.

    Args:
      state: any state.
      params: the parameters; for `distance_to_center` (or `anchor`, `slow`, ...), the Euclidean
        distance to each place that a distributed optimizer or `lookahead` keeps. Reads all of both.
      slots: whether to add the norm of every slot, as `mu_norm`. Reads all of them. Keyword-only.
      replicas: whether the state (with `params`) has an axis of replicas in front, as
        `distributed.Replicas` returns it. A number that each replica has for itself is shown as the
        mean, with the extremes under `key/min` and `key/max`. Keyword-only.

    Raises:
      ValueError: if `params` do not fit to a place.
    """
    numbers = list(_numbers(state, _Reading(params, slots, replicas)))
    step = _step_among_metrics(numbers)
    keyed: dict[str, Any] = {}
    for key, number in zip(_keys(numbers), numbers, strict=True):
        other = key
        if key == "step" and step is not None:
            other = next(k for k in reversed(number.keys()) if k != "step")
        keyed["step" if number is step else other] = number.value
    shown: dict[str, Array] = {}
    for key, value in keyed.items():
        if replicas and jnp.ndim(value) == 1:
            wide = cast(jnp.asarray(value), at_least_float32(jnp.float32))
            shown[key] = jnp.mean(wide)
            shown[f"{key}/min"], shown[f"{key}/max"] = jnp.min(value), jnp.max(value)
        else:
            shown[key] = jnp.array(value, copy=True)
    return shown


def current_step(state: OptState) -> Array:
    """Return the number of steps that a state counts.

    That is the count of the outermost state which has one: around an optimizer that takes a step
    every few micro-batches or exchanges, the steps of the wrapper. States beside each other, as in
    a chain, count the same steps, and the first is taken. A state of replicas has one count for
    each, unless they share it.

    Args:
      state: any state.

    Raises:
      ValueError: if nothing in the state counts steps.
    """
    step = _step_among_metrics(list(_numbers(state, _Reading(None, slots=False, replicas=True))))
    if step is None:
        raise ValueError(
            f"current_step: nothing in {_name(state)} counts steps. Count them in "
            "the training loop, or use a schedule or a transform with a count."
        )
    return jnp.asarray(step.value)


def _name(state: Any) -> str:
    return name_of(type(state)) if hasattr(state, "_fields") else f"this {type(state).__name__}"


class _Reading(NamedTuple):
    """The arguments of a reading: what to read, and how."""

    params: Params | None
    slots: bool
    replicas: bool

    def is_number(self, x: Any) -> bool:
        """Whether `x` is one real number or boolean, or one for each replica."""
        if isinstance(x, bool | int | float):
            return True
        kinds = (jnp.integer, jnp.floating, jnp.bool_)
        dtype = getattr(x, "dtype", None)
        if dtype is None or jnp.ndim(x) > (1 if self.replicas else 0):
            return False
        return any(jnp.issubdtype(dtype, kind) for kind in kinds)


def _numbers(
    state: Any,
    reading: _Reading,
    labels: tuple[str, ...] = (),
    place: tuple[str, ...] = (),
    depth: int = 0,
) -> Iterator[_Number]:
    """Yield the numbers in a state, those of outer states first."""
    children: Iterable[tuple[str, Any]] = ()
    if hasattr(state, "_fields"):
        for name, value in _own_numbers(state, reading):
            yield _Number(name, type(state).__name__, labels, place, depth, value)
        slots = slot_fields(type(state))
        children = ((k, x) for k, x in state._asdict().items() if k not in slots)
        depth += 1
    elif isinstance(state, Mapping):
        for k, x in state.items():
            where = (*place, str(k))
            yield from _numbers(x, reading, (*labels, str(k)), where, depth)
    elif isinstance(state, tuple | list):
        children = ((str(i), x) for i, x in enumerate(state))
    for name, x in children:
        yield from _numbers(x, reading, labels, (*place, name), depth)


def _own_numbers(state: Any, reading: _Reading) -> Iterator[tuple[str, Any]]:
    """Yield the numbers that a state has itself, by name."""
    declared: Callable[[Any], dict[str, Any]] | None = getattr(type(state), "metrics", None)
    if callable(declared):
        for name, value in declared(state).items():
            if not reading.is_number(value):
                raise TypeError(
                    f"metrics: {type(state).__name__}.metrics() must return numbers, got "
                    f"{shown(value)} for {name!r}."
                )
            yield name, value
    hints, slots = hints_of(type(state)), slot_fields(type(state))
    for name, x in state._asdict().items():
        if name in slots or (_is_optax_tree_hint(hints.get(name)) and not holds_states(x)):
            yield from _metrics_of_slot(name, x, reading)
        elif callable(declared) or "key" in name:  # seeds are not measures
            continue
        elif reading.is_number(x):
            yield name, x
        elif name in DICTS and isinstance(x, Mapping):
            for path, leaf in with_paths(x):
                if reading.is_number(leaf):
                    yield "/".join(path), leaf


def _is_optax_tree_hint(hint: Any) -> bool:
    """Whether an annotation is Optax's for trees, which slots and inner states have."""
    containers = (Iterable, Mapping)
    return any(get_origin(part) in containers for part in get_args(hint))


def _metrics_of_slot(name: str, slot: PyTree, reading: _Reading) -> Iterator[tuple[str, Any]]:
    """Yield the norm of a slot, and the distance of the parameters to it, as far as asked for."""
    leaves = {path: x for path, x in with_paths(slot, _is_leaf) if not is_hole(x)}
    if not all(map(_is_floating_leaf, leaves.values())):
        return
    if reading.slots and leaves:
        yield f"{name}_norm", _NORM[reading.replicas](list(leaves.values()))
    if reading.params is not None and name in PLACES and leaves:
        ps = dict(with_paths(reading.params))
        pairs = [(_param(name, path, ps.get(path), x), x) for path, x in leaves.items()]
        yield f"distance_to_{name}", _DISTANCE[reading.replicas](pairs)


def _is_leaf(x: Any) -> bool:
    return is_update_leaf(x) or is_stored(x)


def _is_floating_leaf(x: Any) -> bool:
    return hasattr(x, "dtype") and jnp.issubdtype(dtype_of(x), jnp.inexact)


def _param(name: str, path: tuple[str, ...], p: Any, slot: Any) -> Any:
    """Return the parameter of a slot, which must have the slot's shape."""
    if p is None or jnp.shape(p) != jnp.shape(slot):
        where = "no parameter" if p is None else f"a parameter of shape {jnp.shape(p)}"
        raise ValueError(
            f"metrics: params have {where} at {path_str(path)}, where the state's {name} has "
            f"shape {jnp.shape(slot)}. Pass the parameters in the form that the state has."
        )
    return p


def _norm_of_slot(slot: list[Any]) -> Array:
    """Return the norm of a slot: of the arrays that stored ones stand for."""
    return engine.global_norm([fetched(x).load() if is_stored(x) else x for x in slot])


def _distance(pairs: list[tuple[Any, Any]]) -> Array:
    def difference(p: Any, slot: Any) -> Array:
        wide = at_least_float32(dtype_of(slot))
        return cast(jnp.asarray(p), wide) - cast(jnp.asarray(slot), wide)

    return engine.global_norm([difference(p, slot) for p, slot in pairs])


# By whether there is an axis of replicas. One program each: a loop asks for them at every step.
_NORM = {False: jax.jit(_norm_of_slot), True: jax.jit(jax.vmap(_norm_of_slot))}
_DISTANCE = {False: jax.jit(_distance), True: jax.jit(jax.vmap(_distance))}


def _step_among_metrics(numbers: list[_Number]) -> _Number | None:
    """Return the number that counts the steps: of the outermost state that has one."""
    counts = [x for x in numbers if _is_step_metric(x)]
    outermost = min((x.depth for x in counts), default=0)
    counts = [x for x in counts if x.depth == outermost]
    beside = [x for x in counts if (x.place, x.kind) == (counts[0].place, counts[0].kind)]
    return min(beside, key=lambda x: STEPS.index(x.name), default=None)


def _is_step_metric(number: _Number) -> bool:
    """Whether a number counts steps: by its name, unless its rule says that it counts others."""
    if number.name not in STEPS or not jnp.issubdtype(dtype_of(number.value), jnp.integer):
        return False
    rules = rules_with_state(number.kind)
    return not rules or any(number.name in rule.step_fields for rule in rules)


def _keys(numbers: list[_Number]) -> list[str]:
    """Return a key for each number: the shortest by which those of one name are all different."""
    alike: dict[str, list[_Number]] = defaultdict(list)
    for number in numbers:
        alike[number.name].append(number)

    def distinct(group: list[_Number]) -> Callable[[_Number], str]:
        choices = list(zip(*(number.keys() for number in group), strict=True))
        form = next((i for i, keys in enumerate(choices) if len(set(keys)) == len(keys)), -1)
        return lambda number: number.keys()[form]

    chosen = {name: distinct(group) for name, group in alike.items()}
    keys = [chosen[number.name](number) for number in numbers]
    twice = {key for key, n in Counter(keys).items() if n > 1}
    return [
        number.keys()[-1] if key in twice else key
        for key, number in zip(keys, numbers, strict=True)
    ]
