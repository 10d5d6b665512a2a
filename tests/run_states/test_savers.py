"""States go through every saver, and come back bitwise, in whatever form they keep their slots."""

import io
import pickle

import equinox as eqx
import flax.serialization
import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest
from flax import nnx

import gradxform as gx
from gradxform.sparse import RowSparse
from tests.catalogue import CASES
from tests.trees import assert_identical

pytestmark = pytest.mark.numeric

PARAMS = {"w": jnp.linspace(-1.0, 1.0, 512).reshape(8, 64), "b": jnp.ones(64)}
STORED = {
    "as it is": lambda tx: tx,
    "quantize_state": lambda tx: gx.quantize_state(tx, min_size=0),
    "quantize_state, dynamic": lambda tx: gx.quantize_state(tx, code="dynamic", min_size=0),
    "quantize_state, rank1": lambda tx: gx.quantize_state(tx, bits=4, code="rank1", min_size=0),
    "factor_state": gx.factor_state,
    "state_dtype": gx.state_dtype,
    "state_dtype, stochastic": lambda tx: gx.state_dtype(tx, stochastic=True, key=0),
    "master_weights": gx.master_weights,
    "kahan": gx.kahan,
    "in a chain": lambda tx: gx.chain(gx.clip(1.0), gx.quantize_state(tx, min_size=0)),
    "in masked": lambda tx: gx.masked(gx.quantize_state(tx, min_size=0), {"w": True, "b": False}),
}


def through_bytes(state, fresh):
    return flax.serialization.from_bytes(fresh, flax.serialization.to_bytes(state))


def through_a_dict(state, fresh):
    return flax.serialization.from_state_dict(fresh, flax.serialization.to_state_dict(state))


def through_pickle(state, fresh):
    return pickle.loads(pickle.dumps(state))


def through_equinox(state, fresh):
    file = io.BytesIO()
    eqx.tree_serialise_leaves(file, state)
    file.seek(0)
    return eqx.tree_deserialise_leaves(file, fresh)


SAVERS = [through_bytes, through_a_dict, through_pickle, through_equinox]


@pytest.fixture(params=list(STORED), scope="module")
def stepped(request):
    tx = STORED[request.param](gx.adam(0.1))
    fresh = jax.jit(tx.init)(PARAMS)
    return tx, fresh, jax.jit(tx.update)(PARAMS, fresh, PARAMS)[1]


def test_a_stored_state_comes_back(stepped):
    _, fresh, state = stepped
    for saver in SAVERS:
        assert_identical(saver(state, fresh), state)


def test_a_stored_state_goes_through_orbax(stepped, tmp_path):
    _, fresh, state = stepped
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "state", state)
        checkpointer.wait_until_finished()
        assert_identical(checkpointer.restore(tmp_path / "state", fresh), state)


def test_a_stored_state_goes_through_an_exported_program(stepped):
    tx, _, state = stepped
    exported = jax.export.export(jax.jit(tx.update))(PARAMS, state, PARAMS)
    want = jax.jit(tx.update)(PARAMS, state, PARAMS)
    assert_identical(exported.call(PARAMS, state, PARAMS), want)


@pytest.mark.parametrize("jit", [False, True])
@pytest.mark.parametrize("stored", [k for k in STORED if k != "in masked"])
def test_nnx_makes_the_steps_of_the_transform(stored, jit):
    tx = STORED[stored](gx.adam(0.1))
    model = nnx.Linear(8, 64, rngs=nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, tx, wrt=nnx.Param)
    params = nnx.to_pure_dict(nnx.state(model, nnx.Param))
    state = tx.init(params)

    def step(model, optimizer):
        grads = nnx.grad(lambda m: jnp.sum(m(jnp.ones((1, 8))) ** 2))(model)
        optimizer.update(model, grads)
        return grads

    step = nnx.jit(step) if jit else step
    for _ in range(3):
        grads = nnx.to_pure_dict(nnx.state(step(model, optimizer), nnx.Param))
        updates, state = tx.update(grads, state, params)
        params = gx.apply_updates(params, updates)
    for name, p in nnx.to_pure_dict(nnx.state(model, nnx.Param)).items():
        np.testing.assert_allclose(p, params[name], rtol=1e-5, atol=1e-6)


# Flax and Equinox do not write PRNG keys, and the rows of a RowSparse are opaque as a key is.
@pytest.mark.parametrize("saver", SAVERS[:3])
def test_a_row_sparse_array_comes_back(saver):
    rows = RowSparse(jnp.asarray([3, 1, 5]), jnp.ones((3, 2)), 5).coalesce()
    fresh = RowSparse(jnp.zeros(3, jnp.int32), jnp.zeros((3, 2)), 5).coalesce()
    new = saver({"t": rows}, {"t": fresh})["t"]
    assert (new.shape, new.coalesced, new.raw) == (rows.shape, True, False)
    np.testing.assert_array_equal(new.indices, rows.indices)
    np.testing.assert_array_equal(new.values, rows.values)


def test_a_state_that_was_stored_in_another_way_is_refused():
    saved = flax.serialization.to_state_dict(STORED["factor_state"](gx.adam(0.1)).init(PARAMS))
    fresh = STORED["quantize_state"](gx.adam(0.1)).init(PARAMS)
    with pytest.raises(ValueError, match="lacks 'codes' here"):
        flax.serialization.from_state_dict(fresh, saved)


# A part and its variants have a state of the same kind: the first row of each part.
FIRST = {name.split("/")[0]: name for name in reversed(CASES)}


@pytest.mark.parametrize("name", FIRST.values())
def test_the_state_of_every_part_comes_back(name):
    case = CASES[name]
    if case.foreign:
        pytest.skip("a transform of another library")
    tree = case.params()
    fresh, state = case.tx.init(tree), case.tx.init(tree)
    has_key = any(jnp.issubdtype(x.dtype, jax.dtypes.prng_key) for x in jax.tree.leaves(state))
    for saver in (through_a_dict, through_pickle) if has_key else SAVERS:
        assert_identical(saver(state, fresh), state)
