"""Loss scaling: what the rows of the catalogue do not show."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from flax.training.dynamic_scale import DynamicScale
from jax.sharding import Mesh, PartitionSpec

import gradxform as gx
from gradxform import compat, distributed as gd
from tests.distributed.modes import MODES, replicas

pytestmark = pytest.mark.numeric

NAN = jnp.nan
P = {"w": jnp.arange(1.0, 5.0), "b": {"k": jnp.ones((2, 3))}, "none": None}


def loss_fn(params, factor):
    """A loss whose gradients are small enough to vanish in float16."""
    half = gx.tree.cast(params, jnp.float16)
    leaves = jax.tree.leaves(half)
    return factor * 1e-8 * sum(jnp.sum((x * x).astype(jnp.float32)) for x in leaves)


def gradients(params, state, factor=1.0):
    def scaled(params):
        return gx.scaled_loss(loss_fn(params, factor), state)

    return jax.grad(scaled)(params)


def equal(a, b):
    jax.tree.map(np.testing.assert_array_equal, a, b)


def close(a, b, rtol=1e-3):
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=rtol, atol=1e-7), a, b)


def test_gradients_too_small_for_float16_arrive():
    assert not any(map(jnp.any, jax.tree.leaves(jax.grad(loss_fn)(P, 1.0))))
    tx = gx.loss_scale(gx.identity())
    updates, _ = tx.update(gradients(P, tx.init(P)), tx.init(P), P)
    close(updates, jax.tree.map(lambda x: 2e-8 * x, P), rtol=2e-3)
    assert np.max(jnp.abs(updates["w"])) > 0


def test_a_float16_gradient_is_divided_in_float32():
    g = {"w": jnp.full(4, 6e-8, jnp.float16)}

    def init(params):
        return gx.tree.cast(params, jnp.float32)

    # Its state is the last gradient that it got.
    inner = gx.GradientTransformation(init, lambda updates, state, params=None: (updates, updates))
    tx = gx.loss_scale(inner, 2.0**15)
    updates, state = tx.update(g, tx.init(g), g)
    np.testing.assert_array_equal(state.inner_state["w"], np.float32(g["w"]) / 2**15)
    assert np.all(state.inner_state["w"] > 0) and updates["w"].dtype == jnp.float16


@pytest.mark.parametrize("bad", [jnp.inf, -jnp.inf, NAN])
@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit])
def test_a_step_that_is_not_finite_is_skipped(bad, wrap):
    tx = gx.loss_scale(gx.adam(0.1), 8.0)
    grads = {"w": jnp.ones(3), "x": jnp.ones((2, 2), jnp.bfloat16)}
    updates, state = tx.update(grads, tx.init(grads), grads)
    updates, after = wrap(tx.update)(grads | {"w": jnp.asarray([1, bad, 1.0])}, state, grads)
    equal(updates, jax.tree.map(jnp.zeros_like, grads))
    equal(after.inner_state, state.inner_state)
    assert (after.loss_scale, after.finite_steps, after.total_skipped) == (4.0, 0, 1)


def test_gradients_whose_squares_overflow_are_finite():
    tx = gx.loss_scale(gx.chain(gx.clip(1.0), gx.sgd(1.0)), 1.0)
    g = {"w": jnp.asarray([1e30, -3e38, 0.5])}
    updates, state = tx.update(g, tx.init(g), g)
    np.testing.assert_allclose(updates["w"], [-1, 1, -0.5])
    assert state.total_skipped == 0


def test_a_scale_below_1_may_not_make_infinities():
    tx = gx.loss_scale(gx.sgd(1.0), 0.25, min_scale=2.0**-126)
    g = {"w": jnp.asarray([3e38, 1.0])}
    updates, state = tx.update(g, tx.init(g), g)
    assert not np.any(updates["w"]) and state.total_skipped == 1 and state.loss_scale == 0.125


def test_the_scale_stays_within_its_bounds():
    tx = gx.loss_scale(gx.sgd(0.1), 4.0, 1, min_scale=2.0, max_scale=8.0)
    g, scales = {"w": jnp.ones(2)}, []
    state = tx.init(g)
    for factor in (1.0, 1.0, 1.0, NAN, NAN, NAN, NAN, 1.0):
        _, state = tx.update(jax.tree.map(lambda x, c=factor: c * x, g), state, g)
        scales.append(float(state.loss_scale))
    assert scales == [8, 8, 8, 4, 2, 2, 2, 4]
    shown = gx.metrics(state)
    assert shown["loss_scale"] == 4 and shown["total_skipped"] == 4


def test_with_hysteresis_the_scale_falls_after_several_bad_steps():
    tx = gx.loss_scale(gx.sgd(0.1), 16.0, 3, hysteresis=2)
    state, step = tx.init(jnp.ones(2)), jax.jit(tx.update)
    # A bad step is spared, the next ones are not, until the scale grows.
    steps = [(0, 16), (1, 16), (0, 8), (0, 4), (1, 4), (1, 4), (1, 8), (0, 8), (1, 8), (0, 4)]
    for is_finite, scale in steps:
        g = jnp.ones(2) if is_finite else jnp.full(2, jnp.nan)
        _, state = step(g, state)
        assert state.loss_scale == scale


@pytest.mark.parametrize("jit", [False, True])
def test_too_many_steps_that_are_stuck_are_an_error(jit):
    tx = gx.loss_scale(gx.sgd(0.1), 2.0, max_stuck=2)
    state, step = tx.init(jnp.ones(2)), jax.jit(tx.update) if jit else tx.update
    bad = jnp.full(2, jnp.inf)
    # The first lowers the scale; then two, a good one, and two are fine.
    for g in (bad, bad, bad, jnp.ones(2), bad, bad):
        _, state = step(g, state)
    assert state.stuck_steps == 2 and state.loss_scale == 1
    with pytest.raises(Exception, match="loss_scale: the gradients of 3 steps in a row") as raised:
        jax.block_until_ready(step(bad, state))
        jax.effects_barrier()
    assert jit or raised.type is FloatingPointError


def test_a_scan_a_vmap_and_donation_carry_the_state():
    tx = gx.loss_scale(gx.adam(0.1), 8.0, 2)
    grads = jnp.asarray([1.0, 2.0, NAN, 3.0, 1.0, 1.0])[:, None] * jnp.ones((6, 3))
    params = {"w": jnp.ones(3)}

    def step(carry, g):
        params, state = carry
        updates, state = tx.update({"w": g}, state, params)
        return (gx.apply_updates(params, updates), state), state.loss_scale

    (p, state), scales = jax.jit(lambda c: jax.lax.scan(step, c, grads))((params, tx.init(params)))
    assert scales.tolist() == [8, 16, 8, 8, 16, 16] and state.total_skipped == 1
    carry = (params, tx.init(params))
    donated = jax.jit(step, donate_argnums=0)
    carry = jax.tree.map(jnp.array, carry)
    for g in grads:
        carry, _ = donated(carry, g)
    close(carry[0], p, 1e-6)
    both = jax.tree.map(lambda x: jnp.stack([x, x]), (params, tx.init(params)))
    pair = jnp.asarray([1.0, NAN])[:, None] * jnp.ones((2, 3))
    (p, state), _ = jax.vmap(step)(both, pair)
    assert state.total_skipped.tolist() == [0, 1] and np.all(p["w"][1] == 1)


def replica_run(tx, grads):
    """One step on two devices, each with its own gradient; the updates and the states of both."""
    mesh = Mesh(np.array(jax.devices()[:2]), ("replica",))
    params = {"w": jnp.ones(3)}

    def step(g):
        updates, state = tx.update({"w": g[0]}, tx.init(params), params)
        return jax.tree.map(lambda x: jnp.asarray(x)[None], (updates["w"], gx.metrics(state)))

    spec = PartitionSpec("replica")
    return jax.jit(jax.shard_map(step, mesh=mesh, in_specs=spec, out_specs=spec))(grads)


TOGETHER = {
    "an axis": lambda inner: gx.loss_scale(inner, 8.0, axis_name="replica"),
    "around a tower": lambda inner: gx.loss_scale(gd.tower(inner, "replica"), 8.0),
    "in a tower": lambda inner: gd.tower(gx.loss_scale(inner, 8.0), "replica"),
    "around a guard": lambda inner: TOGETHER["an axis"](gx.apply_if_finite(inner, 0)),
}


@pytest.mark.parametrize("bad", [0, 1])
@pytest.mark.parametrize("name", TOGETHER)
def test_replicas_skip_together(name, bad):
    grads = jnp.ones((2, 3)).at[bad, 1].set(NAN)
    updates, shown = replica_run(TOGETHER[name](gx.sgd(1.0)), grads)
    assert not np.any(updates)
    assert shown["loss_scale"].tolist() == [4, 4] and shown["total_skipped"].tolist() == [1, 1]


def test_replicas_without_an_axis_decide_for_themselves():
    tx = gx.loss_scale(gx.sgd(1.0), 8.0)
    _, shown = replica_run(tx, jnp.ones((2, 3)).at[1].set(NAN))
    assert shown["loss_scale"].tolist() == [8, 4] and shown["total_skipped"].tolist() == [0, 1]


# ------------------------------------------------------------------------------ steps of training


AROUND = {
    "alone": lambda tx: tx,
    "chain": lambda tx: gx.chain(gx.identity(), tx, gx.scale(1.0)),
    "average": lambda tx: gx.moving_average(tx, 0.9),
    "several steps": lambda tx: gx.MultiSteps(tx, 1),
    "decay": lambda tx: gx.decoupled_weight_decay(tx, 0.0, learning_rate=0.1),
    "quantized": lambda tx: gx.quantize_state(tx),
}


@pytest.mark.parametrize("name", AROUND)
def test_make_step_scales_the_loss(name):
    tx = AROUND[name](gx.loss_scale(gx.sgd(1e6)))
    params, state = jax.tree.map(jnp.array, P), tx.init(P)
    new, state, loss = gx.make_step(tx, loss_fn)(params, state, 1.0)
    np.testing.assert_allclose(loss, loss_fn(P, 1.0), rtol=1e-6)
    close(new, jax.tree.map(lambda x: x * (1 - 0.02), P), 1e-4)


def test_injected_hyperparameters():
    tx = gx.inject_hyperparams(gx.loss_scale)(gx.sgd(1e6), growth_factor=4.0)
    new, state, _ = gx.make_step(tx, loss_fn)(jax.tree.map(jnp.array, P), tx.init(P), 1.0)
    close(new, jax.tree.map(lambda x: x * (1 - 0.02), P), 1e-4)
    inside = gx.loss_scale(gx.inject_hyperparams(gx.sgd)(1e6))
    new, state, _ = gx.make_step(inside, loss_fn)(jax.tree.map(jnp.array, P), inside.init(P), 1.0)
    close(new, jax.tree.map(lambda x: x * (1 - 0.02), P), 1e-4)
    assert gx.metrics(state)["learning_rate"] == 1e6


def test_a_holder_scales_the_loss():
    opt = gx.Optimizer(gx.loss_scale(gx.sgd(1e6)))
    new, loss = opt.minimize(loss_fn, P, 1.0)
    np.testing.assert_allclose(loss, loss_fn(P, 1.0), rtol=1e-6)
    close(new, jax.tree.map(lambda x: x * (1 - 0.02), P), 1e-4)


def test_aux_grad_loss_and_values_are_of_the_loss_itself():
    tx = gx.loss_scale(gx.chain(gx.skip_loss_spikes(gx.sgd(1e6))))
    step = gx.make_step(tx, lambda p, c: (loss_fn(p, c), jnp.ones(2)), has_aux=True, grad_loss=2.0)
    new, state, (loss, _) = step(jax.tree.map(jnp.array, P), tx.init(P), 1.0)
    np.testing.assert_allclose(loss, loss_fn(P, 1.0), rtol=1e-6)
    np.testing.assert_allclose(state.inner_state[0].mean, loss, rtol=1e-6)
    close(new, jax.tree.map(lambda x: x * (1 - 0.04), P), 1e-4)


SEARCHES = {
    "backtracking": gx.chain(gx.sgd(1.0), gx.scale_by_backtracking_linesearch(20)),
    "stored": gx.chain(gx.sgd(1.0), gx.scale_by_backtracking_linesearch(20, store_grad=True)),
    "zoom": gx.chain(gx.sgd(1.0), gx.scale_by_zoom_linesearch(20)),
    "lbfgs": gx.lbfgs(),
    "lbfgs_steps": gx.lbfgs_steps(),
}


def bent(params):
    """A loss along whose gradient a step of 1 is too long."""
    return sum(jnp.sum((x - 3.0) ** 4 + x**2) for x in jax.tree.leaves(params))


@pytest.mark.parametrize("name", SEARCHES)
def test_a_line_search_inside_sees_the_loss_and_the_gradient_itself(name):
    ways = []
    for tx in (SEARCHES[name], gx.loss_scale(SEARCHES[name], 2.0**10)):
        params, state, step = jax.tree.map(jnp.array, P), tx.init(P), gx.make_step(tx, bent)
        for _ in range(4):
            params, state, loss = step(params, state)
        ways.append((params, loss))
    close(ways[1], ways[0], 1e-5)
    assert ways[0][1] < bent(P) / 2


REFUSED = {
    "a decay around": (
        lambda tx: gx.decoupled_weight_decay(gx.masked(tx, gx.ndim_at_least(2)), 0.1),
        "make_step: masked would get gradients of the scaled loss",
    ),
    "a group": (
        lambda tx: gx.partition({"a": tx, "b": gx.sgd(0.1)}, {"w": "a", "v": "b"}),
        "make_step: partition would get gradients of the scaled loss",
    ),
    "a mask": (lambda tx: gx.masked(tx, gx.ndim_at_least(2)), "make_step: masked would get"),
    "another library": (lambda tx: optax.chain(tx), "would get gradients of the scaled loss"),
}


HIDES_OVERFLOWS = {
    "accumulate": lambda tx: gx.accumulate(tx, 2),
    "apply_if_finite": lambda tx: gx.apply_if_finite(gx.moving_average(tx, 0.9), 3),
    "MultiSteps": lambda tx: gx.MultiSteps(tx, 2, should_skip_update_fn=gx.skip_not_finite),
    "zero_nans": lambda tx: gx.chain(gx.zero_nans(), gx.identity(), tx),
    "clip": lambda tx: gx.named_chain(("clip", gx.clip(1.0)), ("scale", gx.chain(tx))),
}


@pytest.mark.parametrize("name", HIDES_OVERFLOWS)
def test_a_scale_that_would_never_see_an_overflow_is_refused(name):
    wrap = HIDES_OVERFLOWS[name]
    with pytest.raises(ValueError, match=rf"put {name} inside loss_scale: loss_scale\({name}"):
        wrap(gx.loss_scale(gx.sgd(0.1)))
    tx = wrap(gx.loss_scale(gx.sgd(0.1), growth_interval=None))  # which never changes
    with pytest.raises(ValueError, match=f"make_step: {name} would get gradients of the scaled"):
        gx.make_step(tx, loss_fn)(jax.tree.map(jnp.array, P), tx.init(P), 1.0)


def test_accumulators_that_keep_overflows_go_around_a_scale():
    params, bad = jnp.ones(2), jnp.full(2, jnp.inf)
    for tx in (
        gx.accumulate(gx.loss_scale(gx.sgd(0.1), 8.0), 2, skip_not_finite=False),
        gx.MultiSteps(gx.loss_scale(gx.sgd(0.1), 8.0), 2),
    ):
        state = tx.init(params)
        for g in (jnp.ones(2), bad):
            updates, state = tx.update(g, state, params)
        assert not np.any(updates) and gx.metrics(state)["loss_scale"] == 4


@pytest.mark.parametrize("name", REFUSED)
def test_make_step_refuses_parts_that_would_see_scaled_gradients(name):
    wrap, words = REFUSED[name]
    tx = wrap(gx.loss_scale(gx.sgd(0.1)))
    params = {"w": jnp.ones((2, 2)), "v": jnp.ones((2, 2))}
    if name == "a group":
        tx = gx.partition({"a": gx.loss_scale(gx.sgd(0.1)), "b": gx.sgd(0.1)}, {"w": "a", "v": "b"})
    with pytest.raises(ValueError, match=words):
        gx.make_step(tx, loss_fn)(params, tx.init(params), 1.0)


def test_what_does_not_scale_the_loss_refuses():
    tx = gx.loss_scale(gx.sgd(0.1))
    with pytest.raises(ValueError, match="compute_gradients: the loss is not scaled here"):
        gx.Optimizer(tx).compute_gradients(loss_fn, P, 1.0)
    with pytest.raises(ValueError, match="minimize: the loss is not scaled here"):
        gx.minimize(lambda p: loss_fn(p, 1.0), P, tx)
    tx = gx.loss_scale(gx.sam(gx.sgd(0.1), gx.sgd(0.1), opaque_mode=True))
    with pytest.raises(
        ValueError, match="make_step: a part of loss_scale takes gradients at other"
    ):
        gx.make_step(tx, loss_fn)(jax.tree.map(jnp.array, P), tx.init(P), 1.0)


# -------------------------------------------------------------------------- with other parts


INNER = {
    "clipped": gx.chain(gx.clip_by_global_norm(1.0), gx.adam(0.1)),
    "quantized": gx.quantize_state(gx.adam(0.1), min_size=1),
    "accumulated": gx.accumulate(gx.adam(0.1), 2),
    "several steps": gx.MultiSteps(gx.adam(0.1), 2),
    "injected": gx.inject_hyperparams(gx.adam)(0.1),
    "masked": gx.masked(gx.adam(0.1), gx.ndim_at_least(2)),
    "optax": optax.adam(0.1),
    "averaged": gx.moving_average(gx.sgd(0.1), 0.5),
}


@pytest.mark.parametrize("name", INNER)
def test_a_scale_changes_nothing_but_the_skipped_step(name):
    inner = INNER[name]
    tx = gx.loss_scale(inner, 8.0, 2)
    params = {"w": jnp.linspace(1.0, 2.0, 6).reshape(2, 3), "b": jnp.ones(3), "none": None}
    state, plain = tx.init(params), inner.init(params)
    rng, update = np.random.default_rng(0), jax.jit(tx.update)
    for i in range(7):
        g = jax.tree.map(lambda x: jnp.asarray(rng.normal(size=x.shape), jnp.float32), params)
        scaled = jax.tree.map(lambda x, s=state.loss_scale: s * x, g)
        if i == 3:
            with jax.numpy_dtype_promotion("standard"):
                updates, state = update(jax.tree.map(lambda x: NAN * x, g), state, params)
            assert not any(map(jnp.any, jax.tree.leaves(updates)))
            continue
        with jax.numpy_dtype_promotion("standard"):  # Optax relies on it
            updates, state = update(scaled, state, params)
            wanted, plain = inner.update(g, plain, params)
        if name == "masked":
            wanted, updates = wanted["w"], updates["w"]
        close(updates, wanted, 1e-5)
    assert state.total_skipped == 1 and state.loss_scale == 16


def test_row_sparse_gradients():
    table = {"table": jnp.ones((6, 2))}
    tx = gx.loss_scale(gx.adam(0.1), 8.0)
    values = jnp.asarray([[8.0, 8.0], [16.0, 8.0]])
    for dtype in (jnp.float32, jnp.float16):
        g = {"table": gx.sparse.RowSparse(jnp.asarray([1, 4]), values.astype(dtype), 6)}
        updates, state = jax.jit(tx.update)(g, tx.init(table), table)
        assert updates["table"].values.dtype == dtype
        bad = {"table": g["table"].with_values(g["table"].values.at[0, 0].set(NAN))}
        updates, state = jax.jit(tx.update)(bad, state, table)
        assert not np.any(updates["table"].values) and state.total_skipped == 1


# ----------------------------------------------------------------------------- models in float16


class Model(nn.Module):
    """Two layers in one dtype, with float32 parameters."""

    dtype: jnp.dtype

    @nn.compact
    def __call__(self, x):
        x = nn.tanh(nn.Dense(16, dtype=self.dtype)(x))
        return nn.Dense(1, dtype=self.dtype)(x)


def trained(dtype, tx, factor):
    """The loss after some steps of a small model, times a factor that makes gradients small."""
    model, rng = Model(dtype), np.random.default_rng(0)
    x = jnp.asarray(rng.normal(size=(64, 4)), jnp.float32)
    y = jnp.sin(x[:, :1]) + x[:, 1:2]

    def loss_fn(params, x, y):
        error = model.apply(params, x).astype(jnp.float32) - y
        return factor * jnp.mean(error**2)

    params = model.init(jax.random.key(0), x)
    state, step = tx.init(params), gx.make_step(tx, loss_fn)
    for _ in range(150):
        params, state, loss = step(params, state, x, y)
    return float(loss) / factor, state


def test_a_flax_model_in_float16_ends_where_float32_does():
    factor, adam = 1e-7, gx.adam(0.02, eps=1e-14)
    want, _ = trained(jnp.float32, adam, factor)
    lost, _ = trained(jnp.float16, adam, factor)
    got, state = trained(jnp.float16, gx.loss_scale(adam, 2.0**24, 50), factor)
    assert abs(got - want) < 0.02 * want + 1e-3
    assert lost > 10 * want  # without a scale the gradients vanish
    assert gx.metrics(state)["loss_scale"] > 1


# --------------------------------------------------------------------------- Flax's DynamicScale


def flax_step(scale, params, opt_state, factor, tx):
    """A step as Flax's examples take it."""
    scale, finite, _, grads = scale.value_and_grad(loss_fn)(params, factor)
    updates, new_state = tx.update(grads, opt_state, params)
    new = gx.apply_updates(params, updates), new_state
    keep = jax.tree.map(lambda x, y: jnp.where(finite, x, y), new, (params, opt_state))
    return scale, *keep


def test_dynamic_scales_of_flax_go_there_and_back():
    adam, params = gx.adam(0.01, eps=1e-12), {"w": jnp.arange(1.0, 5.0)}
    scale = DynamicScale(
        growth_factor=4.0, backoff_factor=0.25, growth_interval=2, scale=jnp.float32(256.0)
    )
    theirs = scale, params, adam.init(params)
    tx, state = compat.flax.from_dynamic_scale(scale, adam, adam.init(params))
    mine, step = params, gx.make_step(tx, loss_fn)
    factors, seen = [1.0] * 24, set()
    for i in (3, 4, 9, 20):
        factors[i] = np.inf
    for i, factor in enumerate(factors):
        if i == 12:  # into each other's place
            theirs = compat.flax.to_dynamic_scale(tx, state), mine, state.inner_state
            tx, state = compat.flax.from_dynamic_scale(theirs[0], adam, theirs[2])
            theirs, mine, state = jax.tree.map(jnp.array, (theirs, mine, state))
        theirs = flax_step(*theirs, factor, adam)
        mine, state, _ = step(jax.tree.map(jnp.array, mine), state, factor)
        assert state.loss_scale == theirs[0].scale and state.finite_steps == theirs[0].fin_steps
        close(mine, theirs[1], 1e-6)
        seen.add(float(state.loss_scale))
    assert len(seen) > 3
    back = compat.flax.to_dynamic_scale(tx, state)
    names = ("growth_factor", "backoff_factor", "growth_interval", "minimum_scale")
    for name in names:
        assert getattr(back, name) == getattr(scale, name)


def test_wrong_dynamic_scales_are_refused():
    adam = gx.adam(0.1)
    with pytest.raises(TypeError, match="from_dynamic_scale: dynamic_scale must be a DynamicScale"):
        compat.flax.from_dynamic_scale(3, adam, adam.init(P))
    with pytest.raises(TypeError, match="from_dynamic_scale: the scale must be one real number"):
        compat.flax.from_dynamic_scale(DynamicScale(scale=jnp.ones(2)), adam, adam.init(P))
    with pytest.raises(ValueError, match="initial_scale must be in"):
        compat.flax.from_dynamic_scale(DynamicScale(scale=2.0**127), adam, adam.init(P))
    with pytest.raises(TypeError, match="to_dynamic_scale: tx must be a loss_scale, got"):
        compat.flax.to_dynamic_scale(adam, adam.init(P))
    constant = gx.loss_scale(adam, growth_interval=None)
    with pytest.raises(ValueError, match="the scale of loss_scale is constant, and Flax's is not"):
        compat.flax.to_dynamic_scale(constant, constant.init(P))
    with pytest.raises(TypeError, match="the state must be of kind LossScaleState"):
        compat.flax.to_dynamic_scale(gx.loss_scale(adam), adam.init(P))


# ------------------------------------------------------------------------------- other loops


def test_a_row_sparse_gradient_of_a_scaled_loss():
    def lookups(params, ids):
        rows = gx.tree.cast(params, jnp.float16)["table"][ids]
        return 1e-8 * jnp.sum((rows * rows).astype(jnp.float32))

    tx, table = gx.loss_scale(gx.sgd(1e6)), {"table": jnp.ones((6, 2))}
    step = gx.make_step(tx, lookups, sparse=["table"])
    ids = jnp.asarray([1, 4])
    new, _, loss = step(jax.tree.map(jnp.array, table), tx.init(table), ids)
    np.testing.assert_allclose(loss, 4e-8, rtol=1e-3)
    np.testing.assert_allclose(new["table"], table["table"].at[ids].set(0.98), rtol=1e-4)


@pytest.mark.parametrize("mode", list(MODES))
@pytest.mark.parametrize("name", ["around a tower", "in a tower", "an axis"])
def test_a_step_of_replicas(mode, name):
    tx = TOGETHER[name](gx.sgd(1e6))
    r = replicas(mode, 2)
    params = r.replicate({"w": jnp.ones(3)})
    state = r.wrap(tx.init)(params)
    step = r.wrap(gx.make_step(tx, loss_fn))
    for factor in (1.0, np.inf):
        params, state, _ = step(params, state, r.place(jnp.asarray([1.0, factor], jnp.float32)))
    shown = gx.metrics(state, replicas=True)
    alone, start = gx.loss_scale(gx.sgd(1e6), 8.0), {"w": jnp.ones(3)}
    want, _, _ = gx.make_step(alone, loss_fn)(start, alone.init(start), 1.0)
    assert np.all(want["w"] < 0.99)
    np.testing.assert_allclose(params["w"], np.stack([want["w"]] * 2), rtol=1e-6)
    assert shown["loss_scale"] == 4 and shown["total_skipped"] == 1


def test_an_optimizer_of_nnx():
    model = nnx.Linear(3, 2, dtype=jnp.float16, rngs=nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, gx.loss_scale(gx.adam(0.1), 8.0), wrt=nnx.Param)

    def scaled(model, x):
        loss = jnp.mean(model(x).astype(jnp.float32) ** 2)
        return gx.scaled_loss(loss, optimizer.opt_state)

    x, losses = jnp.ones((4, 3)), []
    for bad in (1.0, 1.0, np.inf, 1.0):
        loss, grads = nnx.value_and_grad(scaled)(model, bad * x)
        optimizer.update(model, grads)
        losses.append(float(loss))
    assert losses[1] < losses[0] and losses[3] < losses[1] / 2
    assert gx.scaled_loss(1.0, optimizer.opt_state) == 4
