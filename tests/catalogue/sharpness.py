"""Rows for `gradxform/wrappers/sharpness.py`."""

import gradxform as gx
from tests import references as ref
from tests.catalogue.case import ADAM, FALLING, Case, falling, with_lr
from tests.catalogue.sam import quartic
from tests.catalogue.two_gradients import SMALL

ADAM_STEP = with_lr(0.1, ADAM)


def gradient(ps):
    """The gradient of `quartic` after the climb."""
    return [p**3 + 0.5 * p for p in ps]


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
        ref.two_calls(ref.weighted_sharpness(ADAM_STEP, 0.2, 0.6), ref.up(0.3)),
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
    ("gsam(SGD, -0.5)", ValueError, "gsam: rho must be at least 0, got -0.5."),
    ("wsam(SGD, 0.1, -0.5)", ValueError, "wsam: rho must be at least 0, got -0.5."),
    ("wsam(SGD, 0.1, math.inf)", ValueError, "wsam: rho must be finite, got inf."),
    ("wsam(SGD, 0.1, 0.1, 1.0)", ValueError, "wsam: gamma must be in [0, 1), got 1.0."),
    ("looksam(SGD, period=0)", ValueError, "looksam: period must be at least 1, got 0."),
    ("sam(SGD, SGD, plain_steps=-1)", ValueError, "sam: plain_steps must be at least 0, got -1."),
    ("one_step(gsam(SGD), COMPLEX)", TypeError, "complex"),
]  # fmt: skip
