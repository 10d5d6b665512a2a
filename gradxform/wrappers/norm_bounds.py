"""Bounds on the norms of the parameters themselves, kept after every step."""

from collections.abc import Iterator, Mapping
from dataclasses import field
from typing import Any

import jax
import jax.numpy as jnp

from gradxform import engine
from gradxform.base import call_update, transform
from gradxform.errors import name_of, shown
from gradxform.leaves import (
    align_params,
    flatten_updates,
    is_hole,
    path_str,
    require_params,
    shape_of,
    with_paths,
)
from gradxform.leaves.masks import Mask, check_patterns, entries_of
from gradxform.leaves.row_sparse import RowSparse, coalesced
from gradxform.numerics import at_least_float32, cast, promote, scalar, shrinking, taming
from gradxform.transforms.matrices.array_norms import array_norms
from gradxform.types import Array, Bound, Params, Updates
from gradxform.wrappers.changed_steps import told_change
from gradxform.wrappers.parts import StatelessWrapper, at_least, check_movable

Dims = tuple[int, ...]


@transform
class variable_clipping(StatelessWrapper):
    """Bound the norms of some parameters after every step: the weights, not their gradients.

    Update rule, with u the inner update and norms over the listed dimensions:

        p' = p + u
        u <- p' max_norm / max(||p'||, max_norm) - p

    For a kernel of shape (inputs, outputs), dimension 0 bounds the weights into each output. Norms
    hold after a step; parameters that are too large at the start are clipped by the first one. A
    later part of a chain that changes the updates is refused.

    For a row-sparse gradient, only touched rows are clipped. If dimension 0 is listed, the norm
    needs the whole array: all of it is clipped, and the update is dense. With `per_slice` the
    correction of a row is added once for every slice of the gradient that touches it, as in
    TensorFlow, which then overshoots.

    Args:
      inner: the optimizer.
      dims_by_path: a dict from the paths of the parameters, such as "encoder/kernel", or from
        masks such as `path_matches("kernel$")`, to the dimensions that are summed over; or a tuple
        of such pairs.
      max_norm: the largest norm, greater than 0; infinity for no bound.
      per_slice: whether corrections add up where slices repeat a row. Keyword-only.

    Raises:
      ValueError: if a path or mask matches no parameter, two match the same one, or a parameter
        lacks a dimension; at update, if no parameters are given.

    Reference: `tf.contrib.opt.VariableClippingOptimizer`; Srivastava et al., Dropout, 2014, Section
      5.1, for max-norm constraints.
    """

    inner: Any
    dims_by_path: Any
    max_norm: Bound
    per_slice: bool = field(default=False, kw_only=True)

    sets_params = True
    sees_pieces = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_movable(self, self.inner)
        pairs = self.dims_by_path
        if isinstance(pairs, Mapping):
            pairs = tuple(pairs.items())
        if not isinstance(pairs, tuple) or not pairs:
            raise TypeError(
                f"{name_of(self)}: dims_by_path must be a dict from paths of parameters to "
                f"dimensions, got {shown(self.dims_by_path)}."
            )
        object.__setattr__(self, "dims_by_path", tuple(map(self._checked_pair, pairs)))

    def _checked_pair(self, pair: Any) -> tuple[str | Mask, Dims]:
        """Return one entry of `dims_by_path`, with its dimensions as a tuple."""
        if isinstance(pair, tuple | list) and len(pair) == 2 and isinstance(pair[0], str | Mask):
            which, dims = pair
            dims = (dims,) if type(dims) is int else dims
            is_listed = isinstance(dims, tuple | list) and all(type(d) is int for d in dims)
            if is_listed and dims and len(set(dims)) == len(dims):
                return which, tuple(dims)
        raise TypeError(
            f"{name_of(self)}: an entry of dims_by_path must be a path or mask and a list of "
            f"different dimensions, got {shown(pair)}."
        )

    @property
    def locality(self) -> str:
        """A row, or whole arrays if dimension 0 is summed over; the inner one if farther."""
        in_rows = all(d > 0 for _, dims in self.dims_by_path for d in dims)
        return at_least("row" if in_rows else "array", self.inner)

    def init(self, params):
        """Return the inner state."""
        self._dims_of_leaves(params, params)
        return self.inner.init(params)

    def _dims_of_leaves(self, updates: Updates, params: Params) -> list[Dims]:
        """Return the dimensions for every leaf of the updates; () for those without a bound."""
        shapes = {path: shape_of(p) for path, p in with_paths(params) if not is_hole(p)}
        hidden = [path for path, p in with_paths(params) if is_hole(p)]
        dims_of: dict[Any, Dims] = {}
        for which, dims in self.dims_by_path:
            paths = list(self._selected(which, params))
            # A mask around this may hide the parameter that a path names.
            if isinstance(which, str) and not paths and not hidden:
                listed = ", ".join(repr("/".join(path)) for path in list(shapes)[:8])
                raise ValueError(
                    f"{name_of(self)}: dims_by_path has {which!r}, which is not the path of a "
                    f"parameter; there are {listed}."
                )
            for path in paths:
                if path in dims_of:
                    raise ValueError(
                        f"{name_of(self)}: two entries of dims_by_path match {path_str(path)}."
                    )
                ndim = len(shapes[path])
                is_twice = ndim and len({d % ndim for d in dims}) < len(dims)
                if is_twice or not all(-ndim <= d < ndim for d in dims):
                    raise ValueError(
                        f"{name_of(self)}: dims_by_path has the dimensions {dims} for "
                        f"{path_str(path)}, whose shape is {shapes[path]}."
                    )
                dims_of[path] = tuple(d % ndim for d in dims)
        return [dims_of.get(path, ()) for path, u in with_paths(updates) if not is_hole(u)]

    def _selected(self, which: str | Mask, params: Params) -> Iterator[Any]:
        if isinstance(which, Mask):
            check_patterns(self, which, params)
            selected = entries_of(self, which, params).of_leaves
            yield from (path for path, is_in in selected.items() if is_in)
        else:
            yield from (
                path for path, p in with_paths(params) if "/".join(path) == which and not is_hole(p)
            )

    def update(self, updates, state, params=None, **extra):
        """Take the inner step, and clip the parameters."""
        require_params(self, params)
        gs, treedef = flatten_updates(updates)
        ps = align_params(self, updates, treedef, params).leaves
        dims = self._dims_of_leaves(updates, params)
        inner_updates, state = call_update(self.inner, updates, state, params, extra)
        us = treedef.flatten_up_to(inner_updates)
        where = [k for k in range(len(us)) if dims[k]]
        columns = [[column[k] for k in where] for column in (us, gs, ps)]
        statics = [(dims[k], self.per_slice) for k in where]
        bound = scalar(self.max_norm)
        cuts = engine.cuts_of(updates)
        cuts = [cuts[k] for k in where]
        clipped = engine.map_rows(
            _leaf_update_within_norm_bound, columns, bound, statics=statics, cuts=cuts
        )
        for k, u in zip(where, clipped, strict=True):
            us[k] = u
        changed = jax.tree.unflatten(treedef, us)
        return changed, told_change(self.inner, state, params, inner_updates, changed)


def _leaf_update_within_norm_bound(
    u: Any, g: Any, p: Array, max_norm: Array, options: tuple[Dims, bool]
) -> Any:
    """Return the update that also clips the parameter."""
    dims, per_slice = options
    if not isinstance(g, RowSparse) or 0 in dims:  # a norm over rows needs all of them
        return _update_within_norm_bound(
            u.to_dense() if isinstance(u, RowSparse) else u, p, max_norm, dims
        )
    rows = u.coalesce() if isinstance(u, RowSparse) else coalesced(g.with_raw(False))
    old = rows.values if isinstance(u, RowSparse) else rows.take(u)
    new = _update_within_norm_bound(old, rows.take(p), max_norm, dims)
    if per_slice:
        slices = jnp.zeros(g.num_rows + 1, jnp.int32).at[g.indices].add(1)
        times = cast(slices[rows.indices], old.dtype).reshape(-1, *[1] * (old.ndim - 1))
        new = old + times * (new - old)
    if isinstance(u, RowSparse):
        return rows.with_values(new)
    return u + rows.with_values(new - old)


def _update_within_norm_bound(u: Array, p: Array, max_norm: Array, dims: Dims) -> Array:
    """Return the update, shortened so that the norm of the parameter holds after it."""
    wide = at_least_float32(promote(u.dtype, p.dtype))
    before = cast(p, wide)
    after = before + cast(u, wide)
    # Squares of large entries would overflow.
    factor = taming(engine.array_max(jnp.abs(after), dims, keepdims=True))
    (size,) = array_norms(after * cast(factor, wide), axes=dims)
    shrink = shrinking(size, cast(max_norm, factor.dtype) * factor)
    clipped = cast(after * cast(shrink, wide) - before, u.dtype)
    # p + u - p would round an update that is not clipped.
    return jnp.where(shrink == 1, u, clipped)
