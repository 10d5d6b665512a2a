"""Recipes for tables, on row-sparse gradients: lazy Adam, with and without catching up; Adagrad."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradxform as gx
from tests import references as ref

pytestmark = pytest.mark.numeric

N, D, BATCH, STEPS = 9, 3, 6, 12
# What users get, and tests do not: without it, a root is not the same in every place of an array.
OPTIMIZED = {"xla_backend_optimization_level": 3, "xla_llvm_disable_expensive_passes": False}


def table(dtype=jnp.float32):
    return jnp.asarray(np.random.default_rng(0).normal(size=(N, D)), dtype)


@functools.cache
def batches(steps=STEPS, dtype=jnp.float32):
    """Rows that repeat, in any order, with padding and gradients of zero; row 0 stays out."""
    rng = np.random.default_rng(1)
    rows = rng.integers(1, N + 1, size=(steps, BATCH))  # N is padding
    rows[1::2] = np.where(rows[1::2] > 4, rows[1::2] % 2 + 1, rows[1::2])  # so that others wait
    values = rng.normal(size=(steps, BATCH, D))
    values[::3, 2] = 0
    return jnp.asarray(rows, jnp.int32), jnp.asarray(values, dtype)


def sparse(batch):
    rows, values = batch
    return gx.RowSparse(rows, values, N)


def runner(tx):
    """The jitted step of `tx` on a table: `(params, state, batch) -> (params, state)`."""

    @jax.jit
    def step(params, state, batch):
        updates, state = tx.update(sparse(batch), state, params)
        return gx.apply_updates(params, updates), state

    return step


def scanned(tx, params, rows, values, last=None):
    """The table after all batches and, if given, one more gradient."""

    @jax.jit
    def run(params, batch):
        def step(carry, batch):
            params, state = carry
            updates, state = tx.update(sparse(batch), state, params)
            return (gx.apply_updates(params, updates), state), None

        (params, state), _ = jax.lax.scan(step, (params, tx.init(params)), batch)
        if last is not None:
            updates, state = tx.update(last, state, params)
            params = gx.apply_updates(params, updates)
        return params, state

    return run(params, (rows, values))


# ------------------------------------------------------------------------------ the touched rows


ADAM = ref.adam(0.9, 0.999, 1e-8)
CATCHING_UP = ref.adam_catching_up(0.9, 0.999, 1e-8)
DOWN = ref.scale(-0.1)
FALLING = gx.linear_schedule(0.5, 0.1, 4)
RULES = {
    "lazy_adam": (gx.lazy_adam(0.1), ref.sequence(ADAM, DOWN)),
    "lazy_adamw": (
        gx.lazy_adamw(0.1, eps=0.1, weight_decay=0.2),
        ref.sequence(ref.adam(0.9, 0.999, 0.1), ref.decay(0.2), DOWN),
    ),
    "lazy_adam catching up": (
        gx.lazy_adam(0.1, catch_up=True),
        ref.sequence(CATCHING_UP, DOWN),
    ),
    "lazy_adam catching up, other numbers": (
        gx.lazy_adam(0.1, 0.8, 0.9, 0.1, 0.2, catch_up=True),
        ref.sequence(ref.adam_catching_up(0.8, 0.9, 0.1, 0.2), DOWN),
    ),
    "lazy_adam catching up without momentum": (
        gx.lazy_adam(0.1, b1=0.0, catch_up=True),
        ref.sequence(ref.adam_catching_up(0.0, 0.999, 1e-8), DOWN),
    ),
    "lazy_adamw catching up": (
        gx.lazy_adamw(FALLING, weight_decay=0.2, catch_up=True),
        ref.sequence(
            CATCHING_UP,
            ref.decay(0.2),
            ref.scale(lambda n: -(0.5 - 0.1 * min(n, 4))),
        ),
    ),
    "sparse_adagrad": (gx.sparse_adagrad(0.1), ref.sequence(ref.adagrad(0.1, 1e-7), DOWN)),
    "rowwise_adagrad": (
        gx.rowwise_adagrad(0.1),
        ref.sequence(ref.rowwise_adagrad(0.0, 1e-8), DOWN),
    ),
}


@pytest.mark.parametrize("name", RULES)
def test_a_recipe_follows_its_reference_on_touched_rows_and_leaves_the_others_alone(name):
    tx, reference = RULES[name]
    params = table()
    wide = np.asarray(params, np.float64)
    theirs, step, state = ref.on_rows(reference, wide), runner(tx), tx.init(params)
    for t, batch in enumerate(zip(*batches(), strict=True), 1):
        before = params, state
        params, state = step(params, state, batch)
        np.testing.assert_allclose(params, theirs(*batch, t), rtol=0, atol=3e-6, err_msg=f"{t}")
        others = np.setdiff1d(np.arange(N), batch[0])
        assert 0 in others
        for new, old in zip(*map(jax.tree.leaves, ((params, state), before)), strict=True):
            if new.ndim:
                np.testing.assert_array_equal(new[others], old[others])


def test_a_recipe_runs_in_a_scan_and_in_donated_buffers():
    tx = gx.lazy_adamw(0.1, catch_up=True)
    step = jax.jit(runner(tx), donate_argnums=(0, 1))
    params = table()
    state = tx.init(params)
    for batch in zip(*batches(), strict=True):
        given = params, *(x for x in jax.tree.leaves(state) if x.ndim)
        params, state = step(params, state, batch)
        assert all(x.is_deleted() for x in given)
    together, _ = scanned(tx, table(), *batches())
    np.testing.assert_allclose(params, together, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", ["lazy_adam catching up", "rowwise_adagrad"])
def test_touching_rows_of_a_slot_does_not_copy_it(name):
    tx, rows = RULES[name][0], 10**5
    params = jnp.zeros((rows, 2))
    g = gx.RowSparse(jnp.arange(3), jnp.ones((3, 2)), rows)
    update = jax.jit(tx.update, donate_argnums=1, compiler_options=OPTIMIZED)
    memory: Any = update.lower(g, tx.init(params), params).compile().memory_analysis()
    assert memory.temp_size_in_bytes < rows


def test_a_table_in_bfloat16_has_wide_slots():
    tx = gx.lazy_adam(0.1, catch_up=True)
    params = table(jnp.bfloat16)
    rows, values = batches(dtype=jnp.bfloat16)
    new, state = scanned(tx, params, rows, values)
    assert new.dtype == jnp.bfloat16
    assert {x.dtype for x in jax.tree.leaves(state)} <= {jnp.dtype("float32"), jnp.dtype("int32")}
    wide, _ = scanned(tx, params.astype(jnp.float32), rows, values.astype(jnp.float32))
    np.testing.assert_allclose(new.astype(jnp.float32), wide, atol=0.05)


def test_a_mask_keeps_a_table_from_decaying():
    params = {"table": table(), "dense": jnp.ones(2)}
    batch = jax.tree.map(lambda x: x[0], batches())
    grads = {"table": sparse(batch), "dense": jnp.ones(2)}
    tx = gx.lazy_adamw(0.1, weight_decay=0.5, mask=gx.path_matches("dense"), catch_up=True)
    plain = gx.lazy_adam(0.1, catch_up=True)
    ours, _ = tx.update(grads, tx.init(params), params)
    theirs, _ = plain.update(grads, plain.init(params), params)
    np.testing.assert_array_equal(ours["table"].to_dense(), theirs["table"].to_dense())
    np.testing.assert_allclose(ours["dense"], theirs["dense"] - 0.05, rtol=1e-6, atol=1e-6)


def test_hyperparameters_can_be_injected_and_changed():
    tx = gx.inject_hyperparams(gx.lazy_adamw)(FALLING, weight_decay=0.2, catch_up=True)
    ours, state = scanned(tx, table(), *batches())
    theirs, _ = scanned(RULES["lazy_adamw catching up"][0], table(), *batches())
    np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)
    # What is only known in a run cannot be refused, but is no NaN.
    adam, *others = state.inner_state
    state = state._replace(
        hyperparams=state.hyperparams | {"b1": 0.99, "b2": 0.9},
        inner_state=(adam._replace(count=jnp.asarray(10**4, jnp.int32)), *others),
    )
    updates, _ = tx.update(sparse(jax.tree.map(lambda x: x[0], batches())), state, ours)
    assert jnp.all(jnp.isfinite(updates.values))


def test_recipes_round_trip_through_configs():
    for tx in (gx.lazy_adam(0.1, catch_up=True), gx.rowwise_adagrad(0.1), gx.sparse_adagrad(0.1)):
        assert gx.from_json(gx.to_json(tx)) == tx
    assert gx.lazy_adam(0.1) == gx.adam(0.1)
    assert gx.sparse.lazy_adam is gx.lazy_adam


# --------------------------------------------------------------------------------------- Adagrad


@pytest.mark.parametrize(
    "tx, dense",
    [
        (gx.sparse_adagrad(0.1), gx.adagrad(0.1)),
        (gx.sparse_adagrad(FALLING, 0.0, 0.0), gx.adagrad(FALLING, 0.0, 0.0)),
    ],
    ids=["plain", "from zero"],
)
def test_sparse_adagrad_equals_adagrad_on_the_dense_gradient_to_the_last_bit(tx, dense):
    ours = theirs = table()
    state, their_state = tx.init(ours), dense.init(theirs)
    update, their_update = (jax.jit(t.update, compiler_options=OPTIMIZED) for t in (tx, dense))
    for batch in zip(*batches(20), strict=True):
        g = sparse(batch)
        updates, state = update(g, state, ours)
        their_updates, their_state = their_update(g.to_dense(), their_state, theirs)
        ours, theirs = gx.apply_updates(ours, updates), gx.apply_updates(theirs, their_updates)
        jax.tree.map(np.testing.assert_array_equal, (ours, state), (theirs, their_state))


def test_rowwise_adagrad_equals_itself_on_the_dense_gradient():
    tx, ours = gx.rowwise_adagrad(0.1), table()
    theirs, state, their_state = ours, tx.init(ours), tx.init(ours)
    update = jax.jit(tx.update)
    for batch in zip(*batches(20), strict=True):
        g = sparse(batch)
        updates, state = update(g, state, ours)
        their_updates, their_state = update(g.to_dense(), their_state, theirs)
        ours, theirs = gx.apply_updates(ours, updates), gx.apply_updates(theirs, their_updates)
    np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)


def test_rowwise_adagrad_has_one_sum_for_each_row():
    params = {"k": jnp.ones((5, 2, 3)), "b": jnp.ones(4), "s": jnp.ones(()), "e": jnp.ones((2, 0))}
    tx = gx.scale_by_rowwise_rss(0.0, 0.0)
    state = tx.init(params)
    assert {k: s.shape for k, s in state.sum_of_squares.items()} == {
        "k": (5,),
        "b": (4,),
        "s": (),
        "e": (2,),
    }
    updates, _ = tx.update(jax.tree.map(jnp.zeros_like, params), state)
    assert all(bool(jnp.all(u == 0)) for u in jax.tree.leaves(updates))
    updates, _ = tx.update(jax.tree.map(lambda p: 2 * p, params), state)
    assert all(bool(jnp.all(u == 1)) for u in jax.tree.leaves(updates))


# ----------------------------------------------------------------------------------- catching up


def distance(a, b):
    return float(jnp.linalg.norm(a - b) / jnp.linalg.norm(b - table()))


def test_catching_up_comes_close_to_dense_adam():
    rng, steps = np.random.default_rng(2), 100
    odds = 1 / np.arange(1, N + 1) ** 1.5
    rows = jnp.asarray(rng.choice(N, size=(steps, 2), p=odds / odds.sum()), jnp.int32)
    values = jnp.asarray(rng.normal(0.5, 1, size=(steps, 2, D)), jnp.float32)
    every = gx.chain(gx.densify(), gx.adam(0.01))
    ends = {}
    for last in (None, jnp.zeros((N, D))):
        dense, lazy, caught = (
            scanned(tx, table(), rows, values, last)[0]
            for tx in (every, gx.lazy_adam(0.01), gx.lazy_adam(0.01, catch_up=True))
        )
        ends[last is None] = distance(lazy, dense), distance(caught, dense)
    # As the run ends, some coasting is left to come; a last gradient of zeros brings it about.
    lazy, caught = ends[True]
    assert lazy > 0.25 and caught < 0.6 * lazy, ends
    lazy, caught = ends[False]
    assert lazy > 0.2 and caught < 0.1 * lazy and caught < 0.03, ends


def caught(tx, m, v, last, count):
    """Return the update for a gradient of 0, and the state, of a row with that past."""
    state = gx.ScaleByAdamCatchingUpState(
        count=jnp.asarray(count - 1, jnp.int32),
        mu=jnp.asarray([m], jnp.float32),
        nu=jnp.asarray([v], jnp.float32),
        last_touched=jnp.asarray([last], jnp.int32),
    )
    return tx.update(jnp.zeros((1, len(m))), state)


def missed(tx, m, v, last, count):
    """The sum of dense Adam's updates without a gradient after step `last`, up to `count`."""
    total, m, v = 0.0, np.array(m), np.array(v)
    for t in range(last + 1, count + 1):
        m, v = tx.b1 * m, tx.b2 * v
        root = np.sqrt(v / (1 - tx.b2**t) + tx.eps_root)
        total = total + m / (1 - tx.b1**t) / (root + tx.eps)
    return total, m, v


PAST = ([0.3, -2.0, 1e-4], [0.5, 4.0, 1e-6])


@pytest.mark.parametrize("k", [0, 1, 2, 7, 60, 5000])
def test_coasting_is_exact_where_corrections_are_constant(k):
    tx = gx.scale_by_adam_catching_up(eps=0.0)
    last, count = 10**6, 10**6 + k + 1
    updates, state = caught(tx, *PAST, last, count)
    total, m, v = missed(tx, *PAST, last, count)
    np.testing.assert_allclose(updates[0], total, rtol=2e-5)
    np.testing.assert_allclose(state.mu[0], m, rtol=2e-5, atol=1e-37)
    np.testing.assert_allclose(state.nu[0], v, rtol=2e-5)
    assert state.last_touched == count


def test_coasting_is_exact_for_one_missed_step_and_close_for_more():
    coarse = gx.scale_by_adam_catching_up(0.9, 0.99, 1e-2, 1e-3)
    tx = gx.scale_by_adam_catching_up()
    for last, rtol in ((1, 0.14), (10, 0.02), (30, 0.003)):
        for part, k, allowed in ((coarse, 1, 1e-5), (tx, 3, rtol), (tx, 100, rtol)):
            updates, _ = caught(part, *PAST, last, last + k + 1)
            total, _, _ = missed(part, *PAST, last, last + k + 1)
            np.testing.assert_allclose(updates[0], total, rtol=allowed)


def test_a_row_touched_at_every_step_follows_adam():
    ours, theirs = gx.scale_by_adam_catching_up(), gx.scale_by_adam()
    params = table()
    state, their_state = ours.init(params), theirs.init(params)
    for values in batches()[1]:
        g = jnp.resize(values, (N, D))
        updates, state = ours.update(g, state)
        expected, their_state = theirs.update(g, their_state)
        np.testing.assert_allclose(updates, expected, rtol=1e-5, atol=1e-6)


def test_a_row_touched_for_the_first_time_does_not_catch_up():
    tx, plain = gx.lazy_adam(0.1, eps=0.0, catch_up=True), gx.lazy_adam(0.1, eps=0.0)
    rows, values = batches()
    _, state = scanned(tx, table(), rows, values)
    _, plain_state = scanned(plain, table(), rows, values)
    g = gx.RowSparse([0], jnp.ones((1, D)), N)
    updates, state = tx.update(g, state, table())
    expected, _ = plain.update(g, plain_state, table())
    np.testing.assert_allclose(updates.values, expected.values, rtol=1e-5)
    assert state[0].last_touched[0] == STEPS + 1
