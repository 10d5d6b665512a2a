"""Rows for `gradxform/transforms/pnm.py` and its recipes."""

import gradxform as gx
from tests import references as ref
from tests.catalogue.case import FALLING, FALLING_LR, NEGATIVE_RATE, Case, matrix, with_lr

HUGE = 1 / 8  # the difference of two averages may be larger than the gradient

TRANSFORMS: dict[str, Case] = {
    "scale_by_pnm": Case(gx.scale_by_pnm(), ref.pnm(0.9, 1.0), huge_ok=HUGE),
    "scale_by_pnm/b0": Case(gx.scale_by_pnm(0.5, 2.0), ref.pnm(0.5, 2.0), huge_ok=HUGE),
    "scale_by_adapnm": Case(gx.scale_by_adapnm(), ref.adapnm(0.9, 0.999, 1.0, 1e-8)),
    "scale_by_adapnm/eps": Case(
        gx.scale_by_adapnm(0.8, 0.5, 0.3, 0.1, 0.2), ref.adapnm(0.8, 0.5, 0.3, 0.1, 0.2)
    ),
    "scale_by_adapnm/eps hat": Case(
        gx.scale_by_adapnm(0.8, 0.5, 0.3, 0.1, 0.2, amsgrad=False, eps_before_correction=True),
        ref.adapnm(0.8, 0.5, 0.3, 0.1, 0.2, False, True),
    ),
}


OPTIMIZERS: dict[str, Case] = {
    "pnm": Case(
        gx.pnm(FALLING, weight_decay=0.2, mask=gx.ndim_at_least(2)),
        ref.sequence(ref.pnm(0.9, 1.0), ref.decay(0.2, matrix), FALLING_LR),
        huge_ok=HUGE,
    ),
    "adapnm": Case(
        gx.adapnm(0.1, weight_decay=0.2),
        with_lr(0.1, ref.adapnm(0.9, 0.999, 1.0, 1e-8), ref.decay(0.2)),
    ),
}


REFUSED = [
    ("pnm(-1.0)", ValueError, NEGATIVE_RATE),
    ("pnm(0.1, b0=-1.0)", ValueError, "scale_by_pnm: b0 must be at least 0"),
    ("adapnm(0.1, amsgrad=1)", TypeError, "scale_by_adapnm: amsgrad must be True"),
]  # fmt: skip
