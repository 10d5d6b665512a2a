"""Second moments as row and column means."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradxform as gx
import gradxform.distributed as gd
from gradxform.leaves.storage import Factored, is_stored, matrix_axes
from tests.leaves.test_storage import check_temporaries, check_tiles, normal, on_eight

pytestmark = pytest.mark.numeric

SHAPES = [(64, 300), (300, 64), (4, 64, 128), (64, 4, 128), (128, 64, 4), (3, 5, 64, 32), (67, 129)]


def means(x, axes):
    rows, columns = axes
    return np.mean(x, columns, keepdims=True), np.mean(x, rows, keepdims=True)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_means_make_the_matrix_of_rank_one_that_has_them(shape):
    axes = matrix_axes(shape, 4)
    x = np.square(normal(shape))
    kept = Factored.of(jnp.asarray(x), axes)
    assert (kept.shape, kept.dtype) == (shape, jnp.float32)
    y = np.asarray(kept.load())
    for a, b in zip(means(x, axes), means(y, axes), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5)
    again = kept.store(kept.load())
    np.testing.assert_allclose(again.row, kept.row, rtol=1e-5)
    np.testing.assert_allclose(again.col, kept.col, rtol=1e-5)
    assert sum(a.size for a in jax.tree.leaves(kept)) < x.size // 10


def test_the_axes_are_the_two_largest():
    assert matrix_axes((3, 3, 128, 256), 128) == (2, 3)
    assert matrix_axes((256, 3, 128), 128) == (2, 0)
    assert matrix_axes((128, 128), 128) == (0, 1)
    assert matrix_axes((127, 4096), 128) is None
    assert matrix_axes((4096,), 1) is None and matrix_axes((0, 5), 0) is None


def test_extreme_entries():
    zeros = Factored.of(jnp.zeros((8, 8)), (0, 1))
    np.testing.assert_array_equal(zeros.load(), 0)
    one = jnp.zeros((8, 8)).at[2, 3].set(5.0)
    np.testing.assert_allclose(Factored.of(one, (0, 1)).load(), one, rtol=1e-6)
    large = Factored.of(jnp.full((8, 8), 2e37), (0, 1)).load()
    np.testing.assert_allclose(large, 2e37, rtol=1e-5)
    np.testing.assert_array_equal(Factored.of(jnp.full((8, 8), 3e38), (0, 1)).load(), jnp.inf)
    tiny = Factored.of(jnp.full((8, 8), 1e-30), (0, 1)).load()
    np.testing.assert_allclose(tiny, 1e-30, rtol=1e-5)
    infinite = Factored.of(jnp.zeros((8, 8)).at[0, 0].set(jnp.inf), (0, 1)).load()
    np.testing.assert_array_equal(infinite, jnp.inf)  # whose updates are 0, as Adafactor's are
    assert np.any(np.isnan(Factored.of(jnp.ones((8, 8)).at[0, 0].set(jnp.nan), (0, 1)).load()))


# Beside blocks: a matrix, one that tiles do not divide, and more axes.
MIXED = [(64, 300), (67, 129), (3, 5, 64, 32)]


@pytest.mark.parametrize(
    "shape, mixed", [(x, False) for x in SHAPES] + [(x, True) for x in MIXED], ids=str
)
def test_tiles_change_nothing(shape, mixed, monkeypatch):
    inner = gx.quantize_state(gx.adamw(0.1), which="mu") if mixed else gx.adamw(0.1)
    tx = gx.factor_state(inner, min_dim_size_to_factor=4)
    assert check_tiles(tx, shape, monkeypatch)


def test_a_step_holds_no_float32_copy_of_the_moment():
    tx = gx.factor_state(gx.quantize_state(gx.adamw(1e-3), 4, which="mu"))
    check_temporaries(tx, 0.14)


def test_averages_of_means_are_those_of_adafactor():
    """Of the squares of the gradients, with the decay and without the epsilon."""
    params = {"w": normal((128, 256))}
    ours = gx.factor_state(gx.scale_by_rms(decay=0.9))
    theirs = gx.scale_by_factored_rms(
        epsilon=0.0, decay_rate=0.9, decay_rate_fn=lambda step, decay: decay
    )
    state, other = ours.init(params), theirs.init(params)
    for i in range(3):
        grads = {"w": normal((128, 256), i)}
        _, state = ours.update(grads, state, params)
        _, other = theirs.update(grads, other, params)
    np.testing.assert_allclose(state.nu["w"].row, other.v_row["w"], rtol=1e-5)
    np.testing.assert_allclose(state.nu["w"].col, other.v_col["w"], rtol=1e-5)


def test_what_does_not_qualify_keeps_its_form():
    tree = {
        "w": jnp.ones((128, 128)),
        "b": jnp.ones(300),
        "n": jnp.ones(()),
        "t": jnp.ones((4, 99)),
    }
    (state, *_) = gx.factor_state(gx.adam(1.0)).init(tree)
    assert [k for k in tree if is_stored(state.nu[k])] == ["w"]
    assert not any(map(is_stored, jax.tree.leaves(state.mu, is_leaf=is_stored)))


def test_a_stack_of_matrices_takes_row_sparse_gradients():
    tx = gx.factor_state(gx.adam(0.1), min_dim_size_to_factor=2)
    params = {"w": normal((6, 8, 16))}
    state = tx.init(params)
    rows = gx.sparse.RowSparse(jnp.asarray([1, 4]), normal((2, 8, 16), 2), 6)
    updates, later = jax.jit(tx.update)({"w": rows}, state, params)
    dense, _ = jax.jit(tx.update)({"w": rows.to_dense()}, state, params)
    np.testing.assert_allclose(updates["w"].to_dense(), dense["w"], rtol=1e-5)
    changed = np.any(np.asarray(later[0].nu["w"].row != state[0].nu["w"].row), axis=1)
    np.testing.assert_array_equal(changed, [False, True, False, False, True, False])


@pytest.mark.parametrize("spec", [("data",), (None, "data")], ids=str)
def test_sharded_means_are_those_of_the_whole(spec):
    place = jax.NamedSharding(on_eight(), jax.P(*spec))
    whole = {"w": normal((1024, 2048))}
    params = jax.device_put(whole, place)
    tx = gx.factor_state(gx.adam(0.1))
    places = gd.state_sharding(tx, params)
    nu = places[0].nu["w"]
    by_row, by_column = spec == ("data",), spec != ("data",)
    assert nu.row.spec == (jax.P("data") if by_row else jax.P())
    assert nu.col.spec == (jax.P("data") if by_column else jax.P())
    state = jax.jit(tx.init, out_shardings=places)(params)
    got, want = (
        jax.jit(tx.update)(tree, s, tree) for tree, s in ((params, state), (whole, tx.init(whole)))
    )
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-7)


def test_a_slot_of_another_shape_than_a_divided_parameter_is_refused():
    params = {"w": normal((4, 16, 8))}
    tx = gx.factor_state(gx.scale_by_factored_rms(min_dim_size_to_factor=2), "v_row", 2)
    assert is_stored(tx.init(params).v_row["w"])
    on_mesh = gd.shard_matrices(tx, "x", jax.P("x"), jax.make_mesh((2,), ("x",)))
    with pytest.raises(ValueError, match=r"factor_state: the slot v_row of \['w'\] does not have"):
        on_mesh.init(params)
