"""L-BFGS."""

from typing import Any

from gradxform.interop import identity
from gradxform.optimizers.base import optimizer
from gradxform.transforms.bounds import as_numbers
from gradxform.transforms.lbfgs import scale_by_lbfgs
from gradxform.transforms.lbfgs_steps import step_by_lbfgs
from gradxform.transforms.lbfgsb import step_by_lbfgsb
from gradxform.transforms.scaling import scale, scale_by_learning_rate
from gradxform.transforms.zoom import scale_by_zoom_linesearch
from gradxform.types import NonNegative, ScalarOrSchedule, Size
from gradxform.wrappers.compose import chain

__all__ = [
    "lbfgs",
    "lbfgs_steps",
    "lbfgsb",
]

SEARCH = scale_by_zoom_linesearch(20, initial_guess_strategy="one")


@optimizer
def lbfgs(
    learning_rate: ScalarOrSchedule | None = None,
    memory_size: Size = 10,
    scale_init_precond: bool = True,
    linesearch: Any = SEARCH,
) -> chain:
    """L-BFGS with a line search: a quasi-Newton method for losses without noise.

    One loss, with the same data at every step:

        value_and_grad = value_and_grad_from_state(loss)
        value, grad = value_and_grad(params, state=state)
        updates, state = tx.update(grad, state, params, value=value, grad=grad, value_fn=loss)

    Args:
      learning_rate: multiplies the direction before the search, at least 0, or a schedule.
        Defaults to 1.
      linesearch: the transform that finds the step length, or None to go one step of
        `learning_rate`.

    See `scale_by_lbfgs` for the other arguments.

    Reference: Nocedal and Wright, Numerical Optimization, 1999, Algorithms 7.4 and 7.5; Liu and
    Nocedal, On the limited memory BFGS method for large scale optimization, 1989.
    """
    return chain(
        scale_by_lbfgs(memory_size, scale_init_precond),
        scale(-1.0) if learning_rate is None else scale_by_learning_rate(learning_rate),
        identity() if linesearch is None else linesearch,
    )


@optimizer
def lbfgs_steps(memory_size: Size = 10, tol: NonNegative = 0.0) -> step_by_lbfgs:
    """L-BFGS for any training loop: its update takes one gradient and the loss, as `value`.

    The line search is in the state, and each update takes one trial of it:

        value, grad = jax.value_and_grad(loss)(params)
        updates, state = tx.update(grad, state, params, value=value)

    Evaluate and save `eval_params(state, params)`. For losses without noise: the same data at every
    update.

    See `step_by_lbfgs` for the arguments.

    Reference: Liu and Nocedal, On the limited memory BFGS method for large scale optimization,
    1989; Moré and Thuente, Line search algorithms with guaranteed sufficient decrease, 1994.
    """
    return step_by_lbfgs(memory_size, tol)


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
