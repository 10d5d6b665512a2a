"""Rows for `gradxform/transforms/proximal.py` and its recipes."""

import gradxform as gx
from tests import references as ref
from tests.catalogue.case import FALLING, Case, falling

TRANSFORMS: dict[str, Case] = {
    "step_by_proximal_gradient": Case(
        gx.step_by_proximal_gradient(0.1, 0.2, 0.3), ref.proximal_sgd(0.1, 0.2, 0.3)
    ),
    "step_by_proximal_gradient/schedule": Case(
        gx.step_by_proximal_gradient(FALLING), ref.proximal_sgd(falling, 0.0, 0.0)
    ),
    "step_by_proximal_adagrad": Case(
        gx.step_by_proximal_adagrad(0.1, 0.5, 0.2, 0.3), ref.proximal_adagrad(0.1, 0.5, 0.2, 0.3)
    ),
    "step_by_dual_averaging": Case(
        gx.step_by_dual_averaging(0.1, 0.5, 0.2, 0.3),
        ref.adagrad_da(0.1, 0.5, 0.2, 0.3),
        huge_ok=1 / 8,  # it sums gradients
    ),
    "step_by_ftrl": Case(
        gx.step_by_ftrl(0.1, l1=0.2, l2=0.3, l2_shrinkage=0.4, beta=0.5),
        ref.ftrl(0.1, l1=0.2, l2=0.3, shrink=0.4, beta=0.5),
    ),
    "step_by_ftrl/power": Case(
        gx.step_by_ftrl(FALLING, learning_rate_power=-0.7, initial_accumulator_value=0.0),
        ref.ftrl(falling, -0.7, 0.0),
    ),
}


OPTIMIZERS: dict[str, Case] = {
    "proximal_sgd": Case(gx.proximal_sgd(0.1, 0.5), ref.proximal_sgd(0.1, 0.5, 0.0)),
    "proximal_adagrad": Case(
        gx.proximal_adagrad(0.1, l1=0.5), ref.proximal_adagrad(0.1, 0.1, 0.5, 0.0)
    ),
    "adagrad_da": Case(
        gx.adagrad_da(0.1, l1=0.1),
        ref.adagrad_da(0.1, 0.1, 0.1, 0.0),
        huge_ok=1 / 8,  # it sums gradients
    ),
    "ftrl": Case(gx.ftrl(0.1, l1=0.1), ref.ftrl(0.1, l1=0.1)),
}


REFUSED = [
    ("step_by_ftrl(0.0)",
     ValueError, "step_by_ftrl: learning_rate must be greater than 0, got 0.0."),
    ("step_by_ftrl(0.1, 0.5)",
     ValueError, "step_by_ftrl: learning_rate_power must be at most 0, got 0.5."),
    ("step_by_dual_averaging(0.1, 0.0)", ValueError,
     "step_by_dual_averaging: initial_accumulator_value must be greater than 0, got 0.0."),
    ("proximal_sgd(0.1, -1.0)",
     ValueError, "step_by_proximal_gradient: l1 must be at least 0, got -1.0."),
]  # fmt: skip
