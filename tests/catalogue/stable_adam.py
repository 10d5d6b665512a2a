"""Rows for `gradxform/transforms/stable_adam.py` and its recipes."""

import gradxform as gx
from tests import references as ref
from tests.catalogue.case import FALLING, FALLING_LR, Case, falling, matrix, with_lr

TRANSFORMS: dict[str, Case] = {
    "scale_by_adam_atan2": Case(gx.scale_by_adam_atan2(), ref.adam_atan2(0.9, 0.999)),
    "scale_by_adam_atan2/factors": Case(
        gx.scale_by_adam_atan2(0.8, 0.5, 1.27, 2.0), ref.adam_atan2(0.8, 0.5, 1.27, 2.0)
    ),
    "clip_by_moving_rms": Case(gx.clip_by_moving_rms(), ref.moving_rms(0.99, 1e-8), rows=False),
    "clip_by_moving_rms/eps": Case(
        gx.clip_by_moving_rms(0.5, 0.3), ref.moving_rms(0.5, 0.3), rows=False
    ),
    "scale_by_stable_adam": Case(
        gx.scale_by_stable_adam(), ref.stable_adam(0.9, 0.99, 1e-8), rows=False
    ),
    "scale_by_stable_adam/decay": Case(
        gx.scale_by_stable_adam(0.8, 0.5, 0.1, weight_decay=0.2, mask=gx.ndim_at_least(2)),
        ref.stable_adam(0.8, 0.5, 0.1, 0.2, matrix),
        rows=False,
    ),
}


OPTIMIZERS: dict[str, Case] = {
    "adam_atan2": Case(
        gx.adam_atan2(0.1, weight_decay=0.2, mask=gx.ndim_at_least(2)),
        with_lr(0.1, ref.adam_atan2(0.9, 0.999), ref.decay(0.2, matrix)),
    ),
    "stable_adamw": Case(
        gx.stable_adamw(0.1),
        with_lr(0.1, ref.stable_adam(0.9, 0.99, 1e-8, 0.01)),
        rows=False,
    ),
    "stable_adamw/schedules": Case(
        gx.stable_adamw(FALLING, weight_decay=FALLING, mask=gx.ndim_at_least(2)),
        ref.sequence(ref.stable_adam(0.9, 0.99, 1e-8, falling, matrix), FALLING_LR),
        rows=False,
    ),
}


REFUSED = [
    ("adam_atan2(0.1, a=0.0)", ValueError, "scale_by_adam_atan2: a must be greater"),
    ("stable_adamw(0.1, eps=-1)", ValueError, "scale_by_stable_adam: eps must be at"),
]  # fmt: skip
