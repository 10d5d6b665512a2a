"""`RowSparse` as a value: what it stands for, its arithmetic, and what it refuses."""

import copy
import pickle

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given

import gradxform as gx
from gradxform.sparse import RowSparse

pytestmark = pytest.mark.numeric

N, D = 7, 3


def made(indices, dtype=jnp.float32, seed=0):
    values = np.random.default_rng(seed).normal(size=(len(indices), D))
    return RowSparse(np.asarray(indices, np.int32), jnp.asarray(values, dtype), N)


def dense(rows):
    """Return the array that the rows stand for, in NumPy float64."""
    out = np.zeros(rows.shape)
    for i, v in zip(np.asarray(rows.indices), np.asarray(rows.values, np.float64), strict=True):
        if i < rows.num_rows:
            out[i] += v
    return out


# Of few lengths, as each is compiled.
INDICES = st.one_of(st.lists(st.integers(0, N), min_size=n, max_size=n) for n in (0, 1, 2, 5, 12))


@given(INDICES, st.integers(0, 99))
def test_coalescing_gives_the_same_array_with_sorted_unique_rows(indices, seed):
    rows = made(indices, seed=seed)
    once = rows.coalesce()
    found = np.asarray(once.indices)
    assert once.coalesced and found.shape == (len(indices),)
    real = found[found < N]
    assert list(real) == sorted(set(indices) - {N})
    assert np.all(found[len(real) :] == N)
    assert not np.asarray(once.values)[len(real) :].any()
    np.testing.assert_allclose(dense(once), dense(rows), rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(rows.to_dense(), dense(rows), rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(rows.sum_of_squares(), np.sum(dense(rows) ** 2), rtol=1e-5)


@given(INDICES, INDICES)
def test_sums_differences_and_multiples_equal_those_of_the_arrays(a, b):
    x, y = made(a, seed=1), made(b, seed=2)
    half = np.float32(0.5)
    for ours, theirs in (
        (x + y, dense(x) + dense(y)),
        (x - y, dense(x) - dense(y)),
        (-x, -dense(x)),
        (2 * x, 2 * dense(x)),
        (x * jnp.float32(3), 3 * dense(x)),
        (x / 4, dense(x) / 4),
        (sum([x, y]), dense(x) + dense(y)),
        (half * x, dense(x) / 2),
    ):
        assert isinstance(ours, RowSparse)
        np.testing.assert_allclose(dense(ours), theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("array", [np.ones((N, D), np.float32), jnp.ones((N, D))])
def test_an_array_plus_rows_is_an_array(array):
    rows = made([3, 1, 3, N])
    for total in (array + rows, rows + array, jax.jit(lambda a, r: a + r)(array, rows)):
        assert isinstance(total, jax.Array)
        np.testing.assert_allclose(total, 1 + dense(rows), rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(array - rows, 1 - dense(rows), rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(rows - array, dense(rows) - 1, rtol=1e-6, atol=1e-6)


def test_adding_to_a_donated_array_does_not_copy_it():
    table, rows = jnp.ones((10_000, 8)), RowSparse([5, 17, 5], jnp.ones((3, 8)), 10_000)
    step = jax.jit(lambda t, r: t + r, donate_argnums=0)
    assert step.lower(table, rows).compile().memory_analysis().temp_size_in_bytes < 10_000
    assert float(step(table, rows)[5, 0]) == 3


def test_narrow_arrays_are_rounded_once():
    table = jnp.full((4, 1), 256, jnp.bfloat16)  # where bfloat16 steps by 2
    rows = RowSparse([2] * 4, jnp.full((4, 1), 0.5, jnp.bfloat16), 4)
    added = table + rows
    assert added.dtype == jnp.bfloat16 and float(added[2, 0]) == 258
    wide = table + RowSparse([2] * 4, jnp.full((4, 1), 0.5), 4)
    assert wide.dtype == jnp.bfloat16 and float(wide[2, 0]) == 258


def test_values_may_have_any_rank():
    vector = RowSparse([2, 0, 2], jnp.ones(3), 4)
    np.testing.assert_array_equal(vector.to_dense(), [1, 0, 2, 0])
    cube = RowSparse([1, 1], jnp.ones((2, 2, 3)), 2)
    assert cube.shape == (2, 2, 3) and float(cube.coalesce().values[0, 0, 0]) == 2


def test_an_empty_batch_is_an_array_of_zeros():
    rows = RowSparse([], jnp.zeros((0, D)), N)
    assert not rows.coalesce().to_dense().any() and rows.sum_of_squares() == 0
    p = {"e": jnp.ones((N, D))}
    tx = gx.adamw(0.1)
    updates, _ = tx.update({"e": rows}, tx.init(p), p)
    np.testing.assert_array_equal(gx.apply_updates(p, updates)["e"], p["e"])


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16, np.int32, np.uint32])
def test_integers_of_any_dtype_are_indices(dtype):
    assert list(RowSparse(np.asarray([3, 1], dtype), jnp.ones((2, 1)), 300).indices) == [3, 1]


def test_traced_indices_out_of_range_are_dropped():
    def add(table, indices):
        return table + RowSparse(indices, jnp.ones((4, 2)), 3)

    table = jax.jit(add)(jnp.zeros((3, 2)), jnp.asarray([-1, 1, 3, 2**31 - 1]))
    np.testing.assert_array_equal(table, [[0, 0], [1, 1], [0, 0]])


def test_the_squares_of_rows_that_stay_apart_are_summed_apart():
    rows = made([3, 1, 3, N])
    apart = np.sum(np.asarray(rows.values, np.float64)[:3] ** 2)
    np.testing.assert_allclose(rows.with_raw(True).sum_of_squares(), apart, rtol=1e-6)
    assert abs(float(rows.sum_of_squares()) - apart) > 1e-2


@pytest.mark.parametrize("dtype", [np.int64, np.uint64])
def test_traced_indices_of_64_bits_do_not_wrap_into_the_table(dtype):
    """The lower 32 bits of 2^32 + 1 are those of row 1."""

    def add(table, indices):
        return table + RowSparse(indices, jnp.ones((5, 2)), 3)

    with jax.enable_x64(True):
        far = [2**32 + 1, 2**33, 2**63 - 1, 2**32 + 2, 1]
        table = jax.jit(add)(jnp.zeros((3, 2)), jnp.asarray(np.asarray(far, dtype)))
    np.testing.assert_array_equal(table, [[0, 0], [1, 1], [0, 0]])


VALUES = jnp.ones((2, D))


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda: RowSparse([0, 9], VALUES, N), ValueError, ("indices", "less than num_rows", "9")),
        (lambda: RowSparse([0, -1], VALUES, N), ValueError, ("indices", "at least 0", "-1")),
        (lambda: RowSparse([0.0, 1.0], VALUES, N), TypeError, ("indices", "integers", "float32")),
        (lambda: RowSparse([True, False], VALUES, N), TypeError, ("indices", "bool")),
        (lambda: RowSparse([[0, 1]], VALUES, N), ValueError, ("indices", "(1, 2)", "reshape")),
        (lambda: RowSparse([0], VALUES, N), ValueError, ("values", "each of the 1 indices")),
        (lambda: RowSparse([0, 1], VALUES.astype(int), N), TypeError, ("values", "int32")),
        (lambda: RowSparse(0, jnp.ones(()), N), ValueError, ("indices",)),
        (lambda: RowSparse([0, 1], VALUES, 7.0), TypeError, ("num_rows", "7.0")),
        (lambda: RowSparse([0, 1], VALUES, -7), ValueError, ("num_rows", "-7")),
        (lambda: RowSparse([0, 1], VALUES, 2**31), ValueError, ("num_rows",)),
        (lambda: RowSparse("ab", VALUES, N), TypeError, ("indices", "'ab'")),
        (lambda: jnp.ones((N, D + 1)) + made([0]), ValueError, ("(7, 3)", "(7, 4)")),
        (lambda: made([0]) + RowSparse([0], VALUES[:1], N + 1), ValueError, ("(7, 3)", "(8, 3)")),
        (lambda: made([0]) * jnp.ones((N, D)), TypeError, ("scalar", "densify()")),
        (lambda: made([0]) * made([0]), TypeError, ("scalar", "densify()")),
        (lambda: setattr(made([0]), "num_rows", 3), AttributeError, ("immutable",)),
    ],
)
def test_bad_input_is_refused(make, error, words):
    with pytest.raises(error) as caught:
        make()
    assert all(word in str(caught.value) for word in words), caught.value


FOREIGN = {
    "scale": lambda x: 0.1 * x,
    "double": lambda x: 2 * x,
    "negate": lambda x: -x,
    "sum": lambda x: x + x,
    "square": lambda x: x**2,
    "clip": lambda x: jnp.clip(x, -1, 1),
    "sign": jnp.sign,
    "float": lambda x: jnp.multiply(x, jnp.float32(1)),
    "mean": jnp.mean,
}


@pytest.mark.parametrize("jitted", [False, True])
@pytest.mark.parametrize("name", list(FOREIGN))
def test_a_foreign_map_cannot_compute_with_the_rows(name, jitted):
    def foreign(rows):
        return jax.tree.map(FOREIGN[name], rows)

    with pytest.raises(TypeError, match=r"densify\(\)"):
        (jax.jit(foreign) if jitted else foreign)(made([3, 1]))


@pytest.mark.parametrize(
    "tx", [optax.scale(0.1), optax.scale(2), optax.sgd(0.1), optax.scale_by_learning_rate(0.1)]
)
def test_transforms_of_optax_end_in_an_error(tx):
    grads, params = {"e": made([3, 1])}, {"e": jnp.ones((N, D))}
    with jax.numpy_dtype_promotion("standard"), pytest.raises(TypeError, match=r"densify\(\)"):
        tx.update(grads, tx.init(params), params)


def test_the_structure_error_of_jax_names_the_remedy():
    grads, params = {"e": made([3, 1])}, {"e": jnp.ones((N, D))}
    with pytest.raises(ValueError, match="densify"):
        jax.tree.map(lambda g, p: g * p, grads, params)


def test_a_foreign_value_in_place_of_the_rows_is_detected():
    other = jax.tree.map(lambda x: jnp.ones(x.shape), made([3, 1]))
    with pytest.raises(TypeError, match=r"densify\(\)"):
        other.to_dense()


def test_zeros_in_place_of_the_rows_touch_no_row():
    zeros = jax.tree.map(jnp.zeros_like, made([3, 1]))
    assert list(zeros.indices) == [N, N] and not zeros.to_dense().any()


def test_rows_pass_through_jit_scan_vmap_and_devices(eight_devices):
    rows = made([3, 1, 3])
    np.testing.assert_array_equal(jax.jit(lambda r: r)(rows).indices, [3, 1, 3])
    carried, _ = jax.lax.scan(lambda r, _: (r * 2, None), rows, None, length=3)
    np.testing.assert_allclose(dense(carried), 8 * dense(rows), rtol=1e-6)
    many = jax.vmap(lambda i, v: RowSparse(i, v, N).coalesce().to_dense())(
        jnp.asarray([[3, 3], [0, 6]]), jnp.ones((2, 2, D))
    )
    assert float(many[0, 3, 0]) == 2 and float(many[1, 6, 0]) == 1
    moved = jax.device_put(rows, eight_devices[1])
    assert moved.values.devices() == {eight_devices[1]}
    for twin in (copy.copy(rows), pickle.loads(pickle.dumps(rows))):
        np.testing.assert_array_equal(twin.to_dense(), rows.to_dense())
    assert "RowSparse(indices=[3 1 3]" in repr(rows)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.int32, jnp.complex64])
def test_rows_are_taken_bit_for_bit(dtype):
    values = [[-0.0, 1.5], [np.nan, -np.inf], [3e38, -2e-38], [0.1, np.inf]]
    values = [[1, -2], [2**31 - 1, 0], [3, 4], [5, 6]] if dtype == jnp.int32 else values
    table = jnp.asarray(values, dtype)
    ids = jnp.asarray([2, 0, 1, 3, 1])
    for take in (RowSparse.take, jax.jit(RowSparse.take)):
        found = take(RowSparse(ids, jnp.ones((5, 2)), 4), table)
        assert found.dtype == table.dtype
        assert np.asarray(found).tobytes() == np.asarray(table)[np.asarray(ids)].tobytes()
