"""Products with the Hessian and with the Gauss-Newton matrix."""

from collections.abc import Callable, Mapping
from dataclasses import field
from typing import Any

import jax
import jax.numpy as jnp

from gradxform._jax.versions import varying_like
from gradxform.errors import name_of, shown
from gradxform.linalg.curvature.curvature import Product, Seen, check_function
from gradxform.numerics import as_number
from gradxform.types import Array, Params, PyTree
from gradxform.values.fields import value


@value
class hessian_product(Product):
    """Products with the Hessian of a loss, which may have negative curvature.

        H v = d/dt grad loss(params + t v) at t = 0

    by forward through reverse differentiation: the cost of about two gradients.

    Args:
      loss: `loss(params, **extra)`, a real scalar, which gets the extra arguments that it names.
        Defaults to the extra argument `value_fn` of a transform's update.
      batch_axis_name: the axis of a `shard_map` along which devices have parts of the batch. Each
        calls the loss with its own, and the product is the mean. By default `loss` is that of the
        whole batch. Keyword-only.

    Raises:
      TypeError: if a field is of a wrong kind; when called, as `at`, or if the loss is not a real
        scalar.

    Reference: Pearlmutter, Fast Exact Multiplication by the Hessian, 1994, section 3.
    """

    loss: Any = None
    batch_axis_name: str | None = field(default=None, kw_only=True)

    functions = ("loss",)

    def __post_init__(self) -> None:
        if self.loss is not None:
            check_function(self, "loss", "the loss of the parameters")

    def linear(
        self, seen: Seen, params: Params, key: Array | None, extra: Mapping[str, Any]
    ) -> Callable[[PyTree], PyTree]:
        """Return the product with the Hessian."""
        function = seen.value_fn if self.loss is None else self.loss
        if function is None:
            raise TypeError(
                f"{name_of(self)}: without a loss of its own it is the Hessian of the extra "
                "argument value_fn of an update; call hessian_product(loss)."
            )
        field = "value_fn" if self.loss is None else "loss"
        loss, place = self.of_params(field, function, seen, params, extra)
        slope = jax.grad(lambda ps: as_number(self, f"the value of {field}", loss(ps)))
        _, product = jax.linearize(slope, place)
        return lambda v: self.averaged(product(varying_like(v, place)))


@value
class gauss_newton_product(Product):
    """Products with the generalized Gauss-Newton matrix, positive semidefinite for convex losses.

        G v = J^T H J v

    with J the derivative of the model's outputs by the parameters, and H the Hessian of the loss by
    the outputs. Of squared errors and a linear model it is the Hessian. For a softmax with
    cross-entropy, and other losses that are negative log-likelihoods of an exponential family in
    its natural parameters, G is the Fisher matrix.

    What does not go through the outputs, such as a penalty of the parameters, is not in G. Let the
    model return the parameters too, `model = lambda p, x: (net(p, x), p)`, and the loss take both.

    Args:
      model: `model(params, **extra)`, a tree of floating arrays.
      loss: `loss(outputs, **extra)`, a real scalar. Both get the extra arguments that they name.
      batch_axis_name: as in `hessian_product`. Keyword-only.

    Raises:
      TypeError: if a field is of a wrong kind; when called, as `at`, or if the outputs are not
        floating or the loss is not a real scalar.

    Reference: Schraudolph, Fast Curvature Matrix-Vector Products for Second-Order Gradient Descent,
    2002; Martens, Deep learning via Hessian-free optimization, 2010, section 4.2.
    """

    model: Any
    loss: Any
    batch_axis_name: str | None = field(default=None, kw_only=True)

    functions = ("model", "loss")

    def __post_init__(self) -> None:
        check_function(self, "model", "the outputs of the parameters")
        check_function(self, "loss", "the loss of the outputs")

    def linear(
        self, seen: Seen, params: Params, key: Array | None, extra: Mapping[str, Any]
    ) -> Callable[[PyTree], PyTree]:
        """Return the product with the Gauss-Newton matrix."""
        model, place = self.of_params("model", self.model, seen, params, extra)
        outputs, forward, backward = linearized_model(self, model, place)
        _, hessian = jax.linearize(jax.grad(self.of_outputs(extra)), outputs)
        return lambda v: self.averaged(backward(hessian(forward(varying_like(v, place)))))


def linearized_model(
    part: Any, model: Callable[[Params], Any], params: Params
) -> tuple[Any, Callable[[PyTree], Any], Callable[[Any], PyTree]]:
    """Return the outputs of a model, and the products with their derivative and its transpose."""
    outputs, forward = jax.linearize(model, params)
    check_outputs(part, outputs)
    backward = jax.linear_transpose(forward, params)
    return outputs, forward, lambda t: backward(t)[0]


def check_outputs(part: Any, outputs: Any) -> None:
    """Require the outputs of a model to be floating arrays."""
    for x in jax.tree.leaves(outputs):
        if not hasattr(x, "dtype") or not jnp.issubdtype(x.dtype, jnp.floating):
            raise TypeError(f"{name_of(part)}: model must return floating arrays, got {shown(x)}.")
