"""The state of a run for another optimizer."""

import operator
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gradxform._jax.versions import is_tracer, with_whole_dims
from gradxform.base import GradientTransformation, check_transform
from gradxform.errors import must_be, require_int32
from gradxform.leaves import Path, dtype_of, entry_name, is_hole, with_paths
from gradxform.leaves.storage import as_seen, fetched, is_stored, on_host
from gradxform.numerics import number_rank
from gradxform.run_states.migration.grown import (
    Growth,
    growth_of,
    index_of_old,
    with_old_entries,
)
from gradxform.run_states.migration.layout import (
    StateLayout,
    StatePart,
    dotted_path,
    init_with_owners,
    layout_of,
)
from gradxform.run_states.migration.match import AtStep, Begun, Source, Taken
from gradxform.run_states.migration.report import (
    BEGUN,
    COMPUTED,
    DROPPED,
    STEP,
    TAKEN,
    MigrationReport,
    Rows,
)
from gradxform.run_states.migration.sources import find_sources, run_step
from gradxform.run_states.optax import fitted_state
from gradxform.run_states.slot_axes import SlotAxes, slot_axes
from gradxform.schedules.numbers_of_now import of_this_moment
from gradxform.types import OptState, Params, SupportsTransform


def migrate_state(
    state: OptState,
    tx: SupportsTransform,
    new_tx: SupportsTransform,
    params: Params,
    *,
    match: Mapping[str, str | None] | None = None,
    step: Any = None,
    grown: bool | Mapping[str, Any] | None = None,
) -> tuple[OptState, MigrationReport]:
    """Return the state with which a run goes on under another optimizer, and a report about it.

        new_tx = chain(clip_by_global_norm(1.0), nadamw(cosine_decay_schedule(1e-3, 10_000)))
        state, report = migrate_state(state, adamw(1e-3), new_tx, params)
        print(report)

    A link may be added or removed, a number may become a schedule, a wrapper may be put around the
    optimizer or taken off, one rule may follow another, and parameters may move between groups.

    What goes on from what:

    - Parts of the same rule go on from each other, in whatever wrappers, chains and groups they
      are: every array in the field of the same name, for the same parameter. Where a parameter has
      several such parts, they are paired by their labels (names in `named_chain`, groups in
      `partition`), and otherwise in order.
    - A part of another rule goes on if the old one has all of its averages, such as Adam's of g and
      of |g|^2 in NAdam. The rules say what they average (`averages_of`). Else it begins anew, with
      a count of 0: names alone do not make two slots the same.
    - A count that a schedule reads, and that is new, begins at the step of the run: the outermost
      count of the old state, or `step`.
    - A hyperparameter in the state stays, unless `new_tx` says another number than `tx`.
    - Everything else begins as `new_tx.init(params)` returns it. So copies of the parameters, such
      as the slow weights of `lookahead`, begin at `params`.

    Arrays keep their sharding, and are taken over without a copy, unless two places take the same
    one. It also runs under `jax.jit`, for each replica under `Replicas.wrap`, and on states that
    were restored without a target (nested dicts and lists).

    Args:
      state: the state of `tx`: as it is, from a checkpoint, or of Optax for the same call.
      tx: the transform of the state.
      new_tx: the transform that continues.
      params: the parameters, for which both states are.
      match: for paths of the new state (a part, a slot or an array, as in the report: "0.mu") the
        path in the old state to go on from, or None to begin anew. Goes before all of the above.
      step: the number of steps that the run has taken, for new counts. Defaults to the outermost
        count of the old state.
      grown: how parameters have become larger since, such as a layer with new classes or a table
        with new tokens. True if old entries come first along each dimension. Or a dict by path with
        the dimension in which a parameter has grown, or several, {"head.kernel": 1}; or for each
        dimension a slice or indices of where old entries are now, {"head.kernel": {1: [0, 1, 3]}}.
        In the slots, old entries are in the same places, and new ones begin as `init` returns them.
        By default no parameter has grown.

    Returns:
      The new state, and a `MigrationReport` of what became of every slot.

    Raises:
      TypeError: if the state is not that of `tx`, or an array would become one of another kind.
      ValueError: if the state is not that of `tx` for these parameters, if a shape does not fit, if
        it is ambiguous what goes on from what, if `match` names nothing, if a count must begin at
        the step of the run and the old state does not count, if `grown` does not say what the old
        state shows, or if a slot does not have an entry for each of those of a grown parameter.
    """
    check_transform("migrate_state", tx, "tx")
    check_transform("migrate_state", new_tx, "new_tx")
    tx, new_tx = of_this_moment(tx), of_this_moment(new_tx)
    growth = None if grown is None or grown is False else growth_of(tx, state, params, grown)
    old_params = params if growth is None else growth.old_params
    olds, news = layout_of(tx, old_params), layout_of(new_tx, params)
    remedy = _NOT_BY_DIMENSION if grown is True else _NOT_GROWN
    fitted = fitted_state("migrate_state", tx, state, old_params, _ON_REPLICAS + remedy)
    values = _arrays_of_migrated_state(fitted)
    sources = find_sources(olds, news, values, match)
    new = _MigratedArrays(
        olds, news, values, sources, _checked_step(step), dict(with_paths(params))
    )
    if growth is not None:
        new.grow(growth, slot_axes(tx, old_params, olds), slot_axes(new_tx, params, news))
    # A first state costs memory and time: it is made only if something in it is needed.
    fresh, owners = init_with_owners(new_tx, params) if new.begins else (None, {})
    leaves = new.leaves(fresh)
    migrated = jax.tree.unflatten(news.treedef, leaves)
    migrated = _resumed(migrated, news.parts, owners, sources)
    pairs = zip(leaves, _arrays_of_migrated_state(migrated), strict=True)
    return migrated, new.report({i for i, (a, b) in enumerate(pairs) if a is not b})


def _arrays_of_migrated_state(state: Any) -> list[Any]:
    """Return the arrays of a state; one that is stored in another form is one."""
    return jax.tree.leaves(state, is_leaf=is_stored)


_ON_REPLICAS = "A state with an axis of replicas is migrated for each of them, in Replicas.wrap. "
_NOT_GROWN = "If parameters have grown, pass grown=True, or where their old entries are."
_NOT_BY_DIMENSION = (
    "Slots that do not have the dimensions of their parameters, such as the pieces of zero1, "
    "cannot grow."
)


def _checked_step(step: Any) -> Any:
    """Return the step as an array, or None."""
    if step is None:
        return None
    kinds = int | np.integer | np.ndarray | jax.Array
    is_number = isinstance(step, kinds) and not isinstance(step, bool)
    is_whole = is_number and jnp.shape(step) == () and jnp.issubdtype(dtype_of(step), jnp.integer)
    if not is_whole or (not is_tracer(step) and operator.index(step) < 0):
        raise ValueError(must_be("migrate_state", "step", "a whole number, at least 0", step))
    require_int32("migrate_state", "step", step)
    return jnp.asarray(step, jnp.int32)


class _MigratedArrays:
    """The arrays of the new state, and what is to be said about them."""

    def __init__(
        self,
        olds: StateLayout,
        news: StateLayout,
        values: Sequence[Any],
        sources: Sequence[Source],
        step: Any,
        params: Mapping[Path, Any],
    ) -> None:
        self.olds, self.news, self.values = olds, news, values
        self.step, self.params = step, params
        self.old_parts, self.new_parts = olds.owners(), news.owners()
        self.indices: list[int | None] = [self._index(i, s) for i, s in enumerate(sources)]
        self.sources = sources
        self.into: dict[int, Any] = {}  # for arrays that have grown, where old entries are in them

    def grow(self, growth: Growth, old_axes: list[SlotAxes], new_axes: list[SlotAxes]) -> None:
        """Note where old entries are in the arrays that grow with their parameters.

        Raises:
          ValueError: if one does not have an entry for each of those of a parameter.
        """
        params = [p for p in self.params.values() if not is_hole(p)]
        for i, index in enumerate(self.indices):
            owner = new_axes[i].owner
            if index is None or owner is None or not growth.places[owner]:
                continue
            places, shape = growth.places[owner], self.news.arrays[i].shape
            ndim = jnp.ndim(params[owner])
            into = index_of_old(new_axes[i], old_axes[index], shape, ndim, places)
            if isinstance(into, str):
                at, part = self.news.paths[i], self.new_parts[i][0]
                together = {
                    dotted_path(self.news.paths[k]): None
                    for k in sorted(part.leaves.values())
                    if new_axes[k].owner == owner
                }
                raise ValueError(
                    f"migrate_state: {dotted_path(at)} cannot grow with its parameter, from "
                    f"{self.olds.arrays[index].shape} to {shape}: {into}. To begin all that "
                    f"{part.name} keeps for it anew, pass match={together}."
                )
            if any(d in places for d in new_axes[i].dims or ()):
                self.into[i] = into

    def _index(self, i: int, source: Source) -> int | None:
        """Return the array of the old state that a source stands for."""
        if isinstance(source, AtStep) and self.step is None:
            return run_step(self.olds, self.values, source.scope, dotted_path(self.news.paths[i]))
        return source.index if isinstance(source, Taken) else None

    @property
    def begins(self) -> bool:
        """Whether any array begins as `init` returns it, or takes the form that it has there."""
        return (
            bool(self.into)
            or any(isinstance(source, Begun) for source in self.sources)
            or any(self._changes_form(i, index) for i, index in enumerate(self.indices))
        )

    def _changes_form(self, i: int, index: int | None) -> bool:
        """Whether an array is stored in another form than that of the old state."""
        like = self.news.arrays[i]
        if index is None or not is_stored(like):
            return False
        return jax.tree.structure(like) != jax.tree.structure(self.values[index])

    def leaves(self, fresh: OptState) -> list[Any]:
        """Return the arrays; `fresh` is the state that `init` returns, where one begins."""
        begun = _arrays_of_migrated_state(fresh)
        buffers: set[int] = set()
        out = []
        for i, (source, index) in enumerate(zip(self.sources, self.indices, strict=True)):
            if isinstance(source, Begun):
                out.append(begun[i])
                continue
            x = self.step if index is None else self._fitting(i, index)
            if i in self.into:
                x = with_old_entries(as_seen(begun[i]), x, self.into[i])
                x = begun[i].store(x) if is_stored(begun[i]) else x
            elif self._changes_form(i, index):
                x = begun[i].store(x)
            if self.news.away[i]:
                x = on_host(fetched(x))
            # No two places share a buffer, or a jitted step could not donate the state.
            ids = set(map(id, jax.tree.leaves(x)))
            out.append(jax.tree.map(jnp.copy, x) if ids & buffers else x)
            buffers |= ids
        return out

    def _fitting(self, i: int, index: int) -> Any:
        """Return an array of the old state, in the dtype of its new place."""
        like, x = self.news.arrays[i], self.values[index]
        at, was = dotted_path(self.news.paths[i]), dotted_path(self.olds.paths[index])
        remedy = f"To begin it anew, pass match={{{at!r}: None}}."
        if jnp.shape(x) != like.shape and i not in self.into:
            raise ValueError(
                f"migrate_state: {at} has shape {like.shape}, but {was} of the old state has "
                f"{jnp.shape(x)}. {remedy}"
            )
        x = x if self.news.away[i] and self.olds.away[index] else fetched(x)
        if is_stored(x):
            if jax.tree.structure(x) == jax.tree.structure(like) and i not in self.into:
                return x
            x = fetched(x).load()
        x = self._kept(i, index, x)
        dtype = dtype_of(x)
        if is_stored(like):
            x = fetched(x)
        if dtype == like.dtype:
            return jnp.asarray(x, dtype) if getattr(x, "weak_type", False) else x
        is_lossy = number_rank(dtype) > number_rank(like.dtype)
        if not number_rank(dtype) or is_lossy:
            raise TypeError(
                f"migrate_state: {at} has dtype {like.dtype}, but {was} of the old state has "
                f"{dtype}. {remedy}"
            )
        return x.astype(like.dtype)

    def _kept(self, i: int, index: int, x: Any) -> Any:
        """Return an array of the old state as the rule of the new one keeps it."""
        (new, path), (old, was) = self.new_parts[i], self.old_parts[index]
        param, tx = self.params.get(path[1:]), new.owner
        is_same = isinstance(tx, GradientTransformation) and type(tx) is type(old.owner)
        if not is_same or param is None or not path or was[:1] != path[:1]:
            return x
        if i in self.into:
            if type(tx).kept_from is GradientTransformation.kept_from:
                return x
            param = with_whole_dims(jnp.asarray(param))[self.into[i]]
        return tx.kept_from(old.owner, path[0], x, param)

    def report(self, computed: set[int]) -> MigrationReport:
        """Return what became of every slot; `computed` are the arrays that a rule computed."""
        rows, origins = Rows(), self.old_parts
        for i, (part, path) in enumerate(self.new_parts):
            index, like = self.indices[i], self.news.arrays[i]
            slot, below = (*part.path, *path[:1]), path[1:]
            if index is None:
                fate = STEP if isinstance(self.sources[i], AtStep) else BEGUN
                fate = COMPUTED if i in computed else fate
                rows.add(slot, below, fate, like)
                continue
            fate = STEP if isinstance(self.sources[i], AtStep) else TAKEN
            old, old_path = origins[index]
            source = (*old.path, *old_path[:1])
            if old_path[1:] != below:  # of another parameter, as the user said
                slot, source, below = self.news.paths[i], self.olds.paths[index], ()
            rows.add(slot, below, fate, like, source, self.olds.arrays[index])
        used = set(self.indices)
        for index, (part, path) in enumerate(origins):
            if index not in used:
                slot = (*part.path, *path[:1])
                rows.add(slot, path[1:], DROPPED, self.olds.arrays[index])
        return rows.report()


def _resumed(
    state: OptState, parts: Sequence[StatePart], owners: dict[Path, Any], sources: Sequence[Source]
) -> OptState:
    """Return the state in which every rule has made what follows from what was carried over."""
    for part in parts:
        begun = {p[0] for p, i in part.leaves.items() if p and isinstance(sources[i], Begun)}
        if begun and any(not isinstance(sources[i], Begun) for i in part.leaves.values()):
            owner = owners.get(part.path)
            if isinstance(owner, GradientTransformation):
                state = _resumed_migrated_part(state, part.path, owner, frozenset(begun))
    return state


def _resumed_migrated_part(node: Any, path: Path, owner: Any, begun: frozenset[str]) -> Any:
    """Return a state in which the owner of a part has resumed it."""
    if not path:
        return owner.resumed(node, begun)
    flat, treedef = jax.tree_util.tree_flatten_with_path(node, is_leaf=lambda x: x is not node)
    children = [
        _resumed_migrated_part(child, path[1:], owner, begun)
        if entry_name(key[-1]) == path[0]
        else child
        for key, child in flat
    ]
    return jax.tree.unflatten(treedef, children)
