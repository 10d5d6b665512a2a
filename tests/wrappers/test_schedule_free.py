"""Schedule-free optimizers: Optax's numbers and states, its gaps filled, and checkpoints."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import optax.contrib
import pytest

import gradxform as gx
import gradxform.distributed as gd
from tests import references as ref
from tests.catalogue import gradients, params
from tests.interop.test_parity_contrib import TREE, normal, walk as walk_beside_optax
from tests.wrappers.test_average import check, path_of, walk, wide

pytestmark = pytest.mark.numeric

CLIMB = (0.0, 0.5, 10)
ROWS = {
    "sgd": lambda lib: lib.schedule_free_sgd(),
    "sgd/all": lambda lib: lib.schedule_free_sgd(0.5, 10, 0.7, 0.1, 1.5),
    "adamw": lambda lib: lib.schedule_free_adamw(0.1),
    "adamw/all": lambda lib: lib.schedule_free_adamw(0.1, 5, 0.95, 0.9, 1e-3, 0.1, 0.0),
    "adam": lambda lib: lib.schedule_free(
        (optax if lib is optax.contrib else gx).adam(0.1, b1=0.0), 0.1
    ),
    "schedule": lambda lib: lib.schedule_free(
        (optax if lib is optax.contrib else gx).sgd(optax.linear_schedule(*CLIMB)),
        optax.linear_schedule(*CLIMB),
        b1=0.8,
    ),
}


@pytest.mark.parametrize("make", [gx.schedule_free_sgd, gx.schedule_free_adamw])
def test_a_warm_up_multiplies_a_schedule(make):
    tree, grads = normal(0), normal(1, lead=(12,))
    rates = 0.2, gx.constant_schedule(0.2), gx.linear_schedule(0.0, 0.2, 5)
    numbers, constant, warm = (
        walk_beside_optax(make(rate, warmup), tree, grads)[0]
        for rate, warmup in zip(rates, (5, 5, None), strict=True)
    )
    for k in TREE:
        for path in (constant, warm):
            np.testing.assert_allclose(path[k], numbers[k], atol=1e-6)


@pytest.mark.parametrize("name", ROWS)
def test_steps_and_averages_are_those_of_optax(name):
    ours, theirs = ROWS[name](gx.contrib), ROWS[name](optax.contrib)
    tree, grads = normal(0), normal(1, lead=(30,))
    path, state = walk_beside_optax(ours, tree, grads)
    expected, their_state = walk_beside_optax(theirs, tree, grads)
    path, expected, start = (jax.tree.map(np.asarray, x) for x in (path, expected, tree))
    for k in TREE:
        size = np.max(np.abs(expected[k] - start[k]))
        np.testing.assert_allclose(path[k], expected[k], rtol=0, atol=2e-5 * size)
    at = jax.tree_util.tree_flatten_with_path(state)[0]
    their_at = jax.tree_util.tree_flatten_with_path(their_state)[0]
    assert [jax.tree_util.keystr(k) for k, _ in at] == [
        jax.tree_util.keystr(k) for k, _ in their_at
    ]
    for (_, x), (_, y) in zip(at, their_at, strict=True):
        assert x.shape == y.shape and x.dtype == y.dtype
        np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-5 * np.max(np.abs(y), initial=1))
    end = {k: x[-1] for k, x in expected.items()}
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        average = optax.contrib.schedule_free_eval_params(their_state, end)
    ours_of_theirs = gx.schedule_free_eval_params(their_state, end)
    for k in TREE:
        size = np.max(np.abs(average[k] - start[k]))
        got = gx.eval_params(state, {k: x[-1] for k, x in path.items()})[k]
        np.testing.assert_allclose(got, average[k], rtol=0, atol=2e-5 * size)
        np.testing.assert_allclose(ours_of_theirs[k], average[k], rtol=0, atol=2e-5 * size)


REFERENCE = ref.schedule_free(ref.scale(-0.1), 0.1, 0.8)
FREE = gx.schedule_free_sgd(0.1, b1=0.8)


def test_the_average_and_the_point_of_the_base_follow_the_reference():
    tree = params()
    grads = gradients(tree, 7)
    ours, theirs = walk(FREE, tree, grads), path_of(REFERENCE, tree, grads)
    for (p, state), (expected, (_, xs, zs, _, _)) in zip(ours, theirs, strict=True):
        check(p, expected)
        check(state.z, zs)
        check(gx.eval_params(state, p), xs, 5e-6)


@pytest.mark.parametrize("swapped", [False, True])
def test_a_restored_run_goes_on(swapped):
    """Also if what was saved had the average in the place of the parameters."""
    tree = params()
    grads = gradients(tree, 7)
    _, *_, (p, state) = walk(FREE, tree, grads[:4])
    if swapped:
        p, state = gx.swap(state, p)
    leaves, treedef = jax.tree.flatten((p, state))
    saved = [np.array(x) for x in leaves]
    p, state = jax.tree.unflatten(treedef, map(jnp.asarray, saved))
    if swapped:
        p, state = gx.swap(state, p)
    for g in grads[4:]:
        updates, state = FREE.update(g, state, p)
        p = gx.apply_updates(p, updates)
    (expected, (_, xs, _, _, _)) = path_of(REFERENCE, tree, grads)[-1]
    check(p, expected, 5e-6)
    check(gx.eval_params(state, p), xs, 5e-6)


def test_a_run_that_goes_on_with_another_b1_keeps_its_average():
    tree = params()
    grads = gradients(tree, 3)
    *_, (p, state) = walk(FREE, tree, grads)
    assert np.any(state.z["w"] != p["w"])  # after the first step x, y and z are one
    before = gx.eval_params(state, p)
    other = gx.schedule_free(gx.scale(0.0), 0.0, b1=0.5)  # the base does not move
    _, state_of_other = other.init(p), other.init(p)
    state = state._replace(base_optimizer_state=state_of_other.base_optimizer_state)
    updates, after = other.update(grads[2], state._replace(weight_sum=jnp.float32(1e9)), p)
    p = gx.apply_updates(p, updates)
    assert float(after.b1) == 0.5
    check(gx.eval_params(after, p), wide(before), 5e-6)
    check(p, [(x + z) / 2 for x, z in zip(wide(before), wide(after.z), strict=True)], 5e-6)


def test_averages_of_16_bits_go_on_moving():
    """In bfloat16, 1 + 2e-3 is 1: an average computed from the parameters would stand still."""
    tree = {"w": jnp.zeros(4, jnp.bfloat16)}
    grads = np.random.default_rng(0).normal(size=(300, 4)).astype(np.float32) - 1
    tx = gx.schedule_free_sgd(1e-2)
    state = tx.init(tree)
    assert type(state) is gx.ScheduleFreeWithXState
    assert {x.dtype for x in jax.tree.leaves((state.x, state.z, state.weight_sum))} == {
        jnp.dtype(jnp.float32)
    }
    (p, state) = walk(tx, tree, [{"w": jnp.asarray(g)} for g in grads])[-1]
    reference = ref.schedule_free(ref.scale(-1e-2), 1e-2)
    path = path_of(reference, {"w": np.zeros(4)}, [{"w": g} for g in grads])
    (expected, (_, [x], [z], _, _)) = path[-1]
    np.testing.assert_allclose(state.x["w"], x, rtol=1e-4)
    np.testing.assert_allclose(state.z["w"], z, rtol=1e-4)
    np.testing.assert_allclose(np.asarray(p["w"], np.float64), expected[0], rtol=2**-7)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_parameters_and_average_move_together(dtype):
    """What something else does to the parameters happens to x and z, too."""
    tree = jax.tree.map(lambda p: p.astype(dtype), params())
    (p, state), *_ = walk(FREE, tree, gradients(tree, 1))
    new = jax.tree.map(lambda x: x + 2, p)
    moved = FREE.moved(state, p, new)
    step = [a - b for a, b in zip(wide(new), wide(p), strict=True)]
    for field in ("z", "x")[: 1 + (dtype == jnp.bfloat16)]:
        got, old = getattr(moved, field), getattr(state, field)
        check(got, [o + s for o, s in zip(wide(old), step, strict=True)], 5e-6)
    average = [x + s for x, s in zip(wide(gx.eval_params(state, p)), step, strict=True)]
    check(gx.eval_params(moved, new), average, 2e-2 if dtype == jnp.bfloat16 else 5e-6)


def test_lookahead_may_pull_it_back():
    tree = params()
    tx = gx.lookahead(FREE, 1, 0.5)
    g = gradients(tree, 1)[0]
    u, state = tx.update(g, tx.init(tree), tree)
    free_u, free = FREE.update(g, FREE.init(tree), tree)
    check(u, [x / 2 for x in wide(free_u)])
    pulled = [z - u / 2 for z, u in zip(wide(free.z), wide(free_u), strict=True)]
    check(state.fast_state.z, pulled)


def test_replicas_have_averages_of_their_own():
    """Where replicas exchange parameters, each one's z moves along with them."""
    r = gd.Replicas("replica", n=2, mode="vmap")
    tx = gd.model_average(gx.schedule_free_sgd(0.5), "replica", period=2)
    params = r.replicate({"w": jnp.ones(3)})
    state = r.wrap(tx.init)(params)
    step = r.wrap(tx.step)
    for _ in range(2):
        grads = r.place({"w": np.asarray([[1.0] * 3, [0.0] * 3], np.float32)})
        params, state = step(grads, state, params)
    np.testing.assert_array_equal(params["w"][0], params["w"][1])
    average = gx.eval_params(state, params)
    jax.tree.map(np.testing.assert_array_equal, gx.swap(*gx.swap(state, params)[::-1])[0], params)
    alone = jax.tree.map(lambda x: x[0], (state.inner, params))
    np.testing.assert_allclose(average["w"][0], gx.eval_params(*alone)["w"], rtol=1e-6)
    # One z has gone from 1 to 0, the other has stayed, and the exchange keeps their mean.
    np.testing.assert_allclose(np.mean(state.inner.z["w"], 0), 0.5, rtol=1e-6)


def test_masters_inside_follow_the_parameters():
    """The base optimizer moves z; a copy inside it must go where the parameters go."""
    tree = {"w": jnp.ones(3, jnp.bfloat16)}
    tx = gx.schedule_free(gd.zero1(gx.sgd(0.25), "data"), 0.25, 0.5)

    def steps(_):
        p, state = tree, tx.init(tree)
        for _ in range(3):
            updates, state = tx.update({"w": jnp.ones(3, jnp.bfloat16)}, state, p)
            p = gx.apply_updates(p, updates)
        return p, state

    p, state = jax.vmap(steps, axis_name="data")(jnp.zeros(1))
    np.testing.assert_allclose(
        np.asarray(state.base_optimizer_state.master["w"]),
        np.asarray(p["w"], np.float32),
        atol=5e-3,
    )


def test_a_learning_rate_of_zero_at_first_averages_nothing():
    tree = {"w": jnp.ones(2)}
    rising = gx.linear_schedule(0.0, 0.2, 2)
    tx = gx.schedule_free(gx.sgd(lambda n: rising(n + 1)), lambda n: rising(n - 1))
    (p, state), *_ = walk(tx, tree, [tree])
    assert float(state.weight_sum) == 0.0
    np.testing.assert_allclose(gx.eval_params(state, p)["w"], 1.0, rtol=1e-6)


def test_a_live_b1_is_kept_with_the_state():
    tree = params()
    tx = gx.inject_hyperparams(gx.schedule_free_sgd)(0.1, b1=0.8)
    state = tx.init(tree)
    g = gradients(tree, 1)[0]
    u, after = tx.update(g, state, tree)
    check(u, wide(FREE.update(g, FREE.init(tree), tree)[0]))
    assert float(after.inner_state.b1) == np.float32(0.8)


def test_optax_gives_nan_for_a_b1_of_zero_and_we_refuse_it():
    tree = {"w": jnp.ones(2)}
    tx = optax.contrib.schedule_free_sgd(0.1, b1=0.0)
    updates, _ = tx.update(tree, tx.init(tree), tree)
    assert bool(jnp.isnan(updates["w"]).all())
    with pytest.raises(ValueError, match=r"schedule_free: b1 must be in \(0, 1\], got 0\.0"):
        gx.schedule_free_sgd(0.1, b1=0.0)
    free = gx.schedule_free_sgd(0.1, b1=1.0)
    updates, _ = free.update(tree, free.init(tree), tree)
    np.testing.assert_allclose(updates["w"], -0.1, rtol=1e-6)


def test_rows_are_refused():
    rows = {"w": gx.RowSparse([0], jnp.ones((1, 2)), 3)}
    tree = {"w": jnp.ones((3, 2))}
    with pytest.raises(TypeError, match=r"schedule_free: moves every row towards.*densify"):
        FREE.update(rows, FREE.init(tree), tree)


def test_the_state_converts_to_optax_and_back():
    tree = params()
    (p, state), *_ = walk(FREE, tree, gradients(tree, 1))
    theirs = gx.to_optax_state(FREE, state, p)
    assert type(theirs).__module__.startswith("optax")
    again = gx.from_optax_state(FREE, theirs, p)
    jax.tree.map(np.testing.assert_array_equal, again, state)
    assert type(gx.as_optax(FREE).init(tree)).__module__.startswith("optax")
