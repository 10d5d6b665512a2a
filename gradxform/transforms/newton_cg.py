"""Newton's method without matrices: conjugate gradients on products with a curvature matrix."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from gradxform import engine
from gradxform._jax.programs import by_program
from gradxform.base import ArrayRule, transform
from gradxform.engine import PerLeaf, tree_sums
from gradxform.errors import name_of, shown
from gradxform.leaves import Aligned, align_params, align_slot, check_shapes, dtype_of
from gradxform.linalg.conjugate_gradients import Solution, conjugate_gradients
from gradxform.linalg.curvature.curvature import Product, Seen
from gradxform.linalg.curvature.diagonals import check_product
from gradxform.linalg.curvature.products import hessian_product
from gradxform.numerics import at_least_float32, cast, is_zero, over, scalar
from gradxform.slots import zeros_like
from gradxform.transforms.tree_rules import as_loss, live_key
from gradxform.types import (
    Array,
    Decay,
    Key,
    NonNegative,
    Params,
    PositiveInt,
    PositiveShare,
    Scalar,
    Slot,
    UnitInterval,
    Updates,
)

__all__ = [
    "scale_by_newton_cg",
    "NewtonCGInfo",
    "ScaleByNewtonCGState",
]

# The model is trusted less below the first of these ratios, and more above the second.
POOR, GOOD = 0.25, 0.75
# A decrease of so many roundings of the loss cannot be told from them.
ROUNDINGS = 8


class NewtonCGInfo(NamedTuple):
    """How the last step of `scale_by_newton_cg` went."""

    ratio: Array  # scalar, at least float32; the actual decrease over the predicted one
    num_products: Array  # int32 scalar; how many products with the matrix it took
    is_convex: Array  # boolean; whether no negative curvature was met
    is_accepted: Array  # boolean; whether the update is a step, and not zeros


class ScaleByNewtonCGState(NamedTuple):
    """State of `scale_by_newton_cg`."""

    damping: Array  # scalar, at least float32; the damping of the next step
    solution: Slot  # like params, at least float32; the last solution d
    key: Any  # the PRNG key of the next draw; None if the matrix is not random
    info: NewtonCGInfo


class _Step(NamedTuple):
    """What a step computes from the leaves."""

    damping: Array
    info: NewtonCGInfo
    us: list[Array]
    xs: list[Array]  # to start the next one from


@transform
class scale_by_newton_cg(ArrayRule):
    """Multiply the gradient by the inverse of a damped curvature matrix, by conjugate gradients.

    Update rule, with C the matrix of `product` at the parameters p, f the loss of the same batch,
    and d of the last step as a start, times `warm_start`:

        d <- at most `steps` steps of conjugate gradients on (C + damping I) d = g
        ratio = (f(p) - f(p - d)) / (<g, d> - <d, C d> / 2)
        damping <- damping / damping_factor      (if ratio < 1/4, or is not a number)
        damping <- damping damping_factor        (if ratio > 3/4)
        u = d if f(p - d) < f(p), else 0

    C is never formed: a product with it costs about two gradients, and an update takes `steps` of
    them, one more for the start, and one value of the loss. Conjugate gradients end early where
    |(C + damping I) d - g| <= tol |g|, or where they meet a direction of negative curvature. There
    d stays as it is, or, at the first step, goes as far down the gradient as the same curvature
    without its sign says. If d of the last step is worse than 0, the start is 0. The damping stays
    between its first value times a rounding and its first value over a rounding. Where the
    predicted decrease is within roundings of the loss, its ratio says nothing: the step is taken,
    and the damping stays. A step is taken, too, where f(p) is infinite or NaN.

    With damping_factor=1 the damping is fixed, every step is taken, and `value` is not needed.

    Vectors and sums are in float32 or wider, but the products with 16-bit parameters are rounded to
    those, which moves d by some percent: keep wide masters of them.

    It descends once it is multiplied by -1, as `newton_cg` does. The gradient that comes in must be
    that of the loss. `update` needs the extra arguments `value` and `value_fn`, the loss of the
    batch as a function of the parameters, and hands the others to the functions of the product that
    name them:
    `update(grads, state, params, value=value, value_fn=loss, inputs=inputs, labels=labels)`.

    On several devices, `value_fn` and the functions of the product are those of the whole batch, or
    of its part on a device if the product has a `batch_axis_name`.

    Args:
      product: the matrix, one of `gradxform.curvature`. Defaults to the Hessian of `value_fn`.
      steps: how many steps of conjugate gradients, at least 1.
      damping: the first damping, at least 0; 0 stays 0.
      damping_factor: by what the damping falls, in (0, 1]; 1 to keep it.
      warm_start: by what the last d is multiplied for a start, in [0, 1]; 0 to start from 0, which
        saves a product.
      tol: the residual that is small enough, relative to the gradient, in [0, 1).
      key: the seed of a matrix that is drawn at random, anew for each step.

    Raises:
      TypeError: at construction, for another product; at update, without one of the extra
        arguments, or if one is of a wrong kind.
      ValueError: at update, if no parameters are given.

    Reference: Martens, Deep learning via Hessian-free optimization, 2010, section 4.1 for the
    damping, with ratio and model without the damping in them; Nocedal and Wright, Numerical
    Optimization, 2006, Algorithm 7.1.
    """

    product: Any = hessian_product()
    steps: PositiveInt = 10
    damping: NonNegative = 1.0
    damping_factor: PositiveShare = 2 / 3
    warm_start: UnitInterval = 0.95
    tol: Decay = 0.0
    key: Key = 0

    State = ScaleByNewtonCGState
    locality = "tree"
    needs_params = True
    handles_rows = False
    why_no_rows = "multiplies the whole gradient by a matrix"

    def __post_init__(self) -> None:
        check_product(self, self.product)

    @property
    def set_by(self) -> tuple[tuple[str, str], ...]:
        """The damping, and the key if there is one."""
        return (("damping", "damping"), *((("key", "key"),) if self.product.draws else ()))

    @property
    def exchanges(self) -> tuple[str, ...]:
        """The axis over whose devices products and losses are averaged."""
        axis = self.product.batch_axis_name
        return () if axis is None else (axis,)

    def extra_names(self) -> frozenset[str] | None:
        """Return the names that it takes itself, and those of the product's functions."""
        names = self.product.extra_names()
        return None if names is None else names | {"value", "value_fn"}

    def init(self, params):
        """Return the first damping, and a solution of zeros."""
        return ScaleByNewtonCGState(
            damping=scalar(self.damping),
            solution=zeros_like(params),
            key=live_key(self.key) if self.product.draws else None,
            info=NewtonCGInfo(
                ratio=scalar(1.0),
                num_products=jnp.zeros((), jnp.int32),
                is_convex=jnp.ones((), jnp.bool_),
                is_accepted=jnp.ones((), jnp.bool_),
            ),
        )

    def prepare(self, updates, state, params, *, value_fn, value=None, **extra):
        """Return the state, and of each leaf the step and the solution to start from next."""
        self._check_extra(value, value_fn)
        gs, treedef = jax.tree.flatten(updates)
        aligned = align_params(self, updates, treedef, params)
        slot = align_slot(self, updates, treedef, state, "solution")
        check_shapes(self, updates, slot.leaves, "the state's solution has")
        for i, g in enumerate(gs):
            engine.check_gradient((self,), updates, i, g)
        if not gs:
            return state, PerLeaf([]), PerLeaf([])
        key, next_key = None, state.key
        if self.product.draws:
            next_key, key = jax.random.split(state.key)

        def step(gs: list[Any], ps: list[Any], xs: list[Any], state: Any, key: Any) -> _Step:
            return self._step(
                _Batch(self, updates, aligned, value_fn, extra, value), gs, ps, xs, state, key
            )

        wide = [at_least_float32(dtype_of(p)) for p in aligned.leaves]
        columns = (
            [cast(jnp.asarray(x), dtype) for x, dtype in zip(xs, wide, strict=True)]
            for xs in (gs, aligned.leaves, slot.leaves)
        )
        new = by_program(step, *columns, state.damping, key)
        state = state._replace(damping=new.damping, key=next_key, info=new.info)
        return state, PerLeaf(new.us), PerLeaf(new.xs)

    def rule(self, g, x, p, u, new_x):
        """Return the step and the solution."""
        return u, new_x

    def _check_extra(self, value: Any, value_fn: Any) -> None:
        if not callable(value_fn):
            raise TypeError(
                f"{name_of(self)}: value_fn must be the loss, a function of the parameters, got "
                f"{shown(value_fn)}."
            )
        if self._adapts and value is None:
            raise TypeError(
                f"{name_of(self)}: needs the extra argument 'value'; call update(updates, state, "
                "params, value=loss, value_fn=loss_fn)."
            )

    @property
    def _adapts(self) -> bool:
        return not (isinstance(self.damping_factor, float) and self.damping_factor == 1)

    def _step(
        self,
        batch: "_Batch",
        gs: list[Any],
        ps: list[Any],
        xs: list[Any],
        damping: Array,
        key: Any,
    ) -> _Step:
        # A power of 2 by which gradients are divided, so that no square leaves their range.
        largest = jnp.max(jnp.stack([scalar(jnp.max(jnp.abs(g), initial=0)) for g in gs]))
        size = lax.stop_gradient(largest)
        size = lax.reduce_precision(size, jnp.finfo(size.dtype).nexp, 0)
        size = jnp.where((size > 0) & jnp.isfinite(size), size, 1)
        b = [g / cast(size, g.dtype) for g in gs]
        b_squared = batch.inner(b, b)
        is_known = jnp.isfinite(b_squared)  # else the update is the gradient, as it came
        solved, products = self._solved(batch, b, ps, xs, size, damping, key)
        x, r = solved.x, solved.residual
        # <x, C x> = <x, b - r> - damping |x|^2
        x_squared = batch.inner(x, x)
        predicted = (batch.inner(x, b) + batch.inner(x, r) + damping * x_squared) / 2
        d = [v * cast(size, v.dtype) for v in x]
        ratio, accepted = scalar(1.0), jnp.ones((), jnp.bool_)
        if self._adapts:
            new_damping, ratio, accepted = self._trusted(
                batch, ps, d, size * (size * predicted), damping
            )
            damping = jnp.where(is_known, new_damping, damping)
        accepted = accepted | ~is_known
        us = [jnp.where(is_known, jnp.where(accepted, v, 0), g) for v, g in zip(d, gs, strict=True)]
        goes_on = is_known & jnp.isfinite(x_squared)
        info = NewtonCGInfo(ratio, products, solved.is_convex, accepted)
        return _Step(damping, info, us, [jnp.where(goes_on, v, 0) for v in d])

    def _solved(
        self,
        batch: "_Batch",
        b: list[Any],
        ps: list[Any],
        xs: list[Any],
        size: Array,
        damping: Array,
        key: Any,
    ) -> tuple[Solution, Array]:
        """Return the solution for the gradient over its size, and the number of products."""
        of_c = self.product.linear(batch.seen(ps), ps, key, batch.extra)

        def product(v: list[Any]) -> list[Any]:
            pairs = zip(of_c(v), v, strict=True)
            return [cv + cast(damping, x.dtype) * x for cv, x in pairs]

        x, r, more = [jnp.zeros_like(g) for g in b], b, 0
        if not is_zero(self.warm_start):
            last = [v * cast(self.warm_start / size, v.dtype) for v in xs]
            left = [g - ax for g, ax in zip(b, product(last), strict=True)]
            # The model at the start, times -2, which is 0 at 0; a NaN is not better.
            is_better = batch.inner(last, b) + batch.inner(last, left) >= 0
            x, r = (
                [jnp.where(is_better, v, w) for v, w in zip(new, old, strict=True)]
                for new, old in ((last, x), (left, r))
            )
            more = 1
        solved = conjugate_gradients(product, b, (x, r), self.steps, batch.inner, self.tol)
        return solved, solved.steps + more

    def _trusted(
        self, batch: "_Batch", ps: list[Any], d: list[Any], predicted: Array, damping: Array
    ) -> tuple[Array, Array, Array]:
        """Return the damping of the next step, the ratio, and whether the step is taken."""
        value = self.product.averaged(as_loss(self, batch.value))
        new = batch.loss([p - v for p, v in zip(ps, d, strict=True)])
        actual = value - new
        ratio = over(actual, predicted)
        ratio = jnp.where(jnp.isnan(ratio), 0, ratio)  # nothing is known of this step
        kind = dtype_of(batch.value)
        eps = jnp.finfo(kind if jnp.issubdtype(kind, jnp.floating) else value.dtype).eps
        is_hidden = (jnp.abs(predicted) <= ROUNDINGS * float(eps) * jnp.abs(value)) & (
            jnp.abs(actual) <= 2 * ROUNDINGS * float(eps) * jnp.abs(value)
        )
        other = jnp.where(ratio > GOOD, damping * self.damping_factor, damping)
        other = jnp.where(ratio >= POOR, other, damping / self.damping_factor)
        rounding = float(jnp.finfo(damping.dtype).eps)
        low, high = self.damping * rounding, self.damping / rounding
        other = cast(jnp.clip(other, scalar(low), scalar(high)), damping.dtype)
        accepted = (actual > 0) | is_hidden | ~jnp.isfinite(value)
        return jnp.where(is_hidden, damping, other), ratio, accepted


class _Batch(NamedTuple):
    """The loss of a batch as a function of the leaves that have a gradient."""

    part: scale_by_newton_cg
    updates: Updates
    aligned: Aligned
    value_fn: Any
    extra: dict[str, Any]
    value: Any

    def inner(self, xs: list[Any], ys: list[Any]) -> Array:
        """Return an inner product, over all devices where leaves are shards."""
        return tree_sums(_product, self.updates, [xs, ys])[0]

    def seen(self, ps: list[Any]) -> Seen:
        """Return how functions of the parameters see the leaves."""
        dtypes = [dtype_of(p) for p in self.aligned.leaves]

        def whole(leaves: list[Any]) -> Params:
            return self.aligned.rebuilt(
                [cast(x, dtype) for x, dtype in zip(leaves, dtypes, strict=True)]
            )

        return Seen(whole, self.value_fn)

    def loss(self, ps: list[Any]) -> Array:
        """Return the loss, the mean over devices that have parts of the batch."""
        product: Product = self.part.product
        loss, place = product.of_params("value_fn", self.value_fn, self.seen(ps), ps, self.extra)
        return product.averaged(as_loss(self.part, loss(place), "the value of value_fn"))


def _product(x: Array, y: Array) -> tuple[Scalar]:
    return (x * y,)
