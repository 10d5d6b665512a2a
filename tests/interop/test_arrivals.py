"""Other libraries may be imported before or after this one, and after a state was made."""

import subprocess
import sys
import textwrap
from importlib.util import find_spec

import pytest

from tests.project.layout import ROOT

STATES = """
def made():
    import jax.numpy as jnp
    import gradxform as gx

    params = {"w": jnp.linspace(-1.0, 1.0, 24).reshape(4, 6)}
    txs = {
        "8 bits": gx.quantize_state(gx.adam(1e-2), bits=8),
        "4 bits": gx.quantize_state(gx.adam(1e-2), bits=4),
        "factored": gx.factor_state(gx.adam(1e-2)),
        "by name": gx.named_chain(("clip", gx.clip(1.0)), ("adam", gx.adam(1e-2))),
        "by labels": gx.partition({1: gx.adam(1e-2), "b": gx.sgd(0.1)}, {"w": 1}),
        "average": gx.moving_average(gx.adam(1e-2), 0.9),
    }
    states = {name: tx.init(params) for name, tx in txs.items()}
    # One that a step has changed, beside the first ones to restore into.
    steps = {name: tx.update(params, states[name], params)[1] for name, tx in txs.items()}
    return states, steps


def check(restored, state, name):
    import jax
    import numpy as np

    assert jax.tree.structure(restored) == jax.tree.structure(state), name
    for a, b in zip(*map(jax.tree.leaves, (restored, state)), strict=True):
        np.testing.assert_array_equal(a, b, err_msg=name)
"""
SAVE = {
    "flax": """
def save(first, state):
    import flax.serialization

    return flax.serialization.from_bytes(first, flax.serialization.to_bytes(state))
""",
    "pickle": """
def save(first, state):
    import pickle

    return pickle.loads(pickle.dumps(state))
""",
    "equinox": """
def save(first, state):
    import io

    import equinox as eqx

    file = io.BytesIO()
    eqx.tree_serialise_leaves(file, state)
    return eqx.tree_deserialise_leaves(io.BytesIO(file.getvalue()), first)
""",
    "orbax": """
def save(first, state):
    import tempfile

    import orbax.checkpoint as ocp

    with tempfile.TemporaryDirectory() as folder, ocp.StandardCheckpointer() as saver:
        saver.save(folder + "/state", state)
        saver.wait_until_finished()
        return saver.restore(folder + "/state", first)
""",
}
MODULES = {
    "flax": "flax.serialization",
    "pickle": "pickle",
    "equinox": "equinox",
    "orbax": "orbax.checkpoint",
}


def run(script):
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], cwd=ROOT.parent, capture_output=True
    )
    assert not done.returncode, done.stderr.decode()[-2000:]


LOOP = """
for name, state in steps.items():
    check(save(states[name], state), state, name)
"""


@pytest.mark.parametrize("first", [True, False])
def test_states_are_saved_by_libraries_that_come_first_or_last(first):
    here = [name for name, module in MODULES.items() if find_spec(module.partition(".")[0])]
    assert "pickle" in here
    begin = [f"import {MODULES[name]}" for name in here] if first else ["import gradxform"]
    run("\n".join([*begin, STATES, "states, steps = made()", *(SAVE[k] + LOOP for k in here)]))


def test_a_module_that_somebody_waits_for_is_found_as_ever():
    run("""
        import sys

        import jax.numpy as jnp
        import gradxform as gx

        gx.quantize_state(gx.adam(0.1), bits=8).init({"w": jnp.ones((4, 4))})
        assert "flax" not in sys.modules
        import flax.serialization as s

        assert "_Greeter" not in (type(s.__loader__).__name__, type(s.__spec__.loader).__name__)
        assert s.__spec__.origin.endswith("serialization.py")
        import importlib

        importlib.reload(s)
        try:
            import flax.nothing_of_this_name
        except ModuleNotFoundError:
            pass
    """)
