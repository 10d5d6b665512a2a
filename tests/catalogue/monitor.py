"""Rows for `gradxform/wrappers/monitor.py`, whose updates pass unchanged."""

import jax.numpy as jnp

import gradxform as gx
from tests import references as ref
from tests.catalogue.case import Case, one_step

WRAPPERS: dict[str, Case] = {
    "snapshot": Case(gx.snapshot("norm", gx.global_norm), ref.identity),
    "monitor": Case(
        gx.monitor({"norm": gx.global_norm, "ema": gx.measure_with_ema(gx.global_norm, 0.9)}),
        ref.identity,
        names=("on_measurement",),
    ),
}


PARAMS = {"w": jnp.ones(2)}


def changing(updates):
    """A measure that returns another form after the first call."""
    changing.calls += 1
    return jnp.ones(changing.calls)


changing.calls = 0

REFUSED = [
    (lambda: gx.snapshot(1, gx.global_norm), TypeError, ("measure_name", "a string", "1")),
    (lambda: gx.snapshot("norm", "norm"), TypeError, ("measure", "a function", "'norm'")),
    (lambda: one_step(gx.snapshot("n", changing)), ValueError, ("snapshot", "'n'", "form")),
    (
        lambda: gx.snapshot("a", gx.global_norm).update(
            PARAMS, gx.snapshot("b", gx.global_norm).init(PARAMS)
        ),
        ValueError,
        ("snapshot", "['a']", "['b']"),
    ),
    (lambda: gx.monitor({"norm": 1}), TypeError, ("monitor: the measure 'norm'", "1")),
    (lambda: gx.monitor({"norm": gx.ema}), TypeError, ("monitor: the measure 'norm'", "call it")),
    (lambda: gx.monitor([("a", len), ("a", len)]), ValueError, ("two measures", "'a'")),
    (lambda: gx.monitor([gx.global_norm]), TypeError, ("monitor", "pairs (name, measure)")),
    (lambda: gx.measure_with_ema(gx.global_norm, 1.0), ValueError, ("decay", "in [0, 1)")),
    (
        lambda: gx.monitor({"a": gx.global_norm}).update(
            PARAMS, gx.monitor({"a": gx.global_norm, "b": gx.global_norm}).init(PARAMS)
        ),
        ValueError,
        ("monitor: 1 measures but 2 states",),
    ),
]
