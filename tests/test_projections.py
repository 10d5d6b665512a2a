"""Projections beside Optax's, with their derivatives, and at the edges where Optax's are NaN."""

import itertools
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import gradxform as gx
from gradxform import projections

pytestmark = pytest.mark.numeric

OF_TREES = ["non_negative"]
SCALED = ["hypercube", "simplex", "l1_sphere", "l1_ball", "l2_sphere", "l2_ball", "linf_ball"]
ALONG = ["vector", "hyperplane", "halfspace"]


def tree(seed=0, scale=1.0, dtype=jnp.float32):
    rng = np.random.default_rng(seed)
    shapes = {"w": (3, 4), "b": (4,), "s": ()}
    return {k: jnp.asarray(scale * rng.normal(size=s), dtype) for k, s in shapes.items()}


def ours(name):
    return getattr(projections, f"projection_{name}")


def theirs(name):
    function = getattr(optax.projections, f"projection_{name}")
    if name == "hypercube":  # which takes a number for an array only
        return lambda tree, scale: jax.tree.map(lambda x: function(x, scale), tree)
    return function


@pytest.fixture(autouse=True)
def optax_rules():
    """Optax multiplies floats by integers."""
    with jax.numpy_dtype_promotion("standard"):
        yield


def assert_close(a, b, atol=2e-6):
    assert jax.tree.structure(a) == jax.tree.structure(b)
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        assert x.dtype == y.dtype and x.shape == y.shape
        np.testing.assert_allclose(x, y, rtol=1e-5, atol=atol)


def weighted(project, x, *args):
    """A scalar whose derivative shows that of every entry of the projection."""
    sizes = jax.tree.map(lambda u, w: jnp.sum(u * w), project(x, *args), tree(7))
    return sum(jax.tree.leaves(sizes))


def arguments(name):
    """Further arguments of a projection, all with the same shapes."""
    if name in SCALED:
        return [(scale,) for scale in (0.5, 2.0, 30.0)]
    if name in ALONG:
        return [(tree(1),) + ((b,) if name != "vector" else ()) for b in (-1.0, 5.0)]
    bounds = jax.tree.map(lambda x: jnp.abs(x) / 2, tree(2))
    return [()] if name in OF_TREES else [(jax.tree.map(jnp.negative, bounds), bounds)]


def with_derivative(project):
    """The projection and the derivative of a scalar of it, compiled."""
    return jax.jit(lambda x, *args: (project(x, *args), jax.grad(weighted, 1)(project, x, *args)))


@pytest.mark.reference
@pytest.mark.parametrize("name", [*OF_TREES, *SCALED, *ALONG, "box"])
def test_every_projection_is_that_of_optax_with_its_derivative(name):
    mine, optaxs = with_derivative(ours(name)), with_derivative(theirs(name))
    for args in arguments(name):
        for x in (tree(), tree(3, 4.0)):
            (new, rates), (expected, expected_rates) = mine(x, *args), optaxs(x, *args)
            assert_close(new, expected)
            assert_close(rates, expected_rates, atol=1e-5)


@pytest.mark.reference
@pytest.mark.parametrize("name", ["simplex", "l1_ball", "l2_ball", "l1_sphere", "l2_sphere"])
def test_a_scale_has_a_derivative(name):
    x = tree(0, 4.0)
    rates = [jax.jit(jax.grad(partial(weighted, f(name)), 1))(x, 2.0) for f in (ours, theirs)]
    np.testing.assert_allclose(*rates, rtol=1e-4, atol=1e-5)


def test_all_names_of_optax_are_here():
    names = {name for name in dir(optax.projections) if name.startswith("projection_")}
    assert names == {name for name in dir(projections) if name.startswith("projection_")}


# ------------------------------------------------------------------------------------- the edges


@pytest.mark.parametrize("name", SCALED)
def test_the_set_of_scale_0_is_a_point(name):
    for x in (tree(), tree(0, 0.0)):
        for leaf in jax.tree.leaves(ours(name)(x, 0.0)):
            np.testing.assert_allclose(leaf, np.zeros(leaf.shape), atol=1e-7)


@pytest.mark.parametrize("name, order", [("simplex", 1), ("l1_sphere", 1), ("l2_sphere", 2)])
def test_zeros_and_ties_are_projected_onto_the_set(name, order):
    for value in (0.0, 1.0, 1e-30, 1e30):
        x = {"a": jnp.full(3, value), "b": jnp.full((2, 2), value)}
        flat = np.concatenate([np.ravel(u) for u in jax.tree.leaves(ours(name)(x, 2.0))])
        np.testing.assert_allclose(np.linalg.norm(flat, order), 2.0, rtol=1e-5)
        np.testing.assert_allclose(flat, flat[0], rtol=1e-5)


def test_the_derivative_is_finite_inside_a_ball_and_at_its_center():
    for name in ("l1_ball", "l2_ball"):
        for x in (tree(0, 0.0), tree(0, 0.01)):
            for scale in (1.0, np.inf):
                assert_close(jax.jit(jax.grad(partial(weighted, ours(name))))(x, scale), tree(7))


@pytest.mark.parametrize("name", ["l1_ball", "l2_ball", "linf_ball"])
def test_infinity_is_no_bound(name):
    x = tree(0, 1e30)
    assert_close(ours(name)(x, np.inf), x)


def test_a_large_tree_does_not_overflow():
    x = {"a": jnp.asarray([3e30, 4e30])}
    np.testing.assert_allclose(ours("l2_ball")(x, 10.0)["a"], [6.0, 8.0], rtol=1e-5)
    np.testing.assert_allclose(ours("l2_sphere")(x, 10.0)["a"], [6.0, 8.0], rtol=1e-5)


ENDS = [
    *([2e38, 1e37, 0.0], [2e38, 1.9e38, 1e38], [-2e38, 0.0, 1e-3], [1e20, -1e20, 1.0]),
    *([1e-37, 2e-37, -1e-36], [3e-30, 1e-30, 0.0], [1.0, 2.0, 3.0], [0.5, 0.3, 0.2]),
    *([s * float(jnp.finfo(jnp.float32).max) for s in signs] for signs in ([1] * 3, [1, -1, 0])),
]


def exact(project, *args):
    """The projection in float64, in which none of these squares and sums are infinite."""
    with jax.enable_x64(True):
        return np.asarray(project(*[np.asarray(x, np.float64) for x in args]))


@pytest.mark.parametrize("name", SCALED)
def test_the_ends_of_the_range_are_projected(name):
    compiled = jax.jit(ours(name))
    for x, scale in itertools.product(ENDS, [0.0, 1e-37, 1e-30, 1.0, 1e30, 2e38, 3e38]):
        x, scale = jnp.asarray(x), jnp.asarray(scale)
        expected = exact(ours(name), x, scale)
        atol = 2e-6 * np.abs(expected).max() + 1e-37
        np.testing.assert_allclose(compiled(x, scale), expected, rtol=0, atol=atol)
    np.testing.assert_array_equal(ours("simplex")(jnp.asarray([2e38, 1e37, 0.0])), [1, 0, 0])
    np.testing.assert_array_equal(ours("l1_ball")(jnp.asarray([2e38, 1e37, 0.0])), [1, 0, 0])


@pytest.mark.parametrize("name", ALONG)
def test_the_ends_of_the_range_are_projected_along_vectors_of_any_length(name):
    compiled = jax.jit(ours(name))
    for x, a, *b in itertools.product(*[ENDS] * 2, *([] if name == "vector" else [(1e38, -1e-30)])):
        args = [jnp.asarray(v) for v in (x, a, *b)]
        expected = exact(ours(name), *args)
        if np.all(np.abs(expected) < 3.3e38):
            atol = 1e-5 * max(np.abs(expected).max(), np.abs(args[0]).max()) + 1e-37
            np.testing.assert_allclose(compiled(*args), expected, rtol=0, atol=atol)


def test_a_nan_stays():
    x = {"a": jnp.asarray([jnp.nan, 1.0])}
    for name in (*SCALED, *OF_TREES):
        assert np.isnan(ours(name)(x)["a"][0]), name


@pytest.mark.parametrize("name", ALONG)
def test_a_vector_of_zeros_is_no_direction(name):
    x, a = tree(), tree(0, 0.0)
    expected = a if name == "vector" else x
    assert_close(ours(name)(x, a, *(() if name == "vector" else (1.0,))), expected)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
@pytest.mark.parametrize("name", [*SCALED, *OF_TREES])
def test_16_bit_trees_are_summed_in_32_bits(name, dtype):
    rng = np.random.default_rng(0)
    x = {"a": jnp.asarray(rng.normal(size=3000), dtype), "b": jnp.asarray([0.5], dtype)}
    project = jax.jit(ours(name))
    new, wide = project(x), project(jax.tree.map(lambda v: v.astype(jnp.float32), x))
    for u, v in zip(jax.tree.leaves(new), jax.tree.leaves(wide), strict=True):
        assert u.dtype == dtype
        np.testing.assert_array_equal(u, v.astype(dtype))


def test_bounds_may_be_numbers_and_infinite():
    x = tree(0, 4.0)
    new = projections.projection_box(x, -np.inf, 1)
    assert_close(new, jax.tree.map(lambda v: jnp.minimum(v, 1.0), x))
    with pytest.raises(TypeError, match="projection_simplex: the set does not have complex points"):
        projections.projection_simplex({"a": jnp.ones(2, jnp.complex64)})
    with pytest.raises(TypeError, match="projection_vector: the set does not have complex points"):
        projections.projection_vector(jnp.ones(2, jnp.complex64), jnp.ones(2))


@pytest.mark.parametrize("name", ["simplex", "l1_sphere", "l1_ball", "l2_sphere", "l2_ball"])
@pytest.mark.parametrize("axis", [0, -2])
def test_slices_along_an_axis_are_projected_each_by_itself(name, axis):
    x = {"a": jnp.arange(-5.0, 7.0).reshape(2, 3, 2), "b": jnp.asarray([[2.0, -1.0], [0.5, 0.1]])}
    new = jax.jit(partial(ours(name), axis=axis))(x, 1.5)
    for k in x:
        old, moved = (np.moveaxis(np.asarray(y[k]), axis, -1) for y in (x, new))
        for at in np.ndindex(old.shape[:-1]):
            alone = ours(name)(jnp.asarray(old[at]), 1.5)
            np.testing.assert_allclose(moved[at], alone, rtol=1e-5, atol=1e-6)
    slope = jax.grad(lambda x: jnp.sum(ours(name)(x, 1.5, axis)["a"] ** 3))(x)
    assert np.all(np.isfinite(slope["a"]))
    assert ours(name)({"e": jnp.zeros((0, 3))}, axis=0)["e"].shape == (0, 3)
    with pytest.raises(ValueError, match=rf"projection_{name}: axis must be one of every array"):
        ours(name)({"s": jnp.ones(())}, axis=0)


def test_empty_trees_stay_empty():
    for name in SCALED:
        assert ours(name)({}) == {}
        assert ours(name)({"a": jnp.zeros((0, 3))})["a"].shape == (0, 3)


# ----------------------------------------------------------------------------- projected descent


def test_projected_descent_ends_at_the_nearest_point():
    target = jnp.asarray([3.0, -4.0, 0.5])
    tx = gx.project(gx.sgd(0.3), projections.projection_simplex)
    params = {"w": jnp.zeros(3)}
    state = tx.init(params)
    for _ in range(30):
        updates, state = tx.update({"w": params["w"] - target}, state, params)
        params = gx.apply_updates(params, updates)
    np.testing.assert_allclose(params["w"], [1.0, 0.0, 0.0], atol=1e-5)


def test_what_keeps_the_updates_may_stand_after_a_projection():
    params = {"w": jnp.full(2, 3.0)}
    inner = gx.project(gx.sgd(0.1), projections.projection_l2_ball)
    tx = gx.chain(
        gx.chain(inner, gx.monitor({"norm": gx.measure_with_ema(gx.global_norm, 0.9)})),
        gx.count_updates(),
        gx.masked(gx.identity(), True),
        gx.project(gx.identity(), projections.projection_non_negative),
        gx.stateless(lambda updates, params: updates),
    )
    updates, _ = tx.update(params, tx.init(params), params)
    np.testing.assert_allclose(gx.apply_updates(params, updates)["w"], np.sqrt(0.5), rtol=1e-5)


def test_a_parameter_without_a_gradient_is_not_projected():
    params = {"a": jnp.full(2, 3.0), "b": jnp.full(2, 3.0)}
    tx = gx.project(gx.sgd(0.1), projections.projection_l2_ball)
    updates, _ = tx.update({"a": jnp.zeros(2), "b": None}, tx.init(params), params)
    new = gx.apply_updates(params, updates)
    np.testing.assert_allclose(new["a"], np.full(2, np.sqrt(0.5)), rtol=1e-5)
    np.testing.assert_array_equal(new["b"], params["b"])
