"""Rows for `gradxform/transforms/adam_kin.py` and its recipes."""

import gradxform as gx
from tests import references as ref
from tests.catalogue.case import (
    FALLING,
    FALLING_LR,
    NEGATIVE_RATE,
    Case,
    falling,
    matrix,
    with_lr,
)

TRANSFORMS: dict[str, Case] = {
    "scale_by_adamax": Case(gx.scale_by_adamax(), ref.adamax(0.9, 0.999, 1e-8)),
    "scale_by_adamax/eps": Case(gx.scale_by_adamax(0.8, 0.5, 0.1), ref.adamax(0.8, 0.5, 0.1)),
    "scale_by_adamax/outside": Case(
        gx.scale_by_adamax(0.8, 0.5, 0.1, eps_in_max=False), ref.adamax(0.8, 0.5, 0.1, False)
    ),
    "scale_by_belief": Case(gx.scale_by_belief(), ref.belief(0.9, 0.999, 1e-16, 1e-16)),
    "scale_by_belief/nesterov": Case(
        gx.scale_by_belief(0.8, 0.95, 0.1, 0.2, nesterov=True),
        ref.belief(0.8, 0.95, 0.1, 0.2, nesterov=True),
    ),
    "scale_by_rectified_belief/largest": Case(
        gx.scale_by_rectified_belief(0.8, 0.5, 0.1, 0.2, amsgrad=True, threshold=4.0),
        ref.belief(0.8, 0.5, 0.1, 0.2, amsgrad=True, threshold=4.0),
    ),
    "scale_by_rectified_belief": Case(
        gx.scale_by_rectified_belief(0.8, 0.75, 0.1, 0.01, nesterov=True, threshold=4.0),
        ref.belief(0.8, 0.75, 0.1, 0.01, True, threshold=4.0),
    ),
    "scale_by_radam": Case(gx.scale_by_radam(), ref.radam(0.9, 0.999, 1e-8)),
    "scale_by_torch_radam": Case(
        gx.scale_by_torch_radam(0.8, 0.9, 0.1, 0.2, 4.0),
        ref.radam(0.8, 0.9, 0.1, 4.0, False, 0.2, True),
    ),
    "scale_by_radam/nesterov": Case(
        gx.scale_by_radam(0.8, 0.9, 0.1, 0.2, 4.0, nesterov=True),
        ref.radam(0.8, 0.9, 0.1, 4.0, True, 0.2),
    ),
    "scale_by_yogi": Case(gx.scale_by_yogi(), ref.yogi(0.9, 0.999, 1e-3)),
    "scale_by_yogi/slots": Case(
        gx.scale_by_yogi(0.8, 0.5, 0.1, 0.2, 1.0), ref.yogi(0.8, 0.5, 0.1, 0.2, 1.0)
    ),
}


CENTER = ref.stateless(lambda g, p, t: ref.centralize(g, p, t, -1))

OPTIMIZERS: dict[str, Case] = {
    "adabelief": Case(gx.adabelief(0.1), with_lr(0.1, ref.belief(0.9, 0.999, 1e-16, 1e-16))),
    "adamax": Case(gx.adamax(0.1), with_lr(0.1, ref.adamax(0.9, 0.999, 1e-8))),
    "adamax/outside": Case(
        gx.adamax(0.1, eps=1e-3, eps_in_max=False),
        with_lr(0.1, ref.adamax(0.9, 0.999, 1e-3, False)),
    ),
    "adamaxw": Case(
        gx.adamaxw(0.1, weight_decay=0.2),
        with_lr(0.1, ref.adamax(0.9, 0.999, 1e-8), ref.decay(0.2)),
    ),
    "adabelief/decay": Case(
        gx.adabelief(FALLING, weight_decay=0.2, weight_decay_mask=gx.ndim_at_least(2)),
        ref.sequence(ref.belief(0.9, 0.999, 1e-16, 1e-16), ref.decay(0.2, matrix), FALLING_LR),
    ),
    "radam/decay": Case(
        gx.radam(0.1, weight_decay=FALLING, mask=gx.ndim_at_least(2)),
        with_lr(0.1, ref.radam(0.9, 0.999, 1e-8), ref.decay(falling, matrix)),
        huge_ok=1 / 8,
    ),
    "yogi/decay": Case(
        gx.yogi(0.1, weight_decay=0.2), with_lr(0.1, ref.yogi(0.9, 0.999, 1e-3), ref.decay(0.2))
    ),
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
    "radam": Case(
        gx.radam(0.1),
        with_lr(0.1, ref.radam(0.9, 0.999, 1e-8)),
        huge_ok=1 / 8,  # a debiased average rounds to more than the gradient
    ),
    "yogi": Case(gx.yogi(0.1), with_lr(0.1, ref.yogi(0.9, 0.999, 1e-3))),
}


REFUSED = [
    ("ranger(0.1, mask=ndim_at_least(2))",
     ValueError, "ranger: weight_decay_mask does nothing without a weight_decay."),
    ("adabelief(-1.0)", ValueError, NEGATIVE_RATE),
    ("scale_by_belief(b1=1.0)", ValueError, "scale_by_belief: b1 must be in [0, 1)"),
    ("scale_by_yogi(eps=-1)", ValueError, "scale_by_yogi: eps must be at least 0"),
    ("adamax(0.1, eps_in_max=1)", TypeError, "scale_by_adamax: eps_in_max must be Tr"),
    ("adabelief(0.1, threshold=3)", ValueError, "scale_by_rectified_belief: threshold"),
    ("radam(0.1, threshold=3)", ValueError, "scale_by_radam: threshold must be at le"),
    ("adabelief(0.1, weight_decay_mask=True)",
     ValueError, "adabelief: weight_decay_mask does nothing without a weight_decay."),
    ("yogi(0.1, mask=ndim_at_least(2))",
     ValueError, "yogi: weight_decay_mask does nothing without a weight_decay."),
]  # fmt: skip
