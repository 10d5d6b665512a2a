"""Rows for `gradxform/transforms/plateau.py`."""

import jax.numpy as jnp

import gradxform as gx
from tests import references as ref
from tests.catalogue.case import Case

VALUE = {"value": jnp.asarray(-3.0)}

# The loss is the same at every step.
TRANSFORMS: dict[str, Case] = {
    "reduce_on_plateau": Case(
        gx.reduce_on_plateau(0.5, 2, atol=0.5, cooldown=1, min_scale=0.3),
        ref.plateau(0.5, 2, atol=0.5, cooldown=1, min_scale=0.3, value=-3.0),
        extra=VALUE,
    ),
    "reduce_on_plateau/means": Case(
        gx.reduce_on_plateau(0.2, 1, 0.5, 1.0, accumulation_size=2),
        ref.plateau(0.2, 1, 0.5, 1.0, size=2, value=-3.0),
        extra=VALUE,
    ),
}


REFUSED = [
    ("reduce_on_plateau(1.0)", ValueError, "reduce_on_plateau: factor must be in (0, 1), got 1.0."),
    ("reduce_on_plateau(patience=0)",
     ValueError, "reduce_on_plateau: patience must be at least 1, got 0."),
    ("reduce_on_plateau(rtol=1.5)",
     ValueError, "reduce_on_plateau: rtol must be in [0, 1], got 1.5."),
    ("reduce_on_plateau(atol=-1.0)", ValueError, "atol must be at least 0, got -1.0."),
    ("reduce_on_plateau(rtol=0.0)",
     ValueError, "reduce_on_plateau: rtol and atol must not both be 0"),
    ("reduce_on_plateau(cooldown=-1)", ValueError, "cooldown must be at least 0"),
    ("reduce_on_plateau(accumulation_size=0)",
     ValueError, "accumulation_size must be at least 1, got 0."),
    ("reduce_on_plateau(min_scale=2.0)", ValueError, "min_scale must be in [0, 1]"),
    ("one_step(reduce_on_plateau())",
     TypeError, "reduce_on_plateau: needs the extra argument 'value'"),
    ("one_step(reduce_on_plateau(), value=jnp.ones(3))",
     TypeError, "reduce_on_plateau: value must be the loss, a scalar, got an array of shape (3,)."),
    ("one_step(chain(scale(1.0), reduce_on_plateau()), valeu=3.0)",
     TypeError, "chain: no part takes the extra argument 'valeu'", "Did you mean 'value'?"),
]  # fmt: skip
