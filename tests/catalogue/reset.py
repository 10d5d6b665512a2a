"""Rows for `gradxform/wrappers/reset.py`."""

import gradxform as gx
from tests import references as ref
from tests.catalogue.case import ADAM, Case, with_lr

WRAPPERS: dict[str, Case] = {
    "reset_state": Case(gx.reset_state(gx.adam(0.1)), with_lr(0.1, ADAM), rows=False),
    "reset_state/often": Case(
        gx.reset_state(gx.adam(0.1), 3),
        ref.reset(with_lr(0.1, ADAM), 3),
        holds_optimizer=False,  # what it holds begins anew
        rows=False,
    ),
    "reset_state/slots": Case(
        gx.reset_state(gx.adam(0.1), 3, False),
        ref.reset(with_lr(0.1, ADAM), 3, False),
        holds_optimizer=False,
        rows=False,
    ),
}


REFUSED = [
    ("reset_state(0.1)", TypeError, "reset_state: inner must have init and update"),
    ("reset_state(moving_average(sgd(0.1)))",
     ValueError, "moving_average keeps would begin anew", "moving_average(reset_state(...), ...)."),
    ("reset_state(sgd(0.1), 0)", ValueError, "every must be at least 1, got 0."),
]  # fmt: skip
