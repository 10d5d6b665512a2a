"""Rows for `gradxform/wrappers/mechanize.py`."""

import gradxform as gx
from tests import references as ref
from tests.catalogue.case import ADAM, SGD, Case, with_lr

WRAPPERS: dict[str, Case] = {
    "mechanize": Case(
        gx.mechanize(gx.adam(0.5), s_init=0.3),
        ref.mechanic(with_lr(0.5, ADAM), 1e-2, 1e-8, 0.3, 6),
        rows=False,
        huge_ok=False,
    ),
    "mechanize/decay": Case(
        gx.mechanize(gx.scale(-0.1), weight_decay=0.5, eps=0.2, s_init=0.1, num_betas=2),
        ref.mechanic(SGD, 0.5, 0.2, 0.1, 2),
        rows=False,
        huge_ok=False,
    ),
}


REFUSED = [
    ("mechanize(adam)", TypeError, "mechanize: base_optimizer is", "call it"),
    ("mechanize(sgd(1.0), weight_decay=-0.1)",
     ValueError, "mechanize: weight_decay must be at least 0, got -0.1."),
    ("mechanize(sgd(1.0), eps=0)", ValueError, "eps must be greater than 0, got 0"),
    ("mechanize(sgd(1.0), s_init=0.0)", ValueError, "s_init must be greater than 0"),
    ("mechanize(sgd(1.0), num_betas=0)",
     ValueError, "mechanize: num_betas must be at least 1, got 0."),
    ("mechanize(gd.tower(sgd(1.0), 'replicas'))",
     ValueError, "mechanize: tower in it combines", "Put it inside: tower(mechanize(...), ...)."),
    ("one_step(mechanize(sgd(1.0)), COMPLEX)", TypeError,
     "mechanize: gradient of ['w'] has dtype complex64", "split_real_and_imaginary(mechanize("),
    ("mechanize(sgd(1.0)).update({'w': jnp.ones(2)}, adam(0.1).init({'w': jnp.ones(2)}), {'w': "
     "jnp.ones(2)})",
     TypeError, "mechanize: the state must be of kind MechanicState, got tuple."),
]  # fmt: skip
