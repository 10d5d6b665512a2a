"""Our transforms inside Optax's wrappers, and Optax's transforms inside ours."""

import copy
import functools
import inspect
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradxform as gx
from tests.rules import scale_by_value
from tests.trees import assert_close

# Optax forms 1 - b2**t in float32, which is off by 1e-5.
assert_same = functools.partial(assert_close, atol=2e-5)

pytestmark = pytest.mark.numeric

optax = pytest.importorskip("optax")

PARAMS = {
    "a": jnp.asarray([[1.0, -2.0], [0.5, 3.0]]),
    "b": jnp.asarray([0.1, -0.2]),
}
MASK = {"a": True, "b": False}
LABELS = {"a": "x", "b": "y"}
STEPS = 5


@pytest.fixture(autouse=True)
def _optax_promotes():
    """Optax is not written for strict promotion; our own tests are elsewhere."""
    with jax.numpy_dtype_promotion("standard"):
        yield


def grads_of(params, step=0):
    return jax.tree.map(lambda p: p * 0.5 + 0.1 * (step + 1), params)


def trained(tx, params=PARAMS, steps=STEPS, extra=None, jit=True, grads_of=grads_of):
    """Init and update by attribute, as every training loop does."""
    update = jax.jit(tx.update) if jit else tx.update
    state = tx.init(params)
    for step in range(steps):
        updates, state = update(grads_of(params, step), state, params, **(extra or {}))
        params = optax.apply_updates(params, updates)
    return params, state


# ------------------------------------------------------------------------------- ours in Optax's

# `lib` is where the leaf transforms come from, the wrapper is always Optax's.
OPTAX_WRAPPERS = {
    "chain": lambda lib: optax.chain(lib.clip_by_global_norm(0.5), lib.adamw(0.1)),
    "named_chain": lambda lib: optax.named_chain(("c", lib.clip(0.3)), ("o", lib.adam(0.1))),
    "masked": lambda lib: optax.masked(lib.adamw(0.1), MASK),
    "partition": lambda lib: optax.partition({"x": lib.adam(0.1), "y": lib.sgd(0.2, 0.9)}, LABELS),
    "MultiSteps": lambda lib: optax.MultiSteps(lib.adam(0.1), 2).gradient_transformation(),
    "inject_hyperparams": lambda lib: optax.inject_hyperparams(lib.adamw)(0.1, weight_decay=0.2),
    "inject, schedule": lambda lib: optax.inject_hyperparams(lib.sgd)(lambda n: 0.1 / (1 + n)),
    "apply_if_finite": lambda lib: optax.apply_if_finite(lib.adam(0.1), 3),
    "flatten": lambda lib: optax.flatten(lib.adam(0.1)),
    "conditionally_transform": lambda lib: optax.conditionally_transform(
        lib.sgd(0.1, 0.9), lambda step: step < 3
    ),
}


@functools.cache
def in_optax(name, lib):
    return trained(OPTAX_WRAPPERS[name](lib))[0]


@pytest.mark.parametrize("name", list(OPTAX_WRAPPERS))
def test_ours_inside_optax_equals_optax_inside_optax(name):
    assert_same(in_optax(name, gx), in_optax(name, optax))


@pytest.mark.parametrize("name", ["chain", "inject_hyperparams"])
def test_ours_inside_optax_runs_eagerly(name):
    assert_same(trained(OPTAX_WRAPPERS[name](gx), jit=False)[0], in_optax(name, optax))


@pytest.mark.parametrize("lib", [gx, optax], ids=["ours", "optax's"])
def test_optaxs_lookahead_takes_our_transforms(lib):
    tx = optax.lookahead(lib.sgd(0.1), sync_period=2, slow_step_size=0.5)
    params = optax.LookaheadParams.init_synced(PARAMS)
    state = tx.init(params)
    for step in range(4):
        updates, state = tx.update(grads_of(params.fast, step), state, params)
        params = optax.apply_updates(params, updates)
    ours = gx.lookahead(gx.sgd(0.1), sync_period=2, slow_step_size=0.5)
    fast, its_state = trained(ours, steps=4)
    assert_same(params.fast, fast)
    assert_same(params.slow, its_state.slow)


def test_our_lookahead_takes_optax_pairs():
    tx = gx.lookahead(optax.sgd(0.1), sync_period=2, slow_step_size=0.5)
    params = optax.LookaheadParams.init_synced(PARAMS)
    state = tx.init(params)
    for step in range(4):
        updates, state = tx.update(grads_of(params.fast, step), state, params)
        params = optax.apply_updates(params, updates)
    assert isinstance(params, optax.LookaheadParams)
    fast, _ = trained(gx.lookahead(gx.sgd(0.1), 2, 0.5), steps=4)
    assert_same(params.fast, fast)
    assert_same(params.slow, fast)  # 4 steps: just synchronized


def test_optax_finds_our_state():
    _, state = trained(optax.chain(gx.clip(1.0), gx.adam(0.1)))
    assert int(optax.tree.get(state, "mu", filtering=lambda p, v: True)["a"].ndim) == 2
    nu = optax.tree.get(state, "nu")
    assert set(nu) == {"a", "b"}
    zeroed = optax.tree.set(state, nu=jax.tree.map(jnp.zeros_like, nu))
    assert jax.tree.structure(zeroed) == jax.tree.structure(state)
    assert not np.any(optax.tree.get(zeroed, "nu")["a"])


def test_values_that_optax_skips_reach_no_state_of_ours():
    def poisoned(params, step):
        return jax.tree.map(lambda g: g if step != 2 else g * np.nan, grads_of(params, step))

    got, state = trained(optax.apply_if_finite(gx.adam(0.1), 3), grads_of=poisoned)
    want, _ = trained(optax.apply_if_finite(optax.adam(0.1), 3), grads_of=poisoned)
    assert_same(got, want)
    assert int(state.total_notfinite) == 1


# -------------------------------------------------------------------------------------- as_optax


def test_as_optax_is_an_optax_transform():
    made = gx.as_optax(gx.adamw(0.1))
    assert isinstance(made, optax.GradientTransformation)
    assert isinstance(made, optax.GradientTransformationExtraArgs)
    init, update = made
    assert_same(
        update(grads_of(PARAMS), init(PARAMS), PARAMS),
        gx.adamw(0.1).update(grads_of(PARAMS), gx.adamw(0.1).init(PARAMS), PARAMS),
    )


@pytest.mark.parametrize(
    "make",
    [
        lambda lr: gx.adamw(lr, mask=gx.ndim_at_least(2)),
        lambda lr: gx.MultiSteps(gx.sgd(lr), 2),
        lambda lr: gx.inject_hyperparams(gx.adam)(lr),
        lambda lr: gx.partition({"x": gx.sgd(lr), "y": gx.sgd(0.1)}, LABELS),
    ],
)
def test_as_optax_is_a_value(make):
    a, b, other = gx.as_optax(make(0.1)), gx.as_optax(make(0.1)), gx.as_optax(make(0.2))
    assert a == b
    assert hash(a) == hash(b)
    assert a != other
    for same in (pickle.loads(pickle.dumps(a)), copy.deepcopy(a)):
        assert same == a
        assert hash(same) == hash(a)
        assert type(same) is type(a)
    assert len({a, b, other}) == 2


def test_as_optax_gives_states_of_optax_classes_and_keeps_them():
    adamw = gx.adamw(gx.linear_schedule(0.1, 0.0, 9), mask=gx.ndim_at_least(2))
    tx = gx.as_optax(gx.MultiSteps(adamw, 2))
    state = tx.init(PARAMS)
    assert isinstance(state, optax.MultiStepsState)
    adam, decay, rate = state.inner_opt_state
    assert isinstance(adam, optax.ScaleByAdamState)
    assert isinstance(decay, optax.MaskedState)
    assert isinstance(rate, optax.ScaleByScheduleState)
    _, after = jax.lax.scan(
        lambda state, _: (tx.update(grads_of(PARAMS), state, PARAMS)[1], None), state, length=4
    )[::-1]
    assert jax.tree.structure(after) == jax.tree.structure(state)


def test_a_chain_around_as_optax_keeps_the_classes_of_its_states():
    tx = gx.chain(gx.clip(1.0), gx.as_optax(gx.adam(0.1)))
    state = tx.init(PARAMS)
    assert isinstance(state[1][0], optax.ScaleByAdamState)
    _, after = tx.update(grads_of(PARAMS), state, PARAMS)
    assert jax.tree.structure(after) == jax.tree.structure(state)


def test_jit_tells_init_from_that_of_as_optax():
    tx = gx.adam(0.1)
    assert gx.as_optax(tx).init != tx.init
    assert isinstance(jax.jit(tx.init)(PARAMS)[0], gx.ScaleByAdamState)
    assert isinstance(jax.jit(gx.as_optax(tx).init)(PARAMS)[0], optax.ScaleByAdamState)


def test_as_optax_leaves_a_state_that_lies_differently_in_optax():
    state = gx.as_optax(gx.scale_by_sm3()).init(PARAMS)
    assert isinstance(state, gx.ScaleBySM3State)


def test_extra_arguments_reach_as_optax_inside_optax_chain():
    tx = optax.chain(optax.scale(2.0), gx.as_optax(gx.chain(scale_by_value(), gx.scale(-1.0))))
    updates, _ = tx.update(PARAMS, tx.init(PARAMS), PARAMS, value=jnp.asarray(3.0))
    assert_same(updates, jax.tree.map(lambda p: -6 * p, PARAMS))
    with pytest.raises(TypeError, match=r"scale_by_value.*'value'"):
        tx.update(PARAMS, tx.init(PARAMS), PARAMS)


def test_optax_chain_drops_extra_arguments_without_as_optax():
    # Why as_optax exists. If this fails, Optax has learned it, and the docs can be shortened.
    tx = optax.chain(scale_by_value())
    with pytest.raises(TypeError, match="'value'"):
        tx.update(PARAMS, tx.init(PARAMS), PARAMS, value=jnp.asarray(3.0))


@pytest.mark.parametrize("name", list(OPTAX_WRAPPERS))
def test_as_optax_works_inside_optax(name):
    class Wrapped:
        def __getattr__(self, attribute):
            ours = getattr(gx, attribute)

            def factory(*args, **kwargs):
                return gx.as_optax(ours(*args, **kwargs))

            factory.__signature__ = inspect.signature(ours)
            return factory

    assert_same(trained(OPTAX_WRAPPERS[name](Wrapped()))[0], in_optax(name, gx))


def test_as_optax_refuses_what_is_not_ours():
    with pytest.raises(TypeError, match="as_optax"):
        gx.as_optax(optax.sgd(0.1))
    with pytest.raises(TypeError, match="as_optax"):
        gx.as_optax(gx.clip)
    with pytest.raises(TypeError, match="as_optax"):
        gx.as_optax(3)


# ------------------------------------------------------------------------------- Optax's in ours

OUR_WRAPPERS = {
    "chain": lambda lib: gx.chain(lib.clip_by_global_norm(0.5), gx.clip(5.0), lib.adamw(0.1)),
    "named_chain": lambda lib: gx.named_chain(("c", lib.clip(0.3)), ("o", lib.adam(0.1))),
    "masked": lambda lib: gx.masked(lib.adamw(0.1), MASK),
    "partition": lambda lib: gx.partition({"x": lib.adam(0.1), "y": lib.sgd(0.2, 0.9)}, LABELS),
    "MultiSteps": lambda lib: gx.MultiSteps(lib.adamw(0.1), 2),
    "lookahead": lambda lib: gx.lookahead(lib.adam(0.1), 2, 0.5),
    "apply_if_finite": lambda lib: gx.apply_if_finite(lib.rmsprop(0.1), 2),
    "inject_hyperparams": lambda lib: gx.inject_hyperparams(lib.adamw)(0.1, weight_decay=0.2),
    "inject, schedule": lambda lib: gx.inject_hyperparams(lib.sgd)(lambda n: 0.1 / (1.0 + n)),
    "all of them": lambda lib: gx.MultiSteps(
        gx.apply_if_finite(gx.chain(gx.masked(lib.trace(0.9), MASK), lib.adam(0.1)), 1), 2
    ),
}


@functools.cache
def in_ours(name, lib):
    return trained(OUR_WRAPPERS[name](lib))[0]


@pytest.mark.parametrize("name", list(OUR_WRAPPERS))
def test_optax_inside_ours_equals_ours_inside_ours(name):
    assert_same(in_ours(name, optax), in_ours(name, gx))


@pytest.mark.parametrize("name", ["MultiSteps", "apply_if_finite", "inject_hyperparams"])
def test_optax_inside_ours_runs_eagerly(name):
    assert_same(trained(OUR_WRAPPERS[name](optax), jit=False)[0], in_ours(name, gx))


def avals(tree):
    return jax.tree.map(lambda x: (jnp.shape(x), jnp.asarray(x).dtype), tree)


@pytest.mark.parametrize(
    "p_dtype, g_dtype",
    [("bfloat16", "float32"), ("bfloat16", "bfloat16"), ("float32", "bfloat16")],
)
@pytest.mark.parametrize("inner", ["adamw", "sgd", "rmsprop"])
@pytest.mark.parametrize("wrapper", ["MultiSteps", "apply_if_finite"])
def test_guards_keep_the_dtypes_of_an_optax_state(wrapper, inner, p_dtype, g_dtype):
    # Optax's moments are bfloat16 at init and float32 after an update with float32 gradients; a
    # loop must not change the types of what it carries.
    opt = {
        "adamw": optax.adamw(0.1),
        "sgd": optax.sgd(0.1, momentum=0.9),
        "rmsprop": optax.rmsprop(0.1),
    }[inner]
    tx = gx.MultiSteps(opt, 2) if wrapper == "MultiSteps" else gx.apply_if_finite(opt, 2)
    params = jax.tree.map(lambda p: p.astype(p_dtype), PARAMS)
    grads = jax.tree.map(lambda p: 0.5 * p.astype(g_dtype), PARAMS)
    state = tx.init(params)
    before = avals(state)
    carried = state
    update = jax.jit(tx.update)
    for _ in range(4):
        updates, state = update(grads, state, params)
        assert avals(state) == before
        assert avals(updates) == avals(grads)
    assert all(np.any(np.asarray(u, np.float32)) for u in jax.tree.leaves(updates))

    def body(state, _):
        updates, state = tx.update(grads, state, params)
        return state, updates

    final, _ = jax.lax.scan(body, carried, None, length=4)
    assert_same(final, state, rtol=1e-2)


def test_masked_hands_optax_a_tree_that_it_understands():
    # Optax's own masked inside ours, and ours inside Optax's: both call the hole a MaskedNode.
    both = gx.masked(
        optax.masked(optax.adam(0.1), lambda p: p and jax.tree.map(lambda _: True, p)), MASK
    )
    turned = optax.masked(gx.masked(gx.adam(0.1), lambda p: jax.tree.map(lambda _: True, p)), MASK)
    want, _ = trained(gx.masked(gx.adam(0.1), MASK))
    assert_same(trained(both)[0], want)
    assert_same(trained(turned)[0], want)


def test_injected_optax_hyperparameters_can_be_set():
    tx = gx.inject_hyperparams(optax.adamw)(0.1, weight_decay=0.0)
    state = tx.init(PARAMS)
    assert float(state.hyperparams["learning_rate"]) == np.float32(0.1)
    assert state.hyperparams["learning_rate"].dtype == jnp.float32
    state.hyperparams["learning_rate"] = jnp.asarray(0.0)
    updates, state = jax.jit(tx.update)(grads_of(PARAMS), state, PARAMS)
    assert not np.any(updates["a"])
    assert float(state.hyperparams["learning_rate"]) == 0.0


def test_extra_arguments_pass_through_ours_to_optax():
    tx = gx.chain(gx.clip(10.0), gx.apply_if_finite(optax.polyak_sgd(1.0), 3))
    alone = optax.polyak_sgd(1.0)
    extra = {"value": jnp.asarray(2.0)}
    assert_same(trained(tx, extra=extra)[0], trained(alone, extra=extra)[0])


def test_schedules_of_optax_are_schedules_here():
    schedule = optax.cosine_decay_schedule(0.3, 4)
    assert_same(trained(gx.adam(schedule))[0], trained(optax.adam(schedule))[0])
