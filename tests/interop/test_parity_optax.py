"""Beside the installed Optax: the same numbers from the same gradients, in states of equal names.

What is deliberately different from Optax is tested at the end, explicitly.
"""

import inspect
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import gradxform as gx
from gradxform.schedules.rectified import rectification
from gradxform.values.known_arguments import own_name

pytestmark = pytest.mark.numeric

STEPS = 30
LR = gx.cosine_decay_schedule(0.2, STEPS, alpha=0.1)


def only_matrices(params):
    """A mask that both libraries understand."""
    return jax.tree.map(lambda p: jnp.ndim(p) >= 2, params)


# Optax's SM3 fails at scalars, and its DoG gives them another shape.
NO_SCALAR = {"sm3", "scale_by_sm3", "scale_by_distance_over_gradients"}
# They look at the axes of an array: here is one with three.
LOOK_AT_AXES = {"sm3", "scale_by_sm3", "adafactor", "scale_by_factored_rms"}
VALUE = {"scale_by_polyak", "polyak_sgd"}  # they need the loss


def some_params(name):
    rng = np.random.default_rng(3)
    shapes: dict[str, tuple[int, ...]] = {"b": (5,), "w": (4, 3)}
    if name not in NO_SCALAR:
        shapes["s"] = ()
    if name in LOOK_AT_AXES:
        shapes["t"] = (2, 3, 4)
    return {k: jnp.asarray(rng.normal(size=shape), jnp.float32) for k, shape in shapes.items()}


def many_gradients(params):
    """A drift and noise, so that no optimizer stays where it is."""
    rng = np.random.default_rng(4)

    def stack(p):
        drift = rng.normal(size=p.shape)
        return jnp.asarray(drift + rng.normal(size=(STEPS, *p.shape)), jnp.float32)

    return jax.tree.map(stack, params)


def trajectory(tx, params, grads, extra):
    """All parameters along the way, and the last state, by one jitted scan."""

    def step(carry, g_and_extra):
        (p, state), (g, more) = carry, g_and_extra
        updates, state = tx.update(g, state, p, **more)
        p = jax.tree.map(jnp.add, p, updates)
        return (p, state), p

    def run(params, grads, extra):
        return jax.lax.scan(step, (params, tx.init(params)), (grads, extra))

    (_, state), all_params = jax.jit(run)(params, grads, extra)
    return all_params, state


def lax(f, *args, **kwargs):
    """Call what is Optax's, which is not written for strict promotion."""
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        return f(*args, **kwargs)


def worst(ours, theirs, params):
    """The largest distance of two trajectories over the movement, leaf by leaf."""

    def one(a, b, p):
        a, b, p = (np.asarray(x, np.float64) for x in (a, b, p))
        moved = np.max(np.abs(b - p[None]))
        assert np.all(np.isfinite(b)) and moved > 0
        return np.max(np.abs(a - b)) / moved

    return max(jax.tree.leaves(jax.tree.map(one, ours, theirs, params)))


def both(name, ours, theirs):
    """Run two transforms; return how far they are apart, and their states."""
    params = some_params(name)
    grads = many_gradients(params)
    extra = {"value": jnp.linspace(3.0, 0.2, STEPS)} if name in VALUE else {}
    mine, my_state = trajectory(ours, params, grads, extra)
    other, other_state = lax(trajectory, theirs, params, grads, extra)
    return worst(mine, other, params), my_state, other_state


OPTIMIZERS: list[tuple[str, dict[str, Any]]] = [
    ("sgd", {"learning_rate": 0.1}),
    ("sgd", {"learning_rate": LR, "momentum": 0.9, "nesterov": True}),
    ("adam", {"learning_rate": LR}),
    ("adam", {"learning_rate": 0.1, "b1": 0.8, "b2": 0.95, "eps": 0.1, "eps_root": 0.2}),
    ("adamw", {"learning_rate": 0.1}),
    ("adamw", {"learning_rate": LR, "weight_decay": 0.1, "mask": only_matrices, "nesterov": True}),
    ("nadam", {"learning_rate": LR}),
    ("nadamw", {"learning_rate": 0.1, "b1": 0.8, "weight_decay": 0.1}),
    ("amsgrad", {"learning_rate": LR}),
    ("amsgrad", {"learning_rate": 0.1, "b2": 0.5, "eps_root": 0.1}),
    ("rmsprop", {"learning_rate": 0.1}),
    ("rmsprop", {"learning_rate": LR, "decay": 0.5, "eps": 0.1, "momentum": 0.9, "nesterov": True}),
    ("rmsprop", {"learning_rate": 0.1, "initial_scale": 0.5, "eps_in_sqrt": False}),
    ("rmsprop", {"learning_rate": 0.1, "eps": 0.1, "centered": True, "bias_correction": True}),
    ("adagrad", {"learning_rate": LR}),
    ("adagrad", {"learning_rate": 0.1, "initial_accumulator_value": 1.0, "eps": 0.1}),
    ("lion", {"learning_rate": LR}),
    ("lion", {"learning_rate": 0.1, "b1": 0.5, "b2": 0.8, "weight_decay": 0.1}),
    ("lamb", {"learning_rate": LR, "weight_decay": 0.1}),
    ("lars", {"learning_rate": LR, "weight_decay": 0.1, "trust_coefficient": 0.1}),
    ("lars", {"learning_rate": 0.1, "momentum": 0.5, "nesterov": True, "eps": 0.1}),
    ("signum", {"learning_rate": LR}),
    ("signum", {"learning_rate": 0.1, "beta": 0.5}),
    ("adabelief", {"learning_rate": LR}),
    ("adabelief", {"learning_rate": 0.1, "b1": 0.8, "eps_root": 0.1, "nesterov": True}),
    ("adadelta", {"learning_rate": 0.1}),
    ("adadelta", {"learning_rate": LR, "rho": 0.5, "eps": 0.1, "weight_decay": 0.1}),
    ("adafactor", {}),
    ("adafactor", {"learning_rate": LR, "min_dim_size_to_factor": 3, "momentum": 0.9}),
    (
        "adafactor",
        {
            "learning_rate": 0.1,
            "min_dim_size_to_factor": 2,
            "decay_rate": 0.5,
            "multiply_by_parameter_scale": False,
            "clipping_threshold": None,
            "weight_decay_rate": 0.01,
            "weight_decay_mask": only_matrices,
            "eps": 0.1,
        },
    ),
    ("adafactor", {"learning_rate": LR, "min_dim_size_to_factor": 2, "factored": False}),
    ("adamax", {"learning_rate": LR}),
    ("adamax", {"learning_rate": 0.1, "b1": 0.8, "b2": 0.5, "eps": 0.1}),
    ("adamaxw", {"learning_rate": LR, "weight_decay": 0.1, "mask": only_matrices}),
    ("adan", {"learning_rate": LR}),
    ("adan", {"learning_rate": 0.1, "b1": 0.9, "b2": 0.5, "b3": 0.8, "weight_decay": 0.1}),
    ("fromage", {"learning_rate": LR}),
    ("fromage", {"learning_rate": 0.01, "min_norm": 1.0}),
    ("noisy_sgd", {"learning_rate": LR, "key": 5}),
    ("noisy_sgd", {"learning_rate": 0.1, "eta": 0.5, "gamma": 0.9, "key": 6}),
    ("novograd", {"learning_rate": LR}),
    (
        "novograd",
        {"learning_rate": 0.1, "b1": 0.5, "b2": 0.9, "eps_root": 1.0, "weight_decay": 0.1},
    ),
    ("optimistic_adam", {"learning_rate": 0.1}),
    ("optimistic_adam", {"learning_rate": 0.1, "optimism": 0.3, "nesterov": False}),
    ("optimistic_adam_v2", {"learning_rate": LR}),
    ("optimistic_adam_v2", {"learning_rate": 0.1, "alpha": 0.5, "beta": 0.2, "b1": 0.8}),
    ("optimistic_gradient_descent", {"learning_rate": LR}),
    ("optimistic_gradient_descent", {"learning_rate": 0.1, "alpha": 0.5, "beta": 2.0}),
    ("polyak_sgd", {}),
    ("polyak_sgd", {"max_learning_rate": 0.01, "scaling": LR, "f_min": 0.5, "variant": "sps+"}),
    ("radam", {"learning_rate": 0.1, "b2": 0.9}),
    ("radam", {"learning_rate": LR, "b2": 0.8, "threshold": 4.5, "nesterov": True}),
    ("rprop", {"learning_rate": 0.1}),
    ("rprop", {"learning_rate": 0.1, "eta_minus": 0.3, "eta_plus": 2.0, "max_step_size": 0.3}),
    ("sign_sgd", {"learning_rate": LR}),
    ("sm3", {"learning_rate": 0.1}),
    ("sm3", {"learning_rate": 0.2, "momentum": 0.5}),
    ("yogi", {"learning_rate": LR}),
    ("yogi", {"learning_rate": 0.1, "b1": 0.8, "b2": 0.5, "eps": 0.1}),
]

TRANSFORMS: list[tuple[str, dict[str, Any]]] = [
    ("scale", {"step_size": 0.3}),
    ("scale_by_schedule", {"step_size_fn": LR}),
    ("scale_by_learning_rate", {"learning_rate": LR, "flip_sign": False}),
    ("add_decayed_weights", {"weight_decay": 0.1, "mask": only_matrices}),
    ("add_decayed_weights", {"weight_decay": LR}),
    ("trace", {"decay": 0.9, "nesterov": True}),
    ("ema", {"decay": 0.9}),
    ("ema", {"decay": 0.5, "debias": False}),
    ("scale_by_adam", {"nesterov": True}),
    ("scale_by_amsgrad", {"bias_correction_mu": False, "bias_correction_nu": False}),
    ("scale_by_rms", {"bias_correction": True}),
    ("scale_by_stddev", {"eps": 0.1, "eps_in_sqrt": False}),
    ("scale_by_rss", {}),
    ("scale_by_sign", {}),
    ("scale_by_lion", {"b1": 0.5}),
    ("scale_by_lion", {"mode": "smooth", "smooth_beta": 2.0}),
    ("scale_by_lion", {"mode": "refined"}),
    ("clip", {"max_delta": 0.5}),
    ("clip_by_block_rms", {"threshold": 0.5}),
    ("clip_by_global_norm", {"max_norm": 1.0}),
    ("adaptive_grad_clip", {"clipping": 0.1}),
    ("centralize", {}),
    ("normalize_by_update_norm", {"scale_factor": 0.5}),
    ("scale_by_trust_ratio", {"min_norm": 2.0, "trust_coefficient": 0.1, "eps": 0.5}),
    ("zero_nans", {}),
    ("keep_params_nonnegative", {}),
    ("apply_every", {}),
    ("apply_every", {"k": 4}),
    ("scale_by_adadelta", {"eps": 1e-3}),
    ("scale_by_adamax", {}),
    ("scale_by_adan", {}),
    ("scale_by_adan", {"b1": 0.9, "b2": 0.5, "b3": 0.8, "eps": 0.1, "eps_root": 0.2}),
    ("scale_by_belief", {"b1": 0.8, "b2": 0.9, "eps": 0.1}),
    ("scale_by_distance_over_gradients", {"reps_rel": 0.1}),
    ("scale_by_distance_over_gradients", {"reps_rel": 0.01, "eps": 0.5, "global_scale": -2.0}),
    ("scale_by_factored_rms", {"min_dim_size_to_factor": 2}),
    ("scale_by_factored_rms", {"min_dim_size_to_factor": 3, "decay_rate": 0.5, "epsilon": 0.1}),
    ("scale_by_factored_rms", {"decay_rate_fn": lambda n, c: jnp.where(n > 0, c / 2, 0.0)}),
    ("scale_by_novograd", {"weight_decay": 0.1}),
    ("scale_by_optimistic_gradient", {"alpha": 0.5, "beta": -0.5}),
    ("scale_by_param_block_norm", {}),
    ("scale_by_param_block_norm", {"min_scale": 5.0}),
    ("scale_by_param_block_rms", {}),
    ("scale_by_param_block_rms", {"min_scale": 2.0}),
    ("scale_by_polyak", {"f_min": 0.1, "max_learning_rate": 0.02, "eps": 0.1}),
    ("scale_by_radam", {"b1": 0.8, "b2": 0.9, "eps": 0.1, "eps_root": 0.2}),
    ("scale_by_rprop", {"learning_rate": 0.1, "min_step_size": 0.05}),
    ("scale_by_sm3", {}),
    ("scale_by_sm3", {"b1": 0.5, "b2": 0.9, "eps": 0.1}),
    ("scale_by_yogi", {"eps_root": 0.1, "initial_accumulator_value": 0.5}),
]


def made(library, name, kwargs):
    if name == "optimistic_adam":
        with pytest.warns(DeprecationWarning, match="use `optimistic_adam_v2` instead"):
            return library.optimistic_adam(**kwargs)
    return getattr(library, name)(**kwargs)


def row_ids(rows):
    return [
        f"{name}({', '.join(k if callable(v) else f'{k}={v}' for k, v in kwargs.items())})"
        for name, kwargs in rows
    ]


@pytest.mark.parametrize("name, kwargs", OPTIMIZERS, ids=row_ids(OPTIMIZERS))
def test_an_optimizer_follows_optax(name, kwargs):
    ours, theirs = made(gx, name, kwargs), made(optax, name, kwargs)
    apart, mine, other = both(name, ours, theirs)
    assert apart < 1e-5
    assert named_states(other) == named_states(mine)


@pytest.mark.parametrize("name, kwargs", TRANSFORMS, ids=row_ids(TRANSFORMS))
def test_a_transform_follows_optax(name, kwargs):
    def descending(lib):
        parts = made(lib, name, kwargs), lib.scale(-0.1)
        return lib.chain(*(reversed(parts) if name in LAST else parts))

    apart, mine, other = both(name, descending(gx), descending(optax))
    at = -1 if name in LAST else 0
    mine, other = mine[at], other[at]
    assert apart < 1e-5
    assert named_states(other) == named_states(mine)
    for k in OTHER_SHAPE.get(name, type(mine)._fields):
        assert_close(*(jax.tree.leaves(getattr(state, k)) for state in (mine, other)))


# What sets the parameters must be the last part.
LAST = {"keep_params_nonnegative"}
# The fields that are alike where others have another shape.
OTHER_SHAPE = {
    "scale_by_sm3": ("nu",),
    "scale_by_distance_over_gradients": ("max_dist", "init_params"),
}


def named_states(state):
    """The class and the fields of every state in a chain's."""
    if not hasattr(state, "_fields"):
        return [found for part in state for found in named_states(part)]
    return [(type(state).__name__, state._fields)]


def assert_close(ours, theirs):
    def one(a, b):
        assert jnp.shape(a) == jnp.shape(b)
        a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5 * np.max(np.abs(b), initial=1e-6))

    jax.tree.map(one, ours, theirs)


def rules_of_optax():
    """The names of Optax's optimizers and rules."""
    for name, f in vars(optax).items():
        if inspect.isfunction(f) and name[0] != "_":
            first = next(iter(inspect.signature(f).parameters), "")
            if name.startswith("scale_by_") or first in ("learning_rate", "max_learning_rate"):
                yield name


@pytest.mark.parametrize("name", sorted(rules_of_optax()))
def test_a_rule_of_optax_is_here_with_its_arguments_and_defaults(name):
    mine, theirs = (inspect.signature(getattr(m, name)).parameters for m in (gx, optax))
    mine_names = list(mine)
    mine, theirs = list(mine.values()), list(theirs.values())
    for a, b in zip(mine, theirs, strict=False):
        assert (a.name, a.kind) == (own_name(b.name, mine_names), b.kind)
        searches = hasattr(b.default, "update")  # the default of lbfgs, a pair of functions
        if (
            not searches and not callable(b.default) and name != "scale_by_learning_rate"
        ):  # None: no scaling
            assert a.default == b.default
    more = mine[len(theirs) :]
    assert len(mine) >= len(theirs)
    assert all(p.kind is p.KEYWORD_ONLY and p.default is not p.empty for p in more)


# ------------------------------------------------------------------------- where we are different


def steps_of(tx, grads, params=None, **extra):
    """The updates of one array, one for each gradient."""
    params = jnp.zeros_like(grads[0]) if params is None else params
    state, out = tx.init(params), []
    for g in grads:
        u, state = tx.update(g, state, params, **extra)
        out.append(u)
    return jnp.stack(out)


def test_rprop_of_the_paper_steps_at_once():
    signs = [jnp.asarray([g]) for g in (1.0, 1.0, 1.0, -1.0, 1.0)]
    delayed = steps_of(gx.scale_by_rprop(0.1), signs)[:, 0]
    at_once = steps_of(gx.scale_by_rprop(0.1, delayed=False), signs)[:, 0]
    np.testing.assert_allclose(delayed, [0.0, 0.1, 0.12, 0.0, 0.0], rtol=1e-6)
    np.testing.assert_allclose(at_once, [0.1, 0.12, 0.144, 0.0, 0.072], rtol=1e-6)


def test_rprop_sees_the_sign_of_the_smallest_gradients():
    tiny = jnp.full((1,), 1e-37)
    steps = steps_of(gx.scale_by_rprop(1e-6, max_step_size=1.0, delayed=False), [tiny] * 3)
    np.testing.assert_allclose(steps[:, 0], [1e-6, 1.2e-6, 1.44e-6], rtol=1e-6)


def test_adadelta_without_a_learning_rate_goes_downhill():
    g = [jnp.ones(3)] * 4
    np.testing.assert_array_equal(steps_of(gx.adadelta(), g), steps_of(gx.adadelta(1.0), g))
    assert jnp.all(steps_of(gx.adadelta(), g) < 0)
    assert jnp.all(lax(steps_of, optax.adadelta(), g) > 0)


@pytest.mark.parametrize("b2", [0.5, 0.61, 0.9, 0.99, 0.999, 0.9999])
def test_the_rectification_of_radam_is_exact(b2):
    t = np.arange(1, 3000, dtype=np.float64)
    power, r_inf = b2**t, 2 / (1 - b2) - 1
    r = r_inf - 2 * t * power / (1 - power)
    enough = (r >= 4.5) & (r_inf > 4)
    square = (r - 4) * (r - 2) * r_inf / ((r_inf - 4) * (r_inf - 2) * r)
    c = np.sqrt(np.where(enough, square, 1))
    found = jax.vmap(lambda n: rectification(b2, n, 4.5))(jnp.asarray(t, jnp.int32))
    np.testing.assert_array_equal(found[0], enough)
    np.testing.assert_allclose(found[1], c, rtol=3e-6)


def test_radam_by_default_is_that_of_optax_in_double_precision():
    """In float32 Optax's is 5e-4 of the movement off, for what cancels in the rectification."""
    params = some_params("radam")
    grads = many_gradients(params)
    mine, _ = trajectory(gx.radam(0.1), params, grads, {})
    with jax.enable_x64(True):
        wide = jax.tree.map(lambda x: x.astype(jnp.float64), (params, grads))
        theirs, _ = lax(trajectory, optax.radam(0.1), *wide, {})
    assert worst(mine, theirs, params) < 5e-6


def test_a_dead_row_of_a_factored_moment_stays_finite():
    g = jnp.asarray([[0.0, 0.0], [1e8, 2e8]])
    tx = gx.scale_by_factored_rms(min_dim_size_to_factor=2)
    assert jnp.all(jnp.isfinite(steps_of(tx, [g, g])))
    for eps, dtype in ((0.0, jnp.float32), (1e-30, jnp.float16)):
        tx = gx.adafactor(0.1, min_dim_size_to_factor=2, eps=eps)
        zeros = jnp.zeros((2, 3), dtype)
        np.testing.assert_array_equal(steps_of(tx, [zeros, zeros]), 0)


def test_a_nan_is_not_hidden_by_a_factored_moment():
    g = jnp.ones((2, 3)).at[0, 1].set(jnp.nan)
    tx = gx.scale_by_factored_rms(min_dim_size_to_factor=2)
    assert jnp.all(jnp.isnan(steps_of(tx, [g])))


def test_factored_moments_begin_before_their_offset():
    tx = gx.scale_by_factored_rms(step_offset=1000)
    assert jnp.all(jnp.isfinite(steps_of(tx, [jnp.ones(3)] * 3)))
    theirs = lax(steps_of, optax.scale_by_factored_rms(step_offset=1000), [jnp.ones(3)] * 3)
    assert jnp.any(jnp.isnan(theirs))


def test_factored_moments_do_not_need_parameters():
    tx, g = gx.scale_by_factored_rms(min_dim_size_to_factor=2), jnp.ones((2, 3))
    np.testing.assert_allclose(tx.update(g, tx.init(g))[0], g, rtol=1e-6)


def test_the_maxima_of_sm3_equal_optaxs_in_one_vector():
    params = some_params("sm3")
    grads = many_gradients(params)
    _, mine = trajectory(gx.scale_by_sm3(), params, grads, {})
    _, theirs = lax(trajectory, optax.scale_by_sm3(), params, grads, {})
    for k in params:
        np.testing.assert_allclose(mine.mu[k], jnp.concatenate(theirs.mu[k]), rtol=1e-5)


@pytest.mark.parametrize("name", sorted(NO_SCALAR))
def test_scalars_are_parameters_like_others(name):
    tx = getattr(gx, name)(*([0.1] if name == "sm3" else []))
    scalar = steps_of(tx, [jnp.asarray(0.3)] * 2, jnp.asarray(1.0))
    vector = steps_of(tx, [jnp.asarray([0.3])] * 2, jnp.asarray([1.0]))
    np.testing.assert_allclose(scalar, vector[:, 0], rtol=1e-5, atol=1e-7)


def test_optimistic_adam_takes_a_schedule():
    g = [jnp.asarray([0.3, -1.0]), jnp.asarray([0.1, 2.0])]
    ours = steps_of(gx.optimistic_adam(LR, nesterov=False), g)
    theirs = steps_of(gx.optimistic_adam_v2(LR, nesterov=False), g)
    np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-7)


def test_a_nan_does_not_stay_in_a_sum_that_is_over():
    g = [jnp.asarray(x) for x in (1.0, np.nan, 2.0, 3.0)]
    np.testing.assert_array_equal(steps_of(gx.apply_every(2), g), [0, np.nan, 0, 5])


def test_yogi_stays_finite_at_squares_that_overflow():
    g = [jnp.full(2, 1e30)] * 3
    np.testing.assert_array_equal(steps_of(gx.scale_by_yogi(), g), 0)


@pytest.mark.parametrize("value", [0.7, 1, np.float64(0.7), jnp.asarray(0.7, jnp.bfloat16)])
def test_the_loss_may_have_any_dtype(value):
    g = [jnp.asarray([3.0, 4.0], jnp.bfloat16)]
    u = steps_of(gx.polyak_sgd(), g, value=value)
    assert u.dtype == jnp.bfloat16
    np.testing.assert_allclose(u[0], -float(value) / 25 * g[0].astype(jnp.float32), rtol=1e-2)


TURNING = {
    "scale_by_adadelta": {},
    "scale_by_adamax": {},
    "scale_by_adan": {},
    "scale_by_belief": {"nesterov": True},
    "scale_by_distance_over_gradients": {"reps_rel": 0.1},
    "scale_by_factored_rms": {"min_dim_size_to_factor": 2},
    "scale_by_lion": {"mode": "smooth"},
    "scale_by_novograd": {"weight_decay": 0.1},
    "scale_by_optimistic_gradient": {},
    "scale_by_param_block_norm": {},
    "scale_by_param_block_rms": {},
    "scale_by_polyak": {},
    "scale_by_radam": {"b2": 0.9},
    "scale_by_sign": {},
    "scale_by_yogi": {"initial_accumulator_value": 0.0},
    "undo_norm_growth": {"learning_rate": 0.3},
    "apply_every": {"k": 2},
}


@pytest.mark.parametrize("name, kwargs", TURNING.items(), ids=TURNING)
def test_complex_numbers_have_no_preferred_direction(name, kwargs):
    """To turn the parameters and the gradients in the complex plane turns the updates."""
    rng, turn = np.random.default_rng(5), np.exp(0.7j)
    z = rng.normal(size=(7, 2, 3)) + 1j * rng.normal(size=(7, 2, 3))
    tx, extra = getattr(gx, name)(**kwargs), {"value": 0.7} if name in VALUE else {}
    straight, turned = (
        steps_of(
            tx, list(jnp.asarray(x[1:], jnp.complex64)), jnp.asarray(x[0], jnp.complex64), **extra
        )
        for x in (z, turn * z)
    )
    np.testing.assert_allclose(turned, turn * straight, rtol=1e-4, atol=1e-5)
    real = steps_of(tx, list(jnp.asarray(z[1:].real, jnp.float32)), jnp.asarray(z[0].real), **extra)
    as_complex = jnp.asarray(z.real, jnp.complex64)
    same = steps_of(tx, list(as_complex[1:]), as_complex[0], **extra)
    np.testing.assert_allclose(same, real, rtol=1e-5, atol=1e-6)
