"""Rows for `gradxform/transforms/tam.py` and its recipes."""

import gradxform as gx
from tests import references as ref
from tests.catalogue.case import FALLING, FALLING_LR, Case, matrix, with_lr

HUGE = 1 / 8  # momentum is up to ten times the gradient

TRANSFORMS: dict[str, Case] = {
    "scale_by_tam": Case(gx.scale_by_tam(), ref.tam(0.9, 0.9, 1e-8), rows=False, huge_ok=HUGE),
    "scale_by_tam/eps": Case(
        gx.scale_by_tam(0.5, 0.3, 0.2, first_gradient=True),
        ref.tam(0.5, 0.3, 0.2, first_gradient=True),
        rows=False,
        huge_ok=HUGE,
    ),
    "scale_by_tam/axis": Case(
        gx.scale_by_tam(0.5, 0.3, axis=-1), ref.tam(0.5, 0.3, 1e-8, -1), rows=False, huge_ok=HUGE
    ),
    "scale_by_adatam": Case(gx.scale_by_adatam(), ref.adatam(0.9, 0.999, 0.9, 1e-8), rows=False),
    "scale_by_adatam/eps": Case(
        gx.scale_by_adatam(0.5, 0.8, 0.3, 0.2), ref.adatam(0.5, 0.8, 0.3, 0.2), rows=False
    ),
    "scale_by_adatam/axis": Case(
        gx.scale_by_adatam(axis=0), ref.adatam(0.9, 0.999, 0.9, 1e-8, 0), rows=False
    ),
}


OPTIMIZERS: dict[str, Case] = {
    "tam": Case(
        gx.tam(FALLING, weight_decay=0.2, mask=gx.ndim_at_least(2)),
        ref.sequence(ref.tam(0.9, 0.9, 1e-8), ref.decay(0.2, matrix), FALLING_LR),
        rows=False,
        huge_ok=HUGE,
    ),
    "adatam": Case(
        gx.adatam(0.1, decay=0.5, weight_decay=0.2),
        with_lr(0.1, ref.adatam(0.9, 0.999, 0.5, 1e-8), ref.decay(0.2)),
        rows=False,
    ),
}


REFUSED = [
    ("one_step(scale_by_tam(axis=2))",
     ValueError, "scale_by_tam: an array of shape (2, 3) does not have the axis 2; leave it out"),
    ("adatam(0.1, b1=1.0)", ValueError, "scale_by_adatam: b1 must be in [0, 1)"),
]  # fmt: skip
