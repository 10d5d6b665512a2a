"""Base of the wrappers that choose how a state keeps its slots."""

import abc
import sys
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from gradxform.base import LOCALITIES, ArrayRule, GradientTransformation, call_update
from gradxform.base.methods import changing_states
from gradxform.engine import reach_of
from gradxform.errors import did_you_mean, name_of, shown
from gradxform.leaves import (
    Path,
    dtype_of,
    flatten_with_names,
    has_rows,
    is_hole,
    like_params,
    masks,
    path_str,
    shape_of,
    with_paths,
)
from gradxform.leaves.states import non_negative_fields, slot_fields
from gradxform.leaves.storage import (
    Blocks,
    Crossed,
    Factored,
    Rounded,
    as_seen,
    fetched,
    is_away,
    is_stored,
    on_host,
    with_parts,
)
from gradxform.transforms.matrices.rule import MatrixRule
from gradxform.types import OptState, Params, PyTree
from gradxform.values import FrozenTree
from gradxform.values.field_kinds import check_mask
from gradxform.wrappers.one_pass import call_update_params, is_one_run
from gradxform.wrappers.parts import OF_FUNCTIONS, StatelessWrapper, all_parts

_PARTS = {frozenset(kind.part_names) for kind in (Blocks, Crossed, Factored, Rounded)}


def _is_parts(x: Any) -> bool:
    return isinstance(x, Mapping) and frozenset(x) in _PARTS


def _is_node(x: Any) -> bool:
    return is_stored(x) or _is_parts(x)


class StateSlot(NamedTuple):
    """An array of a state, for which a wrapper chooses the form."""

    name: str  # of the field of the state
    path: Path  # of the parameter
    is_signed: bool  # whether it may have negative entries
    param: tuple[int, ...] | None  # the shape of the parameter; None if there is none at the path


class StorageWrapper(StatelessWrapper):
    """Base of wrappers that change in which form `init` returns the slots."""

    reaches: ClassVar[tuple[str, ...]] = LOCALITIES  # of the rules whose slots qualify
    rules: ClassVar[tuple[type, ...]] = (ArrayRule, MatrixRule)  # that load what they get
    where: ClassVar[str] = "in another form"
    chooser: ClassVar[str] = "which"  # the field that chooses slots
    rounds: ClassVar[bool] = True  # whether an array is another one in its new form
    only_stores = True

    def __post_init__(self) -> None:
        super().__post_init__()
        for part in all_parts(self.inner):
            if not isinstance(part, GradientTransformation) or isinstance(part, OF_FUNCTIONS):
                raise TypeError(
                    f"{name_of(self)}: inner holds {shown(part)}, which keeps its state itself. "
                    "Use the transform of gradxform in its place, or chain it outside of "
                    f"{name_of(self)}."
                )
        if self._choice is not None and self.names() is None:
            check_mask(self, self._choice, self.chooser)

    @property
    def _choice(self) -> Any:
        return getattr(self, self.chooser)

    def names(self) -> tuple[str, ...] | None:
        """Return the slots that are chosen by name; None if they are not."""
        names = self._choice
        if isinstance(names, str):
            return (names,)
        names = names.leaves if isinstance(names, FrozenTree) else names
        is_names = isinstance(names, tuple | list) and all(isinstance(x, str) for x in names)
        return tuple(names) if names and is_names else None

    def init(self, params):
        """Return the inner state, with its slots in another form."""
        is_chosen = self._slot_filter(params)
        shapes = {path: shape_of(p) for path, p in with_paths(params) if not is_hole(p)}
        slot_names: set[str] = set()

        def with_stored_slots(owner: Any, state: Any) -> Any:
            kind = type(state)
            slots = slot_fields(kind) if hasattr(kind, "_fields") else ()
            slot_names.update(slots)
            new = {}
            for name in slots:
                signed = name not in non_negative_fields(kind)

                def slot_at(path: Path, name: str = name, signed: bool = signed) -> StateSlot:
                    return StateSlot(name, path, signed, shapes.get(path))

                new[name] = self._stored_slot(owner, is_chosen, slot_at, getattr(state, name))
            return state._replace(**new) if new else state

        # Parts make their states at any depth of `inner`; each returns its own in the new form.
        with changing_states(with_stored_slots):
            state = self.inner.init(params)
        for name in self.names() or ():
            if name not in slot_names:
                raise ValueError(
                    f"{name_of(self)}: {self.chooser} names {name!r}, which is not a slot of "
                    f"{name_of(self.inner)}; there are {', '.join(sorted(slot_names)) or 'none'}."
                    f"{did_you_mean(name, slot_names)}"
                )
        return state

    def _slot_filter(self, params: Params) -> Callable[[StateSlot], bool]:
        """Return a function of a slot: whether it is chosen."""
        names = self.names()
        if names is not None:
            return lambda slot: slot.name in names
        if self._choice is None:
            return lambda slot: True
        entries = masks.entries_of(self, self._choice, params)
        chosen = {**entries.of_branches, **entries.of_leaves}

        def by_mask(slot: StateSlot) -> bool:
            # An entry of the mask may stand for a whole branch: the nearest above the slot holds.
            above = [slot.path[:n] for n in range(len(slot.path), -1, -1)]
            return next((chosen[path] for path in above if path in chosen), False)

        return by_mask

    def _stored_slot(
        self,
        owner: Any,
        is_chosen: Callable[[StateSlot], bool],
        slot_at: Callable[[Path], StateSlot],
        tree: PyTree,
    ) -> PyTree:
        """Return a slot of a state in another form."""
        named, treedef = flatten_with_names(tree, is_stored)
        out = []
        for path, x in named:
            slot = slot_at(path)
            if is_chosen(slot) and self.qualifies(x, slot) and not self._is_copy(owner, slot):
                self._check_owner(owner, slot)
                new = self.stored(fetched(x), slot)
                x = on_host(new) if is_away(x) else new  # back to where it was
            out.append(x)
        return jax.tree.unflatten(treedef, out)

    def _is_copy(self, owner: Any, slot: StateSlot) -> bool:
        """Whether a slot is a copy of the parameters, which rounding would move."""
        copies = *getattr(owner, "follows", ()), *getattr(owner, "copies", ())
        if not self.rounds or slot.name not in copies:
            return False
        if slot.name in (self.names() or ()):
            raise ValueError(
                f"{name_of(self)}: {self.chooser} names {slot.name!r}, a copy of the parameters in "
                f"{name_of(owner)}; rounded, it would move them. Leave it out."
            )
        return True

    def qualifies(self, x: Any, slot: StateSlot) -> bool:
        """Whether an array of a state may be kept in another form."""
        return not is_stored(x) and jnp.issubdtype(dtype_of(x), jnp.floating)

    def _check_owner(self, owner: Any, slot: StateSlot) -> None:
        """Require a rule that looks no further than `reaches`."""
        which = f"the slot {slot.name} of {path_str(slot.path)}"
        remedy = "Leave it out: name the slots to store in which=(...)."
        if not isinstance(owner, self.rules):
            raise TypeError(
                f"{name_of(self)}: {name_of(owner)} computes with {which} itself, so it cannot be "
                f"stored {self.where}. {remedy}"
            )
        reach = reach_of(owner) if isinstance(owner, ArrayRule) else owner.locality
        if reach not in self.reaches:
            extent = "the whole tree" if reach == "tree" else "whole arrays"
            raise TypeError(
                f"{name_of(self)}: {name_of(owner)} looks at {extent}, so {which} cannot be "
                f"stored {self.where}. {remedy}"
            )

    @abc.abstractmethod
    def stored(self, x: Any, slot: StateSlot) -> Any:
        """Return an array in the form in which the state keeps it."""

    def update(self, updates, state, params=None, **extra):
        """Run the inner transform, which loads the slots that it needs and stores them again."""
        state = self.with_stored_arrays(state, updates if params is None else params)
        return call_update(self.inner, updates, state, params, extra)

    @property
    def is_one_run(self) -> bool:
        """Whether the inner transform is."""
        return is_one_run(self.inner)

    def update_params(self, updates, state, params, **extra):
        """Return the parameters after an update by the inner transform."""
        state = self.with_stored_arrays(state, params)
        return call_update_params(self.inner, updates, state, params, extra)

    def with_stored_arrays(self, state: OptState, like: PyTree) -> OptState:
        """Return a state with stored arrays where `nnx.Optimizer` has left mappings of their parts.

        It writes the state of every step back array by array, and only keeps nodes of its own.
        `like` has the parameters' shapes: those, or the updates.
        """
        if "flax.nnx" not in sys.modules:
            return state  # nothing has taken stored arrays apart
        named, treedef = flatten_with_names(state, _is_node)
        if not any(_is_parts(x) for _, x in named):
            return state
        params = jax.tree.map(as_seen, like, is_leaf=is_stored)
        params = like_params(params) if has_rows(params) else params
        forms = dict(with_paths(jax.eval_shape(self.init, params), is_stored))
        return treedef.unflatten(
            with_parts(forms[path], x) if _is_parts(x) and is_stored(forms.get(path)) else x
            for path, x in named
        )
