"""Parameters and gradients in float8: every part computes with them in float32."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradxform as gx
from gradxform.transforms.lbfgs import bounds
from gradxform.wrappers.parts import exact_part
from tests.catalogue import OPTIMIZERS, TRANSFORMS, WRAPPERS

pytestmark = pytest.mark.numeric

SAMPLE = ("adam", "lion", "sgd", "adafactor", "clip_by_global_norm", "lookahead", "sam", "muon")
# Every part; and some recipes, whose parts pass on what they do not round in between.
ROWS = {
    name: case
    for name, case in (TRANSFORMS | WRAPPERS | OPTIMIZERS).items()
    if "/" not in name and case.examples is None and (name in SAMPLE or name not in OPTIMIZERS)
}


OF_POINTS = ("step_by_lbfgsb",)  # its updates lead to a float8 between the bounds
OF_ARRAYS = ("subtract_surrogate_gap",)  # a difference of gradients that are rounded


def as_dtype(tree, dtype):
    def one(x):
        x = jnp.asarray(x)
        return x.astype(dtype) if jnp.issubdtype(x.dtype, jnp.floating) else x

    return jax.tree.map(one, tree)


def one_step(case, dtype, narrow):
    """The update of parameters and gradients that `narrow` has, given in `dtype`."""
    plain = case.params()
    params = as_dtype(as_dtype(plain, narrow), dtype)
    (g,) = (as_dtype(as_dtype(g, narrow), dtype) for g in case.gradients(plain, 1))

    def step(g, params):
        updates, state = case.tx.update(g, case.tx.init(params), params, **case.extra_of(g, params))
        return updates, state

    return jax.jit(step)(g, params)


def check(name, narrow):
    case = ROWS[name]
    points = jax.tree.leaves(case.params())
    got, state = one_step(case, narrow, narrow)
    want, _ = one_step(case, jnp.float32, narrow)
    is_exact = exact_part(case.tx) is not None
    kinds = jnp.finfo(narrow)
    pairs = zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True)
    for i, (x, y) in enumerate(pairs):
        if not jnp.issubdtype(y.dtype, jnp.floating):
            continue
        assert x.dtype == (jnp.float32 if is_exact else narrow)
        x, y = (np.asarray(a, np.float32) for a in (x, y))
        fits = np.abs(y) <= float(kinds.max)
        assert not np.any(np.isnan(x[fits]))
        if is_exact:  # the step to the parameter that is nearest, or that chance picks
            continue
        # Two units in the last place: the update is rounded, and so may be what is added to it.
        size = np.maximum(np.abs(y), np.abs(points[i])) if name in OF_POINTS else np.abs(y)
        size = np.maximum(size, np.max(size)) if name in OF_ARRAYS else size
        unit = np.maximum(size * float(kinds.eps), float(kinds.smallest_subnormal))
        assert np.all(np.abs(x - y)[fits] <= 2 * unit[fits] + 1e-6)
    return state


@pytest.mark.parametrize("name", ROWS)
def test_every_part_takes_float8(name):
    check(name, jnp.float8_e4m3fn)


@pytest.mark.parametrize("name", SAMPLE)
def test_another_float8(name):
    state = check(name, jnp.float8_e5m2)
    dtypes = {x.dtype for x in jax.tree.leaves(state)}
    assert not dtypes & {jnp.dtype(jnp.bfloat16), jnp.dtype(jnp.float16)}


def test_cautious_decay_sees_the_sign_of_a_step_below_float8():
    tx = gx.decoupled_weight_decay(gx.sgd(1e-4), 0.5, cautious=True)
    params = as_dtype({"w": np.array([1.0, 1.0, -1.0, 1.0])}, jnp.float8_e4m3fn)
    grads = as_dtype({"w": np.array([1.0, -1.0, -1.0, 0.0])}, jnp.float8_e4m3fn)
    updates, _ = tx.update(grads, tx.init(params), params)
    assert updates["w"].dtype == jnp.float8_e4m3fn
    np.testing.assert_array_equal(np.asarray(updates["w"], np.float32), [-0.5, 0, 0.5, -0.5])


@pytest.mark.parametrize("dtype", [jnp.float8_e4m3fn, jnp.float8_e5m2, jnp.float8_e4m3fnuz])
def test_bounds_round_as_float8_does(dtype):
    info = jnp.finfo(dtype)
    rng = np.random.default_rng(0)
    x = np.exp2(rng.uniform(-20, 16, 4096)) * rng.choice([-1, 1], 4096)
    x = np.concatenate([x, [0, 300, 448, 449, float(info.max), float(info.smallest_subnormal)]])
    x = x.astype(np.float32)
    got = np.asarray(jax.jit(bounds._rounded, static_argnums=1)(x, dtype))
    # NumPy's cast: XLA's own turns small negative numbers of e4m3fnuz into NaN on some processors.
    want = x.astype(jnp.dtype(dtype)).astype(np.float32)
    fits = np.isfinite(want)
    np.testing.assert_array_equal(got[fits], want[fits])
    assert np.all(np.isinf(got[~fits]))
