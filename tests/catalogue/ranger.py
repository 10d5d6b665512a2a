"""Rows for `gradxform/transforms/ranger.py`, its recipes, and the parts that came with it."""

import gradxform as gx
from tests import references as ref
from tests.catalogue.case import Case, matrix, with_lr


def units(x):
    """The axes of a unit: those of a vector, the first of a matrix or a 3-d array."""
    return (0,) if x.ndim in (2, 3) else tuple(range(x.ndim))


CENTER = ref.stateless(lambda g, p, t: ref.centralize(g, p, t, -1))

TRANSFORMS: dict[str, Case] = {
    "normalize_by_block_std": Case(gx.normalize_by_block_std(), ref.block_std(1e-8), rows=False),
    "normalize_by_block_std/eps": Case(
        gx.normalize_by_block_std(0.5), ref.block_std(0.5), rows=False
    ),
    "add_norm_loss": Case(gx.add_norm_loss(0.3), ref.norm_loss(0.3, units), rows=False),
    "add_norm_loss/axis": Case(
        gx.add_norm_loss(axis=()), ref.norm_loss(1e-4, lambda p: ()), rows=False
    ),
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
    "ranger": Case(
        gx.ranger(0.1, b2=0.8, sync_period=3, weight_decay=0.2, mask=gx.ndim_at_least(2)),
        ref.lookahead(
            with_lr(
                0.1, CENTER, ref.radam(0.95, 0.8, 1e-5, eps_before=True), ref.decay(0.2, matrix)
            ),
            3,
            0.5,
        ),
        rows=False,
        huge_ok=1 / 8,  # a debiased average rounds to more than the gradient
    ),
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
    (lambda: gx.ranger21(0.1, 3), ValueError, ("ranger21: total_steps must be at least 4, got 3",)),
    (lambda: gx.ranger21(0.1, 1.5), TypeError, ("ranger21: total_steps must be an integer",)),
    (
        lambda: gx.ranger21(gx.constant_schedule(0.1), 10),
        TypeError,
        ("ranger21: learning_rate must be a number with total_steps",),
    ),
    (
        lambda: gx.ranger(0.1, mask=gx.ndim_at_least(2)),
        ValueError,
        ("ranger: mask does nothing without a weight_decay.",),
    ),
]
