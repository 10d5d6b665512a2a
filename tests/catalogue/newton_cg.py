"""Rows for `gradxform/transforms/newton_cg.py` and its recipe."""

import jax.numpy as jnp
import numpy as np

import gradxform as gx
from tests import references as ref
from tests.catalogue.case import Case, with_lr
from tests.catalogue.line_search import bowl, bowl_extra, bowl_reference, slopes

NEWTON = gx.scale_by_newton_cg


def bowl_matrix(ps):
    """The Hessian of that loss."""
    scaled = [(i + 1) * np.ravel(1 + 1.5 * (p - 1) ** 2) for i, p in enumerate(ps)]
    return np.diag(np.concatenate(scaled))


def itself(params):
    """A model whose outputs are its parameters."""
    return params


def newton_cg(*args, **kwargs):
    return ref.newton_cg(bowl_reference, bowl_matrix, *args, **kwargs)


FEW = {"extra": bowl_extra, "draw": slopes, "huge_ok": False, "rows": False, "rtol": 2e-3}

TRANSFORMS: dict[str, Case] = {
    # With little damping, roundings of products in 16 bits move the solution by some percent.
    "scale_by_newton_cg": Case(NEWTON(damping=8.0), newton_cg(damping=8.0), **FEW),
    "scale_by_newton_cg/numbers": Case(
        NEWTON(steps=2, damping=0.3, damping_factor=0.4, warm_start=0.5),
        newton_cg(2, 0.3, 0.4, 0.5),
        **FEW,
    ),
    "scale_by_newton_cg/tolerance": Case(
        NEWTON(steps=8, tol=0.2, warm_start=0.0), newton_cg(8, tol=0.2, warm_start=0.0), **FEW
    ),
    "scale_by_newton_cg/fixed": Case(
        NEWTON(steps=4, damping_factor=1.0), newton_cg(4, factor=1.0), **FEW
    ),
    "scale_by_newton_cg/gauss_newton": Case(
        NEWTON(gx.curvature.gauss_newton_product(itself, bowl), steps=3),
        newton_cg(3),
        pickles=False,
        **FEW,
    ),
}

OPTIMIZERS: dict[str, Case] = {
    "newton_cg": Case(gx.newton_cg(), with_lr(1.0, newton_cg()), **FEW),
    "newton_cg/numbers": Case(
        gx.newton_cg(0.7, gx.curvature.hessian_product(), 3, 0.2, 0.5, 0.8, 0.1),
        with_lr(0.7, newton_cg(3, 0.2, 0.5, 0.8, 0.1)),
        **FEW,
    ),
}

GIVEN = {"value": 0.5, "value_fn": bowl}


def of_batch(params, batch):
    return jnp.sum(params["w"] * batch)


REFUSED = [
    ("NEWTON(steps=0)", ValueError, "scale_by_newton_cg: steps must be at least 1, got 0"),
    ("NEWTON(damping=-1.0)", ValueError, "damping must be at least 0, got -1.0"),
    ("NEWTON(damping_factor=1.5)", ValueError, "damping_factor must be in (0, 1]"),
    ("NEWTON(warm_start=2.0)", ValueError, "warm_start must be in [0, 1], got 2.0"),
    ("NEWTON(tol=1.0)", ValueError, "tol must be in [0, 1), got 1.0"),
    ("NEWTON(bowl)",
     TypeError, "scale_by_newton_cg: product must be a product of gradxform.curvature, such as"),
    ("NEWTON(curvature.hutchinson_diagonal(curvature.hessian_product()))",
     TypeError, "scale_by_newton_cg: product must be a product of gradxform.curvature"),
    ("one_step(NEWTON())", TypeError, "scale_by_newton_cg: needs the extra argument 'value_fn'"),
    ("one_step(NEWTON(), value_fn=bowl)",
     TypeError, "scale_by_newton_cg: needs the extra argument 'value'; call update("),
    ("one_step(NEWTON(), **GIVEN | {'value': jnp.ones(2)})",
     TypeError, "scale_by_newton_cg: value must be the loss, a scalar"),
    ("one_step(NEWTON(), **GIVEN | {'value_fn': 0.5})",
     TypeError, "value_fn must be the loss, a function of the parameters, got 0.5."),
    ("one_step(NEWTON(), **GIVEN | {'value_fn': itself})",
     TypeError, "hessian_product: the value of value_fn must be one real number"),
    ("one_step(NEWTON(), **GIVEN | {'value_fn': lambda p: (bowl(p), p)})",
     TypeError, "hessian_product: the value of value_fn must be", "aux), give the value alone."),
    ("one_step(NEWTON(), **GIVEN | {'value_fn': of_batch})",
     TypeError, "hessian_product: value_fn needs the extra argument 'batch'"),
    ("one_step(NEWTON(curvature.hessian_product(of_batch)), **GIVEN)",
     TypeError, "hessian_product: loss needs the extra argument 'batch'"),
    ("one_step(NEWTON(curvature.hessian_product(of_batch)), **GIVEN, bacth=jnp.ones((2, 3)))",
     TypeError, "no part takes the extra argument 'bacth'. Did you mean 'batch'?"),
    ("one_step(NEWTON(), COMPLEX, **GIVEN)",
     TypeError, "scale_by_newton_cg: gradient of ['w'] has dtype complex64"),
    ("NEWTON().update({'w': jnp.ones(3)}, NEWTON().init({'w': jnp.ones(3)}), **GIVEN)",
     ValueError, "scale_by_newton_cg: needs the parameters"),
]  # fmt: skip
