"""`gradxform.microbatching` beside `optax.microbatching`, and what that one does not do."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import gradxform as gx
from gradxform import microbatching as mb

pytestmark = pytest.mark.numeric

RNG = np.random.default_rng(0)
X = jnp.asarray(RNG.normal(size=(12, 3)), jnp.float32)
Y = {"y": jnp.asarray(RNG.normal(size=(2, 12)), jnp.float32)}
KIND = mb.AccumulationType
LIBS = {"ours": gx.microbatching, "optax": optax.microbatching}


@pytest.fixture(autouse=True)
def lenient():
    """Optax relies on implicit promotion."""
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


def same(make, *args, **kwargs):
    """What ours returns, if it equals what Optax returns."""
    ours, theirs = (make(lib)(*args, **kwargs) for lib in LIBS.values())
    assert list(map(np.shape, jax.tree.leaves(ours))) == list(
        map(np.shape, jax.tree.leaves(theirs))
    )
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_allclose(a, b, rtol=2e-6, atol=1e-6)
    return ours


def several(x, y, w=2.0):
    """A function with outputs for every kind of accumulator."""
    total = w * jnp.sum(x[:, 0] * y["y"][1])
    return x[:, 1] + y["y"][0], {"total": total, "count": jnp.asarray(x.shape[0])}, total


def kinds(lib, last="SUM"):
    kind = lib.AccumulationType
    return kind.CONCAT, kind.SUM, kind[last]


@pytest.mark.parametrize("last", ["MEAN", "SUM", "RUNNING_MEAN", "CONCAT"])
@pytest.mark.parametrize("real", [None, 2, 3])
@pytest.mark.parametrize("jit", [False, True])
def test_microbatch_is_that_of_optax(jit, real, last):
    def make(lib):
        f = lib.microbatch(
            several, (0, 1), 4, kinds(lib, last), in_axes=(0, 1), num_real_microbatches=real
        )
        return jax.jit(f) if jit else f

    same(make, X, Y)


def test_arguments_by_name_and_a_traced_number():
    def make(lib):
        def f(x, number):
            part = lib.microbatch(
                several, 0, 3, kinds(lib), argnames=("y",), in_axes=(0, 1),
                num_real_microbatches=number,
            )  # fmt: skip
            return part(x, y=Y, w=3.0)

        return jax.jit(f)

    for number in (0, 1, 4):
        same(make, X, number)
    ours = make(gx.microbatching)
    jax.tree.map(np.testing.assert_array_equal, ours(X, 4), ours(X, 9))  # no more than all


def test_without_a_size_it_is_the_function_itself():
    assert gx.microbatch(several, 0, None) is several


def test_top_level_name():
    assert gx.microbatch is gx.microbatching.microbatch


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("size", [1, 4, 12])
def test_the_batch_is_divided_as_by_optax(size, axis):
    tree = {
        "a": X if axis == 0 else X.T,
        "b": jnp.arange(24).reshape((12, 2) if not axis else (2, 12)),
    }
    ours, theirs = (lib.reshape_batch_axis(tree, size, axis) for lib in LIBS.values())
    jax.tree.map(np.testing.assert_array_equal, ours, theirs)


def test_a_negative_axis_counts_from_the_end():
    np.testing.assert_array_equal(
        mb.reshape_batch_axis(X, 4, -2), optax.microbatching.reshape_batch_axis(X, 4, 0)
    )
    whole = several(X, Y)[2]
    parts = mb.microbatch(lambda x, y: several(x, y)[2], (0, 1), 4, in_axes=(-2, -1))(X, Y)
    np.testing.assert_allclose(parts, whole, rtol=1e-5)


def test_accumulators_of_the_user():
    def largest(lib):
        return lib.Accumulator(
            init=lambda x: jnp.full(x.shape, -jnp.inf, x.dtype),
            update=lambda carry, x, index: jnp.maximum(carry, x),
            finalize=lambda carry: carry,
            aggregate=lambda xs: jnp.max(xs, axis=0),
        )

    made = same(lambda lib: lib.microbatch(lambda x: jnp.max(x), 0, 3, largest(lib)), X)
    assert made == X.max()
    same(lambda lib: lib.micro_vmap(jnp.sum, microbatch_size=3, accumulator=largest(lib)), X)


@pytest.mark.parametrize("size", [None, 3])
@pytest.mark.parametrize("kind", ["MEAN", "SUM", "RUNNING_MEAN", "CONCAT"])
def test_micro_vmap_is_that_of_optax(kind, size):
    def make(lib):
        return lib.micro_vmap(
            lambda x, w, *, z: {"a": w * x, "b": jnp.sum(x) + z},
            (0, None),
            microbatch_size=size,
            accumulator=lib.AccumulationType[kind],
        )

    same(make, X, 3.0, z=X[:, 0])


def test_one_axis_is_that_of_all_arguments():
    ours = mb.micro_vmap(jnp.dot, microbatch_size=4)(X, 2 * X)
    np.testing.assert_allclose(ours, jax.vmap(jnp.dot)(X, 2 * X), rtol=1e-6)


def loss(params, x, y, scale=1.0):
    """A loss of a batch, or of one example."""
    error = x @ params["w"] - y
    return scale * jnp.mean(error**2), jnp.sum(error)


@pytest.mark.parametrize("keep", [True, False])
@pytest.mark.parametrize("size", [None, 4])
@pytest.mark.parametrize("has_aux", [True, False])
def test_micro_grad_is_that_of_optax(has_aux, size, keep):
    def make(lib):
        return lib.micro_grad(
            loss if has_aux else lambda *args: loss(*args)[0],
            has_aux,
            batch_argnums=(1, 2),
            keep_batch_dim=keep,
            microbatch_size=size,
            accumulator=(lib.AccumulationType.MEAN, lib.AccumulationType.SUM),
            transform_fn=lambda g: (g, jax.tree.map(jnp.square, g)),
            metrics_fn=gx.global_norm,
        )

    params = {"w": jnp.asarray([1.0, -2.0, 0.5])}
    (mean, _), outputs = same(make, params, X, Y["y"][0])
    expected = jax.grad(lambda p: loss(p, X, Y["y"][0])[0])(params)
    np.testing.assert_allclose(mean["w"], expected["w"], rtol=1e-5)
    assert outputs.values.shape == outputs.metrics.shape == (12,)
    assert (outputs.aux is None) != has_aux


def test_gradients_through_micro_batches():
    def total(w, microbatch_size):
        f = mb.microbatch(lambda x: jnp.sum(jnp.tanh(w * x)), 0, microbatch_size)
        return f(X)

    np.testing.assert_allclose(jax.grad(total)(2.0, 3), jax.grad(total)(2.0, None), rtol=1e-5)


def test_sums_of_16_bits_are_not_rounded_again():
    x = jnp.full(4096, 1.0, jnp.bfloat16)
    for kind, expected in (("SUM", 4096), ("MEAN", 1), ("RUNNING_MEAN", 1)):
        made = mb.microbatch(lambda x: x[0], 0, 1, mb.AccumulationType[kind])(x)
        assert made.dtype == jnp.bfloat16 and float(made) == expected


def test_only_one_micro_batch_is_in_memory():
    w = jnp.ones((256, 1024))

    def f(x):
        return jnp.sum(jnp.tanh(x @ w))

    x = jnp.ones((512, 256))
    whole, parts = (
        jax.jit(g).lower(x).compile().memory_analysis().temp_size_in_bytes
        for g in (f, mb.microbatch(f, 0, 16))
    )
    assert parts < x.nbytes + whole / 8


@pytest.mark.usefixtures("eight_devices")
@pytest.mark.parametrize("explicit", [False, True])
def test_a_batch_that_is_divided_over_devices(explicit):
    kind = jax.sharding.AxisType.Explicit if explicit else jax.sharding.AxisType.Auto
    mesh = jax.make_mesh((4,), ("x",), (kind,), devices=jax.devices()[:4])
    x = jnp.arange(48.0).reshape(16, 3)
    f = mb.microbatch(lambda x: (2 * x, jnp.sum(x, 0)), 0, 8, (KIND.CONCAT, KIND.SUM))
    with jax.set_mesh(mesh):
        divided = jax.device_put(x, jax.NamedSharding(mesh, jax.P("x")))
        doubled, total = jax.jit(f)(divided)
        parts = jax.jit(lambda x: mb.reshape_batch_axis(x, 8))(divided)
    np.testing.assert_array_equal(doubled, 2 * x)
    np.testing.assert_array_equal(total, x.sum(0))
    assert doubled.sharding.is_equivalent_to(divided.sharding, 2)
    assert parts.sharding.is_equivalent_to(jax.NamedSharding(mesh, jax.P(None, "x")), 3)


def zeros(x):
    return jnp.zeros(x.shape, x.dtype)


def added(carry, x, index):
    return carry + x


def same_as(x):
    return x


@pytest.mark.usefixtures("eight_devices")
@pytest.mark.parametrize(
    "kind", [KIND.SUM, mb.Accumulator(jnp.zeros_like, added, same_as, same_as)]
)
def test_in_a_shard_map(kind):
    mesh = jax.make_mesh((4,), ("x",), (jax.sharding.AxisType.Auto,), devices=jax.devices()[:4])

    def local(x):
        return jax.lax.psum(mb.microbatch(lambda x: jnp.sum(x, 0), 0, 1, kind)(x), "x")

    step = jax.shard_map(local, mesh=mesh, in_specs=jax.P("x"), out_specs=jax.P())
    np.testing.assert_allclose(jax.jit(step)(X[:8]), X[:8].sum(0), rtol=1e-5)


REFUSED = [
    (lambda: mb.microbatch(several, 0, 0), ValueError, "microbatch_size must be at least 1, got 0"),
    (lambda: mb.microbatch(several, 0, 2.0), TypeError, "microbatch_size must be an integer"),
    (lambda: mb.microbatch(several, "x", 2), TypeError, "argnums must be an integer or several"),
    (lambda: mb.microbatch(several, 0, 2, in_axes=(0, 1)), ValueError, "in_axes has 2 axes for 1"),
    (lambda: mb.microbatch(jnp.sum, 0, 5)(X), ValueError, "12 examples.*not a multiple of.*=5"),
    (lambda: mb.microbatch(jnp.sum, 0, 5)(X[:0]), ValueError, "the batch must have examples"),
    (
        lambda: mb.micro_grad(lambda p, x: p * x, microbatch_size=2)(1.0, 2.0),
        ValueError,
        r"micro_grad: argument 1 has shape \(\), which does not have an axis 0 of examples",
    ),
    (
        lambda: mb.microbatch(jnp.dot, (0, 1), 2)(X, X[:4]),
        ValueError,
        "argument 1 has 4 examples, argument 0 has 12",
    ),
    (lambda: mb.microbatch(jnp.sum, 1, 2)(X), ValueError, "argument 1 has the examples.*has 1 pos"),
    (
        lambda: mb.microbatch(several, 0, 2, argnames="z", in_axes=0)(X, y=Y),
        ValueError,
        "the keyword argument 'z' has examples, and is not in the call",
    ),
    (lambda: mb.microbatch(jnp.sum, 0, 2)(1.0), ValueError, r"shape \(\).*have an axis 0"),
    (
        lambda: mb.microbatch(jnp.sum, 0, 2, "sum")(X),
        TypeError,
        "accumulator must be an AccumulationType.*got 'sum'. Did you mean 'SUM'",
    ),
    (
        lambda: mb.microbatch(jnp.sum, 0, 2, (KIND.SUM, KIND.SUM))(X),
        ValueError,
        "accumulator must be a tree that is a prefix",
    ),
    (
        lambda: mb.microbatch(jnp.sum, 0, 2, KIND.MEAN)(jnp.arange(4)),
        TypeError,
        "MEAN needs floating numbers; the root of.*int32",
    ),
    (
        lambda: mb.microbatch(jnp.sum, 0, 2, num_real_microbatches=7)(X),
        ValueError,
        "num_real_microbatches must be from 0 to 6, got 7",
    ),
    (
        lambda: mb.microbatch(jnp.sum, 0, 2, num_real_microbatches=1.5)(X),
        TypeError,
        "num_real_microbatches must be an integer, got 1.5",
    ),
    (lambda: mb.micro_vmap(jnp.sum, 0, 1), NotImplementedError, "out_axes must be 0, got 1"),
    (lambda: mb.micro_vmap(jnp.dot, (0,))(X, X), ValueError, "in_axes has 1 entries.*2 positional"),
    (lambda: mb.micro_grad(loss, batch_argnums=4)(X, X), ValueError, "micro_grad: argument 4 has"),
]


@pytest.mark.parametrize("call, error, words", REFUSED)
def test_wrong_arguments_are_refused(call, error, words):
    with pytest.raises(error, match=words):
        call()
