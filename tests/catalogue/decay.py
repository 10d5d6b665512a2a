"""Rows for `gradxform/wrappers/decay.py`."""

import gradxform as gx
from tests import references as ref
from tests.catalogue.case import FALLING, Case, falling, matrix, one_step

MOMENTUM = ref.Reference(
    ref.trace(0.9).start,
    lambda g, s, p, t: (-0.1 * (r := ref.trace(0.9).step(g, s, p, t))[0], r[1]),
)
# An optimizer that reads the parameters: L2 regularization, then descent.
L2 = gx.chain(gx.add_decayed_weights(0.3), gx.scale(-0.1))
OF_L2 = ref.Reference(lambda p: (), lambda g, s, p, t: (-0.1 * (g + 0.3 * p), ()))

WRAPPERS: dict[str, Case] = {
    "decoupled_weight_decay": Case(
        gx.decoupled_weight_decay(
            gx.sgd(0.1, 0.9), FALLING, gx.ndim_at_least(2), learning_rate=0.5
        ),
        ref.decoupled_weight_decay(MOMENTUM, falling, 0.5, matrix),
        huge_ok=1 / 8,  # momentum is up to ten times the gradient
    ),
    "decoupled_weight_decay/cautious": Case(
        gx.decoupled_weight_decay(gx.sgd(0.1, 0.9), 0.2, cautious=True),
        ref.cautious_weight_decay(MOMENTUM, 0.2),
        huge_ok=1 / 8,  # momentum is up to ten times the gradient
    ),
    "decoupled_weight_decay/first": Case(
        gx.decoupled_weight_decay(L2, 0.2, decay_first=True), ref.decay_first(OF_L2, 0.2)
    ),
}


def _decay(*args, **fields):
    return one_step(gx.decoupled_weight_decay(gx.sgd(0.1), *args, **fields))


REFUSED = [
    ("_decay(-0.1)", ValueError, "decoupled_weight_decay: weight_decay", "at least 0"),
    ("_decay('0.1')", TypeError, "decoupled_weight_decay: weight_decay"),
    ("_decay(0.1, learning_rate=-1.0)",
     ValueError, "decoupled_weight_decay: learning_rate must be at least 0, got -1.0."),
    ("_decay(0.1, 3)", TypeError, "decoupled_weight_decay: the mask's entries"),
    ("_decay(0.1, path_matches('kernel'))",
     ValueError, "decoupled_weight_decay: path_matches('kernel') matches none"),
    ("_decay(0.1, cautious=True, decay_first=True)",
     ValueError, "decoupled_weight_decay: cautious decay looks at the step"),
    ("decoupled_weight_decay(ftrl(0.1), 0.1)",
     ValueError, "decoupled_weight_decay: it moves the parameters, and step_by_ftrl"),
    ("decoupled_weight_decay(sgd(0.1), 0.1).update({}, sgd(0.1).init({}))",
     ValueError, "decoupled_weight_decay: needs the parameters"),
    ("decoupled_weight_decay(sgd(0.1), 0.1).update({}, EmptyState(), {})",
     TypeError, "decoupled_weight_decay: the state must be of kind DecoupledWeightDecayState"),
]  # fmt: skip
