"""Base of wrappers for parameters of 16 bits or fewer, which assign parameters, and do not add."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from gradxform import engine
from gradxform._jax.versions import platform_of
from gradxform.base import Transform, call_update, check_transform, locality_of
from gradxform.errors import name_of
from gradxform.leaves import (
    Path,
    align,
    align_params,
    align_slot,
    dtype_of,
    flatten_updates,
    has_rows,
    is_hole,
    path_at,
    require_params,
    with_paths,
)
from gradxform.leaves.row_sparse import RowSparse
from gradxform.leaves.states import check_state
from gradxform.leaves.storage import NarrowForm, NarrowParam, is_stored
from gradxform.numerics import as_rounded, at_least_float32, cast
from gradxform.tree.apply import apply_updates
from gradxform.types import Array, OptState, Params, PyTree, Updates
from gradxform.wrappers.one_pass import call_update_params, is_one_run
from gradxform.wrappers.parts import check_movable

__all__ = []


def is_narrow(x: Any) -> bool:
    """Whether an array is real, and has entries of fewer than 32 bits."""
    dtype = dtype_of(x)
    return bool(jnp.issubdtype(dtype, jnp.floating)) and dtype.itemsize < 4


class _Outcome(NamedTuple):
    """The outcome of a step for one parameter."""

    change: Any  # the update
    new: Any  # the parameter, where it is narrow
    slot: Any


class NarrowParams(Transform):
    """Base of wrappers that say where narrow parameters go, which is not a sum in their dtype.

    Of its own kind: it keeps the digits of a step that narrow parameters lose.
    """

    inner: Any

    State: Any = None
    slot: str = ""  # the field of the state with an array for each parameter, if there is one
    form: NarrowForm
    holds = (("inner", "inner_state"),)
    sets_params = True
    exact_updates = True
    handles_rows = True

    def __post_init__(self) -> None:
        check_transform(self, self.inner, "inner")
        check_movable(self, self.inner)

    @property
    def locality(self) -> Any:
        """How far the inner transform looks."""
        return locality_of(self.inner)

    def _check_dtype(self, path: Path, p: Any) -> None:
        """Require a parameter to be of a dtype that the form takes."""

    def kept_from(self, old: Any, slot: str, x: Any, param: Any) -> Any:
        """Return the slot of a parameter in the form of this wrapper, from that of another."""
        if slot != self.slot or old.form == self.form or not is_narrow(param):
            return x
        return self.form.kept(old.form.wide(jnp.asarray(param), x), jnp.asarray(param))

    def _slots(self, params: Params) -> PyTree:
        """Return the slots; a single 0 where none is needed, as savers refuse empty arrays."""
        for path, p in with_paths(params):
            if not is_hole(p):
                self._check_dtype(path, p)
        return jax.tree.map(self._slot, params)

    def _slot(self, p: Any) -> Array:
        if is_narrow(p):
            return self.form.first(jnp.asarray(p))
        return jnp.zeros((1,), jnp.float32)

    def _first_state(self, params: Params) -> tuple[OptState, PyTree]:
        """Return the inner state, of wide parameters, and the slots."""
        slots = self._slots(params) if self.slot else None
        return self.inner.init(self._wide(params, slots)), slots

    def _wide(self, params: Params, slots: PyTree) -> Params:
        """Return the parameters as the inner transform sees them."""
        ps, treedef = jax.tree.flatten(params)
        leaves = [None] * len(ps)
        if slots is not None:
            leaves = align(self, params, treedef, slots, f"the state's {self.slot} has").leaves
            self._check_slots(params, leaves)
        narrow = [i for i, p in enumerate(ps) if is_narrow(p)]
        columns = [[ps[i] for i in narrow], [leaves[i] for i in narrow]]
        for i, p in zip(narrow, engine.map_rows(_Widen(self.form), columns), strict=True):
            ps[i] = p
        return treedef.unflatten(ps)

    def _check_slots(self, params: Params, slots: list[Any]) -> None:
        ps, shapes = map(jax.tree.leaves, (params, jax.eval_shape(self._slots, params)))
        for i, (p, slot, like) in enumerate(zip(ps, slots, shapes, strict=True)):
            if (jnp.shape(slot), dtype_of(slot)) != (like.shape, like.dtype):
                raise ValueError(
                    f"{name_of(self)}: the state's {self.slot} of {path_at(params, i)} is "
                    f"{dtype_of(slot)} of shape {jnp.shape(slot)}; a parameter of {dtype_of(p)} "
                    f"and shape {jnp.shape(p)} needs {like.dtype} of shape {like.shape}. Was this "
                    "state made for other parameters?"
                )

    def update(self, updates, state, params=None, **extra):
        """Return updates whose sums with the parameters are the new parameters.

        Those of narrow parameters are in float32, so that no sum is rounded twice.
        """
        treedef, outcomes, state = self._outcomes(updates, state, params, extra, True)
        return treedef.unflatten([outcome.change for outcome in outcomes]), state

    def step(
        self, grads: Updates, state: OptState, params: Params, **extra: Any
    ) -> tuple[Params, Any]:
        """Return the new parameters, narrow ones assigned and not added, and the state.

        Args:
          grads: the gradients.
          state: the state.
          params: the parameters.
          **extra: extra arguments of the inner transform.
        """
        self.check_extra(extra)
        return self.update_params(grads, state, params, **extra)

    def update_params(self, updates, state, params, **extra):
        """Return the new parameters, narrow ones assigned and not added, and the state."""
        # CPUs take three to five times as long for tiles of a leaf as for whole ones; nobody has
        # measured GPUs.
        by_tiles = any(platform_of(g) == "tpu" for g in jax.tree.leaves(updates)[:1])
        if by_tiles and is_one_run(self.inner) and not has_rows(updates):
            return self._update_stored_params(updates, state, params, extra)
        treedef, outcomes, state = self._outcomes(updates, state, params, extra, False)
        ps = align_params(self, updates, treedef, params)
        pairs = zip(ps.leaves, outcomes, strict=True)
        return ps.rebuilt(
            [x.new if is_narrow(p) else apply_updates(p, x.change) for p, x in pairs]
        ), state

    def _update_stored_params(
        self, updates: Updates, state: Any, params: Params, extra: dict[str, Any]
    ) -> tuple[Params, Any]:
        """Return the new parameters and the state, by rules that load and store both in tiles."""
        require_params(self, params)
        check_state(self, state, self.State)
        ps, treedef = jax.tree.flatten(params)
        slots = align_slot(self, params, treedef, state, self.slot) if self.slot else None
        old = [None] * len(ps) if slots is None else slots.leaves
        if slots is not None:
            self._check_slots(params, old)
        keys, state = self._rounding_keys(params, state)
        kept = treedef.unflatten(
            NarrowParam.of(p, x, key, self.form) if is_narrow(p) else p
            for p, x, key in zip(ps, old, keys, strict=True)
        )
        new, inner_state = call_update_params(self.inner, updates, state.inner_state, kept, extra)
        news = jax.tree.leaves(new, is_leaf=is_stored)
        if slots is not None:
            pairs = zip(news, old, strict=True)
            new_slots = slots.rebuilt([x.slot if is_stored(x) else kept for x, kept in pairs])
            state = state._replace(**{self.slot: new_slots})
        params = treedef.unflatten(x.param if is_stored(x) else x for x in news)
        return params, state._replace(inner_state=inner_state)

    def _outcomes(
        self, updates: Updates, state: Any, params: Any, extra: dict[str, Any], added: bool
    ) -> tuple[Any, list[_Outcome], Any]:
        """Return the structure of the updates, the outcome for each parameter, and the state.

        Args:
          updates: the gradients.
          state: the state.
          params: the parameters.
          extra: extra arguments of the inner transform.
          added: whether the updates will be added, which may lead elsewhere.
        """
        require_params(self, params)
        check_state(self, state, self.State)
        updates = engine.merged_rows(updates)
        gs, treedef = flatten_updates(updates)
        ps = align_params(self, updates, treedef, params).leaves
        wide = self._wide(params, getattr(state, self.slot) if self.slot else None)
        inner_grads = [_widened(g) if is_narrow(p) else g for g, p in zip(gs, ps, strict=True)]
        inner_updates, inner_state = call_update(
            self.inner, treedef.unflatten(inner_grads), state.inner_state, wide, extra
        )
        us = treedef.flatten_up_to(inner_updates)
        slot = align_slot(self, updates, treedef, state, self.slot) if self.slot else None
        slots = [None] * len(gs) if slot is None else slot.leaves
        keys, state = self._rounding_keys(updates, state)
        # Wide parameters keep the inner update; those of narrow ones are replaced below.
        outcomes = [_Outcome(*x) for x in zip(us, ps, slots, strict=True)]
        narrow = [i for i, p in enumerate(ps) if is_narrow(p)]
        rows = [_moving_rows(*(column[i] for column in (us, ps, slots))) for i in narrow]
        columns = [*map(list, zip(*rows, strict=True)), [keys[i] for i in narrow]]
        results = engine.map_rows(_Assign(self.form, added), columns) if narrow else []
        for i, result in zip(narrow, results, strict=True):
            outcomes[i] = _outcome_from_rows(outcomes[i], _Outcome(*result))
        if slot is not None:
            state = state._replace(
                **{self.slot: slot.rebuilt([outcome.slot for outcome in outcomes])}
            )
        return treedef, outcomes, state._replace(inner_state=inner_state)

    def _rounding_keys(self, updates: Updates, state: Any) -> tuple[list[Any], Any]:
        """Return a key for each update, and the state after they are used."""
        return [None] * len(flatten_updates(updates)[0]), state


def _widened(g: Any) -> Any:
    """Return a gradient in float32 or wider."""
    if isinstance(g, RowSparse):
        return g.with_values(_widened(g.values))
    return cast(jnp.asarray(g), at_least_float32(dtype_of(g)))


def _moving_rows(u: Any, p: Any, slot: Any) -> tuple[Any, Any, Any]:
    """Return a parameter, its update and its slot; of row-sparse updates, the rows."""
    if not isinstance(u, RowSparse):
        return p, u, slot
    return engine.take_rows(u, p), u.values, None if slot is None else engine.take_rows(u, slot)


def _outcome_from_rows(before: _Outcome, rows: _Outcome) -> _Outcome:
    """Return the outcome for a parameter, from that for the rows of it that move.

    Args:
      before: the update, the parameter and its slot.
      rows: the outcome for what `_moving_rows` returns.
    """
    u, p, slot = before
    if not isinstance(u, RowSparse):
        return rows
    new_slot = None if slot is None else engine.put_rows(u, slot, rows.slot)
    return _Outcome(u.with_values(rows.change), engine.put_rows(u, p, rows.new), new_slot)


class _Widen(NamedTuple):
    """A parameter as the inner transform sees it; the key of the compiled call."""

    form: NarrowForm

    def __call__(self, p: Any, slot: Any) -> Array:
        return self.form.wide(jnp.asarray(p), slot)


class _Assign(NamedTuple):
    """The step of a parameter; the key of the compiled call."""

    form: NarrowForm
    added: bool

    def __call__(self, p: Any, u: Any, slot: Any, key: Any) -> _Outcome:
        p = jnp.asarray(p)
        wide = self.form.wide(p, slot)
        new, slot = self.form.taken(wide, cast(jnp.asarray(u), wide.dtype), slot, key, p.dtype)
        before = cast(p, wide.dtype)
        change = as_rounded(new, wide.dtype) - before
        # The sum may round to a neighbor of the new parameter; the slot must fit where it lands.
        if self.added:
            slot = self.form.landed(new, cast(before + change, p.dtype), slot)
        return _Outcome(change, new, slot)
