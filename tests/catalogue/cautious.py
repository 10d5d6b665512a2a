"""Rows for `gradxform/wrappers/cautious.py` and its recipes."""

import gradxform as gx
from tests import references as ref
from tests.catalogue.case import ADAM, Case, with_lr

WRAPPERS: dict[str, Case] = {
    "cautious": Case(
        gx.cautious(gx.adam(0.1)), ref.cautious(with_lr(0.1, ADAM), sign=-1), rows=False
    ),
    "cautious/xi": Case(
        gx.cautious(gx.trace(0.9), 3.0, descent=False),
        ref.cautious(ref.trace(0.9), 3.0),
        rows=False,
        huge_ok=1 / 8,  # it stretches updates
    ),
}


OPTIMIZERS: dict[str, Case] = {
    "cautious_adamw": Case(
        gx.cautious_adamw(0.1, weight_decay=0.2, xi=0.5),
        with_lr(0.1, ref.cautious(ADAM, 0.5), ref.decay(0.2)),
        rows=False,
    ),
    "cautious_lion": Case(
        gx.cautious_lion(0.1, weight_decay=0.2),
        with_lr(0.1, ref.cautious(ref.lion(0.9, 0.99)), ref.decay(0.2)),
        rows=False,
    ),
}


REFUSED = [
    ("cautious(ftrl(0.1))", ValueError,
     "cautious: it moves the parameters, and step_by_ftrl goes on from a place of its own"),
    ("cautious(adam)", TypeError, "cautious: inner is the function adam", "call it"),
    ("cautious(adam(0.1), -1.0)", ValueError, "cautious: xi must be at least 0, got -1.0."),
    ("cautious(adam(0.1), descent=1)", TypeError, "descent must be True or False"),
    ("cautious(gd.tower(sgd(0.1), 'replicas'))",
     ValueError, "cautious: tower in it combines", "Put it inside: tower(cautious(...), ...)."),
    ("cautious_adamw(0.1, b1=1.0)", ValueError, "scale_by_adam: b1 must be in [0, 1)"),
]  # fmt: skip
