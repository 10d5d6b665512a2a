"""L-BFGS between bounds."""

from typing import Any

from gradxform.optimizers.optimizer import optimizer
from gradxform.transforms.lbfgs.bounds import as_numbers
from gradxform.transforms.lbfgs.lbfgsb import step_by_lbfgsb
from gradxform.types import NonNegative, Size


@optimizer
def lbfgsb(
    memory_size: Size = 10, lower: Any = None, upper: Any = None, tol: NonNegative = 0.0
) -> step_by_lbfgsb:
    """L-BFGS-B: `lbfgs_steps` between bounds of the parameters, for any training loop.

    Each update takes one gradient and the loss:

        tx = lbfgsb(lower=0.0, upper={"w": 1.0, "b": None})
        value, grad = jax.value_and_grad(loss)(params)
        updates, state = tx.update(grad, state, params, value=value)

    Evaluate and save `eval_params(state, params)`. All points that are asked for are inside the
    bounds.

    Args:
      lower: the lower bounds: None for none; a number; a tree of numbers, arrays and None, which
        may be a prefix of the parameters; or a function of the parameters that returns such a tree.
        Infinite where there is none.
      upper: the upper bounds, likewise.

    See `step_by_lbfgsb` for the other arguments.

    Reference: Byrd, Lu, Nocedal and Zhu, A limited memory algorithm for bound constrained
    optimization, 1995; Morales and Nocedal, Remark on "Algorithm 778: L-BFGS-B", 2011.
    """
    lower, upper = (as_numbers("lbfgsb", *x) for x in (("lower", lower), ("upper", upper)))
    return step_by_lbfgsb(memory_size, lower, upper, tol)
