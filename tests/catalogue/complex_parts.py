"""Rows for `gradxform/wrappers/complex_parts.py`."""

import jax.numpy as jnp
import numpy as np

import gradxform as gx
from tests import references as ref
from tests.catalogue.case import ADAM, Case, with_lr

_RNG = np.random.default_rng(5)
MIXED = {
    "w": jnp.asarray(_RNG.normal(size=(4, 3)) + 1j * _RNG.normal(size=(4, 3)), jnp.complex64),
    "b": jnp.asarray(_RNG.normal(size=5), jnp.float32),
}

WRAPPERS: dict[str, Case] = {
    "split_real_and_imaginary": Case(gx.split_real_and_imaginary(gx.adam(0.1)), with_lr(0.1, ADAM)),
    "split_real_and_imaginary/complex": Case(
        gx.split_real_and_imaginary(gx.adam(0.1)),
        ref.parts(with_lr(0.1, ADAM)),
        tree=MIXED,
        holds_optimizer=False,  # its parts have other paths
    ),
}


REFUSED = [
    ("split_real_and_imaginary(adam)",
     TypeError, "split_real_and_imaginary: inner is the function adam, not a transform; call it"),
    ("split_real_and_imaginary(None)", TypeError, "inner must have init and update"),
    ("split_real_and_imaginary(sgd(0.1)).update(MIXED, (), MIXED)",
     TypeError, "split_real_and_imaginary: the state must be of kind SplitRealAndImaginaryState"),
]  # fmt: skip
