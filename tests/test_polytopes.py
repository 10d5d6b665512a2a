"""Projections onto polyhedra beside SciPy's solver, with their derivatives, in both precisions."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import minimize

from gradxform.projections import polytopes

pytestmark = pytest.mark.numeric

N = 5
LOOSE = {"float32": 2e-5, "float64": 1e-7}  # SciPy's solver itself is good for some 1e-8


def drawn(seed):
    rng = np.random.default_rng(seed)
    inside = rng.normal(size=N)
    A, G = rng.normal(size=(1, N)), rng.normal(size=(7, N))
    return 2 * rng.normal(size=N), A, A @ inside, G, G @ inside + rng.uniform(0, 0.5, 7), inside


def nearest(x, start, equal=None, at_most=None, bounds=None):
    """SciPy's projection."""
    constraints = []
    if equal is not None:
        A, b = equal
        constraints.append({"type": "eq", "fun": lambda p: A @ p - b, "jac": lambda p: A})
    if at_most is not None:
        G, h = at_most
        constraints.append({"type": "ineq", "fun": lambda p: h - G @ p, "jac": lambda p: -G})
    options = {"ftol": 1e-15, "maxiter": 1000}
    found = minimize(
        lambda p: np.sum((p - x) ** 2) / 2,
        start,
        jac=lambda p: p - x,
        constraints=constraints,
        bounds=bounds,
        method="SLSQP",
        options=options,
    )
    return found.x


def sums(m, n):
    """The matrix that takes a flat (m, n) to the sums of its rows and columns."""
    rows = np.kron(np.eye(m), np.ones((1, n)))
    return np.concatenate([rows, np.kron(np.ones((1, m)), np.eye(n))])


def sparse(seed):
    x, *_ = drawn(seed)
    onto = []
    for kept in itertools.combinations(range(N), 2):  # every support there is
        kept = list(kept)
        t = np.clip((x[kept[0]] - x[kept[1]] + 1.5) / 2, 0, 1.5)
        p = np.zeros(N)
        p[kept] = t, 1.5 - t
        onto.append(p)
    best = min(onto, key=lambda p: np.sum((p - x) ** 2))
    return lambda x: polytopes.projection_sparse_simplex(x, 2, value=1.5), (x,), best


def affine(seed):
    x, A, b, *_ = drawn(seed)
    A, b = np.concatenate([A, 2 * A]), np.concatenate([b, 2 * b])  # which depend on each other
    onto = x - np.linalg.pinv(A) @ (A @ x - b)
    return polytopes.projection_affine_set, (x, A, b), onto


def polyhedron(seed):
    *args, inside = drawn(seed)
    x, A, b, G, h = args
    return polytopes.projection_polyhedron, args, nearest(x, inside, (A, b), (G, h))


def section(seed):
    x, _, _, G, *_ = drawn(seed)
    low, high, w = -np.ones(N), np.full(N, 0.7), G[0]
    equal = w[None], np.asarray([0.3])
    onto = nearest(x, np.zeros(N), equal, bounds=[(-1, 0.7)] * N)
    return polytopes.projection_box_section, (x, low, high, w, np.asarray(0.3)), onto


def transport(seed):
    rng = np.random.default_rng(seed)
    s, a, b = 2 * rng.normal(size=(3, 4)), rng.uniform(0.2, 1, 3), rng.uniform(0.2, 1, 4)
    b *= np.sum(a) / np.sum(b)
    start = np.outer(a, b).ravel() / np.sum(a)
    equal = sums(3, 4)[:-1], np.concatenate([a, b])[:-1]
    onto = nearest(s.ravel(), start, equal, bounds=[(0, None)] * 12)
    return (
        lambda s, a, b: polytopes.projection_transport(s, (a, b)),
        (s, a, b),
        onto.reshape(3, 4),
    )


def birkhoff(seed):
    s = np.random.default_rng(seed).normal(size=(3, 3))
    onto = nearest(
        s.ravel(), np.full(9, 1 / 3), (sums(3, 3)[:-1], np.ones(5)), bounds=[(0, None)] * 9
    )
    return polytopes.projection_birkhoff, (s,), onto.reshape(3, 3)


SETS = [sparse, affine, polyhedron, section, transport, birkhoff]


@pytest.mark.reference
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("make", SETS)
def test_a_projection_is_the_nearest_point(make, dtype):
    with jax.enable_x64(True):
        project = jax.jit(make(0)[0])
        for seed in range(4):
            _, args, expected = make(seed)
            new = project(*(jnp.asarray(x, dtype) for x in args))
            assert new.dtype == dtype
            np.testing.assert_allclose(new, expected, atol=LOOSE[dtype])


@pytest.mark.parametrize("make", SETS)
def test_many_are_projected_at_once_each_as_alone(make):
    cases = [make(seed) for seed in range(3)]
    stacked = [
        jnp.asarray(np.stack(xs), jnp.float32) for xs in zip(*(c[1] for c in cases), strict=True)
    ]
    if make is sparse:  # the number of entries is part of the program
        assert all(c[0](jnp.ones(N)).shape == (N,) for c in cases)
    new = jax.jit(jax.vmap(cases[0][0]))(*stacked)
    np.testing.assert_allclose(new, np.stack([c[2] for c in cases]), atol=2e-5)


@pytest.mark.parametrize("make", SETS)
def test_derivatives_by_all_arguments_are_differences(make):
    with jax.enable_x64(True):
        project, args, _ = make(1)
        project = jax.jit(project)
        args = [jnp.asarray(x, "float64") for x in args]
        rng = np.random.default_rng(9)
        along = [jnp.asarray(rng.normal(size=x.shape)) for x in args]
        if make is transport:  # the totals stay equal
            along[2] += (jnp.sum(along[1]) - jnp.sum(along[2])) / along[2].size
        if make is affine:  # and so do the rows that depend on each other
            along[1], along[2] = (
                along[1].at[1].set(2 * along[1][0]),
                along[2].at[1].set(2 * along[2][0]),
            )
        _, tangent = jax.jvp(project, args, along)
        step = 1e-6
        ends = [
            project(*(x + sign * step * v for x, v in zip(args, along, strict=True)))
            for sign in (1, -1)
        ]
        np.testing.assert_allclose(tangent, (ends[0] - ends[1]) / (2 * step), atol=1e-6)
        weights = jnp.asarray(rng.normal(size=tangent.shape))
        rates = jax.grad(lambda *xs: jnp.sum(weights * project(*xs)), tuple(range(len(args))))
        total = sum(jnp.sum(g * v) for g, v in zip(rates(*args), along, strict=True))
        np.testing.assert_allclose(total, jnp.sum(weights * tangent), atol=1e-8)


def test_sets_without_equations_bounds_or_with_16_bits():
    x, A, b, G, *_ = (jnp.asarray(y, jnp.float32) for y in drawn(2))
    none = jnp.zeros((0, N)), jnp.zeros(0)
    np.testing.assert_array_equal(polytopes.projection_polyhedron(x, *none, *none), x)
    onto = polytopes.projection_affine_set(x, A, b)
    np.testing.assert_allclose(polytopes.projection_polyhedron(x, A, b, *none), onto, atol=1e-6)
    free = polytopes.projection_polyhedron(x, A, b, G, jnp.full(7, jnp.inf))
    np.testing.assert_allclose(free, onto, atol=1e-6)
    low = polytopes.projection_polyhedron(x, *none, -jnp.eye(N), jnp.zeros(N))
    np.testing.assert_allclose(low, jnp.maximum(x, 0), atol=1e-6)
    w = jnp.asarray([1.0, -2.0, 0.0, 0.5, 3.0])
    plane = polytopes.projection_box_section(x, -jnp.inf, jnp.inf, w, 1.0)
    np.testing.assert_allclose(plane, x + (1 - w @ x) / (w @ w) * w, atol=1e-5)
    corner = polytopes.projection_box_section(x, -1, 1, w, 100.0)
    np.testing.assert_allclose(corner, [1, -1, jnp.clip(x[2], -1, 1), 1, 1], atol=1e-6)
    small = jnp.asarray(x, jnp.bfloat16)
    assert polytopes.projection_sparse_simplex(small, 3).dtype == jnp.bfloat16
    assert polytopes.projection_birkhoff(jnp.ones((3, 3), jnp.bfloat16)).dtype == jnp.bfloat16


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda p, x: p.projection_sparse_simplex(x, 0), "max_nz must be an integer from 1 to 3"),
        (lambda p, x: p.projection_sparse_simplex(x, 2, value=-1.0), "value must be at least 0"),
        (lambda p, x: p.projection_affine_set(x[None], x, x), r"x must be a vector of floats"),
        (
            lambda p, x: p.projection_affine_set(x, jnp.ones((2, 4)), x),
            r"A must have shape \(2, 3\)",
        ),
        (lambda p, x: p.projection_affine_set(x, jnp.ones((2, 3)), x), r"b must have shape \(2,\)"),
        (lambda p, x: p.projection_box_section(x, 0, 1, jnp.ones(2), 1), r"w must have shape"),
        (lambda p, x: p.projection_transport(x[None], (x, x)), r"needs marginals"),
        (lambda p, x: p.projection_birkhoff(x[None]), "sim_matrix must be square"),
    ],
)
def test_wrong_arguments_are_refused(call, words):
    with pytest.raises(ValueError, match=words):
        call(polytopes, jnp.ones(3))
