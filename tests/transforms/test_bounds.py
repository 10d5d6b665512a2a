"""Bounds that are infinite, or beyond the dtype, bound nothing; epsilons of 0 make no NaN."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradxform as gx

pytestmark = pytest.mark.numeric

GRADS = {"w": jnp.asarray([[3.0, -4.0], [1e-3, 0.0]]), "b": jnp.asarray([1e30, -2.0])}
PARAMS = {"w": jnp.ones((2, 2)), "b": jnp.asarray([0.0, 2.0])}


def one_update(tx, grads=GRADS, params=PARAMS, **extra):
    return tx.update(grads, tx.init(params), params, **extra)[0]


def same(got, expected):
    jax.tree.map(np.testing.assert_array_equal, got, expected)


BOUNDED = {
    "clip": gx.clip,
    "clip_by_global_norm": gx.clip_by_global_norm,
    "clip_by_block_norm": gx.clip_by_block_norm,
    "clip_by_block_rms": gx.clip_by_block_rms,
    "adaptive_grad_clip": gx.adaptive_grad_clip,
    "adaptive_grad_clip, eps 0": lambda bound: gx.adaptive_grad_clip(bound, 0.0),
}
# The last three are beyond float32.
NO_BOUND = [float("inf"), 3.5e38, 1e39, 1e300]


@pytest.mark.parametrize("bound", NO_BOUND)
@pytest.mark.parametrize("name", BOUNDED)
def test_an_infinite_bound_passes_finite_gradients_unchanged(name, bound):
    same(one_update(BOUNDED[name](bound)), GRADS)


@pytest.mark.parametrize("name", BOUNDED)
def test_a_live_infinite_bound_passes_finite_gradients_unchanged(name):
    if name.endswith("eps 0"):
        pytest.skip("a factory of the test, which cannot be injected by name")
    argument = {"clip": "max_delta", "adaptive_grad_clip": "clipping"}.get(
        name, "threshold" if name.endswith("rms") else "max_norm"
    )
    same(one_update(gx.inject_hyperparams(BOUNDED[name])(**{argument: float("inf")})), GRADS)
    bounds = jnp.asarray([jnp.inf, 1.0])
    both = jax.vmap(lambda bound: one_update(BOUNDED[name](bound)))(bounds)
    same(jax.tree.map(lambda x: x[0], both), GRADS)
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(both))


@pytest.mark.parametrize("name", ["clip_by_global_norm", "clip_by_block_norm", "clip_by_block_rms"])
def test_a_nan_is_not_hidden_by_a_bound(name):
    nan = {"w": jnp.asarray([[jnp.nan, 1.0], [2.0, 3.0]]), "b": jnp.ones(2)}
    for bound in (1.0, float("inf")):
        assert np.isnan(one_update(BOUNDED[name](bound), nan)["w"]).all()


@pytest.mark.parametrize("make", [gx.momo, gx.momo_adam])
def test_a_cap_beyond_float32_does_not_bind(make):
    small = {"w": jnp.asarray([[3.0, -4.0], [1e-3, 0.0]]), "b": jnp.asarray([1.0, -2.0])}
    same(one_update(make(1e39), small, value=1.0), one_update(make(1e30), small, value=1.0))


def test_rules_with_a_bound_accept_an_infinite_one():
    small = {"w": jnp.asarray([[3.0, -4.0], [1e-3, 0.0]]), "b": jnp.asarray([1.0, -2.0])}
    update = functools.partial(one_update, grads=small)
    bare = gx.chain(gx.scale_by_factored_rms(), gx.scale(-1.0))
    for bound in NO_BOUND:
        tx = gx.adafactor(
            multiply_by_parameter_scale=False, clipping_threshold=bound, weight_decay_rate=None
        )
        same(update(tx), update(bare))
        polyak = gx.scale_by_polyak(max_learning_rate=bound)
        norm = float(gx.global_norm(small)) ** 2
        np.testing.assert_allclose(update(polyak, value=2.0)["b"], 2 / norm * small["b"], rtol=1e-6)
        rprop = gx.scale_by_rprop(0.1, max_step_size=bound, delayed=False)
        np.testing.assert_allclose(update(rprop)["b"], [0.1, -0.1], rtol=1e-6)
        adopt = gx.scale_by_adopt(clip_value_fn=gx.constant_schedule(bound))
        assert np.isfinite(update(adopt)["w"]).all()
        sophia = functools.partial(gx.scale_by_sophia, hessian_diagonal_fn=gx.identity())
        same(update(sophia(clip_threshold=bound)), update(sophia(clip_threshold=None)))


def test_private_gradients_without_a_bound_are_averaged():
    examples = {"w": jnp.asarray([[3.0, 4.0], [1.0, 0.0]])}
    params = {"w": jnp.zeros(2)}
    for bound in NO_BOUND:
        tx = gx.differentially_private_aggregate(bound, 0.0, 0)
        u, _ = tx.update(examples, tx.init(params), params)
        np.testing.assert_allclose(u["w"], [2.0, 2.0])
    with pytest.raises(ValueError, match="l2_norm_clip must be finite"):
        gx.differentially_private_aggregate(float("inf"), 0.1, 0)


def test_an_infinite_bound_skips_no_finite_update():
    for bound in (jnp.inf, float("inf"), 1e39):
        assert not gx.skip_large_updates(GRADS, 0, PARAMS, bound)[0]
    assert gx.skip_large_updates(GRADS, 0, PARAMS, 1e3)[0]
    assert gx.skip_large_updates({"w": jnp.asarray(jnp.nan)}, 0, PARAMS, jnp.inf)[0]


# ------------------------------------------------------------------------------------ epsilons

EPS = {
    "adam": lambda eps: gx.adam(0.1, eps=eps),
    "nadam": lambda eps: gx.nadam(0.1, eps=eps),
    "scale_by_nadam": lambda eps: gx.scale_by_nadam(eps=eps),
    "adamw": lambda eps: gx.adamw(0.1, eps=eps),
    "eps_hat": lambda eps: gx.scale_by_tf_adam(eps=eps),
    "amsgrad": lambda eps: gx.amsgrad(0.1, eps=eps),
    "tf_amsgrad": lambda eps: gx.scale_by_tf_amsgrad(eps=eps),
    "adabelief": lambda eps: gx.scale_by_belief(eps=eps, eps_root=eps),
    "yogi": lambda eps: gx.scale_by_yogi(eps=eps, initial_accumulator_value=0.0),
    "adamax": lambda eps: gx.adamax(0.1, eps=eps),
    "adamax/after": lambda eps: gx.scale_by_adamax(eps=eps, eps_in_max=False),
    "radam": lambda eps: gx.scale_by_radam(b2=0.9, threshold=4.0, eps=eps),
    "rmsprop": lambda eps: gx.rmsprop(0.1, eps=eps),
    "rmsprop/outside": lambda eps: gx.scale_by_rms(eps=eps, eps_in_sqrt=False),
    "rmsprop/centered": lambda eps: gx.rmsprop(0.1, eps=eps, centered=True),
    "stddev/outside": lambda eps: gx.scale_by_stddev(eps=eps, eps_in_sqrt=False),
    "adagrad": lambda eps: gx.adagrad(0.1, 0.0, eps),
    "lamb": lambda eps: gx.lamb(0.1, eps=eps),
    "novograd": lambda eps: gx.novograd(0.1, eps=eps),
    "adan": lambda eps: gx.adan(0.1, eps=eps),
    "ademamix": lambda eps: gx.ademamix(0.1, eps=eps),
    "simplified": lambda eps: gx.simplified_ademamix(0.1, eps=eps),
    "acprop": lambda eps: gx.scale_by_acprop(eps=eps, eps_root=eps),
    "adopt": lambda eps: gx.adopt(0.1, eps=eps),
    "lars": lambda eps: gx.lars(0.1, eps=eps),
    "trust_ratio": lambda eps: gx.scale_by_trust_ratio(eps=eps),
    "normalize": lambda eps: gx.normalize_by_update_norm(eps=eps),
    "sm3": lambda eps: gx.scale_by_sm3(eps=eps),
    "adafactor": lambda eps: gx.adafactor(eps=eps),
    "cocob": lambda eps: gx.scale_by_cocob(eps=eps),
    "madgrad": lambda eps: gx.madgrad(0.1, eps=eps),
    "dog": lambda eps: gx.scale_by_dog(("distance", 0.1), eps),
    "dowg": lambda eps: gx.scale_by_dowg(0.1, eps),
    "dog/arrays": lambda eps: gx.scale_by_distance_over_gradients(eps=eps),
    "dadapt": lambda eps: gx.step_by_dadapt_adamw(eps=eps),
    "prodigy": lambda eps: gx.step_by_prodigy(eps=eps),
    "momo_adam": lambda eps: gx.momo_adam(0.1, eps=eps),
    "polyak": lambda eps: gx.scale_by_polyak(eps=eps),
    "grad_variance": lambda eps: gx.scale_by_grad_variance(eps=eps),
    "catching_up": lambda eps: gx.scale_by_adam_catching_up(eps=eps),
    "rowwise": lambda eps: gx.scale_by_rowwise_rss(eps=eps),
    "muon": lambda eps: gx.masked(gx.scale_by_muon(eps=eps), gx.ndim_at_least(2)),
    "muon/spectral": lambda eps: gx.masked(
        gx.scale_by_muon(eps=eps, preconditioning="spectral"), gx.ndim_at_least(2)
    ),
}
LOSS = {"momo_adam": {"value": 1.0}, "polyak": {"value": 1.0}}
# A matrix without any gradient, and a vector of which one entry has none.
SILENT = {"w": jnp.zeros((2, 2)), "b": jnp.asarray([0.0, -2.0])}


def three_updates(tx, **extra):
    state, made = tx.init(PARAMS), []
    for g in (SILENT, SILENT, {"w": jnp.zeros((2, 2)), "b": jnp.asarray([1e-30, -2.0])}):
        u, state = tx.update(g, state, PARAMS, **extra)
        made.append(u)
    return made


@pytest.mark.parametrize("name", EPS)
def test_an_epsilon_of_zero_makes_no_nan_where_the_gradient_is_zero(name):
    first, *rest = three_updates(EPS[name](0.0), **LOSS.get(name, {}))
    for u in (first, *rest):
        assert all(np.isfinite(x).all() for x in jax.tree.leaves(u)), u
    moves = {"adamw", "cocob"}  # by weight decay
    if name not in moves:
        assert not np.any(first["w"]) and not first["b"][0]


@pytest.mark.parametrize("name", EPS)
def test_a_live_epsilon_of_zero_makes_no_nan(name):
    extra = LOSS.get(name, {})

    def step(eps):
        return three_updates(EPS[name](eps), **extra)

    live = jax.jit(jax.vmap(step))(jnp.zeros(1))
    for u in live:
        assert all(np.isfinite(x).all() for x in jax.tree.leaves(u)), u


def test_an_epsilon_that_is_not_zero_costs_no_comparison():
    def comparisons(eps):
        tx = gx.scale_by_adam(eps=eps)
        text = str(jax.make_jaxpr(tx.update)(GRADS, tx.init(PARAMS), PARAMS))
        return text.count(" select_n") + text.count("= eq")

    assert comparisons(1e-8) == 0 < comparisons(0.0)
