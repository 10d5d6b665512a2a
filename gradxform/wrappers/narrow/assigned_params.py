"""What wrappers for parameters of 16 bits or fewer share: where a parameter goes is assigned."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from gradxform import engine
from gradxform.base import Transform, call_update, check_transform, locality_of
from gradxform.errors import name_of
from gradxform.leaves import (
    Path,
    align,
    align_params,
    align_slot,
    dtype_of,
    flatten_updates,
    is_hole,
    path_at,
    require_params,
    with_paths,
)
from gradxform.leaves.row_sparse import RowSparse
from gradxform.leaves.states import check_state
from gradxform.leaves.storage import NarrowForm
from gradxform.numerics import as_rounded, at_least_float32, cast
from gradxform.tree.apply import apply_updates
from gradxform.types import Array, OptState, Params, PyTree, Updates
from gradxform.wrappers.parts import check_movable

__all__ = []


def is_narrow(x: Any) -> bool:
    """Whether an array is real, and has entries of fewer than 32 bits."""
    dtype = dtype_of(x)
    return bool(jnp.issubdtype(dtype, jnp.floating)) and dtype.itemsize < 4


class _Leaf(NamedTuple):
    """What becomes of a parameter."""

    change: Any  # the update
    new: Any  # the parameter, where it is narrow
    slot: Any


class NarrowParams(Transform):
    """Base of wrappers that say where narrow parameters go, which is not a sum in their dtype."""

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

    def _check(self, path: Path, p: Any) -> None:
        """Require a parameter to be of a dtype that the form takes."""

    def kept_from(self, old: Any, slot: str, x: Any, param: Any) -> Any:
        """Return the slot of a parameter in the own form, from that of another one."""
        if slot != self.slot or old.form == self.form or not is_narrow(param):
            return x
        return self.form.kept(old.form.wide(jnp.asarray(param), x), jnp.asarray(param))

    def _slots(self, params: Params) -> PyTree:
        """Return the slots; of a parameter that needs none, one number, as savers refuse none."""
        for path, p in with_paths(params):
            if not is_hole(p):
                self._check(path, p)
        return jax.tree.map(self._slot, params)

    def _slot(self, p: Any) -> Array:
        if is_narrow(p):
            return self.form.first(jnp.asarray(p))
        return jnp.zeros((1,), jnp.float32)

    def _begun(self, params: Params) -> tuple[OptState, PyTree]:
        """Return the inner state, of wide parameters, and the slots."""
        slots = self._slots(params) if self.slot else None
        return self.inner.init(self._wide(params, slots)), slots

    def _wide(self, params: Params, slots: PyTree) -> Params:
        """Return the parameters as the inner transform sees them."""
        ps, treedef = jax.tree.flatten(params)
        kept = [None] * len(ps)
        if slots is not None:
            kept = align(self, params, treedef, slots, f"the state's {self.slot} has").leaves
            self._check_slots(params, kept)
        narrow = [i for i, p in enumerate(ps) if is_narrow(p)]
        columns = [[ps[i] for i in narrow], [kept[i] for i in narrow]]
        for i, p in zip(narrow, engine.map_rows(_Widen(self.form), columns), strict=True):
            ps[i] = p
        return treedef.unflatten(ps)

    def _check_slots(self, params: Params, slots: list[Any]) -> None:
        ps, wanted = map(jax.tree.leaves, (params, jax.eval_shape(self._slots, params)))
        for i, (p, slot, like) in enumerate(zip(ps, slots, wanted, strict=True)):
            if jnp.size(slot) < 2 and not is_narrow(p):  # older states have none for it
                continue
            if (jnp.shape(slot), dtype_of(slot)) != (like.shape, like.dtype):
                raise ValueError(
                    f"{name_of(self)}: the state's {self.slot} of {path_at(params, i)} is "
                    f"{dtype_of(slot)} of shape {jnp.shape(slot)}; a parameter of {dtype_of(p)} "
                    f"and shape {jnp.shape(p)} needs {like.dtype} of shape {like.shape}. Was this "
                    "state made for other parameters?"
                )

    def update(
        self, updates: Updates, state: OptState, params: Params | None = None, **extra: Any
    ) -> tuple[Updates, Any]:
        """Return updates whose sums with the parameters are what is wanted.

        Those of narrow parameters are in float32, so that no sum is rounded twice.
        """
        treedef, leaves, state = self._taken(updates, state, params, extra, True)
        return treedef.unflatten([leaf.change for leaf in leaves]), state

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
        treedef, leaves, state = self._taken(grads, state, params, extra, False)
        ps = align_params(self, grads, treedef, params)
        pairs = zip(ps.leaves, leaves, strict=True)
        return ps.rebuilt(
            [leaf.new if is_narrow(p) else apply_updates(p, leaf.change) for p, leaf in pairs]
        ), state

    def _taken(
        self, updates: Updates, state: Any, params: Any, extra: dict[str, Any], added: bool
    ) -> tuple[Any, list[_Leaf], Any]:
        """Return the structure of the updates, what becomes of each parameter, and the state.

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
        given = [_widened(g) if is_narrow(p) else g for g, p in zip(gs, ps, strict=True)]
        own, inner_state = call_update(
            self.inner, treedef.unflatten(given), state.inner_state, wide, extra
        )
        us = treedef.flatten_up_to(own)
        slot = align_slot(self, updates, treedef, state, self.slot) if self.slot else None
        kept = [None] * len(gs) if slot is None else slot.leaves
        keys, state = self._keys(updates, state)
        done = [_Leaf(*x) for x in zip(us, ps, kept, strict=True)]
        narrow = [i for i, p in enumerate(ps) if is_narrow(p)]
        seen = [_seen(*(column[i] for column in (us, ps, kept))) for i in narrow]
        columns = [*map(list, zip(*seen, strict=True)), [keys[i] for i in narrow]]
        made = engine.map_rows(_Assign(self.form, added), columns) if narrow else []
        for i, leaf in zip(narrow, made, strict=True):
            done[i] = _put(done[i], _Leaf(*leaf))
        if slot is not None:
            state = state._replace(**{self.slot: slot.rebuilt([leaf.slot for leaf in done])})
        return treedef, done, state._replace(inner_state=inner_state)

    def _keys(self, updates: Updates, state: Any) -> tuple[list[Any], Any]:
        """Return a key for each update, and the state after they are used."""
        return [None] * len(flatten_updates(updates)[0]), state


def _widened(g: Any) -> Any:
    """Return a gradient in float32 or wider."""
    if isinstance(g, RowSparse):
        return g.with_values(_widened(g.values))
    return cast(jnp.asarray(g), at_least_float32(dtype_of(g)))


def _seen(u: Any, p: Any, slot: Any) -> tuple[Any, Any, Any]:
    """Return a parameter, its update and its slot; of row-sparse updates, the rows."""
    if not isinstance(u, RowSparse):
        return p, u, slot
    return engine.take_rows(u, p), u.values, None if slot is None else engine.take_rows(u, slot)


def _put(before: _Leaf, rows: _Leaf) -> _Leaf:
    """Return what becomes of a parameter, from what becomes of those of its rows that move.

    Args:
      before: the update, the parameter and its slot.
      rows: what became of what `_seen` returns.
    """
    u, p, slot = before
    if not isinstance(u, RowSparse):
        return rows
    kept = None if slot is None else engine.put_rows(u, slot, rows.slot)
    return _Leaf(u.with_values(rows.change), engine.put_rows(u, p, rows.new), kept)


class _Widen(NamedTuple):
    """What the inner transform sees of a parameter; the key of its compiled call."""

    form: NarrowForm

    def __call__(self, p: Any, slot: Any) -> Array:
        return self.form.wide(jnp.asarray(p), slot)


class _Assign(NamedTuple):
    """Where a parameter goes; the key of its compiled call."""

    form: NarrowForm
    added: bool

    def __call__(self, p: Any, u: Any, slot: Any, key: Any) -> _Leaf:
        p = jnp.asarray(p)
        wide = self.form.wide(p, slot)
        new, slot = self.form.taken(wide, cast(jnp.asarray(u), wide.dtype), slot, key, p.dtype)
        before = cast(p, wide.dtype)
        change = as_rounded(new, wide.dtype) - before
        if self.added:
            slot = self.form.landed(new, cast(before + change, p.dtype), slot)
        return _Leaf(change, new, slot)
