"""Hyperparameters in the state: what may be one, and that setting one changes no dtype."""

import inspect

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import gradxform as gx
import gradxform.distributed as gd
from gradxform.wrappers.hyperparams.arguments import split_arguments

pytestmark = pytest.mark.numeric

PARAMS = {"w": jnp.arange(6.0).reshape(3, 2) + 1, "b": jnp.ones(2)}
KEYS = {"a seed": 3, "legacy words": jax.random.PRNGKey(3), "typed": jax.random.key(3)}
inject = gx.inject_hyperparams


def run(tx, params=PARAMS, steps=3, grads=None):
    """The updates of some steps, jitted as a whole, so that the state must keep its types."""
    grads = params if grads is None else grads

    def body(state, _):
        updates, state = tx.update(grads, state, params)
        return state, updates

    return jax.jit(lambda: jax.lax.scan(body, tx.init(params), None, steps)[1])()


def same(one, other, rtol=1e-5):
    jax.tree.map(
        lambda x, y: np.testing.assert_allclose(x, y, rtol=rtol, atol=1e-2 * rtol), one, other
    )


# ----------------------------------------------------------------------------- setting a number


@pytest.mark.parametrize("x", [1, True, np.int32(1), np.float64(1), jnp.asarray(1), np.bool_(True)])
@pytest.mark.parametrize("jit", [False, True])
def test_a_hyperparameter_that_is_set_keeps_its_dtype(x, jit):
    tx = inject(gx.adam)(0.5)
    state = tx.init(PARAMS)
    update = jax.jit(tx.update) if jit else tx.update
    wanted, _ = update(PARAMS, inject(gx.adam)(1.0).init(PARAMS), PARAMS)
    state.hyperparams["learning_rate"] = x
    for _ in range(2):
        updates, state = update(PARAMS, state, PARAMS)
        leaf = state.hyperparams["learning_rate"]
        assert leaf.dtype == jnp.float32 and not leaf.weak_type and float(leaf) == 1.0
        same(updates, wanted)


def test_a_wide_hyperparameter_stays_wide():
    state = (tx := inject(gx.sgd, hyperparam_dtype=jnp.bfloat16)(0.5)).init(PARAMS)
    state.hyperparams["learning_rate"] = jnp.asarray(2.0, jnp.bfloat16)
    updates, state = tx.update(PARAMS, state, PARAMS)
    assert state.hyperparams["learning_rate"].dtype == jnp.float32
    same(updates, jax.tree.map(lambda x: -2 * x, PARAMS))


def test_an_integer_hyperparameter_stays_one():
    tx = inject(gx.apply_every)(2)
    state = tx.init(PARAMS)
    assert state.hyperparams["k"].dtype == jnp.int32 and not state.hyperparams["k"].weak_type
    state.hyperparams["k"] = np.int64(1)
    updates, state = tx.update(PARAMS, state, PARAMS)
    assert state.hyperparams["k"].dtype == jnp.int32
    same(updates, PARAMS)
    for x in (0.5, jnp.asarray(2.0), jnp.asarray(1j)):
        state.hyperparams["k"] = x
        with pytest.raises(TypeError, match="'k' is of dtype int32 since init, and cannot be set"):
            tx.update(PARAMS, state, PARAMS)


# ---------------------------------------------------------------------------- keys and integers

PER_EXAMPLE = jax.tree.map(lambda x: jnp.stack([x, 2 * x]), PARAMS)
WITH_KEYS = {
    "add_noise": (gx.add_noise, {"eta": 0.1, "gamma": 0.55}, "key", PARAMS),
    "noisy_sgd": (gx.noisy_sgd, {"learning_rate": 0.1}, "key", PARAMS),
    "dpsgd": (
        gx.contrib.dpsgd,
        {"learning_rate": 0.1, "l2_norm_clip": 1.0, "noise_multiplier": 1.0},
        "seed",
        PER_EXAMPLE,
    ),
    "differentially_private_aggregate": (
        gx.contrib.differentially_private_aggregate,
        {"l2_norm_clip": 1.0, "noise_multiplier": 1.0},
        "key",
        PER_EXAMPLE,
    ),
}


@pytest.mark.filterwarnings("ignore:.*seed:DeprecationWarning")  # Optax has two names for it
@pytest.mark.parametrize("name", WITH_KEYS)
@pytest.mark.parametrize("kind", KEYS)
def test_keys_of_every_kind_are_not_hyperparameters(name, kind):
    factory, numbers, key, grads = WITH_KEYS[name]
    tx = inject(factory)(**numbers, **{key: KEYS[kind]})
    theirs = getattr(optax.contrib, name, None) or getattr(optax, name)
    theirs = optax.inject_hyperparams(theirs)(**numbers, **{key: 3}).init(PARAMS)
    assert set(tx.init(PARAMS).hyperparams) == set(theirs.hyperparams) - {key}  # a number to Optax
    same(run(tx, grads=grads), run(factory(**numbers, **{key: KEYS[kind]}), grads=grads))
    again = inject(factory)(**numbers, **{key: KEYS[kind]})
    assert tx == again and hash(tx) == hash(again) and gx.from_json(gx.to_json(tx)) == tx


@pytest.mark.parametrize("kind", ["a seed", "typed"])
def test_a_key_without_annotation_is_live(kind):
    def noisy(rate, key):
        return gx.chain(gx.add_noise(0.1, 0.55, key), gx.scale(rate))

    same(run(inject(noisy)(0.5, KEYS[kind])), run(noisy(0.5, KEYS[kind])))
    with jax.numpy_dtype_promotion("standard"):
        if kind == "typed":
            of_optax = inject(optax.noisy_sgd)(0.5, key=KEYS[kind])
            same(run(of_optax), run(gx.chain(optax.noisy_sgd(0.5, key=KEYS[kind]))))


def test_legacy_key_words_without_annotation_are_an_error_with_the_remedy():
    with pytest.raises(TypeError, match=r"key of <lambda> must be a value.*gradxform.types.Key"):
        inject(lambda key: gx.add_noise(0.1, 0.55, key))(KEYS["legacy words"])


def test_what_decides_shapes_is_static_by_its_annotation():
    for made, argument in (
        (inject(gx.adafactor)(0.1, min_dim_size_to_factor=2), "min_dim_size_to_factor"),
        (inject(gx.contrib.galore)(0.1, rank=1), "rank"),
        (inject(gx.ggt)(0.1, window=2), "window"),
        (inject(gx.shampoo)(0.1, max_matrix_size=4), "max_matrix_size"),
    ):
        assert argument not in made.init(PARAMS).hyperparams
        arguments = dict(made.arguments)
        same(run(made), run(made.factory.inner_factory(**arguments)), rtol=1e-3)
    sized = inject(gx.accumulate_rows, static_args="inner")(gx.sgd(1.0), 2, {"w": 0, "b": 0})
    assert not sized.init(PARAMS).hyperparams and run(sized)
    for make in (lambda n: gx.scale_by_galore(rank=n), lambda n: gx.scale_by_ggt(window=n)):
        with pytest.raises(TypeError, match="decides shapes, so it must be a Python integer"):
            jax.jit(make)(2)


MUON = {
    "muon": {},
    "three turns": {"ns_steps": 3},
    "schedules": {"learning_rate": lambda n: 0.1 * 0.5 ** n.astype(float), "beta": 0.9},
    "dion": {"ns_coeffs": "dion"},
    "spectral": {"preconditioning": "spectral", "mu_dtype": jnp.bfloat16},
    "schatten": {"preconditioning": "schatten", "ns_steps": 2},
}


@pytest.mark.parametrize("name", MUON)
def test_muon_has_optax_s_hyperparameters_and_runs_under_jit(name):
    arguments = {"learning_rate": 0.1} | MUON[name]
    ours, theirs = inject(gx.contrib.muon)(**arguments), {k: v for k, v in arguments.items()}
    if "mu_dtype" not in arguments:  # a class is a schedule to Optax
        theirs = optax.inject_hyperparams(optax.contrib.muon)(**arguments).init(PARAMS)
        assert set(ours.init(PARAMS).hyperparams) == set(theirs.hyperparams)
    same(run(ours), run(gx.contrib.muon(**arguments)), rtol=2e-3)  # the turns amplify rounding


def test_the_turns_of_muon_can_be_set_in_a_jitted_step():
    tx, update = inject(gx.contrib.muon)(0.1), None
    state, update = tx.init(PARAMS), jax.jit(tx.update)
    for turns in (1, 4):
        state.hyperparams["ns_steps"] = jnp.asarray(turns, jnp.int32)
        updates, _ = update(PARAMS, state, PARAMS)
        plain = gx.contrib.muon(0.1, ns_steps=turns)
        same(updates, plain.update(PARAMS, plain.init(PARAMS), PARAMS)[0], rtol=2e-3)
    assert update._cache_size() == 1


OPTAX = [
    *("adabelief", "adadelta", "adagrad", "adam", "adamax", "adamaxw", "adamw", "adan", "amsgrad"),
    *("fromage", "lamb", "lars", "lion", "nadamw", "noisy_sgd", "novograd", "radam", "rmsprop"),
    *("rprop", "sgd", "sign_sgd", "signum", "sm3", "yogi", "clip", "ema", "trace", "apply_every"),
]


@pytest.mark.parametrize("name", OPTAX)
def test_the_hyperparameters_are_those_of_optax(name):
    extra = {"key": 0} if name == "noisy_sgd" else {}
    first = 2 if name == "apply_every" else 0.5
    theirs = optax.inject_hyperparams(getattr(optax, name))(first, **extra).init(PARAMS)
    ours = inject(getattr(gx, name))(first, **extra).init(PARAMS)
    # A seed is a hyperparameter to Optax.
    assert set(ours.hyperparams) == set(theirs.hyperparams) - {"key"}
    for k, x in ours.hyperparams.items():
        assert x.dtype == theirs.hyperparams[k].dtype and float(x) == float(theirs.hyperparams[k])


# Not factories. Some are annotations, of which it depends on Python whether they can be called.
SKIPPED = {"value_and_grad_from_state", "Schedule", "ShouldSkipUpdateFunction"}
SKIPPED |= {"OptState", "Params", "Updates"}
BOTH = [
    (ours, theirs, name)
    for ours, theirs in ((gx, optax), (gx.contrib, optax.contrib))
    for name in sorted(set(ours.__all__) & set(dir(theirs)) - SKIPPED)
    if callable(getattr(ours, name)) and not hasattr(getattr(theirs, name), "_fields")
]


@pytest.mark.parametrize(("ours", "theirs", "name"), BOTH, ids=[name for *_, name in BOTH])
def test_an_argument_that_optax_lacks_is_not_a_hyperparameter_by_default(ours, theirs, name):
    # Or the states of `inject_hyperparams` that Optax has written would not fit.
    of_optax = inspect.signature(getattr(theirs, name)).parameters
    arguments = inspect.signature(getattr(ours, name)).parameters.values()
    more = [(x.name, x.default) for x in arguments if x.name not in of_optax]
    numbers, _, _ = split_arguments(getattr(ours, name), tuple(more), ())
    assert not numbers


# ------------------------------------------------------------------------------------ schedules


def two(count, decay):
    return decay / (1 + count)


class Twice:
    def __call__(self, count, decay):
        return decay


@pytest.mark.parametrize("schedule", [two, Twice(), lambda: 0.1, lambda n, *, rate: rate])
@pytest.mark.parametrize(
    ("make", "field"),
    [
        (gx.sgd, "scale_by_learning_rate: learning_rate"),
        (gx.scale_by_schedule, "scale_by_schedule: step_size_fn"),
        (lambda f: gx.adamw(0.1, weight_decay=f), "add_decayed_weights: weight_decay"),
        (lambda f: gx.MultiSteps(gx.sgd(1.0), f), "MultiSteps: every_k_schedule"),
        (inject(gx.sgd), "sgd: learning_rate"),
        (inject(gx.scale_by_adam), "scale_by_adam: b1"),
        (lambda f: gx.join_schedules([0.1, f], [3]), "join_schedules: schedules[1]"),
        (lambda f: gx.product_schedule(0.1, f), "product_schedule: factor 1"),
        (
            lambda f: gd.diloco(gx.sgd(0.1), "r", outer_learning_rate=f),
            "diloco: outer_learning_rate",
        ),
    ],
)
def test_a_schedule_of_other_arguments_is_refused_when_made(make, field, schedule):
    with pytest.raises(TypeError) as caught:
        make(schedule)
    said = str(caught.value)
    assert said.startswith(field)
    assert "must be a schedule, a function of one argument, the count;" in said
    gx.sgd(lambda count, rate=0.1: rate)
    gx.sgd(lambda *counts: 0.1)


def test_a_function_without_signature_is_refused_when_called_with_part_and_field():
    for f in (max, min):
        for tx, field in (
            (gx.sgd(f), "scale_by_learning_rate: learning_rate"),
            (gx.adamw(0.1, weight_decay=f), "add_decayed_weights: weight_decay"),
            (gx.chain(gx.scale(1.0), gx.scale_by_schedule(f)), "scale_by_schedule: step_size_fn"),
        ):
            with pytest.raises(TypeError) as caught:
                tx.update(PARAMS, tx.init(PARAMS), PARAMS)
            said = str(caught.value)
            assert said.startswith(f"{field}: {f.__name__}: a schedule is called with one")
    with pytest.raises(TypeError, match=r"inject_hyperparams: sgd: learning_rate: max: a sch"):
        inject(gx.sgd)(max).init(PARAMS)


def test_an_error_in_a_schedule_is_its_own():
    def broken(count):
        raise TypeError("my own mistake")

    tx = gx.sgd(broken)
    with pytest.raises(TypeError, match=r"^my own mistake$"):
        tx.update(PARAMS, tx.init(PARAMS), PARAMS)


def test_what_a_schedule_returns_is_refused_with_part_and_field():
    tx = gx.adamw(0.1, weight_decay=lambda n: jnp.ones(3))
    with pytest.raises(TypeError, match=r"^add_decayed_weights: weight_decay: <lambda>: a s"):
        tx.update(PARAMS, tx.init(PARAMS), PARAMS)
    tx = inject(gx.sgd)(lambda n: None)
    with pytest.raises(TypeError, match=r"^inject_hyperparams: sgd: learning_rate: <lambda>: a"):
        tx.init(PARAMS)


@pytest.mark.parametrize(
    "wrap",
    [
        lambda tx: gx.MultiSteps(tx, 1),
        lambda tx: gx.MultiSteps(tx, 1, should_skip_update_fn=gx.skip_not_finite),
        lambda tx: gx.apply_if_finite(tx, 2),
    ],
    ids=["MultiSteps", "skipping", "apply_if_finite"],
)
@pytest.mark.parametrize("one", [1, True, np.int32(1), jnp.int32(1)], ids=repr)
@pytest.mark.parametrize("jit", [False, True])
def test_a_number_that_is_set_inside_a_wrapper_keeps_its_dtype(wrap, one, jit):
    params = {"w": jnp.ones(3)}
    tx = wrap(gx.inject_hyperparams(gx.sgd)(0.1, momentum=0.9))
    update = jax.jit(tx.update) if jit else tx.update
    state = tx.init(params)
    inner = state.inner_opt_state if hasattr(state, "inner_opt_state") else state.inner_state
    inner.hyperparams["learning_rate"] = one
    updates, state = update(params, state, params)
    np.testing.assert_allclose(updates["w"], -1.0)
    assert gx.tree.get(state, "learning_rate").dtype == jnp.float32
    updates, state = update(params, gx.tree.set(state, learning_rate=0.5), params)
    np.testing.assert_allclose(updates["w"], -0.5 * 1.9, rtol=1e-6)


def test_the_count_is_that_of_the_updates():
    tx = inject(gx.adam)(gx.linear_schedule(0.1, 0.0, 4))
    state = tx.init(PARAMS)
    for n in range(3):
        assert int(state.count) == n
        _, state = tx.update(PARAMS, state, PARAMS)
    assert int(state.count) == 3
