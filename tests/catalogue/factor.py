"""Rows for `gradxform/wrappers/factor.py`."""

import jax.numpy as jnp

import gradxform as gx
from tests import references as ref
from tests.catalogue.case import ADAM, Case

RULE = gx.scale_by_adam()
MATRIX = {"w": jnp.ones((256, 256))}

WRAPPERS: dict[str, Case] = {
    "factor_state": Case(
        gx.factor_state(RULE, min_dim_size_to_factor=2), ref.factored(ADAM, 1, 2), rows=False
    ),
    "factor_state/several": Case(
        gx.factor_state(gx.scale_by_amsgrad(), ("nu", "nu_max"), min_dim_size_to_factor=2),
        rows=False,
    ),
}

REFUSED = [
    ("factor_state(RULE, 'mu', 2).init(MATRIX)", TypeError,
     "factor_state: the slot mu of ['w'] may have negative entries, of which row and", "Name"),
    ("factor_state(RULE, 'v').init(MATRIX)", ValueError,
     "factor_state: slot names 'v', which is not a slot of scale_by_adam; there are mu, nu."),
    ("factor_state(RULE, path_matches('w'))",
     TypeError, "factor_state: slot must be the name of a slot, such as 'nu', or several, got"),
    ("factor_state(RULE, ())", TypeError, "slot must be the name of a slot"),
    ("factor_state(RULE, min_dim_size_to_factor=-1)",
     ValueError, "factor_state: min_dim_size_to_factor must be at least 0, got -1."),
    ("factor_state(lookahead(RULE, 3, 0.5), 'slow_params').init(MATRIX)",
     ValueError, "factor_state: slot names 'slow_params', which is not a slot"),
    ("one_step(factor_state(RULE), MATRIX, "
     "{'w': gx.sparse.RowSparse(jnp.asarray([0]), jnp.ones((1, 256)), 256)})",
     TypeError,
     "scale_by_adam: its slot for ['w'] is stored as means, each of which several rows share"),
]  # fmt: skip
