"""Rows for `gradxform/transforms/sophia.py` and its recipes."""

import jax
import jax.numpy as jnp

import gradxform as gx
from gradxform.numerics import at_least_float32, cast
from tests import references as ref
from tests.catalogue.case import Case, with_lr


def curved(params):
    """A loss whose Hessian is diagonal, so that Hutchinson's estimate is exact: p^2."""

    def wide(p):
        return cast(jnp.asarray(p), at_least_float32(jnp.asarray(p).dtype))

    return sum(jnp.sum(wide(p) ** 4) for p in jax.tree.leaves(params)) / 12


CURVED = {"obj_fn": curved}


def sophia(gamma):
    """Sophia with its defaults but for gamma, for the loss `curved`."""
    return ref.sophia(0.965, 0.99, 1e-8, gamma, 1.0, 10, lambda p: p**2)


TRANSFORMS: dict[str, Case] = {
    "hutchinson_estimator_diag_hessian": Case(
        gx.hutchinson_estimator_diag_hessian(),
        ref.stateless(lambda g, p, t: p**2),
        extra=CURVED,
        rows=False,
    ),
    # One average cancels to 1e-6, and is not clipped over its divisor of 4e-5.
    "scale_by_sophia": Case(
        gx.scale_by_sophia(),
        sophia(0.01),
        rtol=2e-3,
        extra=CURVED,
        rows=False,
        holds_optimizer=False,  # it holds an estimator of the curvature
    ),
    "scale_by_sophia/paper": Case(
        gx.scale_by_sophia(0.5, 0.5, 0.1, 1.0, 2.0, 2, debias=False, delayed=False),
        ref.sophia(0.5, 0.5, 0.1, 1.0, 2.0, 2, lambda p: p**2, paper=True),
        holds_optimizer=False,
        extra=CURVED,
        rows=False,
    ),
    "scale_by_sophia/often": Case(
        gx.scale_by_sophia(0.5, 0.5, 0.1, 1.0, 2.0, 2),
        ref.sophia(0.5, 0.5, 0.1, 1.0, 2.0, 2, lambda p: p**2),
        holds_optimizer=False,
        extra=CURVED,
        rows=False,
    ),
}


OPTIMIZERS: dict[str, Case] = {
    "sophia/paper": Case(
        gx.sophia(0.1, weight_decay=0.1, gamma=10.0, debias=False, delayed=False),
        with_lr(
            0.1,
            ref.sophia(0.965, 0.99, 1e-8, 10.0, 1.0, 10, lambda p: p**2, paper=True),
            ref.decay(0.1),
        ),
        extra=CURVED,
        rows=False,
    ),
    "sophia": Case(
        gx.sophia(0.1, weight_decay=0.1, gamma=10.0),
        with_lr(0.1, sophia(10.0), ref.decay(0.1)),
        extra=CURVED,
        rows=False,
    ),
}


REFUSED = [
    ("one_step(gx.sophia(0.1))",
     TypeError, "hutchinson_estimator_diag_hessian: needs the extra argument 'obj_fn'"),
    ("one_step(gx.sophia(0.1), obj_fn=3.0)",
     TypeError, "obj_fn must be the loss as a function of the parameters, got 3.0."),
    ("one_step(gx.sophia(0.1), obj_fn=lambda p: (0.5, p))",
     TypeError, "the value of obj_fn must be one real number", "aux), give the value alone."),
    ("gx.sophia(0.1, hessian_diagonal_fn=None)",
     TypeError, "scale_by_sophia: hessian_diagonal_fn must have init and update"),
    ("gx.sophia(0.1, update_interval=0)", ValueError, "update_interval must be at least 1"),
]  # fmt: skip
