"""Dtypes: float64 stays float64, 16 bits are summed in 32, 8 bits and NumPy's float64 work."""

import functools
import math
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import gradxform as gx
from gradxform import numerics
from gradxform.leaves.row_sparse import RowSparse

pytestmark = pytest.mark.numeric

# ------------------------------------------------------------------------------------- float64


def value(kind, n):
    """The schedules below, in Python's float64."""
    return {
        "constant": 0.1,
        "linear": 0.3 + (0.7 - 0.3) * n / 7,
        "polynomial": 0.1 + (1 - 0.1) * (1 - n / 7) ** 1.5,
        "exponential": 0.1 * 0.9 ** (n / 7),
        "cosine": 0.1 * 0.5 * (1 + math.cos(math.pi * n / 7)),
        "piecewise": 0.1 * (0.3 if n >= 2 else 1.0),
        "product": 0.1 * (0.3 + (0.7 - 0.3) * n / 7),
    }[kind]


SCHEDULES = {
    "constant": gx.constant_schedule(0.1),
    "linear": gx.linear_schedule(0.3, 0.7, 7),
    "polynomial": gx.polynomial_schedule(1.0, 0.1, 1.5, 7),
    "exponential": gx.exponential_decay(0.1, 7, 0.9),
    "cosine": gx.cosine_decay_schedule(0.1, 7),
    "piecewise": gx.piecewise_constant_schedule(0.1, {2: 0.3}),
    "product": gx.product_schedule(0.1, gx.linear_schedule(0.3, 0.7, 7)),
}


@pytest.mark.parametrize("kind", SCHEDULES)
def test_schedules_are_float64_where_arrays_may_be_and_float32_where_not(kind):
    with jax.enable_x64(True):
        for count in (3, jnp.asarray(3, jnp.int32), jnp.asarray(3, jnp.int64), 3.0):
            found = SCHEDULES[kind](count)
            assert found.dtype == jnp.float64
            np.testing.assert_allclose(found, value(kind, 3), rtol=1e-14)
    assert SCHEDULES[kind](3).dtype == jnp.float32


def params64():
    return {"w": jnp.asarray([0.1, 0.2, 0.3]), "b": jnp.asarray(0.7)}


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
def test_numbers_of_a_step_are_as_wide_as_the_leaves(dtype):
    seen = []

    def rate(count):
        seen.append((numerics.scalar_dtype(), gx.constant_schedule(0.1)(count).dtype))
        return 0.1

    with jax.enable_x64(True):
        tree = jax.tree.map(lambda p: p.astype(dtype), params64())
        tx = gx.chain(gx.scale_by_adam(), gx.scale_by_schedule(rate))
        for inner in (tx, gx.inject_hyperparams(gx.adam)(rate), gx.with_extra_args_support(tx)):
            inner.update(tree, inner.init(tree), tree)
        assert set(seen) == {(jnp.dtype(dtype), jnp.dtype(dtype))}
        assert numerics.scalar_dtype() == jnp.float64
    assert numerics.scalar_dtype() == jnp.float32


def test_adam_on_float64_leaves_is_computed_in_float64():
    with jax.enable_x64(True):
        tree, tx = params64(), gx.adam(1e-3)
        u, _ = jax.jit(tx.update)(tree, tx.init(tree), tree)
        for g, x in zip(jax.tree.leaves(tree), jax.tree.leaves(u), strict=True):
            np.testing.assert_allclose(x, -1e-3 * g / (np.abs(g) + 1e-8), rtol=1e-15)


def test_injected_hyperparameters_are_as_wide_as_the_parameters_and_stay_so():
    with jax.enable_x64(True):
        tx = gx.inject_hyperparams(gx.adamw)(gx.linear_schedule(0.3, 0.7, 7), b1=0.9)
        for dtype, grads in ((jnp.float64,) * 2, (jnp.float32,) * 2, (jnp.float64, jnp.float32)):
            tree = jax.tree.map(lambda p, dtype=dtype: p.astype(dtype), params64())
            g = jax.tree.map(lambda p, dtype=grads: p.astype(dtype), tree)
            state = tx.init(tree)
            state.hyperparams["b1"] = 0.8
            for after in (state, tx.update(g, state, tree)[1]):
                kinds = {jnp.asarray(x).dtype for x in jax.tree.leaves(after.hyperparams)}
                assert kinds - {jnp.dtype(float)} <= {jnp.dtype(dtype)}
            found = tx.update(g, state, tree)[1].hyperparams
            assert found["b1"].dtype == dtype == found["learning_rate"].dtype
            assert abs(float(found["eps"]) - 1e-8) <= 1e-8 * jnp.finfo(dtype).eps
        sgd = gx.inject_hyperparams(gx.sgd)(0.1)
        state = sgd.init(params64())
        narrow = jax.tree.map(lambda p: p.astype(jnp.float32), params64())
        assert sgd.update(narrow, state)[1].hyperparams["learning_rate"].dtype == jnp.float64


@pytest.mark.parametrize("make", [lambda lr: gx.adam(lr), lambda lr: gx.prodigy(lr)])
def test_a_live_float32_number_is_combined_with_float64_leaves(make):
    with jax.enable_x64(True):
        tree = params64()

        def step(lr):
            tx = make(lr)
            return tx.update(tree, tx.init(tree), tree)[0]

        made = jax.vmap(step)(jnp.asarray([0.5, 0.25], jnp.float32))
        expected = [step(0.5), step(0.25)]
        for i, one in enumerate(expected):
            jax.tree.map(lambda a, b, i=i: np.testing.assert_allclose(a[i], b, 1e-12), made, one)


def test_a_rule_computes_as_wide_as_the_parameter():
    # g is -p to within the rounding to float32, which is all that the decay leaves of their sum.
    with jax.enable_x64(True):
        p = {"w": jnp.asarray([1 / 3, -2 / 7])}
        g = jax.tree.map(lambda p: -p.astype(jnp.float32), p)
        decay = gx.add_decayed_weights(1.0)
        updates, _ = decay.update(g, decay.init(p), p)
        assert updates["w"].dtype == jnp.float32
        np.testing.assert_allclose(updates["w"], p["w"] + g["w"].astype(jnp.float64), rtol=1e-6)
        assert np.all(updates["w"] != 0)


def test_a_live_bfloat16_number_is_combined_with_float32_leaves():
    tree = {"w": jnp.asarray([1.0, -2.0, 3.0])}

    def step(x):
        tx = gx.chain(gx.scale_by_adam(b1=x), gx.scale(-x))
        return tx.update(tree, tx.init(tree), tree)[0]["w"]

    made = jax.vmap(step)(jnp.asarray([0.5, 0.25], jnp.bfloat16))
    assert made.dtype == jnp.float32
    np.testing.assert_allclose(made, [step(0.5), step(0.25)], rtol=1e-6)


def test_leaves_of_two_widths_each_keep_their_own():
    with jax.enable_x64(True):
        wide = params64()
        mixed = wide | {"b": wide["b"].astype(jnp.float32)}
        for tx in (gx.adamw(0.1), gx.prodigy(0.1), gx.chain(gx.clip_by_global_norm(0.1))):
            state = tx.init(mixed)
            u, after = tx.update(mixed, state, mixed)
            full, _ = tx.update(wide, tx.init(wide), wide)
            assert (u["w"].dtype, u["b"].dtype) == (jnp.float64, jnp.float32)
            np.testing.assert_allclose(u["w"], full["w"], rtol=1e-6)
            jax.tree.map(lambda a, b: None if a.dtype == b.dtype else pytest.fail(), state, after)


@pytest.mark.parametrize("make", [gx.adam, gx.sparse_adagrad, gx.lazy_adam])
def test_rows_of_a_float64_table_are_float64_steps(make):
    with jax.enable_x64(True):
        rng = np.random.default_rng(0)
        table, values = jnp.asarray(rng.normal(size=(6, 3))), jnp.asarray(rng.normal(size=(2, 3)))
        rows = RowSparse(jnp.asarray([4, 1]), values, 6)
        tx = make(0.1)
        state = dense_state = tx.init({"t": table})
        for _ in range(2):
            u, state = tx.update({"t": rows}, state, {"t": table})
            dense, dense_state = tx.update({"t": rows.to_dense()}, dense_state, {"t": table})
            got = u["t"].to_dense()
            assert got.dtype == jnp.float64
            for row in (1, 4):
                np.testing.assert_allclose(got[row], dense["t"][row], rtol=1e-12)


def test_a_state_of_a_checkpoint_keeps_its_dtypes_where_leaves_have_grown_wider():
    tx = gx.prodigy(0.1)
    narrow = jax.tree.map(lambda p: jnp.asarray(p, jnp.float32), {"w": [0.1, 0.2]})
    state = tx.init(narrow)
    with jax.enable_x64(True):
        wide = jax.tree.map(lambda p: jnp.asarray(p, jnp.float64), narrow)
        _, after = tx.update(wide, state, wide)
        jax.tree.map(lambda a, b: None if a.dtype == b.dtype else pytest.fail(), state, after)


# ------------------------------------------------------------------- sums of 16-bit leaves

# Squares and products of these overflow float16, and their sums need more bits than bfloat16 has.
N = 257


def sums(dtype):
    x = {"w": jnp.full(N, 300, dtype), "m": jnp.full((N, 2), 1, dtype)}
    rows = RowSparse(jnp.arange(N), jnp.full((N, 1), 300, dtype), N)
    return {
        "global_norm": gx.global_norm(x),
        "global_norm of rows": gx.global_norm({"r": rows}),
        "norm": gx.tree.norm(x),
        "norm squared": gx.tree.norm(x, squared=True),
        "norm 1": gx.tree.norm(x, 1),
        "sum": gx.tree.sum(x),
        "paired sum": gx.tree.sum(x, associative_reduction=True),
        "vdot": gx.tree.vdot(x, x),
        "skip_large_updates": gx.skip_large_updates(x, 0, x, 1.0)[1]["norm_squared"],
    }


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_sums_over_16_bit_leaves_have_32(dtype):
    exact = sums(jnp.float32)
    found = {name: (x.dtype, float(x)) for name, x in sums(dtype).items()}
    assert found == {name: (jnp.float32, pytest.approx(float(x))) for name, x in exact.items()}


LOSS = {"value": 2.0}
REDUCING = {
    "clip_by_global_norm": gx.clip_by_global_norm(1.0),
    "clip_by_block_norm": gx.clip_by_block_norm(1.0),
    "clip_by_block_rms": gx.clip_by_block_rms(1.0),
    "adaptive_grad_clip": gx.adaptive_grad_clip(0.01),
    "normalize_by_update_norm": gx.normalize_by_update_norm(),
    "normalize_by_block_norm": gx.normalize_by_block_norm(),
    "centralize": gx.centralize(),
    "scale_by_trust_ratio": gx.scale_by_trust_ratio(0.0, 1.0),
    "lars": gx.lars(0.1),
    "scale_by_param_block_norm": gx.chain(gx.scale(1e-4), gx.scale_by_param_block_norm()),
    "scale_by_param_block_rms": gx.chain(gx.scale(1e-4), gx.scale_by_param_block_rms()),
    "scale_by_novograd": gx.scale_by_novograd(),
    "scale_by_factored_rms": gx.scale_by_factored_rms(min_dim_size_to_factor=2),
    "scale_by_sm3": gx.scale_by_sm3(),
    "scale_by_rowwise_rss": gx.scale_by_rowwise_rss(),
    "scale_by_distance_over_gradients": gx.scale_by_distance_over_gradients(1.0),
    "scale_by_dog": gx.scale_by_dog(("heuristic", 1.0)),
    "scale_by_dowg": gx.scale_by_dowg(1.0),
    "scale_by_polyak": gx.chain(gx.scale_by_polyak(), gx.scale(1e6)),
    "step_by_momo": gx.chain(gx.step_by_momo(1.0), gx.scale(1e4)),
    "step_by_momo_adam": gx.chain(gx.step_by_momo_adam(1.0), gx.scale(1e4)),
    "step_by_dadapt_adamw": gx.chain(gx.step_by_dadapt_adamw(estim_lr0=1e-4), gx.scale(1e3)),
    "step_by_prodigy": gx.chain(gx.step_by_prodigy(estim_lr0=1e-4), gx.scale(1e3)),
    "scale_by_muon": gx.masked(gx.scale_by_muon(), gx.ndim_at_least(2)),
    "step_by_shampoo": gx.step_by_shampoo(max_matrix_size=2),
    "scale_by_ggt": gx.scale_by_ggt(),
}


@pytest.mark.parametrize("name", REDUCING)
def test_rules_reduce_16_bit_leaves_in_32(name):
    tx = REDUCING[name]
    extra = LOSS if any(k in name for k in ("polyak", "momo")) else {}

    def steps(dtype):
        rng = np.random.default_rng(0)
        p = {"w": jnp.full(N, 300, jnp.float16), "m": jnp.full((N, 2), 2, jnp.float16)}
        # Means of thirds: of a thousand, float16 knows halves.
        g = {
            "w": jnp.asarray(rng.uniform(280, 320, N), jnp.float16),
            "m": jnp.asarray(np.tile([1000.0, 1001.0], (N, 1)), jnp.float16).at[::3, 0].set(1001.5),
        }
        p, g = jax.tree.map(lambda x: x.astype(dtype), (p, g))
        update = jax.jit(functools.partial(tx.update, **extra))
        state, made = tx.init(p), []
        for _ in range(3):
            u, state = update(g, state, p)
            p = jax.tree.map(lambda p: p - 1, p)
            made.append(u)
        return made

    narrow, wide = (
        {k: np.stack([np.asarray(u[k], np.float32) for u in steps(dtype)]) for k in ("w", "m")}
        for dtype in (jnp.float16, jnp.float32)
    )
    for k, expected in wide.items():
        size = float(np.max(np.abs(expected)))
        assert size > 1e-3, "too small for float16 to tell"
        np.testing.assert_allclose(narrow[k], expected, rtol=2e-3, atol=1e-3 * size)


def test_the_norms_of_16_bit_examples_are_taken_in_32():
    tx = gx.differentially_private_aggregate(1.0, 0.0, 0)
    g = {"w": jnp.full((2, N), 300, jnp.float16)}
    u, _ = tx.update(g, tx.init({"w": jnp.zeros(N, jnp.float16)}))
    np.testing.assert_allclose(np.asarray(u["w"], np.float32), 1 / math.sqrt(N), rtol=1e-3)


# --------------------------------------------------------------------------------------- float8

FLOAT8 = [jnp.float8_e4m3fn, jnp.float8_e5m2]


@pytest.mark.parametrize("dtype", FLOAT8)
@pytest.mark.parametrize(
    "tx",
    [
        gx.sgd(0.5, momentum=0.9),
        gx.adamw(0.5, weight_decay=0.1),
        gx.chain(gx.clip_by_global_norm(1.0), gx.lamb(0.5)),
        gx.adafactor(0.5),
        gx.lion(0.5),
        gx.prodigy(0.5),
        gx.MultiSteps(gx.adam(0.5), 2),
        gx.apply_if_finite(gx.adam(0.5), 1),
        gx.lookahead(gx.sgd(0.5), 2, 0.5),
    ],
    ids=lambda x: type(x).__name__,
)
def test_float8_parameters_are_optimized_in_float32(tx, dtype):
    tree = {"w": jnp.asarray([[1.0, -2.0], [0.5, 0.0]], dtype), "b": jnp.asarray([4.0, 8.0], dtype)}
    wide = jax.tree.map(lambda x: x.astype(jnp.float32), tree)
    state, wide_state = tx.init(tree), tx.init(wide)
    assert all(x.dtype.itemsize >= 4 or x.dtype == bool for x in jax.tree.leaves(state))
    for _ in range(2):
        u, state = jax.jit(tx.update)(tree, state, tree)
        expected, wide_state = tx.update(wide, wide_state, wide)
        for a, b in zip(jax.tree.leaves(u), jax.tree.leaves(expected), strict=True):
            assert a.dtype == dtype
            np.testing.assert_array_equal(
                *(np.asarray(x.astype(dtype), np.float32) for x in (a, b))
            )
    moved = gx.apply_updates(tree, u)
    assert all(x.dtype == dtype for x in jax.tree.leaves(moved))
    assert all(np.isfinite(np.asarray(x, np.float32)).all() for x in jax.tree.leaves(moved))


@pytest.mark.parametrize("dtype", FLOAT8)
def test_float8_meets_wider_updates_averages_and_rows(dtype):
    tree = {"w": jnp.asarray([1.0, 2.0], dtype)}
    wide = {"w": jnp.asarray([1.0, 0.0], jnp.bfloat16)}
    np.testing.assert_array_equal(np.asarray(gx.apply_updates(tree, wide)["w"], np.float32), [2, 2])
    np.testing.assert_allclose(gx.global_norm(tree), math.sqrt(5), rtol=1e-6)
    mean = gx.incremental_update(tree, {"w": jnp.zeros(2)}, 0.5)
    np.testing.assert_allclose(mean["w"], [0.5, 1.0])
    table, rows = jnp.ones((3, 2), dtype), RowSparse(jnp.asarray([2]), jnp.ones((1, 2), dtype), 3)
    tx = gx.adam(0.5)
    u, _ = tx.update({"t": rows}, tx.init({"t": table}), {"t": table})
    moved = gx.apply_updates({"t": table}, u)["t"]
    assert moved.dtype == dtype
    np.testing.assert_array_equal(np.asarray(moved, np.float32)[:, 0], [1, 1, 0.5])


# ------------------------------------------------------------------------------ NumPy's float64


@pytest.mark.parametrize("x64", [False, True])
def test_optimizers_take_float64_of_numpy(x64):
    with jax.enable_x64(x64), warnings.catch_warnings():
        warnings.simplefilter("error")
        tree = {"w": np.asarray([0.1, 0.2]), "b": np.float64(0.3)}
        for tx in (gx.adamw(0.1), gx.shampoo(0.1), gx.prodigy(0.1), gx.adafactor(0.1), gx.dog()):
            state = tx.init(tree)
            u, state = tx.update(tree, state, tree)
            moved = gx.apply_updates(tree, u)
            expected = jnp.float64 if x64 else jnp.float32
            for x in jax.tree.leaves((u, state, moved)):
                assert x.dtype == expected or not jnp.issubdtype(x.dtype, jnp.floating)


X = {"a": np.asarray([1.0, 2.0]) / 3, "b": np.float64(0.1)}
TREE = {
    "add": lambda t: t.add(X, X),
    "sub": lambda t: t.sub(X, X),
    "mul": lambda t: t.mul(X, X),
    "div": lambda t: t.div(X, X),
    "scale": lambda t: t.scale(np.float64(0.1), X),
    "clip": lambda t: t.clip(X, 0.0, 0.5),
    "where": lambda t: t.where(True, X, X),
    "zeros_like": lambda t: t.zeros_like(X),
    "sum": lambda t: t.sum(X),
    "vdot": lambda t: t.vdot(X, X),
    "max": lambda t: t.max(X),
    "norm": lambda t: t.norm(X),
    "norm 1": lambda t: t.norm(X, 1),
    "cast": lambda t: t.cast(X, jnp.float32),
    "dtype": lambda t: jnp.zeros(1, t.dtype(X, "promote")),
    "update_moment": lambda t: t.update_moment(X, X, 0.9, 2),
    "update_moment_per_elem_norm": lambda t: t.update_moment_per_elem_norm(X, X, 0.9, 2),
    "update_infinity_moment": lambda t: t.update_infinity_moment(X, X, 0.9, 1e-8),
}


@pytest.mark.parametrize("x64", [False, True])
@pytest.mark.parametrize("name", TREE)
def test_tree_utilities_take_float64_of_numpy_as_optax_does(name, x64):
    with jax.enable_x64(x64):
        ours = TREE[name](gx.tree)
        with jax.numpy_dtype_promotion("standard"):
            theirs = TREE[name](optax.tree)
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_allclose(a, b, rtol=4 * np.finfo(b.dtype).eps)
