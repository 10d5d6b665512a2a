"""Rows for `gradxform/transforms/lbfgs/line_search.py`."""

import jax
import jax.numpy as jnp
import numpy as np

import gradxform as gx
from gradxform.numerics import promote
from tests import references as ref
from tests.catalogue.case import Case


def bowl(params):
    """A loss with another curvature for each leaf, in float32 or wider."""
    leaves = [jnp.asarray(p) for p in jax.tree.leaves(params)]
    wide = promote(jnp.float32, *(p.dtype for p in leaves))
    offsets = [p.astype(wide) - 1 for p in leaves]
    terms = [(i + 1) * jnp.sum(x**2 / 2 + x**4 / 8) for i, x in enumerate(offsets)]
    return sum(terms, jnp.zeros((), wide))


def bowl_extra(updates, params):
    """The extra arguments of a line search on that loss."""
    params = updates if params is None else params
    value, grad = jax.value_and_grad(bowl)(params)
    return {"value": value, "grad": grad, "value_fn": bowl}


def bowl_reference(ps):
    return sum((i + 1) * ((p - 1) ** 2 / 2 + (p - 1) ** 4 / 8).sum() for i, p in enumerate(ps))


def bowl_slope_reference(ps):
    return [(i + 1) * (p - 1 + (p - 1) ** 3 / 2) for i, p in enumerate(ps)]


def steps_down(params, steps):
    """Directions that lead towards the minimum of that loss, each along entries of its own."""

    def step(t):
        size = (0.3, 1.0, 4.0)[t % 3]

        def move(p):
            turn = (np.arange(p.size).reshape(p.shape) * 5 + t) % steps == 0
            return jnp.asarray(-size * turn * (np.asarray(p, np.float64) - 1), p.dtype)

        return jax.tree.map(move, params)

    return [step(t) for t in range(steps)]


def slopes(params, steps):
    """Gradients of that loss, from the first parameters to near its minimum."""
    rng = np.random.default_rng(5)
    leaves, treedef = jax.tree.flatten(params)
    gradient = [(i + 1) * (np.asarray(p, np.float64) - 1) for i, p in enumerate(leaves)]

    def at(t):
        falling = [0.7**t * rng.uniform(0.95, 1.05, g.shape) * g for g in gradient]
        pairs = zip(falling, leaves, strict=True)
        return jax.tree.unflatten(treedef, [jnp.asarray(g, p.dtype) for g, p in pairs])

    return [at(t) for t in range(steps)]


BOWL = {
    "extra": bowl_extra,
    "draw": steps_down,
    "huge_ok": False,
    "rows": False,
}


def backtracking(*args, **kwargs):
    return ref.backtracking(bowl_reference, bowl_slope_reference, *args, **kwargs)


SEARCH = gx.scale_by_backtracking_linesearch

TRANSFORMS: dict[str, Case] = {
    "scale_by_backtracking_linesearch": Case(SEARCH(5), backtracking(5), **BOWL),
    "scale_by_backtracking_linesearch/numbers": Case(
        SEARCH(4, 0.3, 0.6, 1.2, 0.7, 0.5, 0.1, store_grad=True),
        backtracking(4, 0.3, 0.6, 1.2, 0.7, 0.5, 0.1),
        **BOWL,
    ),
}

ARGUMENTS = {"value": 0.5, "grad": {"w": jnp.ones((2, 3))}, "value_fn": bowl}

REFUSED = [
    ("SEARCH(-1)", ValueError,
     "scale_by_backtracking_linesearch: max_backtracking_steps must be at least 0, got -1."),
    ("SEARCH(3, decrease_factor=1.0)", ValueError, "decrease_factor must be in (0, 1)"),
    ("SEARCH(3, increase_factor=0.0)", ValueError, "increase_factor must be greater tha"),
    ("one_step(SEARCH(3))",
     TypeError, "scale_by_backtracking_linesearch: needs the extra argument 'value'"),
    ("one_step(SEARCH(3), **ARGUMENTS | {'value': jnp.ones(1)})",
     TypeError, "scale_by_backtracking_linesearch: value must be the loss, a scalar"),
    ("one_step(SEARCH(3), **ARGUMENTS | {'value_fn': 0.5})",
     TypeError, "value_fn must be the loss, a function of the parameters, got 0.5."),
    ("one_step(SEARCH(3), **ARGUMENTS | {'value_fn': lambda p: p['w']})",
     TypeError, "scale_by_backtracking_linesearch: the value of value_fn must be the loss, a sca"),
    *((f"one_step({tx}(3), **ARGUMENTS | {{'value_fn': lambda p: (0.5, p)}})", TypeError,
       "the value of value_fn must be the loss", "(value, aux), let the search have has_aux=True.")
      for tx in ("SEARCH", "scale_by_zoom_linesearch")),
    ("one_step(SEARCH(3), **ARGUMENTS | {'value': (0.5, 1)})",
     TypeError, "value must be the loss, a scalar", "Of a pair (value, aux), give the value"),
    ("one_step(SEARCH(3, has_aux=True), **ARGUMENTS | {'value_fn': lambda p: (0.5, p, 1)})",
     TypeError, "value_fn must return a pair (value, aux), got"),
    ("one_step(SEARCH(3), **ARGUMENTS | {'grad': {'v': jnp.ones((2, 3))}})",
     ValueError, "the updates have a leaf ['w'], grad has none"),
    ("one_step(SEARCH(3), **ARGUMENTS | {'grad': {'w': jnp.ones(3)}})",
     ValueError, "an update has shape (2, 3), its leaf of grad has (3,)"),
    ("one_step(SEARCH(3), **ARGUMENTS | {'value_fn': lambda p, batch: 0.0, 'bacth': jnp.ones(3)})",
     TypeError, "value_fn has no argument 'bacth'. Did you mean 'batch'?"),
    *((f"one_step({tx}, **ARGUMENTS | {{'unused': 1}})", TypeError,
       f"{name}: value_fn has no argument 'unused'. No part of {name} takes it either")
      for name, tx in (("scale_by_backtracking_linesearch", "SEARCH(3)"),
                       ("chain", "chain(sgd(1.0), SEARCH(3))"),
                       ("masked", "masked(lbfgs(), True)"))),
    ("SEARCH(3).update({'w': jnp.ones((2, 3))}, SEARCH(3).init({'w': jnp.ones((2, 3))}), "
     "**ARGUMENTS)",
     ValueError, "scale_by_backtracking_linesearch: needs the parameters"),
]  # fmt: skip
