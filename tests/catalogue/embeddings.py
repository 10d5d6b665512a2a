"""Rows for `gradxform/transforms/embeddings.py` and its recipes."""

from typing import Any

import jax.numpy as jnp

import gradxform as gx
from tests import references as ref
from tests.catalogue.case import ADAM, FALLING, FALLING_LR, Case, matrix, with_lr

NO_SWITCH: Any = 1


def _other_table():
    tx, rows = gx.rowwise_adagrad(0.1), gx.RowSparse([1], jnp.ones((1, 3)), 4)
    return tx.update(rows, tx.init(jnp.ones((5, 3))), jnp.ones((4, 3)))


TRANSFORMS: dict[str, Case] = {
    "scale_by_adam_catching_up": Case(
        gx.scale_by_adam_catching_up(), ref.adam_catching_up(0.9, 0.999, 1e-8)
    ),
    "scale_by_adam_catching_up/eps": Case(
        gx.scale_by_adam_catching_up(0.5, 0.9, 0.1, 0.2),
        ref.adam_catching_up(0.5, 0.9, 0.1, 0.2),
        huge_ok=1 / 8,  # for m / 2 + g / 2, XLA adds before it halves
    ),
    "scale_by_rowwise_rss": Case(gx.scale_by_rowwise_rss(), ref.rowwise_adagrad(0.0, 1e-8)),
}


OPTIMIZERS: dict[str, Case] = {
    "lazy_adam": Case(gx.lazy_adam(0.1), with_lr(0.1, ADAM)),
    "lazy_adamw": Case(
        gx.lazy_adamw(FALLING, weight_decay=0.2, mask=gx.ndim_at_least(2), catch_up=True),
        ref.sequence(ADAM, ref.decay(0.2, matrix), FALLING_LR),
    ),
    "lazy_adam/torch": Case(
        gx.lazy_adam(0.1, 0.8, 0.9, 0.1, eps_before_correction=True),
        with_lr(0.1, ref.adam_hat(0.8, 0.9, 0.1)),
    ),
    "lazy_adamw/torch": Case(
        gx.lazy_adamw(0.1, 0.8, 0.9, 0.1, weight_decay=0.2, eps_before_correction=True),
        with_lr(0.1, ref.adam_hat(0.8, 0.9, 0.1), ref.decay(0.2)),
    ),
    "rowwise_adagrad": Case(
        gx.rowwise_adagrad(0.1, 0.2, 1e-3), with_lr(0.1, ref.rowwise_adagrad(0.2, 1e-3))
    ),
}


REFUSED = [
    ("scale_by_adam_catching_up(0.9, 0.81)",
     ValueError, "scale_by_adam_catching_up: b1 must be less than sqrt(b2), 0.9, got 0.9."),
    ("lazy_adam(0.1, b2=0.5, catch_up=True)",
     ValueError, "scale_by_adam_catching_up: b1 must be less than sqrt(b2), 0.707107, got 0.9."),
    ("lazy_adam(0.1, catch_up=True, eps_before_correction=True)",
     ValueError, "lazy_adam: catch_up cannot be set together with eps_before_correction."),
    ("lazy_adamw(0.1, eps_root=0.1, eps_before_correction=True)",
     ValueError, "lazy_adamw: eps_root cannot be set together with eps_before_correction."),
    ("lazy_adam(0.1, catch_up=NO_SWITCH)",
     TypeError, "lazy_adam: catch_up must be True or False, got 1."),
    ("lazy_adamw(0.1, catch_up=NO_SWITCH)",
     TypeError, "lazy_adamw: catch_up must be True or False, got 1."),
    ("rowwise_adagrad(0.1, eps=-1.0)",
     ValueError, "scale_by_rowwise_rss: eps must be at least 0, got -1.0."),
    ("_other_table()", ValueError, "scale_by_rowwise_rss: ", "(5,)", "4"),
]  # fmt: skip
