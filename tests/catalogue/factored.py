"""Rows for `gradxform/transforms/factored.py` and its recipes."""

import jax.numpy as jnp

import gradxform as gx
from tests import references as ref
from tests.catalogue.case import FALLING, Case, falling, with_lr


def adafactor(rate, smallest=128, relative=True, momentum=None, decay=0.0):
    """Shazeer and Stern, Algorithms 4 to 6, and an average of the steps."""
    return ref.sequence(
        ref.factored_rms(smallest=smallest),
        ref.clip_by_block_rms(1.0),
        ref.scale(rate),
        *([ref.block_rms()] if relative else []),
        *([ref.ema(momentum, False)] if momentum else []),
        ref.decay(decay),
        ref.scale(-1.0),
    )


TRANSFORMS: dict[str, Case] = {
    "scale_by_factored_rms": Case(gx.scale_by_factored_rms(), ref.factored_rms(), rows=False),
    "scale_by_factored_rms/factored": Case(
        gx.scale_by_factored_rms(True, 0.5, 2, 2, 0.1),
        ref.factored_rms(0.5, 0.1, smallest=2, offset=2),
        rows=False,
    ),
    "scale_by_factored_rms/last_axes": Case(
        gx.scale_by_factored_rms(min_dim_size_to_factor=2, last_axes=True),
        ref.factored_rms(smallest=2, last_axes=True),
        tree={"k": jnp.ones((5, 2, 3)), "w": jnp.ones((3, 2)), "b": jnp.ones(4)},
        rows=False,
    ),
    "scale_by_sm3": Case(gx.scale_by_sm3(), ref.sm3(0.9), rows=False),
    "scale_by_sm3/forgetting": Case(
        gx.scale_by_sm3(0.5, 0.9, 0.1), ref.sm3(0.5, 0.9, 0.1), rows=False
    ),
}


OPTIMIZERS: dict[str, Case] = {
    "adafactor": Case(gx.adafactor(), adafactor(1.0), rows=False),
    "adafactor/factored": Case(
        gx.adafactor(FALLING, 2, multiply_by_parameter_scale=False, momentum=0.9),
        adafactor(falling, 2, False, 0.9),
        rows=False,
    ),
    "adafactor/decay": Case(
        gx.adafactor(0.1, 3, weight_decay_rate=0.01), adafactor(0.1, 3, decay=0.01), rows=False
    ),
    "sm3": Case(gx.sm3(0.1), with_lr(0.1, ref.sm3(0.9)), rows=False),
    "sm3/paper": Case(gx.sm3(0.1, eps=0.0), with_lr(0.1, ref.sm3(0.9, eps=0)), rows=False),
    "sm3/forgetting": Case(
        gx.sm3(0.1, b2=0.9, eps=0.1), with_lr(0.1, ref.sm3(0.9, 0.9, 0.1)), rows=False
    ),
}


REFUSED = [
    ("sm3(0.1, 1.0)", ValueError, "sm3: momentum must be in [0, 1), got 1.0."),
    ("scale_by_sm3(b2=1.1)", ValueError, "scale_by_sm3: b2 must be in [0, 1], got 1.1."),
    ("gx.adafactor(0.1, 16.0)",
     TypeError, "scale_by_factored_rms: min_dim_size_to_factor must be an integer, got 16.0."),
    ("gx.adafactor(0.1, eps=-1)", ValueError, "scale_by_factored_rms: epsilon must be at"),
    ("gx.adafactor(0.1, multiply_by_parameter_scale=None)",
     TypeError, "adafactor: multiply_by_parameter_scale must be True or False, got None."),
    ("scale_by_factored_rms(decay_rate_fn=lambda step: 0.9)",
     TypeError, "scale_by_factored_rms: decay_rate_fn is called with (step, decay_rate)"),
    ("one_step(scale_by_factored_rms(decay_rate_fn=lambda n, c: jnp.ones(3)))", ValueError,
     "scale_by_factored_rms: decay_rate_fn must return a scalar, got an array of shape (3,)."),
    ("jax.jit(lambda n: scale_by_factored_rms(min_dim_size_to_factor=n))(4)",
     TypeError, "scale_by_factored_rms: min_dim_size_to_factor decides shapes", "static_args."),
    ("gx.adafactor(weight_decay_mask='x')",
     TypeError, "adafactor: the entries of weight_decay_mask must be True or False, got 'x'."),
]  # fmt: skip
