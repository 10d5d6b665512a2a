"""The numbers in a state: keys, steps, learning rates, norms."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, PartitionSpec as P

import gradxform as gx
import gradxform.distributed as gd
from gradxform.leaves import with_paths
from gradxform.testing import example_params, random_gradients
from tests.catalogue import CASES

optax = pytest.importorskip("optax")

pytestmark = pytest.mark.numeric

PARAMS = example_params()
GRADS = random_gradients(PARAMS, 8)
MATRIX = gx.ndim_at_least(2)
LABELS = gx.label_by(("matrix", MATRIX), ("rest", True))
FALLING = gx.linear_schedule(0.5, 0.1, 4)


def after(tx, steps, params=PARAMS, grads=GRADS, **extra):
    state = tx.init(params)
    update = jax.jit(tx.update)
    for g in grads[:steps]:
        updates, state = update(g, state, params, **extra)
        params = gx.apply_updates(params, updates)
    return state


def shown(state, *args, **more):
    """The metrics as Python numbers; the same under jit."""
    eager = gx.metrics(state, *args, **more)
    jitted = jax.jit(functools.partial(gx.metrics, **more))(state, *args)
    assert list(eager) == list(jitted) or sorted(eager) == sorted(jitted)
    for key, x in eager.items():
        assert jnp.shape(x) == () and isinstance(x, jax.Array), key
        np.testing.assert_allclose(x, jitted[key], rtol=1e-5)
    return {key: x.item() for key, x in eager.items()}


# --------------------------------------------------------------------------------------- the keys


class SteppedState(NamedTuple):
    step: jax.Array


class Stepped(NamedTuple):
    """An optimizer of somebody, beside whose state there is one with a field `step`."""

    inner: Any

    def init(self, params):
        return self.inner.init(params), SteppedState(jnp.zeros((), jnp.int32))

    def update(self, updates, state, params=None):
        updates, inner = self.inner.update(updates, state[0], params)
        return updates, (inner, state[1])


STATES = {
    "nothing": (gx.sgd(0.1), {}),
    "one count": (gx.adam(0.1), {"step": 3}),
    "two counts": (gx.adamw(FALLING), {"step": 3, "ScaleBySchedule/count": 3}),
    "labels": (
        gx.named_chain(("fast", gx.adam(0.1)), ("slow", gx.adam(0.1))),
        {"step": 3, "slow/count": 3},
    ),
    "groups": (
        gx.partition({"matrix": gx.scale_by_adam(), "rest": gx.trace(0.9)}, LABELS),
        {"step": 3},
    ),
    "places": (gx.chain(gx.scale_by_adam(), gx.scale_by_adam()), {"step": 3, "1/count": 3}),
    "hyperparameters": (
        gx.inject_hyperparams(gx.sgd)(FALLING, momentum=0.9),
        {
            "step": 3,
            "learning_rate": pytest.approx(0.3),
            "momentum": pytest.approx(0.9),
            "learning_rate/count": 3,
        },
    ),
    "micro-batches": (
        gx.MultiSteps(gx.adam(0.1), 2, should_skip_update_fn=gx.skip_not_finite),
        {"mini_step": 1, "step": 1, "should_skip": False, "num_not_finite": 0, "count": 1},
    ),
    "guard": (
        gx.chain(gx.apply_if_finite(gx.masked(gx.adam(0.1), gx.ndim_at_least(2)), 3)),
        {"notfinite_count": 0, "last_finite": True, "total_notfinite": 0, "step": 3},
    ),
    "noise": (gx.add_noise(0.1, 0.5, 3), {"step": 3}),
    "optax": (
        optax.chain(
            optax.apply_if_finite(optax.adam(0.1), 3),
            optax.inject_hyperparams(optax.scale)(0.5),
        ),
        {
            "notfinite_count": 0,
            "last_finite": True,
            "total_notfinite": 0,
            "step": 3,
            "step_size": 0.5,
            "ScaleByAdam/count": 3,
        },
    ),
    "a step that is not the step": (Stepped(gx.adam(0.1)), {"step": 3, "1/step": 0}),
}


@pytest.mark.reference
@pytest.mark.parametrize("name", list(STATES))
def test_the_numbers_of_a_state_have_short_keys(name):
    tx, expected = STATES[name]
    with jax.numpy_dtype_promotion("standard"):
        assert shown(after(tx, 3)) == expected


def test_keys_of_the_same_structure_are_the_same():
    tx = gx.chain(gx.clip(1.0), gx.adamw(FALLING))
    assert list(gx.metrics(tx.init(PARAMS))) == list(gx.metrics(after(tx, 3)))


def test_skipped_steps_are_counted():
    tx = gx.apply_if_finite(gx.adam(0.1), 5)
    bad = [jax.tree.map(lambda g: g * jnp.nan, GRADS[0])]
    numbers = shown(after(tx, 3, grads=[GRADS[0], *bad, *bad]))
    assert numbers["total_notfinite"] == numbers["notfinite_count"] == 2
    assert numbers["step"] == 1 and numbers["last_finite"] is False


def test_no_slot_is_read_unless_asked_for():
    state = gx.adam(0.1).init({"s": jnp.ones(()), "w": jnp.ones(3)})
    assert set(gx.metrics(state)) == {"step"}  # a scalar parameter's slots are not numbers either
    program = str(jax.make_jaxpr(gx.metrics)(state))
    assert "mul" not in program and "reduce" not in program
    numbers = shown(after(gx.adam(0.1), 3), slots=True)
    expected = float(gx.global_norm(after(gx.adam(0.1), 3)[0].mu))
    np.testing.assert_allclose(numbers["mu_norm"], expected, rtol=1e-6)
    assert set(numbers) == {"step", "mu_norm", "nu_norm"}
    theirs = shown(optax.adam(0.1).init(PARAMS), slots=True)
    assert theirs == {"step": 0, "mu_norm": 0.0, "nu_norm": 0.0}


@pytest.mark.parametrize(
    "wrap",
    [
        lambda tx: gx.quantize_state(tx, min_size=8),
        lambda tx: gx.factor_state(tx, min_dim_size_to_factor=8),
        lambda tx: gx.state_dtype(tx, jnp.bfloat16),
        lambda tx: gx.offload_state(gx.quantize_state(tx, min_size=8)),
    ],
)
def test_the_norm_of_a_stored_slot_is_of_what_it_stands_for(wrap):
    rng = np.random.default_rng(0)
    matrix = np.outer(rng.normal(size=64), rng.normal(size=32))  # rows and columns tell all of it
    params = {"w": jnp.asarray(matrix, jnp.float32), "b": jnp.ones(3)}
    tx = gx.scale_by_adam()
    grads = [jax.tree.map(lambda p, k=k: p * k, params) for k in (1.0, 2.0, -3.0)]
    plain = after(tx, 3, params, grads)
    numbers = shown(after(wrap(tx), 3, params, grads), slots=True)
    for slot in ("mu", "nu"):
        expected = gx.global_norm(getattr(plain, slot))
        np.testing.assert_allclose(numbers[f"{slot}_norm"], expected, rtol=0.05)
    r = gd.Replicas("replica", n=2, mode="vmap")
    step = r.wrap(lambda p, g: wrap(tx).update(g, wrap(tx).init(p), p)[1])
    both = step(r.replicate(params), r.replicate(params))
    several = gx.metrics(both, slots=True, replicas=True)
    one = gx.metrics(wrap(tx).update(params, wrap(tx).init(params), params)[1], slots=True)
    np.testing.assert_allclose(several["mu_norm"], [one["mu_norm"]] * 2, rtol=1e-3)


def test_the_numbers_outlive_a_donated_state():
    tx = gx.adam(0.1)
    state = tx.init(PARAMS)
    numbers = gx.metrics(state)
    jax.jit(lambda s: jax.tree.map(lambda x: x + 1, s), donate_argnums=0)(state)
    assert int(numbers["step"]) == 0


class Measured(NamedTuple):
    """A state that says itself what it shows."""

    secret: jax.Array
    inner_state: object

    def metrics(self):
        return {"clip_fraction": self.secret / 4}


def test_a_state_says_itself_what_it_shows():
    state = Measured(jnp.asarray(2.0), gx.adam(0.1).init(PARAMS))
    assert shown(state) == {"clip_fraction": 0.5, "step": 0}


@pytest.mark.parametrize("name", list(CASES))
def test_every_state_has_unique_scalars(name):
    """Of each part of the catalogue, before the first step: a dict of as many keys as numbers."""
    case = CASES[name]
    with jax.numpy_dtype_promotion("standard"):
        state = jax.eval_shape(case.tx.init, case.params())
        numbers = jax.eval_shape(gx.metrics, state)
    assert all(x.shape == () for x in numbers.values())
    counts = [x for _, x in gx.tree.get_all_with_path(state, "count") if x is not None]
    assert len([k for k in numbers if k.split("/")[-1] in ("count", "step")]) >= min(len(counts), 1)


# ------------------------------------------------------------------------------------------ steps


def rarely(learning_rate):
    """An optimizer that takes a step every other time."""
    return gx.MultiSteps(gx.adam(learning_rate), 2)


STEPS = {
    "around another": (gx.inject_hyperparams(rarely)(0.1), 3),
    "adam": (gx.adam(0.1), 3),
    "schedule": (gx.sgd(FALLING), 3),
    "accumulated": (gx.chain(gx.MultiSteps(gx.adam(0.1), 2)), 1),
    "lookahead": (gx.lookahead(gx.adam(0.1), 2, 0.5), 3),
    "ademamix": (gx.ademamix(0.1), 3),
    "optax": (optax.adam(0.1), 3),
    "beside another count": (gx.chain(gx.apply_every(2), gx.adam(0.1)), 3),
    "a count inside": (gx.chain(gx.clip(1.0), gx.skip_loss_spikes(gx.adam(0.1))), 3),
    "optax beside": (optax.chain(optax.contrib.reduce_on_plateau(), optax.adam(0.1)), 3),
}


@pytest.mark.parametrize("name", list(STEPS))
def test_the_step_is_the_outermost_count(name):
    tx, expected = STEPS[name]
    loss = {"value": 1.0} if name in ("a count inside", "optax beside") else {}
    with jax.numpy_dtype_promotion("standard"):
        state = after(tx, 3, **loss)
    assert gx.current_step(state) == expected == jax.jit(gx.current_step)(state)
    assert shown(state)["step"] == expected


# ---------------------------------------------------------------------------------- learning rates

RATES = {
    "number": (gx.adamw(0.25), 0.25),
    "one rule": (gx.sgd(0.25), 0.25),
    "schedule": (gx.adamw(FALLING), FALLING(3)),
    "product": (gx.chain(gx.scale_by_adam(), gx.scale_by_schedule(FALLING), gx.scale(-2.0)), 0.4),
    "gradients scaled first": (gx.chain(gx.scale(3.0), gx.adam(0.25)), 0.25),
    "factors of the updates": (gx.chain(gx.adam(0.25), gx.scale(0.5)), 0.125),
    "nested": (
        gx.apply_if_finite(gx.chain(gx.masked(gx.adam(FALLING), gx.ndim_at_least(2))), 3),
        FALLING(3),
    ),
    "accumulated": (gx.MultiSteps(gx.adam(FALLING), 2), FALLING(1)),
    "lookahead": (gx.lookahead(gx.sgd(FALLING), 2, 0.5), FALLING(3)),
    "injected": (gx.inject_hyperparams(gx.adamw)(0.25), 0.25),
    "injected schedule": (gx.inject_hyperparams(gx.adamw)(FALLING), FALLING(3)),
    "a rule with a rate": (gx.ftrl(0.25), 0.25),
    "one rate for all groups": (gx.muon(FALLING), FALLING(3)),
    "named": (gx.named_chain(("adam", gx.scale_by_adam()), ("lr", gx.scale(-0.25))), 0.25),
    "door": (gx.compat.tf1.Adam(0.25), 0.25),
    "as optax": (gx.as_optax(gx.adamw(FALLING)), FALLING(3)),
    "measured": (gx.with_metrics(gx.sgd(0.25)), 0.25),
    "the rate of a decay": (
        gx.decoupled_weight_decay(gx.adam(FALLING), 0.1, learning_rate=FALLING),
        FALLING(3),
    ),
    "the rate of an average": (gx.schedule_free(gx.sgd(0.25), 0.25), 0.25),
    "decaying groups": (
        gx.param_groups(gx.adam(0.25), (), weight_decay=0.1, learning_rate=0.25),
        0.25,
    ),
    "optax injected": (optax.inject_hyperparams(optax.adamw)(0.25), 0.25),
    # A wrapper's own rate is no factor of the step.
    "decay": (gx.decoupled_weight_decay(gx.sgd(FALLING), 0.1, learning_rate=FALLING), FALLING(3)),
    "weights": (gx.contrib.schedule_free(gx.sgd(0.25), 0.5), 0.25),
    "ascent": (gx.contrib.sam(gx.sgd(0.25), gx.sgd(0.5), 2), 0.25),
    "groups": (
        gx.param_groups(
            gx.sgd(FALLING), (gx.param_group(MATRIX, weight_decay=2.0),), weight_decay=0.1
        ),
        FALLING(3),
    ),
    "gradients of some scaled first": (
        gx.chain(gx.masked(gx.scale(3.0), MATRIX), gx.adam(0.25)),
        0.25,
    ),
}


ESTIMATES = {
    "prodigy": (gx.prodigy(FALLING, estim_lr0=0.01), lambda s: s.estim_lr, "estim_lr"),
    "dadapt": (gx.dadapt_adamw(FALLING, estim_lr0=0.01), lambda s: s.estim_lr, "estim_lr"),
    "mechanize": (gx.mechanize(gx.adam(FALLING)), lambda s: jnp.sum(s.s), "scale"),
    "trac": (gx.trac(gx.adam(FALLING), s_init=0.1), lambda s: jnp.sum(s.s), "scale"),
    "inside": (
        gx.schedule_free(gx.prodigy(FALLING, (0.0, 0.9), estim_lr0=0.01), FALLING),
        lambda s: s.base_optimizer_state.estim_lr,
        "estim_lr",
    ),
}


@pytest.mark.parametrize("name", list(ESTIMATES))
def test_the_learning_rate_of_an_optimizer_that_estimates_it_is_its_estimate_too(name):
    tx, estimate, key = ESTIMATES[name]
    state = after(tx, 3, grads=[jax.tree.map(jnp.ones_like, PARAMS)] * 3)
    expected = float(estimate(state))
    assert expected > 0.0 and shown(state)[key] == expected
    np.testing.assert_allclose(
        gx.current_learning_rate(tx, state), FALLING(3) * expected, rtol=1e-6
    )


@pytest.mark.parametrize("name", list(RATES))
def test_the_learning_rate_is_that_of_the_next_step(name):
    tx, expected = RATES[name]
    params = PARAMS
    with jax.numpy_dtype_promotion("standard"):
        state = after(tx, 3, params)
        got = gx.current_learning_rate(tx, state)
        jitted = jax.jit(lambda state: gx.current_learning_rate(tx, state))(state)
    assert jnp.shape(got) == ()
    np.testing.assert_allclose([got, jitted], float(expected), rtol=1e-6)


def test_the_learning_rate_of_a_group():
    tx = gx.partition({"matrix": gx.adam(0.5), "rest": gx.chain(gx.sgd(FALLING))}, LABELS)
    state = after(tx, 3)
    assert gx.current_learning_rate(tx, state, label="matrix") == 0.5
    rest = gx.current_learning_rate(tx, state, label="rest")
    np.testing.assert_allclose(rest, FALLING(3), rtol=1e-6)
    frozen = gx.partition({"matrix": gx.adam(0.5), "rest": gx.set_to_zero()}, LABELS)
    assert gx.current_learning_rate(frozen, after(frozen, 3)) == 0.5
    assert gx.current_learning_rates(frozen, after(frozen, 3)) == {"learning_rate/matrix": 0.5}
    adam = gx.adam(0.5)
    assert gx.current_learning_rates(adam, after(adam, 3)) == {"learning_rate": 0.5}
    terms = gx.sum_of(gx.sgd(0.5), gx.sgd(0.25))
    assert gx.current_learning_rate(terms, after(terms, 3), label=1) == 0.25


def test_the_learning_rates_of_param_groups_are_multiplied():
    rules = [
        gx.param_group(gx.ndim_at_least(2), inner=gx.sgd(0.125), learning_rate=FALLING, label="m"),
        gx.param_group("bias$", 0.5, 0.0, optional=True, yields=True),
        gx.param_group("^none", freeze=True, optional=True),
    ]
    groups = gx.param_groups(gx.adam(FALLING), rules, weight_decay=0.1, learning_rate=FALLING)
    tx = gx.accumulate(gx.moving_average(gx.chain(gx.clip(1.0), groups)), 1)
    state = after(tx, 3)
    expected = {"m": 0.125 * FALLING(3), "bias$": 0.5 * FALLING(3), "all others": FALLING(3)}
    for label, rate in expected.items():
        got = gx.current_learning_rate(tx, state, label=label)
        np.testing.assert_allclose(got, rate, rtol=1e-6)
    at_once = jax.jit(lambda state: gx.current_learning_rates(tx, state))(state)
    wanted = {f"learning_rate/{label}": rate for label, rate in expected.items()}
    assert at_once == {label: pytest.approx(float(rate)) for label, rate in wanted.items()}
    with pytest.raises(ValueError, match=r"no group with a learning rate is called '.none'; there"):
        gx.current_learning_rate(tx, state, label="^none")
    with pytest.raises(ValueError, match=r"rates for 'm', 'bias.', 'all others'"):
        gx.current_learning_rate(tx, state)


def test_a_hyperparameter_called_step_is_not_the_step():
    tx = gx.inject_hyperparams(lambda step: gx.sgd(step))(0.25)
    numbers = shown(after(tx, 3))
    assert numbers == {"step": 3, "InjectStatefulHyperparams/step": 0.25}


def test_the_learning_rate_in_the_state_of_an_nnx_optimizer():
    nnx = pytest.importorskip("flax.nnx")
    with jax.numpy_dtype_promotion("standard"):
        tx = gx.adam(FALLING)
        optimizer = nnx.Optimizer(nnx.Linear(2, 3, rngs=nnx.Rngs(0)), tx, wrt=nnx.Param)
        assert gx.current_learning_rate(tx, optimizer.opt_state) == 0.5


def test_the_learning_rate_of_a_rule_of_param_groups():
    rules = (
        gx.param_group(MATRIX, FALLING, label="matrices"),
        gx.param_group(~MATRIX, inner=gx.sgd(0.25), label="rest"),
    )
    tx = gx.chain(gx.param_groups(gx.sgd(0.5), rules), gx.scale(2.0))
    state = after(tx, 3)
    rates = {k: gx.current_learning_rate(tx, state, label=k) for k in ("matrices", "rest")}
    np.testing.assert_allclose(rates["matrices"], 2 * 0.5 * FALLING(3), rtol=1e-6)
    np.testing.assert_allclose(rates["rest"], 2 * 0.25, rtol=1e-6)
    updates, _ = tx.update(PARAMS, state, PARAMS)
    for (_, u), (path, g) in zip(with_paths(updates), with_paths(PARAMS), strict=True):
        rate = rates["matrices" if MATRIX.test(path, g) else "rest"]
        np.testing.assert_allclose(u, -rate * g, rtol=1e-6)


def test_the_learning_rate_falls_on_a_plateau():
    tx = gx.chain(gx.sgd(0.5), gx.reduce_on_plateau(patience=1, factor=0.25))
    state = tx.init(PARAMS)
    for _ in range(3):
        _, state = tx.update(PARAMS, state, PARAMS, value=1.0)
    rate = gx.current_learning_rate(tx, state)
    assert rate == 0.5 * state[1].scale < 0.5


def test_a_hyperparameter_that_a_user_sets_is_the_rate():
    tx = gx.inject_hyperparams(gx.adamw)(0.25)
    state = gx.tree.set(after(tx, 2), learning_rate=0.125)
    assert gx.current_learning_rate(tx, state) == 0.125


# ------------------------------------------------------------------------------------------- norms


def norm(leaves):
    return float(np.sqrt(sum(np.sum(np.abs(np.asarray(x, np.float64)) ** 2) for x in leaves)))


@pytest.mark.parametrize("per", ["tree", "group", "leaf"])
def test_norms_and_ratios_are_those_of_the_last_step(per):
    tx = gx.with_metrics(gx.sgd(0.1), per=per)
    state = after(tx, 1)
    start, numbers = shown(state), None
    updates, state = jax.jit(tx.update)(GRADS[1], state, PARAMS)
    numbers = shown(state)
    leaves = {"b": ["b"], "deep": ["deep"], "s": ["s"], "w": ["w"]}
    if per == "tree":
        leaves = {"": list(leaves)}
    if per == "leaf":
        leaves = {k if k != "deep" else "deep/k": v for k, v in leaves.items()}
    for name, keys in leaves.items():
        end = f"/{name}" if name else ""
        sizes = [
            norm(jax.tree.leaves([tree[k] for k in keys])) for tree in (GRADS[1], updates, PARAMS)
        ]
        got = [numbers[f"{k}_norm{end}"] for k in ("gradient", "update", "parameter")]
        np.testing.assert_allclose(got, sizes, rtol=1e-5)
        np.testing.assert_allclose(numbers[f"update_ratio{end}"], sizes[1] / sizes[2], rtol=1e-5)
        np.testing.assert_allclose(numbers[f"gradient_ratio{end}"], sizes[0] / sizes[2], rtol=1e-5)
    assert set(start) == set(numbers) and len(numbers) == 5 * len(leaves)


def test_a_group_is_below_the_keys_that_all_parameters_share():
    params = {"params": {"a": {"w": jnp.full(4, 2.0), "b": jnp.zeros(2)}, "params": jnp.ones(9)}}
    tx = gx.with_metrics(gx.sgd(0.1), per="group", norms=("parameter",))
    _, state = tx.update(params, tx.init(params), params)
    assert shown(state) == {"parameter_norm/params/a": 4.0, "parameter_norm/params/params": 3.0}
    some = gx.masked(tx, gx.path_matches("a/w"))  # hidden parameters count as keys
    _, state = some.update(params, some.init(params), params)
    assert shown(state) == {"parameter_norm/params/a": 4.0}
    one = {"params": {"w": jnp.ones(4)}}
    _, state = tx.update(one, tx.init(one), one)
    assert shown(state) == {"parameter_norm/params": 2.0}


def test_only_the_norms_asked_for_are_kept_and_computed():
    tx = gx.with_metrics(gx.sgd(0.1), norms=("update",))
    updates, state = tx.update(GRADS[0], tx.init(PARAMS))  # without parameters
    assert shown(state) == {"update_norm": pytest.approx(norm(jax.tree.leaves(updates)))}
    plain = str(jax.make_jaxpr(gx.sgd(0.1).update)(GRADS[0], gx.sgd(0.1).init(PARAMS)))
    assert "reduce_sum" not in plain
    program = str(jax.make_jaxpr(tx.update)(GRADS[0], tx.init(PARAMS)))
    assert program.count("reduce_sum") <= len(jax.tree.leaves(PARAMS))


def test_norms_of_a_step_without_parameters_or_gradients():
    tx = gx.with_metrics(gx.sgd(0.1), per="leaf")
    params = {"w": jnp.zeros(3), "v": jnp.ones(2)}
    _, state = tx.update({"w": jnp.ones(3), "v": None}, tx.init(params), params)
    numbers = shown(state)
    assert numbers["gradient_norm/v"] == 0 and numbers["update_ratio/w"] == 0
    one = gx.with_metrics(gx.sgd(0.1), per="leaf")
    bare = jnp.full((4,), 2.0)
    _, state = one.update(bare, one.init(bare), bare)
    assert shown(state)["parameter_norm"] == 4.0


def test_norms_of_a_table_cover_the_touched_rows_only():
    table = jnp.arange(20.0).reshape(10, 2)
    indices, values = jnp.asarray([3, 7, 3]), jnp.ones((3, 2))
    g = {"table": gx.RowSparse(indices, values, 10)}
    tx = gx.with_metrics(gx.sgd(0.1))
    _, state = jax.jit(tx.update)(g, tx.init({"table": table}), {"table": table})
    numbers = shown(state)
    np.testing.assert_allclose(numbers["gradient_norm"], norm([[2.0, 2.0], [1.0, 1.0]]), rtol=1e-6)
    np.testing.assert_allclose(numbers["parameter_norm"], norm([table[3], table[7]]), rtol=1e-6)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.float8_e4m3fn])
def test_steps_that_are_lost_are_counted(dtype):
    params = {"w": jnp.ones((4, 5), dtype), "b": jnp.ones(5, dtype)}
    grads = {"w": jnp.full((4, 5), 1e-3, dtype).at[0].set(0), "b": jnp.ones(5, dtype)}
    tx = gx.with_metrics(gx.sgd(1.0), norms=("update",), per="leaf", lost_steps=True)
    numbers = gx.metrics(jax.jit(tx.update)(grads, tx.init(params), params)[1])
    assert numbers["lost_steps/b"] == 0  # nor are entries that are not meant to move
    assert numbers["lost_steps/w"] == (0 if dtype == jnp.float32 else 0.75)
    tx = gx.with_metrics(gx.sgd(1.0), lost_steps=True)
    numbers = gx.metrics(jax.jit(tx.update)(grads, tx.init(params), params)[1])
    np.testing.assert_allclose(numbers["lost_steps"], 0 if dtype == jnp.float32 else 0.6, 1e-6)
    with pytest.raises(ValueError, match="params"):
        tx.update(grads, tx.init(params))


def test_norms_in_bfloat16_are_float32():
    params = {f"w{i}": jnp.full((1,), 1.0, jnp.bfloat16) for i in range(600)}
    tx = gx.with_metrics(gx.sgd(0.1))
    _, state = tx.update(params, tx.init(params), params)
    np.testing.assert_allclose(shown(state)["gradient_norm"], np.sqrt(600), rtol=1e-6)


# ---------------------------------------------------------------------------------------- replicas


def test_a_state_of_replicas_shows_means_and_extremes(eight_devices):
    tx = gd.elastic_average(gx.with_metrics(gx.sgd(FALLING)), "replica", period=2, rho=0.0)
    params = {"w": jnp.ones((8, 3))}
    specs = gd.state_specs(tx, {"w": jnp.ones(3)})
    axes = jax.tree.map(lambda spec: 0 if len(spec) else None, specs)
    init = jax.vmap(tx.init, axis_name="replica", out_axes=axes)
    step = jax.vmap(tx.update, axis_name="replica", in_axes=(0, axes, 0), out_axes=(0, axes))
    grads = {"w": jnp.arange(24.0).reshape(8, 3)}
    state = init(params)
    for _ in range(3):
        updates, state = step(grads, state, params)
        params = gx.apply_updates(params, updates)
    numbers = shown(state, params, replicas=True)
    sizes = np.linalg.norm(grads["w"], axis=1)
    np.testing.assert_allclose(numbers["gradient_norm"], sizes.mean(), rtol=1e-5)
    np.testing.assert_allclose(numbers["gradient_norm/max"], sizes.max(), rtol=1e-5)
    np.testing.assert_allclose(numbers["gradient_norm/min"], sizes.min(), rtol=1e-5)
    distance = np.linalg.norm(np.asarray(params["w"] - state.center["w"]), axis=1)
    np.testing.assert_allclose(numbers["distance_to_center"], distance.mean(), rtol=1e-4)
    assert numbers["step"] == gx.current_step(state) == 3
    np.testing.assert_allclose(gx.current_learning_rate(tx, state), FALLING(3), rtol=1e-6)
    stacked = state._replace(schedule_step=jnp.full(8, 3))
    numbers = shown(stacked, params, replicas=True)
    assert numbers["step"] == numbers["step/max"] == 3
    np.testing.assert_array_equal(gx.current_step(stacked), np.full(8, 3))


def test_dropped_gradients_of_replicas_are_shown():
    tx = gd.drop_stale(gx.sgd(0.1), 1)
    params = {"w": jnp.ones(3)}
    state = tx.init(params)
    for age in (0, 5, 9):
        _, state = tx.update(params, state, params, grad_step=jnp.asarray(-age, jnp.int32))
    numbers = shown(state)
    assert numbers["stale_counter"] == 2 and numbers["step"] == 1


def test_norms_around_and_inside_of_a_mean_over_replicas():
    grads, params = {"w": jnp.asarray([[3.0, 4.0], [-3.0, 0.0]])}, {"w": jnp.ones((2, 2))}
    for tx, expected in (
        (gx.with_metrics(gd.tower(gx.sgd(0.1), "replica")), [5.0, 3.0]),
        (gd.tower(gx.with_metrics(gx.sgd(0.1)), "replica"), [2.0, 2.0]),
    ):
        state = jax.vmap(tx.init, axis_name="replica")(params)
        _, state = jax.vmap(tx.update, axis_name="replica")(grads, state, params)
        norms = gx.tree.get(state, "gradient_norm")
        np.testing.assert_allclose(norms, expected, rtol=1e-6)


@pytest.mark.parametrize("per", ["tree", "leaf"])
def test_norms_cover_all_shards(eight_devices, per):
    """zero1 on eight devices, against one device."""
    mesh = Mesh(np.asarray(jax.devices()[:8]), ("data",))
    inner = gx.with_metrics(gx.adam(0.1), per=per)
    tx = gd.zero1(inner, "data")
    params = {"w": jnp.arange(24.0).reshape(8, 3), "b": jnp.ones(5), "s": jnp.asarray(2.0)}
    params["v"] = jnp.full((16, 2), 3.0)
    grads = jax.tree.map(lambda p: 0.1 * p + 1.0, params)
    specs = tx.state_specs(params, mesh)
    shard = functools.partial(jax.shard_map, mesh=mesh)
    state = jax.jit(shard(tx.init, in_specs=P(), out_specs=specs))(params)
    update = shard(
        lambda g, s, p: tx.update(gd.local_view(g, "data"), s, p),
        in_specs=(P(), specs, P()),
        out_specs=(P(), specs),
    )
    _, state = jax.jit(update)(grads, state, params)
    _, whole = inner.update(grads, inner.init(params), params)
    numbers, expected = shown(state), shown(whole)
    assert set(numbers) == set(expected)
    for key, x in expected.items():
        np.testing.assert_allclose(numbers[key], x, rtol=1e-4, err_msg=key)
