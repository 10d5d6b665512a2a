"""Rows for `gradxform/transforms/layerwise.py` and its recipes."""

import gradxform as gx
from tests import references as ref
from tests.catalogue.case import FALLING, FALLING_LR, NEGATIVE_RATE, Case, falling, matrix, with_lr


def units(x):
    """The axes of a unit: those of a vector, the first of a matrix or a 3-d array."""
    return (0,) if x.ndim in (2, 3) else tuple(range(x.ndim))


TRANSFORMS: dict[str, Case] = {
    "add_norm_loss": Case(gx.add_norm_loss(0.3), ref.norm_loss(0.3, units), rows=False),
    "add_norm_loss/axis": Case(
        gx.add_norm_loss(axis=()), ref.norm_loss(1e-4, lambda p: ()), rows=False
    ),
    "scale_by_trust_ratio": Case(
        gx.scale_by_trust_ratio(), ref.trust_ratio(1.0, 0.0, 0.0), rows=False
    ),
    "scale_by_trust_ratio/min": Case(
        gx.scale_by_trust_ratio(2.0, 0.1, 0.5), ref.trust_ratio(0.1, 0.5, 2.0), rows=False
    ),
    "scale_by_trust_ratio/most": Case(
        gx.scale_by_trust_ratio(max_ratio=0.5), ref.trust_ratio(1.0, 0.0, 0.0, 0.5), rows=False
    ),
    "scale_by_trust_ratio/bounded": Case(
        gx.scale_by_trust_ratio(max_norm=0.7),
        ref.trust_ratio(1.0, 0.0, 0.0, max_norm=0.7),
        rows=False,
    ),
    "scale_by_trust_ratio/decay": Case(
        gx.scale_by_trust_ratio(0.0, 0.1, 1e-3, weight_decay=0.2),
        ref.lars_sum(0.2, 0.1, 1e-3),
        rows=False,
    ),
    "scale_by_novograd": Case(gx.scale_by_novograd(), ref.novograd(0.9, 0.25, 1e-8), rows=False),
    "scale_by_novograd/decay": Case(
        gx.scale_by_novograd(0.8, 0.5, 0.1, 0.2, FALLING),
        ref.novograd(0.8, 0.5, 0.1, 0.2, falling),
        rows=False,
    ),
    "scale_by_param_block_norm": Case(gx.scale_by_param_block_norm(), ref.block_norm(), rows=False),
    "scale_by_param_block_norm/min": Case(
        gx.scale_by_param_block_norm(2.0), ref.block_norm(2.0), rows=False
    ),
    "scale_by_param_block_rms": Case(
        gx.scale_by_param_block_rms(1.0), ref.block_rms(1.0), rows=False
    ),
    "scale_by_first_snr": Case(gx.scale_by_first_snr(), ref.first_snr(1e-8), rows=False),
    "scale_by_first_snr/eps": Case(gx.scale_by_first_snr(0.5), ref.first_snr(0.5), rows=False),
    "undo_norm_growth": Case(gx.undo_norm_growth(0.3), ref.shrink(0.3)),
}


OPTIMIZERS: dict[str, Case] = {
    "lamb": Case(
        gx.lamb(0.1, weight_decay=0.1),
        with_lr(0.1, ref.adam(0.9, 0.999, 1e-6), ref.decay(0.1), ref.trust_ratio(1.0, 0.0, 0.0)),
        rows=False,
    ),
    "lamb/most": Case(
        gx.lamb(0.1, max_ratio=0.5),
        with_lr(0.1, ref.adam(0.9, 0.999, 1e-6), ref.trust_ratio(1.0, 0.0, 0.0, 0.5)),
        rows=False,
    ),
    "lars": Case(
        gx.lars(0.1, 0.1),
        ref.sequence(
            ref.decay(0.1), with_lr(0.1, ref.trust_ratio(0.001, 0.0, 0.0)), ref.trace(0.9)
        ),
        rows=False,
    ),
    "lars/sum of norms": Case(
        gx.lars(0.1, 0.2, gx.ndim_at_least(2), 0.01, 0.0, gx.ndim_at_least(2), sum_norms=True),
        ref.sequence(with_lr(0.1, ref.lars_sum(0.2, 0.01, 0.0, matrix)), ref.trace(0.9)),
        rows=False,
    ),
    "fromage": Case(
        gx.fromage(FALLING),
        ref.sequence(
            ref.trust_ratio(1.0, 0.0, 1e-6),
            FALLING_LR,
            ref.shrink(falling),
        ),
        rows=False,
    ),
    "sgd_sai": Case(
        gx.sgd_sai(0.1),
        with_lr(0.1, ref.first_snr(1e-8), ref.ema(0.9, False), ref.decay(0.01)),
        rows=False,
    ),
    "sgd_sai/schedule": Case(
        gx.sgd_sai(FALLING, 0.5, 0.1, 0.2, gx.ndim_at_least(2)),
        ref.sequence(ref.first_snr(0.1), ref.ema(0.5, False), ref.decay(0.2, matrix), FALLING_LR),
        rows=False,
    ),
    "novograd": Case(gx.novograd(0.1), with_lr(0.1, ref.novograd(0.9, 0.25, 1e-6)), rows=False),
}


REFUSED = [
    ("lars(0.1, 0.1, ndim_at_least(2), sum_norms=True)",
     ValueError, "lars: with sum_norms, weight_decay_mask and trust_ratio_mask must be the same"),
    ("lars(0.1, FALLING, sum_norms=True)",
     TypeError, "lars: weight_decay must be a number with sum_norms"),
    ("novograd(0.1, weight_decay=-1)", ValueError, "scale_by_novograd: weight_decay"),
    ("sgd_sai(0.1, 1.0)", ValueError, "ema: decay must be in [0, 1), got 1.0."),
    ("fromage(-1.0)", ValueError, NEGATIVE_RATE),
]  # fmt: skip
