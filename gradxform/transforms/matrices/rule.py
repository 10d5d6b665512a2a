"""The base of transforms that are given by their rule for one matrix."""

from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp

from gradxform import engine
from gradxform.base import Transform
from gradxform.errors import name_of, shown
from gradxform.leaves import (
    Aligned,
    align_params,
    align_slot,
    check_shapes,
    dtype_of,
    is_hole,
    like_params,
    path_at,
    path_str,
    require_params,
    with_paths,
)
from gradxform.leaves.masks import hidden_paths
from gradxform.leaves.states import check_state, marked_fields, slot_fields
from gradxform.leaves.structures import remembered
from gradxform.numerics import at_least_float32, cast, promote
from gradxform.transforms.matrices.axes import MatrixAxes, UnevenAxes
from gradxform.transforms.matrices.dimensions import MuonDimensionNumbers, matrices
from gradxform.transforms.matrices.leaf import MatrixLeaf, leaf_of
from gradxform.types import Array, MatrixSlot, OptState, Params, PyTree, Updates
from gradxform.values import Value, is_function, put_live, take_live
from gradxform.values.extra_args import accepted_by, routed

__all__ = [
    "MatrixRule",
]


def check_compute_dtype(part: Any) -> None:
    """Require a dtype of products that holds numbers as small and as large as float32 does."""
    if part.compute_dtype not in (None, "bfloat16", "float32"):
        raise ValueError(
            f"{name_of(part)}: compute_dtype must be 'bfloat16', 'float32' or None, got "
            f"{shown(part.compute_dtype)}; others do not hold gradients as small or large."
        )


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

    `finish(u, *x, *scalars)`, where there is one, gets each array in the parameter's shape, and
    returns the update. Its sums over the array are `engine.array_sum(x)`, because the array may be
    a piece.

    On a mesh (`distributed.shard_matrices`, `distributed.zero1`) `entries` and `finish` see this
    device's pieces, and `rule` its share of the whole matrices. `MatrixSlot`s are divided as the
    stack is; those of matrices that are cut themselves, along their own first axis whose length the
    devices divide. Devices exchange them together with the matrices. Slots without such an axis,
    and those of matrices that are not cut, are the same on all devices.

    `unused_slots` are the names of the `MatrixSlot`s that this configuration does without: `init`
    leaves them None, and `rule` neither gets nor returns them.

    `grams_needed(m, n)` lets devices keep the columns that they have of matrices with many more
    columns than rows. It returns how many products X X^H of matrices of these sides `rule` forms;
    `rule` then gets `(B, m, n / devices)` where `engine.columns_now()` is not None, and passes that
    on to `linalg.orthogonalize`, which sums the products over the devices. By default it returns
    None: the rule needs whole matrices. So does a class with a `rule` of its own that inherits
    `grams_needed`.

    `exchange_dtype`, by default the field `compute_dtype` if there is one, is the dtype to which
    real matrices and results are rounded before and after `rule`, and in which devices exchange
    them; None for their own.

    `renews` says that `rule` renews each matrix at some steps, by a decomposition that LAPACK
    computes on CPUs. There each leaf is then a batch of its own.
    """

    State: Any = None
    renews: bool = False
    oriented: bool = False
    needs_params = False
    handles_complex = False
    weight_dimension_numbers: Any = None
    finish: Any = None
    compute_dtype: Any = None
    locality = "array"
    sees_pieces = True

    @property
    def exchange_dtype(self) -> Any:
        """The dtype in which devices exchange matrices."""
        return self.compute_dtype

    @property
    def unused_slots(self) -> tuple[str, ...]:
        """The names of the slots for matrices that this configuration does without."""
        return ()

    def grams_needed(self, m: int, n: int) -> int | None:
        """Return how many products X X^H the rule sums over devices that have columns of X.

        None, the default, if it needs whole matrices.
        """
        return None

    if TYPE_CHECKING:

        def rule(self, *args: Any, **kwargs: Any) -> Any: ...

        def entries(self, *args: Any, **kwargs: Any) -> Any: ...

        def prepare(self, *args: Any, **kwargs: Any) -> tuple[Any, ...]: ...

    else:

        def rule(self, *given: Any) -> Any:
            """Return the update of a batch of matrices, then its new slots."""
            raise NotImplementedError(f"{name_of(self)}: its class must define rule.")

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
        for i, x in enumerate(jax.tree.leaves(params)):
            engine.check_gradient([self], params, i, x, "parameter")
        made = []
        for (path, x), view in zip(_arrays(params), self._views(params), strict=True):
            if len(view.parts) > 1:
                raise ValueError(
                    f"{name_of(self)}: parameter {path_str(path)} is split into parts of several "
                    "sizes, and this rule remembers matrices of one size. Give it parts of equal "
                    "sizes, or make them parameters of their own."
                )
            member = view.members[0]
            slot = make(*member.sides(), at_least_float32(dtype_of(x)))
            made.append(engine.slot_piece(slot, member.cut) if member.place == "cut" else slot)
        return jax.tree.unflatten(jax.tree.structure(params), made)

    def _views(self, tree: PyTree) -> list[MatrixLeaf]:
        """Return how each leaf is made of matrices."""
        numbers, cuts = self.weight_dimension_numbers, engine.cuts_of(tree)

        def views() -> list[MatrixLeaf]:
            axes = axes_of_all(self, numbers, engine.whole_shapes(tree))
            triples = zip(_arrays(tree), axes, cuts, strict=True)
            return [leaf_of(jnp.shape(x), a, cut, self.oriented) for (_, x), a, cut in triples]

        if is_function(numbers):  # which may look at anything
            return views()
        what = ("views", numbers, self.oriented, tuple(cuts), hidden_paths())
        return remembered(what, tree, views)

    def update(
        self, updates: Updates, state: OptState, params: Params | None = None, **extra: Any
    ) -> tuple[Updates, OptState]:
        """Return the update of every matrix."""
        if self.needs_params:
            require_params(self, params)
        state = check_state(self, state, self.State)
        gs, treedef = jax.tree.flatten(updates)
        ps, slots, kept = self._aligned(updates, treedef, state, params)
        views = self._views(updates)
        if kept:
            views = self._with_slots(views, updates, kept, params)
        accepts = accepted_by(type(self), "prepare")
        given = routed(self, accepts, extra) if extra or accepts.needed else {}
        state, *scalars = self.prepare(state, params, **given)

        # Traced numbers of the rule go beside it: what is left of it is the key of the programs.
        live: list[Any] = []
        bare = self if self.is_static else take_live(self, live)
        columns = [gs, ps, *[slot.leaves for slot in slots.values()]]
        rows = engine.map_rows(_Entries(bare), columns, tuple(live), *scalars)
        us, of_matrices = self._of_matrices(rows, views, kept, scalars)
        if self.finish is not None:
            us = self._finished(gs, us, [x for x, _ in rows], views, bare, live, scalars)
        us = [cast(u, g.dtype) for u, g in zip(us, gs, strict=True)]
        new = [(*own, *more) for (_, own), more in zip(rows, of_matrices, strict=True)]
        fields = {
            name: slot.rebuilt([x[k] for x in new])
            for k, (name, slot) in enumerate((slots | kept).items())
        }
        return jax.tree.unflatten(treedef, us), state._replace(**fields)

    def _aligned(
        self, updates: Updates, treedef: Any, state: Any, params: Params | None
    ) -> tuple[list[Any], dict[str, Aligned], dict[str, Aligned]]:
        """Return the parameters, the slots and the slots for matrices, like the updates.

        All shapes are checked, except for those of slots for matrices.
        """
        gradients = jax.tree.leaves(updates)
        for i, g in enumerate(gradients):
            engine.check_gradient([self], updates, i, g)
        for name in self.unused_slots:
            if any(map(jnp.size, jax.tree.leaves(getattr(state, name)))):
                raise ValueError(
                    f"{name_of(self)}: the state has arrays in {name}, which this transform does "
                    "not keep. Was this state made by the same call?"
                )
        names, unused = slot_fields(self.State), self.unused_slots
        of_matrices = [k for k in marked_fields(self.State, MatrixSlot) if k not in unused]
        slots = {k: align_slot(self, updates, treedef, state, k) for k in names}
        kept = {k: align_slot(self, updates, treedef, state, k) for k in of_matrices}
        ps: list[Any] = [None] * len(gradients)
        if params is not None:
            ps = align_params(self, updates, treedef, params).leaves
        for k, slot in slots.items():
            check_shapes(self, updates, slot.leaves, f"the state's {k} has")
        return ps, slots, kept

    def _with_slots(
        self,
        views: list[MatrixLeaf],
        updates: Updates,
        kept: dict[str, Aligned],
        params: Params | None,
    ) -> list[MatrixLeaf]:
        """Return views that know how their slots are divided, and the numbers of their matrices."""
        dims = self._check_matrix_slots(updates, kept)
        views = [v.with_slots(d) for v, d in zip(views, dims, strict=True)] if dims else views
        slots = list(kept.values())
        # At this step, some leaf of the state is without a gradient.
        return self._numbered(views, slots, params) if len(slots[0].own) > len(views) else views

    def _of_matrices(
        self, rows: list[Any], views: list[MatrixLeaf], kept: dict[str, Aligned], scalars: Any
    ) -> tuple[list[Array], list[tuple[Array, ...]]]:
        """Return the update of every leaf, and its new slots for matrices, from `rule`."""
        members, first = [], []
        for i, ((x, _), view) in enumerate(zip(rows, views, strict=True)):
            first.append(len(members))
            own = tuple([slot.leaves[i] for slot in kept.values()])
            members += [engine.Member(a, own, v) for a, v in view.given(x)]
        results = engine.map_matrices(self, members, scalars)
        us, new = [], []
        for i, view in zip(first, views, strict=True):
            us.append(view.update([u for u, _ in results[i : i + len(view.parts)]]))
            new.append(results[i][1])  # only leaves of one part have slots: see `matrix_slots`
        return us, new

    def _check_matrix_slots(self, updates: Updates, kept: dict[str, Aligned]) -> list[Any]:
        """Require the slots for matrices to have the shapes that `init` gives them.

        Returns:
          For each leaf and each slot, the axis along which it is divided over devices, or None.
        """
        shapes = tuple(
            (path, jnp.shape(g), tuple(jnp.shape(slot.leaves[i]) for slot in kept.values()))
            for i, (path, g) in enumerate(_arrays(updates))
        )
        # What fits once fits at every step; a trace of `init` takes longer than a step's.
        fitting = vars(self).get("_fitting_slots")
        if fitting is None:
            fitting = {}
            object.__setattr__(self, "_fitting_slots", fitting)
        key = shapes, tuple(engine.cuts_of(updates))
        if key in fitting:
            return fitting[key]
        wanted = self._shapes_of_slots(updates, kept)
        for (name, slot), leaves in zip(kept.items(), wanted, strict=True):
            for i, (had, needed) in enumerate(
                zip(map(jnp.shape, slot.leaves), leaves, strict=True)
            ):
                if had != needed:
                    needs = jnp.shape(jax.tree.leaves(updates)[i])
                    raise ValueError(
                        f"{name_of(self)}: the state's {name} of {path_at(updates, i)} has shape "
                        f"{had}; a gradient of shape {needs} needs {needed}. Was this state "
                        "made for other parameters, or by another init?"
                    )
        fitting[key] = []
        if engine.exchange_now() is not None:
            with engine.whole_slots():
                whole = self._shapes_of_slots(updates, kept)
            of_slots = [
                [_divided(*pair) for pair in zip(*both, strict=True)]
                for both in zip(wanted, whole, strict=True)
            ]
            fitting[key] = list(zip(*of_slots, strict=True))
        return fitting[key]

    def _shapes_of_slots(self, updates: Updates, names: Any) -> list[list[tuple[int, ...]]]:
        """Return the shapes of the slots for matrices that `init` makes."""
        # A function of its own: JAX would answer from its cache, which contexts are not part of.
        state = jax.eval_shape(lambda params: self.init(params), like_params(updates))
        return [[x.shape for x in jax.tree.leaves(getattr(state, name))] for name in names]

    def _numbered(
        self, views: list[MatrixLeaf], kept: Any, params: Params | None
    ) -> list[MatrixLeaf]:
        """Return views with the numbers of matrices among those of all leaves of the state.

        A leaf without a gradient at this step must not change the turns of the others. What counts
        together is what makes one batch where all leaves have a gradient.
        """
        whole = {}
        if params is not None:
            for (path, _), leaf in zip(_arrays(params), self._views(params), strict=True):
                view = leaf.members[0]  # a rule with slots for matrices has parts of one size
                whole[path] = view.count(), view.sides()[1:]
        elif engine.exchange_now() is not None:
            return views
        first, ends = [], {}
        own = _arrays(jax.tree.unflatten(kept[0].treedef, kept[0].own))
        for (path, _), *xs in zip(own, *(slot.own for slot in kept), strict=True):
            # Without parameters: the slots of matrices of equal sides have equal shapes.
            of_slots = jnp.shape(xs[0])[0], tuple(jnp.shape(x)[1:] for x in xs)
            count, sides = whole.get(path, of_slots)
            kind = sides, tuple(dtype_of(x) for x in xs), engine.devices(xs[0])
            first.append(ends.get(kind, 0))
            ends[kind] = first[-1] + count
        where = kept[0].where or range(len(views))
        return [
            leaf._replace(members=[leaf.members[0]._replace(first=first[i])])
            for i, leaf in zip(where, views, strict=True)
        ]

    def _finished(
        self, gs: Any, us: Any, xs: Any, views: Any, bare: Any, live: Any, scalars: Any
    ) -> list[Array]:
        """Return the updates after `finish`."""
        columns = list(map(list, [gs, us, *zip(*xs, strict=True)]))
        psum = getattr(engine.exchange_now(), "psum", None)
        axes = [view.cut.axes for view in views]
        finish = _Finish(bare, psum)
        return engine.map_rows(finish, columns, tuple(live), *scalars, statics=axes)


def _divided(piece: tuple[int, ...], whole: tuple[int, ...]) -> int | None:
    """Return the axis along which a piece of a slot for matrices is shorter than the whole."""
    pairs = zip(piece, whole, strict=True)
    return next((d for d, (n, full) in enumerate(pairs) if n != full), None)


def _arrays(tree: PyTree) -> list[tuple[Any, Any]]:
    return [(path, x) for path, x in with_paths(tree) if not is_hole(x)]


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
    psum: Any

    def __call__(self, g: Array, u: Array, *rest: Any) -> Array:
        """Return the update of an array, from that of its matrices."""
        *given, axes = rest
        split = next(i for i, x in enumerate(given) if isinstance(x, tuple))
        x, live, scalars = given[:split], given[split], tuple(given[split + 1 :])
        rule, scalars = _with_scalars(self.rule, live, scalars, u.dtype)
        with engine.summing_over(axes, self.psum):
            return rule.finish(u, *(cast(a, u.dtype) for a in x), *scalars)


def _with_scalars(rule: Any, live: Any, scalars: Any, dtype: Any) -> tuple[Any, list[Any]]:
    """Return a rule with its live numbers, and the scalars of the step, as wide as its arrays."""
    live = [engine.widened(x, dtype) for x in live]
    return put_live(rule, tuple(live)) if live else rule, [
        None if x is None else engine.widened(x, dtype) for x in scalars
    ]


def axes_of_all(part: Value, given: Any, tree: PyTree, uneven: bool = True) -> list[Any]:
    """Return the axes of every leaf; an array without dimension numbers must have two.

    Args:
      part: the rule that asks.
      given: its dimension numbers.
      tree: parameters or updates.
      uneven: whether it handles arrays that are split into parts of several sizes.
    """
    out = []
    for path, x, axes in matrices(part, given, MuonDimensionNumbers, tree):
        if axes is None and jnp.ndim(x) != 2:
            raise ValueError(
                f"{name_of(part)}: parameter {path_str(path)} of shape {jnp.shape(x)} is "
                "not a matrix. Give its weight_dimension_numbers, or leave it to another "
                "transform with muon(...) or partition(...)."
            )
        if isinstance(axes, UnevenAxes) and not uneven:
            raise ValueError(
                f"{name_of(part)}: parameter {path_str(path)} is split into parts of several "
                "sizes. Give it parts of equal sizes, or make them parameters of their own."
            )
        out.append(MatrixAxes((), (0,), (1,)) if axes is None else axes)
    return out
