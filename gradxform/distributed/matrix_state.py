"""Running transforms on pieces of parameters: the context, and how their state then lies."""

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import jax
from jax.sharding import PartitionSpec

from gradxform import engine
from gradxform.distributed.axis import psum
from gradxform.distributed.matrix_exchange import MatrixExchange
from gradxform.leaves import Path, dtype_of, map_with_paths, shape_of
from gradxform.states import marked_fields
from gradxform.types import MatrixSlot, Params, PyTree

# For each parameter, by its path, the mesh axes that cut it, in order, with their dimensions.
Cuts = Mapping[Path, tuple[tuple[str, int], ...]]


@contextlib.contextmanager
def on_pieces(cuts: Cuts, sizes: Mapping[str, int]) -> Iterator[None]:
    """Let transforms see pieces: sums cover all devices, and matrices come together.

    Args:
      cuts: how each parameter is divided.
      sizes: the mesh axes, and the number of devices along each.
    """
    every = tuple(sizes)
    axes = {path: tuple(axis for axis, _ in mine) for path, mine in cuts.items()}
    pieces = engine.as_pieces(cuts, sizes, MatrixExchange(every))
    with engine.as_shards(axes, every, psum), pieces:
        yield


def state_specs(tx: Any, params: Params, cuts: Cuts, sizes: Mapping[str, int]) -> PyTree:
    """Return a `PartitionSpec` for every leaf of the state, where `tx.init` gets pieces.

    A dimension that is shorter for pieces along one mesh axis is divided along that axis.

    Args:
      tx: the transform.
      params: the whole parameters, or their shapes and dtypes.
      cuts: how each is divided.
      sizes: the mesh axes, and the number of devices along each.
    """
    whole, treedef = jax.tree.flatten(jax.eval_shape(tx.init, params))
    entries: list[list[tuple[str, ...]]] = [[()] * len(x.shape) for x in whole]
    for axis, size in sizes.items():
        only = {path: tuple(c for c in mine if c[0] == axis) for path, mine in cuts.items()}
        with on_pieces(only, {axis: size}):
            pieces = jax.tree.leaves(jax.eval_shape(tx.init, _pieces(params, only, size)))
        for mine, x, piece in zip(entries, whole, pieces, strict=True):
            for dim, (n, k) in enumerate(zip(x.shape, piece.shape, strict=True)):
                mine[dim] += (axis,) if n != k else ()
    return treedef.unflatten([_spec(mine) for mine in entries])


def _pieces(params: Params, cuts: Cuts, size: int) -> Params:
    def piece(path: Path, x: Any) -> Any:
        shape = list(shape_of(x))
        for _, dim in cuts[path]:
            shape[dim] //= size
        return jax.ShapeDtypeStruct(tuple(shape), dtype_of(x))

    return map_with_paths(piece, params)


def _spec(entries: list[tuple[str, ...]]) -> PartitionSpec:
    entries = list(entries)
    while entries and not entries[-1]:
        entries.pop()
    return PartitionSpec(*(e[0] if len(e) == 1 else e or None for e in entries))


def in_matrix_slots(state: PyTree) -> PyTree:
    """Return a tree like a state, with whether each leaf has an entry for each matrix."""

    def mark(x: Any) -> Any:
        if not _has_matrix_slots(x):
            return False
        fields = marked_fields(type(x), MatrixSlot)
        return x._replace(
            **{
                k: jax.tree.map(lambda _: True, v) if k in fields else in_matrix_slots(v)
                for k, v in x._asdict().items()
            }
        )

    return jax.tree.map(mark, state, is_leaf=_has_matrix_slots)


def _has_matrix_slots(x: Any) -> bool:
    return (
        isinstance(x, tuple) and hasattr(x, "_fields") and bool(marked_fields(type(x), MatrixSlot))
    )
