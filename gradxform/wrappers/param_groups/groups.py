"""Groups of parameters: multipliers of the rates, optimizers of their own, and freezing."""

import functools
from collections.abc import Callable, Mapping
from dataclasses import field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from gradxform import engine
from gradxform.base import (
    EmptyState,
    Transform,
    call_update,
    check_transform,
    farthest,
    tell_moved,
    transform,
)
from gradxform.errors import name_of, shown
from gradxform.leaves import (
    Path,
    align_params,
    flatten_updates,
    is_hole,
    map_with_paths,
    masks,
    path_str,
    require_params,
    with_paths,
)
from gradxform.leaves.masks import MaskedState
from gradxform.leaves.row_sparse import RowSparse
from gradxform.leaves.states import check_state
from gradxform.numerics import safe_increment, scalar, value_at
from gradxform.transforms.scaling import ScaleByScheduleState, start_of_field
from gradxform.types import Array, NonNegativeOrSchedule, OptState, Params, PyTree, Updates
from gradxform.wrappers.changed_steps import check_changeable, told_change
from gradxform.wrappers.decay import decayed_update, scaled_update
from gradxform.wrappers.param_groups.param_group import is_one, param_group
from gradxform.wrappers.parts import check_movable
from gradxform.wrappers.select import masked


class Assigned(NamedTuple):
    """The index of the rule that has each parameter, by path; None for no rule."""

    rule_of: Mapping[Path, int | None]

    def of(self, indices: set[int | None]) -> frozenset[Path]:
        """Return the paths of the parameters that some of the rules have."""
        return frozenset(path for path, i in self.rule_of.items() if i in indices)


def _mask_of_paths(tree: PyTree, *, paths: frozenset[Path]) -> PyTree:
    """Return a mask tree that selects the leaves at some paths."""
    return map_with_paths(lambda path, leaf: path in paths, tree)


class ParamGroupsState(NamedTuple):
    """State of `param_groups`."""

    inner_state: Any  # the MaskedState of the common optimizer
    group_states: Any  # a dict from the names of groups with their own optimizer to MaskedStates
    multipliers: Any  # the count of updates if any multiplier is a schedule


@transform
class param_groups(Transform):
    """Treat groups of parameters differently: other rates, other optimizers, or none at all.

    Update rule, for a parameter of a group with the multipliers a of the learning rate and b of the
    weight decay, where u is the update of its optimizer:

        u <- a (u - learning_rate weight_decay b p)

    Without a `learning_rate` here the decay is not scaled by any rate: u <- a u - weight_decay b p.
    Parameters that no rule selects have multipliers of 1. All groups count the same steps.

    `a` multiplies the finished update of the optimizer: right where that is proportional to its
    learning rate, as of all optimizers of this library but those without one (`prodigy`, ...).
    A weight decay inside the optimizer, as in `adamw`, is multiplied by `a` too, and `b` does not
    reach it. To give groups their own decay, take the optimizer without decay and say
    `weight_decay` here. To multiply several sets of rules, nest: an outer `param_groups` multiplies
    all of the inner one's update.

        rules = [
            param_group("(bias|scale)$", weight_decay=0.0),
            param_group("^embed", learning_rate=0.1),
            param_group("^backbone", freeze=True, yields=True),
        ]
        tx = param_groups(adam(lr), rules, weight_decay=0.1, learning_rate=lr)
        print(describe(tx, params))

    Frozen parameters do not have slots. Only the touched rows of row-sparse updates decay.
    `describe(tx, params)` shows which parameters each group has.

    Of its own kind: each group of leaves has a transform of its own, and all a common one.

    Args:
      inner: the optimizer of all parameters whose group does not have one.
      rules: a tuple of `param_group`. A parameter that two of them select is an error, unless the
        later one `yields`.
      weight_decay: the decoupled weight decay, at least 0, or a schedule of it; not for groups with
        an optimizer of their own. Defaults to none. Keyword-only.
      learning_rate: the rate that multiplies the decay, usually that of `inner`, at least 0, or a
        schedule. Keyword-only.

    Raises:
      ValueError: if a rule multiplies a weight decay and there is none here; on the first
        parameters, if a rule selects nothing, or two select the same parameter.
    """

    inner: Any
    rules: tuple[Any, ...]
    weight_decay: NonNegativeOrSchedule | None = field(default=None, kw_only=True)
    learning_rate: NonNegativeOrSchedule | None = field(default=None, kw_only=True)

    handles_rows = True

    def __post_init__(self) -> None:
        check_transform(self, self.inner, "inner")
        # A tuple that prints as a table would print as one in the representation of this, too.
        object.__setattr__(self, "rules", tuple(self.rules))
        titles: set[str | None] = set()
        for i, rule in enumerate(self.rules):
            if not isinstance(rule, param_group):
                raise TypeError(
                    f"{name_of(self)}: rules must be param_groups' rules, such as "
                    f"param_group('bias$', weight_decay=0.0); rule {i} is {shown(rule)}."
                )
            if self.weight_decay is None and not is_one(rule.weight_decay):
                raise ValueError(
                    f"{name_of(self)}: {self._rule_name(i)} multiplies a weight decay, but there "
                    "is none: a decay inside the optimizer is out of its reach. Take the optimizer "
                    "without decay, and give weight_decay here."
                )
            if rule.inner is not None and rule.title in titles:
                raise ValueError(
                    f"{name_of(self)}: two groups with optimizers are labelled {rule.title!r}."
                )
            titles |= {rule.title} if rule.inner is not None else set()
        if self.learning_rate is not None and self.weight_decay is None:
            raise ValueError(
                f"{name_of(self)}: learning_rate only multiplies the weight decay, which is not "
                "given; the rate of the steps is that of inner."
            )

        # What multiplies updates, or adds a decay, moves the parameters of an optimizer.
        common = [r for r in self.rules if r.inner is None and not r.freeze]
        if self.weight_decay is not None or not all(is_one(r.learning_rate) for r in common):
            check_movable(self, self.inner)
            check_changeable(self, self.inner)
        for rule in self.rules:
            if rule.inner is not None and not is_one(rule.learning_rate):
                check_movable(self, rule.inner)
                check_changeable(self, rule.inner)

    @property
    def locality(self) -> str:
        """The farthest locality of the optimizers."""
        return farthest([self.inner, *(r.inner for r in self.rules if r.inner is not None)])

    def _rule_name(self, i: int) -> str:
        """Return the name of a rule in messages."""
        rule = self.rules[i]
        return f"rule {i} ({rule.title or rule.which!r})"

    @property
    def _has_schedule(self) -> bool:
        fields = [x for r in self.rules for x in (r.learning_rate, r.weight_decay)]
        return any(map(callable, [*fields, self.weight_decay, self.learning_rate]))

    # ------------------------------------------------------------------------ who has which leaf

    def assigned(self, updates: Updates, params: Params | None) -> Assigned:
        """Return which rule has each parameter.

        Args:
          updates: the gradients, which stand for the parameters where those are None.
          params: the parameters, or their shapes and dtypes.

        Raises:
          ValueError: if a rule selects nothing, or two select the same parameter.
        """
        has_params = params is not None
        tree = params if has_params else updates
        paths = [path for path, leaf in with_paths(tree) if not is_hole(leaf)]
        has_holes = any(is_hole(leaf) for _, leaf in with_paths(tree))
        rule_of: dict[Path, int | None] = dict.fromkeys(paths)
        for i, rule in enumerate(self.rules):
            selected = masks.entries_of(self, rule.which, tree, whole=has_params).of_leaves
            matches = [path for path in paths if selected[path]]
            for path in matches:
                earlier = rule_of[path]
                if earlier is None:
                    rule_of[path] = i
                elif not rule.yields:
                    raise ValueError(
                        f"{name_of(self)}: {self._rule_name(earlier)} and {self._rule_name(i)} "
                        f"both select {path_str(path)}. To leave it to the earlier rule, give the "
                        "later one yields=True."
                    )
            # Without the parameters, or behind a mask, the leaves of a rule may be out of sight.
            must_match = has_params and paths and not has_holes and not rule.may_be_empty
            if must_match and i not in rule_of.values():
                scope = "that no earlier rule has" if matches else f"of {len(paths)}"
                raise ValueError(
                    f"{name_of(self)}: {self._rule_name(i)} selects no parameter {scope}. Where it "
                    "may select none, give it optional=True."
                )
        return Assigned(rule_of)

    def _optimizers(self, assigned: Assigned) -> list[tuple[str | None, Any]]:
        """Return each optimizer on its own parameters, with its name; None for the common one."""
        separate = {i for i, r in enumerate(self.rules) if r.inner is not None}
        common = {i for i, r in enumerate(self.rules) if not r.freeze} - separate
        optimizers = [(None, self.inner, assigned.of({None, *common}))]
        optimizers += [
            (self.rules[i].title, self.rules[i].inner, assigned.of({i})) for i in sorted(separate)
        ]
        return [
            (title, masked(tx, functools.partial(_mask_of_paths, paths=paths)))
            for title, tx, paths in optimizers
        ]

    # ----------------------------------------------------------------------------- the transform

    def init(self, params):
        """Return the states of all optimizers, each for its own parameters."""
        common, *separate = self._optimizers(self.assigned(params, params))
        return ParamGroupsState(
            inner_state=common[1].init(params),
            group_states={title: tx.init(params) for title, tx in separate},
            multipliers=start_of_field(ScaleByScheduleState if self._has_schedule else EmptyState),
        )

    def _checked_states(self, state: ParamGroupsState) -> dict[str | None, MaskedState]:
        """Return the states of the optimizers by name, and require one for each."""
        titles = {r.title for r in self.rules if r.inner is not None}
        if set(state.group_states) != titles:
            raise ValueError(
                f"{name_of(self)}: the groups with optimizers are {sorted(map(str, titles))}, the "
                f"state has {sorted(state.group_states)}. Was this state made with other rules?"
            )
        return {None: state.inner_state, **state.group_states}

    def inner_states(self, state: OptState) -> list[tuple[Path, Any]]:
        """Return the places of the optimizers' states."""
        own = {rule.title: rule.inner for rule in self.rules if rule.inner is not None}
        places = [(("inner_state", "inner_state"), self.inner)]
        return places + [
            (("group_states", str(title), "inner_state"), own[title])
            for title in state.group_states
        ]

    def params_inside(self, place: Path, params: Params) -> Params:
        """Return the parameters of an optimizer."""
        title = place[1] if place[0] == "group_states" else None
        optimizers = self._optimizers(self.assigned(params, params))
        (chosen,) = (tx for of, tx in optimizers if title == (None if of is None else str(of)))
        return chosen.params_inside(place, params)

    def moved(self, state, old, new):
        """Return the state after something else has moved the parameters."""
        states = self._checked_states(state)
        for title, tx in self._optimizers(self.assigned(new, new)):
            states[title] = tell_moved(tx, states[title], old, new)
        return state._replace(inner_state=states.pop(None), group_states=states)

    def update(self, updates, state, params=None, **extra):
        """Update every group with its optimizer, and multiply."""
        state = check_state(self, state, ParamGroupsState)
        states = self._checked_states(state)
        kind = ScaleByScheduleState if self._has_schedule else EmptyState
        multipliers = check_state(self, state.multipliers, kind)
        if self.weight_decay is not None:
            require_params(self, params)
        assigned = self.assigned(updates, params)
        optimizers = self._optimizers(assigned)
        # Each optimizer changes the updates of its own parameters, and passes the others on.
        inner_updates = updates
        for title, tx in optimizers:
            inner_updates, states[title] = call_update(
                tx, inner_updates, states[title], params, extra
            )

        def at(x: Any) -> Any:
            return value_at(x, multipliers.count) if callable(x) else x

        updates = self._multiplied(inner_updates, params, assigned, at)
        for title, tx in optimizers:
            states[title] = told_change(tx, states[title], params, inner_updates, updates)
        if kind is ScaleByScheduleState:
            multipliers = multipliers._replace(count=safe_increment(multipliers.count))
        return updates, state._replace(
            inner_state=states.pop(None), group_states=states, multipliers=multipliers
        )

    def _multiplied(
        self,
        updates: Updates,
        params: Params | None,
        assigned: Assigned,
        at: Callable[[Any], Any],
    ) -> Updates:
        """Return the updates with multipliers and weight decay; `at` gives a schedule's value."""
        us, treedef = flatten_updates(updates)
        places = [path for path, u in with_paths(updates) if not is_hole(u)]
        groups = [assigned.rule_of[path] for path in places]
        # Leaves of one treatment are mapped together, whatever their group.
        by_kind: dict[Any, list[int]] = {"frozen": [], "scaled": [], "decaying": []}
        factors = {i: self._factors(i, at) for i in set(groups)}
        for k, i in enumerate(groups):
            if i is not None and self.rules[i].freeze:
                by_kind["frozen"].append(k)
            elif factors[i].decay is not None:
                by_kind["decaying"].append(k)
            elif not is_one(factors[i].rate):
                by_kind["scaled"].append(k)
        new = list(us)
        for kind, indices in by_kind.items():
            columns = [[us[k] for k in indices]]
            rates = [scalar(factors[groups[k]].rate) for k in indices]
            if kind == "frozen":  # these are still gradients: no optimizer has seen them
                results = engine.map_rows(_zero_update_of_frozen_group, columns)
            elif kind == "scaled":
                results = engine.map_rows(scaled_update, [*columns, rates])
            elif indices:
                ps = align_params(self, updates, treedef, params).leaves
                decays = [factors[groups[k]].decay for k in indices]
                results = engine.map_rows(
                    decayed_update, [*columns, [ps[k] for k in indices], rates, decays]
                )
            else:
                continue
            for k, u in zip(indices, results, strict=True):
                new[k] = u
        return jax.tree.unflatten(treedef, new)

    def _factors(self, i: int | None, at: Callable[[Any], Any]) -> "_Factors":
        """Return the multipliers of a group; `at` gives a schedule's value."""
        rule = None if i is None else self.rules[i]
        rate = 1.0 if rule is None else at(rule.learning_rate)
        # An optimizer of its own decays by itself.
        if self.weight_decay is None or (rule is not None and rule.inner is not None):
            return _Factors(rate, None)
        decay = 1.0 if rule is None else at(rule.weight_decay)
        scale = 1.0 if self.learning_rate is None else at(self.learning_rate) * rate
        return _Factors(rate, scalar(scale * at(self.weight_decay) * decay))


class _Factors(NamedTuple):
    """The multipliers of a group in a step."""

    rate: Any  # of the update
    decay: Array | None  # of the parameter, which is subtracted


def _zero_update_of_frozen_group(u: Any) -> Any:
    if isinstance(u, RowSparse):
        return u.with_values(jnp.zeros_like(u.values))
    return jnp.zeros_like(u)
