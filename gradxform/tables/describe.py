"""A table of the parts of a transform, with the bytes that each part's state takes."""

import collections
import dataclasses
import functools
import html
from collections.abc import Callable, Iterator
from typing import Any, cast

import jax

from gradxform import engine
from gradxform._names.deferred import signature_of
from gradxform.base import GradientTransformation, check_transform
from gradxform.base.methods import noted_init
from gradxform.errors import name_of
from gradxform.leaves import flatten_with_names, names_of, with_paths
from gradxform.leaves.slot_dims import owner_of
from gradxform.schedules import Schedule
from gradxform.tables.group_table import GroupRow, group_rows, group_table
from gradxform.tables.part_table import Row, SlotRow, part_table
from gradxform.tables.placed_bytes import placed_bytes
from gradxform.tables.text_table import Table, size
from gradxform.types import OptState, Params, PyTree
from gradxform.values import FrozenTree, Value, fields_of, key_of, thawed
from gradxform.values.content import with_parts
from gradxform.wrappers.hyperparams.inject import injected
from gradxform.wrappers.hyperparams.schedule_states import is_stateful
from gradxform.wrappers.param_groups.groups import param_groups
from gradxform.wrappers.param_groups.param_group import param_group
from gradxform.wrappers.parts import inner_parts
from gradxform.wrappers.stacked import stacked


@dataclasses.dataclass(frozen=True, repr=False)
class Description:
    """The result of `describe`: prints as a table, and has the same as data.

    Args:
      rows: the parts in order, each before the parts inside it.
      param_leaves: the number of parameters. Like the next two, None without parameters.
      param_bytes: the bytes that the parameters take.
      total_bytes: the bytes that the whole state takes.
      groups: for every `param_groups` its groups, each with its parameters; empty without
        parameters.
      device_bytes: the bytes of the state that each device holds, by the kind of memory; None where
        the shardings are not known. Like the next one.
      param_device_bytes: the bytes of the parameters that each device holds.
      notes: what parts cannot do with these parameters, a sentence each.
    """

    rows: tuple[Row, ...]
    param_leaves: int | None = None
    param_bytes: int | None = None
    total_bytes: int | None = None
    groups: tuple[tuple[GroupRow, ...], ...] = ()
    device_bytes: dict[str, int] | None = None
    param_device_bytes: int | None = None
    notes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return str(self)

    def __str__(self) -> str:
        tables = "\n\n".join(table.as_text() for table in self.tables())
        return "\n".join(x for x in (tables, self.total(), *self.notes) if x)

    def _repr_html_(self) -> str:
        """Return the tables for a notebook."""
        tables = "".join(table.as_html() for table in self.tables())
        below = "".join(f"<p>{html.escape(x)}</p>" for x in (self.total(), *self.notes))
        return f"<div>{tables}{below}</div>"

    def tables(self) -> list[Table]:
        """Return a table for every `param_groups`, and that of the parts."""
        sized, placed = self.total_bytes is not None, self.device_bytes is not None
        parts = part_table(self.rows, sized, self.param_leaves, placed)
        return [*map(group_table, self.groups), parts]

    def total(self) -> str:
        """Return the size of the state beside that of the parameters; "" without parameters."""
        if self.total_bytes is None or not self.param_bytes:
            return ""
        noun = "leaf" if self.param_leaves == 1 else "leaves"
        whole = (
            f"state {size(self.total_bytes)} / parameters {size(self.param_bytes)} in "
            f"{self.param_leaves} {noun} = {self.total_bytes / self.param_bytes:.2f}"
        )
        if self.device_bytes is None or self.param_device_bytes is None:
            return whole
        held = " + ".join(f"{size(n)} in {kind}" for kind, n in self.device_bytes.items())
        return f"{whole}\nper device: state {held} / parameters {size(self.param_device_bytes)}"


def describe(tx: Any, params: Params | None = None, param_shardings: PyTree = None) -> Description:
    """Return the parts of a transform in order, with hyperparameters and the size of their state.

    `print(describe(tx, params))` shows a table. The state is only traced, without computing or
    allocating anything, and the parameters may be `jax.ShapeDtypeStruct`s. Where a library asks for
    an instance of Optax's class, give it `as_optax(tx)`.

    Args:
      tx: a transform. An object of another library is one row, with the name of the function that
        returned it.
      params: the parameters, which decide the sizes. Without them, only the parts are listed.
      param_shardings: for every parameter a `NamedSharding`, or one for all. The table then shows
        what each device holds of a state that lies as `distributed.state_sharding` says. Defaults
        to the shardings that the parameters have.

    Raises:
      TypeError: if `tx` is not a transform, a parameter is not a floating array, or a sharding is
        not a `NamedSharding`.
    """
    check_transform("describe", tx, "tx")
    if params is None:
        return Description(tuple(_described_rows(tx, 0, "", None)))
    recorder = _PartRecorder({path: getattr(p, "sharding", None) for path, p in with_paths(params)})
    placed = placed_bytes(tx, params, param_shardings)
    copy = recorder.copied(tx, ())
    total = 0

    def init(params: Params) -> None:
        nonlocal total
        state = jax.tree.leaves(copy.init(params))
        total = _described_bytes(state)
        if placed is not None:
            recorder.held = dict(zip(map(id, state), placed.state, strict=True))
        recorder.assign()

    jax.eval_shape(init, params)
    leaves = jax.tree.leaves(params)
    rows = tuple(_described_rows(tx, 0, "", recorder))
    device_bytes = None if placed is None else placed.by_memory()
    param_device_bytes = None if placed is None else sum(placed.params)
    notes = tuple(_described_notes(tx, leaves))
    return Description(
        rows,
        len(leaves),
        _described_bytes(leaves),
        total,
        tuple(recorder.groups),
        device_bytes,
        param_device_bytes,
        notes,
    )


def _described_notes(tx: Any, params: list[Any]) -> Iterator[str]:
    """Yield what parts cannot do with parameters of such dtypes."""
    narrow = [dtype for x in params if (dtype := jax.typeof(x).dtype).itemsize < 4]
    if not narrow or getattr(tx, "exact_updates", False):  # what is inside sees wide parameters
        return
    if getattr(tx, "begins_small", False):
        yield (
            f"{name_of(tx)} does not move parameters in {narrow[0]}: they round its first steps "
            "away, and it learns from moves how large a step may be. Wrap the optimizer in "
            "master_weights(...)."
        )
    for part in inner_parts(tx):
        yield from _described_notes(part, params)


def _described_bytes(leaves: list[Any]) -> int:
    return sum(x.size * x.dtype.itemsize for x in map(jax.typeof, leaves))


# ----------------------------------------------------------------------------------- the parts

# The fields, indices and keys that lead to a part.
Place = tuple[Any, ...]


def _has_row(x: Any) -> bool:
    """Whether `describe` gives a row to `x`, because it is a part."""
    if isinstance(x, type):
        return False
    return callable(getattr(x, "init", None)) and callable(getattr(x, "update", None))


def _described_inside(x: Any, place: Place, label: str) -> Iterator[tuple[Any, Place, str]]:
    """Yield the parts in a field, with their places and labels."""
    if _has_row(x):
        yield x, place, label
    elif isinstance(x, FrozenTree):
        for path, leaf in jax.tree_util.tree_flatten_with_path(x.unfreeze(), is_leaf=_has_row)[0]:
            yield from _described_inside(leaf, (*place, *path), _described_path(path))
    elif type(x) is tuple:
        is_named = len(x) == 2 and isinstance(x[0], str) and _has_row(x[1])
        for i, item in enumerate(x):
            yield from _described_inside(item, (*place, i), x[0] if is_named else label)
    elif isinstance(x, param_group):
        yield from _described_inside(x.inner, (*place, "inner"), x.title or label)


def _described_path(path: Any) -> str:
    return ".".join(names_of(path))


def _described_fields(tx: Any) -> dict[str, Any]:
    """Return the fields of a value by name, or the arguments of `inject_hyperparams`."""
    if isinstance(tx, injected):
        return {k: thawed(v) for k, v in tx.arguments}
    if not isinstance(tx, Value) or not dataclasses.is_dataclass(tx):
        return {}
    return fields_of(tx)


def _described_defaults(tx: Any) -> dict[str, Any]:
    """Return the defaults of the fields."""
    if isinstance(tx, injected):
        parameters = signature_of(tx.factory.inner_factory).parameters.values()
        return {p.name: p.default for p in parameters if p.default is not p.empty}
    fields = dataclasses.fields(cast(Any, tx)) if _described_fields(tx) else ()
    return {f.name: f.default for f in fields if f.default is not dataclasses.MISSING}


def _described_inner(tx: injected) -> Any:
    """Return the inner transform, with schedules at step 0 if the factory takes only numbers."""
    arguments = {
        k: float(x(x.init())) if is_stateful(x) else x for k, x in _described_fields(tx).items()
    }
    try:
        return tx.factory.inner_factory(**arguments)
    except (TypeError, ValueError):
        first = {k: float(v(0)) for k, v in arguments.items() if isinstance(v, Schedule)}
        return tx.factory.inner_factory(**arguments | first)


def _described_children(tx: Any) -> list[tuple[Any, Place, str]]:
    """Return the parts directly inside a transform, with their places and labels."""
    if isinstance(tx, injected):
        return [(_described_inner(tx), ("inner",), "")]
    by_field = {
        name: list(_described_inside(x, (name,), "")) for name, x in _described_fields(tx).items()
    }
    several = sum(bool(parts) for parts in by_field.values()) > 1
    return [
        (part, place, label or (name if several else ""))
        for name, parts in by_field.items()
        for part, place, label in parts
    ]


def _described_rows(
    tx: Any, depth: int, label: str, recorder: "_PartRecorder | None", place: Place = ()
) -> Iterator[Row]:
    """Yield the rows of a transform and of all parts in it."""
    children = _described_children(tx)
    fields_of_parts = {child_place[0] for _, child_place, _ in children}
    fields_of_parts.add(getattr(tx, "variadic", None))
    fields_of_parts |= {"rules"} if isinstance(tx, param_groups) else set()
    fields = {k: v for k, v in _described_fields(tx).items() if k not in fields_of_parts}
    defaults = _described_defaults(tx)
    at_default = frozenset(
        k for k, v in fields.items() if k in defaults and _is_described_default(v, defaults[k])
    )
    slots, leaves = ((), None) if recorder is None else recorder.slots(place)
    own_bytes = None if recorder is None else sum(slot.bytes for slot in slots)
    (name, package), foreign = _described_origin(tx), not isinstance(tx, GradientTransformation)
    yield Row(name, depth, label, fields, at_default, package, foreign, slots, leaves, own_bytes)
    for part, child_place, child_label in children:
        yield from _described_rows(part, depth + 1, child_label, recorder, (*place, *child_place))


def _is_described_default(x: Any, default: Any) -> bool:
    try:
        return key_of(x) == key_of(default)
    except TypeError:  # a live number, or something that does not hash
        return x is default


def _described_origin(tx: Any) -> tuple[str, str]:
    """Return the name of a part, and the package that it comes from."""
    if isinstance(tx, injected):
        return f"inject_hyperparams({name_of(tx.factory.inner_factory)})", "gradxform"
    if isinstance(tx, GradientTransformation):
        package = type(tx).__module__.split(".")[0]
        return type(tx).__name__, package
    # Optax defines the functions inside the function that returns the transform.
    factory, inner, _ = getattr(tx.update, "__qualname__", "").partition(".<locals>")
    return (factory if inner else type(tx).__name__), type(tx).__module__.split(".")[0]


# ------------------------------------------------------------------------------------ the sizes


class _PartRecorder:
    """Records which part's `init` returned which leaf of the state.

    `copied` copies a transform with all its parts, and replaces each `init` by one that records the
    state. A leaf belongs to the innermost part with that leaf in its state. All this happens within
    one trace.
    """

    def __init__(self, place_of: dict[Any, Any]) -> None:
        self.place_of = place_of  # the shardings of the parameters by path
        self.groups: list[tuple[GroupRow, ...]] = []
        self.states: list[tuple[Place, PyTree, int]] = []
        self.rows: dict[Place, tuple[tuple[SlotRow, ...], int]] = {}
        self.held: dict[int, int] = {}  # bytes of a leaf on each device, by its id
        self.layers: dict[int, int] = {}  # for how many layers a leaf stands, by its id
        self.of_stacks: set[Place] = set()  # the parts whose state is that of all layers

    def copied(self, x: Any, place: Place) -> Any:
        """Return a copy of a transform that records its states."""
        if isinstance(x, injected):

            def inner_with(hyperparams: dict[str, Any]) -> Any:
                return self.copied(x.inner_with(hyperparams), (*place, "inner"))

            init = functools.partial(x.init_with, inner_with)
            return self._recording(with_parts(x, (x.factory, x.arguments)), init, place)
        if isinstance(x, stacked):
            self.of_stacks.add(place)
        if isinstance(x, GradientTransformation):
            parts = [self._field(v, (*place, k)) for k, v in _described_fields(x).items()]
            copy = with_parts(x, parts) if parts else object.__new__(type(x))
            init = noted_init(type(x).init).__get__(copy)
            if isinstance(x, param_groups):
                init = functools.partial(self._with_groups, x, init)
            return self._recording(copy, init, place)
        return self._recording(_DescribedCopy(x), x.init, place)

    def _field(self, x: Any, place: Place) -> Any:
        if _has_row(x):
            return self.copied(x, place)
        if isinstance(x, FrozenTree):
            leaves, treedef = jax.tree_util.tree_flatten_with_path(x.unfreeze(), is_leaf=_has_row)
            if not any(_has_row(leaf) for _, leaf in leaves):
                return x
            copies = [self._field(leaf, (*place, *path)) for path, leaf in leaves]
            return FrozenTree(jax.tree.unflatten(treedef, copies))
        if type(x) is tuple:
            return tuple(self._field(item, (*place, i)) for i, item in enumerate(x))
        if isinstance(x, param_group):
            parts = [self._field(v, (*place, k)) for k, v in _described_fields(x).items()]
            return with_parts(x, parts)
        return x

    def _with_groups(
        self, tx: param_groups, init: Callable[[Params], OptState], params: Params
    ) -> OptState:
        """Return the state of a `param_groups`, and note its groups."""
        self.groups.append(group_rows(tx, params, self.place_of))
        return init(params)

    def _recording(self, copy: Any, init: Callable[[Params], OptState], place: Place) -> Any:
        """Return `copy` with an `init` that records the state."""

        def record(params: Params) -> OptState:
            state = init(params)
            if any(engine.layer_axes(params)):
                self._note_layers(params, state)
            self.states.append((place, state, len(jax.tree.leaves(params))))
            return state

        object.__setattr__(copy, "init", record)
        return copy

    def _note_layers(self, params: Params, state: OptState) -> None:
        """Note which leaves of a state stand for those of all layers of a stack."""
        paths = {path: None for path, _ in with_paths(params)}
        for names, leaf in flatten_with_names(state)[0]:
            owner, _ = owner_of(names, paths)
            if owner is not None:
                self.layers[id(leaf)] = engine.number_of_layers(owner)

    def assign(self) -> None:
        """Assign every leaf to the innermost part that returned it."""
        outermost: list[tuple[Place, PyTree]] = []  # parts without a part around them so far
        for place, state, leaves in self.states:
            inside = [part for part in outermost if part[0][: len(place)] == place]
            outermost = [part for part in outermost if part[0][: len(place)] != place]
            of_parts = collections.Counter(id(x) for _, s in inside for x in jax.tree.leaves(s))
            slots: dict[str, list[Any]] = {}
            for path, leaf in jax.tree_util.tree_flatten_with_path(state)[0]:
                if of_parts[id(leaf)]:
                    of_parts[id(leaf)] -= 1
                elif place not in self.of_stacks:
                    slots.setdefault(_described_field_of(path), []).append(leaf)
            outermost.append((place, state))
            rows = tuple(self._slot(name, xs) for name, xs in slots.items())
            self.rows[place] = rows, leaves

    def _slot(self, name: str, leaves: list[Any]) -> SlotRow:
        dtypes = dict.fromkeys(str(jax.typeof(x).dtype) for x in leaves)
        held = [self.held.get(id(x)) for x in leaves]
        on_device = sum(n for n in held if n is not None) if None not in held else None
        size = sum(self.layers.get(id(x), 1) * _described_bytes([x]) for x in leaves)
        return SlotRow(name, tuple(dtypes), len(leaves), size, on_device)

    def slots(self, place: Place) -> tuple[tuple[SlotRow, ...], int | None]:
        """Return the slots of a part, and how many parameters it sees."""
        return self.rows.get(place, ((), None))


def _described_field_of(path: Any) -> str:
    """Return the path of a leaf down to its field of a NamedTuple, or else its first key."""
    attributes = [i for i, k in enumerate(path) if isinstance(k, jax.tree_util.GetAttrKey)]
    return _described_path(path[: attributes[0] + 1 if attributes else 1])


class _DescribedCopy:
    """A copy of an object of another library."""

    def __init__(self, tx: Any) -> None:
        self.init, self.update = tx.init, tx.update
