"""Rows for `gradxform/transforms/curvature_diagonal.py`."""

import gradxform as gx
from tests import references as ref
from tests.catalogue.case import Case
from tests.catalogue.sophia import curved

HUTCHINSON = gx.curvature.hutchinson_diagonal(gx.curvature.hessian_product())
ESTIMATE = gx.estimate_diagonal(HUTCHINSON)
SCALE = gx.scale_by_curvature_diagonal
CURVED = {"extra": {"value_fn": curved}, "rows": False}


def squared(p):
    return p**2


def double(params):
    return 2 * params["w"]


TRANSFORMS: dict[str, Case] = {
    "estimate_diagonal": Case(ESTIMATE, ref.stateless(lambda g, p, t: p**2), **CURVED),
    "scale_by_curvature_diagonal": Case(
        SCALE(ESTIMATE),
        ref.curvature_diagonal(squared),
        holds_optimizer=False,  # it holds an estimator of the curvature
        rtol=2e-4,
        **CURVED,
    ),
    "scale_by_curvature_diagonal/power": Case(
        SCALE(ESTIMATE, 0.5, 0.1, 0.75),
        ref.curvature_diagonal(squared, 0.5, 0.1, 0.75),
        holds_optimizer=False,
        **CURVED,
    ),
}

REFUSED = [
    ("estimate_diagonal(curvature.hessian_product())",
     TypeError, "estimate_diagonal: diagonal must be a diagonal of gradxform.curvature, such as"),
    ("one_step(ESTIMATE)", TypeError,
     "hessian_product: without a loss of its own it is the Hessian of the extra argument"),
    ("one_step(estimate_diagonal(curvature.bartlett_diagonal(double, 'normal')), COMPLEX)",
     TypeError, "estimate_diagonal: parameter ['w'] has dtype complex64"),
    ("ESTIMATE.update({'w': jnp.ones(3)}, ESTIMATE.init({'w': jnp.ones(3)}), value_fn=curved)",
     ValueError, "estimate_diagonal: needs the parameters"),
    ("SCALE(None)", TypeError, "scale_by_curvature_diagonal: estimator must have init and update"),
    ("SCALE(ESTIMATE, power=1.5)", ValueError, "power must be in [0, 1], got 1.5"),
]  # fmt: skip
