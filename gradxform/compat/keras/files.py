"""Optimizers in the files of Keras's models, also of `as_keras`: `.keras` archives and HDF5."""

import io
import json
import os
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeGuard

import jax
import jax.numpy as jnp
import numpy as np

from gradxform.compat.keras import schedules
from gradxform.compat.keras.bridge import imported_from_keras, plain_array, tree_of
from gradxform.compat.keras.configs import OPTIONS, get
from gradxform.compat.keras.keras3 import around_keras3_step
from gradxform.compat.keras.weights import get_weights, parameter_paths, set_weights
from gradxform.errors import TOO_DEEP, name_of, shown
from gradxform.interop import OfFunctions
from gradxform.leaves import flatten_with_names
from gradxform.transforms.counts import count_updates
from gradxform.transforms.scaling import scale_by_learning_rate
from gradxform.types import OptState, Params, SupportsTransform
from gradxform.values.config import from_config
from gradxform.wrappers.compose import chain
from gradxform.wrappers.flatten import flatten
from gradxform.wrappers.parts import all_parts

_CONFIG, _WEIGHTS = "config.json", "model.weights.h5"
_RATE = "learning_rate"
_CLASS = "gradxform>TransformOptimizer"


class _Saved(NamedTuple):
    """The optimizer in a file."""

    config: dict[str, Any] | str  # what `compat.keras.get` reads
    weights: list[np.ndarray]
    version: int  # of the order of the weights
    names: list[str] | None  # of the weights, where the file has them

    def is_built(self) -> bool:
        """Whether it had parameters when it was saved: an unused one has scalars only, or none."""
        return any(x.ndim for x in self.weights) or any(x.item() for x in self.weights[:1])


def load_optimizer(
    path: str | os.PathLike[str],
    params: Params,
    *,
    order: Sequence[str] | None = None,
    custom_objects: dict[str, Any] | None = None,
) -> tuple[SupportsTransform, OptState]:
    """Return the optimizer in the file of a Keras model, and its state.

        order = [v.path for v in model.trainable_variables]                              in Keras
        tx, state = compat.keras.load_optimizer("model.keras", params, order=order)

    Reads `.keras` archives and HDF5 files (`.h5`) of Keras 3, and HDF5 files of Keras 1 and 2. An
    optimizer of `as_keras` comes as its transform, with its learning rate and Keras's options. One
    that was saved before it took a step begins here with `init`. Nothing is imported but h5py, and
    no code of the file is run.

    Args:
      path: the file, as `model.save(path)` writes it.
      params: the parameters here, of the same shapes.
      order: the parameters' paths here, in the order of the Keras model's trainable variables. By
        default the order of the tree, in which dicts are sorted by key: `bias` before `kernel`.
      custom_objects: as in `deserialize`.

    Raises:
      ImportError: if h5py is not installed; it is in the extra `keras`.
      FileNotFoundError: if the file does not exist.
      TypeError: if `path` is not a path, or a part of the config has another type.
      ValueError: if the file is of another kind or without an optimizer, or its config names an
        unknown class or argument; and as `set_weights` for its weights.
    """
    saved = _saved_optimizer(path)
    of_ours = None
    try:
        if _is_transform(saved.config):
            of_ours = _SavedTransform(saved.config, custom_objects)
        tx = get(saved.config, custom_objects) if of_ours is None else of_ours.tx
    except (KeyError, TypeError, ValueError) as error:
        kind = TypeError if isinstance(error, TypeError) else ValueError
        raise kind(f"load_optimizer: {os.fspath(path)!r}: {error.args[0]}") from None
    if not saved.is_built():
        return tx, tx.init(params)
    if of_ours is not None:
        return tx, of_ours.state(params, _saved_weights_with_rate(saved), order)
    return tx, set_weights(tx, params, _saved_weights_with_rate(saved), saved.version, order)


def _saved_optimizer(path: str | os.PathLike[str]) -> _Saved:
    """Return the optimizer of a file as plain data.

    Raises:
      TypeError, FileNotFoundError, ValueError: see `load_optimizer`.
    """
    if not isinstance(path, str | os.PathLike):
        raise TypeError(f"load_optimizer: path must be the path of a file, got {shown(path)}.")
    name = os.fspath(path)
    h5py = imported_from_keras("load_optimizer", "h5py")
    if os.path.isdir(name):
        raise ValueError(
            f"load_optimizer: {name!r} is a folder; pass the .keras archive or the HDF5 "
            "file of a model."
        )
    if not os.path.isfile(name):
        raise FileNotFoundError(f"load_optimizer: there is no file {name!r}.")
    try:
        if zipfile.is_zipfile(name):
            return _saved_in_archive(name, h5py)
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


def _saved_in_archive(name: str, h5py: Any) -> _Saved:
    """Return the optimizer of a `.keras` file, of Keras 3."""
    with zipfile.ZipFile(name) as archive:
        for member in (_CONFIG, _WEIGHTS):
            if member not in archive.namelist():
                raise ValueError(
                    f"load_optimizer: {name!r} has no {member}; save the model with "
                    "model.save('model.keras')."
                )
        config = _json(name, _CONFIG, archive.read(_CONFIG))
        data = archive.read(_WEIGHTS)
    compiled = config.get("compile_config") or {}
    if not isinstance(compiled, dict):
        raise ValueError(
            f"load_optimizer: compile_config of {name!r} must be a dict, got {shown(compiled)}."
        )
    optimizer = compiled.get("optimizer")
    if not optimizer:
        raise ValueError(_without_optimizer(name))
    with h5py.File(io.BytesIO(data), "r") as file:
        group = file.get("optimizer/vars", {})
        weights = _numbered_weights(name, group)
    return _Saved(optimizer, weights, 3, None)


def _numbered_weights(name: str, group: Any) -> list[np.ndarray]:
    """Return the arrays of a group of Keras 3, which are called 0, 1, 2, ..."""
    odd = None if isinstance(group, Mapping) else "an array in place of the group"
    for k in () if odd else group:
        if not k.isdecimal() or isinstance(group[k], Mapping):
            odd = f"{shown(k)} among the weights"
    if odd:
        raise ValueError(
            f"load_optimizer: optimizer/vars of {name!r} must have the arrays 0, 1, 2, ..., but "
            f"has {odd}; save the model with model.save('model.keras')."
        )
    return [np.asarray(group[k]) for k in sorted(group, key=int)]


def _saved_in_hdf5(name: str, file: Any) -> _Saved:
    """Return the optimizer of an HDF5 file, which Keras 1, 2 and 3 write."""
    if "training_config" not in file.attrs:
        if "optimizer" in file:
            raise ValueError(
                f"load_optimizer: {name!r} has weights but not the optimizer's config; save the "
                "whole model with model.save('model.keras')."
            )
        raise ValueError(_without_optimizer(name))
    config = _json(name, "training_config", file.attrs["training_config"])
    optimizer = config.get("optimizer_config")
    if not optimizer:
        raise ValueError(_without_optimizer(name))
    group = file.get("optimizer_weights")
    names = [] if group is None else _weight_names_in_hdf5(group)
    weights = [np.asarray(group[k]) for k in names] if group is not None else []
    words = [k.rpartition("/")[2].partition(":")[0] for k in names]
    # Keras 2.11 and later count `iteration`; older ones `iter` or `iterations`, or do not count.
    return _Saved(optimizer, weights, 3 if words[:1] == ["iteration"] else 2, words)


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


def _saved_weights_with_rate(saved: _Saved) -> list[np.ndarray]:
    """Return the weights with the learning rate, which Keras 2.11 to 2.15 do not write."""
    config = saved.config
    own = config.get("config") if isinstance(config, Mapping) else None
    rate = own.get(_RATE) if isinstance(own, Mapping) else None
    if saved.version == 2 or saved.names is None or not isinstance(rate, int | float):
        return saved.weights
    if _RATE in saved.names:
        return saved.weights
    return [saved.weights[0], np.asarray(rate, np.float32), *saved.weights[1:]]


def _json(name: str, what: str, text: str | bytes) -> dict[str, Any]:
    try:
        config = json.loads(text)
    except RecursionError:
        raise ValueError(f"load_optimizer: {what} of {name!r} is {TOO_DEEP}.") from None
    except ValueError as error:
        raise ValueError(f"load_optimizer: {what} of {name!r} is not JSON: {error}.") from None
    if not isinstance(config, dict):
        raise ValueError(f"load_optimizer: {what} of {name!r} must be a dict, got {shown(config)}.")
    return config


def _without_optimizer(name: str) -> str:
    return (
        f"load_optimizer: {name!r} was saved without an optimizer; compile the model before you "
        "save it."
    )


# --------------------------------------------------------------------------- optimizers of as_keras


class _SavedTransform:
    """The optimizer of a file that `as_keras` made, as a transform."""

    def __init__(self, config: Mapping[str, Any], custom_objects: Any) -> None:
        own = dict(config["config"])
        rate = own.pop("learning_rate", 1.0)
        if isinstance(rate, dict):
            place = "config.config.learning_rate"
            rate = schedules.deserialized(rate, custom_objects, place)
        self._rate = rate
        self._options = {k: own.get(k, default) for k, (default, _) in OPTIONS.items()}
        self.inner = from_config(own["transform"])
        self.tx = self._around(self.inner)

    def _around(self, inner: Any) -> chain:
        """Return what Keras does around the steps of a transform."""

        def steps(rate: Any) -> chain:
            return chain(inner, scale_by_learning_rate(rate, flip_sign=False))

        return around_keras3_step(name_of(self.inner), steps, self._rate, self._options)

    def state(
        self, params: Params, weights: Sequence[np.ndarray], order: Sequence[str] | None
    ) -> OptState:
        """Return the state that these weights are, of a run with `params`.

        Raises:
          ValueError: if they are not those of this transform for these parameters.
        """
        # Keras's own weights come first. A count stands for the transform among the other parts.
        counted = self._around(count_updates())
        first = counted.init(params)
        length = len(get_weights(counted, first, params, 3, order))
        inner = self._inner_state(params, weights[length:], order)
        outer = set_weights(counted, params, weights[:length], 3, order)
        stub = OfFunctions(lambda params: inner, _update_of_transform)
        return _filled_state(
            self._around(stub).init(params),
            _arrays_by_path(outer),
            _ids_of_arrays(inner),
        )

    def _inner_state(
        self, params: Params, weights: Sequence[np.ndarray], order: Sequence[str] | None
    ) -> OptState:
        """Return the state of the transform; in Keras its slots stand in the model's order."""
        paths = parameter_paths("load_optimizer", params, order)
        names = ["/".join(path) for path in paths]
        leaves = {"/".join(path): p for path, p in _arrays_by_path(params).items()}
        in_order = tree_of(names)([jnp.asarray(leaves[name]) for name in names])
        there = jax.eval_shape(self.inner.init, in_order)
        places = ["/".join(path) for path in _arrays_by_path(there)]
        state = self.inner.init(params)
        kept = {"/".join(path): x for path, x in _arrays_by_path(state).items()}
        flat = any(isinstance(part, flatten) for part in all_parts(self.inner))
        if flat and names != list(leaves):
            raise ValueError(
                "load_optimizer: flatten joins the parameters in the order of the tree here, and "
                "in that of the model there; its state cannot be taken over."
            )
        if len(weights) != len(places) or set(kept) != set(places):
            raise ValueError(
                f"load_optimizer: the file has {len(weights)} arrays of {name_of(self.inner)}, "
                f"whose state has {len(kept)} for these parameters. Pass the parameters of that "
                "model; a mask by path must match them by the paths that they have here."
            )
        new = {}
        for place, x in zip(places, weights, strict=True):
            plain, restore = plain_array(kept[place])
            if jnp.shape(x) != plain.shape:
                raise ValueError(
                    f"load_optimizer: {place} of {name_of(self.inner)} has shape {plain.shape}, "
                    f"the file's {jnp.shape(x)}. Pass order=, the paths of the parameters in the "
                    "order of the Keras model."
                )
            new[place] = restore(jnp.asarray(x, plain.dtype))
        return jax.tree.unflatten(jax.tree.structure(state), [new[place] for place in kept])


def _is_transform(config: Any) -> TypeGuard[Mapping[str, Any]]:
    """Whether a config of Keras is that of `as_keras`."""
    if not isinstance(config, Mapping):
        return False
    if _CLASS not in (config.get("registered_name"), config.get("class_name")):  # HDF5 has one
        return False
    own = config.get("config")
    if not isinstance(own, Mapping) or not isinstance(own.get("transform"), dict):
        raise ValueError(
            f"config: an optimizer of as_keras has its transform as a dict, got {shown(own)}."
        )
    return True


def _update_of_transform(updates: Any, state: Any, params: Any = None) -> Any:
    raise NotImplementedError  # only the first state of the stand-in is read, never a step


def _arrays_by_path(tree: Any) -> dict[tuple[str, ...], Any]:
    return dict(flatten_with_names(tree)[0])


def _ids_of_arrays(tree: Any) -> set[int]:
    return {id(x) for x in jax.tree.leaves(tree)}


def _filled_state(state: Any, outer: Mapping[tuple[str, ...], Any], inner: set[int]) -> Any:
    """Return a state with the arrays of `outer` by path, and its own where they are the inner's."""
    named, treedef = flatten_with_names(state)
    return treedef.unflatten(x if id(x) in inner else outer[path] for path, x in named)
