"""Rows for `gradxform/wrappers/trac.py`."""

import gradxform as gx
from tests import references as ref
from tests.catalogue.case import ADAM, SGD, Case, with_lr
from tests.catalogue.dadapt import steady

# Gradients that go on pointing the same way: at a scale of 0, only roundings would move.
WRAPPERS: dict[str, Case] = {
    "trac": Case(
        gx.trac(gx.adam(0.5), s_init=0.3),
        ref.trac(with_lr(0.5, ADAM), 0.3, 1e-8, 6),
        rows=False,
        draw=steady,
        huge_ok=False,
    ),
    "trac/few": Case(
        gx.trac(gx.scale(-0.1), s_init=0.1, eps=4e-8, num_betas=2),
        ref.trac(SGD, 0.1, 4e-8, 2),
        rows=False,
        draw=steady,
        huge_ok=False,
    ),
}


REFUSED = [
    ("trac(adam)", TypeError, "trac: base_optimizer is", "call it"),
    ("trac(sgd(1.0), s_init=0.0)", ValueError, "trac: s_init must be greater than 0"),
    ("trac(sgd(1.0), num_betas=0)", ValueError, "trac: num_betas must be at least 1, got 0."),
    ("trac(gd.tower(sgd(1.0), 'replicas'))",
     ValueError, "trac: tower in it combines", "Put it inside: tower(trac(...), ...)."),
    ("trac(sgd(1.0)).update({'w': jnp.ones(2)}, adam(0.1).init({'w': jnp.ones(2)}), {'w': "
     "jnp.ones(2)})",
     TypeError, "trac: the state must be of kind TracState, got tuple."),
]  # fmt: skip
