"""`MultiOptimizer` of Keras 3 as plain data."""

from collections.abc import Callable
from typing import Any

from gradxform.compat.keras.multi_optimizer import (
    Multi,
    MultiOptimizer,
    OptimizerMap,
    map_of_config,
)
from gradxform.compat.keras.objects import (
    Described,
    call_factory,
    check_keys,
    described_object,
    written_object,
)
from gradxform.errors import shown

MULTI = "multioptimizer"
_MAP = "optimizermap"
_KEY = "optimizer_map"


def read_multi(thing: Described, read: Callable[[Any, str], Any], where: str) -> Any:
    """Return the optimizer of a config, of which `read(data, where)` reads those inside.

    Raises:
      ValueError: if it has a function in the place of a map, or an unknown key.
      TypeError: if a part has another type.
    """
    place = f"{where}.config"
    config = {k: v for k, v in thing.config.items() if k != "name"}
    if _KEY not in config:
        raise ValueError(f"{place}: no {_KEY}, the config of an OptimizerMap.")
    check_keys(MultiOptimizer, config, place, ValueError)
    data = config[_KEY]
    name = data.get("class_name") if isinstance(data, dict) else None
    if not isinstance(name, str) or name.lower() != _MAP:
        raise ValueError(
            f"{place}.{_KEY}: must be the config of an OptimizerMap, got {shown(data)}. A function "
            "of Keras's variables cannot be read; write an OptimizerMap in its place."
        )
    inner = described_object(data, f"{place}.{_KEY}")
    try:
        config[_KEY] = map_of_config(OptimizerMap, inner.config, read, f"{place}.{_KEY}.config")
    except ValueError as error:  # those of the map do not know the place
        if str(error).startswith("OptimizerMap: "):
            raise ValueError(f"{place}.{_KEY}: {error}") from None
        raise
    return call_factory(MultiOptimizer, config, place)


def written_multi(multi: Multi, write: Callable[[Any], dict[str, Any]], name: str | None) -> Any:
    """Return the config of a `MultiOptimizer`; `write(tx)` writes one of those inside."""
    factor = multi.loss_scale_factor

    def whole(tx: Any) -> dict[str, Any]:
        plain = write(tx)  # Keras tells its own factor to all of them
        return plain | {"config": plain["config"] | {"loss_scale_factor": factor}}

    by_key = {key: whole(multi.optimizers[label]) for key, label in multi.labels.items()}
    maps = {"default_optimizer": whole(multi.optimizers[multi.default]), "optimizer_map": by_key}
    config = {
        _KEY: written_object("OptimizerMap", maps, "keras.optimizers"),
        "loss_scale_factor": factor,
        "name": name or "multi_optimizer",
    }
    return written_object("MultiOptimizer", config, "keras.optimizers")
