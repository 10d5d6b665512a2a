"""Optimizing the mean movement of replicas between exchanges."""

import functools
from collections.abc import Callable
from dataclasses import field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from gradxform.base import call_update, check_transform, locality_of, transform
from gradxform.distributed.averaging.exchange import Change, Exchanging, Meeting, is_multiple
from gradxform.distributed.shares import Shares
from gradxform.distributed.shares.fragments import Fragments
from gradxform.distributed.wire.axis import as_varying, check_bound, widen
from gradxform.distributed.wire.feedback import first_feedback
from gradxform.distributed.wire.powersgd import powersgd
from gradxform.distributed.wire.traps import require_alike
from gradxform.errors import name_of, shown
from gradxform.leaves import align, dtype_of, path_at
from gradxform.numerics import at_least_float32, cast, is_zero, safe_increment
from gradxform.slots import zero_count
from gradxform.transforms.evaluated import eval_methods_of
from gradxform.transforms.tree_rules import copied_params
from gradxform.tree.apply import apply_updates
from gradxform.types import (
    Array,
    DType,
    Everywhere,
    NonNegativeInt,
    Params,
    PositiveInt,
    PyTree,
    Slot,
    UnitInterval,
)


class OuterState(NamedTuple):
    """State of `outer`. Per replica, except for the counts."""

    inner: Any  # per replica; the inner state
    schedule_step: Everywhere  # int32 scalar; steps since init
    global_step: Everywhere  # int32 scalar; outer steps so far
    anchor: Slot  # where replicas met last, at least float32; the same on all replicas. With
    # `shard_anchor`, it and all below are this device's parts
    outer: Any  # the outer state; the same on all replicas
    pending: Slot  # with a delay: the differences d that wait, the same on all replicas; or None
    feedback: Any = None  # with `compress`: per replica, what is still to be sent; or None

    evaluated, exchanged = eval_methods_of("anchor")


@transform
class outer(Exchanging):
    """Let every replica train by itself; every few steps an outer optimizer moves their anchor.

    Update rule on replica i of N, with x the anchor, the point where all replicas met last:

        v_i <- v_i + inner(g_i)
        every `period` steps:
            d = x - (1/N) sum_j v_j
            x <- x + outer_optimizer(d);  v_i <- x

    The outer optimizer takes the mean difference d for a gradient. With
    `outer_optimizer = scale(-1.0)` this is `model_average`. Each replica keeps its own inner state.

    With K fragments, each fragment is exchanged every `period` steps, period / K steps after the
    one before it. Leaves that are too large for a fragment are cut along their first axis, where
    the outer optimizer acts on entries or rows, so that the largest exchange is about 1/K of the
    parameters. The outer state then has a tuple of pieces in the place of such a leaf, and every
    count in it counts exchanges of fragments.

    With a delay of tau steps, d is formed at an exchange and waits for tau steps, while the
    replicas continue. Then

        x <- x + outer_optimizer(d);  v_i <- blend v_i + (1 - blend) x

    The sum is therefore not needed at once. The compiler decides whether it overlaps with
    computation: it can if several steps are one program without conditions, with `sync` and `land`
    as True or False. It cannot where `lax.cond` follows the schedule, or if each step is a program
    that waits for the step before.

    Evaluate and keep the anchor: `eval_params(state)`.

    Args:
      inner: the optimizer of every replica, ours or Optax's.
      outer_optimizer: the optimizer of the anchor, such as `sgd(0.7, 0.9, nesterov=True)`.
      axis: the name of the axis of replicas, or several.
      period: steps from one exchange to the next, at least 1. Keyword-only.
      warmup: number of first steps that all end in an exchange, at least 0. Keyword-only.
      fragments: K, at least 1, a divisor of the period. Keyword-only.
      delay: tau, at least 0 and less than period / K. More than 0 costs another copy of the
        parameters. With `sync`, which must then agree with the schedule, `land` is True `delay`
        steps after an exchange and False elsewhere, or else depends on a condition. Keyword-only.
      blend: the weight of a replica's own parameters after a delay, in [0, 1]. Keyword-only.
      inner_axes: names of bound axes along which all devices have the same parameters. Each device
        then sends only its slice along `axis`, and gathers the others along these. Keyword-only.
      shard_anchor: whether each device along `inner_axes` keeps only its part of the anchor, of the
        outer state and of differences that wait. An exchange then ends by gathering the parameters
        along `inner_axes`. The outer optimizer must act on entries. Keyword-only.
      wire_dtype: the dtype in which the replicas' differences from the anchor travel; they are
        summed in float32. Defaults to that of each parameter. Keyword-only.
      compress: a compression such as `int8()`, `sign()`, `top_k(0.01)` or `powersgd(4)`, for what
        travels. What it rounds away is sent at the next exchange. Keyword-only.

    Raises:
      ValueError: if the fragments do not divide the period, the delay is as long as the period, a
        warm-up is combined with fragments or a delay, a blend is given without a delay, both
        `wire_dtype` and `compress` are, or `shard_anchor` is without `inner_axes`, with
        `powersgd`, or with an outer optimizer that looks further than an entry.
      AlreadyReducedError: at update, for gradients that are already summed over the replicas.
      NameError: at update, where the axis is not bound.

    Reference: Douillard et al., DiLoCo: Distributed Low-Communication Training of Language Models,
    2023, Algorithm 1; Douillard et al., Streaming DiLoCo with Overlapping Communication, 2025,
    sections 2.2 and 2.3, for the fragments, the delay (tau) and the blend (alpha).
    """

    inner: Any
    outer_optimizer: Any
    axis: str | tuple[str, ...]
    period: PositiveInt = field(default=100, kw_only=True)
    warmup: NonNegativeInt = field(default=0, kw_only=True)
    fragments: PositiveInt = field(default=1, kw_only=True)
    delay: NonNegativeInt = field(default=0, kw_only=True)
    blend: UnitInterval = field(default=0.0, kw_only=True)
    inner_axes: tuple[str, ...] = field(default=(), kw_only=True)
    shard_anchor: bool = field(default=False, kw_only=True)
    wire_dtype: DType = field(default=None, kw_only=True)
    compress: Any = field(default=None, kw_only=True)

    State = OuterState
    undoes_moves = True  # continues from its anchor

    def __post_init__(self) -> None:
        super().__post_init__()
        check_transform(self, self.outer_optimizer, "outer_optimizer")
        if self.period % self.fragments:
            raise ValueError(
                f"{name_of(self)}: fragments must divide period, {self.period}, got "
                f"{self.fragments}."
            )
        if self.warmup and self.fragments > 1:
            raise ValueError(
                f"{name_of(self)}: warmup={self.warmup} needs fragments=1, got {self.fragments}: "
                "fragments take turns, so not every step exchanges all parameters."
            )
        if self.delay and (self.warmup or self.delay >= self._interval):
            raise ValueError(
                f"{name_of(self)}: delay must be less than the {self._interval} steps from one "
                f"exchange to the next, and 0 with a warmup, got {self.delay}."
            )
        if not is_zero(self.blend) and not self.delay:
            raise ValueError(f"{name_of(self)}: blend={shown(self.blend)} needs a delay, got 0.")
        self._check_shares()

    def _check_shares(self) -> None:
        """Require an anchor that can be divided, where `shard_anchor` asks for it."""
        if not self.shard_anchor:
            return
        if not self.inner_axes:
            raise ValueError(
                f"{name_of(self)}: shard_anchor=True divides the anchor over inner_axes; name "
                "them, or leave shard_anchor out."
            )
        if isinstance(self.compress, powersgd):
            raise ValueError(
                f"{name_of(self)}: {shown(self.compress)} needs whole matrices, which no device "
                "has with shard_anchor=True; use int8(), sign() or top_k(...), or leave "
                "shard_anchor out."
            )
        if locality_of(self.outer_optimizer) != "entry":
            raise ValueError(
                f"{name_of(self)}: shard_anchor=True needs an outer_optimizer that acts on each "
                f"entry alone, such as sgd(0.7, 0.9, nesterov=True); "
                f"{name_of(self.outer_optimizer)} looks at more."
            )

    @property
    def _shared_by(self) -> tuple[str, ...]:
        """The axes along which devices divide the anchor."""
        return self.inner_axes if self.shard_anchor else ()

    @property
    def divides(self) -> tuple[str, ...]:
        """The axes along which the devices of a replica have different states."""
        return self._shared_by or super().divides

    @property
    def _interval(self) -> int:
        """The number of steps from one exchange, of any fragment, to the next."""
        return self.period // self.fragments

    def _pieces(self, params: Params) -> Fragments:
        """Return how the parameters, or the anchor, are divided into fragments."""
        leaves = [
            jax.ShapeDtypeStruct(jnp.shape(p), at_least_float32(dtype_of(p)))
            for p in jax.tree.leaves(params)
        ]
        return Fragments(leaves, self.fragments, locality_of(self.outer_optimizer))

    def init(self, params):
        """Return the states, counts of 0 and the parameters as the anchor."""
        check_bound(self, self._shared_by)
        pieces = self._pieces(params)
        shares = Shares(params, self._shared_by, pieces)
        parts = shares.own(params)
        waits = (
            jax.tree.map(jnp.zeros_like, pieces.split(copied_params(parts))) if self.delay else None
        )
        feedback = first_feedback(
            self, pieces.split(parts), self.axis, self.inner_axes, shares.slices()
        )
        return OuterState(
            self.inner.init(params),
            zero_count(),
            zero_count(),
            copied_params(parts),
            self.outer_optimizer.init(pieces.split(copied_params(parts))),
            waits,
            feedback,
        )

    def due(self, step: Array) -> Array:
        """Return whether replicas exchange after step number `step`."""
        return is_multiple(step, self._interval) | (step <= self.warmup)

    def exchange(
        self, params: Params, state: OuterState, meeting: Meeting, extra: dict[str, Any]
    ) -> tuple[Params, OuterState]:
        """Return the anchor after its step; with a delay, note the differences for that step."""
        exchange = functools.partial(self._exchange_fragment, meeting=meeting)
        return self._change_fragment(exchange, state.schedule_step, params, state)

    def lands(self, step: Array) -> Array | bool:
        """Return whether the anchor steps after step number `step`, `delay` after an exchange."""
        if not self.delay:
            return False
        return is_multiple(step - self.delay, self._interval) & (step > self.delay)

    def land(self, params: Params, state: OuterState) -> tuple[Params, OuterState]:
        """Return the replica blended with the anchor, and the anchor after its step."""
        step = state.schedule_step - self.delay
        return self._change_fragment(self._step_fragment, step, params, state)

    def _change_fragment(
        self,
        change: Callable[[Fragments, int, Params, OuterState], tuple[Params, OuterState]],
        step: Array,
        params: Params,
        state: OuterState,
    ) -> tuple[Params, OuterState]:
        """Apply `change` to the fragment whose turn it is at that step."""
        pieces = self._pieces(params)
        if self.fragments == 1:
            return change(pieces, 0, params, state)
        turn = require_alike(self, (step // self._interval - 1) % self.fragments)

        def change_one(fragment: int) -> Change:
            return lambda params, state: self._varying(change(pieces, fragment, params, state))

        return lax.switch(turn, [change_one(i) for i in range(self.fragments)], params, state)

    def _exchange_fragment(
        self,
        pieces: Fragments,
        fragment: int,
        params: Params,
        state: OuterState,
        meeting: Meeting,
    ) -> tuple[Params, OuterState]:
        """Return parameters and state after an exchange of one fragment."""
        shares = Shares(params, self._shared_by, pieces)
        parts = self._checked(shares.own(params), state)
        some, anchor = (pieces.split(tree, fragment) for tree in (parts, state.anchor))
        meeting = meeting._replace(
            dtypes=pieces.dtypes(meeting.dtypes, fragment), slices=shares.slices(fragment)
        )
        progress, feedback = self.mean_difference(some, anchor, state.feedback, meeting)
        differences = jax.tree.map(jnp.negative, progress)
        state = state._replace(feedback=feedback)
        if not self.delay:
            return self._outer_step(pieces, fragment, differences, params, state)
        waits = jax.tree.map(
            lambda old, new: old if new is None else new,
            state.pending,
            differences,
            is_leaf=_is_none,
        )
        return params, state._replace(pending=waits)

    def _step_fragment(
        self, pieces: Fragments, fragment: int, params: Params, state: OuterState
    ) -> tuple[Params, OuterState]:
        """Return parameters and state after the outer step of a fragment that was exchanged."""
        some = pieces.split(state.anchor, fragment)
        differences = jax.tree.map(
            lambda x, d: None if x is None else d, some, state.pending, is_leaf=_is_none
        )
        return self._outer_step(pieces, fragment, differences, params, state)

    def _outer_step(
        self,
        pieces: Fragments,
        fragment: int,
        differences: PyTree,
        params: Params,
        state: OuterState,
    ) -> tuple[Params, OuterState]:
        """Return parameters and state after an outer step along the differences of a fragment."""
        shares = Shares(params, self._shared_by, pieces)
        vs, xs = (pieces.split(x, fragment) for x in (shares.own(params), state.anchor))
        grads = as_varying(differences, self.axis)
        u, outer_state = call_update(self.outer_optimizer, grads, state.outer, xs, {})
        xs = apply_updates(xs, u)
        vs = jax.tree.map(lambda v, x: cast(self._blend(widen(v), x), v.dtype), vs, xs)
        return shares.assigned(params, vs, fragment), state._replace(
            global_step=safe_increment(state.global_step),
            anchor=pieces.merged(state.anchor, xs, fragment),
            outer=outer_state,
        )

    def _checked(self, parts: PyTree, state: OuterState) -> PyTree:
        """Return this device's parts of the parameters, which the anchor must fit."""
        anchor = align(
            self, parts, jax.tree.structure(parts), state.anchor, "the anchor has"
        ).leaves
        for i, (p, x) in enumerate(zip(jax.tree.leaves(parts), anchor, strict=True)):
            if jnp.shape(p) != jnp.shape(x):
                raise ValueError(
                    f"{name_of(self)}: the state's anchor of {path_at(parts, i)} has shape "
                    f"{jnp.shape(x)}, this device's part of the parameter has {jnp.shape(p)}. Was "
                    "this state made for other parameters, other inner_axes or another "
                    "shard_anchor?"
                )
        return parts

    def _blend(self, v: Array, x: Array) -> Array:
        """Return the mean of a replica's parameter and the anchor, weighted by `blend`."""
        if is_zero(self.blend):
            return x
        blend = jnp.asarray(self.blend, x.dtype)
        return blend * cast(v, x.dtype) + (1 - blend) * x


def _is_none(x: Any) -> bool:
    return x is None
