"""Rows for `gradxform/wrappers/loss_scale.py`."""

import math

import jax
import jax.numpy as jnp

import gradxform as gx
from gradxform.testing import random_gradients
from tests import references as ref
from tests.catalogue.case import ADAM, SGD, Case, with_lr


def overflowing(params, steps):
    """Random gradients, of which the second and the third have infinities."""
    grads = random_gradients(params, steps)
    sizes = (8.0, math.inf, math.inf, 2.0, 2.0, 4.0, 4.0)
    return [jax.tree.map(lambda x, c=c: c * x, g) for c, g in zip(sizes, grads, strict=False)]


# A decay in it sees the parameters, and a clip the gradients of the loss itself.
CLIPPED = gx.chain(gx.clip_by_global_norm(5.0), gx.add_decayed_weights(0.1), gx.scale(-0.1))
CLIPPED_REF = ref.sequence(ref.clip_by_global_norm(5.0), ref.decay(0.1), SGD)

WRAPPERS: dict[str, Case] = {
    "loss_scale": Case(
        gx.loss_scale(gx.adam(0.1)),
        ref.loss_scale(with_lr(0.1, ADAM), 2.0**15, 2000, 2.0, 0.5, 1.0, 2.0**24),
    ),
    "loss_scale/growing": Case(
        gx.loss_scale(gx.scale(-0.1), 2.0**16, 1, 3.0, max_scale=2.0**18),
        ref.loss_scale(SGD, 2.0**16, 1, 3.0, 0.5, 1.0, 2.0**18),
    ),
    "loss_scale/overflowing": Case(
        gx.loss_scale(CLIPPED, 16.0, 2, backoff_factor=0.25, min_scale=2.0),
        ref.loss_scale(CLIPPED_REF, 16.0, 2, 2.0, 0.25, 2.0, 2.0**24),
        draw=overflowing,
    ),
    "loss_scale/constant": Case(
        gx.loss_scale(gx.scale(-0.1), 3.0, None),
        ref.loss_scale(SGD, 3.0, None, 2.0, 0.5, 1.0, 2.0**24),
        draw=overflowing,
    ),
}

DESCENT = gx.sgd(0.1)
P = {"w": jnp.ones(3)}
STATE = gx.loss_scale(DESCENT).init(P)


def scaled(**fields):
    """A loss scale with these fields."""
    return gx.loss_scale(DESCENT, **fields)


REFUSED = [
    ("scaled(initial_scale=0)",
     ValueError, "loss_scale: initial_scale must be in [2**-126, 2**126], got 0"),
    ("scaled(initial_scale=-8.0)",
     ValueError, "loss_scale: initial_scale must be in [2**-126, 2**126], got -8.0"),
    ("scaled(initial_scale=math.inf)",
     ValueError, "loss_scale: initial_scale must be in [2**-126, 2**126], got inf"),
    ("scaled(initial_scale=math.nan)",
     ValueError, "loss_scale: initial_scale must be a number, got nan"),
    ("scaled(initial_scale='dynamic')",
     TypeError, "loss_scale: initial_scale must be a number, got 'dynamic'"),
    ("scaled(initial_scale=True)",
     TypeError, "loss_scale: initial_scale must be a number, got True"),
    ("scaled(growth_interval=0)",
     ValueError, "loss_scale: growth_interval must be at least 1, got 0"),
    ("scaled(growth_interval=-1)",
     ValueError, "loss_scale: growth_interval must be at least 1, got -1"),
    ("scaled(growth_interval=2.5)", TypeError, "loss_scale: growth_interval must be an integer"),
    ("scaled(growth_factor=1)",
     ValueError, "loss_scale: growth_factor must be greater than 1, got 1"),
    ("scaled(growth_factor=0.5)",
     ValueError, "loss_scale: growth_factor must be greater than 1, got 0.5"),
    ("scaled(backoff_factor=1.0)",
     ValueError, "loss_scale: backoff_factor must be in (0, 1), got 1.0"),
    ("scaled(backoff_factor=0.0)",
     ValueError, "loss_scale: backoff_factor must be in (0, 1), got 0.0"),
    ("scaled(min_scale=0.0)",
     ValueError, "loss_scale: min_scale must be in [2**-126, 2**126], got 0.0"),
    ("scaled(max_scale=math.inf)",
     ValueError, "loss_scale: max_scale must be in [2**-126, 2**126], got inf"),
    ("scaled(axis_name=3)", TypeError, "loss_scale: axis_name must be a string"),
    ("scaled(min_scale=2.0, max_scale=1.0, initial_scale=2.0)",
     ValueError, "loss_scale: initial_scale must be at most max_scale, got 2.0 and 1.0."),
    ("scaled(initial_scale=0.5)",
     ValueError, "loss_scale: min_scale must be at most initial_scale, got 1.0 and 0.5."),
    ("scaled(initial_scale=2.0**25)",
     ValueError, "loss_scale: initial_scale must be at most max_scale"),
    ("loss_scale(0.1)", TypeError, "loss_scale: inner must have init and update"),
    ("loss_scale(chain(scaled(), scale(2.0)))",
     ValueError, "loss_scale: chain has a loss scale already"),
    ("scaled().update(P, adam(0.1).init(P), P)",
     TypeError, "loss_scale: the state must be of kind LossScaleState"),
    ("one_step(scaled(), grads={'w': jnp.ones((2, 3), jnp.int32)})",
     TypeError, "loss_scale: gradient of ['w'] has dtype int32", "only floating gradients"),
    ("one_step(scaled(axis_name='replica'))",
     NameError, "loss_scale: the axis 'replica' is not bound here"),
    ("scaled_loss(1.0, adam(0.1).init(P))",
     ValueError, "scaled_loss: the state has no scale in it", "loss_scale(...)"),
    ("scaled_loss(1.0, (STATE, STATE))", ValueError, "scaled_loss: the state has 2 scales in it"),
    ("scaled_loss(jnp.ones(3), STATE)", TypeError, "scaled_loss: loss", "shape (3,)"),
    ("scaled_loss(jnp.ones(1), STATE)", TypeError, "scaled_loss: loss", "shape (1,)"),
    ("scaled_loss(2, STATE)", TypeError, "loss must be a real floating scalar, got 2"),
    ("scaled_loss(jnp.int32(2), STATE)",
     TypeError, "scaled_loss: loss must be a real floating scalar"),
    ("scaled_loss(1j, STATE)", TypeError, "loss must be a real floating scalar"),
    ("scaled_loss(None, STATE)", TypeError, "loss must be a real floating scalar"),
    ("scaled_loss(1.0, STATE._replace(loss_scale=jnp.ones(2)))",
     TypeError, "scaled_loss: the scale in the state must be one real number"),
]  # fmt: skip
