"""Replicas that are tied to a center: elastic averaging and accumulated gradients."""

import typing
from dataclasses import field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from gradxform import engine
from gradxform.base import call_update, transform
from gradxform.distributed.averaging.exchange import (
    Exchanging,
    Meeting,
    difference_from_center,
    is_multiple,
)
from gradxform.distributed.wire.axis import Axes, as_varying, axis_names, size_of, widen
from gradxform.distributed.wire.bits import from_bits, to_bits
from gradxform.distributed.wire.feedback import first_feedback, summed_with_feedback
from gradxform.errors import name_of, require_one_of
from gradxform.leaves import align, align_slot
from gradxform.numerics import cast, is_zero
from gradxform.slots import zero_count, zeros_like
from gradxform.transforms.evaluated import eval_methods_of
from gradxform.transforms.tree_rules import copied_params
from gradxform.tree.apply import apply_updates
from gradxform.types import (
    Array,
    Bound,
    Choice,
    DType,
    Everywhere,
    Limit,
    Params,
    PositiveInt,
    PyTree,
    Scalar,
    Slot,
    UnitInterval,
    Updates,
)

ORDERS = ("simultaneous", "sequential")


def _check_order(part: Any) -> None:
    """Require what changes the bytes of an exchange not to meet an order that gathers all."""
    for name in ("inner_axes", "wire_dtype", "compress"):
        if part.order == "sequential" and getattr(part, name):
            raise ValueError(
                f"{name_of(part)}: {name} is for exchanges in which replicas take part at once; "
                f"order='sequential' gathers what each of them has. Leave {name} out."
            )


def _gather_replicas(tree: PyTree, axis: Axes) -> PyTree:
    """Return the trees of all replicas, stacked along a new leading axis."""

    def gather(x: Array) -> Array:
        every = lax.all_gather(as_varying(to_bits(x), axis), axis_names(axis))
        return from_bits(every, x.dtype)

    return jax.tree.map(gather, tree)


def _add_scaled(a: Array, b: Array, factor: Scalar) -> Array:
    """Return a + factor b in the dtype of `a`, formed in float32 or wider."""
    wide = widen(a)
    return cast(wide + jnp.asarray(factor, wide.dtype) * cast(b, wide.dtype), a.dtype)


def _tree_add_scaled(a: PyTree, b: PyTree, factor: Scalar) -> PyTree:
    return jax.tree.map(lambda x, y: _add_scaled(x, y, factor), a, b)


def _pull(g: Array, v: Array, center: Array, rho: Scalar) -> Array:
    """Return the gradient plus rho times the distance from the center, in the dtype of `g`."""
    return _add_scaled(g, difference_from_center(v, center), rho)


def _own_part(tree: PyTree, axis: Axes) -> PyTree:
    """Return this replica's part of a tree that is stacked along an axis of replicas."""
    index = lax.axis_index(axis_names(axis))
    return jax.tree.map(lambda x: lax.dynamic_index_in_dim(x, index, 0, False), tree)


class ElasticAverageState(NamedTuple):
    """State of `elastic_average`. Per replica, except for the counts."""

    inner: Any  # per replica; the inner state
    schedule_step: Everywhere  # int32 scalar; steps since init
    global_step: Everywhere  # int32 scalar; exchanges so far, N at a time
    center: Slot  # the center c, at least float32; the same on all replicas
    local_center: Slot  # the center l that this replica saw last, at least float32
    feedback: Any = None  # with `compress`: per replica, what is still to be sent; or None

    evaluated, exchanged = eval_methods_of("center")


@transform
class elastic_average(Exchanging):
    """Let every replica train by itself, with an elastic pull towards a common center.

    Update rule on replica i of N, with a = moving_rate, and l_i the center that it saw last:

        v_i <- v_i + inner(g_i + rho (v_i - l_i))
        every `period` steps:
            l_i <- c;  d = v_i - c;  v_i <- v_i - a d;  c <- c + a d

    With "simultaneous", all replicas see the same c, and c moves by a times the sum of all d. With
    "sequential", they take turns, as TensorFlow's workers do when they arrive in order. Use it for
    comparisons only, because it gathers the parameters of all replicas. In both orders an exchange
    waits for the slowest device, because all replicas run one program.
    `gradxform.distributed.center` is asynchronous.

    Evaluate and keep the center: `eval_params(state)`.

    Args:
      inner: the optimizer of every replica, ours or Optax's.
      axis: the name of the axis of replicas, or several.
      period: steps from one exchange to the next, at least 1. Keyword-only.
      moving_rate: a, in [0, 1]. Defaults to 0.9 / period / N. Keyword-only.
      rho: the weight of the elastic term in the gradient, at least 0. Defaults to
        moving_rate / learning_rate, as in TensorFlow. The paper's rule has rho = 0: there, only the
        exchange pulls. Keyword-only.
      learning_rate: the divisor in the default of rho, greater than 0. Keyword-only.
      order: "simultaneous" or "sequential". Keyword-only.
      inner_axes: names of bound axes along which all devices have the same parameters. Each device
        then sends only its slice along `axis`, and gathers the others along these. Keyword-only.
      wire_dtype: the dtype in which the distances d travel; they are summed in float32. Defaults to
        that of each parameter. Keyword-only.
      compress: a compression such as `int8()`, `sign()`, `top_k(0.01)` or `powersgd(4)`, for what
        travels. What it rounds away is sent at the next exchange. Keyword-only.

    Raises:
      ValueError: if neither rho nor learning_rate is given.
      AlreadyReducedError: at update, for gradients that are already summed over the replicas.
      NameError: at update, where the axis is not bound.

    Reference: Zhang et al., Deep Learning with Elastic Averaging SGD, 2015, equations (2) and (3)
    and Algorithm 1; `tf.contrib.opt.ElasticAverageOptimizer` for rho.
    """

    inner: Any
    axis: str | tuple[str, ...]
    period: PositiveInt = field(default=10, kw_only=True)
    moving_rate: UnitInterval | None = field(default=None, kw_only=True)
    rho: Limit | None = field(default=None, kw_only=True)
    learning_rate: Bound | None = field(default=None, kw_only=True)
    order: Choice = field(default="simultaneous", kw_only=True)
    inner_axes: tuple[str, ...] = field(default=(), kw_only=True)
    wire_dtype: DType = field(default=None, kw_only=True)
    compress: Any = field(default=None, kw_only=True)

    State = ElasticAverageState
    undoes_moves = True  # pulls towards its center

    def __post_init__(self) -> None:
        super().__post_init__()
        require_one_of(self, "order", ORDERS)
        _check_order(self)
        if self.rho is None and self.learning_rate is None:
            raise ValueError(
                f"{name_of(self)}: rho must be given, or learning_rate for the default, "
                "rho = moving_rate / learning_rate. rho=0 is the paper's rule."
            )

    def init(self, params):
        """Return the inner state, counts of 0 and the parameters as the center."""
        return ElasticAverageState(
            self.inner.init(params),
            zero_count(),
            zero_count(),
            copied_params(params),
            copied_params(params),
            first_feedback(self, params, self.axis, self.inner_axes),
        )

    def due(self, step: Array) -> Array:
        """Return whether replicas exchange after step number `step`."""
        return is_multiple(step, self.period)

    def _rate(self) -> float:
        if self.moving_rate is not None:
            return self.moving_rate
        return 0.9 / self.period / size_of(self.axis)

    def gradient(self, updates: Updates, state: ElasticAverageState, params: Params) -> Updates:
        """Return the gradient with the pull towards the center."""
        rho = self.rho
        if rho is None:
            rho = self._rate() / typing.cast(float, self.learning_rate)
        if is_zero(rho):
            return updates
        engine.refuse_rows(self, updates, "pulls every row towards the center with rho > 0")
        gs, treedef = jax.tree.flatten(updates)
        ps = align(self, updates, treedef, params, "the parameters have").leaves
        what = "the state's local_center has"
        centers = align(self, updates, treedef, state.local_center, what).leaves
        pulled = engine.map_rows(_pull, [gs, ps, centers], rho)
        return jax.tree.unflatten(treedef, pulled)

    def exchange(
        self,
        params: Params,
        state: ElasticAverageState,
        meeting: Meeting,
        extra: dict[str, Any],
    ) -> tuple[Params, ElasticAverageState]:
        """Return the parameters pulled towards the center, and the center towards all of them."""
        rate = self._rate()
        if self.order == "sequential":
            meeting.require_all(self)
            local_center, center = self._take_turns(params, state.center, rate)
            distances = jax.tree.map(difference_from_center, params, local_center)
        else:
            local_center = state.center
            distances = jax.tree.map(difference_from_center, params, local_center)
            mean, feedback = self.mean_difference(params, state.center, state.feedback, meeting)
            count = jnp.asarray(meeting.count(self.axis), jnp.float32)
            center = _tree_add_scaled(state.center, mean, rate * count)
            state = state._replace(feedback=feedback)
        return _tree_add_scaled(params, distances, -rate), state._replace(
            global_step=state.global_step + size_of(self.axis),
            center=center,
            local_center=local_center,
        )

    def _take_turns(self, params: Params, center: PyTree, rate: float) -> tuple[PyTree, PyTree]:
        """Return the center that this replica sees in its turn, and the center after all turns."""

        def turn(c: PyTree, v: PyTree) -> tuple[PyTree, PyTree]:
            return _tree_add_scaled(c, jax.tree.map(difference_from_center, v, c), rate), c

        start = as_varying(center, self.axis)
        last, before_turns = lax.scan(turn, start, _gather_replicas(params, self.axis))
        return _own_part(before_turns, self.axis), last


class AgnState(NamedTuple):
    """State of `agn`. Per replica, except for the counts."""

    inner: Any  # per replica; the inner state for the replica's own steps
    schedule_step: Everywhere  # int32 scalar; steps since init
    global_step: Everywhere  # int32 scalar; steps of the center so far
    center: Slot  # the center c, at least float32; the same on all replicas
    center_inner: Any  # the inner state for the center; the same on all replicas
    acc: Slot  # per replica, at least float32; the sum of the gradients since the last exchange
    feedback: Any = None  # with `compress`: per replica, what is still to be sent; or None

    evaluated, exchanged = eval_methods_of("center")


@transform
class agn(Exchanging):
    """Accumulate gradients, and step a common center along their mean every few steps (AGN).

    Update rule on replica i, with A_i the sum of its gradients since the last exchange:

        v_i <- v_i + inner(g_i);  A_i <- A_i + g_i
        every `period` steps:
            c <- c + inner_c(A_i / period);  v_i <- c;  A_i <- 0

    With "mean", the center takes one step along the mean over all replicas. With "sequential", it
    takes one step for each replica in turn, and a replica continues from the center after its own
    turn, as TensorFlow's workers do when they arrive in order. This gathers the gradients of all
    replicas. The center and the replicas have separate states, but they share every `count` in the
    inner states, so that a step of the center also counts as a step of the replica. TensorFlow's
    worker likewise keeps one set of Adam's powers for both.

    Evaluate and keep the center: `eval_params(state)`.

    Args:
      inner: the optimizer of the replicas and of the center, ours or Optax's.
      axis: the name of the axis of replicas, or several.
      period: steps from one exchange to the next, at least 1. Keyword-only.
      order: "mean" or "sequential". Keyword-only.
      inner_axes: as for `elastic_average`. Keyword-only.
      wire_dtype: the dtype in which A_i / period travels; it is summed in float32. Defaults to that
        of each parameter. Keyword-only.
      compress: a compression such as `int8()`, `sign()`, `top_k(0.01)` or `powersgd(4)`, for what
        travels. What it rounds away is sent at the next exchange. Keyword-only.

    Raises:
      AlreadyReducedError: at update, for gradients that are already summed over the replicas.
      NameError: at update, where the axis is not bound.

    Reference: Hermans et al., Accumulated Gradient Normalization, 2017, Algorithm 2;
    `tf.contrib.opt.AGNOptimizer`.
    """

    inner: Any
    axis: str | tuple[str, ...]
    period: PositiveInt = field(default=10, kw_only=True)
    order: Choice = field(default="mean", kw_only=True)
    inner_axes: tuple[str, ...] = field(default=(), kw_only=True)
    wire_dtype: DType = field(default=None, kw_only=True)
    compress: Any = field(default=None, kw_only=True)

    State = AgnState
    undoes_moves = True  # goes to its center

    def __post_init__(self) -> None:
        super().__post_init__()
        require_one_of(self, "order", ("mean", "sequential"))
        _check_order(self)

    def init(self, params):
        """Return the inner states, counts of 0, the parameters as the center, and sums of 0."""
        return AgnState(
            self.inner.init(params),
            zero_count(),
            zero_count(),
            copied_params(params),
            self.inner.init(copied_params(params)),
            zeros_like(params),
            first_feedback(self, params, self.axis, self.inner_axes),
        )

    def due(self, step: Array) -> Array:
        """Return whether the center steps after step number `step`."""
        return is_multiple(step, self.period)

    def stepped(self, updates: Updates, state: AgnState) -> AgnState:
        """Return the state with the gradient added to the sum."""
        engine.refuse_rows(self, updates, "adds gradients up in arrays")
        treedef = jax.tree.structure(updates)
        accs = align_slot(self, updates, treedef, state, "acc")
        sums = engine.map_rows(_add_scaled, [accs.leaves, jax.tree.leaves(updates)], 1.0)
        return state._replace(acc=accs.rebuilt(sums))

    def exchange(
        self, params: Params, state: AgnState, meeting: Meeting, extra: dict[str, Any]
    ) -> tuple[Params, AgnState]:
        """Return the center after its step, and the state with the sums at 0."""
        mean = jax.tree.map(lambda a: a / jnp.asarray(self.period, a.dtype), state.acc)
        sums, treedef = jax.tree.flatten(mean)

        def step(carry: tuple[PyTree, Any], g: PyTree) -> tuple[tuple[PyTree, Any], PyTree]:
            center, inner = carry
            u, inner = call_update(
                self.inner, g, _state_with_counts(inner, state.inner), center, extra
            )
            center = apply_updates(center, u)
            return (center, inner), center

        start = as_varying((state.center, state.center_inner), self.axis)
        if self.order == "sequential":
            meeting.require_all(self)
            outgoing = [cast(x, dtype) for x, dtype in zip(sums, meeting.dtypes, strict=True)]
            every = jax.tree.map(widen, _gather_replicas(treedef.unflatten(outgoing), self.axis))
            (center, inner), after_turns = lax.scan(step, start, every)
            params_after = _own_part(after_turns, self.axis)
            steps = size_of(self.axis)
        else:
            how = {"ok": meeting.contributes, "divisor": meeting.divisor(self.axis)}
            sums, feedback = summed_with_feedback(
                self, mean, sums, meeting.dtypes, state.feedback, **how
            )
            mean = as_varying(treedef.unflatten(sums), self.axis)
            (center, inner), params_after = step(start, mean)
            steps, state = 1, state._replace(feedback=feedback)
        new_params = jax.tree.map(lambda c, p: cast(c, p.dtype), params_after, params)
        return new_params, state._replace(
            inner=_state_with_counts(state.inner, inner),
            global_step=state.global_step + steps,
            center=center,
            center_inner=inner,
            acc=jax.tree.map(jnp.zeros_like, state.acc),
        )


def _state_with_counts(state: Any, other: Any) -> Any:
    """Return `state` with every `count` in its NamedTuples copied from `other`."""
    if isinstance(state, dict):
        return type(state)((k, _state_with_counts(v, other[k])) for k, v in state.items())
    names = getattr(state, "_fields", None)
    if names is not None:
        pairs = zip(names, state, other, strict=True)
        fields = {k: b if k == "count" else _state_with_counts(a, b) for k, a, b in pairs}
        return type(state)(**fields)
    if isinstance(state, tuple | list):
        return type(state)(_state_with_counts(a, b) for a, b in zip(state, other, strict=True))
    return state
