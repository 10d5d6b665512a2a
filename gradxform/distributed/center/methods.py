"""The methods of a center: how parameters or gradients that workers send change it.

The arithmetic is that of TensorFlow's asynchronous optimizers, in the order in which requests
arrive. Methods are values.
"""

import abc
import dataclasses
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from gradxform.base import EmptyState, call_update, check_transform
from gradxform.errors import must_be, name_of, shown
from gradxform.leaves import align, check_shapes
from gradxform.numerics import at_least_float32, cast, promote
from gradxform.tree.apply import apply_updates
from gradxform.types import Array, OptState, Params, PyTree, Scalar, Updates


class Method(abc.ABC):
    """How a center changes with the parameters or gradients that a worker sends."""

    operation: ClassVar[str]  # the request of a worker: "exchange" or "push"
    counts_staleness: ClassVar[bool] = False  # whether a push declares the step at which it began
    # Whether a worker gets the center from before its request, also if it repeats the request.
    answers_before: ClassVar[bool] = False

    def worker_rate(self) -> float | None:
        """Return how far a worker itself moves in an exchange; None if it does not move."""
        return None

    @abc.abstractmethod
    def init(self, center: PyTree) -> Any:
        """Return the state that the center keeps beside its parameters."""

    @abc.abstractmethod
    def apply(self, center: PyTree, state: Any, sent: PyTree) -> tuple[PyTree, Any]:
        """Return the center and its state after a worker sent a tree; this is traced."""

    def accepts(self, global_step: int, local_step: int | None) -> bool:
        """Whether a gradient that was begun at `local_step` still counts."""
        return True


def check_method(part: Any, method: Any) -> None:
    """Require a method of a center."""
    if not isinstance(method, Method):
        raise TypeError(
            f"{name_of(part)}: method must be elastic(...), agn(...) or drop_stale(...) of "
            f"gradxform.distributed.center, got {shown(method)}."
        )


@dataclasses.dataclass(frozen=True)
class elastic(Method):
    """Elastic averaging: worker and center pull each other.

    An exchange of a worker's parameters v with the center c, one worker after another:

        d = v - c
        v <- v - a d
        c <- c + a d

    In its steps between exchanges, a worker can add the elastic term: `elastic_gradient`.

    Args:
      moving_rate: a, in (0, 1]. TensorFlow's default is 0.9 / (period * workers).

    Raises:
      ValueError: if it is out of range.

    Reference: Zhang, Choromanska, LeCun, Deep Learning with Elastic Averaging SGD, 2015, Algorithm
    1; `tf.contrib.opt.ElasticAverageOptimizer`.
    """

    moving_rate: float

    operation = "exchange"
    answers_before = True

    def __post_init__(self) -> None:
        rate = self.moving_rate
        number = isinstance(rate, int | float) and not isinstance(rate, bool)
        if not number or not 0 < rate <= 1:
            raise ValueError(f"elastic: moving_rate must be in (0, 1], got {shown(rate)}.")

    def worker_rate(self) -> float:
        """Return how far a worker moves: as far as the center."""
        return self.moving_rate

    def init(self, center):
        """Return an empty state."""
        return EmptyState()

    def apply(self, center: PyTree, state: Any, sent: PyTree) -> tuple[PyTree, Any]:
        """Return the center pulled towards the worker."""
        return interpolate(center, sent, self.moving_rate), state


@dataclasses.dataclass(frozen=True)
class agn(Method):
    """Accumulated gradient normalization: the center steps with the mean gradient of a period.

    A worker steps K times on its own parameters v, pushes the mean g of its K gradients, and
    continues from the center c:

        c <- c + optimizer(g)
        v <- c

    This optimizer and its state are the center's. A worker has an optimizer of its own for its own
    steps. (In TensorFlow both are one object, so that with Adam they share a step count.)

    Args:
      optimizer: the optimizer of the center, ours or Optax's.

    Raises:
      TypeError: if it is not a transform.

    Reference: Hermans, Spanakis, Möckel, Accumulated Gradient Normalization, 2017, Algorithm 2;
    `tf.contrib.opt.AGNOptimizer`.
    """

    optimizer: Any

    operation = "push"

    def __post_init__(self) -> None:
        check_transform(self, self.optimizer, "optimizer")

    def init(self, center):
        """Return the optimizer's state."""
        return self.optimizer.init(center)

    def apply(self, center: PyTree, state: OptState, sent: PyTree) -> tuple[PyTree, OptState]:
        """Return the center after a step with the gradient that a worker sent."""
        return _optimizer_step(self.optimizer, center, state, sent)


@dataclasses.dataclass(frozen=True)
class drop_stale(Method):
    """Dropping stale gradients: the center steps with each gradient that is fresh enough.

    For a gradient g that a worker began to compute at step `local_step`:

        if global_step - local_step <= staleness:  c <- c + optimizer(g);  global_step += 1
        else:                                      stale_counter += 1, and nothing else

    Args:
      optimizer: the optimizer of the center, ours or Optax's.
      staleness: how many steps of other workers a gradient may miss, at least 0.

    Raises:
      TypeError: if `optimizer` is not a transform.
      ValueError: if `staleness` is not an integer of at least 0.

    Reference: `tf.contrib.opt.DropStaleGradientOptimizer`.
    """

    optimizer: Any
    staleness: int

    operation = "push"
    counts_staleness = True

    def __post_init__(self) -> None:
        check_transform(self, self.optimizer, "optimizer")
        if type(self.staleness) is not int or self.staleness < 0:
            raise ValueError(
                must_be("drop_stale", "staleness", "an integer of at least 0", self.staleness)
            )

    def init(self, center):
        """Return the optimizer's state."""
        return self.optimizer.init(center)

    def apply(self, center: PyTree, state: OptState, sent: PyTree) -> tuple[PyTree, OptState]:
        """Return the center after a step with the gradient that a worker sent."""
        return _optimizer_step(self.optimizer, center, state, sent)

    def accepts(self, global_step: int, local_step: int | None) -> bool:
        """Whether the gradient missed few enough steps of other workers."""
        return global_step - (local_step or 0) <= self.staleness


def _optimizer_step(
    optimizer: Any, center: PyTree, state: Any, grads: Updates
) -> tuple[PyTree, Any]:
    grads = jax.tree.map(lambda g, c: cast(g, c.dtype), grads, center)
    updates, state = call_update(optimizer, grads, state, center, {})
    return apply_updates(center, updates), state


def interpolate(tree: PyTree, other: PyTree, rate: Scalar) -> PyTree:
    """Return `tree + rate (other - tree)`, formed in float32 or wider, in the dtypes of `tree`."""

    def one(x: Array, other: Array) -> Array:
        dtype = at_least_float32(promote(x.dtype, other.dtype))
        wide = cast(x, dtype)
        return cast(wide + jnp.asarray(rate, dtype) * (cast(other, dtype) - wide), x.dtype)

    return jax.tree.map(one, tree, other)


def elastic_gradient(grads: Updates, params: Params, local_center: Params, rho: Scalar) -> Updates:
    """Return a worker's gradient with the elastic term: `g + rho (v - l)`.

    The term is the gradient of `rho / 2 ||v - l||^2`, which TensorFlow adds to the loss. The paper
    does not have it: there, only the exchange pulls a worker.

    Args:
      grads: g, the gradients of the loss at the worker's parameters.
      params: v, those parameters.
      local_center: l, the center that the worker saw last: `worker.local_center`.
      rho: the strength of the term, at least 0. TensorFlow's default is
        moving_rate / learning_rate.

    Raises:
      ValueError: if `rho` is below 0, or the trees do not match.

    Reference: `tf.contrib.opt.ElasticAverageOptimizer`.
    """
    if isinstance(rho, int | float) and not 0 <= rho < float("inf"):
        raise ValueError(f"elastic_gradient: rho must be finite and at least 0, got {rho!r}.")
    leaves, treedef = jax.tree.flatten(grads)
    vs = align("elastic_gradient", grads, treedef, params, "the parameters have")
    ls = align("elastic_gradient", grads, treedef, local_center, "the center has")
    check_shapes("elastic_gradient", grads, vs.leaves, "the parameter has")
    check_shapes("elastic_gradient", grads, ls.leaves, "the center has")

    def one(g: Any, v: Any, l: Any) -> Array:
        g, v, l = map(jnp.asarray, (g, v, l))
        dtype = at_least_float32(promote(g.dtype, v.dtype, l.dtype))
        wide = cast(g, dtype) + jnp.asarray(rho, dtype) * (cast(v, dtype) - cast(l, dtype))
        return cast(wide, g.dtype)

    return jax.tree.unflatten(treedef, list(map(one, leaves, vs.leaves, ls.leaves)))
