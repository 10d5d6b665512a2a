"""The base of transforms that are given by their rule for one matrix."""

import functools
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp

from gradxform import engine
from gradxform._jax.versions import is_tracer, platform_of
from gradxform.base import Transform
from gradxform.errors import name_of, shown
from gradxform.leaves import (
    Aligned,
    align_params,
    align_slot,
    check_shapes,
    dtype_of,
    require_params,
)
from gradxform.leaves.states import check_state, marked_fields, slot_fields, used_slots
from gradxform.leaves.storage import as_kept, as_seen
from gradxform.numerics import at_least_float32, cast, promote
from gradxform.transforms.matrices.leaf import MatrixLeaf, leaves_of
from gradxform.transforms.matrices.slots import made_slots, with_slots
from gradxform.types import Array, MatrixSlot, Params, PyTree, Updates
from gradxform.values import put_live, take_live
from gradxform.values.extra_args import accepted_by, routed_extra

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

    A state may keep what is annotated `Slot` in another form, which is loaded for `entries` and
    stored again. `MatrixSlot`s stay as they are: bases, and statistics of which a rule takes roots,
    do not survive few bits.

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
    leaves them None, and `rule` neither gets nor returns them. The count may be one of them.

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
    computes on CPUs. There each leaf is then a batch of its own. `decomposes` says that `rule` is
    long for the compiler of TPUs. There equal leaves are then the turns of one loop.

    `rule_in_place(at, *scalars)`, where there is one, is `rule` for one matrix, whose arrays it
    loads and stores one after the other (`engine.InPlace`): it returns the last `at`. It stands for
    `rule` where `goes_in_place(*matrix_slots)` is true, on one device.
    """

    State: Any = None
    renews: bool = False
    decomposes: bool = False
    rule_in_place: Any = None
    goes_in_place: Any = None
    oriented: Any = False
    needs_params = False
    handles_complex = False
    weight_dimension_numbers: Any = None
    finish: Any = None
    unused_slots: Any = ()
    compute_dtype: Any = None
    locality = "array"
    sees_pieces = True

    @property
    def exchange_dtype(self) -> Any:
        """The dtype in which devices exchange matrices."""
        return self.compute_dtype

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
        return made_slots(self, params, make)

    def update(self, updates, state, params=None, **extra):
        """Return the update of every matrix."""
        return self._updated(updates, state, params, extra, None)

    def update_params_with(
        self, rules: Any, updates: Updates, states: Any, params: Params, extra: dict[str, Any]
    ) -> tuple[Params, list[Any]] | None:
        """Return the parameters after the update by this and the last rules of a chain, at once.

        On TPUs: so no updates are kept until the last matrix has its own. None elsewhere, and for
        rules that do not run by entry.
        """
        gs = jax.tree.leaves(updates)
        if self.finish is not None or not all(map(is_tracer, gs)):
            return None
        if engine.exchange_now() is not None or any(platform_of(g) != "tpu" for g in gs):
            return None
        then = engine.rules_after(rules, updates, states[1:], params, extra)
        parts = [view.parts for view in leaves_of(self, updates)]
        if then is None or any(len(x) > 1 for x in parts) or len({g.dtype for g in gs}) != 1:
            return None
        columns, state = self._updated(updates, states[0], params, extra, then)
        params, others = then.rebuilt(columns)
        return params, [state, *others]

    def _updated(
        self, updates: Any, state: Any, params: Any, extra: dict[str, Any], then: Any
    ) -> tuple[Any, Any]:
        """Return the updates, and the state; with rules after, the new leaves of their trees."""
        if self.needs_params:
            require_params(self, params)
        state = check_state(self, state, self.State)
        gs, treedef = jax.tree.flatten(updates)
        ps, slots, kept = self._aligned(updates, gs, treedef, state, params)
        views = leaves_of(self, updates)
        if kept:
            views = with_slots(self, views, updates, kept, params)
        accepts = accepted_by(type(self), "prepare")
        given = routed_extra(self, accepts, extra) if extra or accepts.needed else {}
        state, *scalars = self.prepare(state, params, **given)

        # Traced numbers of the rule go beside it: what is left of it is the key of the programs.
        live: list[Any] = []
        bare = self if self.is_static else take_live(self, live)
        columns = [gs, ps, *[slot.leaves for slot in slots.values()]]
        rows = engine.map_rows(_Entries(bare), columns, tuple(live), *scalars)
        us, of_matrices = self._of_matrices(rows, views, kept, scalars, gs, then)
        if self.finish is not None:
            us = self._finished(gs, us, [x for x, _ in rows], views, bare, live, scalars)
        if then is None:
            pairs = zip(us, gs, strict=True)
            us = [u if u.dtype == g.dtype else cast(u, g.dtype) for u, g in pairs]
        new = [(*own, *more) for (_, own), more in zip(rows, of_matrices, strict=True)]
        fields = {
            name: slot.rebuilt([x[k] for x in new])
            for k, (name, slot) in enumerate((slots | kept).items())
        }
        new_state = state._replace(**fields)
        if then is not None:
            return [*map(list, zip(*us, strict=True))], new_state
        return jax.tree.unflatten(treedef, us), new_state

    def _aligned(
        self, updates: Updates, gs: list[Any], treedef: Any, state: Any, params: Params | None
    ) -> tuple[list[Any], dict[str, Aligned], dict[str, Aligned]]:
        """Return the parameters, the slots and the slots for matrices, like the updates.

        All shapes are checked, except for those of slots for matrices.
        """
        for i, g in enumerate(gs):
            engine.check_gradient([self], updates, i, g)
        of_matrices = used_slots(self, state, marked_fields(self.State, MatrixSlot))
        slots = {k: align_slot(self, updates, treedef, state, k) for k in slot_fields(self.State)}
        kept = {k: align_slot(self, updates, treedef, state, k) for k in of_matrices}
        ps: list[Any] = [None] * len(gs)
        if params is not None:
            ps = align_params(self, updates, treedef, params).leaves
        for k, slot in slots.items():
            check_shapes(self, updates, slot.leaves, f"the state's {k} has")
        return ps, slots, kept

    def _of_matrices(
        self,
        rows: list[Any],
        views: list[MatrixLeaf],
        kept: dict[str, Aligned],
        scalars: Any,
        gs: list[Any],
        then: Any,
    ) -> tuple[list[Any], list[tuple[Array, ...]]]:
        """Return the update of every leaf, and its new slots for matrices, from `rule`."""
        members, first = [], []
        for i, ((x, _), view) in enumerate(zip(rows, views, strict=True)):
            first.append(len(members))
            own = tuple([slot.leaves[i] for slot in kept.values()])
            moved = () if then is None else tuple(tree.leaves[i] for tree in then.trees)
            members += [engine.Member(a, own, v, moved) for a, v in view.given(x)]
        if then is not None:
            moved = functools.partial(then.moved, gs[0].dtype)
            results = engine.map_matrices(self, members, scalars, moved)
            return [[*x] for x, _ in results], [new for _, new in results]
        results = engine.map_matrices(self, members, scalars)
        us, new = [], []
        for i, view in zip(first, views, strict=True):
            us.append(view.update([u for u, _ in results[i : i + len(view.parts)]]))
            new.append(results[i][1])  # only leaves of one part have slots: see `matrix_slots`
        return us, new

    def _finished(
        self, gs: Any, us: Any, xs: Any, views: Any, bare: Any, live: Any, scalars: Any
    ) -> list[Array]:
        """Return the updates after `finish`."""
        columns = list(map(list, [gs, us, *zip(*xs, strict=True)]))
        psum = getattr(engine.exchange_now(), "psum", None)
        axes = [view.cut.axes for view in views]
        finish = _Finish(bare, psum)
        return engine.map_rows(finish, columns, tuple(live), *scalars, statics=axes)


class _Entries(NamedTuple):
    """The part of a rule that looks at single entries; the key of its compiled call."""

    rule: Any

    def __call__(self, g: Array, p: Any, *rest: Any) -> tuple[tuple[Array, ...], tuple[Array, ...]]:
        """Return what the rule gets, and the new slots."""
        n = len(slot_fields(self.rule.State))
        slots, live, scalars = rest[:n], rest[n], rest[n + 1 :]
        dtype = at_least_float32(promote(dtype_of(g), *(s.dtype for s in slots)))
        rule, scalars = _with_scalars(self.rule, live, scalars, dtype)

        def entries(g: Array, p: Any, groups: Any) -> tuple[Any, tuple[tuple[Any, ...], ...]]:
            wide = [cast(s, dtype) for s in groups[0]]
            p = None if p is None else cast(jnp.asarray(p), dtype)
            made = rule.entries(cast(jnp.asarray(g), dtype), *wide, p, *scalars)
            x, *new = made if n else (made,)
            return x, (tuple(new),)

        seen = g, p, (tuple(map(as_seen, slots)),)
        if engine.goes_by_tiles(g, slots) and dtype_of(g) == dtype:
            if not isinstance(jax.eval_shape(entries, *seen)[0], tuple):
                x, (new,) = engine.apply_stored(entries, [], [], g, p, (slots,), False)
                return (x,), new
        x, (new,) = entries(*seen)
        x = x if isinstance(x, tuple) else (x,)
        return x, tuple(map(as_kept, new, slots))


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
