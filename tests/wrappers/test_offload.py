"""State in the memory of the host: the same numbers, and nothing of it stays on the device."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradxform as gx
import gradxform.distributed as gd
from gradxform.leaves.storage import is_stored
from gradxform.testing import hlo
from gradxform.wrappers import offload
from tests.catalogue import OPTIMIZERS, TRANSFORMS
from tests.distributed.modes import replicas, step_of
from tests.leaves.test_storage import normal, on_eight
from tests.telling import with_new_parts

pytestmark = pytest.mark.numeric

PARAMS = {
    "w": normal((600, 512)),
    "l": normal((4, 128, 128)),
    "b": normal((5000,)),
    "n": normal(()),
}
GRADS = jax.tree.map(lambda x: normal(x.shape, 1), PARAMS)
FORMS = {
    "float32": lambda tx: tx,
    "8 bits": gx.quantize_state,
    "4 bits": lambda tx: gx.quantize_state(tx, 4),
    "chance": lambda tx: gx.state_dtype(tx, stochastic=True, key=0),
    "factored": gx.factor_state,
}
RULES = with_new_parts(
    {
        name: case
        for name, case in (TRANSFORMS | OPTIMIZERS).items()
        if case.examples is None and not case.extra and "/" not in name
    }
)


def kinds(tree):
    return [x.sharding.memory_kind for x in jax.tree.leaves(tree)]


def away(tree):
    return kinds(tree).count("pinned_host")


def assert_same(a, b):
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
            x, y = map(jax.random.key_data, (x, y))
        np.testing.assert_array_equal(x, y)


def steps(tx, state, n=3, jit=jax.jit, params=PARAMS, grads=GRADS):
    update = jit(tx.update)
    for _ in range(n):
        updates, state = update(grads, state, params)
    return updates, state


@pytest.mark.parametrize("name", RULES)
def test_every_rule_that_is_offloaded_computes_the_same_and_the_others_refuse(name):
    case = RULES[name]
    params = case.params()
    try:
        tx = gx.offload_state(case.tx, min_size=0)
        state = jax.jit(tx.init)(params)
    except TypeError as error:
        words = "looks at the whole tree|computes with the slot|which keeps its state itself"
        assert re.search(words, str(error)), error
        return
    where, want = kinds(state), jax.jit(case.tx.init)(params)
    assert_same(state, want)
    step = jax.jit(tx.update)
    for g in case.gradients(params, 2):
        updates, state = step(g, state, params)
        plain, want = case.compiled(g, want, params)
    assert_same((updates, state), (plain, want))
    assert kinds(state) == where and set(kinds(updates)) <= {"device"}


def check_to_rounding(x, y):
    """Require two arrays to be equal, but for what rounds differently in tiles and in whole."""
    x, y = map(np.asarray, (x, y))
    if x.dtype.kind == "f":
        np.testing.assert_allclose(x, y, rtol=1e-6, atol=1e-30)
    else:  # of two codes, the other one may be as near
        assert np.mean(x != y) < 1e-3 and x.dtype == y.dtype


@pytest.mark.parametrize("jit", [jax.jit, lambda f: f], ids=["jit", "eager"])
@pytest.mark.parametrize("name", FORMS)
def test_forms_and_memories_combine_in_either_order(name, jit):
    form = FORMS[name]
    plain = form(gx.adamw(1e-3))
    want = steps(plain, plain.init(PARAMS), jit=jit)
    for tx in (gx.offload_state(plain), form(gx.offload_state(gx.adamw(1e-3)))):
        state = jit(tx.init)(PARAMS)
        before = kinds(state)
        updates, state = steps(tx, state, jit=jit)
        if name.endswith("bits"):
            jax.tree.map(check_to_rounding, (updates, state), want)
        else:
            assert_same((updates, state), want)
        assert kinds(state) == before and before.count("pinned_host") >= 4
        assert away(updates) == 0


def test_what_is_small_or_left_out_stays():
    (state, *_) = gx.offload_state(gx.adam(1.0)).init(PARAMS)
    assert away(state.mu) == 3 and away(state.mu["n"]) == 0 and away(state.count) == 0
    (state, *_) = gx.offload_state(gx.adam(1.0), min_size=6000).init(PARAMS)
    assert away(state.mu["b"]) == 0 and away(state.nu["w"]) == 1
    (state, *_) = gx.offload_state(gx.adam(1.0), which="nu").init(PARAMS)
    assert away(state.mu) == 0 and away(state.nu) == 3
    (state, *_) = gx.offload_state(gx.adam(1.0), which=gx.path_matches("l")).init(PARAMS)
    assert away(state.nu["l"]) == 1 and away(state.nu["w"]) == 0
    (state, *_) = gx.quantize_state(gx.offload_state(gx.adam(1.0))).init(PARAMS)
    assert is_stored(state.mu["w"]) and away(state.mu["w"].codes) == 1
    assert away(state.mu["w"].scales) == 0


def test_the_state_is_a_carry_and_is_donated():
    tx = gx.offload_state(gx.adamw(1e-3))
    state = jax.jit(tx.init)(PARAMS)

    def body(state, _):
        updates, state = tx.update(GRADS, state, PARAMS)
        return state, updates["n"]

    later, _ = jax.jit(lambda s: jax.lax.scan(body, s, length=3))(state)
    # The loops of two programs round in different places.
    for x, y in zip(jax.tree.leaves(later), jax.tree.leaves(steps(tx, state)[1]), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-7)
    assert kinds(later) == kinds(state)

    def step(params, state):
        updates, state = tx.update(GRADS, state, params)
        return gx.apply_updates(params, updates), state

    params = jax.tree.map(jnp.copy, PARAMS)
    new, later = jax.jit(step, donate_argnums=(0, 1))(params, state)
    assert all(x.is_deleted() for x in jax.tree.leaves((params, state)))
    assert away(later) == 6 and away(new) == 0


@pytest.mark.parametrize("shape", [(8, 16), (256, 256)])
def test_many_states_side_by_side(shape):
    tx = gx.offload_state(gx.adam(0.1), min_size=0)
    many = jax.tree.map(lambda x: jnp.stack([x, 2 * x]), {"w": normal(shape)})
    state = jax.vmap(tx.init)(many)
    updates, later = jax.vmap(tx.update)(many, state, many)
    one, _ = tx.update({"w": many["w"][1]}, tx.init({"w": many["w"][1]}))
    np.testing.assert_allclose(updates["w"][1], one["w"], rtol=1e-6)
    assert away(later) == away(state) == 2


AROUND = {
    "apply_if_finite": lambda tx: gx.apply_if_finite(tx, 3),
    "MultiSteps": lambda tx: gx.MultiSteps(tx, 2),
    "accumulate": lambda tx: gx.accumulate(tx, 2),
    "conditionally": lambda tx: gx.conditionally_transform(tx, lambda step: step % 2 == 0),
    "masked": lambda tx: gx.masked(tx, {"w": True, "l": True, "b": False, "n": False}),
    "partition": lambda tx: gx.partition(
        {"a": tx, "b": gx.sgd(0.1)}, lambda p: dict.fromkeys(p, "a")
    ),
    "inject": lambda tx: gx.chain(tx, gx.inject_hyperparams(gx.scale)(step_size=0.5)),
    "moving_average": lambda tx: gx.moving_average(tx, 0.9),
    "master_weights": gx.master_weights,
    "loss_scale": gx.loss_scale,
}


@pytest.mark.parametrize("around", AROUND.values(), ids=AROUND)
def test_wrappers_around_it_leave_the_state_where_it_is(around):
    tx, plain = (around(f(gx.adam(1e-3))) for f in (gx.offload_state, lambda tx: tx))
    state = jax.jit(tx.init)(PARAMS)
    before = kinds(state)
    assert before.count("pinned_host") >= 4
    got, want = steps(tx, state, 4), steps(plain, jax.jit(plain.init)(PARAMS), 4)
    assert_same(got, want)
    assert kinds(got[1]) == before


def test_row_sparse_gradients():
    params = {"table": normal((500, 16))}
    rows = gx.sparse.RowSparse(jnp.asarray([3, 7]), normal((2, 16), 2), 500)
    tx, plain = gx.offload_state(gx.adam(0.1)), gx.adam(0.1)
    got = steps(tx, tx.init(params), params=params, grads={"table": rows})
    assert_same(got, steps(plain, plain.init(params), params=params, grads={"table": rows}))
    assert away(got[1]) == 2


def test_a_checkpoint_comes_back_to_where_it_was(tmp_path):
    ocp = pytest.importorskip("orbax.checkpoint")
    tx = gx.offload_state(gx.quantize_state(gx.adamw(1e-3)))
    _, state = steps(tx, jax.jit(tx.init)(PARAMS))
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "state", state)
        checkpointer.wait_until_finished()
        like = jax.tree.map(
            lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), state
        )
        restored = checkpointer.restore(tmp_path / "state", like)
    assert kinds(restored) == kinds(state)
    assert_same(steps(tx, restored), steps(tx, state))


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
@pytest.mark.parametrize("spec", [("data",), (None, "data")], ids=str)
def test_shards_stay_where_they_are(spec, form):
    mesh = on_eight()
    place = jax.NamedSharding(mesh, jax.P(*spec))
    params = jax.device_put({"w": normal((1024, 2048))}, place)
    tx, plain = gx.offload_state(form(gx.adamw(1e-3))), form(gx.adamw(1e-3))
    places = gd.state_sharding(tx, params)
    state = jax.jit(tx.init, out_shardings=places)(params)
    assert jax.tree.leaves(state[0].mu)[0].sharding.memory_kind == "pinned_host"
    assert jax.tree.leaves(state[0].mu)[0].sharding.spec == jax.P(*spec)
    step = jax.jit(tx.update, donate_argnums=1).lower(params, state, params).compile()
    if form is not gx.factor_state:  # the means of columns are sums over all shards
        assert hlo.collectives(step) == []
    updates, later = step(params, state, params)
    alone = jax.jit(plain.update)(params, plain.init(params), params)
    for a, b in zip(jax.tree.leaves(updates), jax.tree.leaves(alone[0]), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-7)
    assert kinds(later) == [place.memory_kind for place in jax.tree.leaves(places)]


@pytest.mark.parametrize("mode", ["jit", "shard_map", "shard_map unchecked"])
@pytest.mark.parametrize("n", [2, 4])
def test_replicas_keep_their_states_with_their_hosts(n, mode):
    params = {"w": normal((64, 128))}
    grads = {"w": normal((n, 64, 128), 1)}
    run, results = replicas(mode, n), []
    for tx in (gx.offload_state(gx.adamw(1e-2), min_size=64), gx.adamw(1e-2)):
        tx = gd.tower(tx, "replica")
        places = run.replicate(params)
        state = run.wrap(tx.init)(places)
        step = run.wrap(step_of(tx, "update"))
        for _ in range(2):
            places, state = step(places, state, run.place(grads))
        results.append((places, state))
    (got, state), want = results
    assert_same((got, state), want)
    assert away(state) == 2
    for x in jax.tree.leaves(got):
        np.testing.assert_array_equal(x[0], x[-1])


def test_a_platform_without_such_a_memory_says_so(monkeypatch):
    monkeypatch.setattr(offload, "memories_of", lambda device: {"device", "unpinned_host"})
    with pytest.raises(
        ValueError, match=r"memory_kind is 'pinned_host', which .* does not have; it"
    ):
        gx.offload_state(gx.adam(1.0)).init(PARAMS)
    assert "pinned_host" in {m.kind for m in jax.local_devices()[0].addressable_memories()}
