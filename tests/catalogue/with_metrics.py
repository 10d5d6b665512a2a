"""Rows for `gradxform/wrappers/with_metrics.py`, and what the functions for states refuse."""

from typing import Any, NamedTuple

import jax.numpy as jnp

import gradxform as gx
from tests.catalogue.case import ADAM, Case, with_lr

WRAPPERS: dict[str, Case] = {
    "with_metrics": Case(gx.with_metrics(gx.adam(0.1)), with_lr(0.1, ADAM)),
    "with_metrics/leaf": Case(
        gx.with_metrics(gx.adam(0.1), per="leaf", norms=("update",)), with_lr(0.1, ADAM)
    ),
    "with_metrics/lost": Case(gx.with_metrics(gx.adam(0.1), lost_steps=True), with_lr(0.1, ADAM)),
}

W = {"w": jnp.ones((2, 3))}
TWO_RATES = gx.partition({"a": gx.sgd(0.1), "b": gx.sgd(0.2)}, {"w": "a", "v": "b"})
TWO = {"w": jnp.ones(2), "v": jnp.ones(2)}


class Measured(NamedTuple):
    """A state whose class says what it shows, and says it wrongly."""

    mu: Any

    def metrics(self):
        return {"mu": self.mu}


def rate(tx, params=W, **more):
    return gx.current_learning_rate(tx, tx.init(params), **more)


SAME_NAME = gx.param_groups(
    gx.sgd(0.1), [gx.param_group(k, x, label="x") for k, x in (("w", 0.5), ("v", 0.25))]
)

REFUSED = [
    ("with_metrics(adam)", TypeError, "with_metrics: inner", "call it"),
    ("with_metrics(adam(0.1), per='layer')",
     ValueError, "with_metrics: per must be one of 'tree', 'group', 'leaf', got 'layer'."),
    ("with_metrics(adam(0.1), norms=('gradients',))",
     ValueError, "with_metrics: norms must be a tuple of some of 'gradient'", "'gradients'"),
    ("with_metrics(adam(0.1), norms=())", ValueError, "norms", "got ()."),
    ("with_metrics(sgd(0.1)).update(W, with_metrics(sgd(0.1)).init(W))",
     ValueError, "with_metrics", "params"),
    ("with_metrics(sgd(0.1)).update(W, EmptyState(), W)",
     TypeError, "with_metrics: the state must be of kind WithMetricsState, got EmptyState."),
    ("with_metrics(sgd(0.1), per='leaf').init({'a/b': 1.0, 'a': {'b': 1.0}})",
     ValueError, "with_metrics: the parameters", "'a/b'", "Rename one"),
    ("with_metrics(scale(0.1), per='leaf').update(TWO, with_metrics(scale(0.1), "
     "per='leaf').init({'w': TWO['w']}), TWO)",
     ValueError, "with_metrics: ['v'] was not a parameter at init."),
    ("current_step(trace(0.9).init(W))",
     ValueError, "current_step: nothing in TraceState counts steps."),
    ("rate(trace(0.9))", ValueError, "current_learning_rate: trace does not have a learning rate"),
    ("rate(TWO_RATES, TWO)", ValueError,
     "current_learning_rate: partition has different learning rates for 'a', 'b'.", "label="),
    ("current_learning_rates(trace(0.9), trace(0.9).init(TWO))",
     ValueError, "current_learning_rate: trace does not have a learning rate"),
    ("current_learning_rates(SAME_NAME, SAME_NAME.init(TWO))", ValueError,
     "current_learning_rates: param_groups has two groups that are called 'x', with diff"),
    ("rate(TWO_RATES, TWO, label='c')",
     ValueError, "current_learning_rate: no group", "'c'; there are 'a', 'b'."),
    ("rate(chain(sgd(0.1), masked(scale(0.5), path_matches('w'))), TWO)", ValueError,
     "current_learning_rate: chain changes the rate of some parameters", "masked(scale, ...)"),
    ("rate(param_groups(sgd(0.1), (param_group('w', 0.5),)), TWO)",
     ValueError, "param_groups has different learning rates for 'w', 'all others'.", "label="),
    ("current_learning_rate(scale_by_learning_rate(FALLING), EmptyState())", ValueError,
     "current_learning_rate: scale_by_learning_rate has a schedule", "does not have a count"),
    ("current_learning_rate(MultiSteps(sgd(0.1), 2), EmptyState())",
     TypeError, "current_learning_rate: the state of MultiSteps", "inner_opt_state", "EmptyState"),
    ("current_learning_rate(TWO_RATES, TWO_RATES.init(TWO)._replace(inner_states={}))",
     TypeError, "current_learning_rate: the state of partition", "'a'"),
    ("metrics(lookahead(sgd(0.1), 2, 0.5).init(W), {'w': jnp.ones(3)})",
     ValueError, "metrics: params have a parameter of shape (3,) at ['w']", "(2, 3)"),
    ("metrics(Measured(jnp.ones(3)))",
     TypeError, "metrics: Measured.metrics() must return numbers", "'mu'"),
]  # fmt: skip
