"""The slots that Keras 3 keeps in another form: moments of Adafactor, Muon and the options."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gradxform.compat.keras.rates import at_most_inverse_sqrt
from gradxform.errors import name_of
from gradxform.leaves import Path, is_hole, path_str, with_paths
from gradxform.schedules.basic import constant_schedule
from gradxform.transforms.factored import scale_by_factored_rms
from gradxform.transforms.muon import scale_by_muon
from gradxform.types import Params
from gradxform.wrappers.multi_steps import MultiSteps
from gradxform.wrappers.overwrite import overwriting_average
from gradxform.wrappers.parts import all_parts, inner_parts

# In the order in which Keras makes them, before the slots of the rule.
OPTIONAL = ("average", "gradient_accumulator")
_COUNT = "iteration"
# Adafactor's moments, as Keras names the arrays of a parameter and as our state has them.
FACTORED = ("row", "column", "velocity")
_OURS = ("v_row", "v_col", "v")
# What Muon's orthogonalization has of its own; it remembers nothing, because its decay is 0.
_OF_MUON = ("mu", "ns_coeffs")


def to_keras3(caller: str, tx: Any, slots: Mapping[str, Any], params: Params) -> dict[str, Any]:
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
    steps, averages = _options_with_slots(tx)
    if averages:
        del slots["num_updates"]
    if steps is not None:
        n = slots.pop("mini_step")
        del slots["skip_state"]
        slots[_COUNT] = slots.pop("gradient_step") * steps + n
        slots["gradient_accumulator"] = jax.tree.map(
            lambda x: x * n.astype(x.dtype), slots.pop("acc_grads")
        )
    rule = _adafactor_rule_in(tx)
    if rule is not None:
        slots = _to_keras3_adafactor_slots(caller, rule, slots, params)
    return {k: x for k, x in slots.items() if k not in _OF_MUON} if has_muon(tx) else slots


def from_keras3(
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
    steps, averages = _options_with_slots(tx)
    n = jnp.asarray(slots[_COUNT], jnp.int32)
    if averages:
        slots["num_updates"] = n
    if steps is not None:
        done, mini = n // steps, n % steps
        slots |= {_COUNT: done, "gradient_step": done, "mini_step": mini}
        slots["acc_grads"] = jax.tree.map(
            lambda x: x / jnp.maximum(mini, 1).astype(x.dtype), slots.pop("gradient_accumulator")
        )
    rule = _adafactor_rule_in(tx)
    return slots if rule is None else _from_keras3_adafactor_slots(rule, slots, old, params)


def with_leaves(tree: Any, leaves: list[Any]) -> Any:
    """Return the leaves, holes included, in the structure of a slot."""
    treedef = jax.tree.structure(tree, is_leaf=is_hole)
    return jax.tree.unflatten(treedef, leaves)


def has_muon(tx: Any) -> bool:
    """Whether it is Keras's Muon, which has a `velocity` for some parameters only."""
    return any(isinstance(x, scale_by_muon) and x.beta == 0 for x in all_parts(tx))


def muon_of(tx: Any) -> Any:
    """Return the innermost chain that has Keras's Muon in it."""
    inside = next(filter(has_muon, inner_parts(tx)), None)
    return tx if inside is None or isinstance(inside, scale_by_muon) else muon_of(inside)


def unbounded_rate(schedule: Any) -> Any:
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
    for path, p, kept in _moments_in_slots(slots, _OURS, params):
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
    return _renamed_keras3_slots(slots, _OURS, FACTORED, theirs)


def _from_keras3_adafactor_slots(
    rule: scale_by_factored_rms, slots: dict[str, Any], old: Mapping[str, Any], params: Params
) -> dict[str, Any]:
    """Return the slots of our state. The moment of a matrix follows from its means."""
    ours = []
    before = _moments_in_slots(old, _OURS, params)
    for (_, p, new), (*_, kept) in zip(
        _moments_in_slots(slots, FACTORED, params), before, strict=True
    ):
        axes = None if is_hole(kept[2]) else rule.factored_axes(jnp.shape(p))
        if axes is None:
            ours.append((kept[0], kept[1], new[2]))
        else:
            ours.append((*_adafactor_means_by_size(axes, new[0], new[1]), kept[2]))
    return _renamed_keras3_slots(slots, FACTORED, _OURS, ours)


def _adafactor_means_by_size(axes: tuple[int, int], one: Any, other: Any) -> tuple[Any, Any]:
    """Return both means in the other library's order: ours is by the sizes of the axes."""
    second, first = axes
    return (one, other) if first > second else (other, one)


def _moments_in_slots(
    slots: Mapping[str, Any], names: tuple[str, ...], params: Params
) -> list[tuple[Path, Any, tuple[Any, ...]]]:
    """Return the path of every parameter, the parameter, and its arrays in the slots."""
    trees = [dict(with_paths(slots[k])) for k in names]
    of_path = dict(with_paths(params))
    return [(path, of_path.get(path), tuple(tree[path] for tree in trees)) for path in trees[0]]


def _renamed_keras3_slots(
    slots: dict[str, Any], old: tuple[str, ...], new: tuple[str, ...], moments: list[Any]
) -> dict[str, Any]:
    """Return the slots with the arrays of every parameter under new names."""
    columns = zip(*moments, strict=True) if moments else [()] * len(new)
    made = {k: with_leaves(slots[old[2]], list(x)) for k, x in zip(new, columns, strict=True)}
    return {k: x for k, x in slots.items() if k not in old} | made


def _options_with_slots(tx: Any) -> tuple[int | None, bool]:
    """Return how many calls make a step, if gradients accumulate, and if there is an average."""
    parts = list(all_parts(tx))
    periods = [part.every_k_schedule for part in parts if isinstance(part, MultiSteps)]
    steps = [k for k in periods if isinstance(k, int)]
    averages = any(isinstance(part, overwriting_average) for part in parts)
    return steps[0] if len(steps) == 1 else None, averages
