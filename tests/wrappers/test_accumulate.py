"""`accumulate`: weights, micro-batches left out, memory, derivatives."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradxform as gx
from gradxform.testing import example_params, random_gradients
from gradxform.testing.promise import check_close
from tests import references as ref
from tests.catalogue.accumulate import ADAM_STEP

pytestmark = pytest.mark.numeric

ADAM, SGD = gx.adam(0.1), gx.sgd(0.5)
STEPS = 30
P = {"w": jnp.asarray([1.0, -2.0])}


def run(tx, grads, params, **told):
    """The parameters after all micro-batches, and the last state."""
    state, step = tx.init(params), jax.jit(tx.update)
    for t, g in enumerate(grads):
        updates, state = step(g, state, params, **{k: v[t] for k, v in told.items()})
        params = gx.apply_updates(params, updates)
    return params, state


@pytest.mark.parametrize("mean", [True, False])
def test_without_bad_micro_batches_it_is_multi_steps(mean):
    params = example_params()
    grads = random_gradients(params, STEPS)
    theirs = run(gx.MultiSteps(ADAM, 3, use_grad_mean=mean), grads, params)
    tx = gx.accumulate(ADAM, 3, "mean" if mean else "sum", skip_not_finite=False)
    ours = run(tx, grads, params)
    check_close("params", ours[0], theirs[0], 1e-6)
    check_close("state", ours[1].inner_state, theirs[1].inner_opt_state, 1e-6)
    assert int(ours[1].gradient_step) == int(theirs[1].gradient_step) == STEPS // 3


def test_every_micro_batch_counts_by_its_weight():
    params = example_params()
    grads = random_gradients(params, 12)
    weights = np.random.default_rng(5).integers(0, 9, 12).astype(np.float32)
    weights[:4] = 0, 3, 0, 5
    tx = gx.accumulate(ADAM, 4, "weighted")
    params_after, state = run(tx, grads, params, weight=weights)
    reference = ref.accumulate(ADAM_STEP, 4, ref.weighted, lambda n: weights[n])
    ps = [np.asarray(p, np.float64) for p in jax.tree.leaves(params)]
    ref_state = reference.start(ps)
    for t, g in enumerate(grads, 1):
        wide = [np.asarray(x, np.float64) for x in jax.tree.leaves(g)]
        us, ref_state = reference.step(wide, ref_state, ps, t)
        ps = [p + u for p, u in zip(ps, us, strict=True)]
    check_close("params", params_after, jax.tree.unflatten(jax.tree.structure(params), ps), 2e-5)
    assert int(state.gradient_step) == 3 and int(state.total_skipped) == 0


def test_a_micro_batch_of_weight_0_may_hold_anything():
    nan = {"w": jnp.full(2, jnp.nan)}
    for skip in (True, False):
        tx = gx.accumulate(ADAM, 2, "weighted", skip_not_finite=skip)
        params, state = run(tx, [nan, P], P, weight=[0, 7])
        assert int(state.total_skipped) == 0 and int(state.gradient_step) == 1
        check_close("params", params, run(ADAM, [P], P)[0], 1e-6)


def test_a_step_of_no_weight_is_not_taken():
    tx = gx.accumulate(gx.adamw(0.1), 2, "weighted")
    params, state = run(tx, [P] * 4, P, weight=[0, 0, 1, 0])
    assert int(state.gradient_step) == 1
    check_close("params", params, run(gx.adamw(0.1), [P], P)[0], 1e-6)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("every", [1, 3])
def test_no_bad_number_reaches_the_inner_state(bad, every):
    grads = random_gradients(P, 9)
    for t in (0, 3, 4, 5):  # of the second step of three, all
        grads[t] = {"w": grads[t]["w"].at[1].set(bad)}
    params, state = run(gx.accumulate(gx.adamw(0.1), every), grads, P)
    assert all(np.isfinite(x).all() for x in jax.tree.leaves((params, state)))
    assert int(state.total_skipped) == 4
    assert int(state.gradient_step) == (5 if every == 1 else 2)


@pytest.mark.parametrize("weight", [-1.0, np.nan, np.inf])
def test_a_weight_that_is_none_is_left_out_where_it_is_traced(weight):
    tx = gx.accumulate(ADAM, 2, "weighted")
    params, state = run(tx, [P, P], P, weight=[jnp.float32(weight), jnp.float32(2)])
    assert int(state.total_skipped) == 1 and float(state.total_weight) == 0
    check_close("params", params, run(ADAM, [P], P)[0], 1e-6)


def test_weight_and_period_may_be_arrays_that_a_jitted_step_closes_over():
    two = jnp.asarray(2)
    tx = gx.accumulate(gx.sgd(0.5), lambda step: two, "weighted")
    state = tx.init(P)
    step = jax.jit(lambda state: tx.update(P, state, P, weight=two)[1])
    assert int(step(step(state)).gradient_step) == 1
    less = -two
    with pytest.raises(ValueError, match="weight must be at least 0, got"):
        jax.jit(lambda state: tx.update(P, state, P, weight=less))(state)


@pytest.mark.parametrize("every", [1, 2])
def test_the_total_weight_goes_to_an_inner_part_that_takes_it(every):
    """The steps of SGD show the mean; the first ones of Adam are signs."""
    nested = gx.accumulate(gx.accumulate(SGD, 4 // every, "weighted"), every, "weighted")
    grads = random_gradients(P, 8)
    weights = [1.0, 2.0, 3.0, 4.0, 0.5, 2.0, 7.0, 1.0]
    flat = gx.accumulate(SGD, 4, "weighted")
    ours, theirs = (run(tx, grads, P, weight=weights)[0] for tx in (nested, flat))
    check_close("params", ours, theirs, 1e-6)


def test_a_weight_for_another_part_passes_through():
    tx = gx.accumulate(gx.chain(gx.accumulate(SGD, 1, "weighted")), 1)
    params, _ = run(tx, [P], P, weight=[0.0])
    check_close("params", params, P, 0)


@pytest.mark.parametrize("reduction", ["mean", "sum", "weighted"])
@pytest.mark.parametrize("skip_not_finite", [True, False])
def test_a_step_is_taken_early_where_it_is_flushed(reduction, skip_not_finite):
    tx = gx.accumulate(gx.trace(0.5), 4, reduction, skip_not_finite=skip_not_finite)
    rng = np.random.default_rng(0)
    grads = rng.normal(size=(7, 3)).astype(np.float32)
    weights = {"weight": rng.uniform(1, 2, size=7)} if reduction == "weighted" else {}
    params = jnp.zeros(3)
    step = jax.jit(lambda g, s, flush, more: tx.update(g, s, params, flush=flush, **more))
    state, outs = tx.init(params), []
    for t, g in enumerate(grads):
        more = {k: w[t] for k, w in weights.items()}
        u, state = step(g, state, t == 2, more)
        outs.append(u)
    rows = weights.get("weight", np.ones(7))[:, None]
    wanted = [
        part.sum(0) if reduction == "sum" else (part * w).sum(0) / w.sum()
        for part, w in ((grads[:3], rows[:3]), (grads[3:], rows[3:]))
    ]
    np.testing.assert_allclose(outs[2], wanted[0], rtol=1e-5)
    np.testing.assert_allclose(outs[6], wanted[1] + 0.5 * wanted[0], rtol=1e-5)
    assert not any(np.any(u) for t, u in enumerate(outs) if t not in (2, 6))
    assert state.mini_step == 0 and state.gradient_step == 2 and state.total_weight == 0


def test_a_flush_reaches_an_accumulator_inside():
    tx, params = gx.accumulate(gx.accumulate(gx.identity(), 2), 2), jnp.zeros(2)
    u, state = tx.update(jnp.ones(2), tx.init(params), params, flush=True)
    np.testing.assert_array_equal(u, 1)
    assert state.gradient_step == state.inner_state.gradient_step == 1


def test_a_flush_is_true_or_false():
    tx, params = gx.accumulate(gx.sgd(0.1), 2), jnp.zeros(2)
    with pytest.raises(TypeError, match="accumulate: flush must be True or False, got 1"):
        tx.update(params, tx.init(params), params, flush=1)


def test_the_period_grows_with_the_inner_steps():
    tx = gx.accumulate(gx.scale(1.0), lambda n: n + 1, "sum")
    state, taken = tx.init(P), []
    for _ in range(10):
        updates, state = tx.update(P, state, P)
        taken.append(float(updates["w"][0]))
    assert taken == [1, 0, 2, 0, 0, 3, 0, 0, 0, 4]


# ---------------------------------------------------------------------------------- what it costs

MANY = {f"w{i}": jnp.ones((64, 128)) for i in range(16)}
SIZE = sum(x.nbytes for x in MANY.values())
# As users compile; the tests leave LLVM's costly passes out.
OPTIMIZED = {"xla_backend_optimization_level": 3, "xla_llvm_disable_expensive_passes": False}


def compiled(tx, tree=MANY, **extra):
    def step(params, state, grads):
        updates, state = tx.update(grads, state, params, **extra)
        return gx.apply_updates(params, updates), state

    lowered = jax.jit(step, donate_argnums=(0, 1), compiler_options=OPTIMIZED).lower(
        tree, tx.init(tree), tree
    )
    return lowered.compile()


@pytest.mark.parametrize("reduction", ["mean", "weighted"])
@pytest.mark.parametrize("inner", [ADAM, gx.chain(gx.clip_by_global_norm(1.0), ADAM)])
def test_a_donated_step_needs_little_more_memory_than_its_buffers(inner, reduction):
    extra = {"weight": 3.0} if reduction == "weighted" else {}
    memory = compiled(gx.accumulate(inner, 4, reduction), **extra).memory_analysis()
    assert memory.temp_size_in_bytes <= 1.1 * SIZE
    assert memory.alias_size_in_bytes >= 4 * SIZE  # parameters, moments and accumulator


def test_one_micro_batch_costs_nothing():
    tx = gx.accumulate(ADAM, 1, skip_not_finite=False)
    extra = len(jax.tree.leaves(tx.init(MANY))) - len(jax.tree.leaves(ADAM.init(MANY)))
    assert extra == 4  # scalars
    alone, wrapped = compiled(ADAM), compiled(tx)
    assert wrapped.memory_analysis().temp_size_in_bytes <= (
        alone.memory_analysis().temp_size_in_bytes + 4096
    )
    assert wrapped.cost_analysis()["bytes accessed"] <= (
        1.001 * alone.cost_analysis()["bytes accessed"]
    )


@pytest.mark.parametrize("differentiable", [False, True])
def test_the_program_grows_with_the_leaves_and_not_with_their_square(differentiable):
    tx = gx.accumulate(SGD, 2, differentiable=differentiable)

    def size(n):
        params = {f"w{i}": jnp.ones(8) for i in range(n)}
        return len(compiled(tx, params).as_text().splitlines())

    few, many = size(10), size(40)
    assert many < 4.2 * few


# ----------------------------------------------------------------------------------- derivatives


def after(tx, grads, params, weights=None):
    state = tx.init(params)
    for i, g in enumerate(grads):
        extra = {} if weights is None else {"weight": weights[i]}
        updates, state = tx.update(g, state, params, **extra)
        params = gx.apply_updates(params, updates)
    return params


def two_steps(scale, tx, grads):
    """The squared parameters after two steps, where the first half of each gradient is scaled."""
    grads = [{"w": jnp.stack([scale * g["w"][0], g["w"][1] + scale])} for g in grads]
    return sum(jnp.sum(p**2) for p in jax.tree.leaves(after(tx, grads, P)))


WRAPPED = {
    "accumulate": lambda inner: gx.accumulate(inner, 2),
    "branching": lambda inner: gx.accumulate(inner, 2, differentiable=True),
    "MultiSteps": lambda inner: gx.MultiSteps(inner, 2),
}


@pytest.mark.parametrize("wrapped", WRAPPED)
@pytest.mark.parametrize("inner", [gx.sgd(0.1, 0.9), ADAM])
def test_steps_can_be_differentiated_in_both_modes(inner, wrapped):
    grads = random_gradients(P, 4)
    tx = WRAPPED[wrapped](inner)
    slope = jax.jit(jax.grad(two_steps), static_argnums=1)(1.3, tx, grads)
    means = [jax.tree.map(lambda a, b: (a + b) / 2, *grads[i : i + 2]) for i in (0, 2)]
    expected = jax.grad(two_steps)(1.3, inner, means)
    np.testing.assert_allclose(slope, expected, rtol=1e-4)
    _, forward = jax.jvp(lambda scale: two_steps(scale, tx, grads), (1.3,), (1.0,))
    np.testing.assert_allclose(slope, forward, rtol=1e-4)


@pytest.mark.parametrize("wrapped", WRAPPED)
def test_a_number_of_the_inner_transform_has_a_derivative_in_both_modes(wrapped):
    grads = random_gradients(P, 4)

    def at(rate):
        return two_steps(1.3, WRAPPED[wrapped](gx.sgd(rate)), grads)

    slope, (_, forward) = jax.grad(at)(0.1), jax.jvp(at, (0.1,), (1.0,))
    np.testing.assert_allclose([slope, forward], (at(0.101) - at(0.099)) / 0.002, rtol=1e-3)


def test_what_is_left_out_has_a_derivative_of_0():
    """Not NaN, though neither a bad micro-batch nor the root of a zero has a derivative."""
    grads = [{"w": jnp.asarray([0.0, 1.0])}, P, {"w": jnp.full(2, jnp.nan)}, P]
    tx = gx.accumulate(ADAM, 2, "weighted", differentiable=True)

    def loss(grads, weights):
        return jnp.sum(after(tx, grads, P, weights)["w"])

    slopes, of_weights = jax.grad(loss, (0, 1))(grads, [1.0, 1.0, 2.0, 3.0])
    assert all(np.isfinite(x).all() for x in jax.tree.leaves((slopes, of_weights)))
    np.testing.assert_array_equal(slopes[2]["w"], [0.0, 0.0])
    assert of_weights[2] == 0 and slopes[3]["w"].any()
