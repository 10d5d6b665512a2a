"""Rows for `gradxform/transforms/two_gradients.py`."""

import functools

import jax
import jax.numpy as jnp

import gradxform as gx
from tests import references as ref
from tests.catalogue.case import Case

SMALL = {"rows": False, "huge_ok": 1 / 8}  # it adds gradients of both places


def first_of(gs, ps):
    """Gradients where a step begins, as a function of those after its climb."""
    return [g + 0.5 for g in gs]


def climbed(gs):
    """Whether a step follows a climb, as the rows have it."""
    return gs[0].sum() > 0


def both(updates, params):
    """The extra argument of rules of two gradients."""
    floating = functools.partial(jnp.issubdtype, arg2=jnp.inexact)
    return {
        "first_gradients": jax.tree.map(
            lambda g: g + jnp.asarray(0.5, g.dtype) if floating(g.dtype) else g, updates
        )
    }


def both_and_when(updates, params):
    """The same, and whether there was a climb."""
    return both(updates, params) | {"after_climb": climbed(jax.tree.leaves(updates))}


TRANSFORMS: dict[str, Case] = {
    "mix_gradients": Case(
        gx.mix_gradients(0.3, -2.0),
        ref.of_two(lambda gs, hs: ref.mixed(gs, hs, 0.3, -2.0), first_of),
        extra=both,
        rows=False,
        huge_ok=1 / 8,
    ),
    "subtract_surrogate_gap": Case(
        gx.subtract_surrogate_gap(0.7),
        ref.of_two(lambda gs, hs: ref.gap_direction(gs, hs, 0.7), first_of),
        extra=both,
        **SMALL,
    ),
    "reuse_sharpness": Case(
        gx.reuse_sharpness(0.3),
        ref.reused(0.3, first_of, climbed),
        extra=both_and_when,
        **SMALL,
    ),
}


REFUSED = [
    ("one_step(mix_gradients(0.5, 0.5))",
     TypeError, "mix_gradients: needs the extra argument 'first_gradients'"),
    ("one_step(mix_gradients(0.5, 0.5), first_gradients={'v': 1.0})",
     ValueError, "mix_gradients: the updates have a leaf ['w'], the first gradients have none"),
    ("one_step(reuse_sharpness(), first_gradients={}, after_climb=2.0)",
     TypeError, "reuse_sharpness: after_climb must be True or False, got 2.0."),
]  # fmt: skip
