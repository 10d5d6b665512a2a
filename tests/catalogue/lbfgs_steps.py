"""Rows for `gradxform/transforms/lbfgs/lbfgs_steps.py` and its recipe."""

import jax
import jax.numpy as jnp
import numpy as np

import gradxform as gx
from gradxform.numerics import promote
from gradxform.testing import example_params
from tests import references as ref
from tests.catalogue.case import WEIGHTS, Case


def squares(updates, params):
    """A value that falls and rises with the gradient: searches accept some trials, and not others.

    The parameters have no part in it, so that it is the same for each of several gradients.
    """
    leaves = jax.tree.leaves(updates)
    wide = promote(jnp.float32, *(jnp.abs(g).dtype for g in leaves))
    total = sum((jnp.sum(jnp.abs(g).astype(wide) ** 2) for g in leaves), jnp.zeros((), wide))
    return {"value": total}


def squares_reference(gs, ps):
    return sum((g**2).sum() for g in gs)


def waning(params, steps):
    """Gradients that shrink, but for the third and sixth, which are too long to be accepted."""
    rng = np.random.default_rng(5)
    leaves, treedef = jax.tree.flatten(params)
    first = [rng.normal(size=p.shape) for p in leaves]

    def at(t):
        size = 0.7**t * (2.5 if t % 3 == 2 else 1)
        grads = [size * rng.uniform(0.9, 1.1, g.shape) * g for g in first]
        return jax.tree.unflatten(
            treedef, [jnp.asarray(g, p.dtype) for g, p in zip(grads, leaves, strict=True)]
        )

    return [at(t) for t in range(steps)]


WHOLE = {"extra": squares, "draw": waning, "rows": False}
# The searches and the loops over pairs compile long, and longer with every array: one row has all.
FORM = WHOLE | {"tree": {k: x for k, x in example_params().items() if k in ("w", "s")}}

TRANSFORMS: dict[str, Case] = {
    "step_by_lbfgs": Case(
        gx.step_by_lbfgs(),
        ref.lbfgs_steps(squares_reference),
        rtol=2e-3,
        **FORM,
    ),
    "step_by_lbfgs/two pairs": Case(
        gx.step_by_lbfgs(2), ref.lbfgs_steps(squares_reference, 2), rtol=2e-3, **WHOLE
    ),
    "step_by_lbfgs/tol": Case(
        gx.step_by_lbfgs(tol=2.5), ref.lbfgs_steps(squares_reference, tol=2.5), rtol=2e-3, **FORM
    ),
}

OPTIMIZERS: dict[str, Case] = {
    "lbfgs_steps": Case(
        gx.lbfgs_steps(3), ref.lbfgs_steps(squares_reference, 3), rtol=2e-3, **FORM
    ),
}

LOSS = {"value": 0.5}


def of_another_size():
    tx = gx.lbfgs_steps(5)
    return gx.lbfgs_steps().update(WEIGHTS, tx.init(WEIGHTS), WEIGHTS, **LOSS)


REFUSED = [
    ("lbfgs_steps(0)", ValueError, "step_by_lbfgs: memory_size must be at least 1, got 0."),
    ("lbfgs_steps(tol=-1.0)", ValueError, "step_by_lbfgs: tol must be at least 0, got -1.0."),
    ("one_step(lbfgs_steps())", TypeError, "step_by_lbfgs: needs the extra argument 'value'"),
    ("one_step(lbfgs_steps(), value=jnp.ones(1))",
     TypeError, "step_by_lbfgs: value must be the loss, a scalar, got an array of shape (1,)."),
    ("lbfgs_steps().update(WEIGHTS, lbfgs_steps().init(WEIGHTS), **LOSS)",
     ValueError, "step_by_lbfgs: needs the parameters"),
    ("of_another_size()",
     ValueError, "step_by_lbfgs: the state holds 5 pairs, memory_size is 10.", "memory_size=5"),
]  # fmt: skip
