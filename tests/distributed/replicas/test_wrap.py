"""`Replicas.wrap`: what is static, shared, a key or the same on all, in every mode."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

import gradxform as gx
import gradxform.distributed as gd
from tests.distributed.modes import MODES, replicas

pytestmark = [pytest.mark.numeric, pytest.mark.usefixtures("eight_devices")]

N = 8
X = np.random.default_rng(0).normal(size=(16, 3)).astype(np.float32)
W = np.linspace(-1, 1, 3, dtype=np.float32)


def noisy(params, x, key, frozen, power, *, scale, same_key):
    """A step with an argument of each kind."""
    noise = jax.random.normal(key, (3,)) + jax.random.normal(same_key, (3,))
    loss = jnp.mean((x @ params + frozen[0]) ** power) * scale
    return params + noise, {"loss": lax.pmean(loss, "replica"), "own": loss}


def by_vmap(params, x, key, frozen, scale, same_key):
    """The same by hand, with keys that are folded by hand."""
    keys = jax.vmap(lambda i: jax.random.fold_in(key, i))(jnp.arange(N))
    step = functools.partial(noisy, power=2)
    return jax.vmap(
        lambda p, x, k: step(p, x, k, frozen, scale=scale, same_key=same_key), axis_name="replica"
    )(params, x, keys)


@pytest.mark.parametrize("mode", list(MODES))
@pytest.mark.parametrize("by_name", [True, False])
def test_arguments_of_every_kind(mode, by_name):
    r = replicas(mode, N)
    kinds = (
        {"static": "power", "shared": ("frozen", "scale", "same_key"), "keys": "key"}
        if by_name
        else {"static": 4, "shared": (3, "scale", "same_key"), "keys": (2,)}
    )
    step = r.wrap(noisy, **kinds)
    params, x = r.replicate(W), r.split(X)
    key, other = jax.random.key(1), jax.random.key(2)
    frozen, scale = [jnp.ones(2)], jnp.float32(0.5)
    new, out = step(params, x, key, frozen, 2, scale=scale, same_key=other)
    theirs, expected = by_vmap(r.gather(params), r.gather(x), key, frozen, scale, other)
    np.testing.assert_allclose(new, theirs, rtol=1e-6, atol=1e-6)
    for name in out:
        np.testing.assert_allclose(out[name], expected[name], rtol=1e-5)
    assert len(set(np.asarray(new)[:, 0].tolist())) == N  # each replica has noise of its own
    # Another value of what is static is another program; by keyword it is the same argument.
    by_keyword = step(params, x, key, frozen=frozen, power=3, scale=scale, same_key=other)
    cubes = np.mean((X.reshape(N, 2, 3) @ W + 1) ** 3, axis=1) * 0.5
    np.testing.assert_allclose(by_keyword[1]["own"], cubes, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("mode", list(MODES))
def test_results_that_are_the_same_are_returned_once(mode):
    r = replicas(mode, N)

    def step(params, x):
        loss = jnp.mean((x @ params) ** 2)
        many = lax.all_gather(loss, "replica")
        return params, lax.pmean(loss, "replica"), many, {"max": lax.pmax(loss, "replica")}

    arrays = r.replicate(W), r.split(X)
    losses = np.mean((X.reshape(N, 2, 3) @ W) ** 2, axis=1)
    params, mean, many, most = r.wrap(step, shared_outputs=(1, 2, 3))(*arrays)
    assert params.shape == (N, 3) and mean.shape == () and many.shape == (N,)
    np.testing.assert_allclose(mean, losses.mean(), rtol=1e-5)
    np.testing.assert_allclose(many, losses, rtol=1e-5)
    np.testing.assert_allclose(most["max"], losses.max(), rtol=1e-5)
    named = r.wrap(lambda p, x: {"p": p, "m": step(p, x)[1]}, shared_outputs="m")(*arrays)
    assert named["p"].shape == (N, 3) and named["m"].shape == ()
    alone = r.wrap(lambda p, x: step(p, x)[1], shared_outputs=True)(*arrays)
    np.testing.assert_allclose(alone, losses.mean(), rtol=1e-5)


@pytest.mark.parametrize("mode", list(MODES))
def test_keys_of_a_state_are_read_as_keys(mode):
    r = replicas(mode, N)
    tx = gx.add_noise(0.1, 0.5, jax.random.key(3))
    state = r.wrap(tx.init)(r.replicate(W))
    for read in (r.gather(state), r.place(r.gather(state))):
        assert read.rng_key.shape == (N,) and read.rng_key.dtype == state.rng_key.dtype
    one = r.unreplicate(state)
    assert jax.random.key_data(one.rng_key).tolist() == [0, 3]


@pytest.mark.parametrize("mode", list(MODES))
def test_auxiliary_results_are_averaged(mode):
    r = replicas(mode, N)
    tx = gd.model_average(gx.sgd(0.1), "replica", period=2)

    def step(params, state, x):
        loss, grads = jax.value_and_grad(lambda p: jnp.mean((x @ p) ** 2))(params)
        return tx.step(grads, state, params), {"loss": loss, "half": loss.astype(jnp.bfloat16)}

    params = r.replicate(W)
    (params, state), aux = r.wrap(step, has_aux=True)(params, r.wrap(tx.init)(params), r.split(X))
    mean = np.mean((X @ W) ** 2)
    np.testing.assert_allclose(aux["loss"], mean, rtol=1e-5)
    np.testing.assert_allclose(np.float32(aux["half"]), mean, rtol=1e-2)
    assert aux["half"].dtype == jnp.bfloat16 and int(state.schedule_step) == 1


def test_donated_arguments_are_counted_as_the_caller_does():
    r = gd.Replicas(n=N)
    step = r.wrap(lambda flag, x: x + flag, donate_argnums=1, static=0)
    x = r.replicate(W)
    np.testing.assert_array_equal(step(1, x)[3], W + 1)
    assert x.is_deleted()


def test_static_values_that_are_equal_and_of_another_type_are_other_programs():
    r = gd.Replicas(n=N)
    step = r.wrap(lambda x, by: x * (3 if by is True else by), static="by")
    x = r.replicate(W)
    for by, expected in ((1, W), (True, 3 * W), (1, W)):
        np.testing.assert_array_equal(step(x, by)[0], expected)


PARTING = {
    "psum_scatter": lambda x: jax.lax.psum_scatter(x, "replica", tiled=True),
    "all_to_all": lambda x: jax.lax.all_to_all(x, "replica", 0, 0, tiled=True),
    "ppermute": lambda x: jax.lax.ppermute(x, "replica", [(i, i) for i in range(N)]),
}


@pytest.mark.parametrize("name", list(PARTING))
def test_parts_of_what_all_share_are_not_the_same_on_all(name):
    r = gd.Replicas(n=N)
    step = r.wrap(PARTING[name], shared=0, shared_outputs=True)
    with pytest.raises(ValueError, match="is in shared_outputs and may differ"):
        step(jnp.arange(float(N)))


def test_several_axes_of_replicas_count_as_one():
    mesh = jax.make_mesh((2, 4), ("a", "b"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    r = gd.Replicas(("a", "b"), mesh=mesh)
    tx = gd.model_average(gx.sgd(0.1), ("a", "b"), period=1)

    def step(params, state, x, key):
        grads = jax.grad(lambda p: jnp.mean((x @ p) ** 2))(params)
        return *tx.step(grads, state, params), jax.random.normal(key)

    params = r.replicate(W)
    key = jax.random.key(0)
    new, _, drawn = r.wrap(step, keys="key")(params, r.wrap(tx.init)(params), r.split(X), key)
    one = gd.Replicas("replica", n=N, mode="vmap")
    average = gd.model_average(gx.sgd(0.1), "replica", period=1)
    tx = average
    params = one.replicate(W)
    theirs = one.wrap(step, keys="key")(params, one.wrap(tx.init)(params), one.split(X), key)
    np.testing.assert_allclose(new, theirs[0], rtol=1e-6)
    np.testing.assert_allclose(drawn, theirs[2], rtol=1e-6)
    assert new.sharding.spec[0] == ("a", "b") or new.sharding.spec == P(("a", "b"))


def refusals():
    r = gd.Replicas(n=N, mode="vmap")
    x, key = jnp.ones((N, 3)), jax.random.key(0)

    wrong: Any = (1.5,)

    def f(x, y=None, *, z=None):
        return x

    return {
        "unknown name": (lambda: r.wrap(f, static="zz"), ("static", "'zz'", "'z'")),
        "unknown position": (lambda: r.wrap(f, shared=5), ("shared", "5", "'x'")),
        "negative": (lambda: r.wrap(f, shared=-1), ("shared", "-1")),
        "not a name": (lambda: r.wrap(f, keys=wrong), ("keys", "1.5")),
        "in two": (lambda: r.wrap(f, static=1, shared="y"), ("'y'", "static", "shared")),
        "not hashable": (lambda: r.wrap(f, static=1)(x, [1]), ("static", "hashable", "[1]")),
        "not a key": (lambda: r.wrap(f, keys=1)(x, jnp.ones(3)), ("keys", "(3,)", "key")),
        "many keys": (lambda: r.wrap(f, keys=1)(x, jax.random.split(key)), ("one key", "(2,)")),
        "donated": (
            lambda: r.wrap(f, donate_argnums=1, static=1)(x, 2),
            ("static", "donate_argnums"),
        ),
        "donated by name": (
            lambda: r.wrap(f, donate_argnums="x")(x),
            ("donate_argnums", "positions", "'x'"),
        ),
        "donated from the end": (
            lambda: r.wrap(f, donate_argnums=(0, -1))(x),
            ("donate_argnums", "at least 0", "-1"),
        ),
        "no axis": (lambda: r.wrap(f)(x, jnp.ones(3)), ("argument 1, has", "(3,)", "shared=")),
        "no axis, by name": (lambda: r.wrap(f)(x, z={"a": 1.0}), ("z['a']", "()", "shared=")),
        "unknown result": (
            lambda: r.wrap(lambda x: (x, x), shared_outputs=2)(x),
            ("shared_outputs", "2", "0, 1"),
        ),
        "unknown key": (
            lambda: r.wrap(lambda x: {"loss": x}, shared_outputs="los")(x),
            ("'los'", "'loss'"),
        ),
        "single": (lambda: r.wrap(f, shared_outputs=0)(x), ("shared_outputs=True",)),
        "differs": (
            lambda: r.wrap(lambda x: {"loss": x}, shared_outputs="loss")(x),
            ("['loss']", "shared_outputs", "pmean"),
        ),
        "no pair": (lambda: r.wrap(f, has_aux=True)(x), ("has_aux", "pair")),
        "integers": (
            lambda: r.wrap(lambda x: (x, {"n": jnp.int32(1)}), has_aux=True)(x),
            ("['n']", "int32", "float32"),
        ),
    }


@pytest.mark.parametrize("name", list(refusals()))
def test_what_cannot_be_is_refused_in_one_line(name):
    call, words = refusals()[name]
    with pytest.raises((ValueError, TypeError)) as error:
        call()
    message = str(error.value)
    assert message.startswith("Replicas: ") and "\n" not in message
    assert [word for word in words if word not in message] == []
