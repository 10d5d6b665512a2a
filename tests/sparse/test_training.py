"""Row-sparse gradients through chains, wrappers, training loops and other libraries."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from flax.training import train_state

import gradxform as gx
from gradxform.sparse import RowSparse

pytestmark = pytest.mark.numeric

N, D = 12, 3
TOUCHED = np.asarray([0, 2, 5, 7])
REST = np.setdiff1d(np.arange(N), TOUCHED)


def params(dtype=jnp.float32):
    rng = np.random.default_rng(0)
    return {
        "table": jnp.asarray(rng.normal(size=(N, D)), dtype),
        "w": jnp.asarray(rng.normal(size=4), jnp.float32),
    }


def gradient(seed, dtype=jnp.float32):
    """Rows 7, 2, 5, 0, some of them twice, with padding between."""
    rng = np.random.default_rng(seed)
    rows = RowSparse([7, 2, N, 7, 5, 0, 2], jnp.asarray(rng.normal(size=(7, D)), dtype), N)
    return {"table": rows, "w": jnp.asarray(rng.normal(size=4), jnp.float32)}


def touched_of(tree):
    return {"table": tree["table"][TOUCHED], "w": tree["w"]}


def as_arrays(grads):
    return {"table": grads["table"].to_dense(), "w": grads["w"]}


LABELS = gx.label_by(("table", gx.path_matches("table")), ("rest", True))
CHAINS = {
    "adamw": gx.adamw(0.1, weight_decay=0.3),
    "clipped": gx.chain(gx.clip_by_global_norm(0.5), gx.adamw(0.1)),
    "clipped late": gx.chain(
        gx.adam(0.1), gx.add_decayed_weights(0.1), gx.clip_by_global_norm(0.1)
    ),
    "normalized": gx.chain(gx.normalize_by_update_norm(), gx.sgd(0.1)),
    "decay masked": gx.adamw(0.1, weight_decay=0.3, mask=gx.path_matches("w$")),
    "masked": gx.masked(gx.adam(0.1), gx.path_matches("table")),
    "masked out": gx.masked(gx.lars(0.1), gx.path_matches("w$")),
    "partition": gx.partition({"table": gx.adam(0.1), "rest": gx.lars(0.1)}, LABELS),
    "injected": gx.inject_hyperparams(gx.adamw)(gx.linear_schedule(0.1, 0.0, 5)),
    "guarded": gx.apply_if_finite(gx.chain(gx.clip(0.5), gx.adam(0.1)), 3),
    "named": gx.named_chain(("clip", gx.clip_by_global_norm(0.5)), ("opt", gx.lion(0.1))),
    "sum": gx.sum_of(gx.sgd(0.1), gx.chain(gx.set_to_zero(), gx.add_decayed_weights(0.1))),
    "row-local": gx.chain(gx.centralize(), gx.adam(0.1)),
}


@pytest.mark.parametrize("jitted", [False, True])
@pytest.mark.parametrize("name", list(CHAINS))
def test_touched_rows_follow_the_dense_optimizer_of_those_rows(name, jitted):
    tx = CHAINS[name]
    update = jax.jit(tx.update) if jitted else tx.update
    large, small = params(), touched_of(params())
    state, small_state = tx.init(large), tx.init(small)
    for seed in range(3):
        g = gradient(seed)
        updates, state = update(g, state, large)
        assert isinstance(updates["table"], RowSparse)
        large = gx.apply_updates(large, updates)
        dense = touched_of(as_arrays(g))
        updates, small_state = tx.update(dense, small_state, small)
        small = gx.apply_updates(small, updates)
    for key, got in touched_of(large).items():
        np.testing.assert_allclose(got, small[key], rtol=1e-5, atol=1e-6, err_msg=key)
    np.testing.assert_array_equal(large["table"][REST], params()["table"][REST])


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_narrow_tables_have_wide_slots_and_keep_their_dtype(dtype):
    tx = gx.adamw(0.1)
    p, state = params(dtype), tx.init(params(dtype))
    wide, wide_state = params(dtype), state
    wide["table"] = wide["table"].astype(jnp.float32)
    for seed in range(3):
        updates, state = tx.update(gradient(seed, dtype), state, p)
        assert updates["table"].dtype == dtype
        p = gx.apply_updates(p, updates)
        exact = jax.tree.map(lambda x: x.astype(jnp.float32), as_arrays(gradient(seed, dtype)))
        updates, wide_state = tx.update(exact, wide_state, wide)
        wide = gx.apply_updates(wide, updates)
    assert p["table"].dtype == dtype and state[0].mu["table"].dtype == jnp.float32
    np.testing.assert_allclose(
        p["table"][TOUCHED].astype(jnp.float32), wide["table"][TOUCHED], rtol=0.03, atol=0.03
    )


def test_the_norm_is_that_of_the_summed_rows():
    g = gradient(0)
    assert np.isclose(gx.global_norm(g), gx.global_norm(as_arrays(g)), rtol=1e-6)


SEMANTICS = {
    # whether the parameter and the slots move in rows that were touched before, but not now
    "rows": (False, False),
    "dense": (True, True),
    "slots": (False, True),
    "raw": (False, False),
}


@pytest.mark.parametrize("name", list(SEMANTICS))
def test_the_semantics_say_which_rows_move(name):
    tx = gx.sparse_semantics(gx.adam(0.1), name)
    p, state = params(), tx.init(params())
    updates, state = tx.update(gradient(0), state, p)
    p = gx.apply_updates(p, updates)
    g = {"table": RowSparse([9], jnp.ones((1, D)), N), "w": p["w"]}
    updates, after = tx.update(g, state, p)
    moved = gx.apply_updates(p, updates)["table"] != p["table"]
    changed = after[0].mu["table"] != state[0].mu["table"]
    parameter, slots = SEMANTICS[name]
    assert moved[9].all() and changed[9].all()
    assert moved[TOUCHED].any() == parameter and changed[TOUCHED].any() == slots
    assert not moved[1].any() and not changed[1].any()


def test_dense_semantics_equal_the_densified_gradient():
    p = params()
    for dense in (gx.sparse_semantics(gx.adam(0.1), "dense"), gx.chain(gx.densify(), gx.adam(0.1))):
        ours, _ = dense.update(gradient(0), dense.init(p), p)
        theirs, _ = gx.adam(0.1).update(as_arrays(gradient(0)), gx.adam(0.1).init(p), p)
        for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5)


def test_raw_slices_act_one_by_one():
    rows = RowSparse([4, 4], jnp.asarray([[1.0] * D, [3.0] * D]), N)
    p = {"table": jnp.zeros((N, D))}
    merged, _ = gx.scale_by_sign().update({"table": rows}, gx.scale_by_sign().init(p), p)
    raw = gx.sparse_semantics(gx.scale_by_sign(), "raw")
    apart, _ = raw.update({"table": rows}, raw.init(p), p)
    assert gx.apply_updates(p, merged)["table"][4, 0] == 1
    assert gx.apply_updates(p, apart)["table"][4, 0] == 2
    keeps = gx.sparse_semantics(gx.trace(0.9), "raw")
    _, state = keeps.update({"table": rows}, keeps.init(p), p)
    assert state.trace["table"][4, 0] == 3  # that of the last slice


def test_a_sum_of_dense_and_row_sparse_updates_is_dense():
    tx = gx.sum_of(gx.chain(gx.densify(), gx.scale(-1.0)), gx.scale(2.0))
    p = params()
    updates, _ = tx.update(gradient(0), tx.init(p), p)
    np.testing.assert_allclose(updates["table"], gradient(0)["table"].to_dense(), atol=1e-6)


def test_a_part_for_one_kind_of_gradient_passes_the_other_on():
    p, g = params(), gradient(0)
    plain, _ = gx.sgd(0.1).update(g, gx.sgd(0.1).init(p), p)
    ratio = gx.chain(gx.scale_by_trust_ratio(), gx.sgd(0.1))
    scaled, _ = ratio.update(as_arrays(g), ratio.init(p), p)
    tx = gx.chain(gx.only_dense(gx.scale_by_trust_ratio()), gx.sgd(0.1))
    updates, _ = tx.update(g, tx.init(p), p)
    np.testing.assert_allclose(updates["table"].values, plain["table"].values, rtol=1e-6)
    np.testing.assert_allclose(updates["w"], scaled["w"], rtol=1e-6)
    tx = gx.only_rows(gx.sgd(0.1))
    updates, _ = tx.update(g, tx.init(p), p)
    np.testing.assert_allclose(updates["table"].values, plain["table"].values, rtol=1e-6)
    np.testing.assert_array_equal(updates["w"], g["w"])


REFUSING = {
    "lars": gx.lars(0.1),
    "adafactor": gx.adafactor(0.1),
    "muon": gx.muon(0.1),
    "lookahead": gx.lookahead(gx.sgd(0.1), 5, 0.5),
    "MultiSteps": gx.MultiSteps(gx.sgd(0.1), 2),
    "by name": gx.sparse_semantics(gx.adam(0.1), "error"),
    "foreign": gx.chain(optax.scale(0.1), gx.sgd(0.1)),
    "functions": gx.stateless_with_tree_map(lambda u, p: u),
}


@pytest.mark.parametrize("name", list(REFUSING))
def test_a_rule_that_looks_beyond_a_row_refuses_with_a_remedy(name):
    tx, p = REFUSING[name], params()
    with pytest.raises(TypeError, match=r"row-sparse gradient of \['table'\].*densify\(\)"):
        tx.update(gradient(0), tx.init(p), p)
    dense = gx.chain(gx.densify(), tx)
    if name not in ("foreign", "by name"):
        dense.update(gradient(0), dense.init(p), p)


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        (RowSparse([1], jnp.ones((1, D + 1)), N), ("['table']", "(12, 4)", "(12, 3)")),
        (RowSparse([1], jnp.ones((1, D)), N + 1), ("['table']", "(13, 3)", "(12, 3)")),
    ],
)
def test_rows_of_another_table_are_refused(rows, words):
    tx, p = gx.adam(0.1), params()
    for call in (
        lambda: tx.update({"table": rows, "w": p["w"]}, tx.init(p), p),
        lambda: gx.apply_updates(p, {"table": rows, "w": p["w"]}),
    ):
        with pytest.raises(ValueError, match="table") as caught:
            call()
        assert all(word in str(caught.value) for word in words), caught.value


def test_a_guarded_step_with_a_nan_changes_nothing():
    tx, p = gx.apply_if_finite(gx.adam(0.1), 3), params()
    bad = gradient(0) | {"table": gradient(0)["table"] * jnp.nan}
    updates, state = jax.jit(tx.update)(bad, tx.init(p), p)
    for key, leaf in gx.apply_updates(p, updates).items():
        np.testing.assert_array_equal(leaf, p[key])
    assert int(state.total_notfinite) == 1 and not state.inner_state[0].mu["table"].any()
    keeps_padding = gradient(0)["table"]
    values = keeps_padding.values.at[2].set(jnp.nan)  # in a slice of padding, which counts nothing
    good = gradient(0) | {"table": RowSparse(keeps_padding.indices, values, N)}
    _, state = tx.update(good, tx.init(p), p)
    assert int(state.total_notfinite) == 0


@pytest.mark.parametrize("mean", [True, False])
def test_micro_batches_accumulate_in_a_buffer(mean):
    inner = gx.chain(gx.clip_by_global_norm(1.0), gx.adam(0.1))
    tx = gx.accumulate_rows(inner, 3, {"table": 7, "w": 0}, mean)
    p, state = params(), tx.init(params())
    q, inner_state = params(), inner.init(params())
    update = jax.jit(tx.update)
    for start in (0, 3):
        batches = [gradient(start + k) for k in range(3)]
        for k, g in enumerate(batches):
            updates, state = update(g, state, p)
            new = gx.apply_updates(p, updates)
            if k < 2:
                assert all((new[key] == p[key]).all() for key in p)
            p = new
        scale = 1 / 3 if mean else 1.0
        total = {key: sum(g[key] for g in batches) * scale for key in p}
        updates, inner_state = inner.update(total, inner_state, q)
        q = gx.apply_updates(q, updates)
        for key in p:
            np.testing.assert_allclose(p[key], q[key], rtol=1e-5, atol=1e-6)
    assert state.acc_rows["table"].indices.shape == (21,) and int(state.gradient_step) == 2
    assert set(np.asarray(state.acc_rows["table"].indices)) == {N}


def test_accumulating_refuses_gradients_that_do_not_fit_the_buffer():
    tx, p = gx.accumulate_rows(gx.sgd(0.1), 2, {"table": 7, "w": 0}), params()
    g, state = gradient(0), tx.init(params())
    for bad, words in (
        (g | {"table": RowSparse([1], jnp.ones((1, D)), N)}, ("['table']", "7", "1 slices")),
        (g | {"table": p["table"]}, ("['table']", "a dense gradient")),
        (g | {"w": RowSparse([1], jnp.ones(1), 4)}, ("['w']", "rows is 0")),
        (g | {"table": None}, ("1 tables", "padding")),
    ):
        with pytest.raises((TypeError, ValueError)) as caught:
            tx.update(bad, state, p)
        assert all(word in str(caught.value) for word in words), caught.value


# ------------------------------------------------------------------------------ training loops


def step_by_hand(table, ids):
    """The parameters and gradient of a loss that sums a few rows."""
    _, back = jax.vjp(lambda r: jnp.sum(r**2), table[ids])
    return RowSparse(ids, back(jnp.ones(()))[0], table.shape[0])


class Bag(nn.Module):
    @nn.compact
    def __call__(self, ids):
        return nn.Embed(N, D, name="embed")(ids).sum()


def test_a_train_state_of_flax_takes_the_rows():
    model, ids = Bag(), jnp.asarray([3, 3, 8])
    variables = model.init(jax.random.key(0), ids)
    state = train_state.TrainState.create(
        apply_fn=model.apply, params=variables["params"], tx=gx.adam(0.1)
    )
    old = variables["params"]["embed"]["embedding"]
    grads = {"embed": {"embedding": step_by_hand(old, ids)}}
    with jax.numpy_dtype_promotion("standard"):
        new = jax.jit(lambda s, g: s.apply_gradients(grads=g))(state, grads)
    moved = np.flatnonzero((new.params["embed"]["embedding"] != old).any(1))
    assert list(moved) == [3, 8]


def test_an_optimizer_of_nnx_takes_the_rows():
    model, ids = nnx.Embed(N, D, rngs=nnx.Rngs(0)), jnp.asarray([3, 3, 8])
    optimizer = nnx.Optimizer(model, gx.adamw(0.1), wrt=nnx.Param)
    old = jnp.copy(model.embedding[...])
    grads = nnx.state(model, nnx.Param)
    grads["embedding"] = grads["embedding"].replace(step_by_hand(old, ids))
    with jax.numpy_dtype_promotion("standard"):
        optimizer.update(model, grads)
    assert list(np.flatnonzero((model.embedding[...] != old).any(1))) == [3, 8]


def test_optax_applies_the_rows():
    p = params()
    tx = optax.chain(gx.adamw(0.1))
    with jax.numpy_dtype_promotion("standard"):
        updates, _ = tx.update(gradient(0), tx.init(p), p)
        theirs = optax.apply_updates(p, updates)
    for key, leaf in gx.apply_updates(p, updates).items():
        np.testing.assert_allclose(theirs[key], leaf, rtol=1e-6, atol=1e-6)


def test_rows_train_in_a_scan_and_with_donation():
    tx, p = gx.adamw(0.1), params()

    def step(carry, g):
        p, state = carry
        updates, state = tx.update(g, state, p)
        return (gx.apply_updates(p, updates), state), None

    grads = [gradient(seed) for seed in range(3)]
    many = jax.tree.map(lambda *x: jnp.stack(x), *grads)
    (scanned, _), _ = jax.jit(lambda c, g: jax.lax.scan(step, c, g))((p, tx.init(p)), many)
    carry = (jax.tree.map(jnp.copy, p), tx.init(p))
    donated = jax.jit(step, donate_argnums=0)
    for g in grads:
        carry, _ = donated(carry, g)
    for key in p:
        np.testing.assert_allclose(scanned[key], carry[0][key], rtol=1e-5, atol=1e-6)


def test_a_donated_step_makes_no_copy_of_the_table():
    n, tx = 20_000, gx.chain(gx.clip_by_global_norm(1.0), gx.adamw(1e-3))
    p = {"table": jnp.zeros((n, 16))}

    def step(p, state, ids, values):
        updates, state = tx.update({"table": RowSparse(ids, values, n)}, state, p)
        return gx.apply_updates(p, updates), state

    jitted = jax.jit(step, donate_argnums=(0, 1))
    lowered = jitted.lower(p, tx.init(p), jnp.zeros(8, jnp.int32), jnp.zeros((8, 16)))
    temp = lowered.compile().memory_analysis().temp_size_in_bytes
    assert temp < p["table"].nbytes / 20, temp
