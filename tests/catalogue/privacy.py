"""Rows for `gradxform/transforms/privacy.py` and its recipes."""

import gradxform as gx
from tests import references as ref
from tests.catalogue.case import Case, with_lr

TRANSFORMS: dict[str, Case] = {
    "differentially_private_aggregate": Case(
        gx.differentially_private_aggregate(1.0, 0.5, 0), None, examples=8
    ),
    "differentially_private_aggregate/quiet": Case(
        gx.differentially_private_aggregate(5.0, 0.0, 0), ref.private_mean(5.0), examples=8
    ),
}


OPTIMIZERS: dict[str, Case] = {
    # Named as a variant: it has three required arguments besides the learning rate.
    "dpsgd/momentum": Case(
        gx.dpsgd(0.1, 1.0, 0.0, 0, 0.9),
        with_lr(0.1, ref.private_mean(1.0), ref.trace(0.9)),
        examples=8,
    ),
}


REFUSED = [
    ("dpsgd(0.1, 0.0, 1.0, 0)",
     ValueError, "differentially_private_aggregate: l2_norm_clip must be greater than 0, got 0.0."),
    ("dpsgd(0.1, 1.0, 1.0, 0, nesterov=True)",
     ValueError, "dpsgd: nesterov=True does nothing without a momentum."),
    ("one_step(dpsgd(0.1, 1.0, 1.0, 0))", ValueError,
     "gradient of ['w'] has shape (3,) after its axis of examples, the parameter has (2, 3)."),
    ("one_step(dpsgd(0.1, 1.0, 1.0, 0), grads={'w': jnp.ones((0, 2, 3))})",
     ValueError, "gradient of ['w'] has shape (0, 2, 3); it must have a leading axis of examples"),
    ("dpsgd(0.1, 1.0, 1.0, 0).update({'a': jnp.ones(3), 'b': jnp.ones(2)}, dpsgd(0.1, 1.0, 1.0, "
     "0).init({'a': jnp.ones(()), 'b': jnp.ones(())}))",
     ValueError, "gradient of ['b'] has 2 examples, that of ['a'] has 3."),
]  # fmt: skip
