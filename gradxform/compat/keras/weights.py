"""The weights of Keras's optimizers: lists of arrays, as `optimizer.get_weights()` returns them."""

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from gradxform.compat.keras.holders import Multi, multi_of
from gradxform.compat.keras.schedules import at_most_inverse_sqrt
from gradxform.errors import did_you_mean, must_be, name_of, shown
from gradxform.leaves import Path, is_hole, map_with_paths, path_str, with_paths
from gradxform.run_states.learning_rate import current_learning_rate
from gradxform.run_states.slot_names import get_slots, set_slots
from gradxform.run_states.slot_names.words import COUNTS
from gradxform.schedules.basic import constant_schedule
from gradxform.transforms.factored import scale_by_factored_rms
from gradxform.transforms.muon import scale_by_muon
from gradxform.transforms.scaling import scale_by_learning_rate
from gradxform.types import MaskedNode, OptState, Params, SupportsTransform
from gradxform.values import as_node
from gradxform.wrappers.hyperparams.inject import injected
from gradxform.wrappers.loss_scale import LossScaleState, loss_scale
from gradxform.wrappers.multi_steps import MultiSteps
from gradxform.wrappers.overwrite import overwriting_average
from gradxform.wrappers.parts import all_parts, inner_parts

_RATE = "learning_rate"
# What `inject_hyperparams` and `step_by_schedule_free_adam` keep besides: not among its weights.
_NOT_KERAS = ("hyperparams", "hyperparams_states", "b1")
# The slots of optimizers that are the same in all versions of Keras.
_OF_FTRL, _OF_ADAGRAD, _OF_SGD = (("accumulator", "linear"),), (("accumulator",),), (("momentum",),)
# In the order in which Keras makes them, before the slots of the rule.
_OPTIONAL = ("average", "gradient_accumulator")
# Adafactor's moments, as Keras names the arrays of a parameter and as our state has them.
_FACTORED = ("row", "column", "velocity")
_OURS = ("v_row", "v_col", "v")
# What Muon's orthogonalization has of its own; it remembers nothing, because its decay is 0.
_OF_MUON = ("mu", "ns_coeffs")
# In Keras's order, before the weights of the optimizers inside. The first two do not mean anything
# in a loss scale, nor does the learning rate of a `MultiOptimizer`: they stay 0.
_OF_SCALE = ("iteration", "learning_rate", "step_counter", "dynamic_scale")
_OF_MULTI = ("iteration", "learning_rate")
_Named = list[tuple[str, np.ndarray]]


# --------------------------------------------------------- slots that Keras 3 keeps in another form


def _to_keras3(caller: str, tx: Any, slots: Mapping[str, Any], params: Params) -> dict[str, Any]:
    """Return the slots of `get_slots(..., "keras3")` as Keras 3 keeps them.

    Keras counts every call, also those that only accumulate, and adds the gradients up.

    Args:
      caller: the function that the user has called, for messages.
      tx: the optimizer.
      slots: its slots.
      params: the parameters.

    Raises:
      ValueError: if Adafactor factors other axes of some parameter than Keras does.
    """
    slots = dict(slots)
    steps, averages = _averages_and_steps(tx)
    if averages:
        del slots["num_updates"]
    if steps is not None:
        n = slots.pop("mini_step")
        del slots["skip_state"]
        slots[COUNTS["keras3"]] = slots.pop("gradient_step") * steps + n
        slots["gradient_accumulator"] = jax.tree.map(
            lambda x: x * n.astype(x.dtype), slots.pop("acc_grads")
        )
    rule = _adafactor_rule_in(tx)
    if rule is not None:
        slots = _to_keras3_adafactor_slots(caller, rule, slots, params)
    return {k: x for k, x in slots.items() if k not in _OF_MUON} if _has_muon(tx) else slots


def _from_keras3(
    tx: Any, slots: Mapping[str, Any], old: Mapping[str, Any], params: Params
) -> dict[str, Any]:
    """Return the slots that `set_slots(..., "keras3")` takes, of those that Keras 3 keeps.

    Args:
      tx: the optimizer.
      slots: what `to_keras3` returned, with other values.
      old: what `to_keras3` was given, for what Keras does not keep.
      params: the parameters.
    """
    slots = dict(slots)
    steps, averages = _averages_and_steps(tx)
    n = jnp.asarray(slots[COUNTS["keras3"]], jnp.int32)
    if averages:
        slots["num_updates"] = n
    if steps is not None:
        done, mini = n // steps, n % steps
        slots |= {COUNTS["keras3"]: done, "gradient_step": done, "mini_step": mini}
        slots["acc_grads"] = jax.tree.map(
            lambda x: x / jnp.maximum(mini, 1).astype(x.dtype), slots.pop("gradient_accumulator")
        )
    rule = _adafactor_rule_in(tx)
    return slots if rule is None else _from_keras3_adafactor_slots(rule, slots, old, params)


def _with_leaves(tree: Any, leaves: list[Any]) -> Any:
    """Return the leaves, holes included, in the structure of a slot."""
    treedef = jax.tree.structure(tree, is_leaf=is_hole)
    return jax.tree.unflatten(treedef, leaves)


def _has_muon(tx: Any) -> bool:
    """Whether it is Keras's Muon, which has a `velocity` for some parameters only."""
    return any(isinstance(x, scale_by_muon) and x.beta == 0 for x in all_parts(tx))


def _muon_of(tx: Any) -> Any:
    """Return the innermost chain that has Keras's Muon in it."""
    inside = next(filter(_has_muon, inner_parts(tx)), None)
    return tx if inside is None or isinstance(inside, scale_by_muon) else _muon_of(inside)


def _unbounded_rate(schedule: Any) -> Any:
    """Return the number or schedule that Adafactor bounds by the step; another one as it is."""
    if not isinstance(schedule, at_most_inverse_sqrt):
        return schedule
    inner = schedule.schedule
    return inner.value if isinstance(inner, constant_schedule) else inner


# -------------------------------------------------------------------------------------- Adafactor


def _adafactor_rule_in(tx: Any) -> scale_by_factored_rms | None:
    return next((x for x in all_parts(tx) if isinstance(x, scale_by_factored_rms)), None)


def _to_keras3_adafactor_slots(
    caller: str, rule: scale_by_factored_rms, slots: dict[str, Any], params: Params
) -> dict[str, Any]:
    """Return slots with the means of rows and columns, and with the moment that they stand for.

    Keras keeps the moment too, and scalars in the place of the means of a vector.
    """
    theirs = []
    for path, p, kept in _moments(slots, _OURS, params):
        axes = None if is_hole(kept[2]) else rule.factored_axes(jnp.shape(p))
        if axes is None:
            zero = np.zeros((), np.int32)
            theirs.append(kept if is_hole(kept[2]) else (zero, zero, kept[2]))
            continue
        last = jnp.ndim(p) - 1
        if set(axes) != {last, last - 1}:
            raise ValueError(
                f"{caller}: {path_str(path)} has shape {jnp.shape(p)}; Keras's Adafactor factors "
                f"its last two axes, {name_of(rule)} the two largest, so that the moments of one "
                "are not those of the other. Begin with init."
            )
        row, column = _adafactor_means_by_size(axes, kept[0], kept[1])
        mean = jnp.mean(row, axis=-1, keepdims=True)
        share = jnp.where(mean == 0, 0, row / jnp.where(mean == 0, 1, mean))
        theirs.append((row, column, share[..., None] * column[..., None, :]))
    return _renamed(slots, _OURS, _FACTORED, theirs)


def _from_keras3_adafactor_slots(
    rule: scale_by_factored_rms, slots: dict[str, Any], old: Mapping[str, Any], params: Params
) -> dict[str, Any]:
    """Return the slots of our state. The moment of a matrix follows from its means."""
    ours = []
    before = _moments(old, _OURS, params)
    for (_, p, new), (*_, kept) in zip(_moments(slots, _FACTORED, params), before, strict=True):
        axes = None if is_hole(kept[2]) else rule.factored_axes(jnp.shape(p))
        if axes is None:
            ours.append((kept[0], kept[1], new[2]))
        else:
            ours.append((*_adafactor_means_by_size(axes, new[0], new[1]), kept[2]))
    return _renamed(slots, _FACTORED, _OURS, ours)


def _adafactor_means_by_size(axes: tuple[int, int], one: Any, other: Any) -> tuple[Any, Any]:
    """Return both means in the other library's order: ours is by the sizes of the axes."""
    second, first = axes
    return (one, other) if first > second else (other, one)


def _moments(
    slots: Mapping[str, Any], names: tuple[str, ...], params: Params
) -> list[tuple[Path, Any, tuple[Any, ...]]]:
    """Return the path of every parameter, the parameter, and its arrays in the slots."""
    trees = [dict(with_paths(slots[k])) for k in names]
    of_path = dict(with_paths(params))
    return [(path, of_path.get(path), tuple(tree[path] for tree in trees)) for path in trees[0]]


def _renamed(
    slots: dict[str, Any], old: tuple[str, ...], new: tuple[str, ...], moments: list[Any]
) -> dict[str, Any]:
    """Return the slots with the arrays of every parameter under new names."""
    columns = zip(*moments, strict=True) if moments else [()] * len(new)
    made = {k: _with_leaves(slots[old[2]], list(x)) for k, x in zip(new, columns, strict=True)}
    return {k: x for k, x in slots.items() if k not in old} | made


def _averages_and_steps(tx: Any) -> tuple[int | None, bool]:
    """Return how many calls make a step, if gradients accumulate, and if there is an average."""
    parts = list(all_parts(tx))
    periods = [part.every_k_schedule for part in parts if isinstance(part, MultiSteps)]
    steps = [k for k in periods if isinstance(k, int)]
    averages = any(isinstance(part, overwriting_average) for part in parts)
    return steps[0] if len(steps) == 1 else None, averages


# -------------------------------------------------------------------------------------------- lists


class _Place(NamedTuple):
    """The entry at one place of the list: a scalar, or the slot of a parameter."""

    name: str
    path: Path | None = None

    def __str__(self) -> str:
        return self.name if self.path is None else f"{self.name} of {path_str(self.path)}"


def _list_of_keras_1(weights: list[Any], places: list[_Place], params: Params) -> list[Any]:
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
    optional=_OPTIONAL,
    of_rms=(("velocity",), ("momentum",), ("average_gradient",)),
    of_others=(
        (("momentum", "velocity"), ("velocity_hat",)),
        (("momentum", "norm"),),
        (_FACTORED,),
        (("accumulated_grad", "accumulated_delta_var"),),
        *(_OF_FTRL, _OF_ADAGRAD, _OF_SGD),
    ),
    read=lambda weights, places, params: weights,
    to_keras=_to_keras3,
    from_keras=_from_keras3,
)


def _order_of_version(caller: str, version: int) -> _WeightOrder:
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
) -> _Named:
    """Return the weights, each with its name, such as `dense/kernel/m`; see `get_weights`."""
    keras = _order_of_version(caller, version)
    if keras.has_rate and isinstance(tx, loss_scale):
        inner = named_weights(caller, tx.inner, state.inner_state, params, version, order)
        return [*_of_scale(state), *inner]
    multi = multi_of(tx)
    if multi is not None:
        parts = _named_multi(caller, version, multi, state, params, order)
        return [x for part in parts.values() for x in part]
    slots, places = _layout(caller, keras, tx, state, params, order)
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
    keras = _order_of_version("set_weights", version)
    if keras.has_rate and isinstance(tx, loss_scale):
        state, rest = _with_scale(state, weights)
        inner = with_weights(tx.inner, state.inner_state, params, rest, version, order)
        return state._replace(inner_state=inner)
    multi = multi_of(tx)
    if multi is not None:
        return _with_multi(multi, state, params, weights, version, order)
    slots, places = _layout("set_weights", keras, tx, state, params, order)
    if isinstance(weights, str | bytes) or not isinstance(weights, Sequence):
        raise ValueError(f"set_weights: weights must be a list of arrays, got {shown(weights)}.")
    values = keras.read(list(weights), places, params)
    if len(values) != len(places):
        raise ValueError(
            f"set_weights: got a list of {len(weights)}, expected {len(places)}: "
            f"{_listed(places)}. Was the list made by another optimizer, or by Keras "
            f"{5 - version} (version={5 - version})?"
        )
    trees = {k: dict(with_paths(x)) for k, x in slots.items()}
    scalars: dict[str, Any] = {}
    for i, (place, value) in enumerate(zip(places, values, strict=True)):
        old = slots[place.name] if place.path is None else trees[place.name][place.path]
        value = _array(f"weights[{i}], the {place},", value)
        if jnp.shape(value) != jnp.shape(old):
            raise ValueError(
                f"set_weights: weights[{i}], the {place}, must have shape {jnp.shape(old)}, got "
                f"{jnp.shape(value)}. Pass order=, the paths of the parameters in the order of the "
                "Keras model."
            )
        if np.iscomplexobj(value) and not jnp.iscomplexobj(old):
            raise ValueError(
                f"set_weights: weights[{i}], the {place}, must be real, got {shown(value)}."
            )
        if place.name == keras.count and np.any(np.asarray(value) < 0):
            raise ValueError(
                f"set_weights: weights[{i}], the {place}, must be at least 0, got {shown(value)}."
            )
        if place.path is None:
            scalars[place.name] = value
        else:
            trees[place.name][place.path] = value
    if _RATE in scalars:
        state = _with_rate(tx, state, float(slots[_RATE]), float(scalars.pop(_RATE)))
    names = dict.fromkeys(place.name for place in places if place.path is not None)
    new = scalars | {k: _with_leaves(slots[k], list(trees[k].values())) for k in names}
    new = keras.from_keras(tx, new, get_slots(tx, state, keras.style), params)
    return set_slots(tx, state, new, keras.style)


def _layout(
    caller: str, keras: _WeightOrder, tx: Any, state: Any, params: Any, order: Sequence[str] | None
) -> tuple[dict[str, Any], list[_Place]]:
    """Return the slots by Keras's names, and what stands where in the list."""
    paths = parameter_paths(caller, params, order)
    slots = keras.to_keras(caller, tx, get_slots(tx, state, keras.style), params)
    if keras.count not in slots:
        raise ValueError(
            f"{caller}: nothing in the state of {name_of(tx)} counts the updates, as Keras does; "
            "use an optimizer of compat.keras, or add count_updates()."
        )
    names = [k for k in slots if k not in (keras.count, keras.scalar, *_NOT_KERAS)]
    blocks = _blocks(caller, keras, tx, names)
    head, tail = [_Place(keras.count)], []
    rate = _rate_among_weights(tx, state, slots) if keras.has_rate else None
    if rate is not None:
        slots = slots | {_RATE: np.asarray(rate, np.float32)}
        head.append(_Place(_RATE))
    if keras.scalar in slots:
        (tail if keras.scalar_is_last else head).append(_Place(keras.scalar))
    trees = {k: dict(with_paths(slots[k])) for k in names}
    body = [
        _Place(k, path)
        for block in blocks
        for path in paths
        for k in block
        if not (k == "velocity" and _has_muon(tx) and is_hole(trees[k].get(path)))
    ]
    for place in body:
        if place.path is None or is_hole(trees[place.name].get(place.path)):
            raise ValueError(
                f"{caller}: the state has no {place}. Pass only the parameters that the optimizer "
                "updates, as Keras's lists do."
            )
    return slots, [*head, *body, *tail]


def _blocks(caller: str, keras: _WeightOrder, tx: Any, names: list[str]) -> list[tuple[str, ...]]:
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
            rates.append(_unbounded_rate(rate))
        elif rate is not None and not callable(rate):
            rates.append(rate)
    if _has_muon(tx):  # Adam's has a factor of its own
        rates = [part.learning_rate for part in all_parts(_muon_of(tx)) if hasattr(part, _RATE)]
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


def _array(where: str, x: Any) -> Any:
    """Return a weight as an array; lists of numbers, as JSON has them, become one."""
    try:
        array = x if hasattr(x, "dtype") else np.asarray(x)
    except ValueError:  # rows of different lengths
        array = np.asarray(None)
    if np.dtype(array.dtype).kind in "OSUmM":
        raise ValueError(f"set_weights: {where} must be an array of numbers, got {shown(x)}.")
    return array


def _listed(places: list[_Place]) -> str:
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


def _with_rate(tx: Any, state: Any, ours: float, theirs: float) -> Any:
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


# ------------------------------------------------------------------------------- LossScaleOptimizer


def _of_scale(state: LossScaleState) -> _Named:
    """Return the weights that stand before those of the optimizer inside, by name."""
    values = (
        np.zeros((), np.int64),
        np.zeros((), np.float32),
        np.asarray(state.finite_steps, np.int32),
        np.asarray(state.loss_scale, np.float32),
    )
    return list(zip(_OF_SCALE, values, strict=True))


def _with_scale(state: LossScaleState, weights: Any) -> tuple[LossScaleState, Sequence[np.ndarray]]:
    """Return the state with the scale and the count of a list, and the rest of the list.

    Raises:
      ValueError: if the list does not begin with the weights of `LossScaleOptimizer`.
    """
    is_list = isinstance(weights, Sequence) and not isinstance(weights, str | bytes)
    n = len(_OF_SCALE)
    if not is_list or len(weights) < n or any(map(np.ndim, weights[:n])):
        raise ValueError(
            f"set_weights: the weights of LossScaleOptimizer begin with {', '.join(_OF_SCALE)}, "
            f"got {shown(weights)}. Was the list made by the optimizer inside?"
        )
    *_, count, scale = weights[:n]
    state = state._replace(
        finite_steps=jnp.asarray(count, state.finite_steps.dtype),
        loss_scale=jnp.asarray(scale, state.loss_scale.dtype),
    )
    return state, weights[n:]


# ----------------------------------------------------------------------------------- MultiOptimizer


def _named_multi(
    caller: str,
    version: int,
    multi: Multi,
    state: Any,
    params: Params,
    order: Sequence[str] | None,
) -> dict[str, _Named]:
    """Return the weights with their names, by the label of their optimizer; "" for its own two.

    Raises:
      ValueError: unless version is 3, or if `order` is wrong.
    """
    if version != 3:
        raise ValueError(f"{caller}: MultiOptimizer is of Keras 3; pass version=3.")
    groups, counted = _core_of_state(multi, state)
    own = (np.asarray(counted.count, np.int64), np.zeros((), np.float32))
    weights: dict[str, _Named] = {"": list(zip(_OF_MULTI, own, strict=True))}
    for label, tx, chosen, names in _groups(caller, multi, params, order):
        inner_state = groups.inner_states[label].inner_state
        weights[label] = named_weights(caller, tx, inner_state, chosen, version, names)
        if not names:  # Keras does not build an optimizer without parameters, nor count its steps
            rate = [x for x in weights[label] if x[0] == _OF_MULTI[1]]
            weights[label] = [(_OF_MULTI[0], np.zeros((), np.int64)), *rate]
    return weights


def _with_multi(
    multi: Multi,
    state: Any,
    params: Params,
    weights: Any,
    version: int,
    order: Sequence[str] | None,
) -> Any:
    """Return the state with these weights in the place of its own.

    Raises:
      ValueError: if the list has another length, or does not begin with two scalars.
    """
    old = _named_multi("set_weights", version, multi, state, params, order)
    groups, counted = _core_of_state(multi, state)
    expected = sum(map(len, old.values()))
    if isinstance(weights, str | bytes) or not isinstance(weights, Sequence):
        raise ValueError(f"set_weights: weights must be a list of arrays, got {shown(weights)}.")
    if len(weights) != expected or any(map(np.ndim, weights[: len(_OF_MULTI)])):
        parts = ", ".join(f"{len(x)} of {label!r}" for label, x in old.items() if label)
        raise ValueError(
            f"set_weights: got a list of {len(weights)}, expected {expected}: "
            f"{' and '.join(_OF_MULTI)} of MultiOptimizer, which are scalars, then {parts}. Were "
            "the keys matched with other paths?"
        )
    states, at = dict(groups.inner_states), len(_OF_MULTI)
    for label, tx, chosen, names in _groups("set_weights", multi, params, order):
        those = list(weights[at : at + len(old[label])])
        at += len(those)
        if names:  # else it has not taken a step
            inner = with_weights(tx, states[label].inner_state, chosen, those, version, names)
            states[label] = states[label]._replace(inner_state=inner)
    groups = groups._replace(inner_states=as_node(states))
    counted = counted._replace(count=jnp.asarray(weights[0], counted.count.dtype))
    core = (groups, counted)
    return core if multi.loss_scale_factor is None else (state[0], core)


def _core_of_state(multi: Multi, state: Any) -> Any:
    """Return the state of the partition, and that of the count."""
    return state if multi.loss_scale_factor is None else state[1]


def _groups(
    caller: str, multi: Multi, params: Params, order: Sequence[str] | None
) -> Iterator[tuple[str, Any, Params, list[str]]]:
    """Yield every label, its optimizer, its parameters, and their paths in Keras's order."""
    paths = parameter_paths(caller, params, order)
    labels = {path: multi.labels_of.label(path, None) for path in paths}
    for label, tx in multi.optimizers.items():
        chosen = map_with_paths(
            lambda path, p, label=label: p if labels[path] == label else MaskedNode(), params
        )
        yield label, tx, chosen, ["/".join(path) for path in paths if labels[path] == label]
