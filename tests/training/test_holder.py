"""`Optimizer`, the holder of a state."""

import copy
import pickle
import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import gradxform as gx
from gradxform import compat
from tests.training.test_training import X, close, counting, embedding_loss, loss_fn, params

pytestmark = pytest.mark.numeric


def test_minimize_is_a_step():
    opt, step = gx.Optimizer(gx.adamw(0.1)), gx.make_step(gx.adamw(0.1), loss_fn)
    p = params()
    q, state = params(), gx.adamw(0.1).init(params())
    for _ in range(3):
        p, loss = opt.minimize(loss_fn, p, X)
        q, state, expected = step(q, state, X)
        np.testing.assert_allclose(loss, expected, rtol=1e-5)
    close((p, opt.state), (q, state), atol=1e-5)
    assert opt.iterations == 3


def test_nothing_is_donated_and_the_parameters_given_first_are_not_kept():
    p = params()
    opt = gx.Optimizer(gx.adam(0.1), p)
    state = opt.state
    opt.minimize(loss_fn, p, X)
    assert not any(x.is_deleted() for x in jax.tree.leaves((p, state)))


@pytest.mark.parametrize("tx", [gx.adam(0.1), optax.sgd(0.1, momentum=0.9)], ids=["ours", "optax"])
def test_gradients_apart_are_minimize(tx):
    one, two = gx.Optimizer(tx), gx.Optimizer(tx)
    p = q = params()
    for _ in range(2):
        p, _ = one.minimize(loss_fn, p, X, var_list=["enc"])
        _, grads = two.compute_gradients(loss_fn, q, X, var_list=["enc"])
        q = two.apply_gradients(grads, q)
    close((p, one.state), (q, two.state), atol=1e-5)
    assert two.iterations == 2


def test_pairs_and_a_function_as_extra_argument():
    opt = gx.Optimizer(gx.sgd(0.1))
    grads = jax.grad(loss_fn)(params(), X)
    p = opt.apply_gradients(params=params(), grads_and_vars=[(grads["out"], "out")])
    np.testing.assert_allclose(p["out"], params()["out"] - 0.1 * grads["out"], rtol=1e-5)
    np.testing.assert_array_equal(p["enc"]["w"], params()["enc"]["w"])
    opt.apply_gradients(grads, p, value_fn=loss_fn, experimental_aggregate_gradients=False)


def test_one_program_for_all_steps_and_learning_rates():
    loss, traces = counting()
    opt, p = gx.Optimizer(gx.adam(0.1)), params()
    for rate in (0.1, 0.2, 0.3):
        opt.hyperparams["learning_rate"] = rate
        p, _ = opt.minimize(loss, p, X)
    assert len(traces) == 1 and opt.hyperparams["learning_rate"] == 0.3
    assert opt.tx == gx.adam(0.3)
    gx.Optimizer(gx.adam(0.7)).minimize(loss, p, X)  # equal but for its learning rate
    assert len(traces) == 1
    for b1 in (0.8, 0.7):
        opt.hyperparams["b1"] = b1
        p, _ = opt.minimize(loss, p, X)
    assert len(traces) == 2  # from the first time on it is an argument, too


def test_what_is_set_is_used():
    opt, p = gx.Optimizer(gx.sgd(0.1, momentum=0.9)), params()
    p, _ = opt.minimize(loss_fn, p, X)
    opt.hyperparams = {"learning_rate": jnp.float32(0.5), "decay": np.float64(0.0)}
    grads = jax.grad(loss_fn)(p, X)
    close(opt.apply_gradients(grads, p), jax.tree.map(lambda p, g: p - 0.5 * g, p, grads), 1e-5)


def test_hyperparams_before_the_first_parameters():
    opt = gx.Optimizer(gx.adam(0.1))
    opt.hyperparams["b1"] = 0
    assert opt.tx == gx.adam(0.1, b1=0.0)
    p, _ = opt.minimize(loss_fn, params(), X)
    close(p, gx.Optimizer(gx.adam(0.1, b1=0.0)).minimize(loss_fn, params(), X)[0])


def test_names_of_hyperparams():
    twice = gx.chain(gx.scale_by_adam(eps=1e-3), gx.scale_by_rms(eps=1e-4), gx.scale(-1.0))
    assert dict(gx.Optimizer(twice).hyperparams) == {
        "b1": 0.9, "b2": 0.999, "scale_by_adam/eps": 1e-3, "eps_root": 0.0,
        "scale_by_rms/eps": 1e-4, "decay": 0.9, "initial_scale": 0.0, "step_size": -1.0,
    }  # fmt: skip
    groups = gx.partition({"a": gx.sgd(0.1), "b": gx.sgd(0.2)}, {"enc": "a", "out": "b"})
    opt = gx.Optimizer(groups, params())
    rates = [k for k in opt.hyperparams if k.endswith("learning_rate")]
    assert len(rates) == 2 and "/b/" in rates[1]
    opt.hyperparams[rates[1]] = 0.0
    grads = jax.tree.map(jnp.ones_like, params())
    p = opt.apply_gradients(grads, params())
    np.testing.assert_array_equal(p["out"], params()["out"])
    np.testing.assert_allclose(p["enc"]["b"], params()["enc"]["b"] - 0.1, rtol=1e-6)


RATES = {
    "with decay": gx.compat.keras3.AdamW(0.1, weight_decay=0.5),
    "Ftrl": gx.compat.tf1.Ftrl(0.1),
    "LARS": gx.compat.tf_contrib.LARS(0.1, weight_decay=0.3),
}


@pytest.mark.parametrize("name", RATES)
def test_one_name_sets_all_learning_rates_while_they_are_equal(name):
    loss, traces = counting()
    opt = gx.Optimizer(RATES[name], params())
    opt.minimize(loss, params(), X)
    opt.hyperparams["learning_rate"] = 0.01
    assert opt.hyperparams["learning_rate"] == 0.01 and "learning_rate" in opt.hyperparams
    p, _ = opt.minimize(loss, params(), X)
    assert len(traces) == 1  # compiled once, whichever part has the rate
    other = gx.Optimizer(RATES[name], params())
    other.minimize(loss, params(), X)
    for k in other.hyperparams:
        if k.endswith("learning_rate"):
            other.hyperparams[k] = 0.01
    q, _ = other.minimize(loss, params(), X)
    close(p, q)


def test_one_name_of_different_numbers_means_none():
    groups = gx.partition({"a": gx.sgd(0.1), "b": gx.sgd(0.2)}, {"enc": "a", "out": "b"})
    assert "learning_rate" not in gx.Optimizer(groups).hyperparams


@pytest.mark.parametrize("library", [gx, optax])
def test_hyperparams_of_the_state(library):
    tx = library.inject_hyperparams(library.sgd)(learning_rate=0.1)
    loss, traces = counting()
    opt, p = gx.Optimizer(tx, params()), params()
    for rate in (0.1, 0.0):
        opt.hyperparams["learning_rate"] = rate
        before = p
        p, _ = opt.minimize(loss, p, X)
    assert len(traces) == 1 and float(opt.hyperparams["learning_rate"]) == 0
    close(p, before)
    chained = gx.Optimizer(gx.chain(gx.clip(1.0), tx), params())
    assert list(chained.hyperparams) == ["learning_rate", "max_delta"]
    chained.hyperparams["learning_rate"] = 0.5
    assert float(chained.state[1].hyperparams["learning_rate"]) == 0.5


def test_a_function_without_arguments_is_called_at_each_step():
    loss, traces = counting()
    calls = []
    opt = gx.Optimizer(gx.compat.keras.SGD(lambda: calls.append(1) or 0.1 * len(calls)), params())
    p = params()
    for i in (1, 2):
        _, grads = gx.compute_gradients(loss_fn, p, X)
        expected = jax.tree.map(lambda p, g, i=i: p - 0.1 * i * g, p, grads)
        p, _ = opt.minimize(loss, p, X)
        close(p, expected, atol=1e-5)
    assert len(traces) == 1 and len(calls) == 2
    opt.apply_gradients(grads, p)
    assert len(calls) == 3


def test_a_line_search_gets_the_loss_function():
    opt, p = gx.Optimizer(optax.lbfgs()), params()  # whose first state has one array twice
    with jax.numpy_dtype_promotion("standard"):
        for _ in range(2):
            p, _ = opt.minimize(loss_fn, p, X)
    assert loss_fn(p, X) < 0.9 * loss_fn(params(), X)


def test_sparse_gradients_enter_the_program():
    opt = gx.Optimizer(gx.lazy_adam(0.1))
    tables = {"table": jnp.ones((5, 2)), "w": jnp.ones(2)}
    ids = jnp.array([0, 3])
    p, _ = opt.minimize(embedding_loss, tables, ids, sparse=["table"])
    assert np.any(p["table"] != 1, axis=1).tolist() == [True, False, False, True, False]


# ------------------------------------------------------------------------------- slots and weights


def trained(steps=2, tx=None):
    opt, p = gx.Optimizer(tx or gx.adam(0.1)), params()
    for _ in range(steps):
        p, _ = opt.minimize(loss_fn, p, X)
    return opt, p


def test_slots_by_path():
    opt, _ = trained()
    assert opt.get_slot_names() == ["mu", "nu"]
    np.testing.assert_array_equal(opt.get_slot("enc/w", "mu"), opt.state[0].mu["enc"]["w"])
    assert opt.get_slot("out", "momentum") is None
    assert gx.Optimizer(gx.adam(0.1)).get_slot("out", "mu") is None
    assert gx.Optimizer(gx.adam(0.1)).get_slot_names() == []
    masked = gx.Optimizer(gx.masked(gx.adam(0.1), {"enc": True, "out": False}), params())
    assert masked.get_slot("out", "mu") is None and masked.get_slot("enc/b", "mu") is not None
    alone = gx.Optimizer(gx.adam(0.1), jnp.ones(3))
    assert alone.get_slot_names() == ["mu", "nu"]


def test_slots_of_one_name_have_their_places_in_front():
    opt = gx.Optimizer(gx.chain(gx.trace(0.9), gx.trace(0.5)), params())
    assert opt.get_slot_names() == ["0/trace", "1/trace"]


TXS = [
    gx.adam(0.1),
    gx.sgd(0.1),
    gx.chain(gx.add_noise(0.1, 0.5, 3), gx.adam(gx.linear_schedule(0.1, 0.0, 9))),
    gx.partition({"a": gx.adam(0.1), "b": gx.sgd(0.1, momentum=0.5)}, {"enc": "a", "out": "b"}),
    gx.inject_hyperparams(gx.adamw)(0.1),
    gx.MultiSteps(gx.adam(0.1), 2),
    optax.adam(0.1),
]


@pytest.mark.parametrize("tx", TXS, ids=range(len(TXS)))
def test_weights_continue_a_run(tx):
    with jax.numpy_dtype_promotion("standard"):
        opt, p = trained(3, tx)
        weights = opt.get_weights()
        names = list(opt.variables())
        assert len(names) == len(weights) and names[0] == "iterations" and weights[0] == 3
        assert all(isinstance(x, np.ndarray) for x in weights)
        other = gx.Optimizer(tx, params())
        other.set_weights(weights)
        assert other.iterations == 3
        ours, _ = opt.minimize(loss_fn, p, X)
        theirs, _ = other.minimize(loss_fn, p, X)
    jax.tree.map(np.testing.assert_array_equal, ours, theirs)
    assert jax.tree.structure(opt.state) == jax.tree.structure(other.state)


def test_variables_are_named():
    opt, _ = trained()
    variables = opt.variables()
    assert list(variables) == [
        "iterations", "count", "mu/enc/b", "mu/enc/w", "mu/out", "nu/enc/b", "nu/enc/w", "nu/out",
    ]  # fmt: skip
    np.testing.assert_array_equal(variables["nu/out"], opt.state[0].nu["out"])


ORIGINALS = {
    "tf1": (gx.compat.tf1.Adam(0.1), ["b/Adam", "b/Adam_1", "beta1_power", "beta2_power"]),
    "keras": (gx.compat.keras.Adam(0.1), ["iterations", "b/m", "w/m", "b/v"]),
    "keras3": (gx.compat.keras.Adam(0.1), ["iteration", "learning_rate", "b/momentum"]),
}


@pytest.mark.parametrize("names", ORIGINALS)
def test_weights_have_the_names_and_the_order_of_the_original(names):
    tx, first = ORIGINALS[names]
    p = {"w": jnp.ones((3, 2)), "b": jnp.ones(2)}
    opt, other = (gx.Optimizer(tx, p, names=names) for _ in range(2))
    for _ in range(2):
        p = opt.apply_gradients(p, p)
    assert list(opt.variables())[: len(first)] == first
    slot = {"tf1": "v", "keras": "v", "keras3": "velocity"}[names]
    assert slot in opt.get_slot_names()
    np.testing.assert_array_equal(opt.get_slot("b", slot), gx.tree.get(opt.state, "nu")["b"])
    other.set_weights(opt.get_weights())
    close(other.apply_gradients(p, p), opt.apply_gradients(p, p), atol=0)
    with pytest.raises(ValueError, match="weights"):
        other.set_weights(opt.get_weights()[:-1])


def test_a_state_can_be_set():
    opt, p = trained(3)
    for first in (None, params()):
        other = gx.Optimizer(gx.adam(0.1), first)
        other.state = jax.tree.map(np.asarray, opt.state)
        assert other.iterations == 3
        close(other.minimize(loss_fn, p, X)[0], gx.apply_gradients(
            opt.tx, jax.grad(loss_fn)(p, X), opt.state, p)[0], atol=1e-5)  # fmt: skip


def test_names_and_configs():
    opt = gx.Optimizer(gx.adam(0.1), name="Adam")
    assert opt.get_name() == "Adam" and gx.Optimizer(gx.scale_by_adam()).get_name() == (
        "scale_by_adam"
    )
    config = opt.get_config()
    assert config["name"] == "Adam" and gx.from_config(config["transform"]) == gx.adam(0.1)
    assert (gx.Optimizer.GATE_NONE, opt.GATE_OP, opt.GATE_GRAPH) == (0, 1, 2)
    assert repr(opt).startswith("Optimizer(chain(") and "name='Adam'" in repr(opt)


def test_the_name_of_a_door_is_that_of_the_holder_and_of_its_variables():
    tf1 = gx.compat.tf1
    params = {"w": jnp.ones(2)}
    named = gx.Optimizer(tf1.Momentum(0.1, 0.9, name="Mine"), params, names="tf1")
    assert named.get_name() == "Mine" and "w/Mine" in named.variables()
    again = gx.Optimizer(tf1.Momentum(0.1, 0.9), params, names="tf1", name="Other")
    assert again.get_name() == "Other" and list(again.variables()) == ["w/Other"]
    again.set_weights([2 * np.ones(2, np.float32)])
    assert again.get_slot("w", "momentum").tolist() == [2, 2]
    first = gx.Optimizer(tf1.Adam(0.1), params, names="tf1")
    for _ in range(2):
        first.apply_gradients(params, params)
    second = gx.Optimizer(tf1.Adam(0.1), params, names="tf1")
    second.set_weights(first.get_weights())
    assert second.iterations == 2  # as the powers of its decays say


def test_a_holder_can_be_copied():
    opt, p = trained()
    for other in (copy.deepcopy(opt), pickle.loads(pickle.dumps(opt))):
        close(other.minimize(loss_fn, p, X)[0], copy.copy(opt).minimize(loss_fn, p, X)[0])
        assert other.iterations == 3
    assert opt.iterations == 2


def test_arguments_of_tensorflow_are_taken():
    opt = gx.Optimizer(gx.sgd(0.1))
    p, _ = opt.minimize(
        loss_fn, params(), X, gate_gradients=opt.GATE_NONE, aggregation_method=2,
        colocate_gradients_with_ops=True, name="train",
    )  # fmt: skip
    close(p, gx.Optimizer(gx.sgd(0.1)).minimize(loss_fn, params(), X)[0])


def test_a_failed_step_changes_nothing():
    opt, p = trained()
    state = opt.state
    with pytest.raises(ValueError, match="no gradients"):
        opt.apply_gradients(jax.tree.map(lambda x: None, p), p)
    assert opt.state is state and opt.iterations == 2


def test_numbers_of_two_optimizers_in_one_are_told_apart():
    opt = gx.Optimizer(gx.sam(gx.sgd(0.1), gx.sgd(0.05)))
    by_field = {k.split("/")[1]: k for k in opt.hyperparams}
    assert set(by_field) == {"optimizer", "adv_optimizer"}
    assert opt.hyperparams[by_field["adv_optimizer"]] == 0.05
    opt.hyperparams[by_field["optimizer"]] = 0.2
    assert opt.tx == gx.sam(gx.sgd(0.2), gx.sgd(0.05))


TWO = {"w": jnp.ones(2), "b": jnp.ones(2)}


def applied_by_holder(grads, **more):
    return gx.Optimizer(gx.sgd(0.1), TWO).apply_gradients(grads, TWO, **more)


def applied_by_function(grads, **more):
    tx = gx.sgd(0.1)
    return gx.apply_gradients(tx, grads, tx.init(TWO), TWO, **more)[0]


BOTH = pytest.mark.parametrize("apply", [applied_by_holder, applied_by_function])


@BOTH
@pytest.mark.parametrize(
    "pairs",
    [
        lambda: [(jnp.ones(2), "w")],
        lambda: ((jnp.ones(2), "w"),),
        lambda: zip([jnp.ones(2)], ["w"], strict=True),
        lambda: iter([(jnp.ones(2), "w"), (None, "b")]),
    ],
)
def test_pairs_may_come_first(apply, pairs):
    params = apply(pairs(), name="train")
    np.testing.assert_allclose(params["w"], 0.9)
    np.testing.assert_array_equal(params["b"], 1.0)


@BOTH
@pytest.mark.parametrize(
    ("grads", "more", "words"),
    [
        ({"w": "x", "b": None}, {}, "the gradient of ['w'] must be an array, or None to leave its"),
        ([("w", jnp.ones(2))], {}, "must be pairs (gradient, path), got the path 'w' first."),
        ([(jnp.ones(2), "w")], {"grads_and_vars": []}, "takes grads or grads_and_vars, got both."),
        (TWO, {"name": 3}, "name must be a string, got 3."),
    ],
)
def test_what_is_not_a_gradient_is_named(apply, grads, more, words):
    with pytest.raises(TypeError, match=re.escape(words)):
        apply(grads, **more)


@pytest.mark.parametrize("empty", [[], ()])
def test_without_gradients_keras_does_nothing_and_others_refuse(empty):
    opt = gx.Optimizer(compat.keras.SGD(0.1), TWO, names="keras")
    assert opt.apply_gradients(empty, TWO) is TWO
    assert opt.iterations == 0
    with pytest.raises(ValueError, match="no gradients for any of the parameters 'b', 'w'"):
        applied_by_holder(empty)


def test_a_loss_that_does_not_take_the_parameters_is_named():
    opt = gx.Optimizer(gx.sgd(0.1), TWO)
    with pytest.raises(
        TypeError, match=r"^minimize: loss_fn is called as loss_fn\(params, \*batch"
    ):
        opt.minimize(lambda: 1.0, TWO)
    with pytest.raises(TypeError, match=r"^compute_gradients: .* here with 2 arguments"):
        gx.compute_gradients(lambda p: jnp.sum(p["w"]), TWO, 3.0)


@pytest.mark.parametrize("names", ["gradxform", "tf1", "keras", "keras3"])
def test_weights_of_another_kind_are_refused_by_name(names):
    tx = gx.compat.tf1.AdamOptimizer(0.1) if names == "tf1" else gx.compat.keras.Adam(0.1)
    opt = gx.Optimizer(tx, {"w": jnp.ones(3)}, names=names)
    weights = opt.get_weights()
    for i, name in enumerate(opt.variables()):
        word = {"m": "momentum", "v": "velocity"}.get(name.split("/")[-1], name.split("/")[-1])
        of = name if names in ("gradxform", "tf1") else rf"weights\[{i}\], the ({word}|[mv])"
        wrong = [*weights[:i], np.asarray(weights[i]) + 1j, *weights[i + 1 :]]
        with pytest.raises((TypeError, ValueError), match=f"{of}|set_slots: [mv] at"):
            opt.set_weights(wrong)
        if np.issubdtype(np.asarray(weights[i]).dtype, np.integer):
            wrong[i] = np.int64(-5)
            with pytest.raises(ValueError, match=f"{of}.*(at least 0|in .0, ).*-5"):
                opt.set_weights(wrong)
    np.testing.assert_array_equal(opt.get_weights()[-1], weights[-1])


BAD_KEYS = [np.ones(3), np.zeros((2, 2), int), "a", np.ones(2), np.asarray([-1, 2]), None]


@pytest.mark.parametrize("bad", BAD_KEYS, ids=str)
def test_a_weight_that_is_a_random_key_needs_its_words(bad):
    opt = gx.Optimizer(gx.add_noise(0.1, 0.5, 0), {"w": jnp.ones(3)})
    weights = opt.get_weights()
    with pytest.raises(
        ValueError, match="the weight 'rng_key' is a random key, and needs its words"
    ):
        opt.set_weights([*weights[:-1], bad])
    opt.set_weights([*weights[:-1], jax.random.key(7)])
    np.testing.assert_array_equal(opt.get_weights()[-1], jax.random.key_data(jax.random.key(7)))


def test_an_integer_weight_that_its_dtype_cannot_hold_is_refused():
    opt = gx.Optimizer(gx.quantize_state(gx.sgd(0.1, 0.9), min_size=1), {"w": jnp.ones(3)})
    weights, names = opt.get_weights(), [*opt.variables()]
    at = next(i for i, x in enumerate(weights) if np.asarray(x).dtype == np.uint8)
    weights[at] = np.asarray([1, 300, 2])
    with pytest.raises(ValueError, match=f"{names[at]}.* must be in .0, 255."):
        opt.set_weights(weights)
