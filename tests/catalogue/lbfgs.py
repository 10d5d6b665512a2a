"""Rows for `gradxform/transforms/lbfgs/lbfgs.py` and its recipe."""

import jax
import jax.numpy as jnp

import gradxform as gx
from tests import references as ref
from tests.catalogue.case import WEIGHTS, Case, with_lr
from tests.catalogue.line_search import (
    BOWL,
    bowl_reference,
    bowl_slope_reference,
    slopes,
    steps_down,
)


def disjoint(params, steps):
    """Gradients of different entries, so that the curvature between two of them is positive."""
    return [jax.tree.map(jnp.negative, step) for step in steps_down(params, steps)]


TRANSFORMS: dict[str, Case] = {
    "scale_by_lbfgs": Case(
        gx.scale_by_lbfgs(), ref.lbfgs(), rtol=2e-3, draw=slopes, huge_ok=False, rows=False
    ),
    "scale_by_lbfgs/two pairs, unscaled": Case(
        gx.scale_by_lbfgs(2, False),
        ref.lbfgs(2, False),
        rtol=2e-3,
        draw=slopes,
        huge_ok=False,
        rows=False,
    ),
}


OPTIMIZERS: dict[str, Case] = {
    "lbfgs": Case(
        gx.lbfgs(),
        ref.sequence(
            ref.lbfgs(),
            ref.scale(-1),
            ref.zoom(bowl_reference, bowl_slope_reference, 20, keep=False),
        ),
        rtol=2e-3,
        **BOWL | {"draw": disjoint},
    ),
    "lbfgs/no search": Case(
        gx.lbfgs(0.1, 3, linesearch=None),
        with_lr(0.1, ref.lbfgs(3)),
        rtol=2e-3,
        draw=slopes,
        huge_ok=False,
        rows=False,
    ),
}


def of_another_size():
    tx = gx.scale_by_lbfgs(5)
    return gx.scale_by_lbfgs(3).update(WEIGHTS, tx.init(WEIGHTS), WEIGHTS)


REFUSED = [
    ("of_another_size()",
     ValueError, "scale_by_lbfgs: the state holds 5 pairs, memory_size is 3.", "memory_size=5"),
    ("scale_by_lbfgs(0)", ValueError, "scale_by_lbfgs: memory_size must be at least 1, got 0."),
    ("lbfgs(-1.0)",
     ValueError, "scale_by_learning_rate: learning_rate must be at least 0, got -1.0."),
    ("lbfgs(linesearch=3.0)", TypeError, "lbfgs: linesearch", "init and update"),
    ("scale_by_lbfgs().update(WEIGHTS, scale_by_lbfgs().init(WEIGHTS))",
     ValueError, "scale_by_lbfgs: needs the parameters"),
    ("one_step(lbfgs())", TypeError, "scale_by_zoom_linesearch: needs the extra argument 'value'"),
]  # fmt: skip
