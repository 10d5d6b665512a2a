"""Replicas that average their parameters every few steps."""

from dataclasses import field
from typing import Any, NamedTuple

import jax

from gradxform.base import transform
from gradxform.distributed.averaging.exchange import Exchanging, Meeting, is_multiple
from gradxform.distributed.wire import tree_mean
from gradxform.distributed.wire.axis import widen
from gradxform.distributed.wire.feedback import first_feedback
from gradxform.leaves.storage import is_stored
from gradxform.numerics import cast, safe_increment
from gradxform.slots import zero_count
from gradxform.transforms.evaluated import eval_methods_of
from gradxform.transforms.tree_rules import copied_params
from gradxform.types import (
    Array,
    DType,
    Everywhere,
    NonNegativeInt,
    Params,
    PositiveInt,
    PyTree,
    Slot,
)


class ModelAverageState(NamedTuple):
    """State of `model_average`. Per replica, except for the counts."""

    inner: Any  # per replica; the inner state
    schedule_step: Everywhere  # int32 scalar; steps since init
    global_step: Everywhere  # int32 scalar; averages so far
    center: Slot  # with keep_center: the last average, at least float32, the same on all; or None
    feedback: Any = None  # with `compress`: per replica, what is still to be sent; or None

    evaluated, exchanged = eval_methods_of("center")


@transform
class model_average(Exchanging):
    """Let every replica train by itself, and average the parameters every few steps.

    Update rule on replica i of N, with t = 1, 2, ... the number of steps:

        p_i <- p_i + inner(g_i)
        p_i <- (1/N) sum_j p_j     if t is a multiple of `period`, or t <= warmup

    With a warm-up this is post-local SGD. Each replica keeps an inner state of its own, as in
    TensorFlow, unless `average_state` averages them too. After an exchange all replicas have the
    same parameters. Between exchanges, evaluate and keep the last average, if `keep_center` keeps
    it: `eval_params(state)`.

    All replicas run one program, so a slow device still delays every exchange.

    Args:
      inner: the optimizer of every replica, ours or Optax's.
      axis: the name of the axis of replicas, or several.
      period: steps from one exchange to the next, at least 1. Keyword-only.
      warmup: number of first steps that all end in an exchange, at least 0. Keyword-only.
      average_state: whether to average the floating arrays of the inner state too. Keyword-only.
      keep_center: whether the state keeps the last average, as TensorFlow does. Keyword-only.
      inner_axes: names of bound axes along which all devices have the same parameters. Each device
        then sends only its slice along `axis`, and gathers the others along these. Keyword-only.
      wire_dtype: the dtype in which parameters travel; they are summed in float32. Defaults to that
        of each parameter. With one that is given, not parameters travel but their differences from
        the last average, which the state then keeps. Keyword-only.
      compress: a compression such as `int8()`, `sign()`, `top_k(0.01)` or `powersgd(4)`, for the
        differences from the last average, which the state then keeps. What it rounds away is sent
        at the next exchange. Keyword-only.

    Raises:
      ValueError: if both `wire_dtype` and `compress` are given; at init, if `wire_dtype` is wider
        than a parameter.
      AlreadyReducedError: at update, for gradients that are already summed over the replicas.
      NameError: at update, where the axis is not bound.

    Reference: `tf.contrib.opt.ModelAverageOptimizer`; McDonald et al., Distributed Training
    Strategies for the Structured Perceptron, 2010; Lin et al., Don't Use Large Mini-Batches, Use
    Local SGD, 2020, for the warm-up.
    """

    inner: Any
    axis: str | tuple[str, ...]
    period: PositiveInt = field(default=100, kw_only=True)
    warmup: NonNegativeInt = field(default=0, kw_only=True)
    average_state: bool = field(default=False, kw_only=True)
    keep_center: bool = field(default=False, kw_only=True)
    inner_axes: tuple[str, ...] = field(default=(), kw_only=True)
    wire_dtype: DType = field(default=None, kw_only=True)
    compress: Any = field(default=None, kw_only=True)

    State = ModelAverageState

    @property
    def moves_copies(self) -> bool:
        """Whether the copies are averaged too, as floating arrays of the inner state."""
        return self.average_state

    def init(self, params):
        """Return the inner state, counts of 0 and the parameters as the last average."""
        return ModelAverageState(
            self.inner.init(params),
            zero_count(),
            zero_count(),
            copied_params(params) if self._keeps_center else None,
            first_feedback(self, params, self.axis, self.inner_axes),
        )

    @property
    def _sends_differences(self) -> bool:
        return self.wire_dtype is not None or self.compress is not None

    @property
    def _keeps_center(self) -> bool:
        return self.keep_center or self._sends_differences

    def due(self, step: Array) -> Array:
        """Return whether replicas average after step number `step`."""
        return is_multiple(step, self.period) | (step <= self.warmup)

    def exchange(
        self,
        params: Params,
        state: ModelAverageState,
        meeting: Meeting,
        extra: dict[str, Any],
    ) -> tuple[Params, ModelAverageState]:
        """Return the average, and the state that counts it."""
        state = state._replace(global_step=safe_increment(state.global_step))
        if self._sends_differences:
            difference, feedback = self.mean_difference(
                params, state.center, state.feedback, meeting
            )
            center = jax.tree.map(lambda c, d: c + cast(d, c.dtype), state.center, difference)
            mean = jax.tree.map(lambda c, p: cast(c, p.dtype), center, params)
            state = state._replace(center=center, feedback=feedback)
        else:
            mean = self._mean(params, meeting)
            if self.keep_center:
                state = state._replace(center=jax.tree.map(widen, mean))
        if self.average_state:
            state = state._replace(inner=self._mean_state(state.inner, meeting))
        return mean, state

    def _mean(self, tree: PyTree, meeting: Meeting) -> PyTree:
        """Return the mean of what the replicas contribute."""
        ok, count = meeting.contributes, meeting.divisor(self.axis)
        return tree_mean(tree, self.axis, self.inner_axes, ok, count)

    def _mean_state(self, inner: Any, meeting: Meeting) -> Any:
        """Return the mean of inner states, whatever form keeps their arrays."""

        def is_loaded(x: Any) -> bool:  # means are averaged as they are: they may be of pieces
            return is_stored(x) and not x.needs_means

        loaded = jax.tree.map(lambda x: x.load() if is_loaded(x) else x, inner, is_leaf=is_loaded)
        mean = self._mean(loaded, meeting)
        return jax.tree.map(
            lambda x, new: x.store(new) if is_loaded(x) else new, inner, mean, is_leaf=is_loaded
        )
