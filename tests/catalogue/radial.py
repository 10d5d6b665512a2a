"""Rows for `gradxform/wrappers/radial.py` and its recipes."""

import gradxform as gx
from tests import references as ref
from tests.catalogue.case import ADAM, FALLING, FALLING_LR, Case, matrix, with_lr

WRAPPERS: dict[str, Case] = {
    "remove_radial": Case(
        gx.remove_radial(gx.scale_by_adam()), ref.remove_radial(ADAM, 0.1, 0.1), rows=False
    ),
    # Some rows of the gradients pass the test, some as one row only, and some do not.
    "remove_radial/decay": Case(
        gx.remove_radial(gx.trace(0.5), 1.2, 0.25, 0.2, eps=0.3),
        ref.remove_radial(ref.trace(0.5), 1.2, 0.25, 0.2, 0.3),
        rows=False,
        huge_ok=1 / 8,  # momentum is up to twice the gradient
    ),
    "remove_radial/first axis": Case(
        gx.remove_radial(gx.trace(0.5), 10.0, 0.5, 0.2, gx.ndim_at_least(2), axis=0),
        ref.remove_radial(ref.trace(0.5), 10.0, 0.5, 0.2, axis=0, decays=matrix),
        rows=False,
        huge_ok=1 / 8,
    ),
    "remove_radial/eps": Case(
        gx.remove_radial(gx.scale(1.0), 10.0, eps=0.0),
        ref.remove_radial(ref.scale(1.0), 10.0, 0.1, eps=1e-30),
        rows=False,
        huge_ok=1 / 8,  # a projected row may have larger entries
    ),
}


OPTIMIZERS: dict[str, Case] = {
    "adamp": Case(
        gx.adamp(0.1, delta=1.0, weight_decay=0.2, axis=0),
        with_lr(0.1, ref.remove_radial(ADAM, 1.0, 0.1, 0.2, axis=0)),
        rows=False,
    ),
    "adamp/nesterov": Case(
        gx.adamp(0.1, delta=1.0, nesterov=True),
        with_lr(0.1, ref.remove_radial(ref.adam_hat(0.9, 0.999, 1e-8, look_ahead=True), 1.0, 0.1)),
        rows=False,
    ),
    "sgdp": Case(
        gx.sgdp(FALLING, 0.5, 0.2, gx.ndim_at_least(2), 1.2, 0.2, nesterov=True),
        ref.sequence(
            ref.remove_radial(ref.trace(0.5, True), 1.2, 0.2, 0.4, decays=matrix), FALLING_LR
        ),
        rows=False,
        huge_ok=1 / 8,  # momentum is up to twice the gradient
    ),
}


REFUSED = [
    ("one_step(remove_radial(scale(1.0), axis=2))",
     ValueError, "remove_radial: an array of shape (2, 3) does not have the axis 2; leave it out"),
    ("remove_radial(gd.tower(scale(1.0), 'replicas'))",
     ValueError, "remove_radial: tower in it combines"),
    ("adamp(0.1, delta=-1.0)", ValueError, "remove_radial: delta must be at least 0"),
    ("sgdp(0.1, 1.0)", ValueError, "sgdp: momentum must be in [0, 1)"),
    ("sgdp(0.1, weight_decay=-1.0)",
     ValueError, "sgdp: weight_decay must be at least 0, got -1.0."),
]  # fmt: skip
