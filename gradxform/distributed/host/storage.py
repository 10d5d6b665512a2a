"""A tree of arrays in one `.npz` file: no pickle, every dtype, written whole or not at all."""

import json
import os
import tempfile
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gradxform import trees
from gradxform.errors import name_of

FORMAT = "gradxform.distributed.host 1"


def save(path: Any, tree: Any, **about: str) -> None:
    """Write a tree to a file, which is replaced at once or stays as it was.

    Args:
      path: of the file.
      tree: of arrays and Python integers.
      **about: what else the file says of itself; not read again.
    """
    flat = _named(tree)
    dtypes = {name: _dtype_name(x) for name, x in flat}
    about = {"format": FORMAT, "dtypes": json.dumps(dtypes)} | about
    arrays: Any = {f"leaf/{name}": _plain(x) for name, x in flat}
    arrays |= {f"about/{k}": np.asarray(v) for k, v in about.items()}
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


def load(part: Any, path: Any, like: Any) -> Any:
    """Read a tree of the structure, shapes and dtypes of `like`.

    Args:
      part: who messages speak of.
      path: of the file.
      like: a tree.

    Raises:
      ValueError: if the file is none of ours, or its tree another; the message has the leaf's path.
    """
    flat = _named(like)
    with np.load(path, allow_pickle=False) as file:
        if "about/format" not in file or str(file["about/format"]) != FORMAT:
            raise ValueError(f"{name_of(part)}: {path} was not written by save().")
        dtypes = json.loads(str(file["about/dtypes"]))
        for name in [*dtypes, *dict(flat)]:
            if name not in dtypes or name not in dict(flat):
                has, lacks = ("the file", "it") if name in dtypes else ("it", "the file")
                raise ValueError(f"{name_of(part)}: {has} has a leaf {name}, {lacks} none.")
        found = []
        for name, x in flat:
            array, wanted = file[f"leaf/{name}"], _plain(x)
            if dtypes[name] != _dtype_name(x) or array.shape != wanted.shape:
                raise ValueError(
                    f"{name_of(part)}: {name} is a {dtypes[name]} of shape {array.shape} in the "
                    f"file, a {_dtype_name(x)} of shape {wanted.shape} here."
                )
            found.append(_like(x, array))
    return jax.tree.unflatten(jax.tree.structure(like), found)


def _named(tree: Any) -> list[tuple[str, Any]]:
    flat, _ = jax.tree_util.tree_flatten_with_path(tree)
    return [(trees.said(trees.names(path)), leaf) for path, leaf in flat]


def _is_key(x: Any) -> bool:
    return isinstance(x, jax.Array) and jnp.issubdtype(x.dtype, jax.dtypes.prng_key)


def _dtype_name(x: Any) -> str:
    return str(x.dtype) if _is_key(x) else np.asarray(x).dtype.name


def _plain(x: Any) -> np.ndarray:
    """Return the entries in a dtype that a file of NumPy's can hold."""
    array = np.asarray(jax.random.key_data(x) if _is_key(x) else x)
    return array if array.dtype.isbuiltin == 1 else array.view(f"u{array.dtype.itemsize}")


def _like(x: Any, array: np.ndarray) -> Any:
    """Return what `_plain` made `array` of, if it was one like `x`."""
    if isinstance(x, int):
        return int(array)
    if _is_key(x):
        return jax.random.wrap_key_data(jnp.array(array), impl=jax.random.key_impl(x))
    return jnp.array(array.view(np.asarray(x).dtype))
