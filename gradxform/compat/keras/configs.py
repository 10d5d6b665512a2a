"""Optimizers of Keras as plain data: of TensorFlow 2.8, of Keras 2.11 to 2.15, and of Keras 3."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from gradxform.compat.called_numbers import called_numbers
from gradxform.compat.inversion import Unknown, arguments_of
from gradxform.compat.keras import decays, keras3
from gradxform.compat.keras.from_config import IGNORED, made_of, with_schedules
from gradxform.compat.keras.keras3_options import OPTIONS
from gradxform.compat.keras.keywords import CLIPS
from gradxform.compat.keras.loss_scale import LossScaleOptimizer, LossScaleOptimizerV1
from gradxform.compat.keras.multi_configs import MULTI, read_multi, written_multi
from gradxform.compat.keras.multi_optimizer import multi_of
from gradxform.compat.keras.objects import (
    Described,
    call_factory,
    check_keys,
    described_object,
    known_factory,
    read_by,
    written_object,
    written_own,
)
from gradxform.compat.keras.own_optimizer import Optimizer
from gradxform.errors import shown
from gradxform.leaves.masks import path_matches
from gradxform.schedules.basic import constant_schedule
from gradxform.transforms.scaling import scale, scale_by_learning_rate
from gradxform.types import SupportsTransform
from gradxform.values.called import Called
from gradxform.values.content import all_in
from gradxform.wrappers.compose import chain
from gradxform.wrappers.hyperparams.inject import injected
from gradxform.wrappers.loss_scale import loss_scale
from gradxform.wrappers.multi_steps import MultiSteps
from gradxform.wrappers.overwrite import overwriting_average
from gradxform.wrappers.select import partition

Factory = Callable[..., Any]

# What only configs of Keras 2.11 and later have.
_NEW_KEYS = {*OPTIONS, "jit_compile", "is_legacy_optimizer"} - {*CLIPS, "name"}
# The classes that scale the loss, of TensorFlow 2.4 and Keras 3, of TensorFlow 2.4 to 2.8 with
# other arguments, and of Keras 2.11 to 2.15.
_SCALING = ("lossscaleoptimizer", "lossscaleoptimizerv1", "lossscaleoptimizerv3")


class Doors(NamedTuple):
    """The factories of both generations, by the names of their classes in lower case."""

    v2: dict[str, Factory]
    v3: dict[str, Factory]


def doors_of(v2: tuple[Factory, ...]) -> Doors:
    """Return the doors, of which the caller knows those of TensorFlow 2.8."""
    return Doors(*({f.__name__.lower(): f for f in fs} for fs in (v2, keras3.FACTORIES)))


# ----------------------------------------------------------------------------------------- reading


def get(doors: Doors, identifier: Any, custom_objects: Any) -> Any:
    """Return the optimizer of a name, of a config, or itself."""
    if isinstance(identifier, str):
        thing = described_object({"class_name": identifier, "config": {}}, "identifier")
        return _read_keras_config(doors, thing, custom_objects, "identifier")
    if isinstance(identifier, dict):
        return deserialize(doors, identifier, custom_objects)
    if _is_keras_optimizer(identifier) or _is_keras_optimizer(getattr(identifier, "tx", None)):
        return identifier
    raise ValueError(
        f"get: could not interpret the identifier {shown(identifier)}; it must be the name of an "
        "optimizer, such as 'adam', its config, or a transform."
    )


def _is_keras_optimizer(x: Any) -> bool:
    return isinstance(x, SupportsTransform) and not isinstance(x, type)


def deserialize(doors: Doors, config: Any, custom_objects: Any) -> Any:
    """Return the optimizer that Keras's plain data describes."""
    return _read_keras_config(doors, described_object(config, "config"), custom_objects, "config")


def _read_keras_config(doors: Doors, thing: Described, custom_objects: Any, where: str) -> Any:
    name = thing.class_name.lower()
    own = custom_objects if isinstance(custom_objects, Mapping) else {}
    if name in _SCALING and thing.is_keras and thing.class_name not in own:
        return _read_loss_scale_config(doors, thing, custom_objects, where)
    if name == MULTI and thing.is_keras and thing.class_name not in own:
        return read_multi(
            thing,
            lambda x, at: _read_keras_config(doors, described_object(x, at), custom_objects, at),
            where,
        )
    factory = known_factory(thing, doors.v3 | doors.v2, custom_objects, where, "optimizer")
    is_custom = factory not in (*doors.v2.values(), *doors.v3.values())
    is_new = name not in doors.v2 or _is_new_keras_config(thing)
    place = f"{where}.config"
    config = with_schedules(thing.config, custom_objects, place)
    if is_custom:
        tx = read_by(factory, config, place)
    else:
        tx = made_of((doors.v3 if is_new else doors.v2)[name], is_new, config, place)
    if not _is_keras_optimizer(tx):
        raise TypeError(f"{where}: {thing.class_name} returns {shown(tx)}, not an optimizer.")
    return tx


def _read_loss_scale_config(
    doors: Doors, thing: Described, custom_objects: Any, where: str
) -> loss_scale:
    """Return a loss scale, and the optimizer in it."""
    config = {k: v for k, v in thing.config.items() if k not in IGNORED}
    # Older configs have what is an argument of the inner optimizer only.
    unused = {k: default for k, (default, _) in OPTIONS.items()}
    for key in config.keys() & unused.keys():
        if (value := config.pop(key)) != unused[key]:
            raise ValueError(
                f"{where}.config: {thing.class_name} has no {key}, got {shown(value)}; pass it to "
                "the inner_optimizer, for which loss_scale_factor is a constant scale."
            )
    is_v1 = "loss_scale" in config  # of TensorFlow 2.3, and later in the constructor
    factory, key = (
        (LossScaleOptimizerV1, "optimizer") if is_v1 else (LossScaleOptimizer, "inner_optimizer")
    )
    if key not in config:
        raise ValueError(
            f"{where}.config: no {key}, the config of the optimizer whose loss is scaled."
        )
    place = f"{where}.config.{key}"
    inner = described_object(config[key], place)
    # A scale of its own, which Keras does not apply here.
    own = {k: v for k, v in inner.config.items() if k != "loss_scale_factor"}
    inner = inner._replace(config=own)
    config[key] = _read_keras_config(doors, inner, custom_objects, place)
    check_keys(factory, config, f"{where}.config", ValueError)
    return call_factory(factory, config, f"{where}.config")


def _is_new_keras_config(thing: Described) -> bool:
    """Whether a config is of Keras 2.11 or later, and not of one of its legacy optimizers."""
    if thing.config.get("is_legacy_optimizer") or "legacy" in str(thing.module).split("."):
        return False
    return thing.module is not None or bool(_NEW_KEYS & thing.config.keys())


# ----------------------------------------------------------------------------------------- writing

_SAMPLES = {
    "learning_rate": 0.513719,
    "learning_rate_power": -0.413719,
    "muon_a": 3.13719,
    "muon_b": -4.13719,
    "muon_c": 2.13719,
    "ns_steps": 8191,
    "warmup_steps": 6007,
}
_RATE = constant_schedule(0.523719)
_SWITCHES = ("nesterov", "centered", "amsgrad", "relative_step", "exclude_embeddings")
# Arguments whose 0 (or None) leaves a part out.
_MAY_BE_ZERO = ("momentum", "adam_weight_decay", "weight_decay")
_NOT_READ = ("lr", "gradient_transformers", "gradient_aggregator", "name")
# The forms that `serialize` knows; 2.15 is that of Keras 2.11 to 2.15.
_VERSIONS = (2, 3, 2.15)
# What came after Keras 2.15.
_ONLY_3 = ("loss_scale_factor", "gradient_accumulation_steps")
_CLASSES_ONLY_3 = ("Lamb", "Muon", "ScheduleFreeAdamW")


def serialize(doors: Doors, tx: Any, name: str | None, version: float | None) -> dict[str, Any]:
    """Return an optimizer as Keras's plain data."""
    whole = with_arguments(doors, tx, name, version)
    try:
        return whole | {
            "config": {k: _plain_config_argument(x, whole) for k, x in whole["config"].items()}
        }
    except ValueError as error:
        raise ValueError(f"serialize: {error}") from None


def _plain_config_argument(x: Any, whole: dict[str, Any]) -> Any:
    """Return a schedule as plain data, and of a function without arguments its number of now."""
    if isinstance(x, Called):
        return float(x(0))
    return decays.serialize(x, version=3 if "module" in whole else 2) if callable(x) else x


def with_arguments(
    doors: Doors, tx: Any, name: str | None = None, version: float | None = None
) -> dict[str, Any]:
    """Return what `serialize` returns, but with schedules and functions as they are."""
    if isinstance(version, bool) or version not in (None, *_VERSIONS):
        raise ValueError(f"serialize: version must be 2, 2.15, 3 or None, got {shown(version)}.")
    if name is not None and not (isinstance(name, str) and name):
        raise ValueError(f"serialize: name must be a word or None, got {shown(name)}.")
    state = None
    if _is_keras_optimizer(getattr(tx, "tx", None)):  # an Optimizer
        tx, state, name = tx.tx, tx.state, name or tx.given_name
    if not _is_keras_optimizer(tx):
        raise TypeError(f"serialize: needs an optimizer, got {shown(tx)}.")
    if isinstance(tx, called_numbers):
        whole = with_arguments(doors, tx.with_plain_numbers(), name, version)
        called = {k: x for k, x in (*tx.numbers, *tx.others) if isinstance(x, Called)}
        return whole | {"config": whole["config"] | called}
    if isinstance(tx, injected):
        tx = tx.with_plain_numbers(None if state is None else state.hyperparams)
    if isinstance(tx, loss_scale) and (
        written_scale := _written_loss_scale_config(doors, tx, name, version)
    ):
        return written_scale
    if version in (None, 3) and (multi := multi_of(tx)) is not None:
        return written_multi(multi, lambda x: serialize(doors, x, None, 3), name)
    if isinstance(tx, Optimizer):
        config = tx.get_config() | ({} if name is None else {"name": name})
        kept = {k: x for k in config if callable(x := getattr(tx, k, None))}
        return written_own(type(tx), config | kept, version == 3)
    try:
        if version in (None, 2):
            for factory in doors.v2.values():
                arguments = arguments_of(factory, tx, _config_choices_of_keras2(factory, tx))
                if arguments is not None:
                    return _written_keras2_config(factory, arguments, name)
        found = None if version == 2 else _read_off_keras3_arguments(doors, tx)
        if found is not None:
            for form in (3, 2.15) if version is None else (version,):
                config = _written_keras3_config(*found, name, form == 2.15)
                if config is not None:
                    return config
    except ValueError as error:
        raise ValueError(f"serialize: {error}") from None
    of_version = "" if version is None else f" {version}"
    raise ValueError(
        f"serialize: no optimizer of Keras{of_version} has these parts; to_config writes any "
        "transform of the library."
    )


def _config_choices(factory: Factory, tx: Any, leave_out: tuple[str, ...]) -> dict[str, list[Any]]:
    """Return what each argument of a factory may be, as far as the parts of `tx` allow."""
    choices: dict[str, list[Any]] = {}
    for i, (name, parameter) in enumerate(inspect.signature(factory).parameters.items()):
        if name in _NOT_READ or name in leave_out:
            continue
        sample = Unknown(_SAMPLES.get(name, 0.6137 + 0.01 * i))
        if name in _SWITCHES:
            choices[name] = [parameter.default, not parameter.default]
        elif name == "learning_rate":
            choices[name] = [sample, Unknown(_RATE)]
        elif name in _MAY_BE_ZERO:
            choices[name] = [0.0 if name == "momentum" else None, sample]
        elif name == "rms_rate":
            choices[name] = [sample, None]
        elif name == "exclude_layers":
            patterns = [v.pattern for v in all_in(tx) if isinstance(v, path_matches)]
            # Of these the last may be that of exclude_embeddings.
            choices[name] = [patterns[:-1], patterns] if patterns else [[]]
        elif name == "beta_2_decay":  # the exponent has the other sign
            choices[name] = [Unknown(0.413719, lambda x: -x)]
        else:
            choices[name] = [sample]
    values = list(all_in(tx))
    held = set(map(type, values))
    for name, part in CLIPS.items():
        if part not in held:
            choices.pop(name, None)
    if "adam_lr_ratio" in choices and partition in held:  # the parts hold a product
        rates = [v.learning_rate for v in values if isinstance(v, scale_by_learning_rate)]
        known = [r for r in rates if isinstance(r, float) and r]
        ratios = [r for b in known for a in known for r in (round(a / b, 12), a / b)]
        choices["learning_rate"] = [*dict.fromkeys(known), Unknown(_RATE)]
        # With a ratio of 1 a schedule is not part of a product.
        choices["adam_lr_ratio"] = [*dict.fromkeys(ratios), 1.0, *choices["adam_lr_ratio"]]
    return choices


def _config_choices_of_keras2(factory: Factory, tx: Any) -> dict[str, list[Any]]:
    choices = _config_choices(factory, tx, ())
    choices["decay"] = [Unknown(0.713719), 0.0]
    return choices


def _written_keras2_config(
    factory: Factory, arguments: dict[str, Any], name: str | None
) -> dict[str, Any]:
    config = {k: v for k, v in arguments.items() if v is not None and k != "schedule_decay"}
    if "schedule_decay" in arguments:
        config["decay"] = arguments["schedule_decay"]
    title = factory.__name__
    return written_object(title, {"name": name or title, **config}, None)


def _read_off_keras3_arguments(doors: Doors, tx: Any) -> tuple[Factory, dict[str, Any]] | None:
    """Return the factory of Keras 3 and the arguments that make `tx`."""
    outer, core = _peeled_keras3_options(tx)
    if core is None:
        return None
    for factory in doors.v3.values():
        choices = _config_choices(factory, tx, tuple(OPTIONS.keys() - {*CLIPS, "weight_decay"}))
        # The options around the step are known, which leaves few templates.
        arguments = arguments_of(factory, tx, choices | {k: [v] for k, v in outer.items()})
        if arguments is not None:
            return factory, arguments
    return None


def _peeled_keras3_options(tx: Any) -> tuple[dict[str, Any], Any]:
    """Return the options of Keras 3 that stand around the step, and what is inside them."""
    outer: dict[str, Any] = {}
    core = _only_part_of_chain(tx)
    if isinstance(core, overwriting_average):
        outer |= {"use_ema": True, "ema_momentum": core.decay}
        outer["ema_overwrite_frequency"] = core.every
        outer["ema_from_start"] = not core.from_first_step
        core = core.inner
    parts = core.transforms if isinstance(core, chain) else ()
    if len(parts) == 2 and isinstance(parts[0], scale) and isinstance(parts[0].step_size, float):
        if parts[0].step_size <= 0:
            return outer, None
        outer["loss_scale_factor"] = 1.0 / parts[0].step_size
        core = parts[1]
    core = _only_part_of_chain(core)
    if isinstance(core, MultiSteps):
        outer["gradient_accumulation_steps"] = core.every_k_schedule
    return outer, core


def _written_loss_scale_config(
    doors: Doors, tx: loss_scale, name: str | None, version: float | None
) -> dict[str, Any] | None:
    """Return a config of `LossScaleOptimizer`; None if Keras does not have this one.

    A constant scale is of TensorFlow 2.8, whose class knows only optimizers of its own.
    """
    dynamic = tx.growth_interval is not None
    numbers = {"initial_scale": tx.initial_scale, "dynamic_growth_steps": tx.growth_interval}
    if LossScaleOptimizer(tx.inner, **numbers, dynamic=dynamic) != tx:
        return None
    error = None
    if dynamic and version in (None, 3):
        try:
            inner = serialize(doors, tx.inner, None, 3)
        except ValueError as failed:
            error = failed
        else:
            config = {"name": name or "loss_scale_optimizer", "inner_optimizer": inner, **numbers}
            return written_object("LossScaleOptimizer", config, "keras.optimizers")
    if version in (None, 2):
        inner = serialize(doors, tx.inner, None, version)
        config = {"inner_optimizer": inner, "dynamic": dynamic, **numbers}
        return written_object("LossScaleOptimizer", config, None)
    if error is not None:
        raise error
    return None


def _only_part_of_chain(x: Any) -> Any:
    """Return the one part of a chain of one; else `x`."""
    return x.transforms[0] if isinstance(x, chain) and len(x.transforms) == 1 else x


def _written_keras3_config(
    factory: Factory, arguments: dict[str, Any], name: str | None, is_2_15: bool
) -> dict[str, Any] | None:
    """Return a config of Keras 3, or of Keras 2.11 to 2.15; None if that lacks the optimizer."""
    title = factory.__name__
    config = {k: default for k, (default, _) in OPTIONS.items()} | arguments
    from_start = config.pop("ema_from_start")
    if is_2_15:
        if title in _CLASSES_ONLY_3 or any(config.pop(k) is not None for k in _ONLY_3):
            return None
        config |= {"jit_compile": True, "is_legacy_optimizer": False}
    if config["use_ema"] and from_start != is_2_15:
        return None
    config["name"] = name or (title if is_2_15 else title.lower())
    return written_object(title, config, "keras.optimizers")
