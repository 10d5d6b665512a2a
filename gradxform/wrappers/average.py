"""Averages of the parameters over the steps, kept beside an optimizer."""

import abc
from dataclasses import field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from gradxform import engine
from gradxform.base import (
    GradientTransformation,
    Transform,
    call_update,
    check_transform,
    locality_of,
    tell_moved,
    transform,
)
from gradxform.errors import name_of, require_one_of
from gradxform.leaves import align, align_params, check_shapes, flatten_updates, require_params
from gradxform.leaves.states import check_state
from gradxform.numerics import as_step, at_least_float32, cast, promote, safe_increment, scalar
from gradxform.slots import zero_count
from gradxform.transforms.evaluated import eval_methods_of
from gradxform.transforms.tree_rules import copied_params, decay_at
from gradxform.tree.apply import apply_updates
from gradxform.types import (
    Array,
    Choice,
    Decay,
    NonNegativeInt,
    PositiveInt,
    PyTree,
    Slot,
)
from gradxform.wrappers.parts import all_parts, starts_elsewhere

# The share of the way to the parameters that an average goes in one step, and whether it goes at
# all (None: always).
Rate = tuple[Array, Array | None]


def _average_toward(average: Array, p: Array, rate: Array, due: Array | None) -> Array:
    """Return the average moved towards a parameter."""
    wide = at_least_float32(promote(average.dtype, p.dtype))
    a = cast(average, wide)
    new = cast(a + cast(rate, wide) * (cast(p, wide) - a), average.dtype)
    return new if due is None else jnp.where(due, new, average)


def _shifted(average: Array, old: Array, new: Array, rate: Array, due: Array | None) -> Array:
    """Return the average as if the last step had led to `new` instead of `old`."""
    wide = at_least_float32(promote(average.dtype, new.dtype))
    move = cast(rate, wide) * (cast(new, wide) - cast(old, wide))
    moved = cast(cast(average, wide) + move, average.dtype)
    return moved if due is None else jnp.where(due, moved, average)


class Averager(Transform):
    """Base of wrappers that move averages towards the parameters after every inner update.

    The inner updates pass unchanged. The state has the fields `inner_state` and `num_updates`; the
    averages are trees like the parameters.
    """

    inner: Any
    State: Any  # the class of the state

    handles_rows = True
    follows = ("average",)
    records_params = True
    holds = (("inner", "inner_state"),)

    def __post_init__(self) -> None:
        check_transform(self, self.inner, "inner")
        for part in all_parts(self.inner):
            if isinstance(part, GradientTransformation) and part.leaves_path:
                name, outer = name_of(part), name_of(self)
                if isinstance(part.leaves_path, str):
                    raise ValueError(
                        f"{outer}: {name} in it tries points, and the average would contain those "
                        f"that it does not accept. {part.leaves_path}"
                    )
                raise ValueError(
                    f"{outer}: {name} in it lets the parameters climb between its steps, and the "
                    f"average would contain these climbs. Put it inside: {name}({outer}(...), "
                    "...); or let opaque_mode=True hide them."
                )

    @property
    def locality(self) -> str:
        """How far the inner transform looks."""
        return locality_of(self.inner)

    # -------------------------------------------------------------------- defined by each wrapper

    @abc.abstractmethod
    def counted(self, state: Any, extra: dict[str, Any]) -> Any:
        """Return the state with its scalars advanced by a step."""

    @abc.abstractmethod
    def rates(self, state: Any) -> dict[str, Rate]:
        """Return the rate of each average in the last step; 1 if there has not been any."""

    def trees(self, state: Any) -> dict[str, PyTree]:
        """Return the averages by name."""
        return {"average": state.average}

    def with_trees(self, state: Any, trees: dict[str, PyTree]) -> Any:
        """Return the state with other averages."""
        return state._replace(average=trees["average"])

    # ---------------------------------------------------------------------------------- stepping

    def update(self, updates, state, params=None, **extra):
        """Return the inner updates, and the state with the averages of the new parameters."""
        require_params(self, params)
        state = check_state(self, state, self.State)
        updates, inner_state = call_update(self.inner, updates, state.inner_state, params, extra)
        # The rates of a step are those of the state after it.
        state = self.counted(state._replace(inner_state=inner_state), extra)
        _, treedef = flatten_updates(updates)
        align_params(self, updates, treedef, params)
        new_params = apply_updates(params, updates)
        news = align(self, updates, treedef, new_params, "the parameters have").leaves
        trees, rates = self.trees(state), self.rates(state)
        for name, tree in trees.items():
            average = align(self, updates, treedef, tree, "the state's average has")
            check_shapes(self, updates, average.leaves, "the state's average has")
            moved = engine.map_rows(_average_toward, [average.leaves, news], *rates[name])
            trees[name] = average.rebuilt(moved)
        return updates, self.with_trees(state, trees)

    def moved(self, state, old, new):
        """Return the state as if the last step had led to where something else has moved them."""
        inner_state = tell_moved(self.inner, state.inner_state, old, new)
        state = state._replace(inner_state=inner_state)
        if starts_elsewhere():  # the next step leads on from there before it is averaged
            return state
        news, treedef = jax.tree.flatten(new)
        olds = align(self, new, treedef, old, "the parameters had").leaves
        trees, rates = self.trees(state), self.rates(state)
        for name, tree in trees.items():
            average = align(self, new, treedef, tree, "the state's average has")
            moved = engine.map_rows(_shifted, [average.leaves, olds, news], *rates[name])
            trees[name] = average.rebuilt(moved)
        return self.with_trees(state, trees)


class MovingAverageState(NamedTuple):
    """State of `moving_average`."""

    inner_state: Any  # the inner state
    num_updates: Array  # int32 scalar; updates so far, or the caller's step after the last one
    weight: Array  # scalar, at least float32; how much of the average comes from updates (debias)
    average: Slot  # like params, at least float32; what to evaluate

    evaluated, exchanged = eval_methods_of("average")

    def metrics(self) -> dict[str, Array]:
        """Return the scalars; `weight` alone would not say of what."""
        return {"num_updates": self.num_updates, "average_weight": self.weight}


@transform
class moving_average(Averager):
    """Keep an exponential moving average of the parameters, to evaluate and save.

    Update rule, with p the parameters after the inner update and d the decay, from a = the
    parameters at `init`:

        a <- a - (1 - d) (a - p)

    `eval_params(state, params)` returns a, and `swap` puts it in the place of the parameters. The
    average covers about 1 / (1 - d) steps: with the default, train for several times 10,000. For
    shorter runs use num_updates="count", with which d = min(decay, (1 + k) / (10 + k)) after k
    updates, so that the first parameters are soon forgotten. With debias they are not in the
    average at all: a is the average of the parameters after each update, with the weights d^(t-i)
    normalized to a sum of 1 (`ema` of the updates, in contrast, averages gradients).

    Until step `start`, a is p itself. After it, a moves at every `every`-th step, by d as it
    stands, and k counts these moves.

    Wrappers that move the parameters after a step (`lookahead`, `distributed.model_average`, ...)
    may stand around it, and in a `chain` of this library parts that change its updates may follow:
    the average then follows the parameters to where they have gone. In `optax.chain` it must be
    the last part. Every entry is averaged, also in rows without a gradient; a parameter whose
    gradient is None is left out for the step. Parameters of 16 bits are averaged as they are after
    rounding. Inside `MultiSteps` it averages once per step, around it once per micro-batch.

    Args:
      inner: the optimizer.
      decay: d, in [0, 1).
      num_updates: None for a constant decay; "count" for a warm-up over the updates so far; "step"
        for one that follows the extra argument `step` of `update` (the number of earlier updates,
        TensorFlow's global step), and counts without it; or an integer of at least 0, a constant k.
      debias: whether to leave the parameters at `init`, or at `start`, out of the average.
      start: the step at which the average begins, at least 0; None for 0. Keyword-only.
      every: steps from one move of the average to the next, at least 1; None for 1. Keyword-only.

    Raises:
      ValueError: at update, if no parameters are given.
      TypeError: at update, if `step` is not an integer.

    Reference: Polyak and Juditsky, Acceleration of Stochastic Approximation by Averaging, 1992;
    `tf.contrib.opt.MovingAverageOptimizer`, `tf.train.ExponentialMovingAverage`.
    """

    inner: Any
    decay: Decay = 0.9999
    num_updates: NonNegativeInt | Choice | None = None
    debias: bool = False
    start: NonNegativeInt | None = field(default=None, kw_only=True)
    every: PositiveInt | None = field(default=None, kw_only=True)

    State = MovingAverageState

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.num_updates, str):
            require_one_of(self, "num_updates", ["count", "step"])

    def init(self, params):
        """Return the inner state and a copy of the parameters."""
        weight = scalar(0.0 if self.debias else 1.0)
        return MovingAverageState(
            self.inner.init(params), zero_count(), weight, copied_params(params)
        )

    def update(self, updates, state, params=None, *, step=None, **extra):
        """Return the inner updates, and the state with the average of the new parameters."""
        if step is not None:
            extra = extra | {"step": step}
        return super().update(updates, state, params, **extra)

    def counted(self, state: MovingAverageState, extra: dict[str, Any]) -> MovingAverageState:
        """Return the state after one more update."""
        count = state.num_updates
        if self.num_updates == "step" and extra.get("step") is not None:
            count = cast(as_step(self, "step", extra["step"]), count.dtype)
        state = state._replace(num_updates=safe_increment(count))
        if not self.debias:
            return state
        share, old = cast(self._share(state), state.weight.dtype), state.weight
        weight = old + jnp.where(self._is_due(state), share, 0) * (1 - old)
        return state._replace(weight=weight)

    def _since(self, state: MovingAverageState) -> Array:
        """Return the number of steps since the average began; at most 0 before."""
        return state.num_updates if self.start is None else state.num_updates - self.start

    @property
    def _period(self) -> int:
        return 1 if self.every is None else self.every

    def _is_due(self, state: MovingAverageState) -> Array:
        since = self._since(state)
        return (since > 0) & (since % self._period == 0)

    def _share(self, state: MovingAverageState) -> Array:
        """Return 1 - d."""
        moves = jnp.maximum(self._since(state), 0) // self._period
        _, share = decay_at(self.decay, state.num_updates)
        if self.num_updates is None:
            return share
        k = scalar(moves if isinstance(self.num_updates, str) else self.num_updates)
        # TensorFlow's warm-up: 1 - (1 + k) / (10 + k).
        return jnp.maximum(share, 9 / (10 + k))

    def rates(self, state: MovingAverageState) -> dict[str, Rate]:
        """Return 1 - d, and with debias its part of the weights so far."""
        is_before = self._since(state) <= 0
        # A weight of 0 means no move yet, so that nothing is to be normalized.
        weight = jnp.where(is_before | (state.weight == 0), 1, state.weight)
        share = jnp.where(is_before, 1, self._share(state))
        always = self.start is None and self.every is None
        due = None if always else is_before | self._is_due(state)
        return {"average": (share / weight if self.debias else share, due)}


class StochasticWeightAverageState(NamedTuple):
    """State of `stochastic_weight_average`."""

    inner_state: Any  # the inner state
    num_updates: Array  # int32 scalar; updates so far
    average: Slot  # like params, at least float32; what to evaluate

    evaluated, exchanged = eval_methods_of("average")


@transform
class stochastic_weight_average(Averager):
    """Keep the equal average of the parameters at every `period`-th step: SWA.

    Update rule, with p the parameters after update number t = 1, 2, ..., and n the number of
    parameters in the average so far, from a = p at step `start`, n = 1 (step 0 is before the first
    update):

        n <- n + 1, a <- a + (p - a) / n     if t > start and period divides t - start

    Until step `start`, a is p itself. `eval_params(state, params)` returns a, and `swap` puts it in
    the place of the parameters. Start where the loss has nearly settled, with a constant or cyclic
    learning rate that is larger than usual at the end of a run; with a cyclic one let the steps of
    the average be the ends of its cycles. Statistics of batch normalization are not parameters:
    compute them anew for the average.

    With other parts of a chain, other wrappers, row-sparse gradients and gradients of None it works
    as `moving_average` does.

    Args:
      inner: the optimizer.
      start: the step whose parameters are the first in the average, at least 0.
      period: steps from one of them to the next, at least 1.

    Raises:
      ValueError: at update, if no parameters are given.

    Reference: Izmailov et al., Averaging Weights Leads to Wider Optima and Better Generalization,
    2018, Algorithm 1.
    """

    inner: Any
    start: NonNegativeInt = 0
    period: PositiveInt = 1

    State = StochasticWeightAverageState

    def init(self, params):
        """Return the inner state and a copy of the parameters."""
        return StochasticWeightAverageState(
            self.inner.init(params), zero_count(), copied_params(params)
        )

    def counted(
        self, state: StochasticWeightAverageState, extra: dict[str, Any]
    ) -> StochasticWeightAverageState:
        """Return the state after one more update."""
        return state._replace(num_updates=safe_increment(state.num_updates))

    def rates(self, state: StochasticWeightAverageState) -> dict[str, Rate]:
        """Return 1 over the number of parameters in the average, if these are among them."""
        since = state.num_updates - self.start
        number = jnp.where(since < 0, 0, since // self.period) + 1
        return {"average": (1 / scalar(number), (since < 0) | (since % self.period == 0))}
