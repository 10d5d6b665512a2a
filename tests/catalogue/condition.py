"""Rows for `gradxform/wrappers/condition.py`."""

import gradxform as gx
from tests import references as ref
from tests.catalogue.case import ADAM, Case, with_lr

ADAM_STEP = with_lr(0.1, ADAM)


def at_even_steps(step, **extra):
    """A condition on the step; other arguments are ignored."""
    return step % 2 == 0


def at_steps(step, rest, **extra):
    """A condition on the step and on one extra argument."""
    return step % 2 == rest


WRAPPERS: dict[str, Case] = {
    "conditionally_mask": Case(
        gx.conditionally_mask(gx.adam(0.1), at_even_steps),
        ref.at_some_steps(ADAM_STEP, at_even_steps),
        pickles=False,
    ),
    "conditionally_transform": Case(
        gx.conditionally_transform(gx.adam(0.1), at_steps, forward_extra_args=True),
        ref.at_some_steps(ADAM_STEP, at_even_steps, lambda g: g),
        extra={"rest": 0},
        pickles=False,
        rows=False,
    ),
}

SGD = gx.sgd(0.1)


REFUSED = [
    ("conditionally_transform(ftrl(0.1), at_even_steps)",
     ValueError, "conditionally_transform: it moves the parameters, and step_by_ftrl goes on from"),
    ("conditionally_mask(0.1, at_even_steps)",
     TypeError, "conditionally_mask: inner must have init and update"),
    ("conditionally_transform(SGD, 3)",
     TypeError, "conditionally_transform: should_transform_fn must be", "got 3."),
    ("conditionally_mask(SGD, lambda step, value: True)",
     TypeError, "should_transform_fn is called with the step alone", "forward_extra_args=True"),
    ("one_step(conditionally_mask(SGD, lambda step: 0.5))",
     TypeError, "the result of should_transform_fn must be True or False, got 0.5."),
    ("one_step(conditionally_transform(SGD, lambda step: jnp.ones(2, bool)))",
     TypeError, "the result of should_transform_fn must be True or False", "shape (2,)"),
    ("conditionally_mask(SGD, at_even_steps).update({'w': jnp.ones(2)}, "
     "conditionally_transform(SGD, at_even_steps).init({'w': jnp.ones(2)}))",
     TypeError,
     "the state must be of kind ConditionallyMaskState, got ConditionallyTransformState."),
]  # fmt: skip
