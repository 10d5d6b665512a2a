"""How each field of a state reads under another library's name, and is written back."""

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gradxform._jax.versions import is_tracer
from gradxform.errors import name_of, shown
from gradxform.numerics import number_rank
from gradxform.run_states.slot_names.owners import Owned, owned_states, rule_name
from gradxform.run_states.slot_names.words import (
    COUNTS,
    POWERS,
    is_shared,
    is_variable_there,
    word_for,
)
from gradxform.transforms.adaptive import scale_by_rms, scale_by_stddev
from gradxform.transforms.ggt import scale_by_ggt
from gradxform.transforms.scaling import scale_by_learning_rate
from gradxform.transforms.shampoo import step_by_shampoo

Values = Mapping[str, Any]


def _read_unchanged(x: Any) -> Any:
    return x


def _write_unchanged(value: Any, old: Any, values: Values) -> Any:
    return value


@dataclasses.dataclass(frozen=True, eq=False)
class Entry:
    """A name for a field of a state, or for a part of it.

    Attributes:
      name: the name.
      owned: the state.
      field: its field.
      read: returns what has the name, from the field.
      write: `write(value, old, values)` returns the field with that value in it; `values` are all
        those that are written, by name.
      shared: if not None, entries of one name with the same `shared` have one value.
    """

    name: str
    owned: Owned
    field: str
    read: Callable[[Any], Any] = _read_unchanged
    write: Callable[[Any, Any, Values], Any] = _write_unchanged
    shared: Any = None


def entries_of(tx: Any, state: Any, style: str) -> list[Entry]:
    """Return an entry, or several, for every field of the states of a transform."""
    return [
        entry
        for owned in owned_states(tx, state)
        for field in owned.fields
        for entry in _entries_of_field(owned, field, style)
    ]


def _entries_of_field(owned: Owned, field: str, style: str) -> list[Entry]:
    rule, name = owned.rule, word_for(style, rule_name(owned), owned.state, field)
    if getattr(owned.state, field) is None or not is_variable_there(style, owned.state, field):
        return []
    if style == "gradxform":
        return [Entry(name, owned, field)]
    if field == "stale_counter":  # a float32 there
        return [Entry(name, owned, field, _float_count, _whole_count(name), shared=name)]
    if field == "count" and owned.clock is not None and owned.clock.at is not None:
        return []  # a constant step sets it anew in every update
    if field == "count" and style == "tf1":
        return _count_of_tf1(owned, name)
    if is_shared(style, field):
        return [Entry(name, owned, field, shared=name, write=_whole_count(name))]
    if field == "trace" and _is_uphill_momentum(owned, style):
        return [Entry(name, owned, field, _negated, lambda x, old, values: _negated(x))]
    if style == "tf1" and isinstance(rule, step_by_shampoo) and field in ("statistics", "roots"):
        return _shampoo_axis_entries(owned, field)
    if style == "tf1" and isinstance(rule, scale_by_ggt):
        vector = _GgtVector("moment1", False) if field == "mu" else _GgtVector("grad_buffer", True)
        return [Entry(vector.name, owned, field, vector, vector.put)]
    return [Entry(name, owned, field)]


# ------------------------------------------------------------------------------------------ signs


def _is_uphill_momentum(owned: Owned, style: str) -> bool:
    """Whether the original's momentum holds steps uphill where ours holds them downhill.

    It does after a learning rate, but in Keras's SGD, whose momentum is downhill too.
    """
    rates = [part for part in owned.before if isinstance(part, scale_by_learning_rate)]
    if not any(part.flip_sign for part in rates):
        return False
    of_rms = scale_by_rms | scale_by_stddev
    return style == "tf1" or any(isinstance(part, of_rms) for part in owned.before)


def _negated(tree: Any) -> Any:
    return jax.tree.map(lambda x: -x, tree)


# ----------------------------------------------------------------------------------------- counts


def as_whole(name: str, value: Any) -> Any:
    """Return a count as an int32 scalar.

    Raises:
      ValueError: unless it is a whole number of at least 0.
    """
    dtype = getattr(value, "dtype", None)
    is_number = isinstance(value, int | float) if dtype is None else number_rank(dtype) in (1, 2)
    if not is_number or isinstance(value, bool) or jnp.shape(value) != ():
        raise ValueError(f"set_slots: {name} must be a whole number, got {shown(value)}.")
    if is_tracer(value):
        return jnp.asarray(jnp.round(value), jnp.int32)
    number = float(np.asarray(value))
    if number != number // 1 or not 0 <= number < 2**31:
        raise ValueError(f"set_slots: {name} must be a whole number of at least 0, got {number!r}.")
    return jnp.asarray(int(number), jnp.int32)


def _whole_count(name: str) -> Callable[[Any, Any, Values], Any]:
    return lambda value, old, values: as_whole(name, value)


def _count_of_tf1(owned: Owned, name: str) -> list[Entry]:
    powers = POWERS.get(rule_name(owned), {})
    if owned.clock is not None:  # it has the global step
        return [Entry(COUNTS["tf1"], owned, "count", shared="step", write=_whole_count(name))]
    if not powers:
        read = _float_count if name == "t" or name == "global_step_1" else _read_unchanged
        return [Entry(name, owned, "count", read, _whole_count(name), shared=name)]
    entries = []
    for power, attribute in powers.items():
        decay = getattr(owned.rule, attribute)
        read, write = _decay_power(decay), _count_from_powers(owned.rule, powers)
        shared = decay if isinstance(decay, float) else owned.path
        entries.append(Entry(power, owned, "count", read, write, shared))
    return entries


def _float_count(count: Any) -> Any:
    return jnp.asarray(count, jnp.float32)


def _decay_power(decay: Any) -> Callable[[Any], Any]:
    """Return what reads a count as the power that TensorFlow keeps: decay^(count + 1)."""

    def read(count: Any) -> Any:
        if is_tracer(count) or is_tracer(decay):
            return jnp.asarray(decay, jnp.float32) ** jnp.asarray(count + 1, jnp.float32)
        # In TensorFlow the decay is a float32 number; a power of many steps shows that.
        return jnp.asarray(
            _float32_decay(decay) ** (np.float64(np.asarray(count)) + 1), jnp.float32
        )

    return read


def _float32_decay(x: Any) -> np.float64:
    return np.float64(np.float32(np.asarray(x)))


def _count_from_powers(rule: Any, powers: dict[str, str]) -> Callable[[Any, Any, Values], Any]:
    """Return how a count follows from the powers: from the first that did not vanish."""

    def write(value: Any, old: Any, values: Values) -> Any:
        by_power = {k: values[k] for k in powers if k in values}
        decays = {k: getattr(rule, powers[k]) for k in by_power}
        if any(map(is_tracer, [*by_power.values(), *decays.values()])):
            return _traced_count_of_powers(by_power, decays, old)
        counts = {
            k: _count_of_decay_power(rule, k, by_power[k], decays[k], powers[k]) for k in by_power
        }
        finite = {k: count for k, count in counts.items() if count is not None}
        if not finite:  # so many steps that nothing depends on their number
            return jnp.asarray(2**24 if float(np.asarray(value)) == 0 else 0, jnp.int32)
        first = next(iter(finite))
        # TensorFlow multiplies by the decay in every step, and rounds: the power of many steps
        # tells their number only roughly.
        for k, count in finite.items():
            if abs(count - finite[first]) > 1 + 1e-3 * finite[first]:
                raise ValueError(
                    f"set_slots: {first} is that of {round(finite[first])} steps, and {k} of "
                    f"{round(count)}. Was this state made with other decays than those of "
                    f"{name_of(rule)}?"
                )
        return jnp.asarray(round(finite[first]), jnp.int32)

    return write


# Below this a power has lost digits, or is 0.
_TINY = 1e-36


def _count_of_decay_power(rule: Any, name: str, power: Any, decay: Any, field: str) -> float | None:
    """Return the number of updates at which a decay has that power, if that can be known."""
    dtype = getattr(power, "dtype", None)
    is_array = dtype is not None and power.shape == () and number_rank(dtype) in (1, 2)
    if not is_array and (isinstance(power, bool) or not isinstance(power, int | float)):
        raise ValueError(f"set_slots: {name} must be a number, got {shown(power)}.")
    number, base = float(np.asarray(power)), float(_float32_decay(decay))
    if base <= 0 or (0 <= number < _TINY):
        return None
    steps = math.log(number) / math.log(base) - 1 if 0 < number <= 1 else -1.0
    if steps < -0.25 or (steps < 1000 and abs(steps - round(steps)) > 0.25):
        raise ValueError(
            f"set_slots: {name} is {number!r}, which is not a power of {field} {base:.6g} of "
            f"{name_of(rule)}. Was this state made with another {field}?"
        )
    return max(steps, 0.0)


def _traced_count_of_powers(powers: dict[str, Any], decays: dict[str, Any], old: Any) -> Any:
    count: Any = jnp.asarray(2**24, jnp.float32)
    for k in reversed(powers):
        power, decay = jnp.asarray(powers[k], jnp.float32), jnp.asarray(decays[k], jnp.float32)
        steps = jnp.log(jnp.maximum(power, _TINY)) / jnp.log(decay) - 1
        count = jnp.where((power > _TINY) & (decay > 0), steps, count)
    return jnp.asarray(jnp.round(count), old.dtype)


# -------------------------------------------------------------------- slots of another arrangement


def _shampoo_axis_entries(owned: Owned, field: str) -> list[Entry]:
    """Return the entries of Shampoo's matrices, one for each axis that some parameter has."""
    rule = owned.rule
    if field == "roots" and rule.svd_interval == 1:
        return []  # made anew from the statistics in every update
    word = "Gbar" if field == "statistics" else "H"
    ranks = [len(axes) for axes in _shampoo_tuples(getattr(owned.state, field))]
    return [
        Entry(f"{word}_{i}", owned, field, _ShampooAxis(i), _ShampooAxis(i).put)
        for i in range(max(ranks, default=0))
    ]


def _shampoo_tuples(x: Any) -> list[Any]:
    return [y for v in x.values() for y in _shampoo_tuples(v)] if isinstance(x, dict) else [x]


@dataclasses.dataclass(frozen=True)
class _ShampooAxis:
    """Reads and writes the matrices of one axis; None stands for parameters without the axis."""

    index: int

    def __call__(self, matrices: Any) -> Any:
        if isinstance(matrices, dict):
            return {k: self(x) for k, x in matrices.items()}
        return matrices[self.index] if self.index < len(matrices) else None

    def put(self, value: Any, old: Any, values: Values) -> Any:
        if isinstance(old, dict):
            return {k: self.put(value[k], x, values) for k, x in old.items()}
        if self.index >= len(old):
            return old
        return tuple(value if i == self.index else x for i, x in enumerate(old))


@dataclasses.dataclass(frozen=True)
class _GgtVector:
    """Reads and writes GGT's arrays: those of all parameters as one vector, or one a row."""

    name: str
    window: bool

    def __call__(self, tree: Any) -> Any:
        leaves = jax.tree.leaves(tree)
        if not leaves:
            return jnp.zeros((0,) * (1 + self.window), jnp.float32)
        return jnp.concatenate([x.reshape(*self._lead(x), -1) for x in leaves], axis=-1)

    def _lead(self, x: Any) -> tuple[int, ...]:
        return x.shape[: int(self.window)]  # the averages of a window stay apart

    def put(self, value: Any, old: Any, values: Values) -> Any:
        leaves, treedef = jax.tree.flatten(old)
        if not leaves:
            return old
        sizes = [x.size // max(math.prod(self._lead(x)), 1) for x in leaves]
        parts = jnp.split(jnp.asarray(value), np.cumsum(sizes)[:-1], axis=-1)
        return treedef.unflatten([y.reshape(x.shape) for x, y in zip(leaves, parts, strict=True)])
