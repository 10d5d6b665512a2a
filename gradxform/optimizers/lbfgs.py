"""L-BFGS."""

from typing import Any

from gradxform.base import check_transform
from gradxform.interop import identity
from gradxform.optimizers.optimizer import optimizer
from gradxform.transforms.lbfgs import scale_by_lbfgs
from gradxform.transforms.lbfgs.zoom import scale_by_zoom_linesearch
from gradxform.transforms.scaling import scale, scale_by_learning_rate
from gradxform.types import ScalarOrSchedule, Size
from gradxform.wrappers.compose import chain

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
    if linesearch is not None:
        check_transform("lbfgs", linesearch, "linesearch")
    return chain(
        scale_by_lbfgs(memory_size, scale_init_precond),
        scale(-1.0) if learning_rate is None else scale_by_learning_rate(learning_rate),
        identity() if linesearch is None else linesearch,
    )
