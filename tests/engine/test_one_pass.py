"""A step that returns parameters adds each update where it is computed, with the same numbers."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

import gradxform as gx
import gradxform.distributed as gd
from gradxform.engine import folded, one_leaf, tiles, together
from gradxform.numerics import scalar_dtype
from gradxform.sparse import RowSparse
from gradxform.testing.promise import check_close
from gradxform.wrappers.narrow import assigned_params
from gradxform.wrappers.one_pass import is_one_run

pytestmark = pytest.mark.numeric

SHAPES = {"w": (96, 64), "v": (4096,), "b": (7,), "s": ()}
q = gx.quantize_state
ADAMW = gx.adamw(1e-2)
CLIP = gx.clip_by_global_norm(0.5)
REST = ("rest", True)
KINDS = {
    "rule": gx.scale_by_lion(),
    "decay": gx.add_decayed_weights(0.1, gx.ndim_at_least(2)),
    "chain": gx.adamw(1e-2, mask=gx.ndim_at_least(2)),
    "8 bits": q(ADAMW, min_size=0, block=64),
    "4 bits": q(ADAMW, 4, min_size=0, block=64),
    "squares": q(ADAMW, 4, code="rank1", min_size=0, block=32),
    "by chance": gx.state_dtype(ADAMW, stochastic=True, key=0),
    "factored": gx.factor_state(ADAMW),
    "clip, 8 bits": gx.chain(CLIP, q(ADAMW, min_size=0)),
    "8 bits of clip": q(gx.chain(CLIP, ADAMW), min_size=0),
    "tree": gx.prodigy(1.0),
    "array": q(gx.adafactor(1e-2, momentum=0.9, min_dim_size_to_factor=4), min_size=0, which="ema"),
    "matrices": gx.muon(1e-2),
    "groups": gx.partition(
        {"matrix": q(gx.sgd(0.1, 0.9), min_size=0), "rest": ADAMW},
        gx.label_by(("matrix", gx.ndim_at_least(2)), REST),
    ),
    "masked": gx.masked(q(ADAMW, min_size=0), gx.ndim_at_least(2)),
    "injected": gx.inject_hyperparams(lambda learning_rate: q(gx.adam(learning_rate), min_size=0))(
        learning_rate=gx.cosine_decay_schedule(0.1, 10)
    ),
    "average": gx.chain(gx.moving_average(ADAMW, 0.9), gx.scale(0.5)),
    "counted": gx.MultiSteps(q(ADAMW, min_size=0), 2),
    "guarded": gx.apply_if_finite(q(ADAMW, min_size=0), 3),
    "nothing": gx.identity(),
    "empty chain": gx.chain(),
}
NARROW = {
    "masters": gx.master_weights,
    "16 bits": partial(gx.master_weights, remainders=16),
    "8 bits": partial(gx.master_weights, remainders=8),
    "kahan": gx.kahan,
    "chance": partial(gx.stochastic_rounding, key=1),
}


def drawn(seed, dtype=jnp.float32):
    rng = np.random.default_rng(seed)
    return {k: jnp.asarray(rng.normal(size=s), dtype) for k, s in SHAPES.items()}


def in_turns(tx, grads, state, params):
    updates, state = tx.update(grads, state, params)
    return gx.apply_updates(params, updates), state


def steps(step, tx, params, count=3, grads=drawn):
    state = tx.init(params)
    step = jax.jit(partial(step, tx))
    for i in range(count):
        params, state = step(grads(i + 1), state, params)
    return params, state


def check_equal(ours, others, ulps=4):
    for (path, x), y in zip(jax.tree.leaves_with_path(ours), jax.tree.leaves(others), strict=True):
        assert (x.shape, x.dtype) == (y.shape, y.dtype), path
        if jnp.issubdtype(x.dtype, jnp.floating):
            check_close(jax.tree_util.keystr(path), x, y, ulps * float(jnp.finfo(x.dtype).eps))
        elif x.dtype == jnp.uint8:  # codes, which a last bit of a float may move to a neighbor
            assert np.mean(np.asarray(x) != np.asarray(y)) < 0.01, path
        else:
            np.testing.assert_array_equal(x, y)


@pytest.mark.parametrize("name", KINDS)
def test_a_step_equals_update_and_apply_updates(name):
    tx, params = KINDS[name], drawn(0)
    check_equal(steps(gx.apply_gradients, tx, params), steps(in_turns, tx, params))


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
@pytest.mark.parametrize("name", ["chain", "8 bits", "groups"])
def test_sums_in_few_bits_are_rounded_alike(name, dtype):
    tx, params = KINDS[name], drawn(0, dtype)
    for kind in (dtype, jnp.float32):  # of the gradients
        grads = partial(drawn, dtype=kind)
        ours, others = (
            steps(step, tx, params, 3, grads) for step in (gx.apply_gradients, in_turns)
        )
        check_equal(ours[0], others[0], ulps=0)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float16, jnp.bfloat16])
@pytest.mark.parametrize("inner", ["chain", "8 bits", "average"])
def test_a_scaled_step_adds_what_it_would_return(inner, dtype):
    """Gradients of 16 bits round the updates before these are added."""
    tx, params = gx.loss_scale(KINDS[inner], 2.0**10), drawn(0)
    grads = partial(drawn, dtype=dtype)
    ours, others = (steps(step, tx, params, 3, grads) for step in (gx.apply_gradients, in_turns))
    check_equal(ours, others, ulps=4 if dtype == jnp.float32 else 1)
    not_finite = grads(1) | {"b": jnp.full(7, jnp.inf, dtype)}
    skipped, state = gx.apply_gradients(tx, not_finite, ours[1], ours[0])
    check_equal(skipped, ours[0], ulps=0)
    assert int(state.total_skipped) == 1


@pytest.fixture
def in_tiles(monkeypatch):
    """Narrow parameters go by tiles, as on other processors than CPUs."""
    monkeypatch.setattr(assigned_params, "platform_of", lambda x: "tpu")


@pytest.mark.parametrize("kind", NARROW)
def test_narrow_parameters_step_on_cpus_as_their_updates_do(kind):
    tx, params = NARROW[kind](KINDS["8 bits"]), drawn(0, jnp.bfloat16)
    grads = partial(drawn, dtype=jnp.bfloat16)
    check_equal(
        *(steps(step, tx, params, 3, grads)[0] for step in (gx.apply_gradients, in_turns)), ulps=1
    )


@pytest.mark.parametrize("kind", NARROW)
@pytest.mark.parametrize("inner", ["chain", "8 bits", "8 bits of clip", "array", "groups"])
def test_narrow_parameters_go_where_their_updates_lead(kind, inner, in_tiles):
    tx, params = NARROW[kind](KINDS[inner]), drawn(0, jnp.bfloat16)
    assert is_one_run(KINDS[inner]) == (inner != "groups")
    grads = partial(drawn, dtype=jnp.float32 if inner == "array" else jnp.bfloat16)
    ours, others = (steps(step, tx, params, 3, grads) for step in (gx.apply_gradients, in_turns))
    check_equal(ours[0], others[0], ulps=1)
    assert jax.tree.structure(ours) == jax.tree.structure(others)


@pytest.mark.parametrize("kind", NARROW)
def test_narrow_parameters_in_tiles_have_the_numbers_of_whole_ones(kind, in_tiles, monkeypatch):
    tx, params = NARROW[kind](q(ADAMW, min_size=0, block=64)), drawn(0, jnp.bfloat16)
    results = []
    for most in (1 << 20, 1 << 10):  # the second cuts a leaf of 6144 entries
        monkeypatch.setattr(tiles, "ON_CPU", most)
        results.append(steps(gx.apply_gradients, tx, params))
    check_equal(*results, ulps=1)


@pytest.fixture
def on_tpus(monkeypatch):
    """Programs are those for TPUs, where these differ."""
    for module in (folded, tiles, together):
        monkeypatch.setattr(module, "platform_of", lambda x: "tpu")
    monkeypatch.setattr(tiles, "ELSEWHERE", 1 << 10)


OF_TPUS = {
    **{name: tx for name, tx in KINDS.items() if name != "by chance"},  # tiles draw other numbers
    "adadelta": gx.adadelta(0.1),
    "mars": gx.mars_adamw(1e-2),
    "adan": gx.adan(1e-2),
    "dog": gx.dog(),
    "resets": gx.spam(1e-2, every=2),
    "lookahead": gx.lookahead(ADAMW, 2, 0.5),
    "lookahead, 8 bits": gx.lookahead(q(ADAMW, min_size=0), 2, 0.5),
}


@pytest.mark.parametrize("name", OF_TPUS)
def test_steps_of_tpus_have_the_numbers_of_others(name, on_tpus, monkeypatch):
    tx, params = OF_TPUS[name], drawn(0)
    ours = steps(gx.apply_gradients, tx, params)
    monkeypatch.undo()
    check_equal(ours, steps(in_turns, tx, params))


def test_an_update_of_norms_is_made_again_in_tiles(on_tpus, monkeypatch):
    """Vectors have a moment that is as large as they are; others are too small for tiles."""
    made = []
    seen = tiles.apply_stored
    monkeypatch.setattr(one_leaf, "apply_stored", lambda *a: (made.append(a[-1]), seen(*a))[1])
    tx, params = KINDS["array"], drawn(0)
    gx.apply_gradients(tx, drawn(1), tx.init(params), params)
    assert [f is not None for f in made].count(True) == 1


def test_a_chain_takes_stored_rules_among_its_own():
    assert is_one_run(KINDS["clip, 8 bits"]) and is_one_run(gx.offload_state(ADAMW))
    assert not is_one_run(KINDS["matrices"]) and not is_one_run(KINDS["counted"])


@pytest.mark.parametrize("inner", ["8 bits", "average", "matrices"])
def test_a_skipped_step_leaves_parameters_and_state(inner):
    tx, params = gx.apply_if_finite(KINDS[inner], 3), drawn(0)
    step = jax.jit(partial(gx.apply_gradients, tx))
    before, state = step(drawn(1), tx.init(params), params)
    after, skipped = step(drawn(2) | {"b": jnp.full(7, jnp.nan)}, state, before)
    check_equal((after, skipped.inner_state), (before, state.inner_state), ulps=0)
    assert skipped.total_notfinite == 1
    rows = drawn(2) | {"w": RowSparse(jnp.asarray([1, 5]), drawn(2)["w"][:2], 96)}
    if inner == "8 bits":
        check_equal(step(rows, state, before), jax.jit(partial(in_turns, tx))(rows, state, before))


def test_a_step_takes_rows_and_holes():
    tx, params = gx.chain(q(gx.sgd(0.1, 0.9), min_size=0), gx.scale(2.0)), drawn(0)
    grads = drawn(1) | {"b": None}
    grads["w"] = RowSparse(jnp.asarray([1, 5]), grads["w"][:2], 96)
    ours, others = (
        step(tx, grads, tx.init(params), params) for step in (gx.apply_gradients, in_turns)
    )
    check_equal(ours, others)
    assert ours[0]["b"] is params["b"]
    np.testing.assert_array_equal(ours[0]["w"][7], params["w"][7])


def test_a_step_refuses_what_an_update_would_lose():
    params = {"w": jnp.ones(3)}
    grads = {"w": jnp.ones(3, jnp.complex64)}
    tx = gx.sgd(0.1)
    with pytest.raises(TypeError, match=r"the update of \['w'\] has dtype complex64"):
        gx.apply_gradients(tx, grads, tx.init(params), params)


@pytest.mark.parametrize("name", ["8 bits", "groups", "clip, 8 bits"])
def test_a_step_runs_under_vmap_and_scan(name):
    tx, params = KINDS[name], drawn(0)
    many = jax.tree.map(lambda x: jnp.stack([x, 2 * x]), params)
    grads = jax.tree.map(lambda x: jnp.stack([x, -x]), drawn(1))

    def run(step):
        states = jax.vmap(tx.init)(many)

        def turn(carry, _):
            return jax.vmap(partial(step, tx))(grads, carry[1], carry[0]), None

        return jax.lax.scan(turn, (many, states), None, length=2)[0]

    check_equal(run(gx.apply_gradients), run(in_turns))


@gx.transform(name="tests:times_strength")
class times_strength(gx.ArrayRule):
    """A rule with an extra argument of its own."""

    def prepare(self, updates, state, params, *, strength):
        return state, strength

    def rule(self, g, p, strength):
        return strength * g


def test_shards_ignore_what_another_part_takes():
    tx, params = gx.chain(times_strength(), gd.zero1(gx.sgd(0.1), "x")), {"w": jnp.ones((2, 4))}

    def one(grads, step):
        return step(tx, grads, tx.init(params), params, strength=jnp.float32(3.0))[0]

    def turns(tx, grads, state, params, strength):
        updates, state = tx.update(grads, state, params, strength=strength)
        return gx.apply_updates(params, updates), state

    grads = {"w": jnp.arange(16.0).reshape(2, 2, 4)}
    ours, others = (
        jax.vmap(partial(one, step=step), axis_name="x")(grads)
        for step in (gx.apply_gradients, turns)
    )
    check_equal(ours, others)


def test_a_step_without_parameters_says_who_needs_them():
    tx, params = gx.scale(2.0), {"w": jnp.ones(3)}
    with pytest.raises(ValueError, match="scale: needs the parameters"):
        tx.update_params(params, tx.init(params), None)


@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit])
@pytest.mark.parametrize("name", ["8 bits", "remainders"])
def test_a_step_keeps_places(name, kind, in_tiles, eight_devices):
    mesh = jax.make_mesh((8,), ("x",), axis_types=(kind,))
    tx = KINDS["8 bits"] if name == "8 bits" else gx.master_weights(KINDS["8 bits"], 16)
    dtype = jnp.float32 if name == "8 bits" else jnp.bfloat16
    shapes = {"w": (512, 64), "b": (7,)}
    rng = np.random.default_rng(0)
    place = {"w": NamedSharding(mesh, P("x")), "b": NamedSharding(mesh, P())}
    whole = {k: jnp.asarray(rng.normal(size=s), dtype) for k, s in shapes.items()}
    with jax.set_mesh(mesh):
        params = jax.device_put(whole, place)
        step = jax.jit(partial(gx.apply_gradients, tx))
        new, _ = step(params, jax.jit(tx.init)(params), params)
    expected, _ = jax.jit(partial(in_turns, tx))(whole, tx.init(whole), whole)
    check_equal(jax.device_get(new), jax.device_get(expected), ulps=1)
    assert new["w"].sharding.is_equivalent_to(place["w"], 2)


def test_a_class_with_an_update_of_its_own_is_not_passed_by():
    @gx.transform(name="tests:doubled")
    class doubled(gx.ArrayRule):
        def rule(self, g, p):
            return g

        def update(self, updates, state, params=None, **extra):
            updates, state = super().update(updates, state, params, **extra)
            return jax.tree.map(lambda u: 2 * u, updates), state

    tx, params = doubled(), {"w": jnp.ones(3)}
    new, _ = gx.apply_gradients(tx, params, tx.init(params), params)
    np.testing.assert_array_equal(new["w"], 3.0)
    assert not is_one_run(tx)


@gx.transform(name="tests:joins_axes")
class joins_axes(gx.ArrayRule):
    """A rule that could lie in several ways along explicit axes, which JAX refuses."""

    def rule(self, g, p):
        return jnp.cumsum(g.reshape(-1)).reshape(g.shape)


@pytest.mark.parametrize("tx", [joins_axes(), gx.chain(gx.scale(0.5), joins_axes())], ids=repr)
def test_a_step_leaves_explicit_axes_to_the_compiler(tx, eight_devices):
    mesh = jax.make_mesh((4, 2), ("x", "y"))
    whole = {"w": drawn(0)["w"]}
    with jax.set_mesh(mesh):
        params = jax.device_put(whole, NamedSharding(mesh, P("x", "y")))
        new, _ = jax.jit(partial(gx.apply_gradients, tx))(params, tx.init(params), params)
    expected, _ = in_turns(tx, whole, tx.init(whole), whole)
    check_close("steps", jax.device_get(new), jax.device_get(expected), 1e-5)
    assert new["w"].sharding == params["w"].sharding


def test_scalars_of_a_step_are_as_wide_as_the_parameters():
    dtypes = []

    def schedule(count):
        dtypes.append(scalar_dtype())
        return 0.1

    tx, params = gx.scale_by_schedule(schedule), {"w": jnp.ones(3, jnp.float32)}
    with jax.enable_x64(True):
        gx.apply_gradients(tx, params, tx.init(params), params)
    assert dtypes == [jnp.float32]
