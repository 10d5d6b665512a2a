"""The rows of the foundation."""

import numpy as np
import optax

import gradxform as gx
from tests import references as ref
from tests.catalogue.base import (
    FALLING,
    SGD,
    Case,
    conv_axes,
    falling,
    foreign,
    halve,
    matrix,
    plus_one,
    with_lr,
)

ADAM = ref.adam(0.9, 0.999, 1e-8)
BY_SIZE = gx.label_by(("matrix", gx.ndim_at_least(2)), ("rest", True))

TRANSFORMS: dict[str, Case] = {
    "identity": Case(gx.identity(), ref.identity),
    "set_to_zero": Case(gx.set_to_zero(), ref.set_to_zero),
    "stateless": Case(
        gx.stateless(plus_one), ref.stateless(lambda g, p, t: g + 1), pickles=False, rows=False
    ),
    "stateless_with_tree_map": Case(
        gx.stateless_with_tree_map(halve), ref.scale(0.5), pickles=False, rows=False
    ),
    "GradientTransformation": Case(
        foreign(), SGD, names=("GradientTransformationExtraArgs",), pickles=False, rows=False
    ),
    "scale": Case(gx.scale(-0.3), ref.scale(-0.3)),
    "scale_by_learning_rate": Case(gx.scale_by_learning_rate(0.3), ref.scale(-0.3)),
    "scale_by_learning_rate/schedule": Case(
        gx.scale_by_learning_rate(FALLING), ref.scale(lambda n: -falling(n))
    ),
    "scale_by_learning_rate/up": Case(
        gx.scale_by_learning_rate(0.3, flip_sign=False), ref.scale(0.3)
    ),
    "scale_by_schedule": Case(gx.scale_by_schedule(FALLING), ref.scale(falling)),
    "add_decayed_weights": Case(gx.add_decayed_weights(0.1), ref.decay(0.1)),
    "add_decayed_weights/mask": Case(
        gx.add_decayed_weights(0.1, gx.ndim_at_least(2)), ref.decay(0.1, matrix)
    ),
    "add_decayed_weights/schedule": Case(gx.add_decayed_weights(FALLING), ref.decay(falling)),
    "add_noise": Case(gx.add_noise(0.1, 0.55, 0), None),
    "trace": Case(gx.trace(0.9), ref.trace(0.9)),
    "trace/nesterov": Case(gx.trace(0.9, nesterov=True), ref.trace(0.9, nesterov=True)),
    "trace/bf16": Case(gx.trace(0.5, accumulator_dtype="bfloat16"), ref.trace(0.5), rtol=2e-2),
    "ema": Case(gx.ema(0.9), ref.ema(0.9, True)),
    "ema/biased": Case(gx.ema(0.9, debias=False), ref.ema(0.9, False)),
    "scale_by_adam": Case(gx.scale_by_adam(), ADAM),
    "scale_by_adam/eps": Case(gx.scale_by_adam(0.8, 0.95, 0.1, 0.2), ref.adam(0.8, 0.95, 0.1, 0.2)),
    "scale_by_adam/nesterov": Case(
        gx.scale_by_adam(nesterov=True), ref.adam(0.9, 0.999, 1e-8, nesterov=True)
    ),
    "scale_by_adam/b1=0": Case(gx.scale_by_adam(b1=0.0), ref.adam(0.0, 0.999, 1e-8)),
    "scale_by_amsgrad": Case(gx.scale_by_amsgrad(), ref.amsgrad(0.9, 0.999, 1e-8)),
    "scale_by_amsgrad/paper": Case(
        gx.scale_by_amsgrad(bias_correction_mu=False, bias_correction_nu=False),
        ref.amsgrad(0.9, 0.999, 1e-8, False, False),
    ),
    "scale_by_amsgrad/eps": Case(
        gx.scale_by_amsgrad(0.8, 0.9, 0.1, 0.2), ref.amsgrad(0.8, 0.9, 0.1, eps_root=0.2)
    ),
    "scale_by_rms": Case(gx.scale_by_rms(), ref.rms(0.9, 1e-8)),
    "scale_by_rms/eps": Case(gx.scale_by_rms(0.8, 0.1), ref.rms(0.8, 0.1)),
    "scale_by_rms/outside": Case(
        gx.scale_by_rms(0.95, 1e-3, 1.0, eps_in_sqrt=False), ref.rms(0.95, 1e-3, 1.0, False)
    ),
    "scale_by_rms/corrected": Case(
        gx.scale_by_rms(bias_correction=True), ref.rms(0.9, 1e-8, correct=True)
    ),
    "scale_by_stddev": Case(gx.scale_by_stddev(), ref.stddev(0.9, 1e-8), rtol=2e-4, huge_ok=False),
    "scale_by_stddev/outside": Case(
        gx.scale_by_stddev(0.8, 0.01, 0.1, False, True),
        ref.stddev(0.8, 0.01, 0.1, False, True),
        rtol=2e-4,
        huge_ok=False,
    ),
    "scale_by_rss": Case(gx.scale_by_rss(), ref.adagrad(0.1, 1e-7)),
    "scale_by_rss/eps": Case(gx.scale_by_rss(0.1, 0.2), ref.adagrad(0.1, 0.2)),
    "scale_by_rss/from zero": Case(gx.scale_by_rss(0.0, 0.0), ref.adagrad(0.0, 0.0)),
    "scale_by_sign": Case(gx.scale_by_sign(), ref.sign),
    "scale_by_lion": Case(gx.scale_by_lion(), ref.lion(0.9, 0.99)),
    "scale_by_lion/smooth": Case(
        gx.scale_by_lion(mode="smooth", smooth_beta=2.0),
        ref.lion(0.9, 0.99, lambda c: np.tanh(2 * c)),
    ),
    "scale_by_lion/refined": Case(
        gx.scale_by_lion(0.5, 0.9, mode="refined"),
        ref.lion(0.5, 0.9, lambda c: np.where(np.abs(c) < 1, c, np.sign(c))),
    ),
    "clip": Case(gx.clip(0.5), ref.clip(0.5)),
    "clip_by_block_rms": Case(gx.clip_by_block_rms(0.5), ref.clip_by_block_rms(0.5), rows=False),
    "clip_by_global_norm": Case(gx.clip_by_global_norm(1.0), ref.clip_by_global_norm(1.0)),
    "clip_by_global_norm/inside": Case(
        gx.clip_by_global_norm(100.0), ref.clip_by_global_norm(100.0)
    ),
    "adaptive_grad_clip": Case(
        gx.adaptive_grad_clip(0.1), ref.adaptive_grad_clip(0.1, 1e-3, conv_axes), rows=False
    ),
    "adaptive_grad_clip/axis": Case(
        gx.adaptive_grad_clip(0.1, 0.5, ()),
        ref.adaptive_grad_clip(0.1, 0.5, lambda g: ()),
        rows=False,
    ),
    "centralize": Case(gx.centralize(), ref.stateless(ref.centralize)),
    "normalize_by_update_norm": Case(
        gx.normalize_by_update_norm(-0.5), ref.normalize_by_update_norm(-0.5, 1e-6)
    ),
    "normalize_by_update_norm/eps": Case(
        gx.normalize_by_update_norm(2.0, 0.5), ref.normalize_by_update_norm(2.0, 0.5)
    ),
    "scale_by_trust_ratio": Case(
        gx.scale_by_trust_ratio(), ref.trust_ratio(1.0, 0.0, 0.0), rows=False
    ),
    "scale_by_trust_ratio/min": Case(
        gx.scale_by_trust_ratio(2.0, 0.1, 0.5), ref.trust_ratio(0.1, 0.5, 2.0), rows=False
    ),
    "zero_nans": Case(gx.zero_nans(), ref.zero_nans, rows=False),
    "keep_params_nonnegative": Case(gx.keep_params_nonnegative(), ref.nonnegative),
}

WRAPPERS: dict[str, Case] = {
    "chain": Case(
        gx.chain(gx.trace(0.9), gx.clip_by_global_norm(1.0), gx.chain(gx.scale(-0.1))),
        ref.sequence(ref.trace(0.9), ref.clip_by_global_norm(1.0), SGD),
    ),
    "chain/empty": Case(gx.chain(), ref.identity),
    "chain/optax inside": Case(
        gx.chain(optax.trace(0.9), gx.scale(-0.1)),
        ref.sequence(ref.trace(0.9), SGD),
        pickles=False,
        rows=False,
    ),
    "named_chain": Case(
        gx.named_chain(("momentum", gx.trace(0.9)), ("lr", gx.scale(-0.1))),
        ref.sequence(ref.trace(0.9), SGD),
    ),
    "masked": Case(
        gx.masked(gx.adam(0.1), gx.ndim_at_least(2)),
        ref.only(matrix, ref.Reference(ADAM.start, lambda *a: _times(-0.1, ADAM.step(*a)))),
    ),
    "masked/tree": Case(
        gx.masked(gx.trace(0.9), {"w": True, "b": False, "s": False, "deep": True}),
        ref.only(matrix, ref.trace(0.9)),
    ),
    "partition": Case(
        gx.partition({"matrix": gx.trace(0.9), "rest": gx.scale_by_adam()}, BY_SIZE),
        ref.sequence(ref.only(matrix, ref.trace(0.9)), ref.only(lambda x: not matrix(x), ADAM)),
        names=("multi_transform",),
    ),
    "inject_hyperparams": Case(
        gx.inject_hyperparams(gx.adamw)(FALLING, weight_decay=0.1),
        ref.sequence(ADAM, ref.decay(0.1), ref.scale(lambda n: -falling(n))),
        names=("injected",),
    ),
    "MultiSteps": Case(
        gx.MultiSteps(gx.adam(0.1), 3), ref.every(with_lr(0.1, ADAM), 3), rows=False
    ),
    "MultiSteps/sum": Case(
        gx.MultiSteps(gx.trace(0.9), 2, use_grad_mean=False),
        ref.every(ref.trace(0.9), 2, False),
        rows=False,
    ),
    "MultiSteps/skip": Case(
        gx.MultiSteps(gx.adam(0.1), 2, should_skip_update_fn=gx.skip_not_finite),
        ref.every(with_lr(0.1, ADAM), 2),
        rows=False,
    ),
    "apply_if_finite": Case(gx.apply_if_finite(gx.adam(0.1), 3), with_lr(0.1, ADAM)),
    "lookahead": Case(
        gx.lookahead(gx.adam(0.1), 3, 0.5), ref.lookahead(with_lr(0.1, ADAM), 3, 0.5), rows=False
    ),
}


def _times(factor, result):
    u, slots = result
    return factor * u, slots


OPTIMIZERS: dict[str, Case] = {
    "sgd": Case(gx.sgd(0.1), SGD),
    "sgd/momentum": Case(gx.sgd(0.1, 0.9, nesterov=True), with_lr(0.1, ref.trace(0.9, True))),
    "adam": Case(gx.adam(0.1), with_lr(0.1, ADAM)),
    "adamw": Case(gx.adamw(0.1, weight_decay=0.2), with_lr(0.1, ADAM, ref.decay(0.2))),
    "adamw/mask": Case(
        gx.adamw(FALLING, weight_decay=0.2, mask=gx.ndim_at_least(2)),
        ref.sequence(ADAM, ref.decay(0.2, matrix), ref.scale(lambda n: -falling(n))),
    ),
    "nadam": Case(gx.nadam(0.1), with_lr(0.1, ref.adam(0.9, 0.999, 1e-8, nesterov=True))),
    "nadamw": Case(
        gx.nadamw(0.1, weight_decay=0.2),
        with_lr(0.1, ref.adam(0.9, 0.999, 1e-8, nesterov=True), ref.decay(0.2)),
    ),
    "amsgrad": Case(gx.amsgrad(0.1), with_lr(0.1, ref.amsgrad(0.9, 0.999, 1e-8))),
    "rmsprop": Case(gx.rmsprop(0.1), with_lr(0.1, ref.rms(0.9, 1e-8))),
    "rmsprop/momentum": Case(
        gx.rmsprop(0.1, momentum=0.9),
        ref.sequence(with_lr(0.1, ref.rms(0.9, 1e-8)), ref.trace(0.9)),
    ),
    "rmsprop/centered": Case(
        gx.rmsprop(0.1, eps=1e-3, centered=True),
        with_lr(0.1, ref.stddev(0.9, 1e-3)),
        rtol=2e-4,
        huge_ok=False,
    ),
    "adagrad": Case(gx.adagrad(0.1), with_lr(0.1, ref.adagrad(0.1, 1e-7))),
    "lion": Case(gx.lion(0.1), with_lr(0.1, ref.lion(0.9, 0.99), ref.decay(1e-3))),
    "lamb": Case(
        gx.lamb(0.1, weight_decay=0.1),
        with_lr(0.1, ref.adam(0.9, 0.999, 1e-6), ref.decay(0.1), ref.trust_ratio(1.0, 0.0, 0.0)),
        rows=False,
    ),
    "lars": Case(
        gx.lars(0.1, 0.1),
        ref.sequence(
            ref.decay(0.1), with_lr(0.1, ref.trust_ratio(0.001, 0.0, 0.0)), ref.trace(0.9)
        ),
        rows=False,
    ),
    "signum": Case(gx.signum(0.1), with_lr(0.1, ref.ema(0.9, False), ref.sign)),
}
