"""Optimizers in the files of Keras's models: `.keras` archives and HDF5."""

import io
import json
import os
import zipfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, cast

import numpy as np

from gradxform.compat.keras.imports import imported_from_keras
from gradxform.compat.keras.saved import SavedTransform, is_transform
from gradxform.compat.keras.weights import set_weights
from gradxform.errors import shown
from gradxform.types import OptState, Params, SupportsTransform

_CONFIG, _WEIGHTS = "config.json", "model.weights.h5"
_RATE = "learning_rate"


class Saved(NamedTuple):
    """The optimizer in a file."""

    config: dict[str, Any] | str  # what `compat.keras.get` reads
    weights: list[np.ndarray]
    version: int  # of the order of the weights
    names: list[str] | None  # of the weights, where the file has them

    def is_built(self) -> bool:
        """Whether it had parameters when it was saved: an unused one has scalars only, or none."""
        return any(x.ndim for x in self.weights) or any(x.item() for x in self.weights[:1])


def loaded(
    read: Callable[[Any], SupportsTransform],
    path: str | os.PathLike[str],
    params: Params,
    order: Sequence[str] | None,
    custom_objects: Any,
) -> tuple[SupportsTransform, OptState]:
    """Return the optimizer of a file, which `read` makes of its config, and its state."""
    saved = saved_optimizer(path)
    of_ours = None
    try:
        if is_transform(saved.config):
            of_ours = SavedTransform(cast(Any, saved.config), custom_objects)
        tx = read(saved.config) if of_ours is None else of_ours.tx
    except (KeyError, TypeError, ValueError) as error:
        kind = TypeError if isinstance(error, TypeError) else ValueError
        raise kind(f"load_optimizer: {os.fspath(path)!r}: {error.args[0]}") from None
    if not saved.is_built():
        return tx, tx.init(params)
    if of_ours is not None:
        return tx, of_ours.state(params, _saved_weights_with_rate(saved), order)
    return tx, set_weights(tx, params, _saved_weights_with_rate(saved), saved.version, order)


def saved_optimizer(path: str | os.PathLike[str]) -> Saved:
    """Return the optimizer of a file as plain data.

    Raises:
      TypeError, FileNotFoundError, ValueError: see `load_optimizer`.
    """
    if not isinstance(path, str | os.PathLike):
        raise TypeError(f"load_optimizer: path must be the path of a file, got {shown(path)}.")
    name = os.fspath(path)
    h5py = imported_from_keras("load_optimizer", "h5py")
    if not os.path.isfile(name):
        raise FileNotFoundError(f"load_optimizer: there is no file {name!r}.")
    try:
        if zipfile.is_zipfile(name):
            return _saved_in_keras_archive(name, h5py)
        if h5py.is_hdf5(name):
            with h5py.File(name, "r") as file:
                return _saved_in_hdf5(name, file)
    except (OSError, KeyError, RuntimeError, zipfile.BadZipFile, zlib.error) as error:
        raise ValueError(
            f"load_optimizer: {name!r} is damaged: {error}. Save the model again, or copy the file "
            "once more."
        ) from None
    raise ValueError(
        f"load_optimizer: {name!r} is neither a .keras archive nor an HDF5 file; save the model "
        "with model.save('model.keras')."
    )


def _saved_in_keras_archive(name: str, h5py: Any) -> Saved:
    """Return the optimizer of a `.keras` file, of Keras 3."""
    with zipfile.ZipFile(name) as archive:
        for member in (_CONFIG, _WEIGHTS):
            if member not in archive.namelist():
                raise ValueError(
                    f"load_optimizer: {name!r} has no {member}; save the model with "
                    "model.save('model.keras')."
                )
        config = _json_in_keras_file(name, _CONFIG, archive.read(_CONFIG))
        data = archive.read(_WEIGHTS)
    compiled = config.get("compile_config") or {}
    optimizer = compiled.get("optimizer")
    if not optimizer:
        raise ValueError(_file_without_optimizer(name))
    with h5py.File(io.BytesIO(data), "r") as file:
        group = file.get("optimizer/vars", {})
        weights = [np.asarray(group[k]) for k in sorted(group, key=int)]
    return Saved(optimizer, weights, 3, None)


def _saved_in_hdf5(name: str, file: Any) -> Saved:
    """Return the optimizer of an HDF5 file, which Keras 1, 2 and 3 write."""
    if "training_config" not in file.attrs:
        if "optimizer" in file:
            raise ValueError(
                f"load_optimizer: {name!r} has weights but not the optimizer's config; save the "
                "whole model with model.save('model.keras')."
            )
        raise ValueError(_file_without_optimizer(name))
    config = _json_in_keras_file(name, "training_config", file.attrs["training_config"])
    optimizer = config.get("optimizer_config")
    if not optimizer:
        raise ValueError(_file_without_optimizer(name))
    group = file.get("optimizer_weights")
    names = [] if group is None else _weight_names_in_hdf5(group)
    weights = [np.asarray(group[k]) for k in names] if group is not None else []
    words = [k.rpartition("/")[2].partition(":")[0] for k in names]
    # Keras 2.11 and later count `iteration`; older ones `iter` or `iterations`, or do not count.
    return Saved(optimizer, weights, 3 if words[:1] == ["iteration"] else 2, words)


def _weight_names_in_hdf5(group: Any) -> list[str]:
    """Return the names of the weights, which Keras spreads over attributes if they are long."""
    keys = [k for k in group.attrs if k.removeprefix("weight_names").isdecimal()]
    keys = (
        ["weight_names"] if "weight_names" in group.attrs else sorted(keys, key=_weight_names_index)
    )
    return [
        x.decode() if isinstance(x, bytes) else str(x) for key in keys for x in group.attrs[key]
    ]


def _weight_names_index(key: str) -> int:
    return int(key.removeprefix("weight_names"))


def _saved_weights_with_rate(saved: Saved) -> list[np.ndarray]:
    """Return the weights with the learning rate, which Keras 2.11 to 2.15 do not write."""
    config = saved.config
    own = config.get("config") if isinstance(config, Mapping) else None
    rate = own.get(_RATE) if isinstance(own, Mapping) else None
    if saved.version == 2 or saved.names is None or not isinstance(rate, int | float):
        return saved.weights
    if _RATE in saved.names:
        return saved.weights
    return [saved.weights[0], np.asarray(rate, np.float32), *saved.weights[1:]]


def _json_in_keras_file(name: str, what: str, text: str | bytes) -> dict[str, Any]:
    try:
        config = json.loads(text)
    except ValueError as error:
        raise ValueError(f"load_optimizer: {what} of {name!r} is not JSON: {error}.") from None
    if not isinstance(config, dict):
        raise ValueError(f"load_optimizer: {what} of {name!r} must be a dict, got {shown(config)}.")
    return config


def _file_without_optimizer(name: str) -> str:
    return (
        f"load_optimizer: {name!r} was saved without an optimizer; compile the model before you "
        "save it."
    )
