"""Rows for `gradxform/transforms/muon.py` and its recipes."""

import numpy as np

import gradxform as gx
from tests import references as ref
from tests.catalogue.case import ADAM, NADAM, Case, matrix


def flat(p):
    """Whether an array has two dimensions."""
    return np.ndim(p) == 2


MUON = ref.sequence(
    ref.only(flat, ref.muon()),
    ref.only(flat, ref.shape_factor(0.2)),
    ref.only(flat, ref.decay(0.3)),
    ref.only(lambda p: not flat(p), NADAM),
    ref.scale(-0.1),
)

NUMBERS = gx.MuonDimensionNumbers

TRANSFORMS: dict[str, Case] = {
    "scale_by_muon": Case(
        gx.masked(
            gx.scale_by_muon(
                beta=0.5, eps=2.0, weight_dimension_numbers=gx.MuonDimensionNumbers(0, -1)
            ),
            gx.ndim_at_least(2),
        ),
        ref.only(matrix, ref.muon(0.5, columns=-1, eps=2.0)),
        rows=False,
        huge_ok=1 / 8,  # with nesterov, the average is 1.5 times the gradient
    ),
    "scale_by_muon/as Jordan": Case(
        gx.masked(
            gx.scale_by_muon(
                beta=0.5, debias=False, weight_dimension_numbers=gx.MuonDimensionNumbers(0, -1)
            ),
            gx.ndim_at_least(2),
        ),
        ref.only(matrix, ref.muon(0.5, columns=-1, debias=False)),
        rtol=1e-4,
        rows=False,
        huge_ok=1 / 8,  # with nesterov, the average is 1.5 times the gradient
    ),
    "scale_by_shape/consistent": Case(
        gx.masked(
            gx.scale_by_shape(gx.MuonDimensionNumbers(0, -1), consistent_rms=0.2),
            gx.ndim_at_least(2),
        ),
        ref.only(matrix, ref.shape_factor(0.2)),
        rows=False,
    ),
}


OPTIMIZERS: dict[str, Case] = {
    "muon": Case(
        gx.muon(0.1, weight_decay=0.3, consistent_rms=0.2),
        MUON,
        rtol=1e-4,  # five turns of its polynomial, of slope 3.4 at 0, enlarge a rounding
        names=("scale_by_shape", "muon_labels", "matrix_split"),
        huge_ok=1 / 8,  # with nesterov, the average is 1.5 times the gradient
    ),
    "muon/as Jordan": Case(
        gx.muon(0.1, debias=False),
        ref.sequence(
            ref.only(flat, ref.muon(debias=False)),
            ref.only(flat, ref.shape_factor()),
            ref.only(lambda p: not flat(p), ADAM),
            ref.scale(-0.1),
        ),
        rtol=1e-4,
        huge_ok=1 / 8,  # with nesterov, the average is 1.5 times the gradient
    ),
}


REFUSED = [
    ("muon(0.1, 'dino')", ValueError, "got 'dino'. Did you mean 'dion'?"),
    ("muon(0.1, (1.0, 2.0))",
     ValueError, "ns_coeffs must be three numbers, or three for each turn, got (1.0, 2.0)."),
    ("muon(0.1, 'dion', 4)",
     ValueError, "scale_by_muon: ns_coeffs has 5 turns, ns_steps allows 4."),
    ("muon(0.1, preconditioning='shatten')",
     ValueError, "preconditioning must be one of", "Did you mean 'schatten'?"),
    ("scale_by_muon().init(WEIGHTS)",
     ValueError, "parameter ['k'] of shape (2, 3, 2) is not a matrix. Give its weight_dimension"),
    ("scale_by_muon(weight_dimension_numbers=NUMBERS(0, 2)).init(WEIGHTS)", ValueError,
     "(reduction_axis=0, output_axis=2) names an axis that parameter ['w'] of shape (3, 4) "),
    ("scale_by_muon(weight_dimension_numbers=NUMBERS(1, -1)).init(WEIGHTS)",
     ValueError, "names an axis of parameter ['w'] of shape (3, 4) twice."),
    ("scale_by_muon(weight_dimension_numbers={'w': 1, 'k': None})", TypeError,
     "entries of weight_dimension_numbers must be MuonDimensionNumbers, matrix_split or None"),
    ("scale_by_muon(weight_dimension_numbers=NUMBERS)", TypeError,
     "entries of weight_dimension_numbers must be", "got the class MuonDimensionNumbers"),
    ("muon(0.1, muon_weight_dimension_numbers={'w': NUMBERS()}).init(WEIGHTS)",
     ValueError, "muon_labels: no entry for the parameter ['k']."),
    ("muon(0.1, muon_weight_dimension_numbers=lambda p: 3).init(WEIGHTS)",
     TypeError, "numbers of ['k'] must be MuonDimensionNumbers, matrix_split or None, got 3."),
]  # fmt: skip
