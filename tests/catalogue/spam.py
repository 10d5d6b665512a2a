"""Rows for `gradxform/transforms/spam.py` and its recipes."""

import gradxform as gx
from tests import references as ref
from tests.catalogue.case import ADAM, FALLING, FALLING_LR, Case, matrix, with_lr
from tests.catalogue.spikes import spiky

TRANSFORMS: dict[str, Case] = {
    "clip_by_second_moment": Case(
        gx.clip_by_second_moment(2.0, 0.5, 3), ref.second_moment_clip(2.0, 0.5, 3), draw=spiky
    ),
    "clip_by_second_moment/at once": Case(
        gx.clip_by_second_moment(20.0, start=1), ref.second_moment_clip(20.0, 0.999, 1), draw=spiky
    ),
    "adaclip": Case(gx.adaclip(), ref.adaclip(0.999), draw=spiky, rows=False),
    "adaclip/theta": Case(gx.adaclip(0.5), ref.adaclip(0.5), draw=spiky, rows=False),
    "adagn": Case(gx.adagn(), ref.adagn(0.7, 0.9, 1e-8), draw=spiky, rows=False),
    "adagn/eps": Case(gx.adagn(0.5, 0.8, 0.1), ref.adagn(0.5, 0.8, 0.1), rows=False),
    "warm_up_after_resets": Case(gx.warm_up_after_resets(3, 2, 0.2), ref.climb(3, 2, 0.2)),
    "warm_up_after_resets/never": Case(gx.warm_up_after_resets(2, 0), ref.scale(1.0)),
}


OPTIMIZERS: dict[str, Case] = {
    "spam": Case(
        gx.spam(0.1),
        with_lr(0.1, ref.second_moment_clip(5000, 0.999, 20), ref.adam_hat(0.9, 0.999, 1e-6)),
        rows=False,
    ),
    "spam/often": Case(
        gx.spam(FALLING, 0.5, 0.8, 0.1, 2.0, 2, 3, 2, 0.3, gx.ndim_at_least(2)),
        ref.sequence(
            ref.reset(ref.second_moment_clip(2.0, 0.8, 2, 3), 3, False),
            ref.reset(ref.adam_hat(0.5, 0.8, 0.1), 3, False),
            ref.climb(3, 2),
            ref.decay(0.3, matrix),
            FALLING_LR,
        ),
        draw=spiky,
        rows=False,
        huge_ok=1 / 8,  # for m / 2 + g / 2, XLA adds before it halves
    ),
    "stable_spam": Case(
        gx.stable_spam(0.1),
        with_lr(0.1, ref.adaclip(0.999), ref.adagn(0.7, 0.9, 1e-8), ADAM),
        rows=False,
    ),
    "stable_spam/often": Case(
        gx.stable_spam(FALLING, 0.5, 0.8, 0.6, 0.7, 0.8, 0.1, 3, 0.3, gx.ndim_at_least(2)),
        ref.sequence(
            ref.adaclip(0.8),
            ref.adagn(0.6, 0.7, 0.1),
            ref.reset(ref.adam(0.5, 0.8, 0.1), 3),
            ref.decay(0.3, matrix),
            FALLING_LR,
        ),
        draw=spiky,
        rows=False,
    ),
}


REFUSED = [
    ("spam(0.1, start=0)", ValueError, "start must be at least 1, got 0."),
    ("stable_spam(0.1, theta=1.0)", ValueError, "adaclip: theta must be in [0, 1)"),
]  # fmt: skip
