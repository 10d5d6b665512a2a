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
from tests.telling import with_new_parts

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


OF_ROWS = with_new_parts({k: x for k, x in CASES.items() if x.rows and not x.extra})


@pytest.mark.parametrize("name", OF_ROWS)
def test_a_gradient_without_rows_is_taken(name):
    case, tree = OF_ROWS[name], {"t": jnp.ones((6, 8))}
    if case.tree is not None or case.names_leaves:
        pytest.skip("it needs its own parameters")

    def update(rows):
        return case.bound.update({"t": rows}, case.bound.init(tree), tree)[0]

    one, nothing = (RowSparse(jnp.zeros(n, jnp.int32), jnp.ones((n, 8)), 6) for n in (1, 0))
    try:
        jax.eval_shape(update, one)
    except TypeError:
        pytest.skip("it takes rows of other arrays only")
    assert jax.eval_shape(update, nothing)["t"].shape == (6, 8)


@pytest.mark.parametrize("stored", list(STORED))
def test_stored_slots_take_a_gradient_without_rows(stored):
    tx, tree = STORED[stored](gx.adam(0.1)), {"t": jnp.ones((6, 8))}
    nothing = RowSparse(jnp.zeros(0, jnp.int32), jnp.zeros((0, 8)), 6)
    state = tx.init(tree)
    updates, after = tx.update({"t": nothing}, state, tree)
    np.testing.assert_array_equal(gx.apply_updates(tree, updates)["t"], tree["t"])
    assert jax.tree.structure(after) == jax.tree.structure(state)


FORMS_OF_STATES = {
    "8 bits": gx.quantize_state,
    "4 bits": lambda tx: gx.quantize_state(tx, 4),
    "rank1": lambda tx: gx.quantize_state(tx, 4, code="rank1"),
    "bfloat16": gx.state_dtype,
    "chance": lambda tx: gx.state_dtype(tx, stochastic=True, key=0),
    "factors": lambda tx: gx.factor_state(tx, min_dim_size_to_factor=8),
}


@pytest.mark.parametrize("form", FORMS_OF_STATES)
@pytest.mark.parametrize("with_params", [False, True])
def test_a_stored_state_of_other_parameters_is_refused_as_a_plain_one(form, with_params):
    params, other = {"w": jnp.ones((64, 128))}, {"w": jnp.ones((128, 64))}
    messages = []
    for tx in (gx.adam(1e-3), FORMS_OF_STATES[form](gx.adam(1e-3))):
        with pytest.raises(ValueError, match=r"scale_by_adam: the state's mu of \['w'\]") as error:
            jax.eval_shape(tx.update, other, tx.init(params), other if with_params else None)
        messages.append(str(error.value))
    assert messages[0] == messages[1]
