"""Preconditioning by the diagonal of a curvature matrix, estimated at random."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from gradxform.base import ArrayRule, Transform, check_transform, transform
from gradxform.engine import PerLeaf
from gradxform.errors import must_be
from gradxform.leaves import Path, align_params, dtype_of, require_params
from gradxform.leaves.states import check_state
from gradxform.linalg.curvature.curvature import Diagonal, Seen, check_real
from gradxform.numerics import at_least_float32, bias_correction, cast, over, safe_increment
from gradxform.numerics.roots import power
from gradxform.slots import zero_count, zeros_like
from gradxform.transforms.sophia import estimated_diagonal
from gradxform.transforms.tree_rules import live_key
from gradxform.types import (
    Array,
    Decay,
    Key,
    NonNegative,
    OptState,
    Slot,
    UnitInterval,
)


class EstimateDiagonalState(NamedTuple):
    """State of `estimate_diagonal`."""

    key: Array  # the PRNG key of the next draw


@transform
class estimate_diagonal(Transform):
    """Replace updates by a random estimate of the diagonal of a curvature matrix.

    The estimator of `scale_by_curvature_diagonal`, and of `scale_by_sophia` in the place of its
    own: with `estimate_diagonal(bartlett_diagonal(model, "categorical"))`, that is Sophia-G. It
    hands the extra arguments of the update to the functions of the diagonal that
    name them, and `value_fn`, the loss, to a Hessian without a loss of its own. Where a wrapper
    such as `partition` shows it a part of the parameters, it needs `value_fn`.

    Args:
      diagonal: one of `gradxform.curvature`, such as `hutchinson_diagonal(hessian_product())`.
      key: the seed of the draws.

    Raises:
      TypeError: at construction, if `diagonal` is something else; at update, without an argument
        that its functions need, or for complex parameters.
      ValueError: at update, if no parameters are given.

    Reference: Liu et al., Sophia: A Scalable Stochastic Second-order Optimizer for Language Model
    Pre-training, 2023, Algorithms 1 and 2.
    """

    diagonal: Any
    key: Key = 0

    locality = "tree"
    set_by = (("key", "key"),)

    def __post_init__(self) -> None:
        if not isinstance(self.diagonal, Diagonal):
            rule = "a diagonal of gradxform.curvature, such as bartlett_diagonal(model, 'normal')"
            raise TypeError(must_be(self, "diagonal", rule, self.diagonal))

    @property
    def exchanges(self) -> tuple[str, ...]:
        """The axis over whose devices the estimate is averaged."""
        axis = self.diagonal.batch_axis_name
        return () if axis is None else (axis,)

    def extra_names(self) -> frozenset[str] | None:
        """Return the names that the functions of the diagonal take, and `value_fn`."""
        names = self.diagonal.extra_names()
        return None if names is None else names | {"value_fn"}

    def init(self, params):
        """Return the key."""
        return EstimateDiagonalState(key=live_key(self.key))

    def update(self, updates, state, params=None, *, value_fn=None, **extra):
        """Return the estimate in place of the updates."""
        require_params(self, params)
        check_state(self, state, EstimateDiagonalState)
        gs, treedef = jax.tree.flatten(updates)
        aligned = align_params(self, updates, treedef, params)
        check_real(self, params)
        next_key, key = jax.random.split(state.key)
        seen = Seen(aligned.rebuilt, value_fn)
        ps = [jnp.asarray(p) for p in aligned.leaves]
        ds = self.diagonal.drawn(seen, ps, key, extra) if gs else []
        us = [cast(d, dtype_of(g)) for d, g in zip(ds, gs, strict=True)]
        return jax.tree.unflatten(treedef, us), state._replace(key=next_key)


class ScaleByCurvatureDiagonalState(NamedTuple):
    """State of `scale_by_curvature_diagonal`."""

    count: Array  # int32 scalar; the number of updates so far
    nu: Slot  # like params, at least float32; the average h of the estimates
    estimator_state: Any


@transform
class scale_by_curvature_diagonal(ArrayRule):
    """Divide the update by the diagonal of a curvature matrix, with damping.

    Update rule, from h = 0 and t = 1, 2, ..., with D the estimate at the parameters:

        h <- b2 h + (1 - b2) D
        u = g / (max(h / (1 - b2^t), 0)^power + damping)

    A Newton step with a diagonal matrix. Where the estimate is negative, as of a Hessian, only the
    damping divides. The extra arguments of `update` go to the estimator.

    Args:
      estimator: a transform whose updates are the diagonal: `estimate_diagonal(...)`, or
        `hutchinson_estimator_diag_hessian()`.
      b2: the decay of the average, in [0, 1).
      damping: added to the diagonal, at least 0; with 0, an entry without curvature stays put.
      power: the power of the diagonal, in [0, 1]; less than 1 trusts small entries less.

    Raises:
      ValueError: at update, if no parameters are given.

    Reference: Martens, Deep learning via Hessian-free optimization, 2010, section 4.7, for the form
    with a power, there of 0.75.
    """

    estimator: Any
    b2: Decay = 0.99
    damping: NonNegative = 1e-4
    power: UnitInterval = 1.0

    State = ScaleByCurvatureDiagonalState
    locality = "tree"
    needs_params = True
    handles_rows = False
    why_no_rows = "estimates the curvature of whole arrays"

    def __post_init__(self) -> None:
        check_transform(self, self.estimator, "estimator")

    def inner_states(self, state: OptState) -> list[tuple[Path, Any]]:
        """Return the place of the estimator's state."""
        return [(("estimator_state",), self.estimator)]

    def init(self, params):
        """Return an average of zeros and the estimator's state."""
        return ScaleByCurvatureDiagonalState(
            count=zero_count(),
            nu=zeros_like(params),
            estimator_state=self.estimator.init(params),
        )

    def prepare(self, updates, state, params, **extra):
        """Return the advanced state, the bias correction, and the estimate of each leaf."""
        count = safe_increment(state.count)
        inner = self.estimator, state.estimator_state
        ds, estimator_state = estimated_diagonal(self, *inner, updates, params, extra)
        state = state._replace(count=count, estimator_state=estimator_state)
        return state, bias_correction(self.b2, count), PerLeaf(ds)

    def rule(self, g, h, p, debias, d):
        """Return the quotient and the average."""
        h = self.b2 * h + (1 - self.b2) * cast(d, at_least_float32(d.dtype))
        curvature = jnp.maximum(debias * h, 0)
        if not (isinstance(self.power, float) and self.power == 1):
            curvature = power(curvature, self.power)
        return over(g, curvature + self.damping, self.damping), h
