"""GaLore: any rule of gradients, run on projections of low rank."""

import contextlib
from collections.abc import Iterator
from dataclasses import field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from gradxform import engine
from gradxform.base import Transform, call_update, check_transform, transform
from gradxform.errors import require_at_least
from gradxform.leaves import Path, align, align_params, dtype_of, is_hole, shape_of, with_paths
from gradxform.leaves.states import check_state
from gradxform.linalg.products import adjoint
from gradxform.numerics import at_least_float32, cast, safe_increment
from gradxform.slots import zero_count, zeros_like
from gradxform.transforms.adam import scale_by_adam
from gradxform.transforms.matrices.dimensions import (
    GaLoreDimensionNumbers,
    MatrixAxes,
    check_numbers,
    low_rank_axes,
)
from gradxform.types import (
    Array,
    Finite,
    OptState,
    PositiveInt,
    PyTree,
    Scalar,
    Size,
    Slot,
    StaticTree,
    SupportsTransform,
)
from gradxform.wrappers.low_rank.placement import (
    Placement,
    as_products,
    leading_vectors,
    projections as projections_of,
    projects_rows,
    renewed,
    zeros_like_parameter,
)
from gradxform.wrappers.parts import at_least

# The axes of an array that is projected, and whether its shorter side is.
_Projected = tuple[MatrixAxes, bool] | None


class GaLoreState(NamedTuple):
    """State of `scale_by_galore`.

    Where a parameter is a stack of matrices, its projectors are a stack with the same first axes.
    """

    count: Array  # int32 scalar; the number of updates so far
    base_optimizer_state: Any  # the state of the base transform, for the projected parameters
    projector: Slot  # (*batch, projected side, rank), at least float32; () if not projected


@transform
class scale_by_galore(Transform):
    """Run a transform on projections of the gradients of matrices, and project back.

    Update rule for a matrix G of n rows and k columns; every `update_proj_gap` steps, from the
    first, P is computed anew, the leading `rank` singular vectors of one side of G:

        R = P^T G        (where rows are projected; else R = G P)
        S = base_optimizer(R)
        u = scale P S    (else u = scale S P^T)

    By default the longer side is projected, as in Optax: the rows if n >= k. R has rank min(n, k)
    entries and P rank max(n, k). The paper and its code project the shorter side, `shorter_side`:
    P is then the smaller one, and R, of which Adam keeps two averages, the larger one.

    So the state of the base transform has the size of R. Parameters that are not matrices go to it
    as they are. The base transform is given no parameters; weight decay belongs after this, where
    `galore` has it.

    A stack of matrices, such as the layers of a `scan`, has an R and a P for each of them. The base
    transform sees the R of all as one array, whose first axes are those of the batch. If it acts on
    each entry, every layer takes the steps that it would take alone.

    The signs of singular vectors are arbitrary. They do not matter within a period, but the
    momentum that the base transform carries into the next one meets vectors of other signs. So
    training takes another, equally good course on another machine.

    Under `zero1` and `shard_matrices` the projectors and the state of the base transform are
    divided over the devices. Where these cut a stack between its matrices, each device has those of
    its own matrices, and exchanges nothing. Where they cut the projected side of a matrix, each
    device gets its piece of the sum of projections, and steps are gathered; where they cut the
    other side, the projector is gathered instead. For new projectors, each device computes the
    singular vectors of its share of the matrices.

    Of its own kind: the inner transform sees projections, of other shapes than the parameters.

    Args:
      rank: the number of singular vectors, at least 1.
      update_proj_gap: the number of steps for which P is kept, at least 1.
      scale: any finite number.
      base_optimizer: a transform that needs no parameters; None for `scale_by_adam()`.
      weight_dimension_numbers: `GaLoreDimensionNumbers` for all parameters of two dimensions or
        more, a tree of them with None for parameters that are not projected (a prefix of the
        parameters will do), or a function of the parameters that returns one; for stacked layers
        `GaLoreDimensionNumbers(-2, -1)`. By default, parameters of two dimensions are matrices.
      shorter_side: whether the shorter side is projected instead. Keyword-only.

    Raises:
      ValueError: at init and update, if dimension numbers do not fit a parameter.

    Reference: Zhao et al., GaLore: Memory-Efficient LLM Training by Gradient Low-Rank Projection,
    2024, Algorithm 1.
    """

    rank: Size = 128
    update_proj_gap: PositiveInt = 200
    scale: Finite = 1.0
    base_optimizer: Any = None
    weight_dimension_numbers: StaticTree = None
    shorter_side: bool = field(default=False, kw_only=True)

    sees_pieces = True

    def __post_init__(self):
        require_at_least(self, 1, "rank")
        if self.base_optimizer is not None:
            check_transform(self, self.base_optimizer, "base_optimizer")
        check_numbers(self, "weight_dimension_numbers", GaLoreDimensionNumbers)

    @property
    def locality(self) -> str:
        """How far the base transform looks, but at least the array."""
        return at_least("array", self._base_transform())

    def _base_transform(self) -> SupportsTransform:
        return scale_by_adam() if self.base_optimizer is None else self.base_optimizer

    def inner_states(self, state: OptState) -> list[tuple[Path, Any]]:
        """Return the place of the base transform's state."""
        return [(("base_optimizer_state",), self._base_transform())]

    def _matrices(self, tree: PyTree) -> list[MatrixAxes | None]:
        """Return the axes of every leaf of a tree; None for those that are not projected."""
        return low_rank_axes(self, self.weight_dimension_numbers, tree)

    def init(self, params):
        """Return projectors of zeros, and the base state for the projected parameters."""
        ps, treedef = jax.tree.flatten(params)
        projectors, projected, placements = [], [], self._placements(params)
        for p, placement in zip(ps, placements, strict=True):
            dtype = at_least_float32(dtype_of(p))
            projectors.append(zeros_like_parameter(p, placement, True, dtype))
            if placement.axes is None:
                projected.append(zeros_like(p))
            else:
                projected.append(zeros_like_parameter(p, placement, False, dtype))
        with _divided_as_projections(params, placements):
            base_state = self._base_transform().init(jax.tree.unflatten(treedef, projected))
        return GaLoreState(
            count=zero_count(),
            base_optimizer_state=base_state,
            projector=jax.tree.unflatten(treedef, projectors),
        )

    def _placements(self, tree: PyTree) -> list[Placement]:
        """Return for each leaf how it, or this device's piece of it, is projected."""
        leaves = zip(
            jax.tree.leaves(tree),
            self._matrices(engine.whole_shapes(tree)),
            engine.cuts_of(tree),
            strict=True,
        )
        return [
            Placement(axes, shape_of(x), cut, self.rank, self.shorter_side)
            for x, axes, cut in leaves
        ]

    def update(self, updates, state, params=None, **extra):
        """Return the updates that the base transform gives for the projections, projected back."""
        check_state(self, state, GaLoreState)
        gs, treedef = jax.tree.flatten(updates)
        if params is not None:
            align_params(self, updates, treedef, params)
        projector = align(self, updates, treedef, state.projector, "the state has")
        placements, projectors = self._placements(updates), projector.leaves
        axes = [where.axes and (where.axes, self.shorter_side) for where in placements]
        cuts = [where.cut for where in placements]

        due = state.count % self.update_proj_gap == 0
        wide = [cast(jnp.asarray(g), p.dtype) for g, p in zip(gs, projectors, strict=True)]
        # On whole arrays, the new projector and the projection are one function of each leaf.
        if engine.exchange_now() is None:
            projected = engine.map_rows(_project, [wide, projectors], due, statics=axes)
            projections = [r for r, _ in projected]
            used = projectors = [p for _, p in projected]
        else:
            projectors = renewed(placements, wide, projectors, due)
            used = [
                p if where.axes is None else where.projector_rows(p)
                for where, p in zip(placements, projectors, strict=True)
            ]
            how = [_Product.of(where) for where in placements]
            parts = engine.map_rows(_own_product, [wide, used], statics=how, cuts=cuts)
            projections = projections_of(placements, parts)
        with _divided_as_projections(updates, placements):
            base_updates, base_state = call_update(
                self._base_transform(),
                jax.tree.unflatten(treedef, projections),
                state.base_optimizer_state,
                None,  # the parameters are not projected
                extra,
            )
        steps = as_products(placements, treedef.flatten_up_to(base_updates))
        us = engine.map_rows(_project_back, [steps, used, gs], self.scale, statics=axes, cuts=cuts)
        return jax.tree.unflatten(treedef, us), state._replace(
            count=safe_increment(state.count),
            base_optimizer_state=base_state,
            projector=projector.rebuilt(projectors),
        )


def _project(g: Array, projector: Array, due: Array, projected: _Projected) -> tuple[Array, Array]:
    """Return the projection of a gradient, and the projector, anew where it is due."""
    if projected is None:
        return g, projector
    (axes, shorter), rank = projected, projector.shape[-1]
    projector = lax.cond(
        due, lambda: leading_vectors(axes.to_stacks(g), rank, shorter), lambda: projector
    )
    return _projection(g, projector, projected), projector


def _projects_rows(g: Array, axes: MatrixAxes, shorter: bool) -> bool:
    """Whether the rows of a matrix are projected; `g` may be a piece of the array."""
    _, n, k = axes.sizes(engine.whole_shape(g))
    return projects_rows(n, k, shorter)


def _projection(g: Array, projector: Array, projected: _Projected) -> Array:
    """Return the projection of a gradient; for a piece, by the rows that belong to it."""
    if projected is None:
        return g
    matrices = projected[0].to_stacks(g)
    return adjoint(projector) @ matrices if _projects_rows(g, *projected) else matrices @ projector


class _Product(NamedTuple):
    """How pieces are multiplied."""

    projected: _Projected
    summed: tuple[str, ...]  # the mesh axes over whose devices the product is summed at once

    @classmethod
    def of(cls, where: Placement) -> "_Product":
        """Return how pieces of an array are multiplied; a sum that is scattered comes later."""
        later = where.axes is None or where.scatter is not None
        return cls(where.axes and (where.axes, where.shorter), () if later else where.summed)


def _own_product(g: Array, projector: Array, how: _Product) -> Array:
    """Return the product of pieces, and its sum over devices unless that is scattered."""
    (product,) = engine.over_pieces((_projection(g, projector, how.projected), how.summed))
    return product


def _project_back(
    u: Array, projector: Array, g: Array, scale: Scalar, projected: _Projected
) -> Array:
    """Return an update of the base transform in the shape and dtype of the gradient."""
    if projected is None:
        return cast(u, g.dtype)
    axes, _ = projected
    u = projector @ u if _projects_rows(g, *projected) else u @ adjoint(projector)
    return cast(cast(jnp.asarray(scale), u.dtype) * axes.from_matrices(u, g.shape), g.dtype)


@contextlib.contextmanager
def _divided_as_projections(tree: PyTree, placements: list[Placement]) -> Iterator[None]:
    """Divide arrays as projections are, for the base transform."""
    paths = [path for path, x in with_paths(tree) if not is_hole(x)]
    cuts = {path: where.projected_cuts for path, where in zip(paths, placements, strict=True)}
    with engine.cut_anew(cuts):
        yield
