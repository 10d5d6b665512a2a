"""Optimizing what replicas have done between two meetings: DiLoCo, SlowMo, BMUF, local SGD."""

from dataclasses import field
from typing import Any, NamedTuple

import jax
from jax import lax

from gradxform.apply import apply_updates
from gradxform.base import call_update, check_transform, transform
from gradxform.distributed.axis import as_varying, sliced_pmean
from gradxform.distributed.exchanging import Exchanging, is_multiple, wide, zero_step
from gradxform.errors import at_least, name_of
from gradxform.numerics import cast, safe_increment
from gradxform.transforms.momentum import trace
from gradxform.transforms.scaling import scale
from gradxform.transforms.shared import copied
from gradxform.types import Array, Everywhere, PyTree, Slot
from gradxform.wrappers.compose import chain


class OuterState(NamedTuple):
    """State of `outer`. Per replica, but for the counts."""

    inner: Any  # per replica; the inner state
    schedule_step: Everywhere  # int32 scalar; steps since init
    global_step: Everywhere  # int32 scalar; outer steps so far
    anchor: Slot  # where replicas last met, at least float32; the same on all replicas
    outer: Any  # the outer state; the same on all replicas


@transform
class outer(Exchanging):
    """Let every replica train by itself; every few steps an optimizer moves the point they left.

    Update rule on replica i of N, with x the anchor, where all replicas last met:

        v_i <- v_i + inner(g_i)
        every `period` steps:
            d = x - (1/N) sum_j v_j
            x <- x + outer_tx(d);  v_i <- x

    The mean difference d takes the place of a gradient. With `outer_tx = scale(-1.0)` this is
    `model_average`. The inner states stay each replica's own.

    With K fragments, each has its turn every `period` steps, the next one period / K steps later,
    so that the largest exchange is 1/K of the parameters (as far as leaves divide so). Every count
    in the outer state then counts exchanges of fragments.

    The anchor is what to evaluate and to keep: `eval_params(state)`.

    Args:
      inner: the optimizer of every replica, ours or Optax's.
      outer_tx: the optimizer of the anchor, such as `sgd(0.7, 0.9, nesterov=True)`.
      axis: the name of the axis of replicas.
      period: steps from one exchange to the next, at least 1. Keyword-only.
      warmup: how many first steps all end in an exchange, at least 0. Keyword-only.
      fragments: K, at least 1, a divisor of the period. Keyword-only.
      inner_axes: names of bound axes along which all devices have the same parameters: each then
        sends only its slice along `axis`, and gathers the others along these. Keyword-only.

    Raises:
      ValueError: if the fragments do not divide the period, or there is a warm-up with fragments.
      AlreadyReducedError: at update, for gradients that were summed over the replicas before.
      NameError: at update, where the axis is not bound.

    Reference: Douillard et al., DiLoCo: Distributed Low-Communication Training of Language Models,
    2023, Algorithm 1; Douillard et al., Streaming DiLoCo with Overlapping Communication, 2025,
    section 2.2, for the fragments.
    """

    inner: Any
    outer_tx: Any
    axis: str
    period: int = field(default=100, kw_only=True)
    warmup: int = field(default=0, kw_only=True)
    fragments: int = field(default=1, kw_only=True)
    inner_axes: tuple[str, ...] = field(default=(), kw_only=True)

    state_kind = OuterState

    def __post_init__(self):
        super().__post_init__()
        check_transform(self, self.outer_tx, "outer_tx")
        at_least(self, 1, "period", "fragments")
        at_least(self, 0, "warmup")
        if self.period % self.fragments:
            raise ValueError(
                f"{name_of(self)}: fragments must divide period, {self.period}, got "
                f"{self.fragments}."
            )
        if self.warmup and self.fragments > 1:
            raise ValueError(
                f"{name_of(self)}: warmup={self.warmup} needs fragments=1, got {self.fragments}: "
                "one fragment after the other is no exchange at every step."
            )

    def init(self, params):
        """Return the states, counts of 0 and the parameters as the anchor."""
        return OuterState(
            self.inner.init(params),
            zero_step(),
            zero_step(),
            copied(params),
            self.outer_tx.init(copied(params)),
        )

    def due(self, step: Array) -> Array:
        """Return whether replicas exchange after that many steps."""
        return is_multiple(step, self.period // self.fragments) | (step <= self.warmup)

    def exchange(self, params, state, extra):
        """Return the anchor after its step."""
        if self.fragments == 1:
            every = list(range(len(jax.tree.leaves(params))))
            return self._met(every, params, state)
        groups = _groups(jax.tree.leaves(params), self.fragments)
        turn = (state.schedule_step // (self.period // self.fragments) - 1) % self.fragments

        def one(group):
            return lambda params, state: self._varying(self._met(group, params, state))

        return lax.switch(turn, [one(group) for group in groups], params, state)

    def _met(self, group: list[int], params: PyTree, state: OuterState) -> tuple[PyTree, Any]:
        """Return what an exchange of the leaves in `group` makes of parameters and state."""
        vs, treedef = jax.tree.flatten(params)
        anchors = jax.tree.leaves(state.anchor)
        apart: list[Any] = [None] * len(vs)
        for i in group:
            mean = sliced_pmean(wide(vs[i]), self.axis, self.inner_axes)
            apart[i] = anchors[i] - cast(mean, anchors[i].dtype)
        grads = as_varying(jax.tree.unflatten(treedef, apart), self.axis)
        u, outer_state = call_update(self.outer_tx, grads, state.outer, state.anchor, {})
        anchor = apply_updates(state.anchor, u)
        moved = jax.tree.leaves(anchor)
        out = [cast(moved[i], v.dtype) if i in group else v for i, v in enumerate(vs)]
        return jax.tree.unflatten(treedef, out), state._replace(
            global_step=safe_increment(state.global_step), anchor=anchor, outer=outer_state
        )


def _groups(leaves: list[Any], k: int) -> list[list[int]]:
    """Divide the leaves into k groups of about equal bytes, the largest leaves first."""
    groups: list[list[int]] = [[] for _ in range(k)]
    loads = [0] * k
    for i in sorted(range(len(leaves)), key=lambda i: -leaves[i].size * leaves[i].dtype.itemsize):
        least = loads.index(min(loads))
        groups[least].append(i)
        loads[least] += leaves[i].size * leaves[i].dtype.itemsize
    return groups


def diloco(
    inner: Any,
    axis: str,
    *,
    period: int = 500,
    outer_learning_rate: float = 0.7,
    outer_momentum: float = 0.9,
    fragments: int = 1,
    inner_axes: tuple[str, ...] = (),
) -> outer:
    """Return `outer` with Nesterov momentum: DiLoCo, or Streaming DiLoCo's fragments.

    Args:
      inner: the optimizer of every replica; in the paper AdamW.
      axis: the name of the axis of replicas.
      period: steps from one exchange to the next, H in the paper, at least 1.
      outer_learning_rate: at least 0.
      outer_momentum: in [0, 1].
      fragments: in how many pieces the parameters are exchanged.
      inner_axes: see `outer`.

    Reference: Douillard et al., DiLoCo: Distributed Low-Communication Training of Language Models,
    2023, Algorithm 1 and section 3.
    """
    tx = chain(trace(outer_momentum, nesterov=True), scale(-outer_learning_rate))
    return outer(inner, tx, axis, period=period, fragments=fragments, inner_axes=inner_axes)


def slowmo(
    inner: Any,
    axis: str,
    *,
    period: int = 12,
    slow_learning_rate: float = 1.0,
    slow_momentum: float = 0.5,
    inner_axes: tuple[str, ...] = (),
) -> outer:
    """Return `outer` with momentum: SlowMo.

    The paper divides the difference by the inner learning rate and multiplies the step by it; with
    a constant inner learning rate both cancel, and are left out.

    Args:
      inner: the optimizer of every replica.
      axis: the name of the axis of replicas.
      period: steps from one exchange to the next, tau in the paper, at least 1.
      slow_learning_rate: alpha, at least 0.
      slow_momentum: beta, in [0, 1].
      inner_axes: see `outer`.

    Reference: Wang et al., SlowMo: Improving Communication-Efficient Distributed SGD with Slow
    Momentum, 2020, Algorithm 1.
    """
    tx = chain(trace(slow_momentum), scale(-slow_learning_rate))
    return outer(inner, tx, axis, period=period, inner_axes=inner_axes)


def bmuf(
    inner: Any,
    axis: str,
    *,
    period: int = 100,
    block_learning_rate: float = 1.0,
    block_momentum: float = 0.9,
    nesterov: bool = False,
    inner_axes: tuple[str, ...] = (),
) -> outer:
    """Return `outer` with momentum on blocks: blockwise model-update filtering.

    Args:
      inner: the optimizer of every replica.
      axis: the name of the axis of replicas.
      period: steps of a block, at least 1.
      block_learning_rate: zeta, at least 0; it goes into the momentum.
      block_momentum: eta, in [0, 1]; the paper takes 1 - 1/N for N replicas.
      nesterov: whether a block starts one momentum step ahead (the paper's NBM, else CBM).
      inner_axes: see `outer`.

    Reference: Chen and Huo, Scalable Training of Deep Learning Machines by Incremental Block
    Training with Intra-Block Parallel Optimization and Blockwise Model-Update Filtering, 2016,
    equations (4) to (8).
    """
    tx = chain(scale(-block_learning_rate), trace(block_momentum, nesterov=nesterov))
    return outer(inner, tx, axis, period=period, inner_axes=inner_axes)


def post_local_sgd(
    inner: Any,
    axis: str,
    *,
    period: int = 16,
    warmup: int = 0,
    inner_axes: tuple[str, ...] = (),
) -> outer:
    """Return `outer` with plain averages, at every step until the warm-up ends, then every period.

    Args:
      inner: the optimizer of every replica.
      axis: the name of the axis of replicas.
      period: steps from one exchange to the next after the warm-up, at least 1.
      warmup: how many first steps all end in an exchange, at least 0.
      inner_axes: see `outer`.

    Reference: Lin et al., Don't Use Large Mini-Batches, Use Local SGD, 2020, Algorithm 2.
    """
    return outer(inner, scale(-1.0), axis, period=period, warmup=warmup, inner_axes=inner_axes)
