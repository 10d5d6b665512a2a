"""Parameters of 16 bits or fewer: small steps count, remainders are exact, runs resume."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import serialization

import gradxform as gx
from gradxform.leaves.storage.parameters import Remainder
from gradxform.leaves.storage.rounded import rounded_by_chance

pytestmark = pytest.mark.numeric

KEPT = {
    "masters": lambda tx: gx.master_weights(tx),
    "remainders": lambda tx: gx.master_weights(tx, remainders=True),
    "remainders of 8 bits": lambda tx: gx.master_weights(tx, remainders=8),
    "chance": lambda tx: gx.stochastic_rounding(tx, 0),
    "kahan": lambda tx: gx.kahan(tx),
}
EVERY = pytest.mark.parametrize("name", KEPT)


def steps(tx, params, grads, state=None):
    """The parameters and the state after some steps."""

    def one(carry, g):
        updates, state = tx.update(g, carry[1], carry[0])
        return (gx.apply_updates(carry[0], updates), state), None

    state = tx.init(params) if state is None else state
    stacked = jax.tree.map(lambda *x: jnp.stack(x), *grads)
    return jax.jit(lambda c, g: jax.lax.scan(one, c, g)[0])((params, state), stacked)


def drawn(count, shape=(4, 6), dtype=jnp.float32, seed=0):
    rng = np.random.default_rng(seed)
    return [{"w": jnp.asarray(rng.normal(size=shape), dtype)} for _ in range(count)]


@EVERY
def test_a_thousand_small_steps_arrive(name):
    params, tx = jnp.ones(10_000, jnp.bfloat16), gx.sgd(1.0)
    grads = [jnp.full(10_000, 1e-3)] * 1000
    assert np.all(np.asarray(steps(tx, params, grads)[0]) == 1), "without it, all are lost"
    moved, _ = steps(KEPT[name](tx), params, grads)
    assert moved.dtype == jnp.bfloat16
    assert abs(float(jnp.mean(moved.astype(jnp.float32)))) < 0.01


def some_floats():
    """Random bits, and all upper halves with lower ones that round to each side, or are ties."""
    rng = np.random.default_rng(0)
    upper = np.arange(2**16, dtype=np.uint32) << 16
    edges = [upper | low for low in (0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF)]
    bits = np.concatenate([*edges, rng.integers(0, 2**32, 2**16, dtype=np.uint32)])
    return bits.view(np.float32)


def test_a_bfloat16_and_its_remainder_make_the_float32():
    x = some_floats()
    p, low = jax.jit(Remainder()._parted)(x)
    back = np.asarray(Remainder().wide(p, low))
    number = ~np.isnan(x)
    np.testing.assert_array_equal(back.view(np.uint32)[number], x.view(np.uint32)[number])
    assert np.all(np.isnan(back[~number])) and np.all(np.isnan(np.asarray(p, np.float32)[~number]))
    # The nearest one; of two, the larger in magnitude. XLA for CPUs takes subnormal numbers for 0.
    normal = np.isfinite(x) & (np.abs(x) >= np.finfo(np.float32).tiny)
    tie = (x.view(np.uint32) & 0xFFFF) == 0x8000
    nearest = np.asarray(jnp.asarray(x).astype(jnp.bfloat16), np.float32)
    same = np.asarray(p, np.float32) == nearest
    assert np.all(same[normal & ~tie])
    assert np.all(np.abs(np.asarray(p, np.float32)[normal & tie]) >= np.abs(x[normal & tie]))


def test_the_remainder_of_a_copy_makes_the_copy_again():
    """Also of a tie, which a copy rounds to even: then the last of 24 bits is off by one."""
    x = some_floats()
    x = x[np.isfinite(x) & (np.abs(x) > 1e-30) & (np.abs(x) < 3e38)]
    p = jnp.asarray(x).astype(jnp.bfloat16)
    made = Remainder().wide(p, Remainder().kept(jnp.asarray(x), p))
    np.testing.assert_allclose(made, x, rtol=2**-23, atol=0)


@pytest.mark.parametrize("tx", [gx.adamw(0.05, weight_decay=0.1), gx.sgd(0.3, 0.9)])
@pytest.mark.parametrize("name", ["masters", "remainders"])
def test_copies_are_the_parameters_of_a_float32_run(name, tx):
    first, grads = drawn(1, dtype=jnp.bfloat16)[0], drawn(40, seed=1)
    want, _ = steps(tx, jax.tree.map(lambda p: p.astype(jnp.float32), first), grads)
    got, state = steps(KEPT[name](tx), first, grads)
    copy = state.master["w"]
    if name == "remainders":
        copy = Remainder().wide(got["w"], copy)
    np.testing.assert_array_equal(copy, want["w"])
    np.testing.assert_array_equal(got["w"], want["w"].astype(jnp.bfloat16))


@EVERY
@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16, jnp.float8_e4m3fn, jnp.float8_e5m2])
def test_sums_and_assignments_arrive_at_the_same_parameters(name, dtype):
    if name.startswith("remainders") and dtype != jnp.bfloat16:
        pytest.skip("remainders complete bfloat16 parameters")
    tx, params = KEPT[name](gx.adam(0.05)), drawn(1, dtype=dtype)[0]
    state, theirs = tx.init(params), tx.init(params)
    assigned = added = params
    for g in drawn(8, dtype=dtype, seed=2):
        assigned, state = jax.jit(tx.step)(g, state, assigned)
        updates, theirs = jax.jit(tx.update)(g, theirs, added)
        if dtype in (jnp.bfloat16, jnp.float16):  # others do not add up there
            with jax.numpy_dtype_promotion("standard"):
                by_optax = optax.apply_updates(added, updates)
            np.testing.assert_array_equal(by_optax["w"], assigned["w"])
        added = gx.apply_updates(added, updates)
        np.testing.assert_array_equal(assigned["w"], added["w"])
    assert added["w"].dtype == dtype
    jax.tree.map(np.testing.assert_array_equal, state, theirs)


@EVERY
def test_a_run_resumes_exactly_from_what_was_saved(name):
    tx, params = KEPT[name](gx.adam(0.01)), drawn(1, dtype=jnp.bfloat16)[0]
    grads = drawn(10, dtype=jnp.bfloat16, seed=3)
    want = steps(tx, params, grads)
    half = steps(tx, params, grads[:5])
    saved = serialization.to_bytes(half)
    params, state = serialization.from_bytes(jax.tree.map(jnp.zeros_like, half), saved)
    got = steps(tx, params, grads[5:], state)
    jax.tree.map(np.testing.assert_array_equal, got, want)


@EVERY
def test_a_step_does_not_undo_a_move_of_somebody_else(name):
    tx, params = KEPT[name](gx.sgd(1e-3)), {"w": jnp.ones(4, jnp.bfloat16)}
    g = {"w": jnp.ones(4, jnp.bfloat16)}
    params, state = steps(tx, params, [g] * 3)
    elsewhere = {"w": jnp.full(4, -3.0, jnp.bfloat16)}
    moved, state = steps(tx, elsewhere, [g], state)
    assert np.all(np.abs(np.asarray(moved["w"], np.float32) + 3) < 0.02)


@EVERY
@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_a_parameter_that_is_set_to_zero_stays_there(name, dtype):
    """What pruning sets to 0 does not move by what rounding took before."""
    if name.startswith("remainders") and dtype != jnp.bfloat16:
        pytest.skip("remainders complete bfloat16")
    tx, params = KEPT[name](gx.sgd(1.0)), {"w": jnp.linspace(-4.0, 4.0, 33).astype(dtype)}
    params, state = steps(tx, params, [{"w": jnp.full(33, 3e-4)}] * 3)
    kept = jnp.arange(33, dtype=jnp.int32) % 2 == 0
    pruned = {"w": jnp.where(kept, params["w"], 0)}
    moved, _ = steps(tx, pruned, [{"w": jnp.zeros(33)}], state)
    np.testing.assert_array_equal(np.asarray(moved["w"], np.float32)[~kept], 0)
    after = steps(tx, params, [{"w": jnp.zeros(33)}], state)[0]["w"]
    np.testing.assert_array_equal(moved["w"][kept], after[kept])


@EVERY
@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
@pytest.mark.parametrize("start", [0.6, 1.0, 1.7])
def test_a_parameter_that_is_set_to_any_number_stays_there(name, dtype, start):
    """Also a power of two, to which its lower neighbor is twice as near as the upper one."""
    if name.startswith("remainders") and dtype != jnp.bfloat16:
        pytest.skip("remainders complete bfloat16")
    tx, count = KEPT[name](gx.sgd(1.0)), 64
    params = {"w": jnp.full(count, start, dtype)}
    places = {"w": jnp.linspace(-4e-3, 4e-3, count)}  # all that a rounding may have taken
    _, state = steps(tx, params, [places])
    for number in (0.5, 0.498, 0.99, 1.0, 2.0, -0.5, 1e-4):
        elsewhere = {"w": jnp.full(count, number, dtype)}
        moved, _ = steps(tx, elsewhere, [{"w": jnp.zeros(count)}], state)
        np.testing.assert_array_equal(moved["w"], elsewhere["w"])


def test_eight_bits_are_the_upper_ones_rounded():
    x = some_floats()
    x = jnp.asarray(x[np.isfinite(x) & (np.abs(x) > 1e-30) & (np.abs(x) < 3e38)])
    form = Remainder(8)
    p, low = jax.jit(form._parted)(x)
    assert low.dtype == jnp.uint8
    made = form.wide(p, low)
    np.testing.assert_allclose(made, x, rtol=2.0**-16, atol=0)
    assert np.max(np.abs(np.asarray(made) / np.asarray(x) - 1)) > 2.0**-17
    again = form._parted(made)
    np.testing.assert_array_equal(form.wide(*again), made)  # what is kept does not change
    np.testing.assert_array_equal(np.asarray(form.wide(p, form.kept(made, p))), made)


@pytest.mark.parametrize("x", [np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-40])
@pytest.mark.parametrize("bits", [8, 16])
def test_remainders_of_what_is_not_normal(bits, x):
    form = Remainder(bits)
    with np.errstate(all="ignore"):
        made = form.wide(*form._parted(jnp.float32(x)))
    np.testing.assert_array_equal(made, np.float32(x) if abs(x) > 1e-39 or x != x else made)
    assert np.abs(made) < 1e-37 if abs(x) < 1e-30 else True


def test_a_run_of_eight_bits_stays_near_that_of_float32():
    first, grads = drawn(1, dtype=jnp.bfloat16)[0], drawn(300, seed=1)
    tx = gx.adamw(0.01, weight_decay=0.1)
    want, _ = steps(tx, jax.tree.map(lambda p: p.astype(jnp.float32), first), grads)
    got, state = steps(gx.master_weights(tx, remainders=8), first, grads)
    assert state.master["w"].dtype == jnp.uint8
    copy = Remainder(8).wide(got["w"], state.master["w"])
    # 300 roundings of at most 2^-16 |m|, to either side; one to bfloat16 is off by up to 2^-8.
    np.testing.assert_allclose(copy, want["w"], rtol=0, atol=2.0**-10)
    assert np.any(copy != want["w"])


def test_how_many_bits_there_may_be():
    sgd = gx.sgd(0.1)
    whole = gx.master_weights(sgd, remainders=True)
    assert gx.master_weights(sgd, remainders=16) == whole
    assert repr(whole).endswith("remainders=True)")
    eight = gx.master_weights(sgd, remainders=8)
    assert gx.from_config(gx.to_config(eight)) == eight != whole
    for wrong in (0, 1, 7, 24):
        with pytest.raises(ValueError, match=f"remainders must be False, True, 8 or 16.*{wrong}"):
            gx.master_weights(sgd, remainders=wrong)
    with pytest.raises(TypeError, match="remainders must be"):
        gx.master_weights(sgd, remainders="8")


def test_remainders_of_parameters_that_are_set_to_zero_do_not_matter():
    low = jnp.asarray([0, 1, 0x7FFF, 0x8000, 0xFFFF] * 2, jnp.uint16)
    p = jnp.asarray([0.0] * 5 + [-0.0] * 5, jnp.bfloat16)
    assert np.all(np.abs(Remainder().wide(p, low)) < 1e-40)


def test_a_step_far_down_is_followed():
    """The update of -1 + 1e-6 cannot be added to 1 and end near 1e-6: the copy is where it ends."""
    tx, params = gx.master_weights(gx.sgd(1.0)), jnp.ones(1, jnp.bfloat16)
    params, state = steps(tx, params, [jnp.full(1, 1 - 1e-6)])
    assert 0 < float(params[0]) < 2e-6
    np.testing.assert_array_equal(state.master.astype(jnp.bfloat16), params)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16, jnp.float8_e4m3fn, jnp.float8_e5m2])
def test_chance_has_the_mean_of_the_number(dtype):
    kinds = jnp.finfo(dtype)
    values = [0.3, -1.7, 3.01, float(kinds.smallest_normal) * 0.37, float(kinds.max) * 0.7]
    if dtype == jnp.bfloat16:
        del values[3]  # subnormal numbers are 0 on CPUs
    for i, x in enumerate(values):
        xs = jnp.full(20_000, x, jnp.float32)
        got = np.asarray(rounded_by_chance(xs, jnp.asarray([i, 7], jnp.uint32), dtype), np.float64)
        ends = np.unique(got)
        assert len(ends) <= 2 and ends[0] <= np.float32(x) <= ends[-1]
        assert abs(got.mean() - np.float32(x)) <= 4 * np.ptp(ends) / 2 / 20_000**0.5
    exact = jnp.asarray([0.0, 1.0, -0.5, jnp.inf, -jnp.inf], dtype)
    exact = exact[:3] if not np.isinf(np.asarray(exact, np.float32)[3]) else exact
    again = rounded_by_chance(exact.astype(jnp.float32), jnp.asarray([1, 2], jnp.uint32), dtype)
    np.testing.assert_array_equal(np.asarray(again, np.float32), np.asarray(exact, np.float32))
    assert np.isnan(float(rounded_by_chance(jnp.asarray(jnp.nan), jnp.zeros(2, jnp.uint32), dtype)))


def test_parameters_that_are_alike_are_rounded_apart():
    params = {k: jnp.ones(4000, jnp.bfloat16) for k in "ab"}
    g = jax.tree.map(lambda p: jnp.full(p.shape, -1 / 512, jnp.bfloat16), params)
    moved, _ = steps(gx.stochastic_rounding(gx.sgd(1.0), 0), params, [g])
    assert 0.3 < np.mean(np.asarray(moved["a"]) != np.asarray(moved["b"])) < 0.45


def test_replicas_and_devices_round_alike():
    tx, params = gx.stochastic_rounding(gx.sgd(0.01), 3), drawn(1, (8, 6), jnp.bfloat16)[0]
    grads = drawn(5, (8, 6), jnp.bfloat16, seed=4)
    want, _ = steps(tx, params, grads)
    mesh = jax.make_mesh((2,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
    place = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("x"))
    got, _ = steps(tx, *jax.device_put((params, grads), place))
    np.testing.assert_array_equal(got["w"], want["w"])
    twice = jax.vmap(lambda _: steps(tx, params, grads)[0])(jnp.arange(2))
    np.testing.assert_array_equal(twice["w"][0], twice["w"][1])


@EVERY
def test_mixed_trees_pass_what_is_not_narrow(name):
    if name.startswith("remainders"):
        pytest.skip("remainders complete bfloat16 parameters")
    params = {
        "w": jnp.ones((2, 3), jnp.bfloat16),
        "norm": jnp.ones(3),
        "z": jnp.ones(2, jnp.complex64),
        "none": None,
        "empty": jnp.ones((0, 3), jnp.float16),
    }
    tx = KEPT[name](gx.adam(0.1))
    updates, state = tx.update(params, tx.init(params), params)
    assert updates["none"] is None and updates["norm"].dtype == jnp.float32
    plain, _ = gx.adam(0.1).update(params, gx.adam(0.1).init(params), params)
    np.testing.assert_array_equal(updates["norm"], plain["norm"])
    np.testing.assert_array_equal(updates["z"], plain["z"])
    held_back = {**params, "w": None}
    updates, later = tx.update(held_back, state, params)
    assert updates["w"] is None
    for field in {"master", "lost"} & set(tx.State._fields):
        np.testing.assert_array_equal(getattr(later, field)["w"], getattr(state, field)["w"])


@EVERY
@pytest.mark.parametrize("how", ["added", "assigned"])
def test_only_touched_rows_of_a_table_move(name, how):
    """The numbers are those of a dense gradient, as long as no chance is in them."""
    table = {"w": jnp.asarray(np.random.default_rng(0).normal(size=(9, 4)), jnp.bfloat16)}
    rng, tx = np.random.default_rng(1), KEPT[name](gx.sgd(0.05))
    state, theirs, dense = tx.init(table), tx.init(table), table
    for _ in range(5):
        values = jnp.asarray(rng.normal(size=(3, 4)), jnp.bfloat16)
        rows = gx.RowSparse(jnp.asarray([7, 2, 5]), values, 9)
        if how == "added":
            updates, state = jax.jit(tx.update)({"w": rows}, state, table)
            assert isinstance(updates["w"], gx.RowSparse)
            table = gx.apply_updates(table, updates)
        else:
            table, state = jax.jit(tx.step)({"w": rows}, state, table)
        whole = {"w": jnp.zeros((9, 4), jnp.bfloat16).at[rows.indices].set(values)}
        dense, theirs = tx.step(whole, theirs, dense)
    apart = np.abs(np.asarray(table["w"], np.float32) - np.asarray(dense["w"], np.float32))
    assert np.all(apart[[0, 1, 3, 4, 6, 8]] == 0)
    assert np.max(apart) <= (0.05 if name == "chance" else 0)
    assert np.any(np.asarray(table["w"][2]) != np.asarray(table["w"][3]))
