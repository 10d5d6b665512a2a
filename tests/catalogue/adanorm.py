"""Rows for `gradxform/transforms/adanorm.py` and its recipe."""

import gradxform as gx
from tests import references as ref
from tests.catalogue.case import Case, with_lr

TRANSFORMS: dict[str, Case] = {
    "scale_by_adanorm": Case(
        gx.scale_by_adanorm(), ref.adanorm(0.9, 0.999, 0.95, 1e-8), rows=False
    ),
    "scale_by_adanorm/eps": Case(
        gx.scale_by_adanorm(0.8, 0.5, 0.3, 0.1, 0.2),
        ref.adanorm(0.8, 0.5, 0.3, 0.1, 0.2),
        rows=False,
    ),
    "scale_by_adanorm/amsgrad": Case(
        gx.scale_by_adanorm(0.8, 0.5, 0.3, 0.1, 0.2, amsgrad=True, eps_before_correction=True),
        ref.adanorm(0.8, 0.5, 0.3, 0.1, 0.2, True, True),
        rows=False,
    ),
}


OPTIMIZERS: dict[str, Case] = {
    "adanorm": Case(
        gx.adanorm(0.1, r=0.5, weight_decay=0.2),
        with_lr(0.1, ref.adanorm(0.9, 0.999, 0.5, 1e-8), ref.decay(0.2)),
        rows=False,
    ),
}


REFUSED = [
    ("adanorm(0.1, r=1.0)", ValueError, "scale_by_adanorm: r must be in [0, 1)"),
]  # fmt: skip
