"""Newton's method by conjugate gradients."""

from typing import Any

from gradxform.linalg.curvature.products import hessian_product
from gradxform.optimizers.optimizer import optimizer
from gradxform.transforms.newton_cg import scale_by_newton_cg
from gradxform.transforms.scaling import scale_by_learning_rate
from gradxform.types import Key, ScalarOrSchedule
from gradxform.wrappers.compose import chain


@optimizer
def newton_cg(
    learning_rate: ScalarOrSchedule = 1.0,
    product: Any = hessian_product(),  # noqa: B008  (a value)
    steps: int = 10,
    damping: float = 1.0,
    damping_factor: float = 2 / 3,
    warm_start: float = 0.95,
    tol: float = 0.0,
    key: Key = 0,
) -> chain:
    """Newton's method by conjugate gradients, also known as Hessian-free optimization.

    It needs the loss of the batch, as a value and as a function of the parameters alone:

        value, grads = jax.value_and_grad(loss)(params)
        updates, state = tx.update(grads, state, params, value=value, value_fn=loss)

    Args:
      learning_rate: multiplies the step, at least 0, or a schedule; 1 for Newton's own.

    See `scale_by_newton_cg` for the other arguments.

    Reference: Martens, Deep learning via Hessian-free optimization, 2010.
    """
    return chain(
        scale_by_newton_cg(product, steps, damping, damping_factor, warm_start, tol, key),
        scale_by_learning_rate(learning_rate),
    )
