"""`MultiOptimizer` of Keras 3: an optimizer for each group of parameters, by their paths."""

import functools
import importlib
import re
from collections.abc import Iterator, Mapping, MutableMapping
from typing import Any, ClassVar, NamedTuple, Self

from gradxform.compat.keras.from_config import around_others
from gradxform.compat.keras.keras3_options import without_loss_scale_factor
from gradxform.errors import did_you_mean, name_of, shown
from gradxform.leaves import Path
from gradxform.leaves.masks import label_by, path_matches
from gradxform.transforms.counts import count_updates
from gradxform.transforms.scaling import scale
from gradxform.types import SupportsTransform
from gradxform.values.arguments import with_checked_arguments
from gradxform.values.fields import value
from gradxform.wrappers.compose import chain
from gradxform.wrappers.loss_scale import has_loss_scale
from gradxform.wrappers.select import partition

# The label of the parameters that no key matches.
DEFAULT = "default_optimizer"


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
        if not _is_optimizer_for_map(default_optimizer):
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
        key = _optimizer_key_of_path(path, tuple(self._by_key))
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
        if not _is_optimizer_for_map(optimizer):
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
        serialize = importlib.import_module("gradxform.compat.keras.keras").serialize
        return {
            "default_optimizer": serialize(self._default, version=3),
            "optimizer_map": {k: serialize(x, version=3) for k, x in self._by_key.items()},
        }

    @classmethod
    def from_config(
        cls, config: Mapping[str, Any], custom_objects: Mapping[str, Any] | None = None
    ) -> Self:
        """Return the map of a config; see `compat.keras.deserialize`."""
        deserialize = importlib.import_module("gradxform.compat.keras.keras").deserialize
        return map_of_config(
            cls, config, lambda x, where: deserialize(x, custom_objects), "OptimizerMap.from_config"
        )


def map_of_config(cls: Any, config: Any, read: Any, where: str) -> Any:
    """Return the map of a config, of which `read(data, where)` returns an optimizer."""
    keys = ("default_optimizer", "optimizer_map")
    if not isinstance(config, Mapping) or set(config) != set(keys):
        raise ValueError(f"{where}: must be a dict with {' and '.join(keys)}, got {shown(config)}.")
    by_key = config["optimizer_map"]
    if not isinstance(by_key, Mapping):
        raise TypeError(
            f"{where}.optimizer_map: must be a dict of optimizers, got {shown(by_key)}."
        )
    return cls(
        read(config["default_optimizer"], f"{where}.default_optimizer"),
        {k: read(x, f"{where}.optimizer_map[{k!r}]") for k, x in by_key.items()},
    )


def _is_optimizer_for_map(x: Any) -> bool:
    return isinstance(x, SupportsTransform) and not isinstance(x, type)


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
def _optimizer_key_of_path(path: str, keys: tuple[str, ...]) -> str | None:
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
        return _optimizer_key_of_path("/".join(path), self.keys) == self.pattern


@around_others
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

    core: chain  # the partition and the count
    optimizers: dict[str, Any]  # by label, in Keras's order
    labels: dict[str, str]  # of each key
    default: str  # the label of all other parameters
    labels_of: label_by
    loss_scale_factor: Any

    def as_map(self) -> OptimizerMap:
        """Return the map that it was made of."""
        by_key = {key: self.optimizers[label] for key, label in self.labels.items()}
        return OptimizerMap(self.optimizers[self.default], by_key)


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
    return Multi(core, optimizers, labels, default, labels_of, factor)
