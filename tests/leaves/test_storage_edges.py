"""Storage at the edges: ends of dtypes, nearest codes, copies of parameters, no rows at all."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradxform as gx
from gradxform.leaves.storage import DynamicCode
from gradxform.leaves.storage.rounded import rounded_by_chance
from gradxform.numerics.overflow import cast_finite
from gradxform.sparse import RowSparse
from tests.catalogue import CASES

pytestmark = pytest.mark.numeric


@pytest.mark.parametrize("dtype", ["float16", "float8_e4m3fn", "float8_e5m2", "bfloat16"])
def test_a_slot_ends_where_its_dtype_does(dtype):
    largest = float(jnp.finfo(dtype).max)
    x = jnp.asarray([1.0, -largest, 1e30, -1e30, jnp.nan])
    kept = cast_finite(x, jnp.dtype(dtype)).astype(jnp.float32)
    expected = [1.0, -largest, min(1e30, largest), -min(1e30, largest), np.nan]
    np.testing.assert_allclose(kept, expected, rtol=0.01)


@pytest.mark.parametrize("size", [1e3, 1e4, 1e6])
@pytest.mark.parametrize(
    "tx",
    [
        gx.state_dtype(gx.adam(0.01), jnp.float16),
        gx.adam(0.01, mu_dtype=jnp.float16),
        gx.sgd(1e-8, 0.9, accumulator_dtype=jnp.float16),
        gx.state_dtype(gx.rmsprop(0.01), jnp.float16),
    ],
)
def test_slots_in_float16_do_not_stop_an_entry(tx, size):
    params = {"w": jnp.ones(3)}
    state = tx.init(params)
    for _ in range(5):
        updates, state = tx.update({"w": jnp.full(3, size)}, state, params)
        assert all(np.all(np.isfinite(np.asarray(x, np.float32))) for x in jax.tree.leaves(state))
        assert np.all(updates["w"] < 0)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_chance_does_not_round_the_largest_number_to_infinity(dtype):
    largest = float(jnp.finfo(dtype).max)
    x = jnp.full(10_000, largest, jnp.float32)
    x = jnp.concatenate([x, -x, jnp.full(10_000, jnp.nextafter(jnp.float32(jnp.inf), 0.0))])
    rounded = rounded_by_chance(x, jnp.asarray([1, 2], jnp.uint32), jnp.dtype(dtype))
    assert np.all(np.isfinite(np.asarray(rounded, np.float32)))


@pytest.mark.parametrize("signed", [True, False])
@pytest.mark.parametrize("bits", [8, 4])
def test_a_dynamic_code_is_the_nearest(bits, signed):
    code = DynamicCode(bits, signed)
    numbers = np.asarray(code.decode(jnp.arange(2**bits, dtype=jnp.uint8)), np.float64)
    rng = np.random.default_rng(0)
    x = np.concatenate([rng.uniform(0, 1, 5000), 10.0 ** rng.uniform(-8, 0, 5000), [0.1, 0.01, 1]])
    x = (x * np.where(rng.uniform(size=x.size) < 0.5, -1, 1) if signed else x).astype(np.float32)
    allowed = numbers if signed else numbers[numbers > 0]
    best = np.min(np.abs(x[:, None] - allowed), axis=1)
    error = np.abs(numbers[np.asarray(code.encode(jnp.asarray(x)))] - x)
    np.testing.assert_allclose(error, best, atol=2e-7)
    large = np.abs(x) >= code.least
    assert np.max(error[large] / np.abs(x[large])) <= code.error * 1.001


STORED = {
    "quantize_state": lambda tx: gx.quantize_state(tx, min_size=0),
    "quantize_state, 4": lambda tx: gx.quantize_state(tx, bits=4, min_size=0),
    "state_dtype": gx.state_dtype,
    "stochastic": lambda tx: gx.state_dtype(tx, stochastic=True, key=0),
}


@pytest.mark.parametrize("stored", list(STORED))
@pytest.mark.parametrize("name", ["madgrad", "cocob"])
def test_a_step_without_a_gradient_leaves_the_parameters(name, stored):
    tx = STORED[stored]({"madgrad": gx.madgrad(0.1), "cocob": gx.contrib.cocob()}[name])
    params = {"w": jnp.asarray(np.random.default_rng(0).normal(size=(8, 32)), jnp.float32)}
    updates, _ = tx.update({"w": jnp.zeros((8, 32))}, tx.init(params), params)
    np.testing.assert_array_equal(updates["w"], np.zeros((8, 32)))


def test_a_copy_of_the_parameters_that_is_named_is_refused():
    params = {"w": jnp.ones(8)}
    with pytest.raises(ValueError, match="which names 'x0', a copy of the parameters"):
        gx.state_dtype(gx.madgrad(0.1), which="x0").init(params)
    assert gx.state_dtype(gx.madgrad(0.1), which="s").init(params)


@pytest.mark.parametrize("name", [k for k, case in CASES.items() if case.rows and not case.extra])
def test_a_gradient_without_rows_changes_no_parameter(name):
    case = CASES[name]
    if case.tree is not None or case.names_leaves:
        pytest.skip("it needs its own parameters")
    tree = {"t": jnp.ones((6, 8))}
    one, nothing = (RowSparse(jnp.zeros(n, jnp.int32), jnp.ones((n, 8)), 6) for n in (1, 0))
    try:
        case.bound.update({"t": one}, case.bound.init(tree), tree)
    except TypeError:
        pytest.skip("it takes rows of other arrays only")
    updates, _ = case.bound.update({"t": nothing}, case.bound.init(tree), tree)
    assert updates["t"].shape == (6, 8)


@pytest.mark.parametrize("stored", list(STORED))
def test_stored_slots_take_a_gradient_without_rows(stored):
    tx, tree = STORED[stored](gx.adam(0.1)), {"t": jnp.ones((6, 8))}
    nothing = RowSparse(jnp.zeros(0, jnp.int32), jnp.zeros((0, 8)), 6)
    state = tx.init(tree)
    updates, after = tx.update({"t": nothing}, state, tree)
    np.testing.assert_array_equal(gx.apply_updates(tree, updates)["t"], tree["t"])
    assert jax.tree.structure(after) == jax.tree.structure(state)
