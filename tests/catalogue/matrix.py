"""The rows of the rules of whole matrices; tests/test_parity_matrix.py has more of them."""

import numpy as np

import gradxform as gx
from tests import references as ref
from tests.catalogue.base import FALLING, SGD, Case, falling, matrix, with_lr

ADAM = ref.adam(0.9, 0.999, 1e-8)


def flat(p):
    """Whether an array has two dimensions."""
    return np.ndim(p) == 2


MUON = ref.sequence(
    ref.only(flat, ref.muon()),
    ref.only(flat, ref.shape_factor(0.2)),
    ref.only(flat, ref.decay(0.3)),
    ref.only(lambda p: not flat(p), ref.adam(0.9, 0.999, 1e-8, nesterov=True)),
    ref.scale(-0.1),
)

# An inverse root of a matrix that has seen fewer gradients than it has rows multiplies the
# roundings of float32 by as much as 100; hence the tolerances of Shampoo.
TRANSFORMS: dict[str, Case] = {
    "step_by_shampoo/options": Case(
        gx.step_by_shampoo(FALLING, 3, 0.9, 0.5, 0.8, 0.5, 2, 2, 1e-2, 0.7),
        ref.shampoo(lambda T: falling(T - 1), 3, 0.9, 0.5, 0.8, 0.5, 2, 2, 1e-2, 0.7),
        rtol=1e-4,
    ),
    "scale_by_ggt/window": Case(
        gx.scale_by_ggt(0.5, 3, 0.1, 1e-3, 0.1),
        ref.ggt(0.5, 3, 0.1, 1e-3, 0.1),
        rows=False,
    ),
    "scale_by_muon": Case(
        gx.masked(
            gx.scale_by_muon(
                beta=0.5, eps=2.0, weight_dimension_numbers=gx.MuonDimensionNumbers(0, -1)
            ),
            gx.ndim_at_least(2),
        ),
        ref.only(matrix, ref.muon(0.5, columns=-1, eps=2.0)),
        rows=False,
    ),
    "scale_by_shape/consistent": Case(
        gx.masked(
            gx.scale_by_shape(gx.MuonDimensionNumbers(0, -1), consistent_rms=0.2),
            gx.ndim_at_least(2),
        ),
        ref.only(matrix, ref.shape_factor(0.2)),
        rows=False,
    ),
    # Without a base that remembers, the signs of singular vectors do not matter.
    "scale_by_galore": Case(
        gx.scale_by_galore(2, 3, 0.5, gx.scale(-0.1)),
        ref.galore(2, 3, 0.5, SGD),
        rows=False,
    ),
}

OPTIMIZERS: dict[str, Case] = {
    "shampoo": Case(gx.shampoo(0.1), ref.shampoo(0.1), rtol=1e-4),
    "ggt": Case(gx.ggt(0.1), with_lr(0.1, ref.ggt()), rows=False),
    "muon": Case(
        gx.muon(0.1, weight_decay=0.3, consistent_rms=0.2),
        MUON,
        rtol=1e-4,  # five turns of its polynomial, of slope 3.4 at 0, enlarge a rounding
        names=("scale_by_shape", "muon_labels"),
    ),
    "galore": Case(
        gx.galore(0.1, 2, weight_decay=0.2),
        with_lr(0.1, ref.galore(2, 200, 1.0, ADAM), ref.decay(0.2)),
        rows=False,
    ),
}


def step(tx, params):
    """One update with the parameters for a gradient."""
    return tx.update(params, tx.init(params), params)


W = {"w": np.ones((3, 4), np.float32), "k": np.ones((2, 3, 2), np.float32)}
C = {"w": np.ones((3, 4), np.complex64)}
NUMBERS = gx.MuonDimensionNumbers
REFUSED = [
    (lambda: gx.shampoo(-1.0), ValueError, ("step_by_shampoo: learning_rate must be at least 0",)),
    (lambda: gx.shampoo(alpha=0.0), ValueError, ("alpha must be greater than 0, got 0.0.",)),
    (lambda: gx.shampoo(svd_interval=0), ValueError, ("svd_interval must be at least 1, got 0.",)),
    (
        lambda: gx.shampoo(alpha=FALLING, use_iterative_root=True),
        ValueError,
        ("alpha must be a Python number where use_iterative_root is True, got linear_s",),
    ),
    (
        lambda: gx.shampoo(alpha=1.0, use_iterative_root=True).init(W),
        ValueError,
        (
            "step_by_shampoo: use_iterative_root needs k / (2 alpha) to be an integer, parameter "
            "['k'] has k = 3 dimensions, alpha is 1.0.",
        ),
    ),
    (lambda: gx.shampoo().init(C), TypeError, ("parameter ['w'] has dtype complex64, for which",)),
    (lambda: step(gx.ggt(), C), TypeError, ("scale_by_ggt: gradient of ['w'] has dtype complex",)),
    (lambda: gx.ggt(window=0), ValueError, ("scale_by_ggt: window must be at least 1, got 0.",)),
    (lambda: gx.ggt(svd_eps=0.0), ValueError, ("svd_eps must be greater than 0, got 0.0.",)),
    (lambda: gx.muon(0.1, "dino"), ValueError, ("got 'dino'. Did you mean 'dion'?",)),
    (
        lambda: gx.muon(0.1, (1.0, 2.0)),
        ValueError,
        ("ns_coeffs must be three numbers, or three for each turn, got (1.0, 2.0).",),
    ),
    (
        lambda: gx.muon(0.1, "dion", 4),
        ValueError,
        ("scale_by_muon: ns_coeffs has 5 turns, ns_steps allows 4.",),
    ),
    (
        lambda: gx.muon(0.1, preconditioning="shatten"),
        ValueError,
        ("preconditioning must be one of", "Did you mean 'schatten'?"),
    ),
    (
        lambda: gx.scale_by_muon().init(W),
        ValueError,
        ("parameter ['k'] of shape (2, 3, 2) is no matrix. Give its weight_dimension_numbers",),
    ),
    (
        lambda: gx.scale_by_muon(weight_dimension_numbers=NUMBERS(0, 2)).init(W),
        ValueError,
        ("(reduction_axis=0, output_axis=2) names an axis that parameter ['w'] of shape (3, 4) ",),
    ),
    (
        lambda: gx.scale_by_muon(weight_dimension_numbers=NUMBERS(1, -1)).init(W),
        ValueError,
        ("names an axis of parameter ['w'] of shape (3, 4) twice.",),
    ),
    (
        lambda: gx.scale_by_muon(weight_dimension_numbers={"w": 1, "k": None}),
        TypeError,
        ("the entries of weight_dimension_numbers must be MuonDimensionNumbers or None, got 1.",),
    ),
    (
        lambda: gx.scale_by_muon(weight_dimension_numbers=NUMBERS),
        TypeError,
        ("weight_dimension_numbers must be MuonDimensionNumbers, a tree of them or a function",),
    ),
    (
        lambda: gx.muon(0.1, muon_weight_dimension_numbers={"w": NUMBERS()}).init(W),
        ValueError,
        ("muon_labels: no entry for the parameter ['k'].",),
    ),
    (
        lambda: gx.muon(0.1, muon_weight_dimension_numbers=lambda p: 3).init(W),
        TypeError,
        ("the dimension numbers of ['k'] must be MuonDimensionNumbers or None, got 3.",),
    ),
    (lambda: gx.galore(0.1, 0), ValueError, ("scale_by_galore: rank must be at least 1, got 0.",)),
    (lambda: gx.galore(0.1, base_optimizer=gx.adam), TypeError, ("not a transform; call it",)),
    (
        lambda: gx.galore(0.1, weight_dimension_numbers=gx.GaLoreDimensionNumbers()).init(W),
        ValueError,
        ("of ['k'] name only axes [0, 1] of shape (2, 3, 2); every axis must be one of rows or",),
    ),
    (
        lambda: step(gx.galore(0.1, 2, base_optimizer=gx.lamb(0.1)), W),
        ValueError,
        ("needs the parameters",),
    ),
]
