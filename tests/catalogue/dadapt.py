"""Rows for `gradxform/transforms/dadapt.py` and its recipes."""

import jax
import jax.numpy as jnp

import gradxform as gx
from tests import references as ref
from tests.catalogue.case import FALLING, Case, falling, matrix


def steady(tree, steps):
    """The same gradients at each step: what estimates a distance finds that it has far to go."""
    return [jax.tree.map(jnp.ones_like, tree)] * steps


TRANSFORMS: dict[str, Case] = {
    "step_by_dadapt_adamw": Case(
        gx.step_by_dadapt_adamw(), ref.dadapt_adamw(1.0, 0.9, 0.999, 1e-8, 1e-6, 0.0), rows=False
    ),
    "step_by_dadapt_adamw/large": Case(
        gx.step_by_dadapt_adamw(FALLING, (0.8, 0.9), 1e-3, 0.5, 0.1),
        ref.dadapt_adamw(falling, 0.8, 0.9, 1e-3, 0.5, 0.1),
        rows=False,
    ),
    "step_by_dadapt_adamw/rising": Case(
        gx.step_by_dadapt_adamw(1.0, (0.8, 0.9), 1e-2, 0.01),
        ref.dadapt_adamw(1.0, 0.8, 0.9, 1e-2, 0.01, 0.0),
        rows=False,
        draw=steady,
    ),
    "step_by_prodigy": Case(
        gx.step_by_prodigy(),
        ref.prodigy(1.0, 0.9, 0.999, 0.999**0.5, 1e-8, 1e-6, 1.0, 0.0),
        rows=False,
    ),
    "step_by_prodigy/atan2": Case(
        gx.step_by_prodigy(1.0, (0.8, 0.9), None, None, 0.5),
        ref.prodigy(1.0, 0.8, 0.9, 0.9**0.5, None, 0.5, 1.0, 0.0),
        rows=False,
    ),
    "step_by_prodigy/large": Case(
        gx.step_by_prodigy(FALLING, (0.8, 0.9), 0.7, 1e-2, 0.5, 2.0, 0.1, True),
        ref.prodigy(falling, 0.8, 0.9, 0.7, 1e-2, 0.5, 2.0, 0.1, True),
        rows=False,
    ),
    "step_by_prodigy/rising": Case(
        gx.step_by_prodigy(1.0, (0.8, 0.9), 0.7, 1e-2, 0.01, 2.0),
        ref.prodigy(1.0, 0.8, 0.9, 0.7, 1e-2, 0.01, 2.0, 0.0),
        rows=False,
        draw=steady,
    ),
    "step_by_prodigy/limited": Case(
        gx.step_by_prodigy(FALLING, (0.8, 0.9), 0.7, 1e-2, 0.01, growth_rate=1.1),
        ref.prodigy(falling, 0.8, 0.9, 0.7, 1e-2, 0.01, 1.0, 0.0, growth=1.1),
        rows=False,
        draw=steady,
    ),
    "step_by_prodigy/authors": Case(
        gx.step_by_prodigy(
            *(FALLING, (0.8, 0.9), 0.7, 1e-2, 0.01, 2.0, 0.1, True),
            growth_rate=1.1,
            use_bias_correction=False,
        ),
        ref.prodigy(falling, 0.8, 0.9, 0.7, 1e-2, 0.01, 2.0, 0.1, True, growth=1.1, debias=False),
        rows=False,
        draw=steady,
    ),
}


OPTIMIZERS: dict[str, Case] = {
    "dadapt_adamw": Case(
        gx.dadapt_adamw(estim_lr0=0.1),
        ref.dadapt_adamw(1.0, 0.9, 0.999, 1e-8, 0.1, 0.0),
        rows=False,
    ),
    "prodigy/mask": Case(
        gx.prodigy(estim_lr0=0.1, weight_decay=0.2, weight_decay_mask=gx.ndim_at_least(2)),
        ref.prodigy(1.0, 0.9, 0.999, 0.999**0.5, 1e-8, 0.1, 1.0, 0.2, selected=matrix),
        rows=False,
    ),
    "prodigy": Case(
        gx.prodigy(estim_lr0=0.1),
        ref.prodigy(1.0, 0.9, 0.999, 0.999**0.5, 1e-8, 0.1, 1.0, 0.0),
        rows=False,
    ),
}


REFUSED = [
    ("prodigy(betas=(0.9, 1.0))",
     ValueError, "step_by_prodigy: betas must both be in [0, 1), got (0.9, 1.0)."),
    ("dadapt_adamw(betas=(0.9, True))",
     TypeError, "step_by_dadapt_adamw: betas must be a pair of numbers, got (0.9, True)."),
    ("prodigy(betas=0.9)", TypeError, "step_by_prodigy: betas must be a tuple"),
    ("prodigy(growth_rate=0.9)",
     ValueError, "step_by_prodigy: growth_rate must be at least 1, got 0.9."),
    ("prodigy(estim_lr0=0)", ValueError, "estim_lr0 must be greater than 0, got 0.0."),
    ("prodigy(beta3=1.5)", ValueError, "beta3 must be in [0, 1), got 1.5."),
    ("prodigy().update({'w': jnp.ones(3)}, prodigy().init({'w': jnp.ones(2)}), {'w': jnp.ones(3)})",
     ValueError, "step_by_prodigy: the state's exp_avg of ['w'] has shape (2,)",
     "other parameters?"),
]  # fmt: skip
