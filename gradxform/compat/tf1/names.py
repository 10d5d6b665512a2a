"""TensorFlow 1's names for the variables of an optimizer, by its name or by those of the slots."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from gradxform.base import unwrapped
from gradxform.errors import did_you_mean, name_of, shown
from gradxform.wrappers.parts import all_parts, inner_parts
from gradxform.wrappers.variable_names import check_variable_name, variable_names

AVERAGE = "ExponentialMovingAverage"  # its variables have this name, whatever the optimizer's is
# The names that the original classes have by default, by a rule of the optimizer.
_NAMES = {
    "scale_by_adadelta": "Adadelta",
    "scale_by_adam": "Adam",
    "scale_by_adamax": "AdaMax",
    "scale_by_add_sign": "AddSignOptimizer",
    "scale_by_amsgrad": "AMSGradOptimizer",
    "scale_by_grad_variance": "GradVarianceScaledOptimizer",
    "scale_by_power_sign": "PowerSignOptimizer",
    "scale_by_rms": "RMSProp",
    "scale_by_rss": "Adagrad",
    "scale_by_sign_agreement": "NeuralOptimizer1",
    "scale_by_stddev": "RMSProp",
    "scale_by_tf_adam": "Adam",
    "scale_by_trust_ratio": "LARSOptimizer",
    "step_by_dual_averaging": "AdagradDA",
    "step_by_ftrl": "Ftrl",
    "step_by_proximal_adagrad": "ProximalAdagrad",
    "step_by_shampoo": "Shampoo",
    "trace": "Momentum",
}
# What the originals of wrappers are called, and of what does not have slots.
_WRAPPERS = {
    "agn": "AGNOptimizer",
    "drop_stale": "DropStaleGradient",
    "elastic_average": "ElasticAverageOptimizer",
    "model_average": "ModelAverageOptimizer",
    "sync_replicas": "sync_replicas",
}
_WITHOUT_SLOTS = {
    "scale_by_ggt": "GGT",
    "normalize_by_block_norm": "NormalizedSGD",
    "step_by_proximal_gradient": "ProximalGradientDescent",
    "scale_by_learning_rate": "GradientDescent",
}
_NOTHING: Mapping[str, str] = {}


def default_name(tx: Any) -> str:
    """Return the name that the original of an optimizer has, unless it is given one."""
    return usual_name(tx) or name_of(tx)


def usual_name(tx: Any) -> str | None:
    """Return the `default_name` of an optimizer that has slots, by its rules; else None."""
    rules = [name_of(part) for part in all_parts(tx)]
    originals = [_NAMES[rule] for rule in rules if rule in _NAMES]
    if not originals:
        return None
    decays = "add_decayed_weights" in rules and originals[0] in ("Adam", "Momentum")
    return f"{originals[0]}W" if decays else originals[0]


def original_name(tx: Any) -> str:
    """Return what the original of an optimizer is called: `get_name` of TensorFlow 1."""
    parts = [name_of(part) for part in all_parts(tx)]
    wrapper = next((_WRAPPERS[x] for x in parts if x in _WRAPPERS), None)
    rule = next((name for x, name in _WITHOUT_SLOTS.items() if x in parts), None)
    return wrapper or usual_name(tx) or rule or name_of(tx)


def first_name(tx: Any) -> str | None:
    """Return the first name that an optimizer, or an optimizer in it, was given."""
    parts = (part for part in all_parts(tx) if isinstance(part, variable_names))
    return next((part.slot_name for part in parts if part.slot_name), None)


def given_names(caller: str, tx: Any, outer: Mapping[str, str] = _NOTHING) -> dict[str, str]:
    """Return the names that an optimizer was given, those of outer parts before those of inner.

    `outer` are those of parts around it. A part with slots that was not given a name has its usual
    one beside parts that were given theirs.

    Raises:
      ValueError: if parts beside each other have different ones.
    """
    tx, names = unwrapped(tx), dict(outer)
    if isinstance(tx, variable_names):
        tx_names = {
            "name": tx.slot_name,
            "accum_name": tx.accum_name,
            "linear_name": tx.linear_name,
        }
        names = {k: name for k, name in tx_names.items() if name is not None} | names
    parts = inner_parts(tx)
    inner = [given_names(caller, part, names) for part in parts]
    for field in ("name", "accum_name", "linear_name"):
        if field in names or not any(field in x for x in inner):
            continue
        usual = [usual_name(part) if field == "name" else None for part in parts]
        of_parts = [x.get(field, name) for x, name in zip(inner, usual, strict=True)]
        different = list(dict.fromkeys(name for name in of_parts if name is not None))
        if len(different) > 1:
            raise ValueError(
                f"{caller}: parts of {name_of(tx)} have different names of variables, "
                f"{different[0]!r} and {different[1]!r}; give the optimizers of all parameters one "
                f"{field}, or put variable_names around them."
            )
        names[field] = different[0]
    return names


def all_names(
    caller: str, tx: Any, name: Any, accum_name: Any, linear_name: Any
) -> tuple[str | None, dict[str, str]]:
    """Return the name of the slots, if it is known, and those that some have for themselves."""
    names = {"name": name, "accum_name": accum_name, "linear_name": linear_name}
    for field, value in names.items():
        check_variable_name(caller, field, value)
    names = given_names(caller, variable_names(tx, name, accum_name, linear_name))
    by_slot = {"accum": names.get("accum_name"), "linear": names.get("linear_name")}
    of_slots = {k: v for k, v in (by_slot | {AVERAGE: AVERAGE}).items() if v is not None}
    return names.get("name"), of_slots


def exact_names(caller: str, tx: Any, variables: Any, slots: Mapping[str, Any]) -> dict[str, str]:
    """Return the names of single variables that the user has given."""
    if variables is None:
        return {}
    if not isinstance(variables, Mapping):
        raise TypeError(f"{caller}: variables must be a dict by slot, got {shown(variables)}.")
    for slot, name in variables.items():
        if slot not in slots:
            raise ValueError(
                f"{caller}: {name_of(tx)} does not have a slot {shown(slot)} to name in variables, "
                f"only {', '.join(map(repr, slots)) or 'none'}.{did_you_mean(slot, slots)}"
            )
        check_variable_name(caller, f"variables[{slot!r}]", name)
        if name is None or list(variables.values()).count(name) > 1:
            what = "is None" if name is None else f"is {name!r}, as that of another slot"
            raise ValueError(f"{caller}: variables[{slot!r}] {what}; give each slot a name.")
    return dict(variables)


def variables_of(
    slots: Sequence[str],
    name: str,
    names: Mapping[str, str],
    exact: Mapping[str, str] = _NOTHING,
    earlier: int = 0,
) -> Iterable[tuple[str, str]]:
    """Yield each slot with the last part of its variable's name: the second `Adam` is `Adam_1`.

    `earlier` is the number of optimizers of that name in the graph before this one.
    """
    words = [names.get(slot, name) for slot in slots]
    counts = {word: earlier * words.count(word) for word in words}
    for slot in slots:
        if slot in exact:
            yield slot, exact[slot]
            continue
        word = names.get(slot, name)
        n = counts[word]
        counts[word] = n + 1
        yield slot, f"{word}_{n}" if n else word
