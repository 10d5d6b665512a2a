"""Rows for `gradxform/transforms/muown.py` and its recipe."""

import gradxform as gx
from tests import references as ref
from tests.catalogue.case import FALLING, Case, falling, matrix
from tests.catalogue.muon import flat
from tests.catalogue.normuon import COARSE, masked

FEW = {"rtol": COARSE, "rows": False, "huge_ok": 1 / 8}  # it sums over the inputs of a neuron

TRANSFORMS: dict[str, Case] = {
    "step_by_muown": Case(
        masked(
            gx.step_by_muown,
            learning_rate=0.1,
            beta=0.5,
            b1=0.6,
            b2=0.7,
            weight_decay=0.3,
            adam_eps=0.2,
            consistent_rms=0.4,
            eps=0.3,
        ),
        ref.only(matrix, ref.muown(0.1, 0.5, 0.6, 0.7, 0.3, 0.2, rms=0.4, eps=0.3)),
        **FEW,
    ),
    "step_by_muown/ahead": Case(
        masked(gx.step_by_muown, learning_rate=FALLING, nesterov=True, consistent_rms=None),
        ref.only(matrix, ref.muown(falling, ahead=True, rms=None)),
        **FEW,
    ),
    # At this rate the norm of a neuron becomes negative, and positive again.
    "step_by_muown/crossing": Case(
        masked(gx.step_by_muown, learning_rate=1.5, beta=0.5),
        ref.only(matrix, ref.muown(1.5, 0.5)),
        **FEW | {"rtol": 1e-3},  # near 0 a norm loses digits
    ),
}


OPTIMIZERS: dict[str, Case] = {
    "muown": Case(
        gx.muown(0.1, weight_decay=0.3),
        ref.sequence(
            ref.only(flat, ref.muown(0.1, decay=0.3)),
            ref.only(lambda p: not flat(p), ref.adam(0.9, 0.95, 1e-8)),
            ref.only(lambda p: not flat(p), ref.decay(0.3)),
            ref.only(lambda p: not flat(p), ref.scale(-0.1)),
        ),
        **FEW,
    ),
}


REFUSED = [
    ("muown(0.1, ns_coeffs='dino')",
     ValueError, "muown: ns_coeffs must be numbers", "got 'dino'. Did you mean 'dion'?"),
    ("muown(-0.1)", ValueError, "step_by_muown: learning_rate must be at least 0, got -0.1."),
    ("step_by_muown(0.1).init(WEIGHTS)",
     ValueError, "parameter ['k'] of shape (2, 3, 2) is not a matrix. Give its weight_dimension"),
    ("one_step(chain(step_by_muown(0.1), scale(-0.1)))",
     ValueError, "scale changes the updates of step_by_muown before it"),
]  # fmt: skip
