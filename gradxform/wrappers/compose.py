"""Several transforms as one: in order, or summed."""

import abc
import functools
import itertools
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax

from gradxform import engine
from gradxform.base import (
    ArrayRule,
    Transform,
    call_update,
    check_transform,
    farthest,
    tell_moved,
    transform,
    unwrapped,
)
from gradxform.engine import run_rules
from gradxform.errors import did_you_mean, name_of, shown
from gradxform.leaves import Path, dtype_of, flatten_updates
from gradxform.leaves.row_sparse import is_row_sparse
from gradxform.numerics import cast, promote
from gradxform.tree.apply import apply_updates
from gradxform.types import OptState, Updates
from gradxform.wrappers.changed_steps import check_changeable, check_order, told_change
from gradxform.wrappers.one_pass import call_update_params
from gradxform.wrappers.parts import StatelessWrapper, records_params


class _Chain(Transform):
    """Base of `chain` and `named_chain`.

    Nested chains are flattened, and neighboring rules run over the leaves together. A rule that
    must see all updates first, such as a global norm, begins a new run.
    """

    handles_rows = True

    @abc.abstractmethod
    def inner(self) -> tuple[Any, ...]:
        """Return the transforms in order."""

    @abc.abstractmethod
    def part_names(self) -> list[str]:
        """Return the key, in the state, of each transform's state, in order."""

    @abc.abstractmethod
    def split_state(self, state: Any) -> Sequence[Any]:
        """Return the states in the transforms' order."""

    @abc.abstractmethod
    def join_states(self, states: Sequence[Any], like: Any) -> OptState:
        """Undo `split_state`, in the containers of the state `like`."""

    @property
    def locality(self) -> str:
        """The farthest locality of the parts."""
        return farthest(self.inner())

    @property
    def keeps_updates(self) -> bool:
        """Whether all parts keep their updates."""
        return all(getattr(unwrapped(tx), "keeps_updates", False) for tx in self.inner())

    def init(self, params):
        """Return the states of all transforms."""
        return self.join_states([tx.init(params) for tx in self.inner()], None)

    def update(self, updates, state, params=None, **extra):
        """Run the transforms in order, each on the updates of the one before."""
        states = _flat_states_of_chain(self, state, updates if params is None else params)
        new_states: list[Any] = []
        recorded: list[tuple[Any, int, Updates]] = []
        for run in self._plan:
            start = len(new_states)
            run_states = states[start : start + len(run)]
            if isinstance(run[0], ArrayRule):
                updates, new = run_rules(run, updates, run_states, params, extra)
                new_states.extend(new)
            else:
                updates, new = call_update(run[0], updates, run_states[0], params, extra)
                new_states.append(new)
                if records_params(run[0]):
                    recorded.append((run[0], start, updates))
        # A later part may have changed the updates that an average has recorded.
        for tx, i, part_updates in recorded:
            new_states[i] = told_change(tx, new_states[i], params, part_updates, updates)
        return updates, _nested_states_of_chain(self, iter(new_states), state)

    def update_params(self, updates, state, params, **extra):
        """Return the parameters after the update; the last of the transforms moves them."""
        runs = self._plan
        if not runs or any(records_params(run[0]) for run in runs):
            updates, state = self.update(updates, state, params, **extra)
            return apply_updates(params, updates), state
        states = iter(_flat_states_of_chain(self, state, params))
        new_states: list[Any] = []
        for i, run in enumerate(runs):
            if i == len(runs) - 2 and getattr(run[0], "rule_in_place", None) is not None:
                rest = [*states]
                made = run[0].update_params_with(runs[-1], updates, rest, params, extra)
                if made is not None:
                    updates, new = made
                    new_states.extend(new)
                    break
                states = iter(rest)
            old, is_last = list(itertools.islice(states, len(run))), run is runs[-1]
            if isinstance(run[0], ArrayRule):
                updates, new = run_rules(run, updates, old, params, extra, is_last)
            else:
                call = call_update_params if is_last else call_update
                updates, *new = call(run[0], updates, old[0], params, extra)
            new_states.extend(new)
        return updates, _nested_states_of_chain(self, iter(new_states), state)

    def inner_states(self, state: OptState) -> list[tuple[Path, Any]]:
        """Return the places of the states, by index or by name."""
        self.split_state(state)  # requires a state for each
        return [((name,), tx) for name, tx in zip(self.part_names(), self.inner(), strict=True)]

    def moved(self, state, old, new):
        """Return the states after something else has moved the parameters."""
        pairs = zip(self.inner(), self.split_state(state), strict=True)
        return self.join_states([tell_moved(tx, s, old, new) for tx, s in pairs], state)

    @functools.cached_property
    def _parts_in_order(self) -> tuple[Any, ...]:
        return self.inner()

    @property
    def is_one_run(self) -> bool:
        """Whether all parts are rules that run over the leaves together."""
        return len(self._plan) == 1 and isinstance(self._plan[0][0], ArrayRule)

    @functools.cached_property
    def _plan(self) -> list[list[Any]]:
        """The runs of parts that go through the leaves together; nested chains are flattened."""
        return _runs_of_chain_parts(_flat_parts_of_chain(self))


def _flat_parts_of_chain(tx: Any) -> list[Any]:
    """Return the transforms of a chain and of all chains in it, in order.

    What only changes how a state is kept is none of them: its rules load what they get.
    """
    if isinstance(tx, StatelessWrapper) and tx.only_stores:
        return _flat_parts_of_chain(tx.inner)
    if not isinstance(tx, _Chain):
        return [tx]
    return [flat for part in tx.inner() for flat in _flat_parts_of_chain(part)]


def _runs_of_chain_parts(parts: Sequence[Any]) -> list[list[Any]]:
    """Return the parts in runs: neighboring rules together, any other transform by itself."""
    runs: list[list[Any]] = []
    for part in parts:
        # A rule that looks at the whole tree must see all updates of the rules before it.
        joins = (
            runs
            and isinstance(part, ArrayRule)
            and isinstance(runs[-1][-1], ArrayRule)
            and part.locality != "tree"
        )
        if joins:
            runs[-1].append(part)
        else:
            runs.append([part])
    return runs


def _flat_states_of_chain(tx: Any, state: Any, params: Any) -> list[Any]:
    """Return the states of the parts that `_flat_parts_of_chain` returns."""
    if isinstance(tx, StatelessWrapper) and tx.only_stores:
        return _flat_states_of_chain(tx.inner, tx.with_stored_arrays(state, params), params)
    if not isinstance(tx, _Chain):
        return [state]
    states = []
    for part, old in zip(tx._parts_in_order, tx.split_state(state), strict=True):
        is_one = not isinstance(part, _Chain | StatelessWrapper)
        states += [old] if is_one else _flat_states_of_chain(part, old, params)
    return states


def _nested_states_of_chain(tx: Any, states: Iterator[Any], like: Any) -> OptState:
    """Undo `_flat_states_of_chain`, in the containers of the state `like`."""
    if isinstance(tx, StatelessWrapper) and tx.only_stores:
        return _nested_states_of_chain(tx.inner, states, like)
    if not isinstance(tx, _Chain):
        return next(states)
    new = []
    for part, old in zip(tx._parts_in_order, tx.split_state(like), strict=True):
        is_one = not isinstance(part, _Chain | StatelessWrapper)
        new.append(next(states) if is_one else _nested_states_of_chain(part, states, old))
    return tx.join_states(new, like)


def _plural_of_composed(items: Sequence[Any], noun: str) -> str:
    return f"{len(items)} {noun}" + ("" if len(items) == 1 else "s")


def _check_composed_states(part: Any, transforms: Sequence[Any], state: Any) -> Sequence[Any]:
    """Return `state`, which must be a tuple of one state for each transform."""
    if not isinstance(state, tuple | list) or hasattr(state, "_fields"):
        raise TypeError(
            f"{name_of(part)}: the state must be a tuple of "
            f"{_plural_of_composed(transforms, 'state')}, got {type(state).__name__}. Was this "
            "state made by another transform's init?"
        )
    if len(state) != len(transforms):
        raise ValueError(
            f"{name_of(part)}: {_plural_of_composed(transforms, 'transform')} but "
            f"{_plural_of_composed(state, 'state')}. Was this state made by another chain's init?"
        )
    return state


@transform
class chain(_Chain):
    """Run transforms one after the other, each on the updates of the one before.

    The state is the tuple of their states. The result is that of calling each update in turn.
    Neighboring rules run over the leaves together, which is faster and rounds 16-bit updates only
    once.

    Args:
      *transforms: any number of transforms, ours, Optax's or yours. Without any, the chain is the
        identity.

    Raises:
      ValueError: if a part changes the updates of an earlier one that sets the parameters, such as
        `project`; at update, if the state is not that of as many transforms.
    """

    transforms: tuple[Any, ...] = ()

    variadic = "transforms"

    if TYPE_CHECKING:

        def __init__(self, *transforms: Any) -> None: ...

    def __post_init__(self) -> None:
        for i, tx in enumerate(self.transforms):
            check_transform(self, tx, f"argument {i}")
        check_order(self, self.inner())
        _ = self._plan, self._parts_in_order  # computed now, not in a user's first trace

    def inner(self) -> tuple[Any, ...]:
        """Return the transforms in order."""
        return self.transforms

    def part_names(self) -> list[str]:
        """Return the indices."""
        return [str(i) for i in range(len(self.transforms))]

    def split_state(self, state: OptState) -> Sequence[Any]:
        """Return the states in order."""
        if type(state) is tuple and len(state) == len(self.transforms):
            return state
        return _check_composed_states(self, self.transforms, state)

    def join_states(self, states: Sequence[Any], like: Any) -> tuple[Any, ...]:
        """Return the tuple of states."""
        return tuple(states)


@transform
class named_chain(_Chain):
    """Run named transforms one after the other; the state is an OrderedDict of their states.

    Args:
      *transforms: pairs `(name, transform)` with different names.

    Raises:
      ValueError: if two names are equal, or as `chain`; at update, if a name does not have a state.
    """

    transforms: tuple[Any, ...] = ()

    variadic = "transforms"

    if TYPE_CHECKING:

        def __init__(self, *transforms: Any) -> None: ...

    def __post_init__(self) -> None:
        names: set[str] = set()
        for i, pair in enumerate(self.transforms):
            if not (isinstance(pair, tuple | list) and len(pair) == 2 and isinstance(pair[0], str)):
                raise TypeError(
                    f"{name_of(self)}: argument {i} must be a pair (name, transform), got "
                    f"{shown(pair)}."
                )
            name, tx = pair
            check_transform(self, tx, f"{name!r}")
            if name in names:
                raise ValueError(f"{name_of(self)}: two transforms are named {name!r}.")
            names.add(name)
        object.__setattr__(self, "transforms", tuple((n, tx) for n, tx in self.transforms))
        check_order(self, self.inner())
        _ = self._plan, self._parts_in_order  # computed now, not in a user's first trace

    def inner(self) -> tuple[Any, ...]:
        """Return the transforms in order."""
        return tuple(tx for _, tx in self.transforms)

    def part_names(self) -> list[str]:
        """Return the names."""
        return [name for name, _ in self.transforms]

    def split_state(self, state: OptState) -> Sequence[Any]:
        """Return the states in order."""
        if not isinstance(state, Mapping):
            raise TypeError(
                f"{name_of(self)}: the state must be a dict of "
                f"{_plural_of_composed(self.transforms, 'state')}, got {type(state).__name__}. "
                "Was this state made by another transform's init?"
            )
        names = [name for name, _ in self.transforms]
        for name in names:
            if name not in state:
                raise ValueError(
                    f"{name_of(self)}: no state for {name!r}.{did_you_mean(name, state)} "
                    "Was this state made by another chain's init?"
                )
        for name in state:
            if name not in names:
                raise ValueError(
                    f"{name_of(self)}: a state named {name!r} but no such transform."
                    f"{did_you_mean(name, names)} Was this state made by another chain's init?"
                )
        return [state[name] for name in names]

    def join_states(self, states: Sequence[Any], like: Any) -> Mapping[str, Any]:
        """Return the states by name, in an OrderedDict, or in the kind of dict that `like` is."""
        kind = OrderedDict if like is None else type(like)
        return kind((name, s) for (name, _), s in zip(self.transforms, states, strict=True))


@transform
class sum_of(Transform):
    """Run several transforms on the same updates, and sum the results.

    Update rule: u = u_1 + u_2 + ..., where u_i is the result of transform i for g. The state is
    the tuple of their states. A sum of row-sparse updates is row-sparse; the sum of a row-sparse
    and a dense update is dense. An average of the parameters in one of the transforms, such as
    `moving_average`, is that of the points to which the sum leads.

    Of its own kind: it runs several transforms on the same updates.

    Args:
      *transforms: at least one transform.

    Raises:
      ValueError: without a transform; if one of several sets the parameters, such as `project`; at
        update, if the state is not that of as many transforms.
    """

    transforms: tuple[Any, ...] = ()

    variadic = "transforms"
    handles_rows = True

    if TYPE_CHECKING:

        def __init__(self, *transforms: Any) -> None: ...

    def __post_init__(self) -> None:
        if not self.transforms:
            raise ValueError(f"{name_of(self)}: needs at least one transform, got none.")
        for i, tx in enumerate(self.transforms):
            check_transform(self, tx, f"argument {i}")
            if len(self.transforms) > 1:
                check_changeable(self, tx)

    @property
    def locality(self) -> str:
        """The farthest locality of the parts."""
        return farthest(self.transforms)

    def init(self, params):
        """Return the tuple of states."""
        return tuple(tx.init(params) for tx in self.transforms)

    def inner_states(self, state: OptState) -> list[tuple[Path, Any]]:
        """Return the places of the states, by index."""
        _check_composed_states(self, self.transforms, state)
        return [((str(i),), tx) for i, tx in enumerate(self.transforms)]

    def moved(self, state, old, new):
        """Return the states after something else has moved the parameters."""
        pairs = zip(
            self.transforms, _check_composed_states(self, self.transforms, state), strict=True
        )
        return tuple(tell_moved(tx, s, old, new) for tx, s in pairs)

    def update(self, updates, state, params=None, **extra):
        """Return the sum, in the dtypes of the updates."""
        states = _check_composed_states(self, self.transforms, state)
        results = [
            call_update(tx, updates, s, params, extra)
            for tx, s in zip(self.transforms, states, strict=True)
        ]
        leaves, treedef = flatten_updates(updates)
        parts = [treedef.flatten_up_to(u) for u, _ in results]
        sums = engine.map_rows(_sum_of_composed_updates, [leaves, *parts]) if leaves else []
        total = jax.tree.unflatten(treedef, sums)
        new_states = (
            told_change(tx, s, params, part_updates, total) if records_params(tx) else s
            for tx, (part_updates, s) in zip(self.transforms, results, strict=True)
        )
        return total, tuple(new_states)


def _sum_of_composed_updates(g: Any, *parts: Any) -> Any:
    """Return the sum of the parts, dense ones first, in the dtype of `g`."""
    dtype = dtype_of(g)
    total = None
    for u in sorted(parts, key=is_row_sparse):
        if total is None:
            total = u
        elif is_row_sparse(total) or is_row_sparse(u):
            total = total + u
        else:
            wide = promote(total.dtype, u.dtype)
            total = cast(total, wide) + cast(u, wide)
    return total if is_row_sparse(total) else cast(total, dtype)
