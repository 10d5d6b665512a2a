"""Single parts keep what their documentation says beyond the contract that all parts share."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given, settings, strategies as st

import gradxform as gx
from gradxform.engine.chunks import chunked
from tests.catalogue import gradients, params

pytestmark = pytest.mark.numeric


def test_global_norm_does_not_saturate():
    leaf = jnp.full((100,), 0.1, jnp.bfloat16)  # norm 1
    unit = float(jnp.linalg.norm(leaf.astype(jnp.float32)))
    tree = {f"{i}": leaf for i in range(600)}
    np.testing.assert_allclose(gx.global_norm(tree), unit * 600**0.5, rtol=1e-5)
    one = {f"{i}": jnp.ones((), jnp.bfloat16) for i in range(600)}
    np.testing.assert_allclose(gx.global_norm(one), 24.4949, rtol=1e-5)
    np.testing.assert_allclose(gx.global_norm(one), jax.jit(gx.global_norm)(one), rtol=1e-6)


def test_global_norm_of_float16_does_not_overflow():
    tree = [jnp.full((10,), 60000.0, jnp.float16)] * 3
    np.testing.assert_allclose(gx.global_norm(tree), 60000 * 30**0.5, rtol=1e-3)
    clipped, _ = gx.clip_by_global_norm(1.0).update(tree, gx.EmptyState())
    np.testing.assert_allclose(gx.global_norm(clipped), 1.0, rtol=1e-2)


def test_global_norm_takes_empty_mixed_and_complex_trees():
    assert float(gx.global_norm({})) == 0.0
    assert float(gx.global_norm({"a": None, "b": jnp.zeros((0,))})) == 0.0
    mixed = {"a": jnp.full((4,), 1.0, jnp.bfloat16), "b": jnp.full((5,), 1.0, jnp.float32)}
    assert float(gx.global_norm(mixed)) == 3.0
    assert float(gx.global_norm(jnp.asarray([3.0 + 4.0j]))) == 5.0


def test_a_nan_is_not_hidden_by_clipping():
    tree = {"a": jnp.asarray([jnp.nan, 1.0]), "b": jnp.ones(2)}
    clipped, _ = gx.clip_by_global_norm(1.0).update(tree, gx.EmptyState())
    assert all(np.all(np.isnan(x)) for x in jax.tree.leaves(clipped))


def test_injected_hyperparameters_are_float32_over_bfloat16():
    tx = gx.inject_hyperparams(gx.adamw)(gx.linear_schedule(1e-3, 1e-4, 10), b2=0.9999)
    tree = params(jnp.bfloat16)
    state = tx.init(tree)
    for g in gradients(tree, 3):
        updates, state = jax.jit(tx.update)(g, state, tree)
        assert all(np.all(np.isfinite(u.astype(jnp.float32))) for u in jax.tree.leaves(updates))
    assert all(h.dtype == jnp.float32 for h in state.hyperparams.values())
    np.testing.assert_allclose(state.hyperparams["b2"], 0.9999, rtol=1e-7)
    np.testing.assert_allclose(state.hyperparams["learning_rate"], 1e-3 - 2 * 9e-5, rtol=1e-6)
    narrow = gx.inject_hyperparams(gx.sgd, hyperparam_dtype=jnp.bfloat16)(0.1).init(tree)
    assert narrow.hyperparams["learning_rate"].dtype == jnp.float32


def test_an_injected_hyperparameter_can_be_set():
    tx, tree = gx.inject_hyperparams(gx.sgd)(learning_rate=0.1), params()
    (g,) = gradients(tree, 1)
    state = tx.init(tree)
    state.hyperparams["learning_rate"] = jnp.asarray(0.7)
    updates, state = tx.update(g, state, tree)
    np.testing.assert_allclose(updates["w"], -0.7 * g["w"], rtol=1e-6)
    assert float(state.hyperparams["learning_rate"]) == pytest.approx(0.7)


def test_an_injected_integer_is_the_float_it_stands_for():
    one, other = gx.inject_hyperparams(gx.sgd)(1), gx.inject_hyperparams(gx.sgd)(1.0)
    assert one == other
    assert one.init(params()).hyperparams["learning_rate"].dtype == jnp.float32


def test_a_mask_is_not_a_schedule():
    tx = gx.inject_hyperparams(gx.adamw)(0.1, mask=lambda p: jax.tree.map(lambda x: x.ndim > 1, p))
    tree = params()
    state = tx.init(tree)
    assert "mask" not in state.hyperparams
    tx.update(gradients(tree, 1)[0], state, tree)


def test_add_noise_has_the_variance_it_says():
    tx = gx.add_noise(eta=0.5, gamma=0.55, key=7)
    tree = {"a": jnp.zeros((200, 200)), "b": jnp.zeros((200, 200))}
    state = tx.init(tree)
    for t in range(1, 4):
        updates, state = tx.update(tree, state)
        for u in updates.values():
            np.testing.assert_allclose(np.mean(u), 0, atol=0.02)
            np.testing.assert_allclose(np.var(u), 0.5 / t**0.55, rtol=0.03)
        assert abs(np.corrcoef(updates["a"].ravel(), updates["b"].ravel())[0, 1]) < 0.02


@pytest.mark.parametrize("key", [3, jax.random.key(3)], ids=["seed", "key"])
def test_add_noise_draws_what_optax_draws(key):
    tree = params()
    ours, theirs = gx.add_noise(0.1, 0.55, key), optax.add_noise(0.1, 0.55, key)
    a, _ = ours.update(tree, ours.init(tree))
    with jax.numpy_dtype_promotion("standard"):
        b, _ = theirs.update(tree, theirs.init(tree))
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5), a, b)


class TestMultiSteps:
    """Accumulation: when the optimizer runs, and what a NaN reaches."""

    def run(self, tx, grads, tree):
        state, out = tx.init(tree), []
        for g in grads:
            updates, state = tx.update(g, state, tree)
            out.append(updates)
        return out, state

    def test_the_optimizer_runs_exactly_when_due(self):
        calls = []

        def update(updates, state, params=None):
            jax.debug.callback(lambda: calls.append(1))
            return updates, state

        tree = params()
        inner = gx.GradientTransformation(lambda p: (), update)
        _, state = self.run(gx.MultiSteps(inner, 3), gradients(tree, 7), tree)
        jax.effects_barrier()
        assert len(calls) == 2
        assert int(state.gradient_step) == 2 and int(state.mini_step) == 1

    def test_the_period_may_be_a_function_of_the_step(self):
        tree = params()
        tx = gx.MultiSteps(gx.sgd(1.0), lambda step: jnp.where(step < 1, 1, 3))
        out, _ = self.run(tx, gradients(tree, 7), tree)
        moved = [bool(np.any(u["w"])) for u in out]
        assert moved == [True, False, False, True, False, False, True]

    def test_a_skipped_micro_batch_counts_for_nothing(self):
        tree = params()
        tx = gx.MultiSteps(gx.adam(0.1), 2, should_skip_update_fn=gx.skip_not_finite)
        good = gradients(tree, 4)
        bad = jax.tree.map(lambda g: jnp.full_like(g, jnp.nan), good[0])
        with_bad, state = self.run(tx, [good[0], bad, good[1], good[2], bad, bad, good[3]], tree)
        without, plain = self.run(tx, good, tree)
        for i, j in ((0, 0), (2, 1), (3, 2), (6, 3)):
            np.testing.assert_array_equal(with_bad[i]["w"], without[j]["w"])
        assert not np.any(with_bad[1]["w"])
        np.testing.assert_array_equal(
            state.inner_opt_state[0].nu["w"], plain.inner_opt_state[0].nu["w"]
        )
        assert int(state.skip_state["num_not_finite"]) == 0

    def test_a_nan_reaches_at_most_its_own_step(self):
        tree = params()
        guarded = gx.MultiSteps(gx.apply_if_finite(gx.adam(0.1), 5), 2)
        good = gradients(tree, 4)
        bad = jax.tree.map(lambda g: jnp.full_like(g, jnp.nan), good[0])
        out, state = self.run(guarded, [good[0], bad, *good], tree)
        clean, _ = self.run(gx.MultiSteps(gx.adam(0.1), 2), good, tree)
        assert not np.any(out[1]["w"])
        np.testing.assert_allclose(out[3]["w"], clean[1]["w"], rtol=1e-5, atol=1e-6)
        assert np.all(np.isfinite(state.acc_grads["w"]))

    def test_the_state_has_optaxs_fields(self):
        theirs = optax.MultiSteps(optax.adam(0.1), 3).init(params())
        ours = gx.MultiSteps(gx.adam(0.1), 3).init(params())
        assert type(ours)._fields == type(theirs)._fields
        tx = gx.MultiSteps(gx.adam(0.1), 2)
        assert tx.gradient_transformation() is tx and tx.inner_opt == gx.adam(0.1)
        _, state = self.run(tx, gradients(params(), 2), params())
        assert bool(tx.has_updated(state)) and not bool(tx.has_updated(tx.init(params())))

    def test_a_donated_step_holds_one_copy_at_most(self):
        tree = {"w": jnp.zeros((512, 256)), "v": jnp.zeros((256, 256))}
        tx = gx.MultiSteps(gx.adamw(1e-3), 4)

        def step(tree, state, grads):
            updates, state = tx.update(grads, state, tree)
            return gx.apply_updates(tree, updates), state

        compiled = jax.jit(step, donate_argnums=(0, 1)).lower(tree, tx.init(tree), tree).compile()
        size = sum(x.nbytes for x in tree.values())
        assert compiled.memory_analysis().temp_size_in_bytes <= 1.1 * size


class TestApplyIfFinite:
    """Guarding."""

    def test_bad_updates_change_nothing_until_patience_ends(self):
        tree = params()
        tx = gx.apply_if_finite(gx.adam(0.1), 2)
        (good,) = gradients(tree, 1)
        bad = jax.tree.map(lambda g: g, good) | {"b": jnp.full((4,), jnp.inf)}
        state = tx.init(tree)
        _, state = tx.update(good, state, tree)
        before = state.inner_state
        for n in (1, 2):
            updates, state = tx.update(bad, state, tree)
            assert not any(np.any(u) for u in jax.tree.leaves(updates))
            assert int(state.notfinite_count) == n and not bool(state.last_finite)
            np.testing.assert_array_equal(state.inner_state[0].nu["w"], before[0].nu["w"])
        updates, state = tx.update(bad, state, tree)
        assert not np.all(np.isfinite(updates["b"])) and int(state.total_notfinite) == 3
        _, state = tx.update(good, tx.init(tree), tree)
        assert int(state.notfinite_count) == 0 and bool(state.last_finite)

    @pytest.mark.parametrize("p, g", [("bfloat16", "float32"), ("float32", "bfloat16")])
    def test_dtypes_of_parameters_and_gradients_may_differ(self, p, g):
        tree = params(jnp.dtype(p))
        for inner in (gx.adamw(0.1), optax.adam(0.1)):
            tx = gx.apply_if_finite(inner, 2)
            with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
                state = tx.init(tree)
                for grads in gradients(tree, 2, jnp.dtype(g)):
                    updates, after = tx.update(grads, state, tree)
                    assert [x.dtype for x in jax.tree.leaves(state)] == [
                        x.dtype for x in jax.tree.leaves(after)
                    ]
                    state = after
                assert all(u.dtype == jnp.dtype(g) for u in jax.tree.leaves(updates))


class TestLookahead:
    """The drop-in and Optax's form."""

    def test_the_pair_is_optaxs_class(self):
        tree = params()
        ours, theirs = gx.lookahead(gx.adam(0.1), 2, 0.5), optax.lookahead(optax.adam(0.1), 2, 0.5)
        a, b = gx.LookaheadParams.init_synced(tree), optax.LookaheadParams.init_synced(tree)
        s, t = ours.init(a), theirs.init(b)
        for g in gradients(tree, 5):
            u, s = ours.update(g, s, a)
            a = gx.apply_updates(a, u)
            with jax.numpy_dtype_promotion("standard"):
                v, t = theirs.update(g, t, b)
                b = optax.apply_updates(b, v)
            np.testing.assert_allclose(a.fast["w"], b.fast["w"], rtol=1e-5, atol=1e-6)
            np.testing.assert_allclose(a.slow["w"], b.slow["w"], rtol=1e-5, atol=1e-6)
        assert isinstance(u, gx.LookaheadParams)

    def test_optaxs_pair_works_too_and_equals_the_drop_in(self):
        tree = params()
        tx = gx.lookahead(gx.sgd(0.1, 0.9), 3, 0.3, reset_state=True)
        pair, plain = optax.LookaheadParams.init_synced(tree), tree
        s, t = tx.init(pair), tx.init(plain)
        for g in gradients(tree, 7):
            u, s = tx.update(g, s, pair)
            pair = gx.apply_updates(pair, u)
            v, t = tx.update(g, t, plain)
            plain = gx.apply_updates(plain, v)
            np.testing.assert_allclose(pair.fast["w"], plain["w"], rtol=1e-5, atol=1e-6)
            np.testing.assert_allclose(pair.slow["w"], t.slow["w"], rtol=1e-5, atol=1e-6)

    def test_a_nan_in_the_fast_state_does_not_survive_a_reset(self):
        tree = params()
        tx = gx.lookahead(gx.sgd(0.1, 0.9), 1, 0.3, reset_state=True)
        bad = jax.tree.map(lambda p: jnp.full_like(p, jnp.nan), tree)
        _, state = tx.update(bad, tx.init(tree), tree)
        assert all(np.all(np.isfinite(x)) for x in jax.tree.leaves(state.fast_state))


def test_zero_nans_remembers_where():
    tree = {"a": jnp.asarray([1.0, jnp.nan]), "b": jnp.ones(2)}
    tx = gx.zero_nans()
    updates, state = tx.update(tree, tx.init(tree))
    np.testing.assert_array_equal(updates["a"], [1.0, 0.0])
    assert bool(state.found_nan["a"]) and not bool(state.found_nan["b"])


def test_parameters_stay_nonnegative():
    tree = {"a": jnp.asarray([0.1, 2.0, 0.0])}
    tx = gx.chain(gx.sgd(1.0), gx.keep_params_nonnegative())
    updates, _ = tx.update({"a": jnp.asarray([1.0, 1.0, -1.0])}, tx.init(tree), tree)
    np.testing.assert_allclose(gx.apply_updates(tree, updates)["a"], [0.0, 1.0, 1.0])


def test_complex_parameters_are_clipped_and_updated():
    tree = {"z": jnp.asarray([1.0 + 2.0j, -0.5j])}
    g = {"z": jnp.asarray([0.3 - 0.4j, 1.0 + 0.0j])}
    tx = gx.chain(gx.clip_by_global_norm(10.0), gx.adam(0.1))
    state = tx.init(tree)
    assert state[1][0].nu["z"].dtype == jnp.float32
    updates, state = tx.update(g, state, tree)
    np.testing.assert_allclose(updates["z"], -0.1 * np.asarray(g["z"]) / np.abs(g["z"]), rtol=1e-5)
    with pytest.raises(TypeError, match=r"scale_by_rprop.*complex64"):
        gx.scale_by_rprop(0.1).update(g, gx.scale_by_rprop(0.1).init(tree))


def test_float64_leaves_keep_float64_updates_and_slots():
    with jax.enable_x64(True):
        tree = {"w": jnp.asarray([1.0, 2.0], jnp.float64), "v": jnp.ones(3, jnp.float32)}
        tx = gx.chain(gx.clip_by_global_norm(1.0), gx.adamw(gx.linear_schedule(0.1, 0.0, 5)))
        state = tx.init(tree)
        updates, state = tx.update(tree, state, tree)
        assert updates["w"].dtype == jnp.float64 and updates["v"].dtype == jnp.float32
        assert state[1][0].mu["w"].dtype == jnp.float64


@settings(max_examples=100)
@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 1)), max_size=60))
def test_chunks_hold_every_leaf_once(leaves):
    """And equal layers share one kind of chunk."""
    keys, places = [k for k, _ in leaves], [place for _, place in leaves]
    chunks = list(chunked(keys, places))
    assert sorted(i for chunk in chunks for i in chunk.indices) == list(range(len(keys)))
    for chunk in chunks:
        assert len({places[i] for i in chunk.indices}) == 1
    layers = list(chunked(keys * 4))
    kinds = {tuple(sorted(keys[i % len(keys)] for i in chunk.indices)) for chunk in layers}
    assert len(kinds) <= max(1, 2 * len(set(keys)))


def test_equal_layers_are_divided_into_chunks_of_whole_layers():
    layer = ["kernel", "bias", "scale", "bias"]
    chunks = [[(layer * 12)[i] for i in chunk.indices] for chunk in chunked(layer * 12)]
    assert all(sorted(chunk) == sorted(layer * 2) for chunk in chunks) and len(chunks) == 6


def test_a_rule_is_traced_once_per_signature():
    """Twenty leaves of two shapes are traced twice, eagerly and in a step."""
    traced = []

    @gx.transform
    class count_traces(gx.ArrayRule):
        locality = "entry"

        def rule(self, g, p):
            traced.append(g.shape)
            return g

    tree = {f"{i}": jnp.ones((3 + i % 2, 5)) for i in range(20)}
    tx = count_traces()
    tx.update(tree, tx.init(tree), tree)
    assert sorted(traced) == [(3, 5), (4, 5)]
    jax.jit(tx.update)(tree, tx.init(tree), tree)
    assert len(traced) == 2
    tx.update(tree, tx.init(tree), tree)
    assert len(traced) == 2


@pytest.mark.parametrize(
    "name, kwargs",
    [
        ("sgd", {"momentum": 0.9, "nesterov": True}),
        ("adam", {}),
        ("adamw", {"weight_decay": 0.1}),
        ("nadam", {}),
        ("nadamw", {}),
        ("amsgrad", {}),
        ("rmsprop", {"momentum": 0.9}),
        ("rmsprop", {"centered": True, "eps": 1e-3}),
        ("adagrad", {}),
        ("lion", {}),
        ("lamb", {"weight_decay": 0.1}),
        ("lars", {"weight_decay": 0.1}),
        ("signum", {}),
    ],
    ids=str,
)
def test_thirty_steps_equal_those_of_optax(name, kwargs):
    """30 steps beside Optax: within 1e-5 of the movement."""
    ours, theirs = getattr(gx, name)(0.01, **kwargs), getattr(optax, name)(0.01, **kwargs)
    start = {"w": params()["w"], "b": params()["b"]}
    a, b = start, start
    s = ours.init(a)
    update = jax.jit(ours.update)
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        t = theirs.init(b)
        their_update = jax.jit(theirs.update)
    for g in gradients(start, 30):
        u, s = update(g, s, a)
        a = gx.apply_updates(a, u)
        with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
            v, t = their_update(g, t, b)
            b = optax.apply_updates(b, v)
    for x, y, first in zip(*map(jax.tree.leaves, (a, b, start)), strict=True):
        np.testing.assert_allclose(x, y, rtol=0, atol=1e-5 * np.max(np.abs(y - first)) + 3e-7)


def test_state_classes_and_fields_equal_optaxs():
    tree = params()
    for name in ("adam", "amsgrad", "lion", "sgd"):
        kwargs = {"momentum": 0.9} if name == "sgd" else {}
        ours = getattr(gx, name)(0.1, **kwargs).init(tree)[0]
        theirs = getattr(optax, name)(0.1, **kwargs).init(tree)[0]
        assert type(ours).__name__ == type(theirs).__name__
        assert type(ours)._fields == type(theirs)._fields


def test_complex_noise_has_the_variance_of_real_noise():
    """The mean of |z|^2 is eta / t^gamma, the same in both directions."""
    zeros = {"w": jnp.zeros(20_000, jnp.complex64)}
    tx = gx.add_noise(0.25, 0.5, 3)
    noise, state = tx.update(zeros, tx.init(zeros))
    second, _ = tx.update(zeros, state)
    for u, variance in ((noise["w"], 0.25), (second["w"], 0.25 / 2**0.5)):
        assert u.dtype == jnp.complex64
        np.testing.assert_allclose(np.mean(np.abs(u) ** 2), variance, rtol=0.05)
        np.testing.assert_allclose(np.mean(u.real**2), np.mean(u.imag**2), rtol=0.1)


def test_galore_keeps_adams_first_moment_in_a_dtype():
    params = {"w": jnp.ones((4, 3)), "b": jnp.ones(3)}
    moments = gx.galore(0.1, 2, mu_dtype="bfloat16").init(params)[0].base_optimizer_state
    assert {x.dtype for x in jax.tree.leaves(moments.mu)} == {jnp.dtype(jnp.bfloat16)}
    assert {x.dtype for x in jax.tree.leaves(moments.nu)} == {jnp.dtype(jnp.float32)}
    assert gx.galore(0.1, 2) == gx.galore(0.1, 2, mu_dtype=None)
