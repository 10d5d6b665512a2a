"""Sharpness-aware minimization: the gradient at a worse place nearby."""

from dataclasses import field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from gradxform import engine
from gradxform._jax import versions as _compat
from gradxform._jax.programs import by_program
from gradxform.base import Transform, call_update, check_transform, farthest, transform
from gradxform.errors import name_of, require_non_negative, shown
from gradxform.leaves import align, align_params, align_slot, check_shapes, require_params
from gradxform.leaves.states import check_state
from gradxform.leaves.storage import begun_anew
from gradxform.numerics import at_least_float32, cast, promote
from gradxform.slots import zero_count, zeros_like
from gradxform.transforms.normalization import normalize_adaptively
from gradxform.transforms.scaling import scale
from gradxform.transforms.tree_rules import copied_params
from gradxform.transforms.two_gradients import TakesFirstGradients
from gradxform.tree.apply import apply_updates
from gradxform.types import Array, Params, PositiveSize, PyTree, Size, Slot, Updates
from gradxform.values.arguments import with_checked_arguments
from gradxform.values.registry import register
from gradxform.wrappers.agree import agreed_flags, check_bound
from gradxform.wrappers.compose import chain
from gradxform.wrappers.parts import all_parts
from gradxform.wrappers.update_when import strongly_typed, update_when

__all__ = [
    "asam",
    "sam",
    "SAMState",
]


class SAMState(NamedTuple):
    """State of `sam`."""

    steps_since_sync: Array  # int32 scalar; adversarial steps since the last outer one
    opt_state: Any  # the outer optimizer's state
    adv_state: Any  # the adversarial optimizer's state
    cache: Slot  # like params, at least float32; where the outer step starts; None if opaque


class SAMGradientsState(NamedTuple):
    """State of `sam` with a part that needs the first gradients, unless opaque."""

    steps_since_sync: Array  # int32 scalar; the calls of this period so far
    opt_state: Any  # the outer optimizer's state
    adv_state: Any  # the adversarial optimizer's state
    cache: Slot  # like params, at least float32; where the outer step starts
    first: Slot  # like params, at least float32; the gradient there


@transform
class sam(Transform):
    """Climb to a worse place nearby, and apply the gradient there from where the climb began.

    Update rule, with a' the update of the adversarial optimizer and u' that of the outer one, in a
    period of `sync_period` calls:

        c = p at the first call
        u = -a'(g)                 (all calls but the last: climb)
        u = c - p + u'(g; c)       (the last call: go back, and step from there)

    The paper's algorithm is `sam(sgd(lr), chain(normalize(), sgd(rho)))`: one step of length rho
    along the gradient, then one of the optimizer. Between the calls the parameters are those of the
    climb: evaluate and save them after the last call of a period, or `state.cache`. `sam` must be
    the last part of a chain, because its updates must be applied unchanged; what changes gradients,
    such as clipping, stands before it or in `optimizer`.

    With opaque_mode=True a call does the whole period and never shows the climb, so that a model
    with batch statistics can be trained. It needs the gradient as a function,
    `update(grads, state, params, grad_fn=grad_fn)`, with
    `grad_fn = jax.grad(lambda params, i: loss(params, batch))`; i = 0, 1, ... counts the calls in a
    period, as a Python integer, and may choose another batch. Parts before `sam` in a chain do
    not see these gradients.

    With `plain_steps` a period has so many calls more, each a step of the outer optimizer with the
    gradient as it is. Parts of the outer optimizer such as `mix_gradients` get the gradients of the
    first call, too: `gsam`, `wsam` and `looksam` are made of them.

    A NaN in a climb stays in the parameters: put `apply_if_finite` around `sam`, not inside.
    An average of the parameters belongs inside, as `sam(moving_average(...), ...)`.

    On replicas, `sam(distributed.tower(...), ...)` lets each of them climb on its own batch (the
    paper's m-sharpness), and `distributed.tower(sam(...))` all of them on the mean.

    Of its own kind: one step takes several calls, at other parameters.

    Args:
      optimizer: the outer optimizer.
      adv_optimizer: the optimizer whose steps are turned around; it descends, as `sgd(rho)` does.
      sync_period: the calls, or gradients, for one outer step, at least 1.
      reset_state: whether the state of `adv_optimizer` is initialized after every period.
      opaque_mode: whether one call does a whole period.
      batch_axis_name: the mesh axis over which the gradients of `grad_fn` are averaged, with
        opaque_mode only.
      plain_steps: the steps without a climb that follow each step with one, an integer, at least 0;
        None for 0. Keyword-only.

    Raises:
      ValueError: if an axis is named without opaque_mode; at update, without the parameters, or if
        `grad_fn` returns something else than gradients, or gradients that are summed already.
      TypeError: at update, without `grad_fn` if opaque_mode is set.

    Reference: Foret et al., Sharpness-Aware Minimization for Efficiently Improving Generalization,
    2021, Algorithm 1.
    """

    optimizer: Any
    adv_optimizer: Any
    sync_period: PositiveSize = 2
    reset_state: bool = True
    opaque_mode: bool = False
    batch_axis_name: str | None = None
    plain_steps: Size | None = field(default=None, kw_only=True)

    why_no_rows = "moves all rows back to where they were"
    holds = (("optimizer", "opt_state"), ("adv_optimizer", "adv_state"))

    def __post_init__(self) -> None:
        check_transform(self, self.optimizer, "optimizer")
        check_transform(self, self.adv_optimizer, "adv_optimizer")
        if self.plain_steps is not None:
            require_non_negative(self, "plain_steps")
        if self.batch_axis_name is not None and not self.opaque_mode:
            raise ValueError(
                f"{name_of(self)}: batch_axis_name={self.batch_axis_name!r} does nothing "
                "without opaque_mode=True; average the gradients before update instead."
            )

    @property
    def locality(self) -> str:
        """The farther of the two optimizers."""
        return farthest([self.optimizer, self.adv_optimizer])

    @property
    def exchanges(self) -> tuple[str, ...]:
        """The axis over which gradients are averaged."""
        return () if self.batch_axis_name is None else (self.batch_axis_name,)

    @property
    def leaves_path(self) -> bool:
        """Whether the parameters between two calls may be those of a climb."""
        is_one = isinstance(self.sync_period, int) and self.sync_period == 1
        return not (self.opaque_mode or is_one)

    @property
    def follows(self) -> tuple[str, ...]:
        """The slot with the start of the outer step, if the state holds it."""
        return () if self.opaque_mode else ("cache",)

    @property
    def _takes_first(self) -> bool:
        """Whether a part of the outer optimizer needs the first gradients."""
        return any(isinstance(part, TakesFirstGradients) for part in all_parts(self.optimizer))

    @property
    def _kind(self) -> Any:
        """The class of the state."""
        return SAMGradientsState if self._takes_first and not self.opaque_mode else SAMState

    def init(self, params):
        """Return the states of both optimizers and, unless opaque, a copy of the parameters."""
        firsts = {"first": zeros_like(params)} if self._kind is SAMGradientsState else {}
        return self._kind(
            steps_since_sync=zero_count(),
            opt_state=self.optimizer.init(params),
            adv_state=self.adv_optimizer.init(params),
            cache=None if self.opaque_mode else copied_params(params),
            **firsts,
        )

    def update(self, updates, state, params=None, *, grad_fn=None, **extra):
        """Return one step of the period, or with opaque_mode the outer step of a whole one."""
        require_params(self, params)
        is_ours = isinstance(state, SAMState | SAMGradientsState)
        state = check_state(self, state, type(state) if is_ours else self._kind)
        if (state.cache is None) != self.opaque_mode:
            made_with = not self.opaque_mode
            raise ValueError(
                f"{name_of(self)}: the state was made with opaque_mode={made_with}, this transform "
                f"has opaque_mode={self.opaque_mode}; call its own init."
            )
        state = check_state(self, state, self._kind)
        align_params(self, updates, jax.tree.structure(updates), params)
        if self.opaque_mode:
            return self._whole_period(updates, state, params, grad_fn, extra)
        return self._one_step(updates, state, params, extra)

    # ------------------------------------------------------------------- a call for each step

    def _one_step(
        self, updates: Updates, state: Any, params: Params, extra: dict[str, Any]
    ) -> tuple[Updates, Any]:
        turn = state.steps_since_sync
        is_plain = turn >= self.sync_period
        is_first = (turn == 0) | is_plain
        is_last = turn >= self.sync_period - 1
        firsts: dict[str, Any] = {}
        if self._takes_first:
            firsts = self._with_first(updates, state, is_first)
            outer_extra = extra | _first_gradients_for_parts(firsts["first"], ~is_plain)
        else:
            outer_extra = extra
        all_ps, structure = jax.tree.flatten(params)
        cache = align_slot(self, params, structure, state, "cache")
        pairs = engine.map_rows(_start_of_period, [cache.leaves, all_ps], is_first)
        wide_start = jax.tree.unflatten(structure, [start for start, _ in pairs])
        # The outer optimizer sees the same numbers in the dtypes of the parameters.
        start = jax.tree.unflatten(structure, [p for _, p in pairs])

        step_arguments = updates, state.opt_state, start, outer_extra
        climb_arguments = updates, state.adv_state, params, extra
        (steps,) = agreed_flags(self.optimizer, (is_last,), *step_arguments)
        (climbs,) = agreed_flags(self.adv_optimizer, (~is_last,), *climb_arguments)
        outer, opt_state = update_when(self, self.optimizer, steps, *step_arguments)
        climb, adv_state = update_when(self, self.adv_optimizer, climbs, *climb_arguments)
        gs, treedef = jax.tree.flatten(updates)
        ps = align(self, updates, treedef, params, "the parameters have").leaves
        starts = align(self, updates, treedef, wide_start, "the cache has").leaves
        columns = [treedef.flatten_up_to(outer), treedef.flatten_up_to(climb), gs, ps, starts]
        us = engine.map_rows(_back_or_climb, columns, is_last)
        if self.reset_state:
            adv_state = begun_anew(is_last, self.adv_optimizer.init(start), adv_state)
        is_over = turn >= self.sync_period - 1 + (self.plain_steps or 0)
        count = jnp.where(is_over, 0, turn + 1).astype(jnp.int32)
        return jax.tree.unflatten(treedef, us), state._replace(
            steps_since_sync=count,
            opt_state=opt_state,
            adv_state=adv_state,
            cache=cache.rebuilt([start for start, _ in pairs]),
            **firsts,
        )

    def _with_first(self, updates: Updates, state: Any, is_first: Array) -> dict[str, PyTree]:
        """Return the slot of the first gradients, with those of this call if it is the first."""
        gs, treedef = jax.tree.flatten(updates)
        slot = align_slot(self, updates, treedef, state, "first")
        check_shapes(self, updates, slot.leaves, "the state's first has")
        return {
            "first": slot.rebuilt(engine.map_rows(_first_gradient, [slot.leaves, gs], is_first))
        }

    # ------------------------------------------------------------------ a whole period a call

    def _whole_period(
        self,
        updates: Updates,
        state: SAMState,
        params: Params,
        grad_fn: Any,
        extra: dict[str, Any],
    ) -> tuple[Updates, SAMState]:
        if not callable(grad_fn):
            raise TypeError(
                f"{name_of(self)}: opaque_mode needs the extra argument 'grad_fn', a function of "
                f"the parameters and the index of the step, got {shown(grad_fn)}; call "
                "update(updates, state, params, grad_fn=...)."
            )

        def climb(adv_state: Any) -> tuple[Any, Any]:
            # A Python loop, so that `grad_fn` gets its index as an integer.
            adv_params, grads = params, updates
            for i in range(self.sync_period - 1):
                up, adv_state = call_update(self.adv_optimizer, grads, adv_state, adv_params, extra)
                adv_params = apply_updates(adv_params, jax.tree.map(jnp.negative, up))
                grads = self._gradients(grad_fn, adv_params, i, updates)
            if self.reset_state:
                fresh = self.adv_optimizer.init(params)
                adv_state = begun_anew(jnp.bool_(True), fresh, state.adv_state)
            return grads, jax.tree.map(strongly_typed, adv_state)

        turn, count = state.steps_since_sync, zero_count()
        if self.plain_steps:
            # Only a climb needs the other gradients.
            grads, adv_state = by_program(
                lambda due, old: lax.cond(due, climb, lambda old: (updates, old), old),
                turn == 0,
                state.adv_state,
            )
            count = jnp.where(turn == self.plain_steps, 0, turn + 1).astype(jnp.int32)
        else:
            grads, adv_state = climb(state.adv_state)
        if self._takes_first:
            extra = extra | _first_gradients_for_parts(updates, turn == 0)
        new, opt_state = call_update(self.optimizer, grads, state.opt_state, params, extra)
        return new, state._replace(steps_since_sync=count, opt_state=opt_state, adv_state=adv_state)

    def _gradients(self, grad_fn: Any, params: Params, i: int, updates: Updates) -> Updates:
        """Return the gradients at the parameters of the climb, like the first ones."""
        grads = grad_fn(params, i)
        if isinstance(grads, tuple | list) and not isinstance(updates, tuple | list):
            raise ValueError(
                f"{name_of(self)}: grad_fn must return the gradients alone, got {shown(grads)}; "
                "of jax.value_and_grad or has_aux=True, return only the part with the gradients."
            )
        gs, treedef = jax.tree.flatten(updates)
        new = align(self, updates, treedef, grads, "the gradients of grad_fn have").leaves
        align_params(self, updates, treedef, jax.tree.unflatten(treedef, new))
        if self.batch_axis_name is not None:
            check_bound(self, self.exchanges)
            new = [self._mean_gradient(g, self.batch_axis_name) for g in new]
        new = [cast(jnp.asarray(x), g.dtype) for x, g in zip(new, gs, strict=True)]
        return jax.tree.unflatten(treedef, new)

    def _mean_gradient(self, g: Array, axis: str) -> Array:
        """Return the mean over the replicas, formed in float32 or wider."""
        wide = cast(jnp.asarray(g), at_least_float32(g.dtype))
        if _compat.knows_what_varies(axis) and axis not in _compat.varying_axes(wide):
            raise ValueError(
                f"{name_of(self)}: the gradients of grad_fn are summed over {axis!r} already, as "
                "shard_map(check_vma=True) does for replicated parameters; in grad_fn, "
                f"differentiate by gradxform.distributed.local_view(params, {axis!r})."
            )
        return lax.pmean(wide, axis)


def _start_of_period(cache: Array, p: Array, is_first: Array) -> tuple[Array, Array]:
    """Return where the period began, in the dtypes of the cache and of the parameter."""
    p = jnp.asarray(p)
    start = jnp.where(is_first, cast(p, cache.dtype), cache)
    return start, cast(start, p.dtype)


def _first_gradient(old: Array, g: Array, is_first: Array) -> Array:
    """Return the first gradient as the state keeps it."""
    return jnp.where(is_first, cast(g, old.dtype), old)


def _first_gradients_for_parts(first: PyTree, after_climb: Array) -> dict[str, Any]:
    """Return the extra arguments of parts that need the first gradients."""
    return {"first_gradients": first, "after_climb": after_climb}


def _back_or_climb(
    outer: Array, climb: Array, g: Array, p: Array, start: Array, is_last: Array
) -> Array:
    """Return the way back and the outer step at the last call, else the climb."""
    wide = promote(outer.dtype, p.dtype, start.dtype)
    back = cast(start, wide) - cast(p, wide) + cast(outer, wide)
    return cast(jnp.where(is_last, back, -cast(climb, wide)), g.dtype)


@with_checked_arguments
def asam(
    optimizer: Any,
    rho: float = 0.5,
    eta: float = 0.01,
    sync_period: Size = 2,
    opaque_mode: bool = False,
    batch_axis_name: str | None = None,
) -> sam:
    """Return `sam` with a climb that is measured relative to the parameters: ASAM.

    The climb is of rho t^2 g / |t g| with t = |p| + eta, by `normalize_adaptively`. Scaling one
    layer up and the next one down changes neither the loss nor this climb.

    Args:
      optimizer: the outer optimizer.
      rho: the length of a climb in units of the parameters, at least 0: 0.5 for CIFAR-10 and 1 for
        CIFAR-100 and ImageNet in the paper.
      eta: see `normalize_adaptively`.
      sync_period: see `sam`.
      opaque_mode: see `sam`.
      batch_axis_name: see `sam`.

    Reference: Kwon et al., ASAM: Adaptive Sharpness-Aware Minimization for Scale-Invariant Learning
    of Deep Neural Networks, 2021, Algorithm 1.
    """
    if isinstance(rho, int | float) and not rho >= 0:
        raise ValueError(f"asam: rho must be at least 0, got {rho!r}.")
    return sam(
        optimizer,
        chain(normalize_adaptively(eta), scale(-rho)),
        sync_period,
        opaque_mode=opaque_mode,
        batch_axis_name=batch_axis_name,
    )


register("asam", asam)
