"""The layout of a transform's state: its parts, whose they are, and their arrays."""

import dataclasses
import inspect
from collections.abc import Iterator
from typing import Any

import jax

from gradxform.base import GradientTransformation, unwrapped
from gradxform.base.methods import noting_inits
from gradxform.base.transformation import rules_with_state
from gradxform.errors import name_of
from gradxform.leaves import Path, entry_name, is_hole, is_variable, with_paths
from gradxform.leaves.states import named_tuples_in, slot_fields
from gradxform.leaves.storage import is_stored, is_type_on_host
from gradxform.types import OptState, Params, SupportsTransform
from gradxform.values.registry import REGISTRY
from gradxform.wrappers.parts import OF_FUNCTIONS

# How the path of a whole state is written.
ROOT = "the root"


def dotted_path(path: Path) -> str:
    """Write the path of a part, a slot or a leaf: `0.mu.dense.kernel`."""
    return ".".join(path) or ROOT


@dataclasses.dataclass(eq=False)
class StatePart:
    """A part of a state: a NamedTuple without those inside it, or arrays that are in none.

    Attributes:
      path: its path.
      kind: the class of the state, or which names the arrays have.
      owner: the transform whose init returned it; None if that is unknown.
      rule: the class of that transform, where at least this is known.
      calls: the names of the transforms and functions that make up the whole.
      labels: the keys of the dicts in which it is, such as the labels of a partition.
      depth: how many parts it is inside of.
      leaves: the index of every array of its own, by the path from here.
      places: where in the parameters its slots have arrays.
      slots: the fields that are declared as slots.
    """

    path: Path
    kind: str
    owner: Any
    rule: type | None
    calls: frozenset[str]
    labels: Path
    depth: int
    leaves: dict[Path, int] = dataclasses.field(default_factory=dict)
    places: dict[Path, None] = dataclasses.field(default_factory=dict)
    slots: tuple[str, ...] = ()

    @property
    def has_slots(self) -> bool:
        """Whether it may have some."""
        return bool(self.slots)

    @property
    def step_fields(self) -> tuple[str, ...]:
        """The fields that count the steps of the run."""
        return getattr(self.rule, "step_fields", GradientTransformation.step_fields)

    @property
    def counts_inner_steps(self) -> bool:
        """Whether these are the steps of what it wraps, not its own."""
        return getattr(self.rule, "counts_inner_steps", False)

    @property
    def averages(self) -> dict[str, str]:
        """For each slot that is an average, what is averaged."""
        return dict(getattr(self.rule, "averages_of", ()))

    @property
    def name(self) -> str:
        """The name of the rule for messages, or else of the state."""
        return self.kind if self.rule is None else name_of(self.rule)

    def __str__(self) -> str:
        return f"{dotted_path(self.path)} ({self.name})"


@dataclasses.dataclass(eq=False)
class StateLayout:
    """The arrays of a state in order, and its parts.

    Attributes:
      paths: the path of every array; one that is stored in another form counts as one.
      arrays: their shapes and dtypes, and forms.
      away: which of them are in the memory of the host.
      treedef: the structure of the state.
      parts: the parts in which arrays are, in order.
    """

    paths: list[Path]
    arrays: list[Any]
    away: list[bool]
    treedef: Any
    parts: list[StatePart]

    def owners(self) -> list[tuple[StatePart, Path]]:
        """Return for every array its part, and the path from there."""
        of_index = {i: (part, rest) for part in self.parts for rest, i in part.leaves.items()}
        return [of_index[i] for i in range(len(self.arrays))]


def layout_of(tx: SupportsTransform, params: Params) -> StateLayout:
    """Return the layout of the state that `tx.init(params)` returns; nothing is computed."""
    readings: list[_Reading] = []

    def traced(params: Params) -> Any:
        state, reading = _read_init(tx, params)
        readings.append(reading)
        return state

    jaxpr, shapes = jax.make_jaxpr(traced, return_shape=True)(params)
    types = jax.tree.unflatten(jax.tree.structure(shapes), jaxpr.out_avals)
    arrays, treedef = jax.tree.flatten(shapes, is_leaf=is_stored)
    away = [any(map(is_type_on_host, jax.tree.leaves(x))) for x in treedef.flatten_up_to(types)]
    reading = readings[-1]
    return StateLayout(reading.paths, arrays, away, treedef, [p for p in reading.parts if p.leaves])


def init_with_owners(tx: SupportsTransform, params: Params) -> tuple[OptState, dict[Path, Any]]:
    """Return `tx.init(params)`, and the transform of each of its parts, by the part's path."""
    state, reading = _read_init(tx, params)
    return state, {part.path: part.owner for part in reading.parts}


def _read_init(tx: SupportsTransform, params: Params) -> tuple[OptState, "_Reading"]:
    tx = unwrapped(tx)
    with noting_inits() as inits:
        state = tx.init(params)
    reading = _Reading(tx, inits, params)
    reading.walk(state, (), None, (), 0)
    return state, reading


class _Reading:
    """Reads the parts of a state inside the trace in which it was made."""

    def __init__(self, tx: Any, inits: list[tuple[Any, Any]], params: Params) -> None:
        self.paths: list[Path] = []
        self.parts: list[StatePart] = []
        self.kept = inits  # so that no other object gets the id of one of these states
        self.owners: dict[int, Any] = {}
        for owner, state in inits:  # of a wrapper without a state of its own, the inner comes first
            self.owners.setdefault(id(state), owner)
        self.calls = frozenset(_transform_calls_in([tx, tx.init, tx.update], {}))
        self.places = {path for path, leaf in with_paths(params) if not is_hole(leaf)}
        self.kinds_of_params = named_tuples_in(params)

    def walk(self, node: Any, path: Path, part: StatePart | None, labels: Path, depth: int) -> None:
        """Note the parts and the arrays in `node`, which is in `part` or in none."""
        children = _children(node)
        if self._is_part(node):
            part = self._begin(node, type(node).__name__, path, labels, depth)
            depth += 1
        elif part is None and not isinstance(node, tuple | list) and not self._holds_parts(node):
            names = sorted(dotted_path(below) for below, _ in with_paths(node))
            kind = " ".join([type(node).__name__, *names]) if children else "an array"
            part = self._begin(node, kind, path, labels, depth)
        if children is None:
            assert part is not None
            rest = self._note(path, part)
            if not part.has_slots and rest[1:] in self.places - {()}:
                part.places[rest[1:]] = None
            return
        slots = slot_fields(type(node)) if self._is_part(node) else ()
        for entry, child in children:
            if part is not None and entry_name(entry) in slots:
                for below, _ in with_paths(child, is_stored):
                    part.places[self._note((*path, entry_name(entry), *below), part)[1:]] = None
                continue
            is_key = isinstance(entry, jax.tree_util.DictKey)
            more = (*labels, entry_name(entry)) if is_key else labels
            here = path if is_variable(node) else (*path, entry_name(entry))
            self.walk(child, here, part, more, depth)

    def _note(self, path: Path, part: StatePart) -> Path:
        """Note an array, and return its path from its part."""
        rest = path[len(part.path) :]
        part.leaves[rest] = len(self.paths)
        self.paths.append((*part.path, *rest))
        return rest

    def _begin(self, node: Any, kind: str, path: Path, labels: Path, depth: int) -> StatePart:
        owner = self.owners.get(id(node))
        if isinstance(owner, OF_FUNCTIONS):  # it is known by the class of its state
            owner = None
        rule = type(owner) if owner is not None else self._called_rule(kind)
        slots = slot_fields(type(node)) if self._is_part(node) else ()
        part = StatePart(path, kind, owner, rule, self.calls, labels, depth, slots=slots)
        self.parts.append(part)
        return part

    def _is_part(self, node: Any) -> bool:
        is_named = isinstance(node, tuple) and hasattr(node, "_fields")
        return is_named and not is_hole(node) and type(node) not in self.kinds_of_params

    def _holds_parts(self, node: Any) -> bool:
        return self._is_part(node) or any(self._holds_parts(x) for _, x in _children(node) or ())

    def _called_rule(self, kind: str) -> type | None:
        """Return the only rule with such a state among all that the transform consists of."""
        called = [REGISTRY.get(name) for name in self.calls]
        rules = [rule for rule in rules_with_state(kind) if rule in called]
        return rules[0] if len(rules) == 1 else None


def _children(node: Any) -> list[tuple[Any, Any]] | None:
    """Return the children of a node, each with its entry in a key path; None for an array."""
    if is_stored(node):
        return None
    flat, treedef = jax.tree_util.tree_flatten_with_path(node, is_leaf=lambda x: x is not node)
    if treedef == jax.tree.structure(0):
        return None
    return [(path[-1], child) for path, child in flat]


def _transform_calls_in(x: Any, seen: dict[int, Any]) -> Iterator[str]:
    """Yield the names of the transforms in `x`, and of the functions that made some of them.

    Optax's transforms are functions inside the function of their name; their cells hold those of
    the transforms inside them.
    """
    if id(x) in seen:
        return
    seen[id(x)] = x
    parts: list[Any] = []
    if isinstance(x, GradientTransformation):
        yield name_of(x)
        parts = [x.inner_transforms()]
    elif isinstance(x, tuple | list):
        parts = list(x)
    elif isinstance(x, dict):
        parts = list(x.values())
    elif inspect.ismethod(x):
        parts = list(vars(x.__self__).values()) if hasattr(x.__self__, "__dict__") else []
    elif inspect.isfunction(x):
        yield x.__qualname__.partition(".<locals>")[0]
        for cell in x.__closure__ or ():
            try:
                parts.append(cell.cell_contents)
            except ValueError:  # the cell is empty
                continue
    for part in parts:
        yield from _transform_calls_in(part, seen)
