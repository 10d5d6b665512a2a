"""Slots by name: to read them from any state, and to write them into one."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from gradxform._jax.versions import is_tracer
from gradxform.base import check_transform
from gradxform.errors import did_you_mean, name_of, require_choice, shown
from gradxform.leaves import Path, dtype_of, is_hole, path_str
from gradxform.leaves.states import children_of, node_at
from gradxform.numerics import number_rank
from gradxform.run_states.slot_names.entries import Entry, as_whole, entries_of
from gradxform.run_states.slot_names.owners import with_child
from gradxform.run_states.slot_names.words import STYLES
from gradxform.types import OptState, SupportsTransform


def get_slots(tx: SupportsTransform, state: OptState, names: str = "gradxform") -> dict[str, Any]:
    """Return everything that an optimizer remembers, by name.

        get_slots(compat.keras.Adam(), state, "keras")     {"m": ..., "v": ..., "iterations": 15}

    A slot is a tree like the parameters, with a hole for each one that does not have it; all else
    is a scalar or an array. The names are those of the fields of the states, or what the original
    calls them:

    - "tf1": TensorFlow 1, its contrib and RETURNN, for the optimizers of `compat.tf1`,
      `compat.tf_contrib` and `compat.returnn`. A count of updates t is `beta1_power`, b1^(t+1), and
      `beta2_power`, or else `global_step`.
    - "keras": `compat.keras`, as TensorFlow 2.8 calls them; a count is `iterations`.
    - "keras3": the same optimizers, as Keras 3 calls them; a count is `iteration`.

    The values are the original's too: a momentum that holds steps uphill there, and downhill here,
    has the other sign. What the original does not know keeps the name of its field. Where several
    states have the same name for the same parameters, the path of each stands before it:
    `"0.trace"`, `"2.trace"`. The groups of a partition share a name.

    Works in chains, masks, partitions and wrappers, of Optax's states too, and under `jax.jit`.

    Args:
      tx: the transform of the state.
      state: its state.
      names: "gradxform", "tf1", "keras" or "keras3".

    Raises:
      TypeError: if `tx` is not a transform, or the state is another one's.
      ValueError: if `names` is not one of these.
    """
    named = _entries("get_slots", tx, state, names)
    slots: dict[str, Any] = {}
    for name, entries in named.items():
        values = [entry.read(getattr(entry.owned.state, entry.field)) for entry in entries]
        slots[name] = values[0]
        if entries[0].shared is None:
            for value in values[1:]:
                slots[name] = _merged_arrays(slots[name], value)
    return slots


def set_slots(
    tx: SupportsTransform, state: OptState, slots: Mapping[str, Any], names: str = "gradxform"
) -> OptState:
    """Return a state with other values for the slots, by the names of `get_slots`.

        state = set_slots(tx, tx.init(params), get_slots(tx, old_state))     equals old_state

    A slot whose name is not in `slots` stays as it is. Arrays of JAX and NumPy are cast to the
    dtypes of the state; they must have its shapes.

    Args:
      tx: the transform of the state.
      state: its state, for example `tx.init(params)`.
      slots: the new values, by name.
      names: as for `get_slots`: "gradxform", "tf1", "keras" or "keras3".

    Raises:
      TypeError: if `slots` is not a dict, or an array holds another kind of numbers.
      ValueError: for a name that the state does not have; a slot with too few or too many arrays,
        or one of another shape; a count that is not a whole number; a power of another decay.
    """
    named = _entries("set_slots", tx, state, names)
    if not isinstance(slots, Mapping):
        raise TypeError(f"set_slots: slots must be a dict by name, got {shown(slots)}.")
    for name in slots:
        if name not in named:
            raise ValueError(
                f"set_slots: {name_of(tx)} does not have a slot {name!r} under the names "
                f"{names!r}, only {', '.join(map(repr, named)) or 'none'}."
                f"{did_you_mean(name, named)}"
            )
    together: dict[Path, dict[str, Any]] = defaultdict(dict)  # what is written into each state
    for name, value in slots.items():
        for entry in named[name]:
            together[entry.owned.path][entry.name] = value
    fields: dict[tuple[Path, str], Any] = {}
    used: set[int] = set()
    for name, value in slots.items():
        entries = named[name]
        if entries[0].shared is None:
            _check_covered(name, value, [entry.read(_field(entry)) for entry in entries])
        for entry in entries:
            place, old = (entry.owned.path, entry.field), _field(entry)
            fitting = value
            if entry.shared is None:
                fitting = _fitted(name, (), entry.read(old), value, used)
            new = entry.write(fitting, fields.get(place, old), together[place[0]])
            fields[place] = _slot_in_old_dtypes(new, old)
    changes: dict[Path, dict[str, Any]] = defaultdict(dict)
    for (path, field), new in fields.items():
        changes[path][field] = new
    for path in sorted(changes, key=len, reverse=True):  # inner states before those around them
        state = with_child(state, path, node_at(state, path)._replace(**changes[path]))
    return state


def _field(entry: Entry) -> Any:
    return getattr(entry.owned.state, entry.field)


def _entries(caller: str, tx: Any, state: Any, names: str) -> dict[str, list[Entry]]:
    """Return the entries by name, with a path before names that would be ambiguous."""
    check_transform(caller, tx, "tx")
    require_choice(caller, "names", names, STYLES)
    alike: dict[str, list[Entry]] = defaultdict(list)
    for entry in entries_of(tx, state, names):
        alike[entry.name].append(entry)
    named: dict[str, list[Entry]] = {}
    for name, entries in alike.items():
        if _are_one_slot(entries):
            named[name] = entries
        else:
            for entry in entries:
                named[".".join((*entry.owned.path, name))] = [entry]
    return named


def _are_one_slot(entries: Sequence[Entry]) -> bool:
    """Whether several entries of one name are one value, or slots of different parameters."""
    if len({entry.shared for entry in entries}) == 1 and entries[0].shared is not None:
        return True
    if len(entries) > 1 and any(entry.shared is not None for entry in entries):
        return False
    try:
        merged = entries[0].read(_field(entries[0]))
        for entry in entries[1:]:
            merged = _merged_arrays(merged, entry.read(_field(entry)))
    except _Overlap:
        return False
    return True


# ------------------------------------------------------------------------------------------ trees


class _Overlap(Exception):
    """Two trees have an array at the same place."""


def _merged_arrays(a: Any, b: Any) -> Any:
    """Return the tree of the arrays of both, which have holes where the other has arrays."""
    if is_hole(a) or is_hole(b):
        return b if is_hole(a) else a
    ours, theirs = children_of(a), children_of(b)
    if ours is None or theirs is None or set(ours) != set(theirs) or not ours:
        raise _Overlap
    return _rebuilt(a, {k: _merged_arrays(x, theirs[k]) for k, x in ours.items()})


def _rebuilt(node: Any, children: dict[str, Any]) -> Any:
    treedef = jax.tree.structure(node, is_leaf=lambda x: x is not node)
    return jax.tree.unflatten(treedef, list(children.values()))


def _check_covered(name: str, value: Any, olds: Sequence[Any], at: Path = ()) -> None:
    """Require that every array of a new slot has a place in some state."""
    olds = [old for old in olds if not is_hole(old)]
    if is_hole(value):
        return
    children = _children(value)
    if not olds or (children is not None and all(children_of(old) is None for old in olds)):
        raise ValueError(f"set_slots: {name} has an array at {path_str(at)}, the state none.")
    for k, x in (children or {}).items():
        inside = [inner[k] for old in olds if k in (inner := children_of(old) or {})]
        _check_covered(name, x, inside, (*at, k))


def _children(node: Any) -> dict[str, Any] | None:
    if isinstance(node, Mapping):
        return {str(k): x for k, x in node.items()}
    return children_of(node)


def _fitted(name: str, at: Path, old: Any, new: Any, used: set[int]) -> Any:
    """Return the arrays of `new` in the structure of `old`, each in the shape that it has there."""
    if is_hole(old):
        return old
    children = children_of(old)
    if children is None:
        return _fitting_array(name, at, old, new, used)
    by_name = _children(new) or {}
    for k, x in children.items():
        if k not in by_name and jax.tree.leaves(x):
            raise ValueError(f"set_slots: {name} lacks an array at {path_str((*at, k))}.")
    fitted = {k: _fitted(name, (*at, k), x, by_name.get(k, x), used) for k, x in children.items()}
    return _rebuilt(old, fitted)


def _fitting_array(name: str, at: Path, old: Any, new: Any, used: set[int]) -> Any:
    """Return a new array, with the shape and the kind of numbers of the old one."""
    where = f"set_slots: {name}" + (f" at {path_str(at)}" if at else "")
    is_number = isinstance(new, bool | int | float | complex)
    if not is_number and not hasattr(new, "dtype"):
        raise TypeError(f"{where} must be an array of shape {jnp.shape(old)}, got {shown(new)}.")
    if jnp.shape(new) != jnp.shape(old):
        raise ValueError(f"{where} has shape {jnp.shape(new)}, the state's has {jnp.shape(old)}.")
    if not at and jnp.shape(old) == () and dtype_of(old) == jnp.int32:  # it counts something
        return as_whole(name, new)
    rank, dtype = number_rank(dtype_of(old)), dtype_of(new)
    if dtype != dtype_of(old) and not 0 < number_rank(dtype) <= rank:
        raise TypeError(f"{where} has dtype {dtype}, the state's has {dtype_of(old)}.")
    # No two places share a buffer, or a jitted step could not donate the state.
    if id(new) in used:
        new = jnp.array(new, copy=True)
    used.add(id(new))
    return new


def _slot_in_old_dtypes(new: Any, old: Any) -> Any:
    """Return the arrays of a field in the dtypes of the old ones.

    Where these lie on several devices, so do the new ones, unless they lie on several themselves.
    """

    def cast_like(x: Any, like: Any) -> Any:
        dtype = dtype_of(like)
        is_new = (
            isinstance(x, jax.Array) and x.dtype == dtype and not getattr(x, "weak_type", False)
        )
        array = x if is_new else jnp.asarray(x, dtype)
        spread = not is_tracer(array) and len(_devices(array)) < 2 <= len(_devices(like))
        return jax.device_put(array, like.sharding) if spread else array

    return jax.tree.map(cast_like, new, old)


def _devices(x: Any) -> Any:
    return getattr(getattr(x, "sharding", None), "device_set", ())
