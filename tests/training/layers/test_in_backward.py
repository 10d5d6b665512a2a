"""A step that updates layers in the backward pass goes where the ordinary step goes."""

import flax
import jax
import jax.numpy as jnp
import pytest

import gradxform as gx
from tests.training.layers.models import (
    LAYERS,
    TOKENS,
    WIDTH,
    block,
    check_alike,
    check_equal,
    drawn,
    loss,
    params_of,
    trained,
)

pytestmark = pytest.mark.numeric

ADAMW = gx.adamw(1e-2)
q = gx.quantize_state
CLIP = gx.clip_by_global_norm(0.01)
STACKS = ("encoder", "decoder")


def stacked(tx):
    return gx.stacked(gx.stacked(tx, "encoder"), "decoder")


EXACT = {
    "adamw": ADAMW,
    "lion": gx.lion(1e-3),
    "mask by rank": gx.adamw(1e-2, mask=gx.ndim_at_least(3)),
    "schedule": gx.adamw(gx.cosine_decay_schedule(1e-2, 10)),
    "injected": gx.inject_hyperparams(gx.adamw)(learning_rate=1e-2),
    "8 bits": q(ADAMW, min_size=0),
    "4 bits": q(ADAMW, 4, min_size=0),
    "by chance": gx.state_dtype(ADAMW, stochastic=True, key=0),
    "moving average": gx.moving_average(ADAMW, 0.9),
    "lookahead": gx.lookahead(ADAMW, 2, 0.5),
    "schedule_free": gx.schedule_free_adamw(1e-2),
    "groups": gx.partition(
        {"a": ADAMW, "s": gx.sgd(0.1, 0.9)}, gx.label_by(("s", gx.path_matches("w$")), ("a", True))
    ),
    "frozen group": gx.partition(
        {"a": ADAMW, "f": gx.set_to_zero()}, gx.label_by(("f", gx.path_matches("b$")), ("a", True))
    ),
    "masked": gx.masked(ADAMW, gx.path_matches("w$")),
    "rows": gx.rowwise_adagrad(1e-2),
    "loss_scale": gx.loss_scale(ADAMW),
}
SUMS = {
    "clip": gx.chain(CLIP, ADAMW),
    "norm before": gx.chain(gx.clip_by_previous_global_norm(0.01), ADAMW),
    "two norms": gx.chain(CLIP, gx.scale_by_adam(), gx.clip_by_global_norm(1e-3), gx.scale(-1.0)),
    "finite": gx.apply_if_finite(ADAMW, 3),
    "finite, clip": gx.apply_if_finite(gx.chain(CLIP, ADAMW), 3),
    "8 bits of clip": q(gx.chain(CLIP, ADAMW), min_size=0),
    "norms": gx.raw_gradient_norms(gx.chain(CLIP, ADAMW)),
    "metrics": gx.with_metrics(gx.chain(CLIP, ADAMW), norms=("gradient", "update", "parameter")),
    "metrics of leaves": gx.with_metrics(gx.chain(CLIP, ADAMW), per="leaf"),
    "value": gx.polyak_sgd(1.0),
    "scaled": gx.loss_scale(gx.chain(CLIP, ADAMW)),
}
LAYER_BY_LAYER = {
    "lamb": gx.lamb(1e-2),
    "clip, lamb": gx.chain(CLIP, gx.lamb(1e-2)),
    "adafactor": gx.adafactor(1e-2, min_dim_size_to_factor=4),
    "block norms": gx.chain(gx.clip_by_block_rms(0.01), gx.sgd(0.1, 0.9)),
    "4 bits by squares": q(ADAMW, 4, code="rank1", min_size=0),
    "factored": gx.factor_state(ADAMW),
    "muon": gx.muon(1e-2),
    "8-bit muon": q(gx.muon(1e-2), min_size=0),
    "shampoo": gx.distributed_shampoo(1e-2, block_size=8),
    "adan": gx.adan(1e-2),
}


@pytest.mark.parametrize("name", EXACT)
def test_rules_by_entry_have_the_same_bits(name):
    check_alike(EXACT[name])


@pytest.mark.parametrize("name", SUMS)
def test_what_needs_totals_gets_those_of_all_layers(name):
    check_alike(SUMS[name], rtol=1e-6)


@pytest.mark.parametrize("name", LAYER_BY_LAYER)
def test_stacks_are_seen_layer_by_layer(name):
    tx = stacked(LAYER_BY_LAYER[name])
    ours, others = (trained(tx, kinds=[kind] * 3)[0] for kind in (1, 0))
    check_equal(ours, others, rtol=1e-5 if name == "shampoo" else 2e-6)


NARROW = {
    "masters": gx.master_weights(ADAMW),
    "remainders": gx.master_weights(ADAMW, remainders=16),
    "masters of 8 bits": gx.master_weights(q(ADAMW, min_size=0)),
    "kahan": gx.kahan(ADAMW),
    "chance": gx.stochastic_rounding(ADAMW, key=0),
    "rounded": ADAMW,
}


@pytest.mark.parametrize("name", NARROW)
def test_narrow_parameters_have_the_same_bits(name):
    ours, others = (
        trained(NARROW[name], params=params_of(jnp.bfloat16), kinds=[kind] * 3)[0]
        for kind in (1, 0)
    )
    check_equal(ours, others)


def test_layers_round_by_chance_apart():
    params = {"layers": {"w": jnp.ones((4, 64), jnp.bfloat16)}}

    def total(params):
        return jnp.sum(
            gx.scan_layers(lambda p, x: x + p["w"].astype(x.dtype), params["layers"], jnp.zeros(64))
        )

    step = gx.make_step(gx.stochastic_rounding(gx.sgd(1e-3), key=0), total, update_in_backward=True)
    new, *_ = step(params, step._asked.tx.init(params))
    rows = {tuple(map(float, row)) for row in new["layers"]["w"]}
    assert len(rows) == 4


def test_a_run_may_switch_between_both_kinds_of_step():
    tx = gx.chain(CLIP, q(ADAMW, min_size=0))
    ours, others = (trained(tx, kinds=kinds) for kinds in ([1, 0, 1, 0, 1], [0] * 5))
    check_equal(ours, others, rtol=1e-6)


def test_twenty_steps_end_where_the_ordinary_ones_do():
    check_alike(ADAMW, steps=20)
    tx = gx.chain(CLIP, ADAMW)
    ours, others = (trained(tx, kinds=[kind] * 20)[0] for kind in (1, 0))
    check_equal(ours, others, rtol=1e-6)


# ------------------------------------------------------------------------------------- losses


def test_what_a_block_has_from_elsewhere_has_its_gradient():
    def closing(params, tokens):
        def of_closure(p, x):
            return x * params["scale"][None] + jnp.tanh(x @ p["w"])

        x = gx.scan_layers(of_closure, params["decoder"], params["embed"][tokens])
        return jnp.mean((x @ params["head"]) ** 2)

    check_alike(ADAMW, closing)


def test_carries_outputs_keys_and_numbers():
    def dropping(params, tokens, key):
        def of_layer(p, x, s):
            mask = jax.random.bernoulli(s["key"], 0.5, x["h"].shape).astype(jnp.float32)
            h = x["h"] + jnp.tanh(x["h"] @ p["w"]) * mask * s["factor"]
            return {"h": h, "i": x["i"] + 1}, {"square": jnp.sum(h**2), "i": x["i"]}

        x = {"h": params["embed"][tokens], "i": jnp.int32(0)}
        factors = jnp.arange(LAYERS + 1.0) * params["scale"][0]
        xs = {"key": jax.random.split(key, LAYERS + 1), "factor": factors}
        x, ys = gx.scan_layers(of_layer, params["decoder"], x, xs)
        weights = jnp.arange(1.0, LAYERS + 2)
        return jnp.mean((x["h"] @ params["head"]) ** 2) + 0.1 * ys["square"] @ weights, ys

    check_alike(ADAMW, dropping, batch=(TOKENS, jax.random.key(3)), has_aux=True)


def test_a_key_in_the_carry():
    def dropping(params, tokens, key):
        def of_layer(p, x):
            h, key = x
            key, own = jax.random.split(key)
            mask = jax.random.bernoulli(own, 0.5, h.shape).astype(h.dtype)
            return h + jnp.tanh(h @ p["w"]) * mask, key

        x = params["embed"][tokens], key
        x, _ = gx.scan_layers(of_layer, params["decoder"], x)
        return jnp.mean((x @ params["head"]) ** 2)

    check_alike(ADAMW, dropping, batch=(TOKENS, jax.random.key(3)))


def test_layers_alone():
    def alone(params):
        return jnp.mean(gx.scan_layers(block, params["encoder"], jnp.ones((4, WIDTH))) ** 2)

    check_alike(ADAMW, alone, params={"encoder": params_of()["encoder"]}, batch=())
    tx, params = gx.chain(CLIP, ADAMW), {"encoder": params_of()["encoder"]}
    check_alike(tx, alone, params=params, batch=(), rtol=1e-6)


@pytest.mark.parametrize("chosen", [["encoder/w"], ["head"], ["decoder", "embed"]])
def test_frozen_layers(chosen):
    check_alike(ADAMW, var_list=chosen)
    check_alike(gx.chain(CLIP, ADAMW), var_list=chosen, rtol=1e-6)


def test_a_cotangent_of_the_loss():
    check_alike(ADAMW, grad_loss=2.0)


def test_many_steps_in_a_scan():
    step = gx.make_step(ADAMW, loss, update_in_backward=True)

    @jax.jit
    def run(params, state):
        def turn(carry, _):
            return step(*carry, TOKENS)[:2], None

        return jax.lax.scan(turn, (params, state), length=3)[0]

    params = params_of()
    check_equal(run(params, ADAMW.init(params)), trained(ADAMW, kinds=[0] * 3)[:2])


def test_skipped_steps_leave_layers_as_they_are():
    params, tx = params_of(), gx.apply_if_finite(gx.chain(CLIP, ADAMW), 3)
    params["head"] = params["head"].at[0].set(jnp.nan)
    new, state, _ = trained(tx, params=params, kinds=[1])
    check_equal(new["encoder"], params["encoder"])
    assert int(state.notfinite_count) == 1


# -------------------------------------------------------------------- outside of such a step


def test_without_a_step_it_is_a_scan():
    params = params_of()["encoder"]
    x = drawn(7, 4, WIDTH)

    def by_hand(params, x):
        for i in range(LAYERS):
            x = block(jax.tree.map(lambda p, i=i: p[i], params), x)
        return x

    def ours(params, x):
        return gx.scan_layers(block, params, x)

    check_equal(ours(params, x), by_hand(params, x), rtol=1e-6)
    grads = (jax.grad(lambda p, f=f: jnp.sum(f(p, x) ** 2))(params) for f in (ours, by_hand))
    check_equal(*grads, rtol=1e-5)
    many = drawn(8, 2, 4, WIDTH)
    check_equal(
        jax.vmap(ours, (None, 0))(params, many), jax.vmap(by_hand, (None, 0))(params, many), 1e-6
    )
    tangents = jax.jvp(ours, (params, x), (params, x)), jax.jvp(by_hand, (params, x), (params, x))
    check_equal(*tangents, rtol=1e-5)


def test_a_policy_keeps_what_it_says():
    params, x = params_of()["encoder"], drawn(7, 4, WIDTH)
    kept = jax.checkpoint_policies.everything_saveable

    def total(params, policy):
        return jnp.sum(gx.scan_layers(block, params, x, policy=policy, unroll=LAYERS) ** 2)

    grads = (jax.grad(total)(params, policy) for policy in (None, kept))
    check_equal(*grads, rtol=1e-6)


def test_the_step_says_what_it_costs():
    plain = gx.make_step(ADAMW, loss, update_in_backward=True)
    clipped = gx.make_step(gx.chain(CLIP, ADAMW), loss, update_in_backward=True)
    assert "backward" in repr(plain) and "two" not in repr(plain)
    before = gx.chain(gx.clip_by_previous_global_norm(1.0), ADAMW)
    assert "two" not in repr(gx.make_step(before, loss, update_in_backward=True))
    assert "two backward passes" in repr(clipped) and "clip_by_global_norm" in repr(clipped)


@pytest.mark.parametrize("policy", ["everything_saveable", "dots_saveable", "nothing_saveable"])
def test_a_policy_in_the_step(policy):
    def keeping(params, tokens):
        kept = getattr(jax.checkpoint_policies, policy)
        x = params["embed"][tokens]
        x = gx.scan_layers(block, params["encoder"], x, policy=kept)
        return jnp.mean((x @ params["head"]) ** 2)

    check_alike(ADAMW, keeping, rtol=1e-6)
    check_alike(ADAMW, keeping, rtol=1e-6, var_list=["encoder/b", "head"])


def test_nothing_traced_is_left():
    with jax.checking_leaks():
        check_alike(gx.chain(CLIP, ADAMW), steps=1, rtol=1e-6)


def test_several_models_at_once():
    def both(kind):
        params = jax.tree.map(lambda x: jnp.stack([x, 2 * x]), params_of())
        step = gx.make_step(gx.chain(CLIP, ADAMW), loss, update_in_backward=kind)
        state = jax.vmap(gx.chain(CLIP, ADAMW).init)(params)
        return jax.vmap(step, (0, 0, None))(params, state, TOKENS)

    check_equal(both(True), both(False), rtol=1e-5)


def test_trees_of_any_kind():
    params = flax.core.freeze(params_of())
    check_alike(ADAMW, params=params)
    integers = {"w": params_of()["decoder"]["w"], "n": jnp.arange(LAYERS + 1), "none": None}
    integers["empty"] = jnp.zeros((LAYERS + 1, 0))

    def of_integers(params, tokens):
        def of_layer(p, x):
            return block({"w": p["w"]}, x) * (1.0 + p["n"].astype(x.dtype))

        x = gx.scan_layers(of_layer, params["layers"], params["embed"][tokens], unroll=2)
        return jnp.mean(x**2)

    check_alike(ADAMW, of_integers, params={"embed": params_of()["embed"], "layers": integers})


def test_wide_numbers():
    with jax.enable_x64(True):
        params = jax.tree.map(lambda x: x.astype(jnp.float64), params_of())
        check_alike(gx.chain(CLIP, ADAMW), params=params, rtol=1e-12)
