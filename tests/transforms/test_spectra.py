"""Functions of singular values: how far the iterations are from them, and Muon as one of them."""

import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradxform as gx

pytestmark = pytest.mark.numeric

PAGE = pathlib.Path(__file__).parents[2] / "docs" / "matrices.md"
VALUES = np.logspace(-6, 0, 12)
ROOT, INVERSE, CLIP = gx.power_spectrum(0.5), gx.power_spectrum(-0.25, 0.1), gx.clip_spectrum(0.3)
BEST = gx.polynomial_spectrum(ROOT.coefficients, 8)
# The columns of the table in the docs: what is computed, and what it should be.
COLUMNS = {
    "Muon": (gx.polynomial_spectrum(), np.ones_like),
    "`polar_express`, 8 turns": (BEST, np.ones_like),
    "contra 0.2": (gx.contra_spectrum(0.2), lambda s: 1 - 0.2 * s),
    "soft": (gx.soft_spectrum(), lambda s: s**0.1),
    "power 0.5": (ROOT, lambda s: (s + 0.001) ** 0.5),
    "power -0.25": (INVERSE, lambda s: (s + 0.1) ** -0.25),
    "clip 0.3": (CLIP, lambda s: np.minimum(s, 0.3)),
}


def reached(f, dtype=None, tall=False):
    """What becomes of the singular values `VALUES` of a matrix of random singular vectors."""
    rng = np.random.default_rng(0)
    u, v = (np.linalg.qr(rng.normal(size=(n, 12)))[0] for n in (12, 24))
    u, v = (v, u) if tall else (u, v)
    x = {"w": jnp.asarray((u * VALUES) @ v.T, jnp.float32)}
    fields = {"nesterov": False, "preconditioning": "spectral", "compute_dtype": dtype}
    tx = gx.scale_by_spectrum(f, 0.0, 0.0, **fields)
    update = jax.jit(tx.update)(x, tx.init(x))[0]["w"]
    return np.diag(u.T @ np.asarray(update, np.float64) @ v)


def table():
    """The columns of the table, by title."""
    lines = PAGE.read_text().splitlines()
    head = next(i for i, line in enumerate(lines) if line.startswith("| s | Muon |"))
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in (lines[head], *lines[head + 2 : head + 14])
    ]
    return {title: np.asarray(x, np.float64) for title, *x in zip(*rows, strict=True)}


@pytest.mark.parametrize("title", COLUMNS)
def test_the_table_says_how_far_an_iteration_is_from_its_function(title):
    f, exact = COLUMNS[title]
    said = table()
    np.testing.assert_allclose(said["s"], VALUES, rtol=0.05)
    np.testing.assert_allclose(reached(f) - exact(VALUES), said[title], atol=2e-3)


@pytest.mark.parametrize("title", [t for t in COLUMNS if t != "Muon"])
def test_in_bfloat16_singular_values_from_a_hundredth_on_are_right(title):
    f, _ = COLUMNS[title]
    large = VALUES > 0.02
    np.testing.assert_allclose(reached(f, "bfloat16")[large], f(VALUES)[large], atol=5e-3)


def test_a_spectrum_says_what_its_iteration_makes_of_singular_values():
    for f in (gx.polynomial_spectrum(), gx.contra_spectrum(0.2), gx.soft_spectrum()):
        np.testing.assert_allclose(reached(f), f(VALUES), atol=2e-4)
        np.testing.assert_allclose(reached(f, tall=True), f(VALUES), atol=2e-4)


@pytest.mark.parametrize("fields", [{}, {"nesterov": False}, {"debias": False, "beta": 0.5}])
@pytest.mark.parametrize("preconditioning", ["frobenius", "aol", "schatten"])
def test_muon_is_the_case_of_the_last_iterate(fields, preconditioning):
    params = {"w": jnp.ones((6, 9)), "v": jnp.ones((9, 4)), "more": jnp.ones((7, 3, 5))}
    numbers = {"w": None, "v": None, "more": gx.MuonDimensionNumbers(1, 2)}
    numbers = {k: gx.MuonDimensionNumbers() if n is None else n for k, n in numbers.items()}
    fields = {**fields, "preconditioning": preconditioning, "weight_dimension_numbers": numbers}
    muon, spectrum = gx.scale_by_muon(**fields), gx.scale_by_spectrum(**fields)
    states = [muon.init(params), spectrum.init(params)]
    for i in range(3):
        key = jax.random.key(i)
        grads = jax.tree.map(lambda p: jax.random.normal(key, p.shape), params)  # noqa: B023
        (a, states[0]), (b, states[1]) = (
            muon.update(grads, states[0]),
            spectrum.update(grads, states[1]),
        )
        jax.tree.map(np.testing.assert_array_equal, a, b)


def test_equal_vectors_are_those_of_the_inputs_or_of_the_outputs():
    x = {"w": jnp.asarray([[3.0, 4.0, 0.0], [0.0, 0.0, 5.0]])}
    first = gx.polynomial_spectrum(turns=1, iterates=(1.0, 0.0))
    for equilibrate, axis in (("inputs", 1), ("outputs", 0)):
        tx = gx.scale_by_spectrum(first, 0.0, 0.0, nesterov=False, equilibrate=equilibrate)
        u = tx.update(x, tx.init(x))[0]["w"]
        norms = np.linalg.norm(u, axis=axis)
        np.testing.assert_allclose(norms, norms[0], rtol=1e-6)


def test_weights_may_be_schedules():
    x = {"w": jnp.eye(2)}
    first = gx.polynomial_spectrum(turns=1, iterates=(gx.linear_schedule(1.0, 3.0, 2), 0.0))
    tx = gx.scale_by_spectrum(first, 0.0, nesterov=False, preconditioning="spectral", eps=0.0)
    state, sizes = tx.init(x), []
    for _ in range(3):
        u, state = tx.update(x, state)
        sizes.append(float(u["w"][0, 0]))
    np.testing.assert_allclose(sizes, [1.0, 2.0, 3.0], rtol=1e-6)
    np.testing.assert_allclose(first(0.5, 1), 1.0)
