"""Rows for `gradxform/transforms/momentum.py` and its recipes."""

import gradxform as gx
from tests import references as ref
from tests.catalogue.case import FALLING, FALLING_LR, SGD, Case, matrix, with_lr

TRANSFORMS: dict[str, Case] = {
    "trace": Case(gx.trace(0.9), ref.trace(0.9)),
    "trace/nesterov": Case(gx.trace(0.9, nesterov=True), ref.trace(0.9, nesterov=True)),
    "trace/bf16": Case(gx.trace(0.5, accumulator_dtype="bfloat16"), ref.trace(0.5), rtol=2e-2),
    "ema": Case(gx.ema(0.9), ref.ema(0.9, True)),
    "ema/biased": Case(gx.ema(0.9, debias=False), ref.ema(0.9, False)),
}


OPTIMIZERS: dict[str, Case] = {
    "aggmo": Case(gx.aggmo(0.1), with_lr(0.1, ref.aggmo(0.0, 0.9, 0.99)), huge_ok=1 / 128),
    "aggmo/decay": Case(
        gx.aggmo(0.1, (0.5, 0.8), weight_decay=0.2),
        with_lr(0.1, ref.aggmo(0.5, 0.8), ref.decay(0.2)),
        huge_ok=1 / 16,
    ),
    "sgd": Case(gx.sgd(0.1), SGD),
    "sgd/momentum": Case(
        gx.sgd(0.1, 0.9, nesterov=True),
        with_lr(0.1, ref.trace(0.9, True)),
        huge_ok=1 / 8,  # momentum is up to ten times the gradient
    ),
    "sgd/inside": Case(
        gx.sgd(FALLING, 0.9, nesterov=True, learning_rate_inside=True),
        ref.sequence(FALLING_LR, ref.trace(0.9, True)),
    ),
    "sgd/decay": Case(
        gx.sgd(0.1, 0.9, weight_decay=0.2, mask=gx.ndim_at_least(2)),
        with_lr(0.1, ref.trace(0.9), ref.decay(0.2, matrix)),
        huge_ok=1 / 8,  # momentum is up to ten times the gradient
    ),
    "sgdw": Case(
        gx.sgdw(0.1, 0.9, 0.2, gx.ndim_at_least(2)),
        with_lr(0.1, ref.trace(0.9), ref.decay(0.2, matrix)),
        huge_ok=1 / 8,  # momentum is up to ten times the gradient
    ),
    "sgdw/not by the rate": Case(
        gx.sgdw(0.1, 0.9, 0.2, nesterov=True, decay_by_learning_rate=False),
        ref.sequence(with_lr(0.1, ref.trace(0.9, True)), ref.decay_down(0.2)),
        huge_ok=1 / 8,  # momentum is up to ten times the gradient
    ),
}


REFUSED = [
    ("aggmo(0.1, ())", ValueError, "sum_of: needs at least one transform, got none."),
    ("aggmo(0.1, (0.9, 2.0))", ValueError, "trace: decay must be in [0, 1], got 2.0"),
    ("sgd(0.1, learning_rate_inside=True)",
     ValueError, "sgd: learning_rate_inside=True does nothing without a momentum."),
    ("sgd(0.1, 0.9, learning_rate_inside=True, weight_decay=0.1)", ValueError,
     "sgd: learning_rate_inside=True does not take weight_decay or weight_decay_mask; use"),
]  # fmt: skip
