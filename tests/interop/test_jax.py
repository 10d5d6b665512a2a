"""Our transforms under JAX's own: jit, vmap, scan, grad, donation, sharding, disable_jit."""

import contextlib
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradxform as gx
from tests.trees import assert_close

pytestmark = pytest.mark.numeric

PARAMS = {"a": jnp.asarray([[1.0, -2.0], [0.5, 3.0]]), "b": jnp.asarray([0.1, -0.2])}
GRADS = jax.tree.map(lambda p: 0.5 * p + 0.25, PARAMS)
MATRICES = gx.ndim_at_least(2)

TRANSFORMS = {
    "sgd": gx.sgd(0.1, momentum=0.9),
    "adamw": gx.adamw(0.1, mask=MATRICES),
    "clip and lion": gx.chain(gx.clip_by_global_norm(0.5), gx.lion(0.1)),
    "MultiSteps": gx.MultiSteps(gx.adam(0.1), 2),
    "lookahead": gx.lookahead(gx.adam(0.1), 2, 0.5),
    "apply_if_finite": gx.apply_if_finite(gx.adam(0.1), 2),
    "masked": gx.masked(gx.amsgrad(0.1), MATRICES),
    "partition": gx.partition({"x": gx.adam(0.1), "y": gx.sgd(0.1)}, {"a": "x", "b": "y"}),
    "inject": gx.inject_hyperparams(gx.adamw)(lambda n: 0.1 / (1.0 + n.astype(jnp.float32))),
}


@pytest.fixture(params=list(TRANSFORMS))
def tx(request):
    return TRANSFORMS[request.param]


def step_of(tx):
    def step(params, state):
        grads = jax.tree.map(lambda p: 0.5 * p + 0.25, params)
        updates, state = tx.update(grads, state, params)
        return gx.apply_updates(params, updates), state

    return step


@functools.cache
def after_three(name):
    """The parameters and the state of three eager steps."""
    tx = TRANSFORMS[name]
    params, state = PARAMS, tx.init(PARAMS)
    for _ in range(3):
        params, state = step_of(tx)(params, state)
    return params, state


# ------------------------------------------------------------------------------------- protocols


def test_every_transform_unpacks_and_is_a_gradient_transformation(tx):
    init, update = tx
    assert init is tx.init
    assert update is tx.update
    assert isinstance(tx, gx.GradientTransformation)
    assert isinstance(tx, gx.SupportsTransform)


def test_every_argument_may_be_given_by_name():
    tx = gx.adamw(0.1, mask=MATRICES)
    want = tx.update(GRADS, tx.init(PARAMS), PARAMS)
    assert_close(tx.update(GRADS, tx.init(PARAMS), params=PARAMS), want)
    assert_close(tx.update(updates=GRADS, state=tx.init(params=PARAMS), params=PARAMS), want)


def test_values_that_are_not_transforms_are_not_gradient_transformations():
    assert not isinstance((lambda p: (), lambda g, s: (g, s)), gx.GradientTransformation)
    assert not isinstance(gx.sgd, gx.GradientTransformation)
    assert not isinstance(None, gx.GradientTransformation)


def test_two_functions_make_a_transform():
    def init(params):
        return {"seen": jnp.zeros((), jnp.int32)}

    def update(updates, state, params=None):
        return jax.tree.map(lambda g: -g, updates), {"seen": state["seen"] + 1}

    made = gx.GradientTransformation(init, update)
    assert made == gx.GradientTransformation(init, update)
    assert hash(made) == hash(gx.GradientTransformation(init, update))
    assert isinstance(made, gx.GradientTransformation)
    assert isinstance(gx.GradientTransformationExtraArgs(init, update), gx.GradientTransformation)
    tx = gx.chain(gx.scale(2.0), made)
    state = tx.init(PARAMS)
    for _ in range(2):
        updates, state = jax.jit(tx.update)(GRADS, state, params=PARAMS)
    assert int(state[1]["seen"]) == 2
    assert_close(updates, jax.tree.map(lambda g: -2 * g, GRADS))
    again, its_update = made
    assert again(PARAMS).keys() == {"seen"}
    assert_close(its_update(GRADS, again(PARAMS))[0], jax.tree.map(jnp.negative, GRADS))


# ------------------------------------------------------------------- jit, disable_jit, scan, vmap


@pytest.mark.parametrize("name", list(TRANSFORMS))
def test_jit_scan_and_disable_jit_change_nothing(name):
    tx = TRANSFORMS[name]
    want = after_three(name)
    state = tx.init(PARAMS)

    def body(carry, _):
        return step_of(tx)(*carry), None

    scanned, _ = jax.jit(lambda carry: jax.lax.scan(body, carry, None, length=3))((PARAMS, state))
    assert jax.tree.structure(scanned) == jax.tree.structure(want)
    assert_close(scanned, want)

    with jax.disable_jit():
        carry = PARAMS, tx.init(PARAMS)
        for _ in range(3):
            carry = step_of(tx)(*carry)
    assert_close(carry, want)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("g_dtype", ["float32", "same"])
def test_low_precision_states_are_scan_carries(tx, dtype, g_dtype):
    params = jax.tree.map(lambda p: p.astype(dtype), PARAMS)
    grads = GRADS if g_dtype == "float32" else jax.tree.map(lambda p: p.astype(dtype), GRADS)

    def body(carry, _):
        params, state = carry
        updates, state = tx.update(grads, state, params)
        return (gx.apply_updates(params, updates), state), updates

    # eval_shape: scan itself checks that the types of what is carried stay.
    (new, _), updates = jax.eval_shape(
        lambda p: jax.lax.scan(body, (p, tx.init(p)), None, length=2), params
    )
    assert jax.tree.map(lambda x: x.dtype, new) == jax.tree.map(lambda x: x.dtype, params)
    assert jax.tree.map(lambda x: x.dtype, updates) == jax.tree.map(lambda x: x.dtype, grads)


RATES = [0.0, 0.03, 0.5]

LEARNING_RATES = {
    "sgd": lambda lr: gx.sgd(lr, momentum=0.9),
    "adam": gx.adam,
    "clip and adamw": lambda lr: gx.chain(gx.clip_by_global_norm(0.5), gx.adamw(lr, mask=MATRICES)),
    "decay": lambda x: gx.chain(gx.add_decayed_weights(x), gx.scale(-1.0)),
    "b1": lambda x: gx.adam(0.1, b1=x),
    "MultiSteps": lambda lr: gx.MultiSteps(gx.adam(lr), 2),
    "lookahead": lambda lr: gx.lookahead(gx.sgd(lr), 2, 0.5),
    "inject": lambda lr: gx.inject_hyperparams(gx.adam)(lr),
}


def two_steps(make, x):
    tx = make(x)
    params, state = PARAMS, tx.init(PARAMS)
    for _ in range(2):
        params, state = step_of(tx)(params, state)
    return params, jax.tree.map(jnp.asarray, state)


@pytest.mark.parametrize("name", list(LEARNING_RATES))
def test_vmap_over_a_hyperparameter_equals_a_loop(name):
    make = LEARNING_RATES[name]
    got = jax.jit(jax.vmap(lambda x: two_steps(make, x)))(jnp.asarray(RATES))
    want = [two_steps(make, x) for x in RATES]
    assert_close(got, jax.tree.map(lambda *xs: jnp.stack(xs), *want))
    assert np.ptp(np.asarray(got[0]["a"]), axis=0).min() > 0


def test_vmap_runs_eagerly_over_the_update_alone():
    state = gx.adam(0.1).init(PARAMS)
    got = jax.vmap(lambda lr: gx.adam(lr).update(GRADS, state, PARAMS)[0])(jnp.asarray(RATES))
    for i, lr in enumerate(RATES):
        want = gx.adam(lr).update(GRADS, state, PARAMS)[0]
        assert_close(jax.tree.map(lambda x, i=i: x[i], got), want)


def test_vmap_over_parameters_equals_a_loop(tx):
    def one(p):
        return step_of(tx)(p, tx.init(p))

    many = jax.tree.map(lambda p: jnp.stack([p, 2 * p]), PARAMS)
    got = jax.jit(jax.vmap(one))(many)
    want = [one(PARAMS), one(jax.tree.map(lambda p: 2 * p, PARAMS))]
    assert_close(got, jax.tree.map(lambda *xs: jnp.stack(xs), *want))


# ---------------------------------------------------------------------------------- meta-gradient


def loss(params):
    """Without a gradient of exactly 0, at which Adam without eps_root has no derivative."""
    return jnp.sum((params["a"] - 1.5) ** 2) + jnp.sum((params["b"] - 2.0) ** 2)


def unrolled(make, x, steps=2):
    tx = make(x)
    params, state = PARAMS, tx.init(PARAMS)
    for _ in range(steps):
        updates, state = tx.update(jax.grad(loss)(params), state, params)
        params = gx.apply_updates(params, updates)
    return loss(params)


def set_rate(lr):
    """The learning rate as a number in the state of one and the same transform."""
    tx = gx.inject_hyperparams(gx.adam)(0.1)
    params, state = PARAMS, tx.init(PARAMS)
    for _ in range(2):
        state.hyperparams["learning_rate"] = lr
        updates, state = tx.update(jax.grad(loss)(params), state, params)
        params = gx.apply_updates(params, updates)
    return loss(params)


@pytest.mark.parametrize(
    "make",
    [
        lambda lr: gx.chain(gx.clip_by_global_norm(3.0), gx.sgd(lr, momentum=0.9)),
        lambda lr: gx.adamw(lr, weight_decay=0.1, mask=MATRICES),
        lambda b1: gx.adam(0.3, b1=b1),
        lambda scale: gx.chain(gx.adam(0.3), gx.scale(scale)),
        None,
    ],
    ids=["sgd", "adamw", "b1", "scale", "in the state"],
)
def test_the_gradient_through_training_equals_finite_differences(make):
    f = jax.jit(set_rate if make is None else functools.partial(unrolled, make))
    at, eps = jnp.asarray(0.25), 1e-2
    slope = jax.jit(jax.grad(f))(at)
    difference = (f(at + eps) - f(at - eps)) / (2 * eps)
    assert abs(float(slope)) > 1e-2
    np.testing.assert_allclose(slope, difference, rtol=2e-2)


def test_the_gradient_through_one_sgd_step_is_exact():
    g = jax.grad(loss)(PARAMS)
    slope = jax.grad(lambda lr: unrolled(gx.sgd, lr, steps=1))(jnp.asarray(0.1))
    after = jax.grad(loss)(jax.tree.map(lambda p, g: p - 0.1 * g, PARAMS, g))
    want = -sum(jnp.vdot(x, y) for x, y in zip(g.values(), after.values(), strict=True))
    np.testing.assert_allclose(slope, want, rtol=1e-5)


def test_the_gradient_flows_through_the_parameters(tx):
    if isinstance(tx, gx.MultiSteps):
        pytest.skip("says that it cannot be differentiated in reverse")

    def after(params):
        return loss(step_of(tx)(params, tx.init(params))[0])

    slopes = jax.jit(jax.grad(after))(PARAMS)
    assert all(np.all(np.isfinite(x)) for x in jax.tree.leaves(slopes))


# -------------------------------------------------------------------------------------- donation


@pytest.mark.parametrize("jit_init", [False, True], ids=["eager init", "jitted init"])
@pytest.mark.parametrize("name", [*TRANSFORMS, "add_noise"])
def test_params_and_state_can_be_donated_right_after_init(name, jit_init):
    noisy = gx.chain(gx.add_noise(0.1, 0.5, 3), gx.adagrad(0.1))
    tx = TRANSFORMS.get(name, noisy)
    params = jax.tree.map(jnp.copy, PARAMS)
    state = (jax.jit(tx.init) if jit_init else tx.init)(params)
    arrays = jax.tree.leaves((params, state))
    buffers = [x.unsafe_buffer_pointer() for x in arrays if not is_key(x)]
    assert len(set(buffers)) == len(buffers)
    step = jax.jit(step_of(tx), donate_argnums=(0, 1))
    carry = step(params, state)
    assert all(x.is_deleted() for x in jax.tree.leaves(params))
    for _ in range(2):
        carry = step(*carry)
    if name in TRANSFORMS:
        assert_close(carry, after_three(name))


def is_key(x):
    return jnp.issubdtype(x.dtype, jax.dtypes.prng_key)


# -------------------------------------------------------------------------------------- sharding

SPECS = {"w": jax.P("x", "y"), "b": jax.P("y"), "r": jax.P()}


def mesh_of(axis_type):
    kind = getattr(jax.sharding.AxisType, axis_type)
    return jax.make_mesh((4, 2), ("x", "y"), axis_types=(kind, kind))


def plain():
    return {
        "w": jnp.linspace(-1.0, 2.0, 64).reshape(8, 8),
        "b": jnp.linspace(0.0, 1.0, 8),
        "r": jnp.asarray([1.0, 2.0, 3.0]),
    }


def sharded(mesh):
    return {k: jax.device_put(v, jax.NamedSharding(mesh, SPECS[k])) for k, v in plain().items()}


SHARDABLE = {
    "adamw": gx.chain(gx.clip_by_global_norm(0.5), gx.adamw(0.1, mask=MATRICES)),
    "amsgrad, momentum": gx.chain(gx.trace(0.9), gx.amsgrad(0.1)),
    "MultiSteps": gx.MultiSteps(gx.adam(0.1, mu_dtype="bfloat16"), 2),
    "lookahead": gx.lookahead(gx.rmsprop(0.1, initial_scale=1.0), 2, 0.5),
    "adagrad": gx.masked(gx.adagrad(0.1), MATRICES),
}


def assert_placed_as_params(state, params):
    """Every array of the state with the shape of a parameter lies where that parameter does."""
    flat, _ = jax.tree_util.tree_flatten_with_path(state)
    seen = 0
    for path, leaf in flat:
        name = getattr(path[-1], "key", None)
        if name in SPECS:
            assert leaf.shape == params[name].shape
            where = params[name].sharding
            assert leaf.sharding.is_equivalent_to(where, leaf.ndim), (path, leaf.sharding)
            seen += 1
    assert seen


@pytest.mark.usefixtures("eight_devices")
@pytest.mark.parametrize("axis_type", ["Auto", "Explicit"])
@pytest.mark.parametrize("jit_init", [False, True], ids=["eager init", "jitted init"])
@pytest.mark.parametrize("name", list(SHARDABLE))
def test_init_places_the_state_as_the_parameters(name, jit_init, axis_type):
    init = SHARDABLE[name].init
    mesh = mesh_of(axis_type)
    params = sharded(mesh)
    with jax.set_mesh(mesh) if axis_type == "Explicit" else contextlib.nullcontext():
        assert_placed_as_params((jax.jit(init) if jit_init else init)(params), params)


@functools.cache
def unsharded(name):
    params, tx = plain(), SHARDABLE[name]
    step = jax.jit(step_of(tx))
    return step(*step(params, tx.init(params)))


@pytest.mark.usefixtures("eight_devices")
@pytest.mark.parametrize("axis_type", ["Auto", "Explicit"])
@pytest.mark.parametrize("name", ["adamw", "MultiSteps", "lookahead"])
def test_sharded_equals_unsharded(name, axis_type):
    tx = SHARDABLE[name]
    mesh = mesh_of(axis_type)
    params = sharded(mesh)
    with jax.set_mesh(mesh):
        step = jax.jit(step_of(tx))
        carry = step(*step(params, jax.jit(tx.init)(params)))
    assert_close(carry, unsharded(name))
    assert_placed_as_params(carry, params)


@pytest.mark.usefixtures("eight_devices")
@pytest.mark.parametrize("name", ["adamw", "lookahead"])
def test_sharded_parameters_are_updated_eagerly(name):
    tx = SHARDABLE[name]
    params = sharded(mesh_of("Auto"))
    carry = step_of(tx)(params, tx.init(params))
    carry = step_of(tx)(*carry)
    assert_close(carry, unsharded(name))
    assert_placed_as_params(carry, params)


@pytest.mark.usefixtures("eight_devices")
@pytest.mark.parametrize("tx", [gx.adam(0.1), gx.chain(gx.trace(0.9), gx.adamw(0.1))], ids=repr)
def test_parameters_on_different_devices_stay_there(tx):
    """A pipeline's stages: leaf by leaf on other devices, updated eagerly."""
    devices = jax.devices()
    params = {k: jax.device_put(jnp.ones((3,)), devices[i]) for i, k in enumerate("pqr")}
    grads = {k: jax.device_put(jnp.full((3,), 0.5), p.sharding) for k, p in params.items()}
    state = tx.init(params)
    for _ in range(2):
        updates, state = tx.update(grads, state, params)
        params = gx.apply_updates(params, updates)
    for i, k in enumerate("pqr"):
        assert updates[k].devices() == {devices[i]}
        assert params[k].devices() == {devices[i]}
        np.testing.assert_array_equal(params[k], params["p"])
    assert np.all(np.asarray(params["p"]) < 1)


@pytest.mark.usefixtures("eight_devices")
def test_shard_map_of_an_update_equals_the_whole():
    mesh = mesh_of("Auto")
    p = jnp.linspace(-1.0, 1.0, 16)
    tx = gx.adamw(0.1)

    def local(p, g):
        return tx.update({"p": g}, tx.init({"p": p}), {"p": p})[0]["p"]

    spec = jax.P("x")
    split = jax.jit(jax.shard_map(local, mesh=mesh, in_specs=(spec, spec), out_specs=spec))
    assert_close(split(p, 2 * p), local(p, 2 * p))
