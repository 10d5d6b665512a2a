"""Gradients whose squares overflow, and scales whose inverse is not a normal number."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradxform as gx
from gradxform import projections
from gradxform.numerics.overflow import quotient_by_shared, saturated

pytestmark = pytest.mark.numeric

LARGEST = float(jnp.finfo(jnp.float32).max)


@pytest.mark.parametrize("jit", [False, True])
@pytest.mark.parametrize("size", [1e10, 1.2e38, LARGEST])
def test_a_quotient_by_a_large_number_is_not_zero(size, jit):
    f = lambda x, s: quotient_by_shared(x, s[:, None])  # noqa: E731
    x = jnp.asarray([[size, size / 2, 0.0]])
    got = (jax.jit(f) if jit else f)(x, jnp.asarray([size]))
    np.testing.assert_allclose(got, [[1.0, 0.5, 0.0]], rtol=1e-6)


def test_a_saturated_number_stays_finite_and_a_nan_stays():
    x = saturated(jnp.asarray([1.0, LARGEST, jnp.inf, jnp.nan]))
    np.testing.assert_array_equal(x, [1.0, LARGEST / 2, LARGEST / 2, np.nan])


@pytest.mark.parametrize("bits, code", [(8, "float"), (8, "dynamic"), (8, "e4m3"), (4, "float"),
                                        (4, "dynamic"), (4, "rank1")])  # fmt: skip
@pytest.mark.parametrize("size", [1e18, 1e21, 1e30])
def test_a_stored_state_takes_small_steps_after_a_huge_gradient(bits, code, size):
    tx = gx.quantize_state(gx.adam(1e-3), bits=bits, code=code, min_size=0)
    params = {"w": jnp.zeros((4, 64))}
    state, step = tx.init(params), jax.jit(tx.update)
    for k in range(4):
        grads = {"w": jnp.full((4, 64), 1.0 if k else size)}
        updates, state = step(grads, state, params)
        assert np.all(np.abs(updates["w"]) <= 1.1e-2), k


OPTIMIZERS = {
    "ftrl": gx.ftrl(0.1),
    "ftrl, l1": gx.ftrl(0.1, l1=0.1, l2=0.1),
    "ftrl, power": gx.step_by_ftrl(0.1, learning_rate_power=-0.7),
    "rmsprop": gx.rmsprop(0.1, centered=True, momentum=0.9),
    "dadapt_adamw": gx.dadapt_adamw(),
    "prodigy": gx.prodigy(),
}


@pytest.mark.parametrize("size", [1e19, 2e19, 1e25, 1e37])
@pytest.mark.parametrize("name", list(OPTIMIZERS))
def test_one_huge_gradient_does_not_spoil_the_run(name, size):
    updates, state = huge_second(OPTIMIZERS[name], size)
    assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves((updates, state)))
    # They do not depend on the scale of gradients, but where a float32 ends.
    assert all(np.max(np.abs(u)) < 10 for u in jax.tree.leaves(updates))


@pytest.mark.parametrize("size", [1e19, 1e25, 1e37])
def test_a_gradient_far_from_its_average_is_scaled_down(size):
    updates, state = huge_second(gx.grad_variance_scaled(1.0), size)
    assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves((updates, state)))
    np.testing.assert_allclose(updates[1]["b"], -0.001 * size, rtol=0.1)


def huge_second(tx, size):
    """The updates of six gradients, of which the second is huge, and the state behind them."""
    params = {"w": jnp.array([1.0, -2.0]), "b": jnp.array([0.5])}
    state, updates = tx.init(params), []
    for k in range(6):
        grads = jax.tree.map(lambda p, k=k: jnp.full_like(p, size if k == 1 else 0.1), params)
        update, state = tx.update(grads, state, params)
        updates.append(update)
    return updates, state


@pytest.mark.parametrize("f", [projections.projection_l2_ball, projections.projection_l2_sphere])
@pytest.mark.parametrize("jit", [False, True])
@pytest.mark.parametrize(
    "x, scale",
    [
        ([9e37, 4.5e36, 0.0], 1.0),
        ([LARGEST, -LARGEST, 0.0], 1.0),
        ([LARGEST, 0.0, 1e38], 1e-3),
        ([3.0, 4.0, 0.0], 1.0),
        ([3e-30, 4e-30, 0.0], 1e-30),
        ([3e20, 4e20, 0.0], 1e-10),
    ],
)
def test_points_of_every_size_are_projected(f, x, scale, jit):
    wide = np.asarray(x, np.float64)
    expected = wide * scale / np.linalg.norm(wide)
    g = jax.jit(f) if jit else f
    np.testing.assert_allclose(g(jnp.asarray(x), scale), expected, rtol=1e-5)
