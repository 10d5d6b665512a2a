"""L-BFGS with its line search in the state."""

from gradxform.optimizers.optimizer import optimizer
from gradxform.transforms.lbfgs.lbfgs_steps import step_by_lbfgs
from gradxform.types import NonNegative, Size


@optimizer
def lbfgs_steps(memory_size: Size = 10, tol: NonNegative = 0.0) -> step_by_lbfgs:
    """L-BFGS for any training loop: its update takes one gradient and the loss, as `value`.

    The line search is in the state, and each update takes one trial of it:

        value, grad = jax.value_and_grad(loss)(params)
        updates, state = tx.update(grad, state, params, value=value)

    Evaluate and save `eval_params(state, params)`. For losses without noise: the same data at every
    update. For complex parameters, conjugate the gradient first, as `jax.tree.map(jnp.conj, grad)`.

    See `step_by_lbfgs` for the arguments.

    Reference: Liu and Nocedal, On the limited memory BFGS method for large scale optimization,
    1989; Moré and Thuente, Line search algorithms with guaranteed sufficient decrease, 1994.
    """
    return step_by_lbfgs(memory_size, tol)
