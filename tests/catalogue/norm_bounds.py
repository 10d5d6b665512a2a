"""Rows for `gradxform/wrappers/norm_bounds.py`."""

import jax.numpy as jnp

import gradxform as gx
from tests import references as ref
from tests.catalogue.case import Case, one_step, params

MOMENTUM = ref.Reference(
    ref.trace(0.9).start,
    lambda g, s, p, t: (-0.1 * (r := ref.trace(0.9).step(g, s, p, t))[0], r[1]),
)

WRAPPERS: dict[str, Case] = {
    "variable_clipping": Case(
        gx.variable_clipping(gx.sgd(0.1, 0.9), {"w": 1, "deep/k": (-1, 1)}, 0.8),
        ref.variable_clipping(MOMENTUM, lambda p: {2: (1,), 3: (1, 2)}.get(p.ndim), 0.8),
        tree=params(),
        huge_ok=1 / 8,  # momentum is up to ten times the gradient
    ),
    "variable_clipping/columns": Case(
        gx.variable_clipping(
            gx.sgd(0.1, 0.9), ((gx.path_matches("^(w|b)$"), (0,)),), 1.2, per_slice=True
        ),
        ref.variable_clipping(MOMENTUM, lambda p: (0,) if p.ndim in (1, 2) else None, 1.2),
        tree=params(),
        huge_ok=1 / 8,  # momentum is up to ten times the gradient
    ),
}


def _clip(dims, max_norm=1.0):
    tree = {"w": jnp.ones((2, 3)), "b": jnp.ones(3)}
    return one_step(gx.variable_clipping(gx.sgd(0.1), dims, max_norm), tree)


REFUSED = [
    ("_clip({'w': (1,)}, 0.0)", ValueError, "variable_clipping: max_norm", "greater than"),
    ("_clip({'kernel': (1,)})",
     ValueError, "variable_clipping: dims_by_path has 'kernel', which is not the path", "'w'"),
    ("_clip({'w': (2,)})",
     ValueError, "variable_clipping: dims_by_path has the dimensions (2,) for ['w']", "(2, 3)"),
    ("_clip({'w': (1, -1)})",
     ValueError, "variable_clipping: dims_by_path has the dimensions (1, -1) for ['w']"),
    ("_clip({'w': (1, 1)})", TypeError, "variable_clipping: an entry", "different"),
    ("_clip({'w': 1.5})", TypeError, "variable_clipping: an entry of dims_by_path"),
    ("_clip({})", TypeError, "variable_clipping: dims_by_path must be a dict"),
    ("_clip((('w', 0), (ndim_at_least(2), 1)))",
     ValueError, "variable_clipping: two entries of dims_by_path match ['w']"),
    ("variable_clipping(ftrl(0.1), {'w': 1}, 1.0)",
     ValueError, "variable_clipping: it moves the parameters, and step_by_ftrl"),
]  # fmt: skip
