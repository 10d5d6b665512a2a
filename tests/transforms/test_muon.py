"""Muon: presets, ways to iterate, 16-bit products, matrices that share a parameter, bad input."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradxform as gx
from benchmarks.sections.matrix import product_flops
from gradxform.sparse import RowSparse
from gradxform.transforms.muon import polar_express

pytestmark = pytest.mark.numeric

NUMBERS = gx.MuonDimensionNumbers


def normal(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def update(tx, grads):
    grads = jax.tree.map(jnp.asarray, grads)
    return jax.jit(lambda g: tx.update(g, tx.init(g), g)[0])(grads)


# ------------------------------------------------------------------------------ coefficients


def equioscillating(low, high):
    """The odd quintic whose largest distance from 1 on an interval is least, by exchange."""
    if low / high > 1 - 5e-6:  # the limit of a short interval
        return np.array([15 / 8 / high, -10 / 8 / high**3, 3 / 8 / high**5])
    points = np.linspace(low, high, 4)
    for _ in range(100):
        signs = np.array([1, -1, 1, -1])
        rows = np.stack([points, points**3, points**5, signs], axis=1)
        a, b, c, _ = np.linalg.solve(rows, np.ones(4))
        inner = np.sort(np.sqrt(np.roots([5 * c, 3 * b, a]).real))
        points, old = np.array([low, *inner, high]), points
        if np.max(np.abs(points - old)) < 1e-15:
            break
    return np.array([a, b, c])


def composed(low, turns, cushion=0.02407327424182761):
    """The polynomials of Amsel et al., each the best for the interval that the last one leaves.

    The lower end is held above a part of the upper one: the cushion of the paper's code.
    """
    high, out = 1.0, []
    for _ in range(turns):
        row = equioscillating(max(low, cushion * high), high)
        ends = [row @ np.array([s, s**3, s**5]) for s in (low, high)]
        row = row * 2 / sum(ends)
        out.append(row)
        low = row @ np.array([low, low**3, low**5])
        high = 2 - low
    return np.array(out)


def test_the_polar_express_is_the_composition_of_optimal_polynomials():
    expected = composed(1e-3, 8)
    safe = expected / np.array([1.01, 1.01**3, 1.01**5])
    np.testing.assert_allclose(polar_express(7), safe[:7], rtol=1e-8)
    np.testing.assert_allclose(polar_express(8)[-1], expected[-1], rtol=1e-8)
    assert polar_express(10)[7:] == ((1.875, -1.25, 0.375),) * 3


@pytest.mark.parametrize("turns", [3, 5, 10])
def test_muon_takes_so_many_turns_of_the_polar_express(turns):
    x = normal(6, 20).astype(np.float64)
    a = x / np.linalg.norm(x)
    for p, q, r in polar_express(turns):
        gram = a @ a.T
        a = p * a + (q * gram + r * gram @ gram) @ a
    tx = gx.chain(gx.muon(1.0, "polar_express", turns, nesterov=False))
    got = update(tx, {"w": x.astype(np.float32)})["w"]
    np.testing.assert_allclose(got, -a * (20 / 6) ** 0.5, rtol=0, atol=2e-5)


def test_many_turns_of_the_polar_express_end_at_one():
    tx = gx.scale_by_muon(polar_express(10), 10)
    values = np.linalg.svd(update(tx, {"w": normal(8, 24)})["w"], compute_uv=False)
    np.testing.assert_allclose(values, 1, atol=1e-5)


# -------------------------------------------------------------------------------- iterations


def conditioned(m, n, condition):
    left, right = (np.linalg.qr(normal(k, m, seed=k))[0] for k in (m, n))
    return (left * np.geomspace(1, 1 / condition, m, dtype=np.float32)) @ right.T


@pytest.mark.parametrize("coefficients", ["standard", "polar_express"])
@pytest.mark.parametrize("condition", [1e1, 1e3, 1e7])
def test_the_iteration_on_the_gram_matrix_has_the_numbers_of_the_direct_one(
    coefficients, condition
):
    grads = {"wide": conditioned(16, 64, condition), "tall": conditioned(16, 48, condition).T}
    direct, gram = (
        update(gx.muon(1.0, coefficients, iteration=kind), grads) for kind in ("direct", "gram")
    )
    for k in grads:
        error = np.linalg.norm(direct[k] - gram[k]) / np.linalg.norm(direct[k])
        assert 0 < error < 5e-5  # another program, and the numbers of this one


def test_the_gram_matrix_takes_fewer_products():
    def flops(tx):
        grads = {"w": jnp.ones((16, 64))}
        return product_flops(tx.update, grads, tx.init(grads))

    direct, gram = (flops(gx.scale_by_muon(iteration=kind)) for kind in ("direct", "gram"))
    assert gram < 0.75 * direct
    near = gx.scale_by_muon(iteration="gram"), {"w": normal(16, 32)}
    assert np.array_equal(update(*near)["w"], update(gx.scale_by_muon(), near[1])["w"])


def test_sixteen_bit_products_are_near_and_statistics_stay_wide():
    grads = {"w": normal(16, 48)}
    tx = gx.scale_by_muon(compute_dtype="bfloat16")
    got, wide = update(tx, grads)["w"], update(gx.scale_by_muon(), grads)["w"]
    error = np.linalg.norm(got - wide) / np.linalg.norm(wide)
    assert 1e-4 < error < 5e-2
    _, state = tx.update(grads, tx.init(grads))
    np.testing.assert_array_equal(state.mu["w"], np.float32(0.05) * grads["w"])
    assert list(products(jax.make_jaxpr(tx.update)(grads, tx.init(grads)))) == ["bfloat16"] * 3


def products(jaxpr):
    """The dtype of the factors of each product of a program."""
    for eqn in jaxpr.jaxpr.eqns:
        if eqn.primitive.name == "dot_general":
            assert eqn.outvars[0].aval.dtype == jnp.float32
            yield str(eqn.invars[0].aval.dtype)
        for inner in eqn.params.values():
            if hasattr(inner, "jaxpr"):
                yield from products(inner)


# ------------------------------------------------------------------------------------ splits


def split(x, sizes, axis):
    return np.split(x, np.cumsum(sizes)[:-1], axis)


CASES = {
    "qkv": ((8, 24), gx.matrix_split(1, (8, 8, 8)), (8, 8, 8), 1),
    "heads": ((8, 24), gx.matrix_split(-1, 4), (4,) * 6, 1),
    "fewer keys": ((8, 24), gx.matrix_split(1, (16, 4, 4)), (16, 4, 4), 1),
    "rows": ((24, 8), gx.matrix_split(0, (12, 12)), (12, 12), 0),
    "stacked": ((3, 8, 24), gx.matrix_split(2, 8, NUMBERS(1, 2)), (8, 8, 8), 2),
    "stacked, fewer keys": (
        (3, 8, 24),
        gx.matrix_split(2, (16, 4, 4), NUMBERS(1, 2)),
        (16, 4, 4),
        2,
    ),
}


@pytest.mark.parametrize("name", list(CASES))
@pytest.mark.parametrize("rms", [None, 0.2])
def test_the_parts_of_a_split_are_matrices_of_their_own(name, rms):
    shape, numbers, sizes, axis = CASES[name]
    x = normal(*shape)
    fused = update(
        gx.muon(1.0, muon_weight_dimension_numbers={"w": numbers}, consistent_rms=rms), {"w": x}
    )["w"]
    numbers = NUMBERS(1, 2) if len(shape) == 3 else NUMBERS()
    apart = update(
        gx.muon(1.0, muon_weight_dimension_numbers=numbers, consistent_rms=rms),
        dict(enumerate(split(x, sizes, axis))),
    )
    expected = np.concatenate([apart[i] for i in range(len(sizes))], axis)
    np.testing.assert_allclose(fused, expected, rtol=0, atol=5e-6)


def test_equal_parts_share_the_products_of_a_group():
    def dots(params, numbers):
        tx = gx.scale_by_muon(weight_dimension_numbers=numbers)
        text = jax.jit(tx.update).lower(params, tx.init(params)).as_text()
        return text.count("dot_general")

    fused = dots({"w": jnp.ones((8, 24)), "o": jnp.ones((8, 8))},
                 {"w": gx.matrix_split(1, 8), "o": None})  # fmt: skip
    assert fused == dots({"o": jnp.ones((8, 8))}, None)


# --------------------------------------------------------------------------------- bad input


def refused(function, kind, *words):
    with pytest.raises(kind) as error:
        function()
    assert all(word in str(error.value) for word in words), error.value


def start(numbers, shape=(8, 24)):
    return lambda: gx.scale_by_muon(weight_dimension_numbers=numbers).init({"w": jnp.ones(shape)})


BAD = [
    (start(gx.matrix_split(1, (8, 8))), ValueError,
     ("['w']", "add up to 16", "length 24", "Give sizes that add up")),
    (start(gx.matrix_split(1, 7)), ValueError, ("['w']", "one that divides it")),
    (start(gx.matrix_split(2, 8)), ValueError, ("['w']", "does not have")),
    (start(gx.matrix_split(0, 1, NUMBERS(1, 2)), (3, 8, 24)), ValueError,
     ("['w']", "batch of matrices already", "Split one of its rows or columns")),
    (start(NUMBERS((0, 1), 1)), ValueError, ("['w']", "twice", "Name each axis once")),
    (start(None, (8,)), ValueError, ("['w']", "is not a matrix", "partition")),
    (start(None, ()), ValueError, ("['w']", "is not a matrix", "partition")),
    (lambda: gx.matrix_split(1, ()), ValueError, ("sizes", "at least 1")),
    (lambda: gx.matrix_split(1, (4, 0)), ValueError, ("sizes", "at least 1")),
    (lambda: gx.matrix_split(1, 4, (0, 1)), TypeError, ("numbers", "MuonDimensionNumbers")),
    (lambda: gx.scale_by_muon(compute_dtype="float16"), ValueError, ("compute_dtype", "bfloat16")),
    (lambda: gx.scale_by_muon(compute_dtype="int8"), ValueError, ("compute_dtype", "floating")),
    (lambda: gx.scale_by_muon(compute_dtype="bfloat16", iteration="gram"), ValueError,
     ("gram", "compute_dtype")),
    (lambda: gx.muon(1.0, iteration="gramm"), ValueError, ("iteration", "Did you mean 'gram'")),
    (lambda: gx.muon(1.0, "polar_express", 0), ValueError, ("ns_steps", "at least 1")),
    (lambda: gx.scale_by_muon().update({"w": jnp.ones((8, 8), jnp.int32)},
     gx.scale_by_muon().init({"w": jnp.ones((8, 8))})), TypeError, ("['w']", "int32", "masked")),
    (lambda: gx.scale_by_muon().update(
        {"w": RowSparse(jnp.zeros(1, jnp.int32), jnp.ones((1, 8)), 8)},
        gx.scale_by_muon().init({"w": jnp.ones((8, 8))})), TypeError, ("['w']", "whole arrays")),
]  # fmt: skip


@pytest.mark.parametrize("case", BAD, ids=lambda case: case[2][-1])
def test_bad_input_is_refused_with_the_remedy(case):
    refused(case[0], case[1], *case[2])


EXTREME = {
    "zeros": np.zeros((8, 24), np.float32),
    "rank one": np.outer(normal(8), normal(24)),
    "small": 1e-30 * normal(8, 24),
    "large": 1e30 * normal(8, 24),
    "tiny": np.full((8, 24), 1e-40, np.float32),
}


@pytest.mark.parametrize("name", list(EXTREME))
@pytest.mark.parametrize("arguments", [
    {}, {"ns_coeffs": "polar_express"}, {"iteration": "gram"}, {"compute_dtype": "bfloat16"},
    {"preconditioning": "aol"},
    {"muon_weight_dimension_numbers": gx.matrix_split(1, (8, 8, 4, 4))},
], ids=str)  # fmt: skip
def test_parameters_stay_finite(name, arguments):
    made = update(gx.muon(0.1, **arguments), {"w": EXTREME[name]})["w"]
    assert np.isfinite(made).all() and np.abs(made).max() < 1
