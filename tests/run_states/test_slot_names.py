"""Slots by the originals' names: beside recorded ones, and back."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import gradxform as gx
from gradxform.compat import keras, returnn, tf1, tf_contrib
from tests.compat.test_golden import ROWS, door_of, gradient_of

pytestmark = pytest.mark.numeric

PARAMS = {"w": jnp.arange(6.0).reshape(3, 2) - 2.5, "b": jnp.ones(2)}
# A scratch variable, overwritten before it is read in every step: a state here has none.
SCRATCH = {"flat_grad"}


def equal(a, b):
    assert jax.tree.structure(a) == jax.tree.structure(b)
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        assert x.dtype == y.dtype and x.shape == y.shape
        np.testing.assert_array_equal(x, y)


MIDDLE, LATER = 4, 6


@pytest.mark.reference
@pytest.mark.parametrize("row", ROWS, ids=[row["id"] for row in ROWS])
def test_a_trace_is_followed_and_goes_on_from_its_slots(row):
    """Within 3e-5 of the recorded slots; bitwise from the slots of a state in mid-trace."""
    tx, style = door_of(row), "keras" if row["id"].startswith("keras.") else "tf1"
    with np.load(row["npz"]) as data:
        data = dict(data)

    @jax.jit
    def update(params, state, i):
        grads, again = gradients(i)
        step = jnp.asarray(row["start"] + i, jnp.int32)
        updates, state = tx.update(grads, state, params, step=step)
        params = gx.apply_updates(params, updates)
        if again is not None:
            updates, state = tx.update(again, state, params, step=step, update_slots=False)
            params = gx.apply_updates(params, updates)
        return params, state

    def gradients(i):
        kinds = ["grad", "reg_grad"] if "reg_grad/w" in data else ["grad"]
        kinds = [{n: gradient_of(data, k, n, i, first[n]) for n in first} for k in kinds]
        return kinds[0], (kinds[1] if len(kinds) > 1 else None)

    params = first = {k[5:]: jnp.asarray(v) for k, v in data.items() if k.startswith("init/")}
    data = {k: jnp.asarray(v) if "grad" in k else v for k, v in data.items()}
    state, others = tx.init(params), {}
    for i in range(len(data["params/w"])):
        if i == MIDDLE:
            for names in ("gradxform", style):
                slots = jax.tree.map(np.asarray, gx.get_slots(tx, state, names))
                others[names] = (params, gx.set_slots(tx, tx.init(first), slots, names))
                assert jax.tree.structure(others[names][1]) == jax.tree.structure(state)
            equal(others["gradxform"][1], state)
        if i == LATER:
            for other in others.values():
                equal(other[0], params)
        params, state = update(params, state, jnp.asarray(i))
        if MIDDLE <= i < LATER:
            others = {k: update(*other, jnp.asarray(i)) for k, other in others.items()}
    slots = gx.get_slots(tx, state, style)
    for key, expected in data.items():
        kind, _, rest = key.partition("/")
        if kind not in ("slot", "nonslot") or rest in SCRATCH:
            continue
        name, _, at = rest.partition("/")
        ours = slots[name][at] if kind == "slot" else slots[name]
        size = max(np.max(np.abs(expected)), 1e-30)
        np.testing.assert_allclose(ours, expected, rtol=3e-5, atol=1e-6 * size, err_msg=key)


# ------------------------------------------------------------------- chains, masks and wrappers


def trained(tx, params=PARAMS, steps=3, state=None, start=0):
    """Parameters and state after steps along made-up gradients."""

    @jax.jit
    def update(params, state, i):
        updates, state = tx.update(
            jax.tree.map(lambda p: jnp.sin(3 * p + i), params), state, params
        )
        return optax.apply_updates(params, updates), state

    state = tx.init(params) if state is None else state
    for i in range(start, start + steps):
        with jax.numpy_dtype_promotion("standard"):  # Optax's Adam needs it
            params, state = update(params, state, i)
    return params, state


ADAM = keras.Adam(0.1)
LIVE = gx.inject_hyperparams(lambda rate: gx.chain(gx.trace(0.9), gx.scale(rate)))(0.1)
GROUPS = gx.partition({"a": ADAM, "c": keras.Adam(0.2)}, {"w": "a", "b": "c"})
WRAPPED = {
    "chain": gx.chain(gx.clip(1.0), gx.chain(ADAM)),
    "named_chain": gx.named_chain(("clip", gx.clip(1.0)), ("adam", ADAM)),
    "masked": gx.masked(ADAM, {"w": True, "b": False}),
    "partition": GROUPS,
    "MultiSteps": gx.MultiSteps(ADAM, 2),
    "lookahead": gx.lookahead(ADAM, 2, 0.5),
    "apply_if_finite": gx.apply_if_finite(ADAM, 3),
    "moving_average": gx.moving_average(ADAM, 0.9),
    "accumulate": gx.accumulate(ADAM, 2),
    "flatten": gx.flatten(gx.scale_by_tf_adam()),
    "injected": gx.chain(LIVE, keras.Adam(0.1)),
    "sum_of": gx.sum_of(ADAM, gx.scale(0.1)),
    "mechanize": gx.mechanize(gx.adam(0.1)),
    "schedule_free": gx.schedule_free(gx.adam(0.1), 0.1),
    "optax": optax.chain(optax.clip(1.0), optax.adam(0.1)),
    "optax inside": gx.MultiSteps(optax.adam(0.1), 2),
}


FIRST = {"gradxform": "mu", "tf1": "m", "keras": "m", "keras3": "momentum"}
COUNT = {"keras": "iterations", "keras3": "iteration"}


@pytest.mark.parametrize("name", WRAPPED)
def test_slots_come_through_wrappers(name):
    tx = WRAPPED[name]
    _, state = trained(tx)
    moments = [x for _, x in gx.tree.get_all_with_path(state, "mu")]
    moment = {"w": moments[0]["w"], "b": moments[1]["b"]} if name == "partition" else moments[0]
    count = int(gx.tree.get_all_with_path(state, "count")[0][1])
    fresh = tx.init(PARAMS)
    for names, first in FIRST.items():
        slots = gx.get_slots(tx, state, names)
        if name == "injected" and names == "keras3":  # the trace of the one, the mu of the other
            first = "1.1.momentum"
        if name == "mechanize" and first == "m":  # it has an m of its own
            first = "base_optimizer_state.0.m"
        equal(slots[first], moment)
        if names in COUNT:
            assert int(slots[COUNT[names]]) == count
        equal(gx.set_slots(tx, fresh, slots, names), state)
        jitted = jax.jit(lambda s: gx.set_slots(tx, fresh, gx.get_slots(tx, s, names), names))  # noqa: B023
        again = jitted(state)
        assert jax.tree.structure(again) == jax.tree.structure(state)
        for x, y in zip(jax.tree.leaves(again), jax.tree.leaves(state), strict=True):
            np.testing.assert_allclose(x, y, rtol=1e-6)


def test_names_that_would_be_ambiguous_have_a_path():
    tx = gx.chain(gx.trace(0.9), gx.scale(0.5), gx.trace(0.8))
    _, state = trained(tx)
    slots = gx.get_slots(tx, state, names="tf1")
    assert list(slots) == ["0.momentum", "2.momentum"]
    doubled = jax.tree.map(lambda x: 2 * x, slots)
    again = gx.set_slots(tx, state, doubled, names="tf1")
    equal(again[2].trace, doubled["2.momentum"])


def test_only_the_named_slots_change_and_no_buffer_is_shared():
    _, state = trained(ADAM)
    same = jnp.ones((3, 2))
    slot = {"w": same, "b": jnp.ones(2)}
    new = gx.set_slots(ADAM, state, {"m": slot, "v": slot}, names="keras")
    assert gx.tree.get(new, "count") is gx.tree.get(state, "count")
    jax.jit(lambda s: s, donate_argnums=0)(new)  # fails where two slots share a buffer


def test_slots_keep_the_dtypes_of_the_state():
    params = jax.tree.map(lambda p: p.astype(jnp.bfloat16), PARAMS)
    state = ADAM.init(params)
    slots = {k: jax.tree.map(lambda x: np.full(x.shape, 0.5), PARAMS) for k in ("m", "v")}
    new = gx.set_slots(ADAM, state, slots | {"iterations": np.int64(7)}, names="keras")
    for x, y in zip(jax.tree.leaves(new), jax.tree.leaves(state), strict=True):
        assert x.dtype == y.dtype and not x.weak_type


def test_slots_stay_on_the_devices_of_the_state(eight_devices):
    mesh = jax.make_mesh((2,), ("x",), axis_types=(AxisType.Auto,), devices=eight_devices[:2])
    place = NamedSharding(mesh, PartitionSpec(None, "x"))
    params = {"w": jax.device_put(jnp.ones((3, 2)), place)}
    state = jax.tree.map(lambda x: jax.device_put(x, place) if x.ndim else x, ADAM.init(params))
    for made in (np.asarray, jnp.asarray):  # on no device, and on the first
        slots = {k: {"w": made(np.full((3, 2), 0.5, np.float32))} for k in ("m", "v")}
        new = gx.set_slots(ADAM, state, slots, names="keras")
        for x, y in zip(jax.tree.leaves(new), jax.tree.leaves(state), strict=True):
            assert x.sharding == y.sharding


@pytest.mark.parametrize("count", [0, 1, 15, 800, 5_000, 60_000])
def test_a_count_follows_from_powers_of_float32(count):
    """As TensorFlow makes them: running products, until they vanish."""
    tx = tf1.Adam(0.1)
    state = tx.init(PARAMS)
    powers = {}
    for name, decay in (("beta1_power", 0.9), ("beta2_power", 0.999)):
        steps = np.full(count + 1, decay, np.float32)
        powers[name] = np.multiply.accumulate(steps, dtype=np.float32)[-1]
    found = int(gx.tree.get(gx.set_slots(tx, state, powers, "tf1"), "count"))
    assert abs(found - count) <= (0 if count < 1000 else 1e-3 * count)


def test_powers_that_have_vanished_are_of_a_count_on_which_nothing_depends():
    tx = tf1.Adam(0.1)
    state = gx.set_slots(tx, tx.init(PARAMS), {"beta1_power": 0.0, "beta2_power": 0.0}, "tf1")
    assert int(gx.tree.get(state, "count")) == 2**24
    updates, _ = tx.update(PARAMS, state, PARAMS)
    moments = 0.1 * PARAMS["w"], np.sqrt(0.001) * np.abs(PARAMS["w"])
    np.testing.assert_allclose(updates["w"], -0.1 * moments[0] / moments[1], rtol=1e-4)


# --------------------------------------------------------------------------------- Keras's weights


def test_slots_of_a_wrapper_in_a_group_are_found():
    groups = {
        "decayed": gx.decoupled_weight_decay(gx.sgd(0.1, momentum=0.9), 0.1),
        "plain": gx.sgd(0.1, momentum=0.9),
    }
    tx = gx.partition(groups, gx.label_by(("decayed", gx.ndim_at_least(2)), ("plain", True)))
    params, state = trained(tx)
    slots = gx.get_slots(tx, state)
    assert all(np.any(slots["trace"][k]) for k in params)
    equal(gx.set_slots(tx, tx.init(params), slots), state)


OPTIMIZERS = {
    "SGD": (keras.SGD(0.1), "", ""),
    "SGD/momentum": (keras.SGD(0.1, 0.9, True), "momentum", "momentum"),
    "RMSprop": (keras.RMSprop(0.1), "rms", "velocity"),
    "RMSprop/all": (
        keras.RMSprop(0.1, momentum=0.5, centered=True),
        "rms momentum mg",
        "velocity momentum average_gradient",
    ),
    "Adagrad": (keras.Adagrad(0.1), "accumulator", "accumulator"),
    "Adadelta": (
        keras.Adadelta(1.0),
        "accum_grad accum_var",
        "accumulated_grad+accumulated_delta_var",
    ),
    "Adam": (keras.Adam(0.1), "m v", "momentum+velocity"),
    "Adam/amsgrad": (keras.Adam(0.1, amsgrad=True), "m v vhat", "momentum+velocity velocity_hat"),
    "Adam/decay": (keras.Adam(0.1, decay=0.1, clipnorm=1.0), "m v", "momentum+velocity"),
    "Adamax": (keras.Adamax(0.1), "m v", "momentum+norm"),
    "Nadam": (keras.Nadam(0.1), "m v", "momentum+velocity"),
    "Ftrl": (keras.Ftrl(0.1), "accumulator+linear", "accumulator+linear"),
}
ORDER = ["w", "b"]  # as a model would have them; the tree has b before w


@pytest.mark.reference
@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_weights_stand_in_keras_order_and_a_run_goes_on_from_them(name, version):
    tx, *blocks = OPTIMIZERS[name]
    params, state = trained(tx)
    weights = keras.get_weights(tx, state, params, version=version, order=ORDER)
    slots = gx.get_slots(tx, state, names="keras" if version == 2 else "keras3")
    expected = [np.asarray(3)]
    if version == 3 and name != "Adam/decay":
        expected.append(np.float32(tx_rate(tx)))
    product = [v for k, v in slots.items() if k in ("momentum_cache", "product")]
    expected += product if version == 2 else []
    for block in blocks[version - 2].split():
        expected += [slots[k][p] for p in ORDER for k in block.split("+")]
    expected += product if version == 3 else []
    assert len(weights) == len(expected)
    for ours, theirs in zip(weights, expected, strict=True):
        assert isinstance(ours, np.ndarray)
        np.testing.assert_array_equal(ours, theirs)
    again = keras.set_weights(tx, params, weights, version=version, order=ORDER)
    equal(again, state)
    equal(trained(tx, params, 2, again, 3), trained(tx, params, 2, state, 3))


def tx_rate(tx):
    rates = [getattr(part, "learning_rate", None) for part in tx.transforms]
    inner = [getattr(getattr(part, "inner", None), "transforms", ()) for part in tx.transforms]
    rates += [getattr(part, "learning_rate", None) for parts in inner for part in parts]
    return next(rate for rate in rates if rate is not None)


def test_the_weights_of_a_loss_scale_go_there_and_back():
    tx = keras.LossScaleOptimizer(keras.Adam(0.1), 2.0**24, 2)
    params, state = trained(tx)
    assert state.loss_scale == 2.0**25 and state.finite_steps == 1  # after three steps
    weights = keras.get_weights(tx, state, params, version=3)
    equal(keras.set_weights(tx, params, weights, version=3), state)


def test_lists_of_keras_1_load():
    for name in ("RMSprop", "Adagrad", "Adadelta"):  # no iterations
        tx = OPTIMIZERS[name][0]
        params, state = trained(tx)
        again = keras.set_weights(tx, params, keras.get_weights(tx, state, params)[1:])
        assert gx.get_slots(tx, again, "keras")["iterations"] == 0
        again = gx.set_slots(tx, again, {"iterations": 3}, names="keras")
        equal(again, state)
    params, state = trained(ADAM)  # vhat, without amsgrad: of one entry, or of all
    for vhat in (np.zeros(1, np.float32), np.zeros((3, 2), np.float32)):
        weights = [*keras.get_weights(ADAM, state, params), vhat, vhat]
        equal(keras.set_weights(ADAM, params, weights), state)


def test_a_learning_rate_in_the_state_is_a_weight_of_keras_3():
    tx = gx.inject_hyperparams(live_adam)(learning_rate=0.1)
    params, state = trained(tx)
    weights = keras.get_weights(tx, state, params, version=3)
    assert weights[1] == np.float32(0.1)
    weights[1] = np.float32(0.05)
    again = keras.set_weights(tx, params, weights, version=3)
    assert float(again.hyperparams["learning_rate"]) == np.float32(0.05)
    equal(gx.set_slots(tx, again, {"hyperparams": state.hyperparams}), state)


def live_adam(learning_rate):
    return gx.chain(gx.scale_by_tf_adam(), gx.scale_by_learning_rate(learning_rate))


# ------------------------------------------------------------------------- TensorFlow's checkpoints

NESTED = {"dense": {"kernel": PARAMS["w"], "bias": PARAMS["b"]}}
DECAYING = tf1.exponential_decay(0.1, decay_steps=2, decay_rate=0.5)
CHECKPOINTS = {
    "Momentum": (tf1.Momentum(DECAYING, 0.9), ["Momentum"], ["global_step"]),
    "Adam": (tf1.Adam(0.1), ["Adam", "Adam_1"], ["beta1_power", "beta2_power"]),
    "RMSProp": (
        tf1.RMSProp(0.1, momentum=0.5, centered=True),
        ["RMSProp", "RMSProp_1", "RMSProp_2"],
        [],
    ),
    "Ftrl": (tf1.Ftrl(0.1), ["Ftrl", "Ftrl_1"], ["global_step"]),
    "AdagradDA": (tf1.AdagradDA(0.1), ["AdagradDA", "AdagradDA_1"], ["global_step"]),
    "AdamW": (
        tf_contrib.AdamW(0.01),
        ["AdamW", "AdamW_1"],
        ["beta1_power", "beta2_power"],
    ),
    "AdaMax": (tf_contrib.AdaMax(), ["AdaMax", "AdaMax_1"], ["beta1_power"]),
    "LARS": (tf_contrib.LARS(0.1), ["LARSOptimizer"], []),
    "GGT": (tf_contrib.GGT(), [], ["global_step_1", "grad_buffer", "moment1"]),
    "MovingAverage": (
        tf_contrib.MovingAverage(tf1.Momentum(0.1, 0.9)),
        ["ExponentialMovingAverage", "Momentum"],
        ["num_updates", "weight"],
    ),
    "AMSGrad": (
        returnn.AMSGrad(epsilon=1e-8),
        ["AMSGradOptimizer", "AMSGradOptimizer_1", "AMSGradOptimizer_2"],
        ["t"],
    ),
}


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_a_run_goes_on_from_a_checkpoint(name, tmp_path):
    tx, slots, others = CHECKPOINTS[name]
    params, state = trained(tx, NESTED)
    arrays = tf1.to_checkpoint(tx, state, params)
    of_params = [f"dense/{p}" for p in ("bias", "kernel")]
    names = [*of_params, *others, *(f"{p}/{slot}" for p in of_params for slot in slots)]
    assert sorted(arrays) == sorted(names)
    np.savez(tmp_path / "saved.npz", **arrays)
    fresh = jax.tree.map(jnp.zeros_like, params)
    again = tf1.from_checkpoint(tx, fresh, tmp_path / "saved.npz")
    equal(again, (params, state))
    equal(trained(tx, *again[:1], 2, again[1], 3), trained(tx, params, 2, state, 3))


def test_a_frozen_parameter_has_no_variables():
    params = {"w": jnp.ones((3, 2)), "b": None}
    tx = tf1.Adam(0.1)
    arrays = tf1.to_checkpoint(tx, tx.init(params), params)
    assert set(arrays) == {"w", "w/Adam", "w/Adam_1", "beta1_power", "beta2_power"}
    equal(tf1.from_checkpoint(tx, params, arrays), (params, tx.init(params)))


def test_the_optimizers_name_counts():
    tx = tf1.Ftrl(0.1)
    params, state = trained(tx)
    named = {"accum_name": "n", "linear_name": "z"}
    arrays = tf1.to_checkpoint(tx, state, params, **named)
    assert {"w/n", "w/z", "b/n", "b/z"} < set(arrays)
    equal(tf1.from_checkpoint(tx, params, arrays, **named)[1], state)
    tx = tf1.Adam(0.1)
    params, state = trained(tx)
    arrays = tf1.to_checkpoint(tx, state, params, name="Mine")
    assert {"w/Mine", "w/Mine_1"} < set(arrays)
    scoped = {f"{k}:0": x for k, x in arrays.items() if not k.startswith("beta")}
    scoped |= {f"train/{k}": x for k, x in arrays.items() if k.startswith("beta")}
    equal(tf1.from_checkpoint(tx, params, scoped)[1], state)  # the only name that fits
    both = scoped | tf1.to_checkpoint(tx, tx.init(params), params, name="Other")
    equal(tf1.from_checkpoint(tx, params, both, name="Other")[1][1].mu, tx.init(params)[1].mu)


NAMED = {
    "Adam": (tf1.Adam(0.1, name="Mine"), ["Mine", "Mine_1"]),
    "Ftrl": (tf1.Ftrl(0.1, accum_name="n", linear_name="z"), ["n", "z"]),
    "Ftrl/one": (tf1.Ftrl(0.1, name="F", linear_name="z"), ["F", "z"]),
    "injected": (gx.inject_hyperparams(tf1.Momentum)(0.1, 0.9, name="M"), ["M"]),
    "inside": (tf_contrib.ExtendWD_Momentum(0.1, 0.1, 0.9, name="EW"), ["EW"]),
    "averaged": (
        tf_contrib.MovingAverage(tf1.Momentum(0.1, 0.9, name="M")),
        ["M", "ExponentialMovingAverage"],
    ),
    "around": (gx.variable_names(tf1.Adam(0.1, name="Mine"), "Outer"), ["Outer", "Outer_1"]),
    "RegAdagrad": (tf_contrib.RegAdagrad(0.1), ["RegAdagrad"]),
    "CustomAdam": (
        returnn.CustomAdam(learning_rate=0.1),
        ["CustomAdamOptimizer", "CustomAdamOptimizer_1"],
    ),
}


@pytest.mark.parametrize("name", NAMED)
def test_the_names_that_a_door_was_given_count(name):
    tx, slots = NAMED[name]
    state = tx.init(PARAMS)
    moments = {k: x for k, x in gx.get_slots(tx, state, "tf1").items() if isinstance(x, dict)}
    moments.pop("hyperparams", None)
    state = gx.set_slots(tx, state, jax.tree.map(lambda x: x + 1, moments), "tf1")
    arrays = tf1.to_checkpoint(tx, state, PARAMS)
    assert {f"{p}/{slot}" for p in PARAMS for slot in slots} == {k for k in arrays if "/" in k}
    equal(tf1.from_checkpoint(tx, PARAMS, arrays)[1], state)
    others = {k: 0 * x for k, x in arrays.items()} | {"w/Adam": arrays["w"]}
    more = {k.replace(slots[0], "Else"): x for k, x in others.items()} | arrays
    equal(tf1.from_checkpoint(tx, PARAMS, more)[1], state)  # not those of another optimizer
    if name != "injected":  # the functions of doors are not registered
        assert gx.from_config(gx.to_config(tx)) == tx


def test_a_name_around_several_is_that_of_all():
    groups = {"a": tf1.Adam(0.1, name="A"), "b": tf1.Adam(0.2)}
    tx = gx.partition(groups, {"w": "a", "b": "b"})
    arrays = tf1.to_checkpoint(tx, tx.init(PARAMS), PARAMS, name="C")
    assert {"w/C", "w/C_1", "b/C", "b/C_1"} < set(arrays)


def test_names_that_a_checkpoint_has_anyway_add_no_part():
    assert tf1.Adam(0.1, name="Adam") == tf1.Adam(0.1) == tf1.Adam(0.1, name=None)
    assert tf_contrib.AdamW(0.1, name="AdamW") == tf_contrib.AdamW(0.1)
    plain = returnn.NeuralOptimizer1(learning_rate=0.1)
    assert returnn.NeuralOptimizer1(learning_rate=0.1, name="NeuralOptimizer1") == plain


@pytest.mark.parametrize("kind", ["dense", "sparse"])
def test_a_checkpoint_with_swapped_averages_loads(kind):
    """Under the name of a variable stands its average, as TensorFlow's swapping saver writes it."""
    [row] = [r for r in ROWS if r["id"].startswith("contrib.MovingAverage") and kind in r["id"]]
    with np.load(row["npz"]) as data:
        data = dict(data)
    swapped = {k.partition("/")[2]: v for k, v in data.items() if k.startswith("swapped")}
    tx = door_of(row)
    params = {k[5:]: jnp.asarray(v) for k, v in data.items() if k.startswith("init/")}
    averages, state = tf1.from_checkpoint(tx, params, swapped)
    params, state = gx.swap(state, averages)
    for k, p in params.items():
        np.testing.assert_array_equal(p, swapped[f"{k}/ExponentialMovingAverage"])
        np.testing.assert_array_equal(gx.tree.get(state, "trace")[k], swapped[f"{k}/Momentum"])


def test_the_second_optimizer_of_a_name_in_one_graph():
    tx, other = tf1.Adam(0.1), tf1.Adam(0.2)
    second = {"m": "Adam_2", "v": "Adam_3"}
    second |= {"beta1_power": "beta1_power_1", "beta2_power": "beta2_power_1"}
    first = {"m": "Adam", "v": "Adam_1", "beta1_power": "beta1_power"}
    states = []
    for adam, steps in ((tx, 1), (other, 3)):
        state = adam.init(PARAMS)
        for i in range(steps):
            _, state = adam.update(jax.tree.map(lambda p, i=i: p + i, PARAMS), state, PARAMS)
        states.append(state)
    arrays = tf1.to_checkpoint(tx, states[0], PARAMS)
    arrays |= tf1.to_checkpoint(other, states[1], PARAMS, variables=second)
    assert {"w/Adam", "w/Adam_1", "w/Adam_2", "w/Adam_3", "beta1_power_1"} <= set(arrays)
    equal(tf1.from_checkpoint(tx, PARAMS, arrays, variables=first)[1], states[0])
    equal(tf1.from_checkpoint(other, PARAMS, arrays, variables=second)[1], states[1])
    with pytest.raises(ValueError, match=r"two optimizers called 'Adam', also '\w+/Adam_2'\. Say"):
        tf1.from_checkpoint(tx, PARAMS, arrays)


@pytest.mark.parametrize(
    "variables, error, words",
    [
        (["m"], TypeError, r"variables must be a dict by slot, got \['m'\]"),
        (
            {"mu": "Adam_2"},
            ValueError,
            r"does not have a slot 'mu' to name in variables, only .*'m'",
        ),
        ({"m": ""}, ValueError, r"variables\['m'\] must be the last part of a variable's name"),
        ({"m": 2}, TypeError, r"variables\['m'\] must be a string, got 2"),
        ({"m": "Adam_2", "v": "Adam_2"}, ValueError, r"'Adam_2', as that of another slot"),
        ({"beta1_power": None}, ValueError, r"variables\['beta1_power'\] is None"),
        (
            {"m": "Adam_5"},
            ValueError,
            r"the checkpoint lacks the variable '\w+/Adam_5', the slot 'm'",
        ),
    ],
)
def test_wrong_names_of_variables_are_refused(variables, error, words):
    tx = tf1.Adam(0.1)
    arrays = tf1.to_checkpoint(tx, tx.init(PARAMS), PARAMS)
    with pytest.raises(error, match=f"^from_checkpoint: .*{words}"):
        tf1.from_checkpoint(tx, PARAMS, arrays, variables=variables)
