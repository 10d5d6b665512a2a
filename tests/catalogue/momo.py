"""Rows for `gradxform/transforms/momo.py` and its recipes."""

import gradxform as gx
from tests import references as ref
from tests.catalogue.case import FALLING, Case, falling

LOSS = {"value": 2.0}

TRANSFORMS: dict[str, Case] = {
    "step_by_momo": Case(
        gx.step_by_momo(), ref.momo(1.0, 0.9, 0.0, 0.0, False, 2.0), extra=LOSS, rows=False
    ),
    "step_by_momo/adapt": Case(
        gx.step_by_momo(FALLING, 0.5, -1.0, 0.1, True),
        ref.momo(falling, 0.5, -1.0, 0.1, True, 2.0),
        extra=LOSS,
        rows=False,
    ),
    "step_by_momo_adam": Case(
        gx.step_by_momo_adam(),
        ref.momo_adam(0.01, 0.9, 0.999, 1e-8, 0.0, 0.0, False, 2.0),
        extra=LOSS,
        rows=False,
    ),
    "step_by_momo_adam/adapt": Case(
        gx.step_by_momo_adam(FALLING, 0.5, 0.9, 0.1, -1.0, 0.1, True),
        ref.momo_adam(falling, 0.5, 0.9, 0.1, -1.0, 0.1, True, 2.0),
        extra=LOSS,
        rows=False,
        huge_ok=1 / 8,  # the loss along the step is a product of gradients
    ),
}


OPTIMIZERS: dict[str, Case] = {
    "momo": Case(gx.momo(0.5), ref.momo(0.5, 0.9, 0.0, 0.0, False, 2.0), extra=LOSS, rows=False),
    "momo_adam": Case(
        gx.momo_adam(),
        ref.momo_adam(0.01, 0.9, 0.999, 1e-8, 0.0, 0.0, False, 2.0),
        extra=LOSS,
        rows=False,
    ),
}


REFUSED = [
    ("one_step(momo())", TypeError, "step_by_momo: needs the extra argument 'value'"),
    ("one_step(momo_adam(), value=jnp.ones(2))",
     TypeError, "step_by_momo_adam: value must be the loss, a scalar, got an array of shape (2,)."),
]  # fmt: skip
