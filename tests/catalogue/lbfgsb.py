"""Rows for `gradxform/transforms/lbfgs/lbfgsb.py` and its recipe."""

import jax
import jax.numpy as jnp

import gradxform as gx
from gradxform.testing import example_params
from tests import references as ref
from tests.catalogue.case import WEIGHTS, Case
from tests.catalogue.lbfgs_steps import FORM, LOSS, squares_reference

# Entries inside of the bounds and at each of them.
TREE = jax.tree.map(lambda p: jnp.clip(6 * p, -4, 4), example_params())
WHOLE = FORM | {"tree": TREE}
IN_BOX = FORM | {"tree": {k: TREE[k] for k in FORM["tree"]}}

TRANSFORMS: dict[str, Case] = {
    "step_by_lbfgsb": Case(
        gx.step_by_lbfgsb(10, -5.0, 5.0),
        ref.lbfgsb(squares_reference, 10, -5.0, 5.0),
        rtol=2e-3,
        **IN_BOX,
    ),
    "step_by_lbfgsb/from its bounds": Case(
        gx.step_by_lbfgsb(10, -4.0, 4.0),
        ref.lbfgsb(squares_reference, 10, -4.0, 4.0),
        rtol=2e-3,
        **IN_BOX,
        derivatives=None,  # of an entry at a bound the two sides differ
    ),
    "step_by_lbfgsb/two pairs, one bound": Case(
        gx.step_by_lbfgsb(2, lower=-4.0),
        ref.lbfgsb(squares_reference, 2, -4.0),
        rtol=2e-3,
        **WHOLE,
        derivatives=None,  # nor do they agree here
    ),
    "step_by_lbfgsb/tol": Case(
        gx.step_by_lbfgsb(tol=2.5),
        ref.lbfgsb(squares_reference, tol=2.5),
        rtol=2e-3,
        **IN_BOX,
    ),
}

OPTIMIZERS: dict[str, Case] = {
    "lbfgsb": Case(
        gx.lbfgsb(3, upper=5.0),
        ref.lbfgsb(squares_reference, 3, upper=5.0),
        rtol=2e-3,
        **IN_BOX,
    ),
}


def begun(params=WEIGHTS, **bounds):
    return gx.lbfgsb(**bounds).init(params)


def of_another_size():
    return gx.lbfgsb().update(WEIGHTS, gx.lbfgsb(5).init(WEIGHTS), WEIGHTS, **LOSS)


REFUSED = [
    ("lbfgsb(0)", ValueError, "step_by_lbfgsb: memory_size must be at least 1, got 0."),
    ("lbfgsb(tol=-1.0)", ValueError, "step_by_lbfgsb: tol must be at least 0, got -1.0."),
    ("begun(lower=3.0, upper={'w': 5.0, 'k': 2.0})",
     ValueError, "step_by_lbfgsb: lower must be at most upper,", "they are 3.0 and 2.0 for ['k']."),
    ("begun(lower=2.0)", ValueError,
     "step_by_lbfgsb: parameter ['k'] starts at 1.0, below its bound 2.0.", "projection_box"),
    ("begun(upper={'w': np.zeros((3, 4)), 'k': None})",
     ValueError, "step_by_lbfgsb: parameter ['w'] starts at 1.0, above its bound 0.0."),
    ("begun(upper={'w': [1.0, 2.0], 'k': None})",
     ValueError, "step_by_lbfgsb: upper of ['w'] has shape (2,), the parameter has (3, 4)."),
    ("begun(upper={'w': 2.0})",
     ValueError, "step_by_lbfgsb: upper has no entry for ['k']; give a number, or None"),
    ("begun(lower={'w': 0.0, 'k': 0.0, 'bias': 0.0})",
     ValueError, "step_by_lbfgsb: lower has an entry ['bias'], the parameters have none."),
    ("begun(lower={'w': 'zero', 'k': 0.0})",
     TypeError, "lbfgsb: lower must be a number, a tree of numbers and None,"),
    ("begun(lower={'w': float('nan'), 'k': 0.0})",
     ValueError, "lbfgsb: lower must not be NaN, got"),
    ("begun(COMPLEX)", TypeError, "step_by_lbfgsb: ['w'] is complex", "split_real_and_imaginary"),
    ("one_step(lbfgsb())", TypeError, "step_by_lbfgsb: needs the extra argument 'value'"),
    ("one_step(lbfgsb(), value=jnp.ones(1))",
     TypeError, "step_by_lbfgsb: value must be the loss, a scalar, got an array of shape (1,)."),
    ("lbfgsb().update(WEIGHTS, lbfgsb().init(WEIGHTS), **LOSS)",
     ValueError, "step_by_lbfgsb: needs the parameters"),
    ("of_another_size()",
     ValueError, "step_by_lbfgsb: the state holds 5 pairs, memory_size is 10.", "memory_size=5"),
    ("lbfgsb(lower='0')", TypeError,
     "lbfgsb: lower must be a number, a tree of numbers and None, or a function", "got '0'."),
    ("step_by_lbfgsb(upper=True)",
     TypeError, "step_by_lbfgsb: upper must be a number, a tree of numbers and None,", "got True."),
    ("lbfgsb(lower={'w': [0.0, None, 0.5]}).init({'w': jnp.ones(3)})", ValueError,
     "step_by_lbfgsb: lower of ['w'] must be a number or the numbers", "write -inf for None."),
]  # fmt: skip
