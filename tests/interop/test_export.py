"""Compiled steps are written by `jax.export` with their states, and read in another process."""

import pathlib
import subprocess
import sys
import textwrap
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export

import gradxform as gx
from tests.catalogue import CASES
from tests.public import names_of

pytest.importorskip("flatbuffers")
pytestmark = pytest.mark.numeric

ROOT = pathlib.Path(__file__).parents[2]
PARAMS = {"w": jnp.linspace(-1.0, 1.0, 24).reshape(4, 6), "b": jnp.ones(4)}
GRADS = jax.tree.map(lambda p: p / 2 + 0.1, PARAMS)
WRITTEN = {
    "adamw": "gx.adamw(1e-2)",
    "schedule": "gx.sgd(gx.cosine_decay_schedule(0.1, 10), momentum=0.9)",
    "muon": "gx.muon(0.1)",
    "8 bits": "gx.quantize_state(gx.adam(1e-2), bits=8)",
    "4 bits": "gx.quantize_state(gx.adam(1e-2), bits=4)",
    "factored": "gx.factor_state(gx.adam(1e-2))",
    "rounded": "gx.stochastic_rounding(gx.adam(1e-2), 0)",
    "masked": "gx.masked(gx.adam(1e-2), gx.ndim_at_least(2))",
    "by name": "gx.named_chain(('clip', gx.clip(1.0)), ('adam', gx.adam(1e-2)))",
    "average": "gx.moving_average(gx.MultiSteps(gx.adam(1e-2), 2), 0.9)",
    "search": "gx.lbfgs_steps()",
}


def extra_of(name):
    return {"value": jnp.float32(1.0)} if name == "search" else {}


def test_every_state_is_written_and_read():
    states = {}
    for name, case in CASES.items():
        states[name] = jax.eval_shape(case.tx.init, case.params())
    written = export.export(jax.jit(lambda states: states))(states).serialize()
    read = export.deserialize(written)
    assert read.in_tree == jax.tree.structure(((states,), {}))
    assert read.out_tree == jax.tree.structure(states)


def test_every_tuple_that_has_a_public_name_is_written_and_read():
    """Also the results of `minimize`, and states that only several devices have."""
    classes = [x for module in (gx, gx.distributed) for x in names_of(module).values()]
    tuples = {x for x in classes if isinstance(x, type) and issubclass(x, tuple)}
    tree = {x.__name__: x(*[0.0] * len(x._fields)) for x in tuples if x.__module__[:4] == "grad"}
    assert {"MinimizeResult", "ZeroFeedbackState", "ScaleByAdamState"} <= tree.keys()
    written = export.export(jax.jit(lambda tree: tree))(tree).serialize()
    assert export.deserialize(written).out_tree == jax.tree.structure(tree)


def test_another_process_reads_and_runs_steps(tmp_path):
    expected = {}
    for name, text in WRITTEN.items():
        tx = eval(text)
        state, step = tx.init(PARAMS), jax.jit(tx.update)
        exported = export.export(step)(GRADS, state, PARAMS, **extra_of(name))
        (tmp_path / name).write_bytes(exported.serialize())
        updates, _ = step(GRADS, state, PARAMS, **extra_of(name))
        expected[name] = updates["w"]
    script = f"""
        import pathlib
        import jax
        import jax.numpy as jnp
        import numpy as np
        import gradxform as gx
        from jax import export

        params = {{"w": jnp.linspace(-1.0, 1.0, 24).reshape(4, 6), "b": jnp.ones(4)}}
        grads = jax.tree.map(lambda p: p / 2 + 0.1, params)
        found = {{}}
        for name, text in {WRITTEN!r}.items():
            tx = eval(text)
            run = export.deserialize((pathlib.Path({str(tmp_path)!r}) / name).read_bytes())
            extra = {{"value": jnp.float32(1.0)}} if name == "search" else {{}}
            updates, state = run.call(grads, tx.init(params), params, **extra)
            assert jax.tree.structure(state) == jax.tree.structure(tx.init(params)), name
            found[name] = updates["w"]
        np.savez({str(tmp_path / "found.npz")!r}, **found)
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(script)], cwd=ROOT, check=True)
    found = np.load(tmp_path / "found.npz")
    # Another program may add in another order, which Muon's iteration magnifies.
    for name, u in expected.items():
        np.testing.assert_allclose(found[name], u, rtol=1e-5, atol=1e-5, err_msg=name)


class OwnState(NamedTuple):
    total: Any


@gx.transform(name="tests:sums_exported")
class sums_exported(gx.Transform):
    """Adds up the gradients."""

    def init(self, params):
        return OwnState(jax.tree.map(jnp.zeros_like, params))

    def update(self, updates, state, params=None, **extra):
        total = jax.tree.map(jnp.add, state.total, updates)
        return total, OwnState(total)


class PairState(NamedTuple):
    total: Any


def test_states_of_the_user_are_written_too():
    def update(updates, state, params=None):
        return updates, state

    pair = gx.GradientTransformation(PairState, update)
    for tx in (sums_exported(), gx.chain(sums_exported(), pair)):
        state = tx.init(PARAMS)
        written = export.export(jax.jit(tx.update))(GRADS, state, PARAMS).serialize()
        updates, _ = export.deserialize(written).call(GRADS, state, PARAMS)
        np.testing.assert_array_equal(updates["w"], GRADS["w"])
