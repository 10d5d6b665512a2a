"""The weights of `MultiOptimizer`: its own two, then the list of each optimizer in it."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from gradxform.compat.keras.multi_optimizer import Multi
from gradxform.errors import shown
from gradxform.leaves import Path, map_with_paths
from gradxform.types import MaskedNode, Params
from gradxform.values import as_node

# In Keras's order. The learning rate does not mean anything: it stays 0.
_NAMES = ("iteration", "learning_rate")
_Named = list[tuple[str, np.ndarray]]


def named_multi(
    caller: str,
    version: int,
    multi: Multi,
    state: Any,
    params: Params,
    paths: list[Path],
    named: Callable[..., _Named],
) -> dict[str, _Named]:
    """Return the weights with their names, by the label of their optimizer; "" for its own.

    Args:
      caller: the function that the user has called, for messages.
      version: that of Keras.
      multi: the optimizer.
      state: its state.
      params: the parameters.
      paths: their paths in Keras's order.
      named: `named(caller, tx, state, params, version, order)` returns those of one optimizer.

    Raises:
      ValueError: unless version is 3.
    """
    if version != 3:
        raise ValueError(f"{caller}: MultiOptimizer is of Keras 3; pass version=3.")
    groups, counted = _core_of_multi_state(multi, state)
    own = (np.asarray(counted.count, np.int64), np.zeros((), np.float32))
    weights: dict[str, _Named] = {"": list(zip(_NAMES, own, strict=True))}
    for label, tx, chosen, order in _groups_of_multi_optimizer(multi, params, paths):
        inner_state = groups.inner_states[label].inner_state
        weights[label] = named(caller, tx, inner_state, chosen, version, order)
        if not order:  # Keras does not build an optimizer without parameters, nor count its steps
            rate = [x for x in weights[label] if x[0] == _NAMES[1]]
            weights[label] = [(_NAMES[0], np.zeros((), np.int64)), *rate]
    return weights


def with_multi(
    multi: Multi,
    state: Any,
    params: Params,
    weights: Any,
    paths: list[Path],
    old: dict[str, _Named],
    replaced: Callable[..., Any],
) -> Any:
    """Return the state with these weights in the place of its own.

    Args:
      multi: the optimizer.
      state: its state.
      params: the parameters.
      weights: the list of arrays.
      paths: the paths of the parameters in Keras's order.
      old: what `named_multi` returns.
      replaced: `replaced(tx, state, params, weights, version, order)` returns the state of one
        optimizer with others.

    Raises:
      ValueError: if the list has another length, or does not begin with two scalars.
    """
    groups, counted = _core_of_multi_state(multi, state)
    expected = sum(map(len, old.values()))
    if isinstance(weights, str | bytes) or not isinstance(weights, Sequence):
        raise ValueError(f"set_weights: weights must be a list of arrays, got {shown(weights)}.")
    if len(weights) != expected or any(map(np.ndim, weights[: len(_NAMES)])):
        parts = ", ".join(f"{len(x)} of {label!r}" for label, x in old.items() if label)
        raise ValueError(
            f"set_weights: got a list of {len(weights)}, expected {expected}: "
            f"{' and '.join(_NAMES)} of MultiOptimizer, which are scalars, then {parts}. Were the "
            "keys matched with other paths?"
        )
    states, at = dict(groups.inner_states), len(_NAMES)
    for label, tx, chosen, order in _groups_of_multi_optimizer(multi, params, paths):
        those = list(weights[at : at + len(old[label])])
        at += len(those)
        if order:  # else it has not taken a step
            inner = replaced(tx, states[label].inner_state, chosen, those, 3, order)
            states[label] = states[label]._replace(inner_state=inner)
    groups = groups._replace(inner_states=as_node(states))
    counted = counted._replace(count=jnp.asarray(weights[0], counted.count.dtype))
    core = (groups, counted)
    return core if multi.loss_scale_factor is None else (state[0], core)


def _core_of_multi_state(multi: Multi, state: Any) -> Any:
    """Return the state of the partition, and that of the count."""
    return state if multi.loss_scale_factor is None else state[1]


def _groups_of_multi_optimizer(
    multi: Multi, params: Params, paths: list[Path]
) -> Iterator[tuple[str, Any, Params, list[str]]]:
    """Yield every label, its optimizer, its parameters, and their paths in Keras's order."""
    labels = {path: multi.labels_of.label(path, None) for path in paths}
    for label, tx in multi.optimizers.items():
        chosen = map_with_paths(
            lambda path, p, label=label: p if labels[path] == label else MaskedNode(), params
        )
        yield label, tx, chosen, ["/".join(path) for path in paths if labels[path] == label]
