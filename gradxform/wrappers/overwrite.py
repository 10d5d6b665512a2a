"""An average of the parameters that takes their place from time to time."""

from dataclasses import field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from gradxform import engine
from gradxform.base import transform
from gradxform.errors import name_of
from gradxform.leaves import align, has_rows, require_params
from gradxform.leaves.states import check_state
from gradxform.numerics import at_least_float32, cast, promote, safe_increment
from gradxform.slots import zero_count
from gradxform.transforms.evaluated import eval_methods_of
from gradxform.transforms.tree_rules import copied_params, decay_at
from gradxform.types import Array, Decay, PositiveInt, Slot
from gradxform.wrappers.average import Averager, Rate
from gradxform.wrappers.changed_steps import told_change


def _overwriting_update(u: Array, p: Array, average: Array, due: Array) -> Array:
    """Return the update that leads to the average if it is due, else `u`."""
    wide = at_least_float32(promote(u.dtype, p.dtype, average.dtype))
    return jnp.where(due, cast(cast(average, wide) - cast(p, wide), u.dtype), u)


class OverwritingAverageState(NamedTuple):
    """State of `overwriting_average`."""

    inner_state: Any  # the inner state
    num_updates: Array  # int32 scalar; updates so far
    average: Slot  # like params, at least float32; what to evaluate

    evaluated, exchanged = eval_methods_of("average")


@transform
class overwriting_average(Averager):
    """Keep a moving average of the parameters, and put it in their place every few steps.

    Update rule, with p the parameters after the inner update, from a = the parameters at `init`,
    and n = 0, 1, ... the number of earlier updates, divided by micro_steps and rounded down:

        a <- decay a + (1 - decay) p        (from_first_step: a <- p where n = 0)
        p <- a                              where `every` divides n + 1

    `eval_params(state, params)` returns a, which is what Keras puts in the place of the parameters
    after a training. Its updates must be applied unchanged: with `every`, a later part of a chain
    that changes them is refused. An inner optimizer that keeps copies of the parameters is told
    that they are overwritten. Every entry is averaged and overwritten, also in rows without a
    gradient, so that with `every` row-sparse updates are an error; a parameter whose gradient is
    None is left out.

    Args:
      inner: the optimizer.
      decay: how much of the average stays in a step, in [0, 1).
      every: the number of steps from one overwriting to the next, at least 1. Defaults to none.
      micro_steps: how many updates count as one step, at least 1: those that an inner `MultiSteps`
        accumulates. The average moves in each of them, as in Keras.
      from_first_step: whether the parameters at `init` are left out of the average, as in Keras 3;
        Keras 2 begins with them. Keyword-only.

    Raises:
      ValueError: at update, if no parameters are given.

    Reference: `use_ema`, `ema_momentum` and `ema_overwrite_frequency` of `keras.optimizers`.
    """

    inner: Any
    decay: Decay = 0.99
    every: PositiveInt | None = None
    micro_steps: PositiveInt = 1
    from_first_step: bool = field(default=True, kw_only=True)

    State = OverwritingAverageState

    @property
    def sets_params(self) -> bool:
        """Whether it overwrites."""
        return self.every is not None

    def init(self, params):
        """Return the inner state and a copy of the parameters."""
        return OverwritingAverageState(self.inner.init(params), zero_count(), copied_params(params))

    def counted(self, state: Any, extra: dict[str, Any]) -> Any:
        """Return the state after one more update."""
        return state._replace(num_updates=safe_increment(state.num_updates))

    def _steps(self, state: Any) -> Array:
        """Return the number of steps before the last update."""
        return jnp.maximum(state.num_updates - 1, 0) // self.micro_steps

    def rates(self, state: Any) -> dict[str, Rate]:
        """Return how far the average went in the last update."""
        _, share = decay_at(self.decay, state.num_updates)
        steps = self._steps(state)
        if self.from_first_step:
            share = jnp.where(steps == 0, jnp.ones_like(share), share)
        # Before the first update the average equals the parameters, and moves with them.
        share = jnp.where(state.num_updates == 0, jnp.ones_like(share), share)
        return {"average": (share, None)}

    def _is_due(self, state: Any) -> Array:
        every = 1 if self.every is None else self.every
        return (self._steps(state) + 1) % every == 0

    def update(self, updates, state, params=None, **extra):
        """Return the inner updates, or those that lead to the average, and the state with it."""
        inner_updates, state = super().update(updates, state, params, **extra)
        if self.every is None:
            return inner_updates, state
        if has_rows(inner_updates):
            raise TypeError(
                f"{name_of(self)}: with every={self.every!r} the average takes the place of all "
                "rows, which row-sparse updates cannot say; put densify() before the optimizer, or "
                "leave out every."
            )
        us, treedef = jax.tree.flatten(inner_updates)
        require_params(self, params)
        ps = align(self, inner_updates, treedef, params, "the parameters have").leaves
        averages = align(
            self, inner_updates, treedef, state.average, "the state's average has"
        ).leaves
        changed = engine.map_rows(_overwriting_update, [us, ps, averages], self._is_due(state))
        new = jax.tree.unflatten(treedef, changed)
        inner_state = told_change(self.inner, state.inner_state, params, inner_updates, new)
        return new, state._replace(inner_state=inner_state)

    def moved(self, state, old, new):
        """Return the state as if the last step had led to where something else has moved them."""
        state = check_state(self, state, OverwritingAverageState)
        return super().moved(state, old, new)
