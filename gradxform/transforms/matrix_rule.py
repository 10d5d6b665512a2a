"""The base of transforms that are given by their rule for one matrix."""

from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp

from gradxform import engine
from gradxform.base import Transform
from gradxform.errors import name_of
from gradxform.extra_args import accepted_by, routed
from gradxform.leaves import (
    align_params,
    align_slot,
    check_params,
    check_shapes,
    dtype_of,
    path_at,
    path_str,
    require_params,
)
from gradxform.numerics import at_least_float32, cast, promote
from gradxform.states import check_state, marked_fields, slot_fields
from gradxform.transforms.dimensions import MatrixAxes, MuonDimensionNumbers, matrices
from gradxform.types import Array, MatrixSlot, OptState, Params, PyTree, Updates
from gradxform.values import Value, put_live, take_live

__all__ = [
    "MatrixRule",
]


class MatrixRule(Transform):
    """A transform given by its rule for a batch of matrices.

    A subclass says `init` and `rule`. Its `State` is a NamedTuple. Fields annotated `Slot` are
    trees like the parameters and go to `entries`; fields annotated `MatrixSlot` are trees with an
    array `(B, ...)` for each parameter, an entry for each of its B matrices, and go to `rule`. Use
    `self.matrix_slots(params, shape)` to make one.

    `entries(g, *slots, p, *scalars)` runs first, on each array in the parameter's shape. It looks
    at single entries only, so that an array may be divided over devices in any way. It returns what
    the rule gets, an array or a tuple of arrays, and the new slots: `(x, *new_slots)`, where x may
    be a tuple. By default x is the gradient.

    `rule(*x, *matrix_slots, *scalars)` gets every matrix whole, as a batch `(B, m, n)` in float32
    or wider, and returns `(u, *new_matrix_slots)`. Tall matrices are turned, so that m <= n, unless
    `oriented` is true: then the rows are the reduction axes, and the columns the output axes.

    `finish(u, *x, *scalars)`, where there is one, gets each array whole, in the parameter's shape,
    and returns the update.
    """

    State: Any = None
    oriented: bool = False
    needs_params = False
    handles_complex = False
    weight_dimension_numbers: Any = None
    finish: Any = None
    locality = "array"

    if TYPE_CHECKING:

        def rule(self, *args: Any, **kwargs: Any) -> Any: ...

        def entries(self, *args: Any, **kwargs: Any) -> Any: ...

        def prepare(self, *args: Any, **kwargs: Any) -> tuple[Any, ...]: ...

    else:

        def rule(self, *given: Any) -> Any:
            """Return the update of a batch of matrices, then its new slots."""
            raise NotImplementedError

        def entries(self, g: Any, *slots_p_and_scalars: Any) -> Any:
            """Return what the rule gets, then the new slots of the parameter's shape."""
            return g

        def prepare(self, state: Any, params: Any) -> tuple[Any, ...]:
            """Return the state with its scalars advanced, then the scalars of this step."""
            return (state,)

    def extra_names(self) -> frozenset[str] | None:
        """Return the names of the extra arguments that `prepare` takes; None: any name."""
        return self._names_of("prepare")

    def matrix_slots(self, params: Params, make: Any) -> PyTree:
        """Return a tree with `make(count, m, n, dtype)` for each parameter.

        Args:
          params: the parameters.
          make: returns the array of a parameter, from the number of its matrices, their sides as
            the rule sees them, and the parameter's dtype, at least float32.
        """
        check_params(self, params)
        leaves, treedef = jax.tree.flatten(params)
        for i, x in enumerate(leaves):
            self._check_dtype("parameter", params, i, x)
        axes = axes_of_all(self, self.weight_dimension_numbers, params)
        made = [
            make(*engine.view_of(a, x.shape, self.oriented).sides(), at_least_float32(x.dtype))
            for x, a in zip(leaves, axes, strict=True)
        ]
        return jax.tree.unflatten(treedef, made)

    def update(
        self, updates: Updates, state: OptState, params: Params | None = None, **extra: Any
    ) -> tuple[Updates, OptState]:
        """Return the update of every matrix."""
        if self.needs_params:
            require_params(self, params)
        state = check_state(self, state, self.State)
        gs, treedef = jax.tree.flatten(updates)
        names, matrix_names = slot_fields(self.State), marked_fields(self.State, MatrixSlot)
        slots = [align_slot(self, updates, treedef, state, k) for k in names]
        kept = [align_slot(self, updates, treedef, state, k) for k in matrix_names]
        ps: list[Any] = [None] * len(gs)
        if params is not None:
            ps = align_params(self, updates, treedef, params).leaves
        for k, slot in zip(names, slots, strict=True):
            check_shapes(self, updates, slot.leaves, f"the state's {k} has")
        for i, g in enumerate(gs):
            self._check_dtype("gradient of", updates, i, g)
        axes = axes_of_all(self, self.weight_dimension_numbers, updates)
        views = [
            engine.view_of(a, jnp.shape(g), self.oriented) for a, g in zip(axes, gs, strict=True)
        ]
        for k, slot in zip(matrix_names, kept, strict=True):
            for i, (x, view) in enumerate(zip(slot.leaves, views, strict=True)):
                if jnp.shape(x)[0] != view.sides()[0]:
                    raise ValueError(
                        f"{name_of(self)}: gradient of {path_at(updates, i)} of shape "
                        f"{jnp.shape(gs[i])} has {view.sides()[0]} matrices, the state's {k} has "
                        f"{jnp.shape(x)[0]}. Make the state anew with init."
                    )
        accepts = accepted_by(type(self), "prepare")
        given = routed(self, accepts, extra) if extra or accepts.needed else {}
        state, *scalars = self.prepare(state, params, **given)

        live: list[Any] = []
        bare = self if self.is_static else take_live(self, live)
        columns = [gs, ps, *(slot.leaves for slot in slots)]
        rows = engine.map_rows(_Entries(bare), columns, tuple(live), *scalars)
        members = [
            engine.Member(x, tuple(slot.leaves[i] for slot in kept), view)
            for i, ((x, _), view) in enumerate(zip(rows, views, strict=True))
        ]
        done = engine.map_matrices(self, members, scalars)
        us = [u for u, _ in done]
        if self.finish is not None:
            columns = [gs, us, *zip(*(x for x, _ in rows), strict=True)]
            us = engine.map_rows(_Finish(bare), list(map(list, columns)), tuple(live), *scalars)
        us = [cast(u, g.dtype) for u, g in zip(us, gs, strict=True)]
        new = {
            name: slot.rebuilt([fresh[k] for _, fresh in rows])
            for k, (name, slot) in enumerate(zip(names, slots, strict=True))
        } | {
            name: slot.rebuilt([fresh[k] for _, fresh in done])
            for k, (name, slot) in enumerate(zip(matrix_names, kept, strict=True))
        }
        return jax.tree.unflatten(treedef, us), state._replace(**new)

    def _check_dtype(self, what: str, tree: PyTree, i: int, x: Any) -> None:
        dtype = dtype_of(x)
        if not jnp.issubdtype(dtype, jnp.inexact):
            raise TypeError(
                f"{name_of(self)}: {what} {path_at(tree, i)} has dtype {dtype}; only floating "
                "gradients can be transformed. Leave it out with masked(...) or partition(...)."
            )
        if jnp.issubdtype(dtype, jnp.complexfloating) and not self.handles_complex:
            raise TypeError(
                f"{name_of(self)}: {what} {path_at(tree, i)} has dtype {dtype}, for which this "
                "rule is not defined. Optimize its real and imaginary parts as two parameters."
            )


class _Entries(NamedTuple):
    """The part of a rule that looks at single entries; the key of its compiled call."""

    rule: Any

    def __call__(self, g: Array, p: Any, *rest: Any) -> tuple[tuple[Array, ...], tuple[Array, ...]]:
        """Return what the rule gets, and the new slots."""
        n = len(slot_fields(self.rule.State))
        slots, live, scalars = rest[:n], rest[n], rest[n + 1 :]
        dtype = at_least_float32(promote(dtype_of(g), *(s.dtype for s in slots)))
        rule, scalars = _with_scalars(self.rule, live, scalars, dtype)
        p = None if p is None else cast(jnp.asarray(p), dtype)
        wide = [cast(s, dtype) for s in slots]
        made = rule.entries(cast(jnp.asarray(g), dtype), *wide, p, *scalars)
        x, *new = made if n else (made,)
        x = x if isinstance(x, tuple) else (x,)
        return x, tuple(cast(a, s.dtype) for a, s in zip(new, slots, strict=True))


class _Finish(NamedTuple):
    """The part of a rule that looks at a whole array; the key of its compiled call."""

    rule: Any

    def __call__(self, g: Array, u: Array, *rest: Any) -> Array:
        """Return the update of an array, from that of its matrices."""
        split = next(i for i, x in enumerate(rest) if isinstance(x, tuple))
        x, live, scalars = rest[:split], rest[split], rest[split + 1 :]
        rule, scalars = _with_scalars(self.rule, live, scalars, u.dtype)
        return rule.finish(u, *(cast(a, u.dtype) for a in x), *scalars)


def _with_scalars(rule: Any, live: Any, scalars: Any, dtype: Any) -> tuple[Any, list[Any]]:
    """Return a rule with its live numbers, and the scalars of the step, as wide as its arrays."""
    live = [engine.widened(x, dtype) for x in live]
    return put_live(rule, tuple(live)) if live else rule, [
        None if x is None else engine.widened(x, dtype) for x in scalars
    ]


def axes_of_all(part: Value, given: Any, tree: PyTree) -> list[MatrixAxes]:
    """Return the axes of every leaf; an array without dimension numbers must have two."""
    out = []
    for path, x, axes in matrices(part, given, MuonDimensionNumbers, tree):
        if axes is None and jnp.ndim(x) != 2:
            raise ValueError(
                f"{name_of(part)}: parameter {path_str(path)} of shape {jnp.shape(x)} is "
                "not a matrix. Give its weight_dimension_numbers, or leave it to another "
                "transform with muon(...) or partition(...)."
            )
        out.append(MatrixAxes((), (0,), (1,)) if axes is None else axes)
    return out
