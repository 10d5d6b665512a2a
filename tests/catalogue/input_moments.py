"""Rows for `gradxform/transforms/input_moments.py` and its recipe."""

import jax
import jax.numpy as jnp
import numpy as np

import gradxform as gx
from gradxform.numerics import at_least_float32
from tests import references as ref
from tests.catalogue.case import Case, matrix
from tests.catalogue.normuon import COARSE, for_matrices, masked


def moment_of(p):
    """Moments that are different for each parameter, and change with it."""
    x = np.moveaxis(p, (0, -1), (-2, -1)) if p.ndim > 2 else p[None]
    n = len(p)
    return np.mean(x**2, axis=-1)[..., None] * np.eye(n) + np.full((n, n), 0.5)


def moments(updates, params):
    """The moments of all matrices, as an extra argument."""

    def one(p):
        if jnp.ndim(p) < 2:
            return None
        x = jnp.asarray(p, at_least_float32(p.dtype))
        x = jnp.moveaxis(x, (0, -1), (-2, -1)) if x.ndim > 2 else x[None]
        n = x.shape[1]
        square = jnp.mean(x * x, axis=-1)[..., None]
        return square * jnp.eye(n, dtype=x.dtype)[None] + jnp.full((1, n, n), 0.5, x.dtype)

    return {"input_moments": jax.tree.map(one, params)}


# The inverse is found by a loop that ends by itself.
FEW = {"rows": False, "extra": moments, "derivatives": "forward"}

TRANSFORMS: dict[str, Case] = {
    "precondition_by_inputs": Case(
        masked(gx.precondition_by_inputs, beta=0.5, update_interval=2, ridge=0.3, eps=0.1),
        ref.only(matrix, ref.by_inputs(moment_of, 0.5, 2, 0.3, 0.1)),
        names=("input_moment",),
        **FEW,
        huge_ok=1e-3,  # it divides by moments, which may be small
    ),
    "precondition_by_inputs/none": Case(
        masked(gx.precondition_by_inputs, update_interval=2),
        ref.only(matrix, ref.by_inputs(lambda p: None, every=2)),
        **FEW | {"extra": {"input_moments": {}}},
        huge_ok=1e-4,
    ),
}


OPTIMIZERS: dict[str, Case] = {
    "newton_muon": Case(
        gx.newton_muon(0.1, weight_decay=0.3, update_interval=2),
        for_matrices(ref.by_inputs(moment_of, every=2), ref.muon(debias=False), ref.shape_factor()),
        rtol=COARSE,
        **FEW,
        huge_ok=1e-3,
    ),
}


def _given(moments, **fields):
    tx = gx.precondition_by_inputs(**fields)
    params = {"w": jnp.ones((3, 4))}
    return tx.update(params, tx.init(params), params, input_moments=moments)


REFUSED = [
    ("one_step(newton_muon(0.1))",
     TypeError, "precondition_by_inputs: needs the extra argument 'input_moments'"),
    ("_given({'w': np.ones((4, 4))})",
     ValueError, "the moment of ['w'] has shape (4, 4); its 3 inputs need (3, 3), or (1, 3, 3)"),
    ("_given({'v': np.ones((3, 3))})",
     ValueError, "input_moments has an entry ['v'], which is not a parameter."),
    ("precondition_by_inputs().init(WEIGHTS)",
     ValueError, "parameter ['k'] of shape (2, 3, 2) is not a matrix. Give its weight_dimension"),
]  # fmt: skip
