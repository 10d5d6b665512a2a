"""The layout of a tree: the paths, dtypes and shapes that workers and their center compare."""

import collections
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from gradxform import engine
from gradxform.distributed.center.refusal import MALFORMED, TREE, Refusal
from gradxform.errors import name_of
from gradxform.leaves import check_params, dtype_of, flatten_with_names, path_str


class LeafLayout(NamedTuple):
    """The paths, dtypes and shapes of the leaves of a tree, in their order."""

    paths: tuple[str, ...]
    dtypes: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]

    def described(self) -> list[list[Any]]:
        """Return the layout as plain lists, which every version can read."""
        return [[p, d, list(s)] for p, d, s in zip(*self, strict=True)]

    def nbytes(self) -> list[int]:
        """Return the number of bytes of each leaf."""
        return [
            jnp.dtype(dtype).itemsize * int(np.prod(shape, dtype=np.int64))
            for dtype, shape in zip(self.dtypes, self.shapes, strict=True)
        ]

    def only(self, leaves: Sequence[int]) -> "LeafLayout":
        """Return the layout of these leaves alone."""
        kinds = [(self.paths[i], self.dtypes[i], self.shapes[i]) for i in leaves]
        paths, dtypes, shapes = zip(*kinds, strict=True)
        return LeafLayout(paths, dtypes, shapes)


def layout_of(part: Any, tree: Any) -> LeafLayout:
    """Return the layout of a tree of arrays, or of their shapes and dtypes.

    Raises:
      TypeError: if a leaf is a RowSparse, or if JAX would narrow a dtype.
      ValueError: if the paths of two leaves are spelled alike.
    """
    engine.refuse_rows(part, tree, "sends whole arrays")
    named, _ = flatten_with_names(tree)
    paths = tuple(path_str(path) for path, _ in named)
    repeated = [path for path, times in collections.Counter(paths).items() if times > 1]
    if repeated:
        raise ValueError(f"{name_of(part)}: two leaves are called {repeated[0]}.")
    # The dtypes before JAX narrows NumPy's 64 bits, which is checked below.
    dtypes = tuple(np.dtype(getattr(leaf, "dtype", dtype_of(leaf))) for _, leaf in named)
    for path, dtype in zip(paths, dtypes, strict=True):
        if jax.dtypes.canonicalize_dtype(dtype) != dtype:
            raise TypeError(
                f"{name_of(part)}: {path} has dtype {dtype}, which JAX narrows unless "
                "jax_enable_x64 is set."
            )
    shapes = tuple(tuple(map(int, np.shape(leaf))) for _, leaf in named)
    return LeafLayout(paths, tuple(d.name for d in dtypes), shapes)


def layout_of_params(part: Any, params: Any) -> LeafLayout:
    """Return the layout of parameters that a center may hold: floating and finite arrays.

    Raises:
      TypeError: as `layout_of`, or if one is not floating.
      ValueError: as `layout_of`, or if there are none, or one is not finite.
    """
    check_params(part, params)
    layout = layout_of(part, params)
    if not layout.paths:
        raise ValueError(f"{name_of(part)}: params must have arrays.")
    path = not_finite(layout, jax.tree.leaves(params))
    if path is not None:
        raise ValueError(f"{name_of(part)}: parameter {path} has a NaN or an infinity.")
    return layout


def layout_difference(layout: LeafLayout, centers: LeafLayout) -> str | None:
    """Return how a layout differs from the center's, with the path of a leaf; None if equal."""
    if layout == centers:
        return None
    own_paths, center_paths = set(layout.paths), set(centers.paths)
    extra = [p for p in layout.paths if p not in center_paths]
    if extra:
        return f"has a leaf {extra[0]}, but the center's tree does not"
    missing = [p for p in centers.paths if p not in own_paths]
    if missing:
        return f"lacks the leaf {missing[0]}, which the center's tree has"
    if layout.paths != centers.paths:
        return "has its leaves in another order than the center's tree"
    for path, *pairs in zip(layout.paths, *layout[1:], *centers[1:], strict=True):
        dtype, shape, center_dtype, center_shape = pairs
        if shape != center_shape:
            return f"has {path} of shape {shape}, but the center's has {center_shape}"
        if dtype != center_dtype:
            return f"has {path} of dtype {dtype}, but the center's has {center_dtype}"
    return None


def flatten(part: Any, tree: Any, layout: LeafLayout) -> list[np.ndarray]:
    """Return the leaves of a tree that has this layout, as NumPy arrays.

    Raises:
      ValueError: if it has another layout; the message has the path of the leaf.
    """
    mismatch = layout_difference(layout_of(part, tree), layout)
    if mismatch is not None:
        raise ValueError(f"{name_of(part)}: the tree {mismatch}.")
    pairs = zip(jax.tree.leaves(tree), layout.dtypes, strict=True)
    return [np.asarray(leaf).astype(jnp.dtype(dtype), copy=False) for leaf, dtype in pairs]


def not_finite(layout: LeafLayout, arrays: Sequence[Any]) -> str | None:
    """Return the path of the first array with a NaN or an infinity; None if there is none."""
    for path, array in zip(layout.paths, arrays, strict=True):
        if not np.isfinite(np.asarray(array)).all():
            return path
    return None


def check_leaves(declared: Any, layout: LeafLayout) -> None:
    """Require the leaves that a request declares to have this layout.

    Raises:
      Refusal: if they do not.
    """
    try:
        columns = zip(*declared, strict=True) if declared else ((), (), ())
        paths, dtypes, shapes = map(tuple, columns)
        mismatch = layout_difference(LeafLayout(paths, dtypes, tuple(map(tuple, shapes))), layout)
    except (TypeError, ValueError) as error:
        raise Refusal(MALFORMED, "a request with a malformed list of leaves") from error
    if mismatch is not None:
        raise Refusal(
            TREE, f"the worker's tree {mismatch}; make the worker with the center's own parameters"
        )


def check_arrays(arrays: Sequence[Any], layout: LeafLayout) -> None:
    """Require arrays to have the dtypes and shapes of a layout.

    Raises:
      Refusal: if they do not; the message has the path of the leaf.
    """
    if len(arrays) != len(layout.paths):
        raise Refusal(MALFORMED, f"a request with {len(arrays)} arrays, not {len(layout.paths)}")
    for path, dtype, shape, array in zip(*layout, arrays, strict=True):
        if getattr(array, "shape", None) != shape or array.dtype.name != dtype:
            raise Refusal(TREE, f"{path} of what was sent is not a {dtype} of shape {shape}")


def divide_leaves(layout: LeafLayout, shards: int) -> list[list[int]]:
    """Return the leaves of each of several shards, about equally many bytes each.

    The largest leaf goes first, to the shard with the fewest bytes so far. Leaves of one size go in
    the order of their paths, so that the same tree is always divided alike.
    """
    nbytes = layout.nbytes()
    division: list[list[int]] = [[] for _ in range(shards)]
    loads = [(0, 0, k) for k in range(shards)]  # bytes, leaves, shard
    for i in sorted(range(len(nbytes)), key=lambda i: (-nbytes[i], layout.paths[i])):
        load, leaves, k = min(loads)
        division[k].append(i)
        loads[k] = (load + nbytes[i], leaves + 1, k)
    return [sorted(leaves) for leaves in division]
