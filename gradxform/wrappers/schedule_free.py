"""Schedule-free learning: an average in the place of a learning rate schedule."""

from dataclasses import field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from gradxform import engine
from gradxform.base import (
    Transform,
    call_update,
    carried,
    check_transform,
    locality_of,
    tell_moved,
    transform,
)
from gradxform.errors import name_of
from gradxform.leaves import align, align_params, align_slot, check_shapes, dtype_of, require_params
from gradxform.leaves.states import check_state
from gradxform.numerics import (
    ScheduleError,
    at_least_float32,
    cast,
    promote,
    safe_increment,
    scalar,
    value_at,
)
from gradxform.slots import zero_count
from gradxform.transforms.tree_rules import copied_params, ratio_or_zero
from gradxform.tree.apply import apply_updates
from gradxform.types import (
    Array,
    DType,
    NonNegative,
    NonNegativeOrSchedule,
    OptState,
    Params,
    Positive,
    PositiveShare,
    PyTree,
    Slot,
)
from gradxform.wrappers.changed_steps import check_changeable, told_start
from gradxform.wrappers.parts import (
    all_parts,
    check_movable,
    estimated_rates,
    estimates_rate,
    keeps_copies,
)

__all__ = [
    "schedule_free",
    "schedule_free_eval_params",
    "ScheduleFreeState",
    "ScheduleFreeWithXState",
]


class ScheduleFreeState(NamedTuple):
    """State of `schedule_free`."""

    b1: Array  # scalar, at least float32; the b1 with which the parameters were computed
    weight_sum: Array  # scalar, at least float32; the sum of the weights so far
    step_count: Array  # int32 scalar; the number of the next step, from 1
    max_lr: Array  # scalar, at least float32; the largest learning rate so far
    base_optimizer_state: Any  # the base optimizer's state
    z: Slot  # like params, at least float32 by default; where the base optimizer is

    def evaluated(self, params: Params | None) -> dict[str, PyTree]:
        """Return the average x, which follows from the parameters y and from z."""
        return {"x": average_of(self, params)}

    def exchanged(self, name: str, params: Params) -> "ScheduleFreeWithXState":
        """Return the state that keeps the parameters y, where x is in their place."""
        return ScheduleFreeWithXState(*self, x=copied_params(params))


class ScheduleFreeWithXState(NamedTuple):
    """State of `schedule_free` for parameters of 16 bits, from which x cannot be computed."""

    b1: Array  # as in `ScheduleFreeState`, and so are the next five
    weight_sum: Array
    step_count: Array
    max_lr: Array
    base_optimizer_state: Any
    z: Slot
    x: Slot  # like params, at least float32; the average

    def evaluated(self, params: Params | None) -> dict[str, PyTree]:
        """Return the average x."""
        return {"x": self.x}

    def exchanged(self, name: str, params: Params) -> "ScheduleFreeState | ScheduleFreeWithXState":
        """Return the state with `params` as x, or without it where it can be computed."""
        return (
            self._replace(x=copied_params(params))
            if _is_narrow(params)
            else ScheduleFreeState(*self[:6])
        )


def _is_narrow(params: Params) -> bool:
    """Whether a parameter has fewer than 32 bits."""
    dtypes = map(dtype_of, jax.tree.leaves(params))
    return any(dtype != at_least_float32(dtype) for dtype in dtypes)


def average_of(state: Any, params: Params | None) -> PyTree:
    """Return the average x of a state with `b1` and `z`, of parameters y."""
    require_params("eval_params", params)
    zs, treedef = jax.tree.flatten(state.z)
    ys = align("eval_params", state.z, treedef, params, "the parameters have").leaves
    return jax.tree.unflatten(treedef, engine.map_rows(_schedule_free_x, [ys, zs], 1 / state.b1))


def _schedule_free_x(y: Array, z: Array, inverse: Array) -> Array:
    """Return x, for which y = b1 x + (1 - b1) z, in float32 or wider; `inverse` is 1 / b1."""
    wide = at_least_float32(promote(dtype_of(y), z.dtype))
    y, z = cast(jnp.asarray(y), wide), cast(z, wide)
    if inverse.ndim:  # in the state of several replicas, whose axes come first
        inverse = jnp.reshape(inverse, inverse.shape + (1,) * (y.ndim - inverse.ndim))
    return z + cast(inverse, wide) * (y - z)


def _step_with_x(
    u: Array, y: Array, z: Array, x: Array | None, inverse: Array, b1: Array, c: Array
) -> tuple[Array, ...]:
    """Return the update of y, and the new z and x."""
    wide = at_least_float32(promote(u.dtype, y.dtype, z.dtype))
    x = _schedule_free_x(y, z, inverse) if x is None else cast(x, wide)
    new_z = cast(cast(z, wide) + cast(u, wide), z.dtype)
    target = cast(new_z, wide)
    new_x = x + cast(c, wide) * (target - x)
    new_y = target + cast(b1, wide) * (new_x - target)
    return cast(new_y - cast(y, wide), u.dtype), new_z, new_x


def _step_without_x(
    u: Array, y: Array, z: Array, inverse: Array, b1: Array, c: Array
) -> tuple[Array, Array]:
    u, z, _ = _step_with_x(u, y, z, None, inverse, b1, c)
    return u, z


@transform
class schedule_free(Transform):
    """Replace an optimizer's momentum and its decreasing learning rate by an average.

    Update rule, with u the base optimizer's update for the gradient at y, t = 1, 2, ... the step,
    and r(n) the learning rate after n updates, from x = y = z:

        z <- z + u
        w = t^weight_step_power (the largest of r(1), ..., r(t))^weight_lr_power
        c = w / (sum of all w so far)
        x <- (1 - c) x + c z
        y <- b1 x + (1 - b1) z

    The step of the base optimizer has the rate r(t - 1). As in Optax, its weight is that of the
    next step's rate. The paper has that of the step itself, the largest of r(0), ..., r(t - 1),
    which `weights_ahead=False` computes. Both are the same unless the learning rate warms up.

    Around an optimizer that estimates its rate, such as `prodigy(betas=(0.0, 0.999))`, r is times
    that estimate, after the step, as in the authors' code: steps from before the estimate rose
    weigh next to nothing. (Optax knows the learning rate only.) With `base_at_z`, such an optimizer
    measures how far z has come, rather than y; `schedule_free_prodigy` is both.

    y are the parameters, where gradients are taken. Evaluate and save x:
    `eval_params(state, params)`, or `swap`. The state holds z; x follows from y and z, but for
    parameters of 16 bits, too coarse for that, the state holds x, too (`ScheduleFreeWithXState`).

    The base optimizer must not have a momentum (`adam(lr, b1=0.0)`, or see `schedule_free_sgd` and
    `schedule_free_adamw`). Its learning rate may warm up but should not decrease; give the same one
    here. A good one is 1 to 10 times that of a run with a schedule. A run that is restored with
    another b1 continues from the same x.

    Must be the last part of a chain, because its updates must be applied unchanged. A base
    optimizer that keeps copies of the parameters is told where they go. Every entry moves towards
    the average in every step, so that it refuses row-sparse gradients. Around a part that may have
    to skip a step use `apply_if_finite(schedule_free(...), n)`, not the reverse.

    Of its own kind: gradients are taken at parameters that it computes from those of the inner
    steps.

    Args:
      base_optimizer: the optimizer that moves z.
      learning_rate: its learning rate, at least 0, or its schedule.
      b1: the share of x in y, in (0, 1]; with 1 gradients are taken at the average.
      weight_lr_power: the power of the learning rate in the weights of the average, at least 0;
        with 0 all steps have the same weight.
      state_dtype: the dtype of z. Defaults to the parameter's, or float32 for 16-bit ones.
      weights_ahead: whether the weights have the learning rate of the next step. Keyword-only.
      weight_step_power: the power of the number of the step in the weights of the average, at least
        0; the authors' code calls it r. Defaults to 0. Keyword-only.
      decoupling: C of the refined method, greater than 0, in which min(1, (1 - b1) C c) stands in
        the place of c, so that b1 does not say how long the average is. Defaults to c itself.
        Keyword-only.
      base_at_z: whether the base optimizer gets z in the place of the parameters, for its decay and
        its distances. Keyword-only.

    Raises:
      ValueError: if the base optimizer does not go on from where the parameters are, or has several
        parts that estimate a rate; at update, if no parameters are given.

    Reference: Defazio et al., The Road Less Scheduled, 2024, Algorithm 1 and equations (3-5), and
    the wrapper of the authors' code for the estimates; Song et al., Through the River:
    Understanding the Benefit of Schedule-Free Methods for Language Model Training, 2025, for the
    decoupling.
    """

    base_optimizer: Any
    learning_rate: NonNegativeOrSchedule
    b1: PositiveShare = 0.9
    weight_lr_power: NonNegative = 2.0
    state_dtype: DType = None
    weights_ahead: bool = field(default=True, kw_only=True)
    weight_step_power: NonNegative | None = field(default=None, kw_only=True)
    decoupling: Positive | None = field(default=None, kw_only=True)
    base_at_z: bool = field(default=False, kw_only=True)

    why_no_rows = "moves every row towards an average"
    follows = ("z",)
    holds = (("base_optimizer", "base_optimizer_state"),)

    def __post_init__(self) -> None:
        check_transform(self, self.base_optimizer, "base_optimizer")
        check_movable(self, self.base_optimizer)
        check_changeable(self, self.base_optimizer)
        estimating = [part for part in all_parts(self.base_optimizer) if estimates_rate(part)]
        if len(estimating) > 1:
            listed = " and ".join(map(name_of, estimating))
            raise ValueError(
                f"{name_of(self)}: {listed} in it estimate learning rates, of which none says how "
                f"much a step weighs; put {name_of(self)} around each."
            )

    @property
    def locality(self) -> str:
        """How far the base optimizer looks."""
        return locality_of(self.base_optimizer)

    def init(self, params):
        """Return the base optimizer's state, and copies of the parameters."""
        state = ScheduleFreeState(
            b1=scalar(self.b1),
            weight_sum=scalar(0.0),
            step_count=zero_count() + 1,
            max_lr=scalar(0.0),
            base_optimizer_state=self.base_optimizer.init(params),
            z=copied_params(params, self.state_dtype),
        )
        return (
            ScheduleFreeWithXState(*state, x=copied_params(params)) if _is_narrow(params) else state
        )

    def update(self, updates, state, params=None, **extra):
        """Return the updates of y, and the state with the new z."""
        require_params(self, params)
        has_x = getattr(state, "_fields", None) == ScheduleFreeWithXState._fields
        state = check_state(self, state, ScheduleFreeWithXState if has_x else ScheduleFreeState)
        inverse = 1 / state.b1  # of the b1 that the parameters were computed with; it may change
        place, base_state = params, state.base_optimizer_state
        if self.base_at_z:
            place = state.z
            base_state = told_start(self.base_optimizer, base_state, params, place)
        base_updates, base_state = call_update(
            self.base_optimizer, updates, base_state, place, extra
        )
        state, c = self._counted(state, base_state)
        us, treedef = jax.tree.flatten(base_updates)
        ys = align_params(self, base_updates, treedef, params).leaves
        slots = [align_slot(self, base_updates, treedef, state, k) for k in ("z", "x")[: 1 + has_x]]
        for slot in slots:
            check_shapes(self, base_updates, slot.leaves, "the state has")
        columns = [us, ys, *(slot.leaves for slot in slots)]
        rule = _step_with_x if has_x else _step_without_x
        rows = engine.map_rows(rule, columns, inverse, state.b1, c)
        new = jax.tree.unflatten(treedef, [u for u, *_ in rows])
        if keeps_copies(self.base_optimizer):  # its copies are where its own updates lead
            places = apply_updates(place, base_updates), apply_updates(params, new)
            base_state = tell_moved(self.base_optimizer, base_state, *places)
        trees = {
            k: slot.rebuilt([row[1 + i] for row in rows])
            for i, (k, slot) in enumerate(zip(("z", "x"), slots, strict=False))
        }
        return new, state._replace(base_optimizer_state=base_state, **trees)

    def _counted(self, state: Any, base_state: Any) -> tuple[Any, Array]:
        """Return the state with its scalars advanced, and the weight c of the new z in x."""
        try:
            count = state.step_count if self.weights_ahead else state.step_count - 1
            rate = value_at(self.learning_rate, count)
        except ScheduleError as error:
            raise TypeError(f"{name_of(self)}: learning_rate: {error}") from None
        for estimate in estimated_rates(self.base_optimizer, base_state):
            rate = rate * cast(estimate, rate.dtype)
        max_lr = jnp.maximum(cast(state.max_lr, rate.dtype), rate)
        weight = max_lr ** scalar(self.weight_lr_power)
        if self.weight_step_power is not None:
            t = cast(state.step_count, weight.dtype)
            weight = weight * t ** scalar(self.weight_step_power)
        total = cast(state.weight_sum, weight.dtype) + weight
        counted = {
            "b1": scalar(self.b1),
            "max_lr": max_lr,
            "weight_sum": total,
            "step_count": safe_increment(state.step_count),
        }
        new = {k: cast(x, getattr(state, k).dtype) for k, x in counted.items()}
        c = ratio_or_zero(weight, total)
        if self.decoupling is not None:
            c = jnp.minimum(1, cast((1 - scalar(self.b1)) * scalar(self.decoupling), c.dtype) * c)
        return state._replace(**new), c

    def moved(self, state, old, new):
        """Return the state after something else has moved the parameters: x, y and z alike."""
        state = super().moved(state, old, new)
        if not isinstance(state, ScheduleFreeWithXState):
            return state
        news, treedef = jax.tree.flatten(new)
        olds = align(self, new, treedef, old, "the parameters had").leaves
        x = align_slot(self, new, treedef, state, "x")
        return state._replace(x=x.rebuilt(engine.map_rows(carried, [x.leaves, olds, news])))


def schedule_free_eval_params(state: OptState, params: Params) -> Params:
    """Return the average x of a `schedule_free`, to evaluate and save, in the parameters' dtypes.

    `eval_params` does this for any optimizer, and at any depth of a state.

    Args:
      state: the state of `schedule_free`, ours or Optax's.
      params: the parameters y.

    Raises:
      TypeError: if it is the state of anything else.
    """
    kinds = {kind._fields: kind for kind in (ScheduleFreeState, ScheduleFreeWithXState)}
    kind = kinds.get(getattr(state, "_fields", ()))
    if kind is None:
        raise TypeError(
            "schedule_free_eval_params: state must be a ScheduleFreeState, got "
            f"{name_of(type(state))}. eval_params finds one in the state of a chain."
        )
    tree = kind.evaluated(state, params)["x"]
    xs, treedef = jax.tree.flatten(tree)
    part, what = "schedule_free_eval_params", "the parameters have"
    ys = align(part, tree, treedef, params, what)
    return ys.rebuilt([cast(x, dtype_of(y)) for x, y in zip(xs, ys.leaves, strict=True)])
