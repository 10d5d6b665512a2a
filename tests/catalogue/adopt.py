"""Rows for `gradxform/transforms/adopt.py` and its recipes."""

import gradxform as gx
from tests import references as ref
from tests.catalogue.case import FALLING, Case, falling, with_lr

ACPROP = ref.acprop(0.9, 0.999, 1e-16, 1e-16)

ADOPT = ref.adopt(0.9, 0.9999, 1e-6)

TRANSFORMS: dict[str, Case] = {
    "scale_by_acprop": Case(gx.scale_by_acprop(), ACPROP),
    "scale_by_acprop/eps": Case(
        gx.scale_by_acprop(0.5, 0.9, 0.1, 0.01), ref.acprop(0.5, 0.9, 0.1, 0.01)
    ),
    "scale_by_adopt": Case(gx.scale_by_adopt(), ADOPT),
    "scale_by_adopt/nesterov": Case(
        gx.scale_by_adopt(0.5, 0.9, 1.0, nesterov=True, clip_value_fn=FALLING),
        ref.adopt(0.5, 0.9, 1.0, True, falling),
    ),
    "scale_by_adopt/unclipped": Case(
        gx.scale_by_adopt(b2=0.9, use_clipping=False),
        ref.adopt(0.9, 0.9, 1e-6, bound=lambda n: float("inf")),
        huge_ok=False,  # 4e37 beside nothing: as large as the quotient is, so is the update
    ),
}


OPTIMIZERS: dict[str, Case] = {
    "acprop": Case(gx.acprop(0.1), with_lr(0.1, ACPROP)),
    "adopt": Case(gx.adopt(0.1), with_lr(0.1, ADOPT)),
}


REFUSED = [
    ("scale_by_adopt(eps=-1)", ValueError, "scale_by_adopt: eps must be at least 0"),
    ("scale_by_adopt(clip_value_fn=3)",
     TypeError, "scale_by_adopt: clip_value_fn must be a function, got 3."),
]  # fmt: skip
