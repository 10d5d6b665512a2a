"""Measurements of the updates at some place of a chain, kept in the state."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from gradxform.base import EmptyState, Transform, call_update, check_transform, transform
from gradxform.engine import global_norm
from gradxform.errors import name_of, shown
from gradxform.interop import as_function
from gradxform.leaves import (
    Path,
    align_params,
    dtype_of,
    is_abstract,
    is_hole,
    path_str,
    structure_of,
    with_paths,
)
from gradxform.leaves.states import check_state
from gradxform.numerics import at_least_float32, cast, scalar_dtype
from gradxform.transforms.momentum import ema
from gradxform.types import DType, OptState, Params, PyTree, SupportsTransform, Updates
from gradxform.values.fields import set_fields
from gradxform.values.registry import register

__all__ = [
    "measure_with_ema",
    "monitor",
    "on_measurement",
    "snapshot",
    "MonitorState",
    "SnapshotState",
]


class SnapshotState(NamedTuple):
    """State of `snapshot`."""

    measurement: dict[str, Any]  # the last measurement by its name


class MonitorState(NamedTuple):
    """State of `monitor`."""

    measurements: dict[str, Any]  # the last measurements by name; zeros before the first update
    measure_states: tuple[Any, ...]  # the state of each measure, in their order


def _copied_measurement(measurement: PyTree) -> PyTree:
    """Return copies of the arrays of a measurement, not weakly typed."""
    return jax.tree.map(lambda x: jnp.array(x, dtype_of(x), copy=True), measurement)


def _measurement_in_form_of(part: Any, name: str, new: PyTree, old: PyTree) -> PyTree:
    """Return a measurement in the dtypes of the state's, and require the same form."""
    new = jax.tree.map(jnp.asarray, new)
    here, before = (
        [(p, None if is_hole(x) else jnp.shape(x)) for p, x in with_paths(tree)]
        for tree in (new, old)
    )
    if here != before:
        path, shape = next(((p, s) for p, s in here if (p, s) not in before), ((), None))
        got = "has fewer arrays" if shape is None else f"has {path_str(path)} of shape {shape}"
        raise ValueError(
            f"{name_of(part)}: the measurement {name!r} {got}, which the state's does not have; a "
            "measure must return the same form for updates as for the parameters."
        )
    leaves = zip(jax.tree.leaves(new), jax.tree.leaves(old), strict=True)
    return jax.tree.unflatten(jax.tree.structure(old), [cast(x, y.dtype) for x, y in leaves])


def _check_monitored_updates(part: Any, updates: Updates, params: Params | None) -> None:
    if params is not None:
        align_params(part, updates, structure_of(updates), params)


@transform
class snapshot(Transform):
    """Measure the updates at this place of a chain, and keep the last measurement in the state.

    The updates pass unchanged. `tree.get(state, measure_name)` returns the measurement; after
    `init`, the measurement of the parameters.

    Args:
      measure_name: the name of the measurement in the state.
      measure: a function of the updates that returns an array, or a tree of arrays, always of the
        same shapes.

    Raises:
      ValueError: at update, if the measurement of the updates has another form than that of the
        parameters.
    """

    measure_name: str
    measure: Callable[[Any], Any]

    locality = "tree"
    handles_rows = True
    keeps_updates = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "measure", as_function(self.measure))

    def init(self, params):
        """Return the measurement of the parameters."""
        if any(map(is_abstract, jax.tree.leaves(params))):
            return SnapshotState({self.measure_name: jax.eval_shape(self.measure, params)})
        return SnapshotState({self.measure_name: _copied_measurement(self.measure(params))})

    def update(self, updates, state, params=None, **extra):
        """Return the updates, and their measurement."""
        state = check_state(self, state, SnapshotState)
        _check_monitored_updates(self, updates, params)
        _check_monitored_names(self, state.measurement, [self.measure_name])
        old = state.measurement[self.measure_name]
        new = _measurement_in_form_of(self, self.measure_name, self.measure(updates), old)
        return updates, state._replace(measurement={self.measure_name: new})


@transform
class monitor(Transform):
    """Measure the updates at this place of a chain in several ways, some of which remember.

    The updates pass unchanged. `tree.get(state, name)` returns the last measurement of that name.

    Args:
      measures: a dict from names to functions of the updates, as in `snapshot`, or to transforms
        whose "updates" are the measurement, such as `measure_with_ema`. Pairs (name, measure) are
        accepted too.

    Raises:
      TypeError: if a measure is neither a function nor a transform; at init, if it needs an extra
        argument, without which the form of its measurement is not known.
      ValueError: if two have one name; at update, if a measurement changes its form.
    """

    measures: tuple[Any, ...]

    locality = "tree"
    handles_rows = True
    keeps_updates = True

    def __init__(self, measures: Any):
        pairs = measures.items() if isinstance(measures, Mapping) else measures
        if not isinstance(pairs, Iterable):
            raise TypeError(
                f"monitor: measures must be a dict or pairs (name, measure), got {shown(measures)}."
            )
        set_fields(self, measures=tuple(pairs))

    def __post_init__(self) -> None:
        pairs: dict[str, Any] = {}
        for i, pair in enumerate(self.measures):
            if not (isinstance(pair, tuple | list) and len(pair) == 2 and isinstance(pair[0], str)):
                raise TypeError(
                    f"{name_of(self)}: measures must be a dict or pairs (name, measure), got "
                    f"{shown(pair)} at {i}."
                )
            name, measure = pair
            if name in pairs:
                raise ValueError(f"{name_of(self)}: two measures are named {name!r}.")
            if isinstance(measure, type) or not isinstance(measure, SupportsTransform | Callable):
                check_transform(self, measure, f"the measure {name!r}")
            is_transform = isinstance(measure, SupportsTransform)
            pairs[name] = measure if is_transform else as_function(measure)
        object.__setattr__(self, "measures", tuple(pairs.items()))

    def init(self, params):
        """Return the states of the measures, and zeros as measurements."""
        states = [_first_state(measure, params) for _, measure in self.measures]
        measurements = {}
        for (name, measure), state in zip(self.measures, states, strict=True):
            shapes = jax.eval_shape(
                lambda p, s, measure=measure: _monitored_measurement(measure, p, s, p, {})[0],
                params,
                state,
            )
            measurements[name] = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
        return MonitorState(measurements, tuple(states))

    def inner_states(self, state: OptState) -> list[tuple[Path, Any]]:
        """Return the places of the states of the measures that are transforms."""
        measures = enumerate(measure for _, measure in self.measures)
        return [
            (("measure_states", str(i)), x) for i, x in measures if isinstance(x, SupportsTransform)
        ]

    def update(self, updates, state, params=None, **extra):
        """Return the updates, and their measurements."""
        state = check_state(self, state, MonitorState)
        _check_monitored_updates(self, updates, params)
        if len(state.measure_states) != len(self.measures):
            raise ValueError(
                f"{name_of(self)}: {len(self.measures)} measures but {len(state.measure_states)} "
                "states. Was this state made by another transform's init?"
            )
        olds = state.measurements
        if olds:  # the first state of Optax does not have any
            _check_monitored_names(self, olds, [name for name, _ in self.measures])
        measurements, states = {}, []
        for (name, measure), old in zip(self.measures, state.measure_states, strict=True):
            new, its_state = _monitored_measurement(measure, updates, old, params, extra)
            measurements[name] = _measurement_in_form_of(
                self, name, new, olds[name] if olds else _copied_measurement(new)
            )
            states.append(its_state)
        return updates, state._replace(measurements=measurements, measure_states=tuple(states))


def _check_monitored_names(part: Any, actual: Mapping[str, Any], names: list[str]) -> None:
    if sorted(actual) != sorted(names):
        raise ValueError(
            f"{name_of(part)}: the measurements are {sorted(names)}, the state has "
            f"{sorted(actual)}. Was this state made by another transform's init?"
        )


def _first_state(measure: Any, params: Params) -> OptState:
    """Return the first state of a measure; an empty one for a function."""
    return measure.init(params) if isinstance(measure, SupportsTransform) else EmptyState()


def _monitored_measurement(
    measure: Any, updates: Updates, state: OptState, params: Params | None, extra: dict[str, Any]
) -> tuple[PyTree, OptState]:
    """Return a measurement and the new state of its measure."""
    if isinstance(measure, SupportsTransform):
        return call_update(measure, updates, state, params, extra)
    return measure(updates), state


@transform
class on_measurement(Transform):
    """Run a transform on a measurement of the updates; its result is the measurement, not updates.

    For `monitor`, which passes the updates on. In a state of measurements, booleans and integers
    are floats.

    Of its own kind: the inner transform sees a measurement, not updates.

    Args:
      inner: a transform, such as `ema`.
      measure: a function of the updates that returns an array, or a tree of arrays.
    """

    inner: Any
    measure: Callable[[Any], Any]

    locality = "tree"
    handles_rows = True

    def __post_init__(self) -> None:
        check_transform(self, self.inner, "inner")
        object.__setattr__(self, "measure", as_function(self.measure))

    def inner_states(self, state: OptState) -> list[tuple[Path, Any]]:
        """Return the place of the inner state."""
        return [(("1",), self.inner)]

    def init(self, params):
        """Return the inner state for the measurement of the parameters."""
        shapes = jax.eval_shape(lambda p: _measurement_as_floats(self.measure(p)), params)
        return EmptyState(), self.inner.init(shapes)

    def update(self, updates, state, params=None, **extra):
        """Return the result of the inner transform for the measurement."""
        if not isinstance(state, tuple | list) or len(state) != 2:
            raise TypeError(
                f"{name_of(self)}: the state must be a pair, got {shown(state)}. Was this state "
                "made by another transform's init?"
            )
        new, inner_state = call_update(
            self.inner, _measurement_as_floats(self.measure(updates)), state[1], None, extra
        )
        return new, (state[0], inner_state)


def _measurement_as_floats(measurement: PyTree) -> PyTree:
    """Return a measurement as arrays of floats, at least float32."""

    def as_float(x: Any) -> Any:
        is_inexact = jnp.issubdtype(dtype_of(x), jnp.inexact)
        return cast(jnp.asarray(x), at_least_float32(dtype_of(x)) if is_inexact else scalar_dtype())

    return jax.tree.map(as_float, measurement)


def measure_with_ema(
    measure: Callable[[Any], Any],
    decay: float,
    debias: bool = True,
    accumulator_dtype: DType = None,
) -> on_measurement:
    """Return a measure for `monitor`: the exponential moving average of a measurement.

    Args:
      measure: a function of the updates, as in `snapshot`; a boolean counts as 0 or 1.
      decay: as in `ema`.
      debias: as in `ema`.
      accumulator_dtype: as in `ema`.
    """
    return on_measurement(ema(decay, debias, accumulator_dtype), measure)


register("global_norm", global_norm)  # the usual measure, so that a config may name it
