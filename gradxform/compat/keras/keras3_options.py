"""The arguments that every optimizer of Keras 3 has."""

import functools
import inspect
from collections.abc import Callable
from typing import Any

from gradxform.compat.arguments import not_below_zero
from gradxform.compat.called_numbers import called_numbers, with_called_numbers
from gradxform.compat.keras.from_config import Door, with_from_config
from gradxform.compat.keras.keywords import CLIPS, is_present, keyword_parameters, presented_factory
from gradxform.compat.keras.rates import last_of_every
from gradxform.errors import did_you_mean, must_be
from gradxform.transforms.scaling import scale
from gradxform.types import Fixed, ZeroIsNone
from gradxform.values import replace
from gradxform.wrappers.compose import chain
from gradxform.wrappers.decay import decoupled_weight_decay
from gradxform.wrappers.multi_steps import MultiSteps
from gradxform.wrappers.overwrite import overwriting_average

Factory = Callable[..., chain]

OPTIONS: dict[str, tuple[Any, Any]] = {
    "weight_decay": (None, ZeroIsNone | None),
    "clipnorm": (None, ZeroIsNone | None),
    "clipvalue": (None, ZeroIsNone | None),
    "global_clipnorm": (None, ZeroIsNone | None),
    "use_ema": (False, bool),
    "ema_momentum": (0.99, Fixed),
    "ema_overwrite_frequency": (None, Fixed),
    "loss_scale_factor": (None, float | None),
    "gradient_accumulation_steps": (None, Fixed),
    "name": (None, Any),
    # Of Keras 2.11 to 2.15: whether the average begins with the parameters at the start.
    "ema_from_start": (False, bool),
}

# The optimizers whose own rule does what their weight_decay says.
_OWN_DECAY = ("Muon", "ScheduleFreeAdamW")

_DOC = """
    Arguments of every optimizer of Keras 3, by name: clipnorm, clipvalue or global_clipnorm, only
    one of them; weight_decay times the learning rate, by which the parameters shrink before the
    step; use_ema, ema_momentum and ema_overwrite_frequency for `overwriting_average`;
    loss_scale_factor, which divides the gradients; gradient_accumulation_steps, for `MultiSteps`.
    A schedule counts the updates, as Keras does, also those that only accumulate.

    Raises:
      ValueError: for an unknown argument, several clips, and what Keras 3 refuses.
"""


def keras3_optimizer(function: Factory) -> Door[..., chain]:
    """Add the arguments that all optimizers of Keras 3 share to a factory."""
    own = inspect.signature(function)
    own_parameters = [
        p.replace(kind=p.POSITIONAL_OR_KEYWORD) for p in own.parameters.values() if p.name != "name"
    ]
    shared = keyword_parameters({k: x for k, x in OPTIONS.items() if k not in own.parameters})
    signature = own.replace(parameters=[*own_parameters, *shared])
    title = function.__name__

    def made(*args: Any, **kwargs: Any) -> chain:
        for k in kwargs:
            if k not in signature.parameters:
                known = ", ".join(signature.parameters)
                hint = did_you_mean(k, signature.parameters)
                raise ValueError(f"{title}: unknown argument {k!r}, only {known}.{hint}")
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        options = {k: bound.arguments[k] for k in OPTIONS if k in bound.arguments}
        _check_keras3_options(title, options)
        rule = {k: x for k, x in bound.arguments.items() if k in own.parameters}
        k = options["gradient_accumulation_steps"]
        if k and callable(rule["learning_rate"]):
            rule["learning_rate"] = last_of_every(rule["learning_rate"], k)
        decays = title not in _OWN_DECAY and _options_decay_params(options)
        return _with_keras3_options(function(**rule), rule["learning_rate"], options, decays)

    @functools.wraps(function)
    def factory(*args: Any, **kwargs: Any) -> chain:
        return with_called_numbers(made, factory, args, kwargs, signature)

    return with_from_config(
        presented_factory(factory, signature, function.__doc__, _DOC), is_new=True
    )


def _options_decay_params(options: dict[str, Any]) -> bool:
    """Whether the parameters decay before the step."""
    decay = options["weight_decay"]
    return decay is not None and is_present(decay)


def _check_keras3_options(title: str, options: dict[str, Any]) -> None:
    """Require what Keras 3 requires."""
    clips = {k: options[k] for k in CLIPS if options[k] is not None}
    if len(clips) > 1:
        listed = " and ".join(f"{k}={x!r}" for k, x in clips.items())
        raise ValueError(f"{title}: only one of {', '.join(CLIPS)} can be given, got {listed}.")
    not_below_zero(title, **clips, weight_decay=options["weight_decay"])
    for name, least in (("gradient_accumulation_steps", 2), ("ema_overwrite_frequency", 1)):
        n = options[name]
        if n is not None and n is not False and not (type(n) is int and n >= least):
            if n == 0 and type(n) is int:
                continue
            raise ValueError(must_be(title, name, f"an integer of at least {least}, or None", n))
    factor = options["loss_scale_factor"]
    if isinstance(factor, int | float) and not factor > 0:
        raise ValueError(
            f"{title}: loss_scale_factor must be greater than 0, or None, got {factor!r}."
        )


def around_keras3_step(title: str, tx: chain, learning_rate: Any, options: dict[str, Any]) -> chain:
    """Return a chain with what Keras 3 does before and after its step.

    Args:
      title: the name of the optimizer, for messages.
      tx: the chain.
      learning_rate: that of the weight decay, a number or a schedule.
      options: a value for every name of `OPTIONS`.

    Raises:
      ValueError: for what Keras 3 refuses.
    """
    _check_keras3_options(title, options)
    return _with_keras3_options(tx, learning_rate, options, _options_decay_params(options))


def _with_keras3_options(
    tx: chain, learning_rate: Any, options: dict[str, Any], decays: bool
) -> chain:
    """Return an optimizer with what Keras 3 does before and after its step."""
    # A bound of 0 switches the clip off, in contrast to Keras 2.8.
    clips = [
        CLIPS[k](options[k]) for k in CLIPS if options[k] is not None and is_present(options[k])
    ]
    inner: Any = chain(*clips, *tx.transforms)
    if decays:
        decay = options["weight_decay"]
        inner = decoupled_weight_decay(inner, decay, learning_rate=learning_rate, decay_first=True)
    k = options["gradient_accumulation_steps"]
    if k:
        inner = MultiSteps(inner, k)
    if options["loss_scale_factor"] is not None:
        inner = chain(scale(1.0 / options["loss_scale_factor"]), inner)
    if options["use_ema"]:
        inner = overwriting_average(
            inner,
            options["ema_momentum"],
            options["ema_overwrite_frequency"] or None,
            k or 1,
            from_first_step=not options["ema_from_start"],
        )
    return inner if isinstance(inner, chain) else chain(inner)


def without_loss_scale_factor(tx: Any) -> Any:
    """Return an optimizer without its loss_scale_factor, the `scale` before all else."""
    if isinstance(tx, called_numbers):
        pairs = (
            tuple((k, x) for k, x in pairs if k != "loss_scale_factor")
            for pairs in (tx.numbers, tx.others)
        )
        return called_numbers(tx.factory, *pairs)
    parts = tx.transforms if isinstance(tx, chain) else ()
    if len(parts) == 1 and isinstance(parts[0], overwriting_average):
        average = parts[0]
        return chain(replace(average, inner=without_loss_scale_factor(average.inner)))
    steps = chain | MultiSteps | decoupled_weight_decay
    if len(parts) == 2 and isinstance(parts[0], scale) and isinstance(parts[1], steps):
        return parts[1] if isinstance(parts[1], chain) else chain(parts[1])
    return tx
