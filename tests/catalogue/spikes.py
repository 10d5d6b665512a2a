"""Rows for `gradxform/transforms/spikes.py` and `gradxform/wrappers/spikes.py`."""

import math
from typing import Any

import jax
import jax.numpy as jnp

import gradxform as gx
from gradxform.testing import random_gradients
from gradxform.wrappers.parts import StatelessWrapper
from tests import references as ref
from tests.catalogue.case import ADAM, Case, one_step, with_lr

# How large the gradient of each step is: two spikes after a short warm-up.
SIZES = (1.0, 1.2, 0.9, 3.0, 1.0, 20.0, 1.1)


def spiky(params, steps):
    """Random gradients, some of them large."""
    grads = random_gradients(params, steps)
    return [jax.tree.map(lambda x, c=c: c * x, g) for c, g in zip(SIZES, grads, strict=False)]


def bumpy(params, steps):
    """Random gradients, of which some are a little larger."""
    sizes = (1.0, 1.3, 0.8, 1.8, 1.0, 1.5, 1.2)
    grads = random_gradients(params, steps)
    return [jax.tree.map(lambda x, c=c: c * x, g) for c, g in zip(sizes, grads, strict=False)]


def length(gs):
    """The loss of rows that need one which changes: the norm of the gradient."""
    return ref.norm(gs)


@gx.transform(name="tests:length_as_loss")
class length_as_loss(StatelessWrapper):
    """Hand the norm of the updates to the inner transform as its loss."""

    inner: Any

    locality = "tree"

    def update(self, updates, state, params=None, **extra):
        """The inner update."""
        return self.inner.update(updates, state, params, value=gx.global_norm(updates), **extra)


TRANSFORMS: dict[str, Case] = {
    "zclip": Case(gx.zclip(0.5, 1.1, 3, 0.5), ref.zclip(0.5, 1.1, 3, 0.5), draw=spiky, rtol=1e-4),
    "zclip/calm": Case(gx.zclip(warmup_steps=2), ref.zclip(0.97, 2.5, 2, 1e-6), rtol=1e-4),
    "adagc": Case(gx.adagc(2.0, 1.2, 0.5, 3), ref.adagc(2.0, 1.2, 0.5, 3), draw=spiky, rows=False),
    "adagc/at once": Case(
        gx.adagc(warmup_steps=0), ref.adagc(1.0, 1.05, 0.98, 0), draw=spiky, rows=False
    ),
    "grad_norm_to_clip_to_zero": Case(
        gx.grad_norm_to_clip_to_zero(8.0), ref.clip_to_zero(8.0), draw=spiky
    ),
}

WRAPPERS: dict[str, Case] = {
    "skip_loss_spikes": Case(
        gx.skip_loss_spikes(gx.adam(0.1)),
        with_lr(0.1, ADAM),
        extra={"value": 2.0},
    ),
    "skip_loss_spikes/deviations": Case(
        length_as_loss(gx.skip_loss_spikes(gx.adam(0.1), 1.5, decay=0.5, warmup_steps=3)),
        ref.skip_loss_spikes(with_lr(0.1, ADAM), length, 1.5, math.inf, 0.5, 3, 10),
        draw=bumpy,
    ),
    "skip_loss_spikes/factor": Case(
        length_as_loss(gx.skip_loss_spikes(gx.adam(0.1), math.inf, 1.2, 0.5, 2, 1)),
        ref.skip_loss_spikes(with_lr(0.1, ADAM), length, math.inf, 1.2, 0.5, 2, 1),
        draw=bumpy,
    ),
}

SGD, P = gx.sgd(0.1), {"w": jnp.ones(3)}


def loss(value):
    """One update with that loss."""
    return one_step(gx.skip_loss_spikes(SGD), value=value)


REFUSED = [
    ("zclip(1.0)", ValueError, "zclip: decay must be in [0, 1), got 1.0."),
    ("zclip(z_threshold=0)", ValueError, "z_threshold must be greater than 0, got 0"),
    ("zclip(warmup_steps=1)", ValueError, "warmup_steps must be at least 2, got 1."),
    ("zclip(warmup_steps=2.5)", TypeError, "warmup_steps must be an integer"),
    ("zclip(eps=-1)", ValueError, "eps must be at least 0, got -1"),
    ("zclip().update(P, adagc().init(P), P)",
     TypeError, "zclip: the state must be of kind ZClipState, got AdaGCState."),
    ("adagc(0.0)", ValueError, "adagc: lambda_abs must be greater than 0, got 0.0."),
    ("adagc(lambda_rel=-1)", ValueError, "lambda_rel must be greater than 0"),
    ("adagc(beta=1.5)", ValueError, "adagc: beta must be in [0, 1), got 1.5."),
    ("adagc(warmup_steps=-1)", ValueError, "warmup_steps must be at least 0, got -1."),
    ("grad_norm_to_clip_to_zero(0)",
     ValueError, "grad_norm_to_clip_to_zero: max_norm must be greater than 0"),
    ("grad_norm_to_clip_to_zero(None)", TypeError, "max_norm must be a number"),
    ("skip_loss_spikes(0.1)", TypeError, "inner must have init and update"),
    ("skip_loss_spikes(SGD, 0)", ValueError, "deviations must be greater than 0"),
    ("skip_loss_spikes(SGD, factor=-2)",
     ValueError, "skip_loss_spikes: factor must be greater than 0, got -2"),
    ("skip_loss_spikes(SGD, max_consecutive_skips=-1)",
     ValueError, "max_consecutive_skips must be at least 0, got -1."),
    ("one_step(chain(skip_loss_spikes(SGD)))",
     TypeError, "skip_loss_spikes: needs the extra argument 'value'"),
    ("loss(None)", TypeError, "value must be one real number, got None."),
    ("loss(jnp.ones(3))", TypeError, "value must be one real number", "shape (3,)"),
    ("loss('2')", TypeError, "value must be one real number, got '2'."),
]  # fmt: skip
