"""Sophia, and Hutchinson's estimate of the curvature that it divides by."""

from collections.abc import Callable
from dataclasses import field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from gradxform import engine
from gradxform._jax.versions import is_tracer
from gradxform.base import ArrayRule, Transform, call_update, check_transform, transform
from gradxform.engine import Columns, PerLeaf, tree_sums
from gradxform.errors import must_be
from gradxform.leaves import Path, align, check_shapes, dtype_of, require_params
from gradxform.leaves.states import check_state, laid_like
from gradxform.linalg.curvature.diagonals import random_signs
from gradxform.numerics import (
    as_number,
    at_least_float32,
    bias_correction,
    cast,
    promote,
    safe_increment,
    scalar,
    within,
)
from gradxform.slots import zero_count, zeros_like
from gradxform.transforms.tree_rules import columns_of, live_key
from gradxform.types import (
    Array,
    Bound,
    Decay,
    DType,
    Key,
    NonNegativeInt,
    OptState,
    Params,
    Positive,
    PositiveInt,
    PyTree,
    Scalar,
    Slot,
    Updates,
)


class HutchinsonState(NamedTuple):
    """State of `hutchinson_estimator_diag_hessian`."""

    key: Array  # the PRNG key of the next draw


def _entry_product(h: Array, z: Array, g: Array) -> Array:
    """Return h z in the dtype of g."""
    dtype = at_least_float32(dtype_of(h))
    return cast(cast(h, dtype) * cast(z, dtype), dtype_of(g))


@transform
class hutchinson_estimator_diag_hessian(Transform):
    """Replace updates by Hutchinson's random estimate of the diagonal of the Hessian.

    Update rule, with H the Hessian of `obj_fn` at the parameters and z drawn anew at every step,
    each entry -1 or 1 with equal probability:

        u = z (H z)

    The mean of u is the diagonal; where H is diagonal, u equals it. It costs a gradient and its
    derivative. On several devices `obj_fn` must be the loss of the whole batch. A seed gives the
    same draws as in Optax.

    Args:
      random_seed: the seed of the draws: an integer or a PRNG key.

    Raises:
      TypeError: at update, without `obj_fn`, the loss as a function of the parameters alone.
      ValueError: at update, if no parameters are given.

    Reference: Hutchinson, A Stochastic Estimator of the Trace of the Influence Matrix, 1990; Bekas
    et al., An Estimator for the Diagonal of a Matrix, 2007, section 2.
    """

    random_seed: Key = 0

    locality = "tree"
    set_by = (("key", "random_seed"),)

    def init(self, params):
        """Return the key."""
        seed = self.random_seed
        # Optax makes a key of this older kind from a seed, here and nowhere else.
        key = jax.random.PRNGKey(seed) if isinstance(seed, int) else live_key(seed)
        return HutchinsonState(key=key)

    def update(self, updates, state, params=None, *, obj_fn, **extra):
        """Return the estimate in place of the updates."""
        require_params(self, params)
        check_state(self, state, HutchinsonState)
        if not callable(obj_fn):
            raise TypeError(
                must_be(self, "obj_fn", "the loss as a function of the parameters", obj_fn)
            )
        gs, treedef = jax.tree.flatten(updates)

        def aligned(tree: PyTree) -> list[Any]:
            return align(self, updates, treedef, tree, "the parameters have").leaves

        check_shapes(self, updates, aligned(params), "the parameter has")
        ps, params_treedef = jax.tree.flatten(params)
        next_key, key = jax.random.split(state.key)
        z = jax.tree.unflatten(params_treedef, random_signs(ps, key))

        def loss(params: Params) -> Any:
            value = obj_fn(params)
            as_number(self, "the value of obj_fn", value)
            return value

        hz = jax.jvp(jax.grad(loss), (params,), (z,))[1]
        us = engine.map_rows(_entry_product, [aligned(hz), aligned(z), gs])
        return jax.tree.unflatten(treedef, us), state._replace(key=next_key)


class SophiaState(NamedTuple):
    """State of `scale_by_sophia`."""

    count: Array  # int32 scalar; the number of updates so far
    mu: Slot  # like params, at least float32; the average m of the gradient
    nu: Slot  # like params, at least float32; the average h of the Hessian's diagonal
    hessian_fn_state: Any  # the state of the estimator


def _curvature_average(h: Array, estimate: Array, b2: Scalar, one_minus_b2: Scalar) -> Array:
    """Return b2 h + (1 - b2) D in the dtype of h."""
    dtype = at_least_float32(promote(dtype_of(h), dtype_of(estimate)))
    old = jnp.asarray(b2, dtype) * cast(h, dtype)
    new = jnp.asarray(one_minus_b2, dtype) * cast(estimate, dtype)
    return cast(old + new, dtype_of(h))


def _direction(
    g: Array, m: Array, h: Array, b1: Scalar, of_m: Scalar, gamma: Scalar, eps: Scalar
) -> tuple[Array, Array]:
    """Return the new average, and the update before it is clipped."""
    m = b1 * m + (1 - b1) * g
    return m, of_m * m / jnp.maximum(gamma * h, eps)


def _is_not_clipped(
    g: Array, m: Array, h: Array, p: Array, threshold: Scalar, *scalars: Scalar
) -> tuple[Array]:
    _, u = _direction(g, m, h, *scalars)
    return (jnp.abs(u) < threshold,)


def _estimate_if_due(is_due: Array, f: Callable[..., tuple[Any, ...]], *operands: Any) -> Any:
    """Return `f(*operands)` if it is due, else the operands."""
    if is_tracer(is_due):
        return lax.cond(is_due, f, lambda *old: old, *operands)
    # Outside a trace `is_due` is known, and `cond` would compile anew at every step.
    return f(*operands) if is_due else operands


def estimated_diagonal(
    part: Any,
    estimator: Any,
    old_state: OptState,
    updates: Updates,
    params: Params,
    extra: dict[str, Any],
) -> tuple[list[Array], OptState]:
    """Return the diagonal of each leaf, and the estimator's state, in the types of the old one.

    Args:
      part: the rule that divides by the diagonal.
      estimator: the transform whose updates are the diagonal.
      old_state: its state.
      updates: the gradients.
      params: the parameters.
      extra: what the estimator gets beside them.
    """
    diagonal, new = call_update(estimator, updates, old_state, params, extra)
    # Both outcomes of a condition have one type, whatever estimator the user gives.
    new = jax.tree.map(
        lambda x, old: cast(jnp.asarray(x), old.dtype), laid_like(new, old_state), old_state
    )
    treedef = jax.tree.structure(updates)
    return align(part, updates, treedef, diagonal, "the estimate has").leaves, new


def curvature_now(
    part: Any,
    updates: Updates,
    state: Any,
    params: Params,
    extra: dict[str, Any],
    hs: list[Array],
    average: Callable[..., Array],
) -> tuple[OptState, list[Array]]:
    """Return the estimator's state and the average of each leaf, both new if an estimate is due.

    Args:
      part: the rule, with `hessian_diagonal_fn`, `update_interval` and `b2`.
      updates: the gradients.
      state: the state of `part`, with the count of earlier updates and `hessian_fn_state`.
      params: the parameters.
      extra: what the estimator gets beside them.
      hs: the averages so far.
      average: `average(h, estimate, b2, 1 - b2)` of one leaf.
    """

    def estimate(old_state: OptState, hs: list[Array]) -> tuple[OptState, list[Array]]:
        inner = part.hessian_diagonal_fn, old_state
        ds, new_state = estimated_diagonal(part, *inner, updates, params, extra)
        return new_state, engine.map_rows(average, [hs, ds], part.b2, 1 - part.b2)

    is_due = state.count % part.update_interval == 0
    return _estimate_if_due(is_due, estimate, state.hessian_fn_state, hs)


class WithDiagonal(ArrayRule):
    """Base of rules with an estimator of the Hessian's diagonal, and its state in theirs."""

    hessian_diagonal_fn: Any
    mu_dtype: DType

    locality = "tree"
    needs_params = True

    def __post_init__(self) -> None:
        check_transform(self, self.hessian_diagonal_fn, "hessian_diagonal_fn")

    def inner_states(self, state: OptState) -> list[tuple[Path, Any]]:
        """Return the place of the estimator's state."""
        return [(("hessian_fn_state",), self.hessian_diagonal_fn)]

    def init(self, params):
        """Return averages of zeros and the estimator's state."""
        return self.State(
            count=zero_count(),
            mu=zeros_like(params, self.mu_dtype),
            nu=zeros_like(params),
            hessian_fn_state=self.hessian_diagonal_fn.init(params),
        )


@transform
class scale_by_sophia(WithDiagonal):
    """Rescale updates as Sophia does: the first moment over the curvature, every entry clipped.

    Update rule, from m = h = 0 and t = 1, 2, ..., with D the estimate of the Hessian's diagonal:

        m <- b1 m + (1 - b1) g
        u = (m / (1 - b1^t)) / max(gamma h, eps), clipped to [-clip_threshold, clip_threshold]
        h <- b2 h + (1 - b2) D      (at t = 1, 1 + update_interval, ...; else h stays)

    The curvature is estimated once every `update_interval` steps, and used from the next step on;
    at t = 1 every entry moves by its sign. This is Optax's form. In the paper m is not divided by
    1 - b1^t, and h is renewed before u is computed: `debias=False` and `delayed=False`. The first
    updates are then about 1 - b1 as long where nothing is clipped. The extra arguments of `update`
    (`obj_fn`) go to the estimator.

    Args:
      b1: the decay of the average, in [0, 1).
      b2: the decay of the curvature's average per estimate, in [0, 1).
      eps: the least divisor, greater than 0.
      gamma: the factor of the curvature, greater than 0: the larger, the fewer entries are clipped.
      clip_threshold: the largest absolute value of u, greater than 0; None or infinite for no
        clipping.
      update_interval: the number of steps from one estimate to the next, at least 1.
      hessian_diagonal_fn: the estimator, a transform whose updates are the diagonal.
      mu_dtype: the dtype of m. Defaults to the parameter's, or float32 for 16-bit ones.
      verbose: whether to print the share of entries that are not clipped. It should stay between
        0.1 and 0.5.
      print_win_rate_every_n_steps: how often to print it; 0 for never.
      debias: whether to correct m for its start at 0. Keyword-only.
      delayed: whether a new estimate counts from the next step on, instead of at once.
        Keyword-only.

    Raises:
      ValueError: at update, if no parameters are given.

    Reference: Liu et al., Sophia: A Scalable Stochastic Second-order Optimizer for Language Model
    Pre-training, 2023, Algorithm 3, with signs in place of the normal draws of its Algorithm 1.
    """

    b1: Decay = 0.965
    b2: Decay = 0.99
    eps: Positive = 1e-8
    gamma: Positive = 0.01
    clip_threshold: Bound | None = 1.0
    update_interval: PositiveInt = 10
    hessian_diagonal_fn: Any = hutchinson_estimator_diag_hessian()
    mu_dtype: DType = None
    verbose: bool = False
    print_win_rate_every_n_steps: NonNegativeInt = 0
    debias: bool = field(default=True, kw_only=True)
    delayed: bool = field(default=True, kw_only=True)

    State = SophiaState

    def prepare(self, updates, state, params, **extra):
        """Return the advanced state, the factor of m, and the new curvature of each leaf."""
        count = safe_increment(state.count)
        of_m = bias_correction(self.b1, count) if self.debias else scalar(1.0)
        leaves = columns_of(self, updates, state, params)

        gs, ms, hs, ps = leaves
        estimator_state, hs = curvature_now(
            self, updates, state, params, extra, hs, _curvature_average
        )
        if self.verbose and self.print_win_rate_every_n_steps and self.clip_threshold is not None:
            used = leaves if self.delayed else [gs, ms, hs, ps]
            self._print_win_rate(count, updates, used, of_m, self.clip_threshold)
        return state._replace(count=count, hessian_fn_state=estimator_state), of_m, PerLeaf(hs)

    def rule(self, g, m, h, p, of_m, next_h):
        """Return the update, the average and the curvature."""
        used = h if self.delayed else next_h
        m, u = _direction(g, m, used, self.b1, of_m, self.gamma, self.eps)
        if self.clip_threshold is not None:
            bound = within(self.clip_threshold, u.dtype)
            u = jnp.clip(u, -bound, bound)
        return u, m, next_h

    def _print_win_rate(
        self, count: Array, updates: Updates, leaves: Columns, of_m: Array, threshold: Scalar
    ) -> None:
        scalars = threshold, self.b1, of_m, self.gamma, self.eps
        (wins,) = tree_sums(_is_not_clipped, updates, leaves, *scalars)
        rate = wins / max(sum(jnp.size(g) for g in leaves[0]), 1)
        lax.cond(
            count % self.print_win_rate_every_n_steps == 0,
            lambda: jax.debug.print("Sophia optimizer win rate: {}", rate),
            lambda: None,
        )
