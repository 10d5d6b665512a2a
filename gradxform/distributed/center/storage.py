"""Saving a tree of arrays in one `.npz` file: no pickle, any dtype, whole or not at all."""

import json
import os
import tempfile
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gradxform.errors import name_of
from gradxform.leaves import dtype_of, flatten_with_names, path_str

FORMAT = "gradxform.distributed.center 2"


def save(path: Any, tree: Any, **about: Any) -> None:
    """Write a tree to a file. The file is replaced atomically or stays as it was.

    Args:
      path: the path of the file.
      tree: a tree of arrays and Python integers.
      **about: metadata to store with it, as JSON can hold it.
    """
    flat = _named_leaves(tree)
    about |= {"format": FORMAT, "dtypes": {name: _stored_dtype(x) for name, x in flat}}
    arrays: Any = {f"leaf/{name}": _plain_array_to_store(x) for name, x in flat}
    arrays["about"] = np.asarray(json.dumps(about))
    path = os.path.abspath(os.fspath(path))
    handle, unfinished = tempfile.mkstemp(dir=os.path.dirname(path), suffix=".unfinished")
    try:
        with os.fdopen(handle, "wb") as file:
            np.savez(file, **arrays)
            file.flush()
            os.fsync(file.fileno())
        os.replace(unfinished, path)
    except BaseException:
        os.unlink(unfinished)
        raise


def load(
    part: Any, path: Any, like: Callable[[Any, dict[str, Any]], Any]
) -> tuple[dict[str, Any], Any]:
    """Return the metadata and the tree of a file.

    Args:
      part: the part that error messages name.
      path: the path of the file.
      like: a function of the path and the metadata that returns a tree with the structure, shapes
        and dtypes that the file's tree must have.

    Raises:
      OSError: if the file cannot be opened.
      ValueError: if `save` did not write it whole, or if its tree does not match or has a NaN; the
        message has the path of the file and of the leaf.
    """
    about, arrays = _contents_of_file(part, path)
    expected = like(path, about)
    dtypes, flat = about["dtypes"], dict(_named_leaves(expected))
    for name in [*dtypes, *flat]:
        if name not in dtypes or name not in flat:
            has, lacks = ("file", "center") if name in dtypes else ("center", "file")
            raise ValueError(
                f"{name_of(part)}: {path}: the {has} has a leaf {name}, but the {lacks} does not."
            )
    leaves = []
    for name, x in flat.items():
        array, plain = arrays[name], _plain_array_to_store(x)
        if dtypes[name] != _stored_dtype(x) or array.shape != plain.shape:
            raise ValueError(
                f"{name_of(part)}: {name} is a {dtypes[name]} of shape {array.shape} in {path}, "
                f"but a {_stored_dtype(x)} of shape {plain.shape} here."
            )
        leaf = _stored_leaf(x, array)
        if _has_stored_nan(leaf):
            raise ValueError(f"{name_of(part)}: {path} has a NaN in {name}.")
        leaves.append(leaf)
    return about, jax.tree.unflatten(jax.tree.structure(expected), leaves)


def _contents_of_file(part: Any, path: Any) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Return the metadata of a file, and its arrays by name."""
    with open(path, "rb") as file:
        try:
            with np.load(file, allow_pickle=False) as arrays:
                about = json.loads(str(arrays["about"]))
                names = {f"leaf/{name}": name for name in about["dtypes"]}
                is_whole = {"method", "answered"} <= set(about) and {*names, "about"} == {*arrays}
                if about["format"] != FORMAT or not is_whole:
                    raise ValueError("another format")
                return about, {name: arrays[key] for key, name in names.items()}
        # NumPy raises many kinds of errors for broken files, some with misleading advice.
        except Exception as error:
            raise ValueError(
                f"{name_of(part)}: {path} was not written by save() of this version, or has been "
                f"damaged since ({type(error).__name__})."
            ) from None


def _named_leaves(tree: Any) -> list[tuple[str, Any]]:
    return [(path_str(path), leaf) for path, leaf in flatten_with_names(tree)[0]]


def _is_stored_key(x: Any) -> bool:
    return isinstance(x, jax.Array) and jnp.issubdtype(x.dtype, jax.dtypes.prng_key)


def _stored_dtype(x: Any) -> str:
    return str(x.dtype) if _is_stored_key(x) else np.asarray(x).dtype.name


def _plain_array_to_store(x: Any) -> np.ndarray:
    """Return the entries in a dtype that an `.npz` file can hold."""
    array = np.asarray(jax.random.key_data(x) if _is_stored_key(x) else x)
    return array if array.dtype.isbuiltin == 1 else array.view(f"u{array.dtype.itemsize}")


def _has_stored_nan(x: Any) -> bool:
    return jnp.issubdtype(dtype_of(x), jnp.inexact) and bool(jnp.isnan(x).any())


def _stored_leaf(x: Any, array: np.ndarray) -> Any:
    """Undo `_plain_array_to_store` for an array of the kind of `x`."""
    if isinstance(x, int):
        return int(array)
    if _is_stored_key(x):
        return jax.random.wrap_key_data(jnp.array(array), impl=jax.random.key_impl(x))
    return jnp.array(array.view(np.asarray(x).dtype))
