"""Rows for `gradxform/transforms/gradient_change.py` and its recipes."""

import gradxform as gx
from tests import references as ref
from tests.catalogue.case import ADAM, FALLING, FALLING_LR, NADAM, Case, falling, matrix, with_lr

TRANSFORMS: dict[str, Case] = {
    "scale_by_adan": Case(gx.scale_by_adan(), ref.adan(0.98, 0.92, 0.99, 1e-8)),
    "scale_by_adan/paper": Case(
        gx.scale_by_adan(0.9, 0.8, 0.7, 0.2, 0.1, change_weight=0.5),
        ref.adan(0.9, 0.8, 0.7, 0.2, 0.1, 0.5),
    ),
    "scale_by_diffgrad": Case(gx.scale_by_diffgrad(), ref.diffgrad(0.9, 0.999, 1e-8)),
    "scale_by_diffgrad/largest": Case(
        gx.scale_by_diffgrad(0.8, 0.5, 0.1, 0.2, amsgrad=True),
        ref.diffgrad(0.8, 0.5, 0.1, 0.2, True),
    ),
    "scale_by_diffgrad/after": Case(
        gx.scale_by_diffgrad(0.8, 0.5, 0.1, 0.2, correct_after=True),
        ref.diffgrad(0.8, 0.5, 0.1, 0.2, after=True),
    ),
    "scale_by_optimistic_gradient": Case(
        gx.scale_by_optimistic_gradient(), ref.optimistic(1.0, 1.0)
    ),
    "scale_by_optimistic_gradient/beta": Case(
        gx.scale_by_optimistic_gradient(0.5, 0.2), ref.optimistic(0.5, 0.2)
    ),
    "scale_by_rprop": Case(gx.scale_by_rprop(0.1), ref.rprop(0.1)),
    "scale_by_rprop/paper": Case(
        gx.scale_by_rprop(0.1, 0.3, 2.0, 0.05, 0.3, delayed=False),
        ref.rprop(0.1, 0.3, 2.0, 0.05, 0.3, delayed=False),
    ),
}


OPTIMIZERS: dict[str, Case] = {
    "adan": Case(
        gx.adan(0.1, weight_decay=0.2),
        with_lr(0.1, ref.adan(0.98, 0.92, 0.99, 1e-8, 1e-8), ref.decay(0.2)),
    ),
    "adan/paper": Case(
        gx.adan(
            0.1,
            weight_decay=0.2,
            mask=gx.ndim_at_least(2),
            change_weight=0.92,
            proximal_decay=True,
        ),
        ref.sequence(
            ref.adan(0.98, 0.92, 0.99, 1e-8, 1e-8, 0.92),
            ref.scale(-0.1),
            ref.proximal_decay(0.02, matrix),
        ),
    ),
    "adan/schedule": Case(
        gx.adan(FALLING, weight_decay=0.2, proximal_decay=True),
        ref.sequence(
            ref.adan(0.98, 0.92, 0.99, 1e-8, 1e-8),
            FALLING_LR,
            ref.proximal_decay(lambda n: 0.2 * falling(n)),
        ),
    ),
    "diffgrad": Case(gx.diffgrad(0.1), with_lr(0.1, ref.diffgrad(0.9, 0.999, 1e-8))),
    "diffgrad/decay": Case(
        gx.diffgrad(0.1, weight_decay=0.2, amsgrad=True),
        with_lr(0.1, ref.diffgrad(0.9, 0.999, 1e-8, largest=True), ref.decay(0.2)),
    ),
    "optimistic_adam": Case(gx.optimistic_adam(0.1), with_lr(0.1, NADAM, ref.optimistic(1.0, 1.0))),
    "optimistic_adam/optimism": Case(
        gx.optimistic_adam(0.1, 0.3), with_lr(1.0, NADAM, ref.optimistic(0.1, 0.3))
    ),
    "optimistic_adam_v2": Case(
        gx.optimistic_adam_v2(0.1, alpha=0.9, beta=0.5, nesterov=False),
        with_lr(0.1, ADAM, ref.optimistic(0.9, 0.5)),
    ),
    "optimistic_gradient_descent": Case(
        gx.optimistic_gradient_descent(0.1),
        with_lr(0.1, ref.optimistic(1.0, 1.0)),
        huge_ok=1 / 8,  # it stretches gradients before the rate
    ),
    # Its learning rate is the first step size, so it cannot be a schedule.
    "rprop/first step": Case(gx.rprop(0.1), with_lr(1.0, ref.rprop(0.1))),
}


REFUSED = [
    ("adan(0.1, weight_decay=-1.0, proximal_decay=True)",
     ValueError, "adan: weight_decay must be at least 0, got -1.0."),
    ("add_decayed_weights(0.1, proximal=True)",
     ValueError, "add_decayed_weights: proximal=True needs flip_sign=True"),
    ("adan(0.1, b3=2.0)", ValueError, "scale_by_adan: b3 must be in [0, 1), got 2.0."),
    ("adan(0.1, change_weight=-1)", ValueError, "scale_by_adan: change_weight must be"),
    ("scale_by_optimistic_gradient(constant_schedule(1.0))",
     TypeError, "scale_by_optimistic_gradient: alpha must be a number, got constant_schedule"),
    ("optimistic_adam(constant_schedule(0.1), 0.1)",
     TypeError, "optimistic_adam: learning_rate must be a number if optimism is set", "adam_v2."),
    ("optimistic_adam(-0.1, 0.1)", ValueError, "gradient: alpha must be at least 0"),
    ("rprop(0.0)", ValueError, "scale_by_rprop: learning_rate must be greater than 0"),
    ("rprop(0.1, 1.5)", ValueError, "scale_by_rprop: eta_minus must be in (0, 1], got 1"),
    ("rprop(0.1, 0.5, 0.9)", ValueError, "scale_by_rprop: eta_plus must be at least 1"),
    ("rprop(0.1, min_step_size=1.0, max_step_size=0.5)", ValueError,
     "scale_by_rprop: max_step_size must be at least min_step_size, here 1.0, got 0.5."),
    ("rprop(constant_schedule(0.1))",
     TypeError, "scale_by_rprop: learning_rate must be a number, got constant_schedule"),
]  # fmt: skip
