"""What TPUs compute in place of QR and of products in six passes, on CPUs, beside float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradxform as gx
from gradxform import linalg
from gradxform.linalg import panels, products

pytestmark = pytest.mark.numeric


@pytest.fixture
def as_on_tpu(monkeypatch):
    for module in (panels, products):
        monkeypatch.setattr(module, "platform_of", lambda _: "tpu")
    monkeypatch.setattr(panels, "PANEL", 32)
    monkeypatch.setattr(panels, "LEAST", 32)
    monkeypatch.setattr(products, "_LEAST", 32)


def matrix(m, n, condition, seed=0):
    rng = np.random.default_rng(seed)
    u, v = (np.linalg.qr(rng.normal(size=(d, n)))[0] for d in (m, n))
    return ((u * np.geomspace(1, 1 / condition, n)) @ v.T).astype(np.float32)


def q_of(a):
    """The Q with a positive R, in float64."""
    q, r = np.linalg.qr(np.asarray(a, np.float64))
    return q * np.where(np.diag(r) < 0, -1, 1)


def loss_of_orthogonality(q):
    q = np.asarray(q, np.float64)
    return np.max(np.abs(q.T @ q - np.eye(q.shape[1])))


@pytest.mark.parametrize("condition", [1, 1e3, 1e6])
@pytest.mark.parametrize("m, n", [(96, 96), (150, 100), (256, 256)])
def test_panels_give_the_basis_of_qr(m, n, condition, as_on_tpu):
    a = matrix(m, n, condition)
    exact, q = q_of(a), jax.jit(linalg.orthonormal)(a)
    by_qr = np.asarray(jnp.linalg.qr(a)[0])
    by_qr = by_qr * np.sign(np.sum(by_qr * exact, axis=0))
    distance = np.max(np.abs(q - exact))
    assert distance <= 3 * np.max(np.abs(by_qr - exact)) + 1e-6
    assert loss_of_orthogonality(q) < 2e-6


@pytest.mark.parametrize("factor", [1e-30, 1.0, 1e37])
def test_a_basis_does_not_depend_on_the_size_of_columns(factor, as_on_tpu):
    a = matrix(96, 96, 1e3)
    q = jax.jit(linalg.orthonormal)(a * np.float32(factor) * np.geomspace(1, 10, 96, dtype="f4"))
    assert np.max(np.abs(q - q_of(a))) < 2e-5


@pytest.mark.parametrize("kind", ["zeros", "rank 3", "twice", "ones", "some zeros", "wide"])
def test_dependent_columns_are_completed_to_a_basis(kind, as_on_tpu):
    rng = np.random.default_rng(0)
    a = {
        "zeros": np.zeros((96, 96)),
        "rank 3": rng.normal(size=(96, 3)) @ rng.normal(size=(3, 96)),
        "twice": np.repeat(rng.normal(size=(96, 48)), 2, axis=1),
        "ones": np.ones((96, 96)),
        "some zeros": rng.normal(size=(96, 96)) * (np.arange(96) % 3 > 0),
        "wide": rng.normal(size=(80, 96)),
    }[kind].astype(np.float32)
    q = jax.jit(linalg.orthonormal)(a)
    assert q.shape == (len(a), len(a))
    assert loss_of_orthogonality(q) < 2e-5


def test_batches_are_decomposed_each_by_itself(as_on_tpu):
    a = np.stack([matrix(96, 96, 1e3, seed) for seed in range(3)])
    q = jax.jit(linalg.orthonormal)(a)
    again = jax.jit(jax.vmap(linalg.orthonormal))(a)
    for x, y, z in zip(a, q, again, strict=True):
        assert np.max(np.abs(y - q_of(x))) < 2e-5
        np.testing.assert_allclose(y, z, atol=1e-6)


def test_a_product_in_parts_has_full_precision(as_on_tpu):
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(2, 2, 100, 100)).astype(np.float32)
    exact = a.astype(np.float64) @ b
    size = np.abs(a).astype(np.float64) @ np.abs(b)
    error = np.max(np.abs(jax.jit(linalg.matmul)(a, b) - exact) / size)
    of_float32 = np.max(np.abs(a @ b - exact) / size)
    assert error < 3 * of_float32
    (da,) = jax.vjp(lambda a: linalg.matmul(a, b), a)[1](np.ones_like(exact, np.float32))
    np.testing.assert_allclose(da, np.swapaxes(b, -1, -2).sum(-2, keepdims=True) + 0 * a, rtol=1e-3)


@pytest.mark.parametrize("condition, bound", [(1, 1e-6), (1e3, 1e-4), (1e6, 2e-2)])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_roots_by_products_are_those_of_eigenvalues(condition, bound, dtype, as_on_tpu):
    """Of statistics that are rounded to bfloat16, too: with a ridge above the rounding."""
    u = q_of(np.random.default_rng(0).normal(size=(96, 96)))
    a = jnp.asarray((u * np.geomspace(1, 1 / condition, 96)) @ u.T, dtype).astype(jnp.float32)
    a = (a + a.T) / 2 + (1e-2 if dtype == "bfloat16" else 0) * jnp.eye(96)
    w, v = np.linalg.eigh(np.asarray(a, np.float64))
    exact = (v * w**-0.25) @ v.T
    root = jax.jit(linalg.inverse_root, static_argnums=1)(a, 4)
    assert np.max(np.abs(root - exact)) <= bound * np.max(np.abs(exact))


def losses(tx, count):
    """Those of a network of two layers that learns another one."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(128, 48)) * np.geomspace(1, 0.05, 48)
    x = jnp.asarray(x, jnp.float32)
    params, target = (
        {k: jnp.asarray(rng.normal(size=(48, 48)) / 7, jnp.float32) for k in "ab"} for _ in range(2)
    )

    def output(p):
        return jnp.tanh(x @ p["a"]) @ p["b"]

    def step(carry, _):
        params, state = carry
        loss, grads = jax.value_and_grad(lambda p: jnp.mean((output(p) - output(target)) ** 2))(
            params
        )
        params, state = gx.apply_gradients(tx, grads, state, params)
        return (params, state), loss

    return jax.jit(lambda p: jax.lax.scan(step, (p, tx.init(p)), None, count)[1])(params)


@pytest.mark.parametrize(
    "tx",
    [
        gx.soap(1e-2, precondition_frequency=5),
        gx.soap(1e-2, precondition_frequency=1),
        gx.kl_shampoo(5e-2, precondition_frequency=5),
        gx.splus(0.5, precondition_frequency=10),
        gx.distributed_shampoo(0.3, start_preconditioning_step=1),
    ],
)
def test_training_goes_as_elsewhere(tx, request):
    expected = losses(tx, 80)
    request.getfixturevalue("as_on_tpu")
    got = losses(tx, 80)
    assert expected[-1] < expected[0] / 4
    assert np.mean(got[40:]) < 1.05 * np.mean(expected[40:])
    np.testing.assert_allclose(got, expected, rtol=0.25)  # the signs of SPlus make it uneven
