"""Rows for `gradxform/wrappers/flatten.py`."""

import jax.numpy as jnp

import gradxform as gx
from tests import references as ref
from tests.catalogue.case import ADAM, Case, with_lr

WRAPPERS: dict[str, Case] = {
    "flatten": Case(gx.flatten(gx.adam(0.1)), with_lr(0.1, ADAM), rows=False),
    # What looks at an array looks at all of them.
    "flatten/norm": Case(
        gx.flatten(gx.clip_by_block_norm(1.0)), ref.clip_by_global_norm(1.0), rows=False
    ),
}

MIXED = {"w": jnp.ones(2), "c": jnp.ones(3, jnp.complex64)}
REFUSED = [
    ("flatten(sgd)", TypeError, "flatten: inner is the function sgd", "call it"),
    ("flatten(sgd(0.1)).init(MIXED)", TypeError,
     "flatten: some arrays are complex and others real", "split_real_and_imaginary(flatten("),
    ("flatten(sgd(0.1)).update({'w': None, 'b': jnp.ones(2)}, ())",
     ValueError, "flatten: the gradient of ['w'] is None, so it needs the parameters"),
    ("one_step(flatten(adam(0.1)), grads={'w': jnp.ones(3)})",
     ValueError, "flatten: gradient of ['w'] has shape (3,), the parameter has (2, 3)."),
]  # fmt: skip
