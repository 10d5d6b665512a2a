"""Running the rules of a chain: their checks, their scalars, their slots, extra arguments.

Speaks of rules by what they have (`rule`, `prepare`, `locality`, ...); `base.py` says what that is.
"""

import inspect
import sys
import typing
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from gradxform import lift, rows, trees
from gradxform.errors import did_you_mean, name_of, shown
from gradxform.numerics import ScheduleError, cast, has_64_bits, scalar_dtype
from gradxform.types import OptState, Params, PyTree, Slot, Updates
from gradxform.values import Value, fields_of, put_live, take_live

_MARKED: dict[tuple[type, Any], tuple[str, ...]] = {}


def marked_fields(cls: type, mark: Any) -> tuple[str, ...]:
    """Return the names of the fields of a state with that annotation."""
    if (cls, mark) not in _MARKED:
        hints = hints_of(cls)
        _MARKED[cls, mark] = tuple(k for k, annotation in hints.items() if annotation == mark)
    return _MARKED[cls, mark]


def hints_of(cls: type) -> dict[str, Any]:
    """Return the annotations of a state's fields, resolved one by one.

    An annotation that names what cannot be found at run time is left out, unless it is called
    `Slot`: the names of one field must not hide the slots of the others.
    """
    try:
        return typing.get_type_hints(cls, include_extras=True)
    except Exception:  # whatever evaluating another author's annotation may raise
        pass
    hints = {}
    names = vars(sys.modules[cls.__module__]) if cls.__module__ in sys.modules else {}
    for field, annotation in inspect.get_annotations(cls).items():
        if isinstance(annotation, typing.ForwardRef):
            annotation = annotation.__forward_arg__
        if not isinstance(annotation, str):
            hints[field] = annotation
        elif annotation.rpartition(".")[2] == "Slot":
            hints[field] = Slot
        elif annotation in names:
            hints[field] = names[annotation]
    return hints


def slot_fields(cls: type) -> tuple[str, ...]:
    """Return the names of the fields of a state that hold one array per parameter."""
    return marked_fields(cls, Slot)


def state_kind(rule: Any, tree: PyTree) -> type:
    """Return the class of the state that a rule's `init` makes, for parameters like `tree`.

    What `State` says; of a rule that does not say so, what its `init` makes.
    """
    kind = rule.State or rule.__dict__.get("_state_kind")
    if kind is None:  # a state from a checkpoint: init was not called here
        kind = type(jax.eval_shape(rule.init, trees.like_params(tree)))
        object.__setattr__(rule, "_state_kind", kind)
    return kind


def check_state(part: Any, state: Any, kind: type) -> Any:
    """Return `state` as one of that kind, or of another library's with the same fields.

    Where nothing is remembered, any state will do. A field that another library's state of the
    same name does not have gets its default. A state keeps its class, so that it may be carried by
    a loop.

    Raises:
      TypeError: if the state is of another kind.
    """
    fields = getattr(kind, "_fields", ())
    theirs = getattr(state, "_fields", None)
    if not fields:
        return state if theirs == () and type(state).__name__ == kind.__name__ else kind()
    if type(state) is kind or theirs == fields:
        return state
    defaults: dict[str, Any] = getattr(kind, "_field_defaults", {})
    if type(state).__name__ == kind.__name__ and theirs is not None:
        if set(theirs) <= set(fields) <= set(theirs) | set(defaults):
            return kind(**state._asdict())
    raise TypeError(
        f"{name_of(part)}: the state must be of kind {kind.__name__}, got "
        f"{type(state).__name__}. Was this state made by another transform's init?"
    )


def _check_prepared(rule: Any, prepared: Any, state: Any) -> None:
    fields = getattr(state, "_fields", None)
    first = prepared[0] if isinstance(prepared, tuple) and prepared else None
    if getattr(first, "_fields", ()) != fields:
        raise TypeError(
            f"{name_of(rule)}: prepare must return (state, *scalars), with the new state "
            f"first; got {shown(prepared)}."
        )


def _wrong_slot(
    rules: Sequence[Any], states: Sequence[OptState], updates: PyTree, params: PyTree | None
) -> str | None:
    """Say which slot has not the shape that `init` gives it for these parameters; None: none."""
    need = "the gradient has" if params is None else "this parameter needs"
    for rule, state in zip(rules, states, strict=True):
        wanted = jax.eval_shape(rule.init, trees.like_params(updates if params is None else params))
        for k in slot_fields(type(wanted)):
            had = dict(trees.with_names(getattr(state, k)))
            for path, leaf in trees.with_names(getattr(wanted, k)):
                old = had.get(path)
                if old is None or trees.is_hole(leaf) or trees.is_hole(old):
                    continue
                if jnp.shape(old) != leaf.shape:
                    return (
                        f"{name_of(rule)}: the state's {k} of {trees.said(path)} has shape "
                        f"{jnp.shape(old)}, {need} {leaf.shape}. Was this state made for other "
                        "parameters?"
                    )
    return None


def _field_with(rule: Any, error: ScheduleError) -> str:
    """Name the field that holds the schedule of which an error tells."""
    return next((f"{k}: " for k, v in fields_of(rule).items() if v is error.schedule), "")


def _with_live_scalars(rule: Any) -> Any:
    """Return the rule with its live numbers as wide as the scalars of the step, which they meet."""
    taken: list[Any] = []
    bare = take_live(rule, taken)
    return put_live(bare, tuple(map(_as_scalar, taken))) if taken else rule


def _as_scalar(x: Any) -> Any:
    return cast(x, scalar_dtype()) if jnp.issubdtype(x.dtype, jnp.floating) else x


def _map_scalars(
    f: Callable[..., Any], slots: Sequence[str], state: OptState, *others: OptState
) -> OptState:
    """Map `f` over the fields of a rule's state that hold one array and are not slots."""
    scalars = [
        k
        for k in getattr(state, "_fields", ())
        if k not in slots and all(isinstance(getattr(x, k), jax.Array) for x in (state, *others))
    ]
    return state._replace(**{k: f(*(getattr(x, k) for x in (state, *others))) for k in scalars})


def run_rules(
    rules: Sequence[Any],
    updates: Updates,
    states: Sequence[OptState],
    params: Params | None,
    extra: dict[str, Any],
) -> tuple[Updates, list[OptState]]:
    """Run neighbouring rules over a tree, together; only the first may look at all updates."""
    updates = rows.merged(updates)
    treedef = trees.structure(updates)
    sparse, wide = trees.has_rows(updates), has_64_bits()
    parts, new_states = [], []
    for rule, state in zip(rules, states, strict=True):
        if rule.needs_params and params is None:
            raise ValueError(
                f"{name_of(rule)}: needs the parameters; call update(updates, state, params)."
            )
        kind = state_kind(rule, updates if params is None else params)
        state = check_state(rule, state, kind)
        names = slot_fields(kind)
        mask = rule.active(updates if params is None else params)
        if mask is not None:
            mask = trees.align(rule, updates, treedef, mask, "the mask has").leaves()
        if sparse:
            rows.check_rule(rule, updates, mask, bool(names))
        seen = updates if rule.locality == "tree" else None
        old = state
        if wide:
            rule, state = _with_live_scalars(rule), _map_scalars(_as_scalar, names, state)
        try:
            prepared = rule.prepare(seen, state, params, **routed(rule, rule.prepare, extra))
        except ScheduleError as error:
            raise TypeError(f"{name_of(rule)}: {_field_with(rule, error)}{error}") from None
        _check_prepared(rule, prepared, state)
        fresh, *shared = prepared
        if wide:  # no leaf of a state ever changes its dtype
            fresh = _map_scalars(lambda new, old: cast(new, old.dtype), names, fresh, old)
        slots = tuple(
            trees.align(rule, updates, treedef, getattr(fresh, k), f"the state's {k} has")
            for k in names
        )
        parts.append(lift.Part(rule, slots, tuple(shared), mask))
        new_states.append((fresh, names))
    try:
        new_updates, new = lift.map_leaves(parts, updates, params)
    except (TypeError, ValueError):
        reason = _wrong_slot(rules, states, updates, params)
        if reason is None:
            raise
        raise ValueError(reason) from None
    done = []
    for (state, names), part, leaves in zip(new_states, parts, new, strict=True):
        slots = {k: s.rebuilt(n) for k, s, n in zip(names, part.slots, leaves, strict=True)}
        done.append(state._replace(**slots) if slots else state)
    return new_updates, done


# -------------------------------------------------------------------------------- extra arguments


class Accepted(NamedTuple):
    """Which extra arguments a function takes."""

    anything: bool  # whether any name
    named: frozenset[str]
    needed: frozenset[str]  # those of `named` that have no default


_ACCEPTED: dict[Any, Accepted] = {}


def accepted(part: Any, function: Callable[..., Any]) -> Accepted:
    """Return which extra arguments `function`, an `update` or `prepare` of `part`, takes."""
    key = (type(part), function.__name__) if isinstance(part, Value) else None
    found = _ACCEPTED.get(key) if key else None
    if found is None:
        found = _accepted(function)
        if key:
            _ACCEPTED[key] = found
    return found


def _accepted(function: Callable[..., Any]) -> Accepted:
    every = inspect.signature(function).parameters.values()
    # After the updates, the state and the parameters, which come by position.
    extra = [p for p in every if p.kind is p.POSITIONAL_OR_KEYWORD][3:]
    extra += [p for p in every if p.kind is p.KEYWORD_ONLY]
    return Accepted(
        any(p.kind is p.VAR_KEYWORD for p in every),
        frozenset(p.name for p in extra),
        frozenset(p.name for p in extra if p.default is p.empty),
    )


def routed(part: Any, function: Callable[..., Any], extra: dict[str, Any]) -> dict[str, Any]:
    """Return the extra arguments that `function` of `part` takes.

    Raises:
      TypeError: if it requires one that is not given.
    """
    anything, named, needed = accepted(part, function)
    missing = sorted(needed - set(extra))
    if missing:
        raise TypeError(
            f"{name_of(part)}: needs the extra argument {missing[0]!r}; "
            f"call update(updates, state, params, {missing[0]}=...)."
        )
    return extra if anything else {k: v for k, v in extra.items() if k in named}


def check_names(part: Any, known: frozenset[str], given: Iterable[str]) -> None:
    """Refuse an extra argument that no part takes, if its name is nearly one that a part takes.

    Args:
      part: the outermost transform, for messages.
      known: the names that its parts take.
      given: those that its caller gave.

    Raises:
      TypeError: naming the nearest. Other names pass, since they may be for other transforms.
    """
    given = list(given)
    for name in given:
        absent = [k for k in known if k not in given]
        hint = "" if name in known else did_you_mean(name, absent, cutoff=0.75)
        if hint:
            raise TypeError(f"{name_of(part)}: no part takes the extra argument {name!r}.{hint}")
