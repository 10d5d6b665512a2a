"""Rows for `gradxform/transforms/adaptive.py` and its recipes."""

import gradxform as gx
from tests import references as ref
from tests.catalogue.case import NEGATIVE_RATE, Case, matrix, with_lr

TRANSFORMS: dict[str, Case] = {
    "scale_by_kate": Case(gx.scale_by_kate(), ref.kate(0.0, 1e-8)),
    "scale_by_kate/delta": Case(gx.scale_by_kate(0.3, 0.1), ref.kate(0.3, 0.1)),
    "scale_by_adadelta": Case(gx.scale_by_adadelta(), ref.adadelta(0.9, 1e-6)),
    "scale_by_adadelta/eps": Case(gx.scale_by_adadelta(0.5, 0.1), ref.adadelta(0.5, 0.1)),
    "scale_by_rms": Case(gx.scale_by_rms(), ref.rms(0.9, 1e-8)),
    "scale_by_rms/eps": Case(gx.scale_by_rms(0.8, 0.1), ref.rms(0.8, 0.1)),
    "scale_by_rms/outside": Case(
        gx.scale_by_rms(0.95, 1e-3, 1.0, eps_in_sqrt=False), ref.rms(0.95, 1e-3, 1.0, False)
    ),
    "scale_by_rms/corrected": Case(
        gx.scale_by_rms(bias_correction=True), ref.rms(0.9, 1e-8, correct=True)
    ),
    "scale_by_stddev": Case(gx.scale_by_stddev(), ref.stddev(0.9, 1e-8), rtol=2e-4),
    "scale_by_stddev/outside": Case(
        gx.scale_by_stddev(0.8, 0.01, 0.1, False, True),
        ref.stddev(0.8, 0.01, 0.1, False, True),
        rtol=2e-4,
        huge_ok=False,  # equal gradients do not deviate, and 8e3 / 0.01 is beyond float16
    ),
    "scale_by_rss": Case(gx.scale_by_rss(), ref.adagrad(0.1, 1e-7)),
    "scale_by_rss/eps": Case(gx.scale_by_rss(0.1, 0.2), ref.adagrad(0.1, 0.2)),
    "scale_by_rss/from zero": Case(gx.scale_by_rss(0.0, 0.0), ref.adagrad(0.0, 0.0)),
    "scale_by_rss/outside": Case(
        gx.scale_by_rss(0.1, 1e-2, eps_in_sqrt=False), ref.adagrad_outside(0.1, 1e-2)
    ),
    "scale_by_rss/slots kept": Case(
        gx.scale_by_rss(0.1, 0.0), ref.adagrad_keeping(0.1), extra={"update_slots": False}
    ),
}


OPTIMIZERS: dict[str, Case] = {
    "kate": Case(gx.kate(0.1), with_lr(0.1, ref.kate(0.0, 1e-8))),
    "kate/decay": Case(
        gx.kate(0.1, 0.5, weight_decay=0.2, mask=gx.ndim_at_least(2)),
        with_lr(0.1, ref.kate(0.5, 1e-8), ref.decay(0.2, matrix)),
    ),
    "adadelta": Case(gx.adadelta(), with_lr(1.0, ref.adadelta(0.9, 1e-6))),
    "adadelta/decay": Case(
        gx.adadelta(0.1, weight_decay=0.2, weight_decay_mask=gx.ndim_at_least(2)),
        with_lr(0.1, ref.decay(0.2, matrix), ref.adadelta(0.9, 1e-6)),
    ),
    "rmsprop": Case(gx.rmsprop(0.1), with_lr(0.1, ref.rms(0.9, 1e-8))),
    "rmsprop/momentum": Case(
        gx.rmsprop(0.1, momentum=0.9),
        ref.sequence(with_lr(0.1, ref.rms(0.9, 1e-8)), ref.trace(0.9)),
    ),
    "rmsprop/centered": Case(
        gx.rmsprop(0.1, eps=1e-3, centered=True),
        with_lr(0.1, ref.stddev(0.9, 1e-3)),
        rtol=2e-4,
    ),
    "adagrad": Case(gx.adagrad(0.1), with_lr(0.1, ref.adagrad(0.1, 1e-7))),
    "reg_adagrad": Case(gx.reg_adagrad(0.1), with_lr(0.1, ref.adagrad(0.1, 0.0))),
    "sparse_adagrad": Case(gx.sparse_adagrad(0.1), with_lr(0.1, ref.adagrad(0.1, 1e-7))),
}


REFUSED = [
    ("adadelta(-1.0)", ValueError, NEGATIVE_RATE),
    ("adadelta(eps=0)", ValueError, "scale_by_adadelta: eps must be greater than 0"),
    ("one_step(reg_adagrad(0.1), update_slots='no')",
     TypeError, "scale_by_rss: update_slots must be True or False, got 'no'."),
]  # fmt: skip
