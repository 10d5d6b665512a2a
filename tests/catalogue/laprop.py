"""Rows for `gradxform/transforms/laprop.py` and its recipe."""

import gradxform as gx
from tests import references as ref
from tests.catalogue.case import Case, with_lr

TRANSFORMS: dict[str, Case] = {
    "scale_by_laprop": Case(gx.scale_by_laprop(), ref.laprop(0.9, 0.999, 1e-15)),
    "scale_by_laprop/eps": Case(gx.scale_by_laprop(0.8, 0.5, 0.1), ref.laprop(0.8, 0.5, 0.1)),
    "scale_by_laprop/largest": Case(
        gx.scale_by_laprop(0.8, 0.5, 0.1, amsgrad=True),
        ref.laprop(0.8, 0.5, 0.1, True),
    ),
    "scale_by_laprop/centered": Case(
        gx.scale_by_laprop(0.8, 0.5, 0.1, centered_after=2),
        ref.laprop(0.8, 0.5, 0.1, centered_after=2),
    ),
    "scale_by_laprop/centered largest": Case(
        gx.scale_by_laprop(0.8, 0.5, 0.1, centered_after=1, amsgrad=True),
        ref.laprop(0.8, 0.5, 0.1, True, centered_after=1),
    ),
    "scale_by_torch_laprop": Case(
        gx.scale_by_torch_laprop(0.8, 0.5, 0.1),
        ref.laprop(0.8, 0.5, 0.1, eps_before=True),
    ),
}


OPTIMIZERS: dict[str, Case] = {
    "laprop": Case(
        gx.laprop(0.1, weight_decay=0.2),
        with_lr(0.1, ref.laprop(0.9, 0.999, 1e-15), ref.decay(0.2)),
    ),
}


REFUSED = [
    ("scale_by_laprop(b2=1.0)", ValueError, "scale_by_laprop: b2 must be in [0, 1)"),
    ("laprop(0.1, eps=-1.0)", ValueError, "scale_by_laprop: eps must be at least 0"),
]  # fmt: skip
