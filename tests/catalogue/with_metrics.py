"""Rows for `gradxform/wrappers/with_metrics.py`, and what the functions for states refuse."""

from typing import Any, NamedTuple

import jax.numpy as jnp

import gradxform as gx
from tests.catalogue.case import ADAM, FALLING, Case, with_lr

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
    (lambda: gx.with_metrics(gx.adam), TypeError, ("with_metrics: inner", "call it")),
    (
        lambda: gx.with_metrics(gx.adam(0.1), per="layer"),
        ValueError,
        ("with_metrics: per must be one of 'tree', 'group', 'leaf', got 'layer'.",),
    ),
    (
        lambda: gx.with_metrics(gx.adam(0.1), norms=("gradients",)),
        ValueError,
        ("with_metrics: norms must be a tuple of some of 'gradient'", "'gradients'"),
    ),
    (lambda: gx.with_metrics(gx.adam(0.1), norms=()), ValueError, ("norms", "got ().")),
    (
        lambda: gx.with_metrics(gx.sgd(0.1)).update(W, gx.with_metrics(gx.sgd(0.1)).init(W)),
        ValueError,
        ("with_metrics", "params"),
    ),
    (
        lambda: gx.with_metrics(gx.sgd(0.1)).update(W, gx.EmptyState(), W),
        TypeError,
        ("with_metrics: the state must be of kind WithMetricsState, got EmptyState.",),
    ),
    (
        lambda: gx.with_metrics(gx.sgd(0.1), per="leaf").init({"a/b": 1.0, "a": {"b": 1.0}}),
        ValueError,
        ("with_metrics: the parameters", "'a/b'", "Rename one"),
    ),
    (
        lambda: gx.with_metrics(gx.scale(0.1), per="leaf").update(
            TWO, gx.with_metrics(gx.scale(0.1), per="leaf").init({"w": TWO["w"]}), TWO
        ),
        ValueError,
        ("with_metrics: ['v'] was not a parameter at init.",),
    ),
    (
        lambda: gx.current_step(gx.trace(0.9).init(W)),
        ValueError,
        ("current_step: nothing in TraceState counts steps.",),
    ),
    (
        lambda: rate(gx.trace(0.9)),
        ValueError,
        ("current_learning_rate: trace does not have a learning rate",),
    ),
    (
        lambda: rate(TWO_RATES, TWO),
        ValueError,
        ("current_learning_rate: partition has different learning rates for 'a', 'b'.", "label="),
    ),
    (
        lambda: gx.current_learning_rates(gx.trace(0.9), gx.trace(0.9).init(TWO)),
        ValueError,
        ("current_learning_rate: trace does not have a learning rate",),
    ),
    (
        lambda: gx.current_learning_rates(SAME_NAME, SAME_NAME.init(TWO)),
        ValueError,
        ("current_learning_rates: param_groups has two groups that are called 'x', with diff",),
    ),
    (
        lambda: rate(TWO_RATES, TWO, label="c"),
        ValueError,
        ("current_learning_rate: no group", "'c'; there are 'a', 'b'."),
    ),
    (
        lambda: rate(gx.chain(gx.sgd(0.1), gx.masked(gx.scale(0.5), gx.path_matches("w"))), TWO),
        ValueError,
        ("current_learning_rate: chain changes the rate of some parameters", "masked(scale, ...)"),
    ),
    (
        lambda: rate(gx.param_groups(gx.sgd(0.1), (gx.param_group("w", 0.5),)), TWO),
        ValueError,
        (
            "param_groups has different learning rates for 'w', 'all others'.",
            "label=",
        ),
    ),
    (
        lambda: gx.current_learning_rate(gx.scale_by_learning_rate(FALLING), gx.EmptyState()),
        ValueError,
        ("current_learning_rate: scale_by_learning_rate has a schedule", "does not have a count"),
    ),
    (
        lambda: gx.current_learning_rate(gx.MultiSteps(gx.sgd(0.1), 2), gx.EmptyState()),
        TypeError,
        ("current_learning_rate: the state of MultiSteps", "inner_opt_state", "EmptyState"),
    ),
    (
        lambda: gx.current_learning_rate(TWO_RATES, TWO_RATES.init(TWO)._replace(inner_states={})),
        TypeError,
        ("current_learning_rate: the state of partition", "'a'"),
    ),
    (
        lambda: gx.metrics(gx.lookahead(gx.sgd(0.1), 2, 0.5).init(W), {"w": jnp.ones(3)}),
        ValueError,
        ("metrics: params have a parameter of shape (3,) at ['w']", "(2, 3)"),
    ),
    (
        lambda: gx.metrics(Measured(jnp.ones(3))),
        TypeError,
        ("metrics: Measured.metrics() must return numbers", "'mu'"),
    ),
]
