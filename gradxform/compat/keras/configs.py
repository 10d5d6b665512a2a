"""Optimizers of Keras as plain data: of TensorFlow 2.8, of Keras 2.11 to 2.15, and of Keras 3.

A factory says itself how its configs are read and its optimizers written. Which factories there
are, `REGISTRY` knows, which loads them: they stand above this file.
"""

import functools
from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple, ParamSpec, Protocol, Self, TypeVar

from gradxform._names.deferred import signature_of
from gradxform.base import ArrayRule
from gradxform.compat.called_numbers import called_numbers
from gradxform.compat.inversion import Unknown
from gradxform.compat.keras import schedules
from gradxform.compat.keras.schedules import (
    Described,
    described_object,
    known_factory,
    read_by,
    reading,
    with_schedules,
    written_own,
)
from gradxform.errors import shown
from gradxform.leaves.masks import path_matches
from gradxform.schedules.basic import constant_schedule
from gradxform.transforms.clipping import clip, clip_by_block_norm, clip_by_global_norm
from gradxform.transforms.scaling import scale_by_learning_rate
from gradxform.types import Fixed, SupportsTransform, ZeroIsNone
from gradxform.values import fields_of
from gradxform.values.called import Called
from gradxform.values.content import all_in
from gradxform.values.registry import REGISTRY
from gradxform.wrappers.hyperparams.inject import injected
from gradxform.wrappers.select import partition

P = ParamSpec("P")
T_co = TypeVar("T_co", covariant=True)
Factory = Callable[..., Any]
Read = Callable[[Mapping[str, Any], Any, str], Any]
Write = Callable[[Any, str | None, float | None], dict[str, Any] | None]

CLIPS: dict[str, Callable[[Any], Any]] = {
    "clipnorm": clip_by_block_norm,
    "global_clipnorm": clip_by_global_norm,
    "clipvalue": clip,
}

# The arguments of every optimizer of Keras 3, each with its default and its annotation.
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
# What Keras writes and an optimizer here does not have.
IGNORED = ("name", "jit_compile", "is_legacy_optimizer")
# What only configs of Keras 2.11 and later have.
_NEW_KEYS = {*OPTIONS, *IGNORED} - {*CLIPS, "name"}


# ------------------------------------------------------------------------------------------- doors


class Door(Protocol[P, T_co]):
    """A function that makes one of Keras's optimizers."""

    __name__: str

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> T_co:
        """Return the optimizer with these arguments."""
        ...

    def from_config(
        self, config: Mapping[str, Any], custom_objects: Mapping[str, Any] | None = None
    ) -> T_co:
        """Return the optimizer of a config of Keras.

        Args:
          config: the arguments, as `get_config` of Keras's class returns them. A schedule may be a
            dict with class_name and config.
          custom_objects: factories of schedules of your own, by the names of their classes.

        Raises:
          TypeError, ValueError, KeyError: as `compat.keras.deserialize`.
        """
        ...


class _Form(NamedTuple):
    """How the configs of a factory are read, and its optimizers written; see `with_from_config`."""

    read: Read
    write: Write


_FORMS: dict[Any, _Form] = {}


def with_from_config(
    read: Read, write: Write = lambda tx, name, version: None
) -> Callable[[Callable[P, T_co]], Door[P, T_co]]:
    """Give a factory the attribute `from_config`; by it `get` reads, and `serialize` writes.

    Args:
      read: `read(config, custom_objects, where)` returns the optimizer of a config; `where` is its
        place, for messages.
      write: `write(tx, name, version)` returns plain data with the arguments that make `tx`, and
        with schedules as they are; None if none do, or that version of Keras lacks them.
    """

    def decorated(factory: Any) -> Any:
        title = factory.__name__

        def from_config(
            config: Mapping[str, Any], custom_objects: Mapping[str, Any] | None = None
        ) -> Any:
            where = f"{title}.from_config: config"
            if not isinstance(config, Mapping) or not all(isinstance(k, str) for k in config):
                raise TypeError(f"{where} must be a dict of arguments, got {shown(config)}.")
            with reading(config, where):
                return read(config, custom_objects, where)

        from_config.__doc__ = Door.from_config.__doc__
        from_config.__qualname__ = f"{title}.from_config"
        factory.from_config = from_config
        _FORMS[factory] = _Form(read, write)
        return factory

    return decorated


@functools.cache
def _doors(package: str) -> dict[str, Factory]:
    """Return the factories of `keras` or `keras3`, by the names of their classes in lower case.

    Those with the fewest arguments come first: `Adam` before `AdamW`, of which it is the first to
    write an optimizer, and `Muon`, with by far the most templates to try, last.
    """
    named = {k: REGISTRY[k] for k in REGISTRY if k.startswith(f"{package}:")}
    ours = {k.partition(":")[2].lower(): x for k, x in named.items() if x in _FORMS}
    return dict(sorted(ours.items(), key=lambda x: (len(signature_of(x[1]).parameters), x[0])))


# ------------------------------------------------------------------------------ classes of users

_FIELDS = "write its arguments as fields, such as `learning_rate: float = 0.01`"
_STATE = (
    "name its slots in `State`, a NamedTuple with an annotation `momentum: Slot` for each, and "
    "write `init(self, params)` only if they do not start with zeros"
)
_RULE = "write `rule(self, g, *slots, p)`, which returns the step of one array and its new slots"
_PREPARE = (
    "write `prepare(self, updates, state, params)`, which returns the state and the scalars of a "
    "step"
)
# The methods by which classes of Keras say what a rule says otherwise.
_INSTEAD = {
    "__init__": _FIELDS,
    "_set_hyper": _FIELDS,
    "_create_slots": _STATE,
    "build": _STATE,
    "_prepare": _PREPARE,
    "_prepare_local": _PREPARE,
    "_resource_apply_dense": _RULE,
    "update_step": _RULE,
    "_resource_apply_sparse": (
        "leave it out: with locality = 'entry' or 'row', `rule` gets the rows of a row-sparse "
        "gradient"
    ),
}


class Optimizer(ArrayRule):
    """An optimizer to inherit from: fields, a state, and the rule for one array.

        @gx.transform
        class Momentum(Optimizer):
            learning_rate: float = 0.01
            momentum: float = 0.9

            State = MomentumState                       a NamedTuple with `velocity: Slot`

            def rule(self, g, velocity, p):
                velocity = self.momentum * velocity - self.learning_rate * g
                return velocity, velocity

    It is an `ArrayRule`, with what Keras's classes have besides: `get_config` and `from_config`,
    by which `compat.keras.serialize` and `deserialize` write and read it; the latter finds its
    class in custom_objects. A class that has Keras's methods instead is refused when it is defined,
    with what to write in their place.

    Raises:
      TypeError: when a class is defined with a method of Keras's, such as `_create_slots`.

    Reference: `tf.keras.optimizers.Optimizer`, `keras.optimizers.Optimizer`.
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Require a class not to have methods that would never be called."""
        super().__init_subclass__(**kwargs)
        for method, instead in _INSTEAD.items():
            if method in cls.__dict__:
                raise TypeError(
                    f"{cls.__name__}: {method} is of Keras, and is not called here; {instead}."
                )

    def get_config(self) -> dict[str, Any]:
        """Return the fields by name, a schedule as plain data.

        Raises:
          ValueError: for a schedule that Keras does not have.
        """
        return {k: schedules.serialize(x) if callable(x) else x for k, x in fields_of(self).items()}

    @classmethod
    def from_config(
        cls, config: Mapping[str, Any], custom_objects: Mapping[str, Any] | None = None
    ) -> Self:
        """Return the optimizer of a config.

        Args:
          config: the fields by name. A `name` is ignored.
          custom_objects: factories of schedules of your own, by the names of their classes.

        Raises:
          TypeError, ValueError: for an unknown field, or a wrong value.
        """
        where = f"{cls.__name__}.from_config: config"
        if not isinstance(config, Mapping) or not all(isinstance(k, str) for k in config):
            raise TypeError(f"{where} must be a dict of fields, got {shown(config)}.")
        fields = {k: x for k, x in config.items() if k != "name"}
        with reading(config, where):
            for k, x in fields.items():
                if isinstance(x, dict) and "class_name" in x:
                    fields[k] = schedules.deserialized(x, custom_objects, f"{where}.{k}")
            return cls(**fields)


# ----------------------------------------------------------------------------------------- reading


def get(identifier: Any, custom_objects: dict[str, Any] | None = None) -> Any:
    """Return the optimizer of a name or a config of Keras; a transform is returned as it is.

    Args:
      identifier: a name in any case, such as "adam"; a config, see `deserialize`; or a transform.
      custom_objects: as in `deserialize`.

    Raises:
      ValueError: for anything else, None and classes included, and for an unknown name.
    """
    if isinstance(identifier, str):
        thing = described_object({"class_name": identifier, "config": {}}, "identifier")
        return read_object(thing, custom_objects, "identifier")
    if isinstance(identifier, dict):
        return deserialize(identifier, custom_objects)
    if is_optimizer(identifier) or is_optimizer(getattr(identifier, "tx", None)):
        return identifier
    raise ValueError(
        f"get: could not interpret the identifier {shown(identifier)}; it must be the name of an "
        "optimizer, such as 'adam', its config, or a transform."
    )


def deserialize(config: dict[str, Any], custom_objects: dict[str, Any] | None = None) -> Any:
    """Return the optimizer that Keras's plain data describes.

    A config with an argument or module that came with Keras 2.11 is of `compat.keras3`, any other
    of `compat.keras`. Nothing that it names is imported.

    Args:
      config: a dict with class_name and config, as `keras.optimizers.serialize` writes it in
        TensorFlow 2.8, Keras 2.11 to 2.15, and Keras 3.
      custom_objects: factories of your own optimizers and schedules, by the names of their classes.

    Raises:
      KeyError: if the class_name is missing.
      ValueError, TypeError: for an unknown class or argument, or a wrong number, with its place.
    """
    with reading(config, "config"):
        return read_object(described_object(config, "config"), custom_objects, "config")


def is_optimizer(x: Any) -> bool:
    """Whether it is a transform, and not a class of them."""
    return isinstance(x, SupportsTransform) and not isinstance(x, type)


def read_object(thing: Described, custom_objects: Any, where: str) -> Any:
    """Return the optimizer that plain data describes; `where` is its place, for messages."""
    old, new = _doors("keras"), _doors("keras3")
    ours = old | new if _is_new_keras_config(thing) else new | old
    ours["lossscaleoptimizerv3"] = ours["lossscaleoptimizer"]  # its name in Keras 2.11 to 2.15
    factory = known_factory(thing, ours, custom_objects, where, "optimizer")
    place = f"{where}.config"
    if factory in _FORMS:
        return _FORMS[factory].read(thing.config, custom_objects, place)
    tx = read_by(factory, with_schedules(thing.config, custom_objects, place), place)
    if not is_optimizer(tx):
        raise TypeError(f"{where}: {thing.class_name} returns {shown(tx)}, not an optimizer.")
    return tx


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


def serialize(tx: Any, name: str | None = None, *, version: float | None = None) -> dict[str, Any]:
    """Return an optimizer as Keras's plain data.

    The arguments are read off its parts: it may be what a factory of `compat.keras` or
    `compat.keras3` has returned, or any equal transform.

    Args:
      tx: the optimizer.
      name: the name in the config. Defaults to Keras's own for the class.
      version: 2 for the form of TensorFlow 2.8, 3 for that of Keras 3, 2.15 for that of Keras 2.11
        to 2.15, whose average begins with the first parameters. Defaults to the first of 2, 3 and
        2.15 that has this optimizer.

    Raises:
      ValueError: if no optimizer of Keras has these parts; `to_config` writes any transform.
      TypeError: if `tx` is not an optimizer.
    """
    whole = with_arguments(tx, name, version)
    try:
        return whole | {
            "config": {k: _plain_argument(x, whole) for k, x in whole["config"].items()}
        }
    except ValueError as error:
        raise ValueError(f"serialize: {error}") from None


def _plain_argument(x: Any, whole: dict[str, Any]) -> Any:
    """Return a schedule as plain data, and of a function without arguments its number of now."""
    if isinstance(x, Called):
        return float(x(0))
    return schedules.serialize(x, version=3 if "module" in whole else 2) if callable(x) else x


def with_arguments(
    tx: Any, name: str | None = None, version: float | None = None
) -> dict[str, Any]:
    """Return what `serialize` returns, but with schedules and functions as they are."""
    if isinstance(version, bool) or version not in (None, *_VERSIONS):
        raise ValueError(f"serialize: version must be 2, 2.15, 3 or None, got {shown(version)}.")
    if name is not None and not (isinstance(name, str) and name):
        raise ValueError(f"serialize: name must be a word or None, got {shown(name)}.")
    state = None
    if is_optimizer(getattr(tx, "tx", None)):  # an Optimizer
        tx, state, name = tx.tx, tx.state, name or tx.given_name
    if not is_optimizer(tx):
        raise TypeError(f"serialize: needs an optimizer, got {shown(tx)}.")
    if isinstance(tx, called_numbers):
        whole = with_arguments(tx.with_plain_numbers(), name, version)
        called = {k: x for k, x in (*tx.numbers, *tx.others) if isinstance(x, Called)}
        return whole | {"config": whole["config"] | called}
    if isinstance(tx, injected):
        tx = tx.with_plain_numbers(None if state is None else state.hyperparams)
    if isinstance(tx, Optimizer):
        config = tx.get_config() | ({} if name is None else {"name": name})
        kept = {k: x for k in config if callable(x := getattr(tx, k, None))}
        return written_own(type(tx), config | kept, version == 3)
    for form in (_FORMS[x] for package in ("keras", "keras3") for x in _doors(package).values()):
        if (whole := form.write(tx, name, version)) is not None:
            return whole
    of_version = "" if version is None else f" {version}"
    raise ValueError(
        f"serialize: no optimizer of Keras{of_version} has these parts; to_config writes any "
        "transform of the library."
    )


def choices_of(factory: Factory, tx: Any, leave_out: Collection[str] = ()) -> dict[str, list[Any]]:
    """Return what each argument of a factory may be, as far as the parts of `tx` allow."""
    choices: dict[str, list[Any]] = {}
    for i, (name, parameter) in enumerate(signature_of(factory).parameters.items()):
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
