"""Rows for `gradxform/transforms/ranger.py` and its recipe."""

import gradxform as gx
from tests import references as ref
from tests.catalogue.case import Case


def units(x):
    """The axes of a unit: those of a vector, the first of a matrix or a 3-d array."""
    return (0,) if x.ndim in (2, 3) else tuple(range(x.ndim))


CENTER = ref.stateless(lambda g, p, t: ref.centralize(g, p, t, -1))

TRANSFORMS: dict[str, Case] = {
    "scale_by_ranger21": Case(
        gx.scale_by_ranger21(), ref.ranger21(0.9, 0.999, 0.9, 1e-4, 1e-8, 50.0), rows=False
    ),
    "scale_by_ranger21/eps": Case(
        gx.scale_by_ranger21(0.8, 0.5, 2.0, 0.3, 0.2, 1.5, renormalize=True),
        ref.ranger21(0.8, 0.5, 2.0, 0.3, 0.2, 1.5, True),
        rows=False,
    ),
    "scale_by_ranger21/no softplus": Case(
        gx.scale_by_ranger21(beta_softplus=None),
        ref.ranger21(0.9, 0.999, 0.9, 1e-4, 1e-8, None),
        rows=False,
    ),
}


OPTIMIZERS: dict[str, Case] = {
    "ranger21": Case(
        gx.ranger21(0.1, 10, b2=0.5, weight_decay=0.2, norm_loss=0.3),
        ref.lookahead(
            ref.sequence(
                ref.adaptive_grad_clip(0.01, 1e-3, units),
                CENTER,
                ref.block_std(1e-8),
                ref.ranger21(0.9, 0.5, 0.9, 0.2, 1e-8, 50.0),
                ref.norm_loss(0.3, units),
                ref.scale(lambda n: -up_and_down(n)),
            ),
            5,
            0.5,
        ),
        rows=False,
    ),
}


def up_and_down(n):
    """4 steps up to 0.1, and 4 down to 3e-5 from the seventh of 10 on."""
    if n < 6:
        return min(0.025 * (n + 1), 0.1)
    return 0.1 + (3e-5 - 0.1) * min((n - 5) / 4, 1)


REFUSED = [
    ("ranger21(0.1, 3)", ValueError, "ranger21: total_steps must be at least 4, got 3"),
    ("ranger21(0.1, 1.5)", TypeError, "ranger21: total_steps must be an integer"),
    ("ranger21(constant_schedule(0.1), 10)",
     TypeError, "ranger21: learning_rate must be a number with total_steps"),
    ("ranger21(-1.0, 10)", ValueError, "ranger21: learning_rate must be at least 0"),
    ("ranger21(0.1, least_rate=0.01)",
     ValueError, "ranger21: least_rate=0.01 does nothing without total_steps."),
]  # fmt: skip
