"""The arguments of a Keras optimizer by Keras's names, to read and to set on its holder."""

import contextlib
import warnings
from typing import Any

from gradxform.compat.keras import keras
from gradxform.errors import did_you_mean
from gradxform.values.called import Called

# What Keras lets somebody set; all else decides what a state holds from the start.
_CLIPS = ("clipnorm", "clipvalue", "global_clipnorm")
_FIXED = ("name", "use_ema", "gradient_accumulation_steps", "loss_scale_factor")
_OLD_NAMES = {"lr": "learning_rate"}


def described(tx: Any) -> dict[str, Any] | None:
    """Return an optimizer, or its holder, as Keras's data; None if Keras does not have it.

    Schedules and functions are in it as they are.
    """
    with contextlib.suppress(TypeError, ValueError):
        return keras.with_arguments(tx)
    return None


def attribute(tx: Any, name: str) -> Any:
    """Return the value of an argument of a Keras optimizer.

    Raises:
      AttributeError: if the optimizer is not Keras's, or does not have the argument.
    """
    _, config, name = _keras_argument(tx, name)
    value = config.get(name)
    return float(value(0)) if isinstance(value, Called) else value


def with_attribute(tx: Any, name: str, value: Any) -> Any:
    """Return a Keras optimizer with another value for an argument: a number, a schedule or None.

    Raises:
      AttributeError: if the optimizer is not Keras's, or the argument cannot be set.
      TypeError, ValueError: as the optimizer's own for this value.
    """
    whole, config, name = _keras_argument(tx, name)
    if name in _FIXED:
        raise AttributeError(
            f"Optimizer: {name} decides what the state holds. Make another optimizer, and carry "
            "the state over with migrate_state."
        )
    if getattr(value, "shape", None) == () and hasattr(value, "item"):
        value = value.item()
    config = {k: x for k, x in config.items() if k != name}
    if value is not None or "module" in whole:
        config[name] = value
    try:
        tx = getattr(tx, "tx", tx)
        own = {whole["class_name"]: type(tx)} if isinstance(tx, keras.Optimizer) else None
        return keras.deserialize(whole | {"config": config}, own)
    except (TypeError, ValueError) as error:
        kind = TypeError if isinstance(error, TypeError) else ValueError
        raise kind(f"Optimizer: {str(error).removeprefix('config.config: ')}") from None


def _keras_argument(tx: Any, name: str) -> tuple[dict[str, Any], dict[str, Any], str]:
    """Return the plain data of an optimizer, its arguments, and today's name of one of them."""
    whole = described(tx)
    config = {} if whole is None else whole["config"]
    if name in _OLD_NAMES and whole is not None:
        new = _OLD_NAMES[name]
        warnings.warn(f"The `{name}` argument is deprecated, use `{new}` instead.", stacklevel=4)
        name = new
    if whole is None or not (name in config or name in _CLIPS):
        alike = did_you_mean(name, (*config, *_CLIPS)) if config else ""
        raise AttributeError(f"Optimizer: has no attribute {name!r}.{alike}")
    return whole, config, name
