"""Rows for `gradxform/transforms/two_gradients.py` and `gradxform/wrappers/sharpness.py`."""

import functools

import jax
import jax.numpy as jnp

import gradxform as gx
from tests import references as ref
from tests.catalogue.case import ADAM, COMPLEX, FALLING, Case, falling, one_step, with_lr
from tests.catalogue.sam import quartic

ADAM_STEP = with_lr(0.1, ADAM)
SMALL = {"rows": False, "huge_ok": 1e-20}  # squares of larger gradients are infinite


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


def gradient(ps):
    """The gradient of `quartic` after the climb."""
    return [p**3 + 0.5 * p for p in ps]


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


WRAPPERS: dict[str, Case] = {
    "gsam": Case(
        gx.gsam(gx.adam(0.1), FALLING, 0.7),
        ref.two_calls(
            ref.then(ADAM_STEP, lambda gs, hs: ref.gap_direction(gs, hs, 0.7)),
            ref.up(falling),
        ),
        **SMALL,
    ),
    "gsam/opaque": Case(
        gx.gsam(gx.adam(0.1), 0.3, adaptive=True, opaque_mode=True),
        ref.one_call(
            ref.then(ADAM_STEP, lambda gs, hs: ref.gap_direction(gs, hs, 0.4)),
            ref.up(0.3, adaptive=True),
            gradient,
        ),
        extra={"grad_fn": quartic},
        **SMALL,
    ),
    "wsam": Case(
        gx.wsam(gx.adam(0.1), 0.2, 0.3, 0.6),
        ref.two_calls(ref.weighted(ADAM_STEP, 0.2, 0.6), ref.up(0.3)),
        **SMALL,
    ),
    "wsam/together": Case(
        gx.wsam(gx.adam(0.1), None, 0.3, 0.6, adaptive=True),
        ref.two_calls(
            ref.then(ADAM_STEP, lambda gs, hs: ref.mixed(gs, hs, -0.5, 1.5)),
            ref.up(0.3, adaptive=True),
        ),
        **SMALL,
    ),
    "looksam": Case(
        gx.looksam(gx.adam(0.1), 0.3, 0.4, 2),
        ref.two_calls(ref.looking(ADAM_STEP, 0.4), ref.up(0.3), plain_steps=1),
        **SMALL,
    ),
    "looksam/opaque": Case(
        gx.looksam(gx.adam(0.1), 0.3, period=3, opaque_mode=True),
        ref.one_call(ref.looking(ADAM_STEP, 0.7), ref.up(0.3), gradient, plain_steps=2),
        extra={"grad_fn": quartic},
        **SMALL,
    ),
}


SGD = gx.sgd(0.1)
REFUSED = [
    (lambda: gx.gsam(SGD, -0.5), ValueError, ("gsam: rho must be at least 0, got -0.5.",)),
    (lambda: gx.wsam(SGD, 0.1, -0.5), ValueError, ("wsam: rho must be at least 0, got -0.5.",)),
    (lambda: gx.wsam(SGD, 0.1, 0.1, 1.0), ValueError, ("wsam: gamma must be in [0, 1), got 1.0.",)),
    (
        lambda: gx.looksam(SGD, period=0),
        ValueError,
        ("looksam: period must be at least 1, got 0.",),
    ),
    (
        lambda: gx.sam(SGD, SGD, plain_steps=-1),
        ValueError,
        ("sam: plain_steps must be at least 0, got -1.",),
    ),
    (
        lambda: one_step(gx.mix_gradients(0.5, 0.5)),
        TypeError,
        ("mix_gradients: needs the extra argument 'first_gradients'",),
    ),
    (
        lambda: one_step(gx.mix_gradients(0.5, 0.5), first_gradients={"v": 1.0}),
        ValueError,
        ("mix_gradients: the updates have a leaf ['w'], the first gradients have none",),
    ),
    (
        lambda: one_step(gx.reuse_sharpness(), first_gradients={}, after_climb=2.0),
        TypeError,
        ("reuse_sharpness: after_climb must be True or False, got 2.0.",),
    ),
    (lambda: one_step(gx.gsam(SGD), COMPLEX), TypeError, ("complex",)),
]
