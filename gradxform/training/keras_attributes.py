"""The arguments of an optimizer by Keras's names, to read and to set on its holder."""

import contextlib
import functools
from typing import Any

from gradxform.compat.keras import configs
from gradxform.compat.keras.configs import OPTIONS
from gradxform.errors import did_you_mean
from gradxform.training.absent_methods import INSTEAD
from gradxform.training.numbers import injected_parts
from gradxform.training.part_attributes import (
    names_in_parts,
    read_from_parts,
    todays_name,
    with_part_attribute,
)
from gradxform.values.called import Called, has_called
from gradxform.values.content import is_hashable

# What Keras lets somebody set; all else decides what a state holds from the start.
_CLIPS = ("clipnorm", "clipvalue", "global_clipnorm")
_FIXED = ("name", "use_ema", "gradient_accumulation_steps", "loss_scale_factor")


def described(tx: Any, version: float | None = None) -> dict[str, Any] | None:
    """Return an optimizer, or its holder, as Keras's data; None if Keras does not have it.

    Schedules and functions are in it as they are. `version` is as in `configs.serialize`.
    """
    held = getattr(tx, "tx", tx)
    if has_called(held) or any(injected_parts(held)) or not is_hashable(held):
        with contextlib.suppress(TypeError, ValueError):
            return configs.with_arguments(tx, version=version)
        return None
    whole, name = _described_by_value(held, version), getattr(tx, "given_name", None)
    return whole and whole | {"config": whole["config"] | ({"name": name} if name else {})}


@functools.lru_cache(maxsize=256)
def _described_by_value(tx: Any, version: float | None) -> dict[str, Any] | None:
    with contextlib.suppress(TypeError, ValueError):
        return configs.with_arguments(tx, version=version)
    return None


def attribute(tx: Any, name: str) -> Any:
    """Return the value of an argument of a Keras optimizer, or of what is so called in another.

    Raises:
      AttributeError: if the optimizer does not have the argument.
    """
    whole, name = _whole_with(tx, name)
    if whole is None:
        return read_from_parts(getattr(tx, "tx", tx), name)
    value = whole["config"].get(name)
    return float(value(0)) if isinstance(value, Called) else value


def with_attribute(tx: Any, name: str, value: Any) -> Any:
    """Return an optimizer with another value for an argument: a number, a schedule or None.

    Raises:
      AttributeError: if the optimizer does not have the argument, or it cannot be set.
      TypeError, ValueError: as the optimizer's own for this value.
    """
    whole, name = _whole_with(tx, name)
    if name in _FIXED:
        raise AttributeError(
            f"Optimizer: {name} decides what the state holds. Make another optimizer, and carry "
            "the state over with migrate_state."
        )
    if getattr(value, "shape", None) == () and hasattr(value, "item"):
        value = value.item()
    if whole is None:
        return with_part_attribute(tx, name, value)
    config = {k: x for k, x in whole["config"].items() if k != name}
    if value is not None or "module" in whole:
        config[name] = value
    try:
        tx = getattr(tx, "tx", tx)
        own = {whole["class_name"]: type(tx)} if isinstance(tx, configs.Optimizer) else None
        return configs.deserialize(whole | {"config": config}, own)
    except (TypeError, ValueError) as error:
        kind = TypeError if isinstance(error, TypeError) else ValueError
        raise kind(f"Optimizer: {str(error).removeprefix('config.config: ')}") from None


def _whole_with(tx: Any, name: str) -> tuple[dict[str, Any] | None, str]:
    """Return a Keras optimizer as plain data, None for another, and today's name of an argument.

    Raises:
      AttributeError: if the optimizer does not have the argument.
    """
    whole = described(tx)
    if whole is not None and name not in {*whole["config"], *_CLIPS} and name in OPTIONS:
        whole = described(tx, 3) or whole  # the same optimizer, with the options of Keras 3
    known = names_in_parts(getattr(tx, "tx", tx)) if whole is None else [*whole["config"], *_CLIPS]
    name = todays_name(name, 4) if "learning_rate" in known else name
    if name not in known and name in INSTEAD:
        raise AttributeError(
            f"Optimizer: {name} is of optimizers of TensorFlow or Keras; here, {INSTEAD[name]}."
        )
    if name not in known:
        raise AttributeError(
            f"Optimizer: has no attribute {name!r}.{did_you_mean(name, known) if known else ''}"
        )
    return whole, name
