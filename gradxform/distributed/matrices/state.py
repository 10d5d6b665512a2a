"""Running transforms on pieces of parameters: the context, and how their state then lies."""

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import jax
from jax import lax

from gradxform import engine
from gradxform.distributed.matrices.exchange import MatrixExchange
from gradxform.distributed.shares.param_places import spec_of
from gradxform.leaves import Path, dtype_of, map_with_paths, shape_of
from gradxform.leaves.states import marked_fields
from gradxform.types import Array, ArraySlot, MatrixSlot, Params, PyTree

# For each parameter, by its path, the mesh axes that cut it, in order, with their dimensions.
Cuts = Mapping[Path, tuple[tuple[str, int], ...]]


class _MatrixShapes(NamedTuple):
    """Cuts arrays only by their shapes, where mesh axes are not bound."""

    sizes: Mapping[str, int]

    def psum(self, x: Array, axes: tuple[str, ...]) -> Array:
        """Return an array of the shape of a sum."""
        return x

    def cut(self, x: Array, cuts: tuple[tuple[str, int], ...]) -> Array:
        """Return an array of the shape of a piece."""
        for axis, dim in cuts:
            x = lax.slice_in_dim(x, 0, x.shape[dim] // self.sizes[axis], axis=dim)
        return x


@contextlib.contextmanager
def on_pieces(
    cuts: Cuts, sizes: Mapping[str, int], reach: str, exchange: Any = None
) -> Iterator[None]:
    """Let transforms see pieces: sums cover all devices, and matrices come together.

    Args:
      cuts: how each parameter is divided.
      sizes: the mesh axes, and the number of devices along each.
      reach: how far transforms look, as `check_reach` has it.
      exchange: what cuts arrays and brings matrices together; None for a `MatrixExchange`.
    """
    sizes = {axis: n for axis, n in sizes.items() if n > 1} or sizes  # one device cuts nothing
    every = tuple(sizes)
    axes = {path: tuple(axis for axis, _ in pairs) for path, pairs in cuts.items()}
    exchange = exchange or MatrixExchange(every)
    pieces = engine.as_pieces(cuts, sizes, exchange, reach == "row")
    with engine.as_shards(axes, every, exchange.psum), pieces:
        yield


def specs_of_pieces(
    tx: Any, params: Params, cuts: Cuts, sizes: Mapping[str, int], reach: str
) -> PyTree:
    """Return a `PartitionSpec` for every leaf of the state, where `tx.init` gets pieces.

    A dimension that is shorter for pieces along one mesh axis is divided along that axis.

    Args:
      tx: the transform.
      params: the whole parameters, or their shapes and dtypes.
      cuts: how each is divided.
      sizes: the mesh axes, and the number of devices along each.
      reach: how far the transform looks, as `check_reach` has it.
    """
    state = jax.eval_shape(tx.init, params)
    whole, treedef = jax.tree.flatten(state)
    alone = jax.tree.leaves(cut_alone(state))
    entries: list[list[tuple[str, ...]]] = [[()] * len(x.shape) for x in whole]
    for axis, size in sizes.items():
        only = {path: tuple(c for c in pairs if c[0] == axis) for path, pairs in cuts.items()}
        changed = _dims_of_pieces(tx, params, whole, only, {axis: size}, reach)
        for spec, dims, first in zip(entries, changed, alone, strict=True):
            for dim in dims:
                spec[dim] += (axis,) if dim < first else ()
    if any(first < len(x.shape) for first, x in zip(alone, whole, strict=True)):
        changed = _dims_of_pieces(tx, params, whole, cuts, sizes, reach)
        for spec, dims, first in zip(entries, changed, alone, strict=True):
            for dim in dims:
                spec[dim] = spec[dim] if dim < first else tuple(sizes)
    return treedef.unflatten([spec_of(spec) for spec in entries])


def _dims_of_pieces(
    tx: Any, params: Params, whole: Any, cuts: Cuts, sizes: Mapping[str, int], reach: str
) -> list[list[int]]:
    """Return for each leaf of the state the dimensions that are shorter for pieces."""
    with on_pieces(cuts, sizes, reach, _MatrixShapes(sizes)):
        # A function of its own: JAX would answer from its cache, which contexts are not part of.
        of_pieces = jax.eval_shape(
            lambda params: tx.init(params), _param_pieces(params, cuts, sizes)
        )
    return [
        [dim for dim, (n, k) in enumerate(zip(x.shape, piece.shape, strict=True)) if n != k]
        for x, piece in zip(whole, jax.tree.leaves(of_pieces), strict=True)
    ]


def _param_pieces(params: Params, cuts: Cuts, sizes: Mapping[str, int]) -> Params:
    def piece(path: Path, x: Any) -> Any:
        shape = list(shape_of(x))
        for axis, dim in cuts[path]:
            shape[dim] //= sizes[axis]
        return jax.ShapeDtypeStruct(tuple(shape), dtype_of(x))

    return map_with_paths(piece, params)


def cut_alone(state: PyTree) -> PyTree:
    """Return a tree like a state: how many of a leaf's first dimensions single mesh axes may cut.

    All of most leaves, and the batch of slots for matrices. The dimensions after these are cut by
    all axes together, or by none.
    """

    def mark(x: Any) -> Any:
        together = _batch_dims_of_matrix_state(x)
        if not together:
            return len(x.shape)
        new = {}
        for name, tree in x._asdict().items():
            first = together.get(name)
            new[name] = (
                cut_alone(tree) if first is None else jax.tree.map(lambda _, n=first: n, tree)
            )
        return x._replace(**new)

    return jax.tree.map(mark, state, is_leaf=lambda x: bool(_batch_dims_of_matrix_state(x)))


def _batch_dims_of_matrix_state(x: Any) -> dict[str, int]:
    """Return for each field of slots for whole matrices or arrays how many dimensions are batch."""
    if not (isinstance(x, tuple) and hasattr(x, "_fields")):
        return {}
    kinds = (MatrixSlot, 1), (ArraySlot, 0)
    return {name: first for kind, first in kinds for name in marked_fields(type(x), kind)}
