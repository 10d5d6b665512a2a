"""Rows for `gradxform/transforms/grokfast.py` and its recipe."""

import gradxform as gx
from tests import references as ref
from tests.catalogue.case import Case, with_lr

HUGE = 1 / 8  # gradients are amplified

TRANSFORMS: dict[str, Case] = {
    "grokfast_ema": Case(gx.grokfast_ema(), ref.grokfast_ema(0.98, 2.0), huge_ok=HUGE),
    "grokfast_ema/start": Case(
        gx.grokfast_ema(0.5, 3.0, 2), ref.grokfast_ema(0.5, 3.0, 2), huge_ok=HUGE
    ),
    "grokfast_ma": Case(gx.grokfast_ma(3), ref.grokfast_ma(3, 5.0), huge_ok=HUGE, rows=False),
    "grokfast_ma/no warmup": Case(
        gx.grokfast_ma(4, 2.0, False), ref.grokfast_ma(4, 2.0, False), huge_ok=HUGE, rows=False
    ),
}


OPTIMIZERS: dict[str, Case] = {
    "grokfast_adamw": Case(
        gx.grokfast_adamw(0.1, weight_decay=0.2, start=1),
        with_lr(0.1, ref.grokfast_ema(0.98, 2.0, 1), ref.adam(0.9, 0.98, 1e-8), ref.decay(0.2)),
        huge_ok=HUGE,
    ),
}


REFUSED = [
    ("grokfast_ema(1.0)", ValueError, "grokfast_ema: alpha must be in [0, 1)"),
    ("grokfast_ma(0)", ValueError, "grokfast_ma: window_size must be at least 1"),
    ("grokfast_adamw(0.1, start=-1)", ValueError, "start must be at least 0"),
]  # fmt: skip
