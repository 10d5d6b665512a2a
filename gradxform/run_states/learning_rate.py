"""The learning rate of the next step, read from an optimizer and its state."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from gradxform.base import ArrayRule, GradientTransformation, unwrapped
from gradxform.errors import name_of, shown
from gradxform.leaves.states import check_state, children_of, slot_fields
from gradxform.numerics import ScheduleError, scalar, value_at
from gradxform.slots import zero_count
from gradxform.transforms.plateau import reduce_on_plateau
from gradxform.transforms.scaling import scale, scale_by_schedule
from gradxform.types import Array, OptState
from gradxform.values import FrozenTree, Value, fields_of
from gradxform.wrappers.compose import chain, named_chain, sum_of
from gradxform.wrappers.external_step import external_step, with_counts
from gradxform.wrappers.hyperparams.inject import InjectStatefulHyperparamsState, injected
from gradxform.wrappers.param_groups.groups import param_groups
from gradxform.wrappers.param_groups.param_group import OTHERS, is_one
from gradxform.wrappers.select import masked, partition
from gradxform.wrappers.sparse import only_dense, only_rows

# The fields of a rule's state that count its updates.
COUNTS = ("count", "t")
# The parts that scale gradients before an optimizer, and steps after it.
_FACTORS = scale | scale_by_schedule | reduce_on_plateau
# The field with the factor, where it is not called `learning_rate`.
_FIELDS: dict[type, str] = {scale: "step_size", scale_by_schedule: "step_size_fn"}


class _Current(NamedTuple):
    """A learning rate, or a product of several."""

    labels: tuple[Any, ...]  # of the groups and branches in which it applies
    factors: tuple[Any, ...]  # the numbers and schedules
    value: Array  # their product in the next step


def current_learning_rate(tx: Any, state: OptState, *, label: Any = None) -> Array:
    """Return the learning rate of the next step: what its update is multiplied by, without sign.

    Every field `learning_rate` in the optimizer counts, as a number, as a schedule at the count in
    the state, or as a hyperparameter in the state. In a chain these are multiplied, and with them
    every `scale`, `scale_by_schedule` and `reduce_on_plateau` after the last part with slots: those
    before it scale gradients, not steps. An optimizer that estimates a rate before it sees the
    gradient (`prodigy`, `dadapt_adamw`, `mechanize`, `trac`) has that times its estimate. The rate
    of a wrapper is that of the optimizer in it; a `learning_rate` of the wrapper itself, as for its
    decay, does not count. Works under `jax.jit`.

    Where an `external_step` gives the count, the next step is the one after the last. For an
    optimizer of Optax, whose schedule is hidden in a function, it is the hyperparameter
    `learning_rate` of `optax.inject_hyperparams`.

    Args:
      tx: the optimizer.
      state: its state.
      label: which group, if the groups of a `partition` or of `param_groups`, or the terms of a
        `sum_of` (0, 1, ...), have different rates (`current_learning_rates` has all at once). A
        group of `param_groups` is called what `describe` calls it: by the label or the pattern of
        its rule, or "all others". Keyword-only.

    Raises:
      ValueError: without a learning rate, or if groups have different ones and no `label` chooses
        among them; if a `masked` part of a chain changes the rate of some parameters only.

    Example: `current_learning_rate(adamw(schedule), state)`.
    """
    rates = _current(tx, state)
    if label is not None:
        labels = {x for rate in rates for x in rate.labels}
        if label not in labels:
            listed = ", ".join(sorted(map(repr, labels))) or "none"
            raise ValueError(
                f"current_learning_rate: no group with a learning rate is called {shown(label)}; "
                f"there are {listed}."
            )
        rates = [rate for rate in rates if label in rate.labels]
    _require(tx, rates)
    if any(not _same_factors(rate.factors, rates[0].factors) for rate in rates):
        listed = ", ".join("/".join(map(repr, rate.labels)) for rate in rates)
        raise ValueError(
            f"current_learning_rate: {name_of(tx)} has different learning rates for {listed}. "
            "Choose one with label=, or take current_learning_rates."
        )
    return jnp.abs(rates[0].value)


def current_learning_rates(tx: Any, state: OptState) -> dict[str, Array]:
    """Return the learning rates of the next step of all groups, for a logger.

    `{"learning_rate/embed": 0.001, "learning_rate/all others": 0.01}`: what `current_learning_rate`
    returns for each group of a `partition` or of `param_groups` and each term of a `sum_of`, by
    label; the labels of groups in groups are joined by "/". An optimizer without groups has the one
    key "learning_rate". Groups without a learning rate, such as frozen ones, are left out. Works
    under `jax.jit`.

    Args:
      tx: the optimizer.
      state: its state.

    Raises:
      ValueError: as `current_learning_rate` without groups; or if two groups have the same labels
        and different rates.
    """
    rates = _current(tx, state)
    _require(tx, rates)
    named: dict[str, _Current] = {}
    for rate in rates:
        key = "/".join(("learning_rate", *map(str, rate.labels)))
        if not _same_factors(named.setdefault(key, rate).factors, rate.factors):
            labels = "/".join(map(repr, rate.labels))
            raise ValueError(
                f"current_learning_rates: {name_of(tx)} has two groups that are called {labels}, "
                "with different rates; give them different labels."
            )
    return {key: jnp.abs(rate.value) for key, rate in named.items()}


def _require(tx: Any, rates: list[_Current]) -> None:
    if not rates:
        raise ValueError(
            f"current_learning_rate: {name_of(tx)} does not have a learning rate that can be read. "
            "scale_by_learning_rate has one; for an optimizer of Optax use inject_hyperparams."
        )


def _same_factors(a: tuple[Any, ...], b: tuple[Any, ...]) -> bool:
    """Whether two products have the same factors: equal numbers, or the same arrays."""
    if len(a) != len(b):
        return False
    return all(
        x is y or (not (isinstance(x, jax.Array) or isinstance(y, jax.Array)) and x == y)
        for x, y in zip(a, b, strict=True)
    )


def _current(tx: Any, state: OptState) -> list[_Current]:
    """Return the rates of a transform, one for each group; none if it does not have any."""
    tx = unwrapped(tx)
    if isinstance(tx, external_step) and tx.at is not None:
        state = with_counts(state, jnp.asarray(tx.at, jnp.int32))
    if not isinstance(tx, GradientTransformation):
        return _injected_by_optax(state)
    if isinstance(tx, chain | named_chain):
        return _rates_of_chain(tx, state)
    if isinstance(tx, partition):
        groups = tx.transforms.unfreeze() if isinstance(tx.transforms, FrozenTree) else {}
        places = {k: ("inner_states", k, "inner_state") for k in groups}
        return _labelled({k: (x, _rated(tx, state, *places[k])) for k, x in groups.items()})
    if isinstance(tx, sum_of):
        return _labelled(dict(enumerate(zip(tx.transforms, state, strict=True))))
    if isinstance(tx, injected):
        check_state("inject_hyperparams", state, InjectStatefulHyperparamsState)
        return _current(tx.at_next(state), _rated(tx, state, "inner_state"))
    if isinstance(tx, param_groups):
        return _rates_of_param_groups(tx, state)
    if isinstance(tx, reduce_on_plateau):
        factor = _rated(tx, state, "scale")
        return [_Current((), (factor,), factor)]
    inner = tx.inner_states(state)
    if inner:  # of several the first takes the steps
        path, part = inner[0]
        rates = _current(part, _rated(tx, state, *path))
    else:
        rates = _rate_of_rule(tx, state, _FIELDS.get(type(tx), "learning_rate"))
    estimate = tx.estimated_rate(_rated_without_mask(state)) if rates else None
    if estimate is None:
        return rates
    estimate = estimate[0] if jnp.ndim(estimate) else estimate  # replicas step together
    own = [_Current((), (estimate,), scalar(estimate))]
    return _products(rates, own)


def _rates_of_param_groups(tx: param_groups, state: OptState) -> list[_Current]:
    """Return the rates of the groups that move, times their multipliers."""
    rates_of_all = _current(tx.inner, _rated(tx, state, "inner_state", "inner_state"))
    rates: list[_Current] = []
    for rule in tx.rules:
        if rule.freeze:
            continue
        its_rates = rates_of_all
        if rule.inner is not None:
            place = "group_states", rule.title, "inner_state"
            its_rates = _current(rule.inner, _rated(tx, state, *place))
        if its_rates and not is_one(rule.learning_rate):
            multipliers = _rated(tx, state, "multipliers")
            its_rates = _products(its_rates, _rate_of_rule(rule, multipliers, "learning_rate"))
        rates += [rate._replace(labels=(rule.name, *rate.labels)) for rate in its_rates]
    return rates + [rate._replace(labels=(OTHERS, *rate.labels)) for rate in rates_of_all]


def _rated(tx: Any, state: Any, *path: Any) -> Any:
    """Return the part of a wrapper's state at a path."""
    for name in path:
        parts = children_of(state) or {}
        if str(name) not in parts:
            raise TypeError(
                f"current_learning_rate: the state of {name_of(tx)} must have {name!r}, got "
                f"{type(state).__name__}. Was this state made by another transform's init?"
            )
        state = parts[str(name)]
    return state


def _rates_of_chain(tx: Any, state: OptState) -> list[_Current]:
    """Return the product of the rates of a chain's parts, in each group."""
    parts = list(_rated_parts_of_chain(tx, state))
    last = max(
        (i for i, (part, s) in enumerate(parts) if _rated_part_has_slots(part, s)), default=-1
    )
    rated: list[tuple[Any, list[_Current]]] = []
    for i, (part, its_state) in enumerate(parts):
        if i > last or not isinstance(_rated_part_without_mask(part), _FACTORS):
            its_rates = _current(part, its_state)
            rated += [(part, its_rates)] if its_rates else []
    if any(isinstance(part, only_dense) for part, _ in rated):  # what rows get is something else
        rated = [(part, its_rates) for part, its_rates in rated if not isinstance(part, only_rows)]
    for part, _ in rated if len(rated) > 1 else ():
        if isinstance(part, masked) and part.mask is not True:
            raise ValueError(
                f"current_learning_rate: {name_of(tx)} changes the rate of some parameters only, "
                f"with masked({name_of(part.inner)}, ...). Use partition or param_groups, which "
                "have labels for their groups."
            )
    return functools.reduce(_products, (its_rates for _, its_rates in rated), [])


def _rated_part_without_mask(part: Any) -> Any:
    return _rated_part_without_mask(unwrapped(part.inner)) if isinstance(part, masked) else part


def _rated_parts_of_chain(tx: Any, state: OptState) -> list[tuple[Any, OptState]]:
    """Return the parts of a chain with their states; chains in it are opened."""
    parts = []
    for part, its_state in zip(map(unwrapped, tx.inner()), tx.split_state(state), strict=True):
        opened = isinstance(part, chain | named_chain)
        parts += _rated_parts_of_chain(part, its_state) if opened else [(part, its_state)]
    return parts


def _rated_part_has_slots(part: Any, state: OptState) -> bool:
    """Whether a part remembers arrays; of one that does not say so, whether its state has any."""
    if isinstance(part, ArrayRule):
        return bool(slot_fields(type(state)))
    return any(jnp.ndim(x) > 0 for x in jax.tree.leaves(state))


def _rate_of_rule(part: Any, state: OptState, name: str) -> list[_Current]:
    """Return the rate in a field of a rule, as a list, empty if it has none."""
    rate = fields_of(part).get(name) if isinstance(part, Value) else None
    if rate is None:
        return []
    try:
        count = _count_of_schedule(part, name, state) if callable(rate) else zero_count()
        value = getattr(part, "number_at", value_at)(rate, count)
    except ScheduleError as error:
        raise TypeError(f"{name_of(part)}: {name}: {error}") from None
    return [_Current((), (rate,), value)]


def _count_of_schedule(part: Any, name: str, state: OptState) -> Array:
    """Return the count at which the next step evaluates the schedules of a rule."""
    for field in COUNTS:
        count = getattr(_rated_without_mask(state), field, None)
        if isinstance(count, int) or hasattr(count, "dtype"):  # also a variable of nnx
            count = jnp.asarray(count)
            return count[0] if count.ndim else count  # replicas step together
    raise ValueError(
        f"current_learning_rate: {name_of(part)} has a schedule as {name}, and its state of kind "
        f"{type(state).__name__} does not have a count. Was this state made by another transform's "
        "init?"
    )


def _rated_without_mask(state: OptState) -> OptState:
    return getattr(state, "inner_state", state)


def _labelled(groups: dict[Any, tuple[Any, OptState]]) -> list[_Current]:
    """Return the rates of several groups, those that have one."""
    named = ((label, _current(tx, state)) for label, (tx, state) in groups.items())
    return [rate for label, rates in named for rate in _rates_under_label(label, rates)]


def _rates_under_label(label: Any, rates: list[_Current]) -> list[_Current]:
    """Return rates with one more label."""
    return [rate._replace(labels=(label, *rate.labels)) for rate in rates]


def _products(some: list[_Current], others: list[_Current]) -> list[_Current]:
    """Return the products of rates that apply together: of groups with the same labels."""
    if not some or not others:
        return some or others
    if len(some) > 1 and [x.labels for x in some] == [x.labels for x in others]:
        pairs = list(zip(some, others, strict=True))
    else:
        pairs = [(a, b) for a in some for b in others]
    return [
        _Current(
            a.labels + tuple(x for x in b.labels if x not in a.labels),
            a.factors + b.factors,
            a.value * b.value,
        )
        for a, b in pairs
    ]


def _injected_by_optax(state: OptState) -> list[_Current]:
    """Return the hyperparameter `learning_rate` in the state of another library's transform."""
    hyperparams = getattr(state, "hyperparams", None)
    if not isinstance(hyperparams, dict) or "learning_rate" not in hyperparams:
        return []
    rate = jnp.asarray(hyperparams["learning_rate"])
    return [_Current((), (rate,), value_at(rate, jnp.zeros(())))]
