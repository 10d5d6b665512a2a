"""Rows for `gradxform/wrappers/magma.py`."""

import gradxform as gx
from tests import references as ref
from tests.catalogue.case import ADAM, Case, with_lr

WRAPPERS: dict[str, Case] = {
    "magma": Case(gx.magma(gx.adam(0.1), key=3), None, rows=False),
    "magma/always": Case(
        gx.magma(gx.adam(0.1), 1.0, 0.5, 0.6, 0.7, first_score=0.3),
        ref.magma(with_lr(0.1, ADAM), 0.5, 0.6, 0.7, 0.3),
        rows=False,
    ),
}


REFUSED = [
    ("magma(adam)", TypeError, "magma: inner is the function adam", "call it"),
    ("magma(adam(0.1), 1.5)", ValueError, "magma: probability must be in [0, 1], got 1.5."),
    ("magma(adam(0.1), tau=0.0)", ValueError, "magma: tau must be greater than 0, got 0.0."),
    ("magma(ftrl(0.1))", ValueError,
     "magma: it moves the parameters, and step_by_ftrl goes on from a place of its own"),
    ("magma(gd.tower(sgd(0.1), 'replicas'))",
     ValueError, "magma: tower in it combines", "Put it inside: tower(magma(...), ...)."),
]  # fmt: skip
