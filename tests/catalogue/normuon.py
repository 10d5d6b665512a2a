"""Rows for `gradxform/transforms/normuon.py` and its recipes."""

import jax.numpy as jnp

import gradxform as gx
from tests import references as ref
from tests.catalogue.case import Case, matrix
from tests.catalogue.muon import flat
from tests.catalogue.orthogonal import NUMBERS

# Five turns of a polynomial of slope 3.4 at 0 enlarge a rounding.
COARSE = 1e-4


def masked(rule, **fields):
    """A rule on the matrices, whose rows are axis 0 and whose columns are the last."""
    return gx.masked(rule(weight_dimension_numbers=NUMBERS, **fields), gx.ndim_at_least(2))


def for_matrices(*directions, b1=0.9, b2=0.95, decay=0.3):
    """A recipe: rules for matrices, Adam for the rest, decay, and a rate of 0.1."""
    return ref.sequence(
        *(ref.only(flat, part) for part in directions),
        ref.only(lambda p: not flat(p), ref.adam(b1, b2, 1e-8)),
        ref.decay(decay),
        ref.scale(-0.1),
    )


TRANSFORMS: dict[str, Case] = {
    "scale_by_normuon": Case(
        masked(gx.scale_by_normuon, beta=0.5, beta2=0.6, eps=0.3, rms=0.4),
        ref.only(matrix, ref.normuon(0.5, 0.6, 0.3, 0.4)),
        rtol=COARSE,
        rows=False,
        huge_ok=1 / 8,  # with nesterov, the average is 1.5 times the gradient
    ),
    "scale_by_normuon/nesterov": Case(
        masked(gx.scale_by_normuon, nesterov=True),
        ref.only(matrix, ref.normuon(nesterov=True)),
        rtol=COARSE,
        rows=False,
    ),
    "scale_by_normuon/rms": Case(
        masked(gx.scale_by_normuon, rms=None),
        ref.only(matrix, ref.normuon(rms=None)),
        rtol=COARSE,
        rows=False,
    ),
    "scale_by_normuon/debias": Case(
        masked(gx.scale_by_normuon, beta=0.5, nesterov=True, debias=True),
        ref.only(matrix, ref.normuon(0.5, nesterov=True, debias=True)),
        rtol=COARSE,
        rows=False,
        huge_ok=1 / 8,  # with nesterov, the average is 1.5 times the gradient
    ),
    "scale_by_adamuon": Case(
        masked(gx.scale_by_adamuon, beta=0.5, beta2=0.6, eps=0.3, rms=0.4),
        ref.only(matrix, ref.adamuon(0.5, 0.6, 0.3, 0.4)),
        rtol=COARSE,
        rows=False,
    ),
    "scale_by_adamuon/nesterov": Case(
        masked(gx.scale_by_adamuon, nesterov=True, signs=False),
        ref.only(matrix, ref.adamuon(nesterov=True, signs=False)),
        rtol=COARSE,
        rows=False,
    ),
    "scale_by_adamuon/debias": Case(
        masked(gx.scale_by_adamuon, beta=0.5, nesterov=True, signs=False, debias=True),
        ref.only(matrix, ref.adamuon(0.5, nesterov=True, signs=False, debias=True)),
        rtol=COARSE,
        rows=False,
        huge_ok=1 / 8,  # with nesterov, the average is 1.5 times the gradient
    ),
}


OPTIMIZERS: dict[str, Case] = {
    "normuon": Case(
        gx.normuon(0.1, weight_decay=0.3), for_matrices(ref.normuon()), rtol=COARSE, rows=False
    ),
    "adamuon": Case(
        gx.adamuon(0.1, weight_decay=0.3), for_matrices(ref.adamuon()), rtol=COARSE, rows=False
    ),
}


def _of(dtype):
    return {"w": jnp.ones((3, 4), dtype)}


REFUSED = [
    ("normuon(0.1, ns_coeffs='dino')",
     ValueError, "normuon: ns_coeffs must be numbers", "got 'dino'. Did you mean 'dion'?"),
    ("adamuon(0.1, beta=1.0)", ValueError, "scale_by_adamuon: beta must be in [0, 1), got 1.0."),
    ("other_state(scale_by_normuon(debias=True), (3, 4), made_by=scale_by_normuon())",
     ValueError, "scale_by_normuon: the state does not have count, which this transform keeps."),
    ("other_state(scale_by_normuon(), (3, 4), made_by=scale_by_normuon(debias=True))",
     ValueError, "scale_by_normuon: the state has arrays in count, which this transform does not"),
    ("scale_by_normuon().init(WEIGHTS)",
     ValueError, "parameter ['k'] of shape (2, 3, 2) is not a matrix. Give its weight_dimension"),
    ("one_step(scale_by_normuon(), grads=_of(np.int32), params=_of(np.float32))", TypeError,
     "gradient of ['w'] has dtype int32; only floating gradients can be transformed. Leave"),
    ("one_step(scale_by_adamuon(), grads=_of(np.complex64), params=_of(np.float32))",
     TypeError, "gradient of ['w'] has dtype complex64, for which this rule is not defined."),
]  # fmt: skip
