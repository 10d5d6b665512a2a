"""The weights of Keras's optimizers: lists of arrays, as `optimizer.get_weights()` returns them."""

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from gradxform.compat.keras.keras3_slots import (
    FACTORED,
    OPTIONAL,
    from_keras3,
    has_muon,
    muon_of,
    to_keras3,
    unbounded_rate,
    with_leaves,
)
from gradxform.compat.keras.loss_scale import own_weights, with_own_weights
from gradxform.compat.keras.multi_optimizer import multi_of
from gradxform.compat.keras.multi_weights import named_multi, with_multi
from gradxform.errors import did_you_mean, must_be, name_of, shown
from gradxform.leaves import Path, is_hole, path_str, with_paths
from gradxform.run_states.learning_rate import current_learning_rate
from gradxform.run_states.slot_names import get_slots, set_slots
from gradxform.run_states.slot_names.words import COUNTS
from gradxform.transforms.scaling import scale_by_learning_rate
from gradxform.types import OptState, Params, SupportsTransform
from gradxform.wrappers.hyperparams.inject import injected
from gradxform.wrappers.loss_scale import loss_scale
from gradxform.wrappers.parts import all_parts

_RATE = "learning_rate"
# What `inject_hyperparams` and `step_by_schedule_free_adam` keep besides: not among its weights.
_NOT_KERAS = ("hyperparams", "hyperparams_states", "b1")
# The slots of optimizers that are the same in all versions of Keras.
_OF_FTRL, _OF_ADAGRAD, _OF_SGD = (("accumulator", "linear"),), (("accumulator",),), (("momentum",),)


class _WeightPlace(NamedTuple):
    """The entry at one place of the list: a scalar, or the slot of a parameter."""

    name: str
    path: Path | None = None

    def __str__(self) -> str:
        return self.name if self.path is None else f"{self.name} of {path_str(self.path)}"


def _list_of_keras_1(weights: list[Any], places: list[_WeightPlace], params: Params) -> list[Any]:
    """Return a list as Keras 2 has it, of one that may be of Keras 1."""
    if len(weights) == len(places) - 1:  # without iterations
        return [np.zeros((), np.int64), *weights]
    count, names = len(jax.tree.leaves(params)), {place.name for place in places}
    if names == {"iterations", "m", "v"} and len(weights) == 3 * count + 1:  # with vhat
        return weights[: len(places)]
    return weights


@dataclasses.dataclass(frozen=True, kw_only=True)
class _WeightOrder:
    """How one version of Keras lists the weights of its optimizers. The defaults are Keras 2's."""

    number: int
    style: str  # of the names of slots, in `get_slots`
    scalar: str  # Nadam's: after the count, or `scalar_is_last`
    scalar_is_last: bool = False
    has_rate: bool = False  # whether the learning rate and the scale of the loss are weights
    optional: tuple[str, ...] = ()  # slots of options, each for all parameters, before the others
    # The slots of each optimizer, in Keras's order: those of one tuple stand together for every
    # parameter, the tuples one after the other.
    of_rms: tuple[tuple[str, ...], ...]
    of_others: tuple[tuple[tuple[str, ...], ...], ...]
    # A list of an earlier version as one of this, and slots as this version has them and as ours.
    read: Callable[..., list[Any]]
    to_keras: Callable[..., dict[str, Any]] = lambda caller, tx, slots, params: slots
    from_keras: Callable[..., dict[str, Any]] = lambda tx, slots, old, params: slots

    @property
    def count(self) -> str:
        """The name of the count, which is first."""
        return COUNTS[self.style]


_KERAS_2 = _WeightOrder(
    number=2,
    style="keras",
    scalar="momentum_cache",
    of_rms=(("rms",), ("momentum",), ("mg",)),
    of_others=(
        (("m",), ("v",), ("vhat",)),
        (("accum_grad",), ("accum_var",)),
        *(_OF_FTRL, _OF_ADAGRAD, _OF_SGD),
    ),
    read=_list_of_keras_1,
)
_KERAS_3 = _WeightOrder(
    number=3,
    style="keras3",
    scalar="product",
    scalar_is_last=True,
    has_rate=True,
    optional=OPTIONAL,
    of_rms=(("velocity",), ("momentum",), ("average_gradient",)),
    of_others=(
        (("momentum", "velocity"), ("velocity_hat",)),
        (("momentum", "norm"),),
        (FACTORED,),
        (("accumulated_grad", "accumulated_delta_var"),),
        *(_OF_FTRL, _OF_ADAGRAD, _OF_SGD),
    ),
    read=lambda weights, places, params: weights,
    to_keras=to_keras3,
    from_keras=from_keras3,
)


def _weight_order_of_version(caller: str, version: int) -> _WeightOrder:
    for keras in (_KERAS_2, _KERAS_3):
        if version == keras.number:
            return keras
    raise ValueError(f"{caller}: version must be 2 or 3, got {shown(version)}.")


def get_weights(
    tx: SupportsTransform,
    state: OptState,
    params: Params,
    version: int = 2,
    order: Sequence[str] | None = None,
) -> list[np.ndarray]:
    """Return the weights of one of Keras's optimizers, as its `get_weights` does.

    Keras 2 has `iterations`, for Nadam `momentum_cache`, then every slot for all parameters; Ftrl
    both slots of a parameter together. Keras 3 has `iteration`, the learning rate unless it is a
    schedule, the average and the sums of gradients that its options ask for, the slots of a
    parameter together (but each slot of RMSprop, and `velocity_hat`, for all parameters), and
    Nadam's product last. `LossScaleOptimizer` has `iteration` and `learning_rate`, which are 0,
    `step_counter` and `dynamic_scale`, and then the weights of the optimizer inside.

    Args:
      tx: an optimizer of `compat.keras`, also inside wrappers without arrays of their own.
      state: its state.
      params: the parameters.
      version: 2 or 3.
      order: the parameters' paths, such as `dense/kernel`, in the order of the Keras model. By
        default the order of the tree, in which dicts are sorted by key.

    Raises:
      ValueError: if `version` or `order` is wrong, or the state has what Keras's optimizers do not.
    """
    return [x for _, x in named_weights("get_weights", tx, state, params, version, order)]


def named_weights(
    caller: str,
    tx: SupportsTransform,
    state: OptState,
    params: Params,
    version: int,
    order: Sequence[str] | None = None,
) -> list[tuple[str, np.ndarray]]:
    """Return the weights, each with its name, such as `dense/kernel/m`; see `get_weights`."""
    keras = _weight_order_of_version(caller, version)
    if keras.has_rate and isinstance(tx, loss_scale):
        inner = named_weights(caller, tx.inner, state.inner_state, params, version, order)
        return [*own_weights(state), *inner]
    multi = multi_of(tx)
    if multi is not None:
        paths = parameter_paths(caller, params, order)
        parts = named_multi(caller, version, multi, state, params, paths, named_weights)
        return [x for part in parts.values() for x in part]
    slots, places = _layout_of_weights(caller, keras, tx, state, params, order)
    trees = {k: dict(with_paths(x)) for k, x in slots.items()}
    weights = []
    for place in places:
        value = slots[place.name] if place.path is None else trees[place.name][place.path]
        dtype = np.int64 if place.name == keras.count else None
        weights.append(("/".join((*(place.path or ()), place.name)), np.asarray(value, dtype)))
    return weights


def set_weights(
    tx: SupportsTransform,
    params: Params,
    weights: Sequence[Any],
    version: int = 2,
    order: Sequence[str] | None = None,
) -> OptState:
    """Return the state of an optimizer that has these weights of Keras.

    Lists of Keras 1 are read too: those without iterations, from which the run goes on at 0, and
    those of an Adam that has `vhat` without needing it.

    Args:
      tx: an optimizer of `compat.keras`, made with the arguments of Keras's.
      params: the parameters.
      weights: the list of arrays, as `optimizer.get_weights()` returns it, or as it is in a file.
      version: 2 or 3: the Keras that made the list.
      order: as for `get_weights`.

    Raises:
      ValueError: if `version` or `order` is wrong, the list has another length, or an array another
        shape; if it has another learning rate than `tx`, in whose state that is not.
    """
    return with_weights(tx, tx.init(params), params, weights, version, order)


def with_weights(
    tx: SupportsTransform,
    state: OptState,
    params: Params,
    weights: Sequence[Any],
    version: int,
    order: Sequence[str] | None = None,
) -> OptState:
    """Return a state with these weights in place of its own; see `set_weights`."""
    keras = _weight_order_of_version("set_weights", version)
    if keras.has_rate and isinstance(tx, loss_scale):
        state, rest = with_own_weights(state, weights)
        inner = with_weights(tx.inner, state.inner_state, params, rest, version, order)
        return state._replace(inner_state=inner)
    multi = multi_of(tx)
    if multi is not None:
        paths = parameter_paths("set_weights", params, order)
        old = named_multi("set_weights", version, multi, state, params, paths, named_weights)
        return with_multi(multi, state, params, weights, paths, old, with_weights)
    slots, places = _layout_of_weights("set_weights", keras, tx, state, params, order)
    if isinstance(weights, str | bytes) or not isinstance(weights, Sequence):
        raise ValueError(f"set_weights: weights must be a list of arrays, got {shown(weights)}.")
    values = keras.read(list(weights), places, params)
    if len(values) != len(places):
        raise ValueError(
            f"set_weights: got a list of {len(weights)}, expected {len(places)}: "
            f"{_listed_weights(places)}. Was the list made by another optimizer, or by Keras "
            f"{5 - version} (version={5 - version})?"
        )
    trees = {k: dict(with_paths(x)) for k, x in slots.items()}
    scalars: dict[str, Any] = {}
    for i, (place, value) in enumerate(zip(places, values, strict=True)):
        old = slots[place.name] if place.path is None else trees[place.name][place.path]
        value = _array_of_weight(f"weights[{i}], the {place},", value)
        if jnp.shape(value) != jnp.shape(old):
            raise ValueError(
                f"set_weights: weights[{i}], the {place}, must have shape {jnp.shape(old)}, got "
                f"{jnp.shape(value)}. Pass order=, the paths of the parameters in the order of the "
                "Keras model."
            )
        if place.path is None:
            scalars[place.name] = value
        else:
            trees[place.name][place.path] = value
    if _RATE in scalars:
        state = _with_rate_of_weights(tx, state, float(slots[_RATE]), float(scalars.pop(_RATE)))
    names = dict.fromkeys(place.name for place in places if place.path is not None)
    new = scalars | {k: with_leaves(slots[k], list(trees[k].values())) for k in names}
    new = keras.from_keras(tx, new, get_slots(tx, state, keras.style), params)
    return set_slots(tx, state, new, keras.style)


def _layout_of_weights(
    caller: str, keras: _WeightOrder, tx: Any, state: Any, params: Any, order: Sequence[str] | None
) -> tuple[dict[str, Any], list[_WeightPlace]]:
    """Return the slots by Keras's names, and what stands where in the list."""
    paths = parameter_paths(caller, params, order)
    slots = keras.to_keras(caller, tx, get_slots(tx, state, keras.style), params)
    if keras.count not in slots:
        raise ValueError(
            f"{caller}: nothing in the state of {name_of(tx)} counts the updates, as Keras does; "
            "use an optimizer of compat.keras, or add count_updates()."
        )
    names = [k for k in slots if k not in (keras.count, keras.scalar, *_NOT_KERAS)]
    blocks = _blocks_of_weights(caller, keras, tx, names)
    head, tail = [_WeightPlace(keras.count)], []
    rate = _rate_among_weights(tx, state, slots) if keras.has_rate else None
    if rate is not None:
        slots = slots | {_RATE: np.asarray(rate, np.float32)}
        head.append(_WeightPlace(_RATE))
    if keras.scalar in slots:
        (tail if keras.scalar_is_last else head).append(_WeightPlace(keras.scalar))
    trees = {k: dict(with_paths(slots[k])) for k in names}
    body = [
        _WeightPlace(k, path)
        for block in blocks
        for path in paths
        for k in block
        if not (k == "velocity" and has_muon(tx) and is_hole(trees[k].get(path)))
    ]
    for place in body:
        if place.path is None or is_hole(trees[place.name].get(place.path)):
            raise ValueError(
                f"{caller}: the state has no {place}. Pass only the parameters that the optimizer "
                "updates, as Keras's lists do."
            )
    return slots, [*head, *body, *tail]


def _blocks_of_weights(
    caller: str, keras: _WeightOrder, tx: Any, names: list[str]
) -> list[tuple[str, ...]]:
    """Return the blocks of the optimizer that has these slots."""
    has_rms = any(name_of(x) in ("scale_by_rms", "scale_by_stddev") for x in all_parts(tx))
    optional = [(k,) for k in keras.optional if k in names]
    names = [k for k in names if (k,) not in optional]
    for kind in (keras.of_rms,) if has_rms else keras.of_others:
        of_kind = [block for block in kind if set(block) <= set(names)]
        if {k for block in of_kind for k in block} == set(names):
            return [*optional, *of_kind]
    raise ValueError(
        f"{caller}: {name_of(tx)} has slots {', '.join(map(repr, names))}, which are those of none "
        f"of Keras {keras.number}'s optimizers. Pass an optimizer of compat.keras and its own "
        "state."
    )


def _rate_among_weights(tx: Any, state: Any, slots: dict[str, Any]) -> Any:
    """Return the learning rate, a variable of Keras 3; None if it is a schedule."""
    rates = []
    for part in all_parts(tx):
        if isinstance(part, injected):
            if _RATE not in part.numbers:
                return None
            hyperparams = slots.get("hyperparams") or {_RATE: current_learning_rate(tx, state)}
            return hyperparams[_RATE]
        rate = getattr(part, _RATE, None)
        if isinstance(part, scale_by_learning_rate):
            rates.append(unbounded_rate(rate))
        elif rate is not None and not callable(rate):
            rates.append(rate)
    if has_muon(tx):  # Adam's has a factor of its own
        rates = [part.learning_rate for part in all_parts(muon_of(tx)) if hasattr(part, _RATE)]
    return None if not rates or callable(rates[0]) else rates[0]


def parameter_paths(caller: str, params: Any, order: Sequence[str] | None) -> list[Path]:
    """Return the paths of the parameters in the order of their names in `order`."""
    paths = {"/".join(path): path for path, p in with_paths(params) if not is_hole(p)}
    if order is None:
        return list(paths.values())
    if isinstance(order, str) or not all(isinstance(k, str) for k in order):
        raise ValueError(must_be(caller, "order", "a list of paths such as 'dense/kernel'", order))
    for name in order:
        if name not in paths:
            raise ValueError(
                f"{caller}: order has {name!r}, which is not a parameter."
                f"{did_you_mean(name, paths)}"
            )
    left_out = [name for name in paths if name not in order]
    if left_out or len(order) != len(paths):
        what = f"leaves out {left_out[0]!r}" if left_out else "names a parameter twice"
        raise ValueError(f"{caller}: order {what}; it must name every parameter once.")
    return [paths[name] for name in order]


def _array_of_weight(where: str, x: Any) -> Any:
    """Return a weight as an array; lists of numbers, as JSON has them, become one."""
    try:
        array = x if hasattr(x, "dtype") else np.asarray(x)
    except ValueError:  # rows of different lengths
        array = np.asarray(None)
    if np.dtype(array.dtype).kind in "OSUmM":
        raise ValueError(f"set_weights: {where} must be an array of numbers, got {shown(x)}.")
    return array


def _listed_weights(places: list[_WeightPlace]) -> str:
    """Return the order of a list in words, without the parameters' names."""
    words: dict[str, None] = {}  # a list has the same words for all its parameters
    paths = {place.path for place in places} - {None}
    each = "the parameter" if len(paths) == 1 else f"each of {len(paths)} parameters"
    for path, group in itertools.groupby(places, lambda place: place.path):
        names = [place.name for place in group]
        if path is None:
            words |= dict.fromkeys(names)
        else:
            words[f"{' and '.join(names)} of {each}"] = None
    return ", then ".join(words)


def _with_rate_of_weights(tx: Any, state: Any, ours: float, theirs: float) -> Any:
    """Return the state with the learning rate of the list."""
    if np.float32(ours) == np.float32(theirs):
        return state
    slots = get_slots(tx, state, "gradxform")
    hyperparams = slots.get("hyperparams")
    if isinstance(hyperparams, dict) and _RATE in hyperparams:
        changed = hyperparams | {_RATE: np.asarray(theirs, np.float32)}
        return set_slots(tx, state, {"hyperparams": changed})
    raise ValueError(
        f"set_weights: the learning rate in the list is {theirs:.6g}, that of {name_of(tx)} is "
        f"{ours:.6g}. Make the optimizer with learning_rate={theirs:.6g}, or with "
        "inject_hyperparams, which keeps it in the state."
    )
