"""Rows for `gradxform/wrappers/accumulation/accumulate.py`."""

import jax.numpy as jnp
import numpy as np

import gradxform as gx
from gradxform.testing import random_gradients
from tests import references as ref
from tests.catalogue.case import ADAM, Case, one_step, with_lr

ADAM_STEP = with_lr(0.1, ADAM)


def with_a_bad_batch(params, steps):
    """Gradients of which the second has a NaN, and the fifth and sixth an infinity."""
    grads = random_gradients(params, steps)
    for t, bad in ((1, np.nan), (4, np.inf), (5, -np.inf)):
        if t < steps:
            grads[t]["b"] = grads[t]["b"].at[0].set(bad)
    return grads


def growing(n):
    """A schedule in NumPy: linear_schedule(1, 4, 3)."""
    return min(1 + n, 4)


WRAPPERS: dict[str, Case] = {
    "accumulate": Case(
        gx.accumulate(gx.adam(0.1), 3),
        ref.accumulate(ADAM_STEP, 3),
        rows=False,
    ),
    "accumulate/bad": Case(
        gx.accumulate(gx.adam(0.1), 2),
        ref.accumulate(ADAM_STEP, 2),
        rows=False,
        draw=with_a_bad_batch,
    ),
    "accumulate/growing sum": Case(
        gx.accumulate(gx.trace(0.9), gx.linear_schedule(1, 4, 3), "sum", skip_not_finite=False),
        ref.accumulate(ref.trace(0.9), growing, lambda gs, ws: sum(gs)),
        rows=False,
    ),
    "accumulate/weighted": Case(
        gx.accumulate(gx.adam(0.1), 2, "weighted", differentiable=True),
        ref.accumulate(ADAM_STEP, 2, ref.weighted, lambda n: 3.0),
        rows=False,
        extra={"weight": 3},
    ),
    "accumulate/one": Case(
        gx.accumulate(gx.adam(0.1), 1), ref.accumulate(ADAM_STEP, 1), rows=False
    ),
}

PARAMS = {"w": jnp.ones((2, 3))}
SGD = gx.sgd(0.1)


def weigh(weight, **options):
    """One update with that weight."""
    return one_step(gx.accumulate(SGD, 2, "weighted", **options), weight=weight)


def with_state_of(other, tx):
    """One update with the state of another transform."""
    return tx.update(PARAMS, other.init(PARAMS), PARAMS)


REFUSED = [
    ("accumulate(SGD, 0)", ValueError, "accumulate: every must be at least 1, got 0."),
    ("accumulate(SGD, -1)", ValueError, "every must be at least 1, got -1."),
    ("accumulate(SGD, 1.5)", TypeError, "every must be an integer", "got 1.5."),
    ("accumulate(SGD, '2')", TypeError, "every must be an integer", "got '2'."),
    ("accumulate(SGD, True)", TypeError, "every must be an integer", "got True."),
    ("accumulate(SGD, None)", TypeError, "every must be an integer", "got None."),
    ("accumulate(SGD, lambda a, b: 2)",
     TypeError, "accumulate: every must be a schedule", "(a, b)"),
    ("one_step(accumulate(SGD, lambda n: 0))",
     ValueError, "accumulate: every must return an integer of at least 1, got 0."),
    ("accumulate(0.1, 2)", TypeError, "accumulate: inner must have init and update"),
    ("accumulate(sgd, 2)", TypeError, "inner is", "call it: sgd(...)"),
    ("accumulate(SGD, 2, 'wieghted')",
     ValueError, "reduction must be one of 'mean', 'sum', 'weighted'", "Did you mean 'weighted'?"),
    ("accumulate(SGD, 2, None)", ValueError, "reduction must be one of", "got None."),
    ("accumulate(SGD, 2, accumulator_dtype='int32')",
     ValueError, "accumulator_dtype must be a floating dtype, got 'int32'."),
    ("accumulate(SGD, 2, skip_not_finite=1)",
     TypeError, "skip_not_finite must be True or False, got 1."),
    ("one_step(accumulate(SGD, 2, 'weighted'))",
     TypeError, "accumulate: needs the extra argument 'weight'", "weight=..."),
    ("one_step(accumulate(SGD, 2, 'weighted'), wieght=1)",
     TypeError, "no part takes the extra argument 'wieght'. Did you mean 'weight'?"),
    ("weigh(-1)", ValueError, "accumulate: weight must be at least 0, got -1."),
    ("weigh(jnp.ones(4))",
     TypeError, "weight must be one real number, got an array of shape (4,)."),
    ("weigh('1')", TypeError, "weight must be one real number, got '1'."),
    ("weigh(True)", TypeError, "weight must be one real number, got True."),
    ("with_state_of(MultiSteps(SGD, 2), accumulate(SGD, 2))",
     TypeError, "the state must be of kind AccumulateState, got MultiStepsState."),
    ("with_state_of(accumulate(SGD, 2), MultiSteps(SGD, 2))",
     TypeError, "the state must be of kind MultiStepsState, got AccumulateState."),
    ("with_state_of(accumulate(SGD, 2), accumulate(SGD, 1))",
     ValueError, "accumulate: every is 1, and the state has an accumulator."),
    ("with_state_of(accumulate(SGD, 1), accumulate(SGD, 2))",
     ValueError, "the updates have a leaf ['w'], the state's acc_grads has none."),
    ("one_step(accumulate(SGD, 2), grads={'w': jnp.ones((3, 2))})",
     ValueError, "accumulate: gradient of ['w'] has shape (3, 2), the parameter has (2, 3)."),
    ("accumulate(SGD, 2**40)", ValueError,
     "accumulate: every must be an integer of 32 bits, at most 2**31 - 1, got 1099511627776."),
    ("one_step(accumulate(SGD, lambda n: True))",
     ValueError, "accumulate: every must return an integer of at least 1, got True."),
    ("one_step(accumulate(SGD, lambda n: 2**40))", ValueError,
     "accumulate: every must return an integer of 32 bits, at most 2**31 - 1, got 1099511"),
    ("one_step(MultiSteps(SGD, lambda n: True))",
     ValueError, "MultiSteps: every_k_schedule must return an integer of at least 1, got True."),
]  # fmt: skip
