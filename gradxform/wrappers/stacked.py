"""Transforms that see each layer of a stack as arrays of its own."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from gradxform import engine
from gradxform.base import (
    LOCALITIES,
    GradientTransformation,
    call_update,
    check_transform,
    locality_of,
    own_locality_of,
    tell_moved,
    transform,
)
from gradxform.errors import name_of
from gradxform.leaves import (
    Path,
    flatten_updates,
    is_abstract,
    is_hole,
    like_params,
    masks,
    path_str,
    shape_of,
    with_paths,
)
from gradxform.leaves.row_sparse import RowSparse
from gradxform.leaves.storage import is_stored, rows_before
from gradxform.tree.owners import owners_of
from gradxform.types import OptState, Params, PyTree, Size, StaticMask, Updates
from gradxform.wrappers.one_pass import call_update_params
from gradxform.wrappers.parts import StatelessWrapper, all_parts


@transform
class stacked(StatelessWrapper):
    """Show a transform each layer of some parameters as an array of its own.

    Update rule, for a parameter p with its layers along an axis, and i the number of a layer:

        u[i] = inner(g[i], p[i])

    Models that scan over their layers stack the parameters of all layers. Norms, factors, matrices
    and masks by rank then see one array of one more dimension: `muon` takes no bias for a matrix
    here, `ndim_at_least(2)` selects no bias, and `lamb` has a ratio for each layer, as without the
    stack. What is summed over the whole tree, such as a global norm, covers all layers. Rules that
    look at single entries do not need it.

    The state is the inner state, with a first axis for the layers in what belongs to the stacked
    parameters.

    Of its own kind: the inner transform sees arrays of other shapes.

    Args:
      inner: the transform.
      where: which parameters are stacked: the path of a parameter or of a branch, such as
        `"layers"`; a mask such as `path_matches("^layers/")`; a tree of booleans; or a function of
        the parameters that returns one.
      axis: the axis along which their layers are; all have the same number of layers.

    Raises:
      ValueError: at init and update, if `where` selects nothing, a parameter does not have the
        axis, or the stacked parameters differ in their numbers of layers; at update, if a gradient
        of one does not have its shape; if a part of `inner` needs more of the whole tree than sums.
      TypeError: at update, for a row-sparse gradient of a stacked parameter.
    """

    inner: Any
    where: StaticMask | str
    axis: Size = 0

    def __post_init__(self) -> None:
        check_transform(self, self.inner, "inner")
        for one in all_parts(self.inner):
            if not self._is_right_for_layers(one):
                raise ValueError(
                    f"{name_of(self)}: {name_of(one)} looks at all parameters together, by more "
                    f"than sums; put it around: {name_of(one)}({name_of(self)}(...))."
                )
        if isinstance(self.where, str) and not self.where.strip("/"):
            raise ValueError(f"{name_of(self)}: where must be the path of a parameter, got ''.")

    @staticmethod
    def _is_right_for_layers(one: Any) -> bool:
        """Whether a part needs nothing of the whole tree but sums."""
        if not isinstance(one, GradientTransformation):
            return True  # it runs, or its state shows that layers differ
        return own_locality_of(one) != "tree" or one.asks_for_sums or one.sees_pieces

    @property
    def locality(self) -> str:
        """How far the inner transform looks, and at least at rows, which may be layers."""
        # A part that adds up pieces of arrays would take layers for pieces.
        is_by_row = self.axis == 0 and not _sees_pieces(self.inner)
        least = "row" if is_by_row else "array"
        return max(locality_of(self.inner), least, key=LOCALITIES.index)

    # ------------------------------------------------------------------------- layers and the rest

    def stacks_in(self, tree: PyTree, whole: bool = True) -> dict[Path, bool]:
        """Return for each parameter, by its path, whether it is a stack."""
        where = self.where
        if isinstance(where, str):
            where = masks.path_matches(f"^{re.escape(where)}(/|$)")
        entries = masks.entries_of(self, where, tree, whole=whole)
        flags = {path: bool(flag) for path, flag in entries.of_leaves.items()}
        for branch, flag in entries.of_branches.items():
            below = [path for path, _ in _arrays(tree) if path[: len(branch)] == branch]
            flags |= dict.fromkeys(below, bool(flag))
        if whole and not any(flags.values()):
            raise ValueError(f"{name_of(self)}: where selects none of the parameters.")
        return flags

    def _stacks_of(self, tree: PyTree, flags: dict[Path, bool]) -> "_Parts":
        """Return the leaves of parameters or updates, with the layers along the first axis."""
        leaves, treedef = flatten_updates(tree)
        are = [flags.get(path, False) for path, _ in _arrays(tree)]
        first, count = "", None
        for (path, x), is_stack in zip(_arrays(tree), are, strict=True):
            if not is_stack:
                continue
            if isinstance(x, RowSparse):
                raise TypeError(
                    f"{name_of(self)}: the gradient of {path_str(path)} is row-sparse, and "
                    f"{path_str(path)} is a stack of layers; leave it out of where. "
                    f"{engine.ROWS_REMEDY}"
                )
            shape = shape_of(x)
            if not -len(shape) <= self.axis < len(shape):
                raise ValueError(
                    f"{name_of(self)}: {path_str(path)} of shape {shape} is not a stack of layers "
                    f"along axis {self.axis}; leave it out of where."
                )
            if count not in (None, shape[self.axis]):
                raise ValueError(
                    f"{name_of(self)}: {path_str(path)} has {shape[self.axis]} layers along axis "
                    f"{self.axis}, {first} has {count}. Wrap stacks of other numbers of layers "
                    "apart."
                )
            first, count = path_str(path), shape[self.axis]
        moved = [self._to_first(x) if flag else x for x, flag in zip(leaves, are, strict=True)]
        return _Parts(moved, are, treedef, count)

    def _check_shapes(self, updates: Updates, params: Params, flags: dict[Path, bool]) -> None:
        """Require the gradients of stacks to have the shapes of their parameters."""
        shapes = {path: shape_of(p) for path, p in _arrays(params)}
        for path, g in _arrays(updates):
            shape = shapes.get(path, shape_of(g))
            if flags.get(path) and shape_of(g) != shape:
                raise ValueError(
                    f"{name_of(self)}: gradient of {path_str(path)} has shape {shape_of(g)}, the "
                    f"parameter has {shape}."
                )

    def _stacks_of_state(
        self, state: OptState, params: PyTree, flags: dict[Path, bool]
    ) -> "_Parts":
        """Return the leaves of the inner state; what belongs to a stack has its layers first."""
        leaves, treedef = jax.tree.flatten(state, is_leaf=is_stored)
        paths = [path for path, _ in _arrays(params)]
        plain = treedef.unflatten([jax.ShapeDtypeStruct(x.shape, x.dtype) for x in leaves])
        owners = owners_of(self.inner, like_params(params), paths, plain)
        are = [i is not None and flags.get(paths[i], False) for i, _, _ in owners]
        return _Parts(leaves, are, treedef, None)

    def _to_first(self, x: Any) -> Any:
        if self.axis == 0:
            return x
        move = lambda x: jnp.moveaxis(x, self.axis, 0)  # noqa: E731
        return jax.eval_shape(move, x) if is_abstract(x) else move(x)

    def _to_axis(self, x: Any) -> Any:
        return x if self.axis == 0 else jnp.moveaxis(x, 0, self.axis)

    # ------------------------------------------------------------------------------- the transform

    def init(self, params):
        """Return the inner state, with all layers in what belongs to stacks."""
        flags = self.stacks_in(params)
        parts = self._stacks_of(params, flags)
        layer = types_of_layer(parts.stacks)
        types = jax.eval_shape(self.inner.init, parts.whole(layer, parts.rest))
        of_state = self._stacks_of_state(types, params, flags)

        def init(stacks: list[Any]) -> Any:
            state = self.inner.init(parts.whole(stacks, parts.rest))
            return of_state.parted(jax.tree.leaves(state, is_leaf=is_stored))

        with engine.as_layers(flags) as axis:
            over = jax.vmap(init, out_axes=(0, None), axis_name=axis)
            return of_state.whole(*over(parts.stacks))

    def update(self, updates, state, params=None, **extra):
        """Return the updates of all layers, and of all else."""

        def run(updates: Updates, state: OptState, params: Params | None) -> Any:
            return call_update(self.inner, updates, state, params, extra)

        return self._run(run, updates, state, params)

    def update_params(self, updates, state, params, **extra):
        """Return the parameters of all layers, and of all else, after the update."""

        def run(updates: Updates, state: OptState, params: Any) -> Any:
            return call_update_params(self.inner, updates, state, params, extra)

        return self._run(run, updates, state, params, to_params=True)

    def moved(self, state, old, new):
        """Return the inner state after something else has moved the parameters."""

        def run(old: Params, state: OptState, new: Any) -> Any:
            return old, tell_moved(self.inner, state, old, new)

        return self._run(run, old, state, new)[1]

    def _run(
        self,
        run: Callable[..., Any],
        updates: Updates,
        state: OptState,
        params: Params | None,
        to_params: bool = False,
    ) -> Any:
        """Return what `run(updates, state, params)` returns, of each layer and of all else."""
        tree = updates if params is None else params
        flags = self.stacks_in(tree, whole=params is not None)
        gs, states = self._stacks_of(updates, flags), self._stacks_of_state(state, tree, flags)
        ps = None if params is None else self._stacks_of(params, flags)
        if ps is not None:
            self._check_shapes(updates, params, flags)
        result = gs if ps is None or not to_params else ps

        def layer(gs_now: list[Any], states_now: list[Any], ps_now: list[Any]) -> Any:
            params_now = None if ps is None else ps.whole(ps_now, ps.rest)
            out = run(gs.whole(gs_now, gs.rest), states.whole(states_now, states.rest), params_now)
            new = flatten_updates(out[0])[0], jax.tree.leaves(out[1], is_leaf=is_stored)
            (us, other_us), (news, others) = result.parted(new[0]), states.parted(new[1])
            return (us, news), (other_us, others)

        given = gs.stacks, states.stacks, [] if ps is None else ps.stacks
        count = gs.count if ps is None else ps.count
        if count == 1:  # a layer by itself, as in a step that updates layers one by one
            with rows_before(None):
                of_layers, rest = layer(*jax.tree.map(lambda x: x[0], given))
            of_layers = jax.tree.map(lambda x: x[None], of_layers)
        elif count is None:
            of_layers, rest = layer(*given)
        elif gs.count is None and engine.is_seen_in_parts():
            # No gradient of a layer is among this part of the tree: layers stay as they are.
            _, rest = layer(*jax.tree.map(lambda x: x[0], given))
            of_layers = (given[2] if to_params else given[0]), given[1]
        else:
            with engine.as_layers(flags) as axis:
                over = jax.vmap(layer, out_axes=(0, None), axis_name=axis)
                of_layers, rest = over(*given)
        us = [self._to_axis(x) for x in of_layers[0]]
        return result.whole(us, rest[0]), states.whole(of_layers[1], rest[1])


class _Parts(NamedTuple):
    """The leaves of a tree: stacks, and all else."""

    leaves: list[Any]
    are_stacks: list[bool]
    treedef: Any
    count: int | None  # of the layers; None without a stack

    @property
    def stacks(self) -> list[Any]:
        """Return the stacks."""
        return self.parted(self.leaves)[0]

    @property
    def rest(self) -> list[Any]:
        """Return all else."""
        return self.parted(self.leaves)[1]

    def parted(self, leaves: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """Return which of some leaves are stacks, and which are not."""
        both: tuple[list[Any], list[Any]] = ([], [])
        for x, is_stack in zip(leaves, self.are_stacks, strict=True):
            both[not is_stack].append(x)
        return both

    def whole(self, stacks: Iterable[Any], rest: Iterable[Any]) -> PyTree:
        """Return a tree of other leaves."""
        both = iter(stacks), iter(rest)
        return self.treedef.unflatten([next(both[not is_stack]) for is_stack in self.are_stacks])


def _arrays(tree: PyTree) -> list[tuple[Path, Any]]:
    return [(path, x) for path, x in with_paths(tree) if not is_hole(x)]


def _sees_pieces(tx: Any) -> bool:
    return any(getattr(one, "sees_pieces", False) for one in all_parts(tx))


def types_of_layers(tree: PyTree, flags: Mapping[Path, bool]) -> PyTree:
    """Return a tree with the types of one layer in the places of stacks along the first axis."""
    leaves, treedef = flatten_updates(tree)
    pairs = zip(_arrays(tree), leaves, strict=True)
    return treedef.unflatten(
        [types_of_layer(x) if flags.get(path) else x for (path, _), x in pairs]
    )


def types_of_layer(stacks: PyTree) -> PyTree:
    """Return the types of one layer of stacks."""
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), stacks)
