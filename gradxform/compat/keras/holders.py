"""Optimizers around others: `LossScaleOptimizer`, and `MultiOptimizer` of Keras 3."""

import functools
import re
from collections.abc import Iterator, Mapping, MutableMapping
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np

from gradxform.base import check_transform
from gradxform.compat.called_numbers import called_numbers
from gradxform.compat.keras.configs import (
    IGNORED,
    OPTIONS,
    is_optimizer,
    read_object,
    serialize,
    with_from_config,
)
from gradxform.compat.keras.schedules import (
    described_object,
    known_factory,
    made_by,
    reading,
    written_object,
)
from gradxform.errors import did_you_mean, name_of, shown
from gradxform.leaves import Path
from gradxform.leaves.masks import label_by, path_matches
from gradxform.transforms.counts import count_updates
from gradxform.transforms.scaling import scale
from gradxform.types import PositiveInt
from gradxform.values import replace
from gradxform.values.arguments import with_checked_arguments
from gradxform.values.fields import value
from gradxform.wrappers.compose import chain
from gradxform.wrappers.decay import decoupled_weight_decay
from gradxform.wrappers.loss_scale import LARGEST, LEAST, has_loss_scale, loss_scale
from gradxform.wrappers.multi_steps import MultiSteps
from gradxform.wrappers.overwrite import overwriting_average
from gradxform.wrappers.select import partition


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


# ------------------------------------------------------------------------------- LossScaleOptimizer

_INITIAL, _GROWTH = 2.0**15, 2000


def _read_loss_scale(config: Mapping[str, Any], custom_objects: Any, where: str) -> loss_scale:
    """Return a loss scale, and the optimizer in it."""
    config = {k: v for k, v in config.items() if k not in IGNORED}
    is_v1 = "loss_scale" in config  # of TensorFlow 2.3, and later in the constructor
    factory, key = (
        (LossScaleOptimizerV1, "optimizer") if is_v1 else (LossScaleOptimizer, "inner_optimizer")
    )
    # Older configs have what is an argument of the inner optimizer only.
    for option in config.keys() & OPTIONS.keys():
        if (given := config.pop(option)) != OPTIONS[option][0]:
            raise ValueError(
                f"{where}: {factory.__name__} has no {option}, got {shown(given)}; pass it to "
                "the inner_optimizer, for which loss_scale_factor is a constant scale."
            )
    if key not in config:
        raise ValueError(f"{where}: no {key}, the config of the optimizer whose loss is scaled.")
    place = f"{where}.{key}"
    inner = described_object(config[key], place)
    # A scale of its own, which Keras does not apply here.
    own = {k: v for k, v in inner.config.items() if k != "loss_scale_factor"}
    config[key] = read_object(inner._replace(config=own), custom_objects, place)
    return made_by(factory, config, where, ValueError)


def _written_loss_scale(tx: Any, name: str | None, version: float | None) -> dict[str, Any] | None:
    """Return a config of `LossScaleOptimizer`; None if Keras does not have this one.

    A constant scale is of TensorFlow 2.8, whose class knows only optimizers of its own.
    """
    if not isinstance(tx, loss_scale):
        return None
    dynamic = tx.growth_interval is not None
    numbers = {"initial_scale": tx.initial_scale, "dynamic_growth_steps": tx.growth_interval}
    if LossScaleOptimizer(tx.inner, **numbers, dynamic=dynamic) != tx:
        return None
    if dynamic and version in (None, 3):
        try:
            inner = serialize(tx.inner, version=3)
        except ValueError:
            if version == 3:
                raise
        else:
            config = {"name": name or "loss_scale_optimizer", "inner_optimizer": inner, **numbers}
            return written_object("LossScaleOptimizer", config, "keras.optimizers")
    if version not in (None, 2):
        return None
    inner = serialize(tx.inner, version=version)
    config = {"inner_optimizer": inner, "dynamic": dynamic, **numbers}
    return written_object("LossScaleOptimizer", config, None)


@with_from_config(_read_loss_scale, _written_loss_scale)
@with_checked_arguments
def LossScaleOptimizer(
    inner_optimizer: Any,
    initial_scale: float | None = None,
    dynamic_growth_steps: PositiveInt | None = None,
    name: Any = None,
    *,
    dynamic: bool = True,
) -> loss_scale:
    """Skip steps that are not finite, and adapt the scale of the loss: `loss_scale`.

    The scale doubles after dynamic_growth_steps finite steps in a row, and halves after a step that
    is not finite. Keras does not bound it; here it stays in [2**-126, 2**126]. `scale_loss` of
    Keras is `scaled_loss(loss, state)`; `make_step` calls it by itself. With dynamic=False the
    scale is constant, and steps that are not finite are skipped too, which TensorFlow takes.

    Args:
      inner_optimizer: any transform. A loss_scale_factor of one of `compat.keras3` does not count
        here, as in Keras.
      initial_scale: the first scale. Defaults to 2**15; a constant scale must be given.
      dynamic_growth_steps: how many finite steps in a row it takes to double. Defaults to 2000;
        a constant scale does not have it.
      name: ignored.
      dynamic: whether the scale adapts. It stands second in TensorFlow 2.8, and Keras 3
        does not have it. Keyword-only.

    Raises:
      TypeError, ValueError: as `loss_scale`; for a constant scale without initial_scale, or with
        dynamic_growth_steps.

    Reference: `keras.optimizers.LossScaleOptimizer`, `tf.keras.mixed_precision.LossScaleOptimizer`.
    """
    if isinstance(initial_scale, bool):
        raise TypeError(
            f"LossScaleOptimizer: initial_scale stands second, as in Keras 3, got {initial_scale!r}"
            f"; for TensorFlow's dynamic write dynamic={initial_scale!r}."
        )
    if not dynamic:
        if initial_scale is None:
            raise ValueError(
                "LossScaleOptimizer: with dynamic=False initial_scale must be given, the constant "
                "scale of the loss."
            )
        if dynamic_growth_steps is not None:
            raise ValueError(
                "LossScaleOptimizer: with dynamic=False the scale does not grow; leave out "
                f"dynamic_growth_steps, got {shown(dynamic_growth_steps)}."
            )
    growth = _GROWTH if dynamic_growth_steps is None else dynamic_growth_steps
    return loss_scale(
        without_loss_scale_factor(inner_optimizer),
        _INITIAL if initial_scale is None else initial_scale,
        growth if dynamic else None,
        min_scale=LEAST,
        max_scale=LARGEST,
    )


@with_from_config(_read_loss_scale)
def LossScaleOptimizerV1(optimizer: Any, loss_scale: Any) -> loss_scale:
    """Skip steps that are not finite, and scale the loss: `LossScaleOptimizer` of these arguments.

    Args:
      optimizer: any transform, `inner_optimizer` there.
      loss_scale: a number, which is a constant scale; "dynamic"; or one of TensorFlow's two scales
        as plain data, {"class_name": "FixedLossScale", "config": {"loss_scale_value": 128}} and
        {"class_name": "DynamicLossScale", "config": {"initial_loss_scale": 2.0**15,
        "increment_period": 2000, "multiplier": 2}}, where each number has this default.

    Raises:
      TypeError, ValueError: as `LossScaleOptimizer`; for another loss_scale; for a multiplier other
        than 2, as in TensorFlow.

    Reference: `tf.keras.mixed_precision.experimental.LossScaleOptimizer` of TensorFlow 2.4 to 2.8.
    """
    check_transform("LossScaleOptimizerV1", optimizer, "optimizer")
    return LossScaleOptimizer(optimizer, **_arguments_of_scale(loss_scale))


def _arguments_of_scale(scale: Any) -> dict[str, Any]:
    """Return the arguments of `LossScaleOptimizer` that mean this `loss_scale`."""
    if isinstance(scale, str) and scale == "dynamic":
        return {}
    if isinstance(scale, int | float | np.number) and not isinstance(scale, bool):
        return {"dynamic": False, "initial_scale": scale}
    if not isinstance(scale, dict):
        raise (TypeError if isinstance(scale, bool) else ValueError)(
            "LossScaleOptimizerV1: loss_scale must be a number, 'dynamic', or the config of a "
            f"FixedLossScale or DynamicLossScale, got {shown(scale)}."
        )
    where = "LossScaleOptimizerV1: loss_scale"
    thing = described_object(scale, where)
    factory = known_factory(thing, _SCALES, None, where, "loss scale")
    return made_by(factory, thing.config, f"{where}.config", TypeError)


def FixedLossScale(loss_scale_value: float) -> dict[str, Any]:
    """Return the arguments of `LossScaleOptimizer` for this class of TensorFlow."""
    return {"dynamic": False, "initial_scale": loss_scale_value}


def DynamicLossScale(
    initial_loss_scale: float = _INITIAL, increment_period: int = _GROWTH, multiplier: float = 2.0
) -> dict[str, Any]:
    """Return the arguments of `LossScaleOptimizer` for this class of TensorFlow."""
    if multiplier != 2:
        raise ValueError(
            f"multiplier must be 2, as TensorFlow requires here, got {shown(multiplier)}. Use "
            "loss_scale, whose growth_factor and backoff_factor are any."
        )
    return {"initial_scale": initial_loss_scale, "dynamic_growth_steps": increment_period}


_SCALES = {f.__name__.lower(): f for f in (FixedLossScale, DynamicLossScale)}


# ----------------------------------------------------------------------------------- MultiOptimizer

# The label of the parameters that no key matches.
DEFAULT = "default_optimizer"
_KEY = "optimizer_map"


class OptimizerMap(MutableMapping[str, Any]):
    """A dict from paths of parameters, or patterns of them, to optimizers.

        optimizers = OptimizerMap(keras3.Adam(1e-3), {"encoder/.*": keras3.SGD(0.1)})
        optimizers["encoder/embedding"] = keras3.Adagrad(0.1)
        tx = MultiOptimizer(optimizers)

    A key is the path of a parameter here, such as `encoder/dense/kernel`, or a pattern that matches
    the whole of it (`re.fullmatch`). An exact path goes before patterns. `optimizers[path]` is the
    optimizer of a path, the default where no key matches it. It may be changed until it is given to
    `MultiOptimizer`.

    Args:
      default_optimizer: the optimizer of all other parameters, any transform.
      optimizer_map: a dict from keys to optimizers.

    Raises:
      TypeError: if the default is not an optimizer, or optimizer_map not a dict.
      ValueError: for another optimizer, a key that is not a pattern, and for optimizers that cannot
        be in it: `MultiOptimizer` and `LossScaleOptimizer`.

    Reference: `keras.optimizers.OptimizerMap`.
    """

    def __init__(
        self, default_optimizer: Any, optimizer_map: Mapping[str, Any] | None = None
    ) -> None:
        if not is_optimizer(default_optimizer):
            raise TypeError(
                "OptimizerMap: default_optimizer must be an optimizer, such as keras3.Adam(), got "
                f"{shown(default_optimizer)}."
            )
        _refuse_wrappers_in_map("default_optimizer", default_optimizer)
        if optimizer_map is not None and not isinstance(optimizer_map, Mapping):
            raise TypeError(
                "OptimizerMap: optimizer_map must be a dict from paths or patterns to optimizers, "
                f"got {shown(optimizer_map)}."
            )
        self._default = default_optimizer
        self._by_key: dict[str, Any] = {}
        for key, optimizer in (optimizer_map or {}).items():
            self[key] = optimizer

    @property
    def default_optimizer(self) -> Any:
        """The optimizer of the parameters that no key matches."""
        return self._default

    def __getitem__(self, path: str) -> Any:
        key = _key_of_path(path, tuple(self._by_key))
        return self._default if key is None else self._by_key[key]

    def __setitem__(self, key: str, optimizer: Any) -> None:
        if not isinstance(key, str) or not key or key == DEFAULT:
            raise ValueError(
                "OptimizerMap: a key must be the path of a parameter, or a pattern of paths, got "
                f"{shown(key)}."
            )
        if key in self._by_key:
            raise ValueError(
                f"OptimizerMap: the key {key!r} has an optimizer already, "
                f"{name_of(self._by_key[key])}; delete it first."
            )
        try:
            re.compile(key)
        except re.error as error:
            raise ValueError(
                f"OptimizerMap: the key {key!r} is not a regular expression: {error}. In a path "
                "write re.escape(path)."
            ) from None
        if not is_optimizer(optimizer):
            raise ValueError(
                f"OptimizerMap: the optimizer of {key!r} must be an optimizer, such as "
                f"keras3.Adam(), got {shown(optimizer)}."
            )
        _refuse_wrappers_in_map(f"the optimizer of {key!r}", optimizer)
        self._by_key[key] = optimizer

    def __delitem__(self, key: str) -> None:
        if key not in self._by_key:
            raise KeyError(f"OptimizerMap: no key {key!r}.{did_you_mean(key, self._by_key)}")
        del self._by_key[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_key)

    def __len__(self) -> int:
        return len(self._by_key)

    def __contains__(self, key: object) -> bool:
        """Whether it is a key; `optimizers[path]` knows an optimizer for any path."""
        return key in self._by_key

    def __eq__(self, other: object) -> bool:
        """Whether it has the same optimizers, also by default."""
        if not isinstance(other, OptimizerMap):
            return NotImplemented
        return (self._default, self._by_key) == (other._default, other._by_key)

    __hash__ = None  # it can be changed

    def __repr__(self) -> str:
        return f"OptimizerMap({self._default!r}, {self._by_key!r})"

    def get_config(self) -> dict[str, Any]:
        """Return the optimizers as plain data, in the form of Keras 3.

        Raises:
          ValueError: if Keras does not have one of the optimizers.
        """
        return {
            "default_optimizer": serialize(self._default, version=3),
            "optimizer_map": {k: serialize(x, version=3) for k, x in self._by_key.items()},
        }

    @classmethod
    def from_config(
        cls, config: Mapping[str, Any], custom_objects: Mapping[str, Any] | None = None
    ) -> Self:
        """Return the map of a config; see `compat.keras.deserialize`."""
        with reading(config, "OptimizerMap.from_config"):
            return _read_map(cls, config, custom_objects, "OptimizerMap.from_config")


def _read_map(cls: Any, config: Any, custom_objects: Any, where: str) -> Any:
    keys = (DEFAULT, _KEY)
    if not isinstance(config, Mapping) or set(config) != set(keys):
        raise ValueError(f"{where}: must be a dict with {' and '.join(keys)}, got {shown(config)}.")
    by_key = config["optimizer_map"]
    if not isinstance(by_key, Mapping):
        raise TypeError(
            f"{where}.optimizer_map: must be a dict of optimizers, got {shown(by_key)}."
        )

    def read(data: Any, at: str) -> Any:
        return read_object(described_object(data, at), custom_objects, at)

    return cls(
        read(config["default_optimizer"], f"{where}.default_optimizer"),
        {k: read(x, f"{where}.optimizer_map[{k!r}]") for k, x in by_key.items()},
    )


def _refuse_wrappers_in_map(what: str, tx: Any) -> None:
    if multi_of(tx) is not None:
        raise ValueError(
            f"OptimizerMap: {what} is a MultiOptimizer; put its keys into the outer map."
        )
    if has_loss_scale(tx):
        raise ValueError(
            f"OptimizerMap: {what} scales the loss, which only one optimizer may; put "
            "LossScaleOptimizer around MultiOptimizer."
        )


@functools.lru_cache(maxsize=4096)
def _key_of_path(path: str, keys: tuple[str, ...]) -> str | None:
    """Return the key that a path belongs to; None if no key matches it."""
    if path in keys:
        return path
    matching = [key for key in keys if re.fullmatch(key, path)]
    if len(matching) > 1:
        listed = " and ".join(map(repr, matching))
        raise ValueError(
            f"MultiOptimizer: the keys {listed} all match the parameter {path!r}, which has one "
            "optimizer; make them narrower, or add the path itself as a key."
        )
    return matching[0] if matching else None


@value
class optimizer_key(path_matches):
    """Select the parameters that belong to one key of an `OptimizerMap`.

    Args:
      pattern: the key: the path of a parameter, or a pattern that matches the whole path.
      keys: all keys of the map.
      optional: whether it may match nothing. Keyword-only.

    Raises:
      ValueError: on the first parameters, if the key does not match any path, or several keys match
        one that is not a key itself.
    """

    keys: tuple[str, ...] = ()

    remedy: ClassVar[str] = (
        "Keys are matched with the paths that parameters have here; in Keras these may begin with "
        "the name of the model."
    )

    def test(self, path: Path, leaf: Any) -> bool:
        """Return whether the leaf belongs to the key."""
        return _key_of_path("/".join(path), self.keys) == self.pattern


def _read_multi(config: Mapping[str, Any], custom_objects: Any, where: str) -> chain:
    """Return the optimizer of a config.

    Raises:
      ValueError: if it has a function in the place of a map, or an unknown key.
      TypeError: if a part has another type.
    """
    config = {k: v for k, v in config.items() if k != "name"}
    if _KEY not in config:
        raise ValueError(f"{where}: no {_KEY}, the config of an OptimizerMap.")
    data = config[_KEY]
    name = data.get("class_name") if isinstance(data, dict) else None
    if not isinstance(name, str) or name.lower() != "optimizermap":
        raise ValueError(
            f"{where}.{_KEY}: must be the config of an OptimizerMap, got {shown(data)}. A function "
            "of Keras's variables cannot be read; write an OptimizerMap in its place."
        )
    inner = described_object(data, f"{where}.{_KEY}")
    try:
        config[_KEY] = _read_map(
            OptimizerMap, inner.config, custom_objects, f"{where}.{_KEY}.config"
        )
    except ValueError as error:  # those of the map do not know the place
        if str(error).startswith("OptimizerMap: "):
            raise ValueError(f"{where}.{_KEY}: {error}") from None
        raise
    return made_by(MultiOptimizer, config, where, ValueError)


def _written_multi(tx: Any, name: str | None, version: float | None) -> dict[str, Any] | None:
    multi = multi_of(tx) if version in (None, 3) else None
    if multi is None:
        return None
    factor = multi.loss_scale_factor

    def whole(tx: Any) -> dict[str, Any]:
        plain = serialize(tx, version=3)  # Keras tells its own factor to all of them
        return plain | {"config": plain["config"] | {"loss_scale_factor": factor}}

    by_key = {key: whole(multi.optimizers[label]) for key, label in multi.labels.items()}
    maps = {"default_optimizer": whole(multi.optimizers[multi.default]), "optimizer_map": by_key}
    config = {
        _KEY: written_object("OptimizerMap", maps, "keras.optimizers"),
        "loss_scale_factor": factor,
        "name": name or "multi_optimizer",
    }
    return written_object("MultiOptimizer", config, "keras.optimizers")


@with_from_config(_read_multi, _written_multi)
@with_checked_arguments
def MultiOptimizer(
    optimizer_map: Any, loss_scale_factor: float | None = None, name: Any = None
) -> chain:
    """Give each parameter the optimizer of its path: a `partition`, and a count of the updates.

    Each optimizer clips, decays, averages and accumulates what is its own. One object that stands
    under several keys is one optimizer, with one list of weights, as in Keras. Hyperparameters are
    in the state of the optimizers that `inject_hyperparams` has made, each in the map.

    Args:
      optimizer_map: an `OptimizerMap`.
      loss_scale_factor: divides the gradients, in the place of the loss_scale_factor of each
        optimizer, which does not count here, as in Keras.
      name: ignored.

    Raises:
      TypeError: if optimizer_map is a function or something else.
      ValueError: if loss_scale_factor is not greater than 0; on the first parameters, if a key
        matches none of them, or two patterns match one.

    Reference: `keras.optimizers.MultiOptimizer`.
    """
    if not isinstance(optimizer_map, OptimizerMap):
        why = ", which Keras calls with its variables" if callable(optimizer_map) else ""
        raise TypeError(
            f"MultiOptimizer: optimizer_map must be an OptimizerMap, got {shown(optimizer_map)}"
            f"{why}. Write OptimizerMap(default, {{'encoder/.*': optimizer}}) with paths or "
            "patterns, or gradxform.partition with a function of the parameters."
        )
    if isinstance(loss_scale_factor, int | float) and not loss_scale_factor > 0:
        raise ValueError(
            f"MultiOptimizer: loss_scale_factor must be greater than 0, or None, got "
            f"{loss_scale_factor!r}."
        )
    by_key = dict(optimizer_map)
    labels: dict[int, str] = {}  # of each object, that of its first key
    pairs = [
        (labels.setdefault(id(tx), key), optimizer_key(key, keys=tuple(by_key)))
        for key, tx in by_key.items()
    ]
    default = labels.setdefault(id(optimizer_map.default_optimizer), DEFAULT)
    transforms = {labels[id(tx)]: tx for tx in (*by_key.values(), optimizer_map.default_optimizer)}
    groups = partition(
        {label: without_loss_scale_factor(tx) for label, tx in transforms.items()},
        label_by(*pairs, (default, True)),
    )
    tx = chain(groups, count_updates())
    return tx if loss_scale_factor is None else chain(scale(1.0 / loss_scale_factor), tx)


class Multi(NamedTuple):
    """What a `MultiOptimizer` is made of."""

    optimizers: dict[str, Any]  # by label, in Keras's order
    labels: dict[str, str]  # of each key
    default: str  # the label of all other parameters
    labels_of: label_by
    loss_scale_factor: Any


def multi_of(tx: Any) -> Multi | None:
    """Return what a `MultiOptimizer` is made of; None for any other transform."""
    core, factor = tx, None
    parts = tx.transforms if isinstance(tx, chain) else ()
    if len(parts) == 2 and isinstance(parts[0], scale) and isinstance(parts[1], chain):
        step = parts[0].step_size
        core, factor = parts[1], 1.0 / step if isinstance(step, float) and step > 0 else step
    parts = core.transforms if isinstance(core, chain) else ()
    if len(parts) != 2 or not isinstance(parts[0], partition) or parts[1] != count_updates():
        return None
    labels_of = parts[0].param_labels
    if not isinstance(labels_of, label_by) or not labels_of.pairs:
        return None
    *pairs, (default, rest) = labels_of.pairs
    if rest is not True or not all(isinstance(mask, optimizer_key) for _, mask in pairs):
        return None
    labels = {mask.pattern: label for label, mask in pairs}
    by_label = parts[0].transforms.unfreeze()
    ordered = dict.fromkeys((*labels.values(), default))
    if default != DEFAULT and default not in labels.values():
        return None
    optimizers = {label: by_label[label] for label in ordered}
    return Multi(optimizers, labels, default, labels_of, factor)
