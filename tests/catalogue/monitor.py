"""Rows for `gradxform/wrappers/monitor.py`, whose updates pass unchanged."""

import jax.numpy as jnp

import gradxform as gx
from tests import references as ref
from tests.catalogue.case import Case

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
    ("snapshot(1, global_norm)", TypeError, "measure_name", "a string", "1"),
    ("snapshot('norm', 'norm')", TypeError, "measure", "a function", "'norm'"),
    ("one_step(snapshot('n', changing))", ValueError, "snapshot", "'n'", "form"),
    ("snapshot('a', global_norm).update(PARAMS, snapshot('b', global_norm).init(PARAMS))",
     ValueError, "snapshot", "['a']", "['b']"),
    ("monitor({'norm': 1})", TypeError, "monitor: the measure 'norm'", "1"),
    ("monitor({'norm': ema})", TypeError, "monitor: the measure 'norm'", "call it"),
    ("monitor([('a', len), ('a', len)])", ValueError, "two measures", "'a'"),
    ("monitor([global_norm])", TypeError, "monitor", "pairs (name, measure)"),
    ("measure_with_ema(global_norm, 1.0)", ValueError, "decay", "in [0, 1)"),
    ("monitor({'a': global_norm}).update(PARAMS, monitor({'a': global_norm, 'b': "
     "global_norm}).init(PARAMS))",
     ValueError, "monitor: 1 measures but 2 states"),
]  # fmt: skip
