"""DoG and DoWG: step sizes from the distance travelled and the gradients so far."""

from typing import Any, NamedTuple

import jax.numpy as jnp

from gradxform.base import ArrayRule, transform
from gradxform.engine import global_norm, tree_sums
from gradxform.errors import did_you_mean, name_of, require_non_negative, require_positive, shown
from gradxform.numerics import plus, scalar, scalar_dtype
from gradxform.numerics.overflow import saturated
from gradxform.numerics.roots import root
from gradxform.transforms.tree_rules import columns_of, copied_params, ratio_or_zero
from gradxform.types import Array, Finite, NonNegative, Positive, Slot

FIRST_STEPS = ("distance", "learning_rate", "heuristic")


def _squares(g: Array, p0: Array, p: Array) -> tuple[Array, Array]:
    return jnp.square(p - p0), jnp.square(g)


class DoGState(NamedTuple):
    """State of `scale_by_dog`."""

    is_init_step: Array  # boolean scalar; whether no gradient has been seen yet
    init_params: Slot  # like params, at least float32; where the parameters began, p0
    max_dist: Array  # scalar, at least float32; the largest distance r from there
    sum_sq_norm_grads: Array  # scalar, at least float32; the sum s of squared gradient norms


@transform
class scale_by_dog(ArrayRule):
    """Rescale updates as DoG does: by the distance travelled over the root of summed squares.

    Update rule, with |x| the Euclidean norm over every entry of the tree, p0 = the parameters at
    `init`, from s = 0:

        r <- max(r, |p - p0|)
        s <- s + |g|^2
        u = g r / sqrt(s + eps)

    A learning rate need not be tuned: use 1. The authors evaluate an average of the parameters.

    Parameters in bfloat16 or float16 round the first steps away, and never move: wrap the optimizer
    in `master_weights(...)`.

    Args:
      init_step: the first step, a pair: `("distance", r)` sets the first r; `("heuristic", a)` sets
        it to a (1 + |p0|), where a is about 1e-6, or 1e-4 for networks with batch normalization;
        `("learning_rate", x)` sets u = x g until there is a gradient. The number must be greater
        than 0.
      eps: added under the root, at least 0.

    Raises:
      ValueError: at update, if no parameters are given.

    Reference: Ivgi et al., DoG is SGD's Best Friend: A Parameter-Free Dynamic Step Size Schedule,
    2023, the step size (DoG) of section 1.
    """

    init_step: tuple[Any, ...]
    eps: NonNegative = 1e-8

    begins_small = True
    State = DoGState
    locality = "tree"
    copies = ("init_params",)
    sees_pieces = True
    needs_params = True

    def __post_init__(self) -> None:
        _check_first_step(self, self.init_step)

    def init(self, params):
        """Return a copy of the parameters, and the first distance."""
        kind, number = self.init_step
        if kind == "distance":
            r = number
        elif kind == "heuristic":
            r = number * (1 + global_norm(params))
        else:
            r = 0.0
        return DoGState(
            is_init_step=jnp.ones((), jnp.bool_),
            init_params=copied_params(params),
            max_dist=scalar(r),
            sum_sq_norm_grads=jnp.zeros((), scalar_dtype()),
        )

    def prepare(self, updates, state, params):
        """Return the new distance and sum, and the step size."""
        leaves = columns_of(self, updates, state, params)
        squared_dist, squared_g = tree_sums(_squares, updates, leaves)
        r = jnp.maximum(state.max_dist, root(squared_dist))
        s = saturated(state.sum_sq_norm_grads + squared_g)
        rate = ratio_or_zero(r, root(plus(s, self.eps)))
        kind, number = self.init_step
        if kind == "learning_rate":
            rate = jnp.where(state.is_init_step, number, rate)
        # A gradient of zeros does not end the first step: r would be 0 forever.
        is_init_step = state.is_init_step & (squared_g == 0)
        state = state._replace(is_init_step=is_init_step, max_dist=r, sum_sq_norm_grads=s)
        return state, rate

    def rule(self, g, p0, p, rate):
        """Return the scaled update and p0."""
        return rate * g, p0


def _check_first_step(part: Any, pair: Any) -> None:
    rule = "a pair of a kind ('distance', 'learning_rate' or 'heuristic') and a number"
    if not (isinstance(pair, tuple) and len(pair) == 2):
        raise TypeError(f"{name_of(part)}: init_step must be {rule}, got {shown(pair)}.")
    kind, first = pair
    if kind not in FIRST_STEPS:
        hint = did_you_mean(kind, FIRST_STEPS)
        raise ValueError(f"{name_of(part)}: init_step must be {rule}, got {shown(pair)}.{hint}")
    if isinstance(first, bool) or not isinstance(first, int | float | Array):
        raise TypeError(f"{name_of(part)}: init_step must be {rule}, got {shown(pair)}.")
    if isinstance(first, int | float) and not 0 < first < float("inf"):
        raise ValueError(
            f"{name_of(part)}: init_step's number must be greater than 0 and finite, got {first!r}."
        )


class DoWGState(NamedTuple):
    """State of `scale_by_dowg`."""

    init_params: Slot  # like params, at least float32; where the parameters began, p0
    weighted_sq_norm_grads: Array  # scalar, at least float32; the weighted sum s of |g|^2
    estim_sq_dist: Array  # scalar, at least float32; the largest squared distance r2 from there


@transform
class scale_by_dowg(ArrayRule):
    """Rescale updates as DoWG does: by the squared distance over the root of weighted squares.

    Update rule, with |x| the Euclidean norm over every entry of the tree, p0 = the parameters at
    `init`, from s = 0:

        r2 <- max(r2, |p - p0|^2)
        s <- s + r2 |g|^2
        u = g r2 / (sqrt(s) + eps)

    A learning rate need not be tuned: use 1. Later gradients, which are taken farther away, weigh
    more than in `scale_by_dog`.

    Parameters in bfloat16 or float16 round the first steps away, and never move: wrap the optimizer
    in `master_weights(...)`.

    Args:
      init_estim_sq_dist: the first r2, greater than 0. Defaults to eps.
      eps: added to the root, at least 0; greater than 0 if it is also the first r2.

    Raises:
      ValueError: at update, if no parameters are given.

    Reference: Khaled et al., DoWG Unleashed: An Efficient Universal Parameter-Free Gradient Descent
    Method, 2023, Algorithm 1.
    """

    init_estim_sq_dist: Positive | None = None
    eps: Finite = 1e-4

    begins_small = True
    State = DoWGState
    locality = "tree"
    copies = ("init_params",)
    sees_pieces = True
    needs_params = True

    def __post_init__(self) -> None:
        if self.init_estim_sq_dist is None:
            require_positive(self, "eps")
        else:
            require_non_negative(self, "eps")

    def init(self, params):
        """Return a copy of the parameters, and the first squared distance."""
        r2 = self.eps if self.init_estim_sq_dist is None else self.init_estim_sq_dist
        return DoWGState(
            init_params=copied_params(params),
            weighted_sq_norm_grads=jnp.zeros((), scalar_dtype()),
            estim_sq_dist=scalar(r2),
        )

    def prepare(self, updates, state, params):
        """Return the new distance and sum, and the step size."""
        squared_dist, squared_g = tree_sums(
            _squares, updates, columns_of(self, updates, state, params)
        )
        r2 = jnp.maximum(state.estim_sq_dist, squared_dist)
        # Gradients of huge squares at the place where the run begins weigh nothing, too.
        s = state.weighted_sq_norm_grads + r2 * saturated(squared_g)
        s = saturated(s)
        state = state._replace(weighted_sq_norm_grads=s, estim_sq_dist=r2)
        return state, ratio_or_zero(r2, plus(root(s), self.eps))

    def rule(self, g, p0, p, rate):
        """Return the scaled update and p0."""
        return rate * g, p0
