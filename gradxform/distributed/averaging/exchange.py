"""The base of wrappers under which replicas train by themselves and exchange every few steps.

Every replica steps with its own gradients on its own parameters. At some steps they exchange. A
wrapper defines when they do, and how an exchange changes a replica's parameters and state.
"""

import abc
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from gradxform.base import Transform, call_update, check_transform, tell_moved
from gradxform.distributed.shares.shared_leaves import is_shared
from gradxform.distributed.shares.sources import (
    added_updates,
    in_place_of,
    remembering_shards,
    whole_in,
)
from gradxform.distributed.wire.axis import (
    Axes,
    as_varying,
    axis_names,
    check_axis_name,
    check_bound,
    check_divided_inside,
    check_inner_axes,
    require_local,
    size_of,
    widen,
)
from gradxform.distributed.wire.feedback import check_sending, summed_with_feedback
from gradxform.distributed.wire.traps import require_alike
from gradxform.errors import name_of, shown
from gradxform.leaves import align, check_shapes, require_params, structure_of
from gradxform.leaves.no_gradient import step_of_gradients
from gradxform.leaves.states import check_state
from gradxform.numerics import as_flag, at_least_float32, cast, promote, safe_increment
from gradxform.tree.apply import apply_updates
from gradxform.types import Array, OptState, Params, PyTree, Updates
from gradxform.wrappers.parts import check_movable, keeps_copies

# Returns the parameters (or the updates) and the state after a change of both.
Change = Callable[[PyTree, Any], tuple[PyTree, Any]]


class Meeting(NamedTuple):
    """How replicas meet in an exchange."""

    dtypes: Sequence[Any]  # for every parameter, or fragment of one, the user's dtype
    contributes: Array | bool  # whether this replica has something to send, a boolean scalar
    slices: Sequence[tuple[str, ...]] | None = None  # the axes of each's slices, if not inner_axes

    def count(self, axis: Axes) -> Array | int:
        """Return how many replicas contribute."""
        if self.contributes is True:
            return size_of(axis)
        here = jnp.asarray(self.contributes, jnp.int32)
        return lax.psum(as_varying(here, axis), axis_names(axis))

    def divisor(self, axis: Axes) -> Array | int:
        """Return by what to divide a sum of what they contribute."""
        count = self.count(axis)
        return count if isinstance(count, int) else jnp.maximum(count, 1)

    def require_all(self, part: Any) -> None:
        """Require all replicas to contribute, where they take turns."""
        if self.contributes is not True:
            raise ValueError(
                f"{name_of(part)}: contribute is for exchanges in which replicas take part at "
                "once; with order='sequential' each takes its turn. Leave contribute out."
            )


class Exchanging(Transform, abc.ABC):
    """A wrapper under which replicas differ, and meet when `schedule_step` says so.

    Its state is a NamedTuple with the fields `inner`, `schedule_step` and `global_step` (the last
    two annotated `Everywhere`), and any others that the exchange needs.

    Of its own kind: parameters or states are exchanged between steps, with devices.
    """

    inner: Any
    axis: Any  # a name, or a tuple of names
    State: Any  # the class of the state

    inner_axes: tuple[str, ...] = ()
    wire_dtype: Any
    compress: Any

    locality = "tree"
    holds = (("inner", "inner"),)
    step_fields = ("schedule_step",)

    def __post_init__(self) -> None:
        check_transform(self, self.inner, "inner")
        check_axis_name(self)
        check_inner_axes(self)
        check_divided_inside(self)
        check_movable(self, self.inner)
        check_sending(self)

    @property
    def moves_copies(self) -> bool:
        """Whether an exchange itself moves the copies of the parameters in the inner state."""
        return False

    @property
    def exchanges(self) -> tuple[str, ...]:
        """The axis, and the axes inside a replica that share its exchange."""
        return *axis_names(self.axis), *self.inner_axes

    @property
    def divides(self) -> tuple[str, ...]:
        """The axes along which devices of a replica remember what their own slices still owe."""
        return () if self.compress is None else self.inner_axes

    # -------------------------------------------------------------------- defined by each wrapper

    @abc.abstractmethod
    def due(self, step: Array) -> Array:
        """Return whether replicas exchange after step number `step`, a boolean scalar."""

    @abc.abstractmethod
    def exchange(
        self, params: Params, state: Any, meeting: Meeting, extra: dict[str, Any]
    ) -> tuple[Params, Any]:
        """Return a replica's parameters and state after an exchange.

        Args:
          params: this replica's parameters, which may be wider than the user's.
          state: the state.
          meeting: who contributes, and the user's dtypes.
          extra: extra arguments of the inner transform.
        """

    def lands(self, step: Array) -> Array | bool:
        """Return whether an earlier exchange takes effect after step number `step`."""
        return False

    def land(self, params: Params, state: Any) -> tuple[Params, Any]:
        """Return parameters and state after an earlier exchange took effect."""
        return params, state

    def gradient(self, updates: Updates, state: Any, params: Params) -> Updates:
        """Return the gradient of a local step, by default the updates."""
        return updates

    def stepped(self, updates: Updates, state: Any) -> Any:
        """Return the state after a local step with that gradient, before any exchange."""
        return state

    def mean_difference(
        self, params: Params, center: PyTree, feedback: Any, meeting: Meeting
    ) -> tuple[PyTree, Any]:
        """Return the mean of the replicas' differences from a center, and what is still to be sent.

        Differences travel in at least 16 bits, unless the wrapper says otherwise.

        Args:
          params: this replica's parameters.
          center: what all replicas have, at least float32.
          feedback: what was still to be sent.
          meeting: who contributes, and the user's dtypes.
        """
        ps, treedef = jax.tree.flatten(params)
        cs = align(self, params, treedef, center, "the state's center has").leaves
        differences = [difference_from_center(p, c) for p, c in zip(ps, cs, strict=True)]
        dtypes = map(jnp.dtype, meeting.dtypes)
        wires = [d if d.itemsize > 1 else jnp.dtype(jnp.bfloat16) for d in dtypes]
        ok, count = meeting.contributes, meeting.divisor(self.axis)
        totals, feedback = summed_with_feedback(
            self,
            params,
            differences,
            wires,
            feedback,
            ok=ok,
            divisor=count,
            slices=meeting.slices,
        )
        means = [cast(x, d.dtype) for x, d in zip(totals, differences, strict=True)]
        return jax.tree.unflatten(treedef, means), feedback

    # ---------------------------------------------------------------------------------- stepping

    def update(
        self,
        updates: Updates,
        state: OptState,
        params: Params | None = None,
        *,
        sync: bool | None = None,
        land: bool | None = None,
        contribute: Any = None,
        **extra: Any,
    ) -> tuple[Updates, OptState]:
        """Return the updates of a local step, and of an exchange if it is due.

        `params + updates` rounds, so replicas may differ by an ulp after an exchange. `step` does
        not round.

        Args:
          updates: this replica's own gradients.
          state: this replica's state.
          params: this replica's parameters.
          sync: whether to exchange, True or False, for two compiled programs without a condition.
            Defaults to None, which follows the schedule.
          land: whether an exchange of `delay` steps ago takes effect, True or False; without a
            condition, nothing waits for its sum in the steps between. Defaults to None, which
            follows the schedule.
          contribute: whether this replica has something to send if there is an exchange, a boolean
            scalar, which may differ between replicas. What a replica that does not contribute has,
            NaN too, is left out of the mean, but it gets the result. If none contributes, all
            keep what they have; with a delay, differences of zero wait. Defaults to True on all.
          **extra: extra arguments of the inner transform.
        """
        u, state = self._local_step(updates, state, params, (sync, land), extra)

        def of_updates(change: Any) -> Change:
            def change_updates(u: Updates, state: Any) -> tuple[Updates, Any]:
                new_params, state = change(u, apply_updates(params, u), state)
                us, treedef = jax.tree.flatten(u)
                news, olds = (
                    align(self, u, treedef, x, _HAVE).leaves for x in (new_params, params)
                )
                differences = [_update(*leaf) for leaf in zip(news, olds, us, strict=True)]
                return jax.tree.unflatten(treedef, differences), state

            return change_updates

        return self._exchange_if_due(of_updates, u, state, (sync, land), contribute, extra)

    @step_of_gradients
    def step(
        self,
        grads: Updates,
        state: OptState,
        params: Params,
        *,
        sync: bool | None = None,
        land: bool | None = None,
        contribute: Any = None,
        **extra: Any,
    ) -> tuple[Params, OptState]:
        """Return the new parameters, assigned and not added, and the new state.

        After an exchange that makes replicas equal, they are equal to the last bit.

        Args:
          grads: this replica's own gradients.
          state: this replica's state.
          params: this replica's parameters.
          sync: as for `update`.
          land: as for `update`.
          contribute: as for `update`.
          **extra: extra arguments of the inner transform.
        """
        self.check_extra(extra)

        def of_params(change: Any) -> Change:
            return lambda params, state: change(u, params, state)

        with remembering_shards():
            u, state = self._local_step(grads, state, params, (sync, land), extra)
            new = added_updates(params, u)
            return self._exchange_if_due(of_params, new, state, (sync, land), contribute, extra)

    def _local_step(
        self,
        updates: Updates,
        state: Any,
        params: Params | None,
        static: tuple[bool | None, bool | None],
        extra: dict[str, Any],
    ) -> tuple[Updates, Any]:
        """Return the updates of a local step and the state before any exchange."""
        require_params(self, params)
        for name, flag in zip(("sync", "land"), static, strict=True):
            if not (flag is None or isinstance(flag, bool)):
                raise TypeError(
                    f"{name_of(self)}: {name} must be True, False or None, not a traced value, got "
                    f"{shown(flag)}; None follows the schedule."
                )
        if static[1] and self.lands(state.schedule_step) is False:
            raise ValueError(
                f"{name_of(self)}: land=True needs exchanges that take effect later, delay > 0."
            )
        check_state(self, state, self.State)
        check_bound(self, self.axis)
        require_local(self, updates, self.axis)
        ps = align(self, updates, structure_of(updates), params, _HAVE)
        check_shapes(self, updates, ps.leaves, "the parameter has")
        g = self.gradient(updates, state, params)
        u, inner = call_update(self.inner, g, state.inner, params, extra)
        step = safe_increment(state.schedule_step)
        return u, self.stepped(g, state._replace(inner=inner, schedule_step=step))

    def _exchange_if_due(
        self,
        in_form: Callable[[Any], Change],
        tree: PyTree,
        state: Any,
        static: tuple[bool | None, bool | None],
        contribute: Any,
        extra: dict[str, Any],
    ) -> tuple[PyTree, Any]:
        """Return the tree and the state after everything that is due at this step.

        Args:
          in_form: makes a change of parameters a change of trees such as `tree`.
          tree: the updates of the local step, or the parameters after it.
          state: the state after it.
          static: `sync` and `land`, as for `update`.
          contribute: as for `update`.
          extra: extra arguments of the inner transform.
        """
        contributes = True if contribute is None else as_flag(self, "contribute", contribute)

        def meet(params: Params, state: Any, dtypes: Sequence[Any]) -> tuple[Params, Any]:
            meeting = Meeting(dtypes, contributes)
            new = self.exchange(params, state, meeting, extra)
            if contributes is True or self.lands(state.schedule_step) is not False:
                return new
            happens = meeting.count(self.axis) > 0
            return jax.tree.map(lambda x, old: jnp.where(happens, x, old), new, (params, state))

        exchange = self._moving_copies(meet)
        sync, landing = static
        due = self.due(state.schedule_step) if sync is None else sync
        tree, state = self._change_if(due, in_form(exchange), tree, state)
        lands = self.lands(state.schedule_step) if landing is None else landing
        land = self._moving_copies(lambda params, state, dtypes: self.land(params, state))
        return self._change_if(lands, in_form(land), tree, state)

    def _moving_copies(self, change: Callable[..., tuple[Params, Any]]) -> Any:
        """Return `change` with the copies in the inner state moved as it moves the parameters.

        Args:
          change: returns parameters and state from both, and the user's dtypes of the parameters.
        """
        tells_inner = not self.moves_copies and keeps_copies(self.inner)

        def change_all(u: Updates, old: Params, state: Any) -> tuple[Params, Any]:
            # Copies must not lose what is less than a rounding of narrow parameters.
            dtypes = [p.dtype for p in jax.tree.leaves(old)]
            with remembering_shards():
                precise = jax.tree.map(_widen, old) if tells_inner else old
                return moved(u, old, precise, change(precise, state, dtypes=dtypes))

        def moved(u: Updates, old: Params, precise: Params, changed: Any) -> tuple[Params, Any]:
            new, state = changed
            treedef = structure_of(u)  # where it has a hole, the parameter stays
            aligned = align(self, u, treedef, precise, _HAVE)
            new = aligned.rebuilt(align(self, u, treedef, new, _HAVE).leaves)
            if tells_inner:
                state = state._replace(inner=tell_moved(self.inner, state.inner, old, new))
                new = jax.tree.map(lambda x, p: in_place_of(whole_in(x, p.dtype), p), new, old)
            return new, state

        return change_all

    def _change_if(
        self, due: Array | bool, change: Change, tree: PyTree, state: Any
    ) -> tuple[PyTree, Any]:
        def changed(tree: PyTree, state: Any) -> tuple[PyTree, Any]:
            return self._varying(change(tree, state))

        def same(tree: PyTree, state: Any) -> tuple[PyTree, Any]:
            return self._varying((tree, state))

        if isinstance(due, bool):
            return (changed if due else same)(tree, state)
        return lax.cond(require_alike(self, due), changed, same, tree, state)

    def _varying(self, results: tuple[PyTree, Any]) -> tuple[PyTree, Any]:
        """Mark what may differ between replicas, so that both branches have the same type."""
        leaves, treedef = jax.tree.flatten(results)
        marks = zip(leaves, is_shared(results), strict=True)
        return treedef.unflatten([x if s else as_varying(x, self.axis) for x, s in marks])


_HAVE = "the parameters have"


def difference_from_center(p: Array, center: Array) -> Array:
    """Return `p - center`, in float32 or wider."""
    wide = widen(p)
    return wide - cast(center, wide.dtype)


def _update(new: Array, p: Array, u: Array) -> Array:
    """Return `new - p`, in the dtype of the update that it replaces."""
    dtype = at_least_float32(promote(new.dtype, p.dtype))
    return cast(cast(new, dtype) - cast(p, dtype), u.dtype)


def is_multiple(step: Array, period: int) -> Array:
    """Return whether `step` is a multiple of the period."""
    return step % period == 0


def _widen(x: Array) -> Array:
    """Return a floating array in float32 or wider, and any other array as it is."""
    return whole_in(x, at_least_float32(x.dtype)) if jnp.issubdtype(x.dtype, jnp.inexact) else x
