"""Configs of RETURNN beside its Updater in NumPy float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradxform as gx
from gradxform.compat import keras, returnn, tf1, tf_contrib

pytestmark = pytest.mark.numeric

SHAPES = {"b": (4,), "enc/w": (4, 3), "out": (2, 3)}


class Updater:
    """RETURNN's Updater; `rule(g, p, slots, lr, t)` returns the new parameter."""

    def __init__(self, rule, rate, options, groups):
        self.rule, self.rate, self.calls = rule, rate, 0
        self.options = {n: {**options, **groups.get(n, {})} for n in SHAPES}
        self.sums, self.slots, self.applied = {}, {n: {} for n in SHAPES}, dict.fromkeys(SHAPES, 0)

    def norm(self, raw, tag):
        kept = [g for n, g in raw.items() if tag is None or tag in self.options[n].get("tags", ())]
        return np.sqrt(sum(np.sum(g**2) for g in kept))

    def step(self, raw, ps):
        n = self.calls
        for name, g in raw.items():
            o = self.options[name]
            k = o.get("accum_grad_multiple_step", 1)
            g = self.sums[name] = g if n % k == 0 else self.sums[name] + g
            if "gradient_clip" in o:
                g = np.clip(g, -o["gradient_clip"], o["gradient_clip"])
            size = np.sqrt(np.sum(g**2))
            if "gradient_clip_norm" in o:
                g = g * o["gradient_clip_norm"] / max(size, o["gradient_clip_norm"])
            size = np.sqrt(np.sum(g**2))
            if "gradient_clip_avg_norm" in o:
                c = o["gradient_clip_avg_norm"]
                g = g * c * min(g.size / size, 1 / c)
            tag = o.get("global_norm_tag")
            if "gradient_clip_global_norm" in o:
                c = o["gradient_clip_global_norm"]
                g = g * c / max(self.norm(raw, o.get("gradient_clip_global_norm_tag", tag)), c)
            if o.get("gradient_nan_inf_filter"):
                g = np.where(np.isfinite(g), g, 0)
            if "grad_norm_to_clip_to_zero" in o:
                size = self.norm(raw, tag)
                if not np.isfinite(size) or size > o["grad_norm_to_clip_to_zero"]:
                    g = 0 * np.nan_to_num(g)
            if n % k == k - 1:
                self.applied[name] += 1
                t = self.applied[name]
                ps[name] = self.rule(g, ps[name], self.slots[name], self.rate(n), t)
        self.calls += 1


def descent(g, p, s, lr, t):
    return p - lr * g


def momentum(g, p, s, lr, t):
    s["m"] = 0.8 * s.get("m", 0) + g
    return p - lr * s["m"]


def adam(g, p, s, lr, t):
    s["m"] = 0.8 * s.get("m", 0) + 0.2 * g
    s["v"] = 0.9 * s.get("v", 0) + 0.1 * g**2
    return p - lr * np.sqrt(1 - 0.9**t) / (1 - 0.8**t) * s["m"] / (np.sqrt(s["v"]) + 0.1)


def slower(network, global_train_step, learning_rate, **kwargs):
    return learning_rate / (jnp.float32(global_train_step) + 1)


def constant(n):
    return 0.1


ADAM = {"class": "Adam", "beta1": 0.8, "beta2": 0.9}
CONFIGS = {
    "descent": ({}, {}, descent, constant),
    "momentum": ({"momentum": 0.8}, {}, momentum, constant),
    "entries": ({"gradient_clip": 0.3, "gradient_clip_norm": 0.5}, {}, descent, constant),
    "average": ({"gradient_clip_avg_norm": 0.1}, {}, descent, constant),
    "global": (
        {"gradient_clip": 0.3, "gradient_clip_global_norm": 1.0, "optimizer": ADAM},
        {},
        adam,
        constant,
    ),
    "zero": ({"grad_norm_to_clip_to_zero": 4.5, "momentum": 0.8}, {}, momentum, constant),
    "accumulated": (
        {
            "accum_grad_multiple_step": 2,
            "gradient_clip_global_norm": 1.0,
            "dynamic_learning_rate": {"interval": 3, "decay": 0.5},
            "optimizer": ADAM | {"learning_rate_multiplier": 2.0},
        },
        {},
        adam,
        lambda n: 0.2 * 0.5 ** (n % 3),
    ),
    "function": ({"dynamic_learning_rate": slower}, {}, descent, lambda n: 0.1 / (n + 1)),
    "groups": (
        {"gradient_clip_global_norm": 1.0, "accum_grad_multiple_step": 2},
        {
            "^enc": {"tags": ["encoder"], "global_norm_tag": "encoder", "gradient_clip": 0.4},
            "^b$": {"accum_grad_multiple_step": 3, "tags": ["encoder"]},
        },
        descent,
        constant,
    ),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_a_config_follows_the_updater(name):
    options, groups, rule, rate = CONFIGS[name]
    config = {"learning_rate": 0.1, "optimizer_epsilon": 0.1, **options}
    tx = returnn.from_config(config, groups)
    by_name = {"enc/w": groups.get("^enc", {}), "b": groups.get("^b$", {})}
    updater = Updater(rule, rate, options, by_name)
    rng = np.random.default_rng(2)
    wide = {k: rng.normal(size=n) for k, n in SHAPES.items()}
    tree = jax.tree.map(lambda p: jnp.asarray(p, jnp.float32), wide)
    state, update, seen = tx.init(tree), jax.jit(tx.update), set()
    for _ in range(8):
        grads = {k: rng.normal(size=n) for k, n in SHAPES.items()}
        seen.add(updater.norm(grads, None) > 4.5)
        updater.step(grads, wide)
        like = jax.tree.map(lambda g: jnp.asarray(g, jnp.float32), grads)
        updates, state = update(like, state, tree)
        tree = gx.apply_updates(tree, updates)
        for k, p in wide.items():
            np.testing.assert_allclose(tree[k], p, rtol=0, atol=1e-5 * np.max(np.abs(p)), err_msg=k)
    assert len(seen) == 2  # some gradients are above the bound of "zero", some are not
    if name != "function":
        assert gx.from_json(gx.to_json(tx)) == tx


def test_entries_that_are_not_finite_are_dropped_or_all():
    params = {"w": jnp.ones(3)}
    grads = {"w": jnp.asarray([1.0, jnp.nan, jnp.inf])}
    for options, expected in (
        ({"gradient_nan_inf_filter": True}, [-0.1, 0.0, 0.0]),
        ({"grad_norm_to_clip_to_zero": 5.0}, [0.0, 0.0, 0.0]),
        ({"gradient_clip_global_norm": 5.0}, [jnp.nan] * 3),
    ):
        tx = returnn.from_config({"learning_rate": 0.1, **options})
        updates, _ = tx.update(grads, tx.init(params), params)
        np.testing.assert_allclose(updates["w"], np.asarray(expected), rtol=1e-6)


def test_the_noise_is_cut_at_two_deviations():
    tx = returnn.from_config({"learning_rate": 1.0, "gradient_noise": 0.5}, key=3)
    params = {"w": jnp.zeros(20_000)}
    updates, state = tx.update(params, tx.init(params), params)
    assert 0.999 < float(jnp.max(jnp.abs(updates["w"]))) <= 1.0
    np.testing.assert_allclose(jnp.std(updates["w"]), 0.5 * 0.8796, rtol=0.02)
    again, _ = tx.update(params, state, params)
    assert not np.array_equal(again["w"], updates["w"])


def test_noise_takes_a_key_and_groups_have_keys_of_their_own():
    config, groups = {"learning_rate": 1.0, "gradient_noise": 0.5}, {"^w": {}}
    params = {"v": jnp.zeros(3), "w": jnp.zeros(3)}
    for key in (jax.random.key(3), jax.random.PRNGKey(3), 3, np.int32(3)):
        tx = returnn.from_config(config, groups, key=key)
        updates, _ = tx.update(params, tx.init(params), params)
        assert not np.array_equal(updates["v"], updates["w"])
        alone = returnn.from_config(config, key=key)
        only_v = {"v": params["v"]}
        np.testing.assert_array_equal(
            alone.update(only_v, alone.init(only_v), only_v)[0]["v"], updates["v"]
        )
    for key in (None, "x", 1.5, True, jnp.ones(3), [None]):
        with pytest.raises(TypeError, match=r"^from_config: key must be an integer or one PRNG"):
            returnn.from_config(config, groups, key=key)
    for key in ([1], (1, 2, 3)):
        with pytest.raises(ValueError, match=r"^from_config: key must be a PRNG key of 2 or 4 wor"):
            returnn.from_config({"learning_rate": 1.0}, key=key)


def test_a_config_names_its_optimizer():
    def made(**options):
        return returnn.from_config({"learning_rate": 0.1, **options})

    eps = 1e-16
    assert made(adam=True) == tf1.Adam(0.1, epsilon=eps)
    assert made(nadam=True) == returnn.Nadam(0.1, epsilon=eps)
    assert made(rmsprop=0.8, momentum=0.5) == tf1.RMSProp(0.1, 0.8, 0.5, eps)
    assert made(optimizer="SGD", momentum=0.5) == keras.SGD(0.1, 0.5)
    assert made(optimizer={"beta1": 0.5}, adam=True) == tf1.Adam(0.1, 0.5, epsilon=eps)
    lazy = {"class": "LazyAdamOptimizer", "epsilon": 0.1}
    assert made(optimizer=lazy) == tf_contrib.LazyAdam(0.1, epsilon=0.1)
    assert made(learning_rate_multiplier=0.5) == tf1.GradientDescent(0.05)


def refused(error, words, groups=None, **config):
    return pytest.param({"learning_rate": 0.1, **config}, groups, error, words, id=words[:60])


REFUSED = [
    refused(ValueError, "config: unknown key 'lerning_rate'", lerning_rate=1.0),
    refused(ValueError, "config: maximize_grad_norm is not supported: it", maximize_grad_norm=1.0),
    refused(ValueError, "config: decouple_constraints is not", decouple_constraints=True),
    refused(ValueError, "config: extra_updates is not supported", extra_updates={}),
    refused(KeyError, "RETURNN does not have an optimizer 'adm'", optimizer="adm"),
    refused(
        ValueError,
        "learning_rate stands beside the optimizer",
        optimizer={"class": "adam", "learning_rate": 0.1},
    ),
    refused(
        ValueError,
        "optimizer 'adam' does not take 'beta3'",
        optimizer={"class": "adam", "beta3": 0.1},
    ),
    refused(ValueError, "adam and momentum=0.9 do not go together", adam=True, momentum=0.9),
    refused(ValueError, "accum_grad_multiple_step must be at least 1", accum_grad_multiple_step=-1),
    refused(
        ValueError, "must have interval and decay, got decay", dynamic_learning_rate={"decay": 1}
    ),
    refused(TypeError, "must take any arguments by name, **kwargs", dynamic_learning_rate=constant),
    refused(TypeError, "config: learning_rate must be a number, got None.", learning_rate=None),
    refused(ValueError, "global_norm_tag must be one of the tags", global_norm_tag="encoder"),
    refused(ValueError, "groups['^b']: unknown key 'momentum'", groups={"^b": {"momentum": 0.9}}),
    refused(TypeError, "groups['^b'].tags: must be a list of names", groups={"^b": {"tags": "a"}}),
    refused(ValueError, "groups: a pattern must be a string", groups={3: {}}),
    refused(TypeError, "groups['^b']: must be a dict of options", groups={"^b": 3}),
    refused(ValueError, "config: gradient_clip: clip: max_delta must be", gradient_clip=-1.0),
    refused(ValueError, "config: gradient_noise: add_truncated_noise: ", gradient_noise=-1.0),
    refused(TypeError, "config: gradient_clip_norm: ", gradient_clip_norm="1"),
    refused(
        ValueError,
        "config: dynamic_learning_rate: cyclic_exponential_decay: interval must be at least 1",
        dynamic_learning_rate={"interval": 0, "decay": 0.5},
    ),
    refused(TypeError, "config: dynamic_learning_rate must be a dict", dynamic_learning_rate=3),
    refused(
        ValueError, "config: optimizer 'momentum': Momentum: momentum: trace: decay", momentum=1.5
    ),
]


@pytest.mark.parametrize("config, groups, error, words", REFUSED)
def test_a_wrong_config_is_refused_by_its_key(config, groups, error, words):
    with pytest.raises(error) as caught:
        returnn.from_config(config, groups)
    message = caught.value.args[0]
    assert words in message and message.endswith((".", "?")) and len(message) < 700
    with pytest.raises(ValueError, match="config: learning_rate is required"):
        returnn.from_config({})


def test_a_parameter_has_the_tags_of_the_first_group_that_matches():
    groups = {"^enc/a": {}, "^enc": {"tags": ["encoder"]}}
    options = {"gradient_clip_global_norm": 1.0, "global_norm_tag": "encoder"}
    tx = returnn.from_config({"learning_rate": 1.0, **options}, groups)
    params = {"enc": {"a": jnp.full(2, 50.0), "b": jnp.asarray([0.3, 0.4])}, "c": jnp.ones(2)}
    updates, _ = tx.update(params, tx.init(params), params)
    np.testing.assert_allclose(updates["c"], -params["c"])  # the norm is that of enc/b, 0.5


def test_a_group_that_matches_nothing_is_refused():
    tx = returnn.from_config({"learning_rate": 0.1}, {"^encoder": {"gradient_clip": 1.0}})
    with pytest.raises(ValueError, match="encoder"):
        tx.init({"w": jnp.ones(2)})
