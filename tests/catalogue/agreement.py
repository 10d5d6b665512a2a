"""Rows for `gradxform/transforms/agreement.py` and its recipes."""

import numpy as np

import gradxform as gx
from tests import references as ref
from tests.catalogue.case import Case, with_lr

LINEAR_SIGNS = gx.linear_sign_decay(5)


def signs_left(n):
    """`linear_sign_decay(5)` in NumPy."""
    return max(0, (5 - n) / 5)


def add_sign(alpha, left=lambda n: 1, b1=0.9):
    return ref.agreement(b1, lambda agree, n: alpha + left(n) * agree)


def power_sign(base, left=lambda n: 1, b1=0.9):
    return ref.agreement(b1, lambda agree, n: base ** (left(n) * agree))


NEURAL = ref.agreement(0.9, lambda agree, n: np.where(agree > 0, 1, 0.1))

TRANSFORMS: dict[str, Case] = {
    "scale_by_add_sign": Case(gx.scale_by_add_sign(), add_sign(1.0)),
    "scale_by_add_sign/decay": Case(
        gx.scale_by_add_sign(0.5, 0.6, LINEAR_SIGNS), add_sign(0.5, signs_left, 0.6)
    ),
    "scale_by_power_sign": Case(gx.scale_by_power_sign(), power_sign(np.e)),
    "scale_by_power_sign/decay": Case(
        gx.scale_by_power_sign(2.0, 0.6, LINEAR_SIGNS), power_sign(2.0, signs_left, 0.6)
    ),
    "scale_by_sign_agreement": Case(gx.scale_by_sign_agreement(), NEURAL),
    "scale_by_sign_agreement/factor": Case(
        gx.scale_by_sign_agreement(0.5, 0.3),
        ref.agreement(0.5, lambda agree, n: np.where(agree > 0, 1, 0.3)),
    ),
    "scale_by_grams": Case(gx.scale_by_grams(), ref.grams(0.9, 0.999, 1e-8)),
    "scale_by_grams/eps": Case(
        gx.scale_by_grams(0.8, 0.5, 0.1, 0.2), ref.grams(0.8, 0.5, 0.1, 0.2)
    ),
    "scale_by_grad_variance": Case(
        gx.scale_by_grad_variance(),
        ref.grad_variance(0.9, 0.999, 1e-8),
    ),
    "scale_by_grad_variance/eps": Case(
        gx.scale_by_grad_variance(0.5, 0.8, 0.1),
        ref.grad_variance(0.5, 0.8, 0.1),
    ),
}


OPTIMIZERS: dict[str, Case] = {
    "add_sign": Case(
        gx.add_sign(0.1),
        with_lr(0.1, add_sign(1.0)),
        huge_ok=1 / 8,  # it doubles gradients before the rate
    ),
    "power_sign": Case(
        gx.power_sign(0.1),
        with_lr(0.1, power_sign(np.e)),
        huge_ok=1 / 8,  # it stretches gradients before the rate
    ),
    "neural_optimizer1": Case(gx.neural_optimizer1(0.1), with_lr(0.1, NEURAL)),
    "grams": Case(
        gx.grams(0.1, weight_decay=0.2), with_lr(0.1, ref.grams(0.9, 0.999, 1e-8), ref.decay(0.2))
    ),
    "grad_variance_scaled": Case(
        gx.grad_variance_scaled(0.1),
        with_lr(0.1, ref.grad_variance(0.9, 0.999, 1e-8)),
    ),
}


REFUSED = [
    ("scale_by_grams(eps=-1.0)", ValueError, "scale_by_grams: eps must be at least 0"),
    ("grams(0.1, b2=1.0)", ValueError, "scale_by_grams: b2 must be in [0, 1)"),
]  # fmt: skip
