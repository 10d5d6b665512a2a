"""States from shapes alone, and from parameters whose types say how they are spread."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradxform as gx
from tests.catalogue import OPTIMIZERS
from tests.interop.optax_calls import CALLS, OPTAX, as_optax_wants, params_of

pytestmark = pytest.mark.numeric

SHAPES = {"w": (8, 4), "k": (4, 3, 6), "b": (4,), "s": ()}
PARAMS = {
    k: jnp.asarray(np.random.default_rng(i).normal(size=shape), jnp.float32)
    for i, (k, shape) in enumerate(SHAPES.items())
}
MATRIX = {"w": PARAMS["w"]}  # for those that take matrices only


def shapes_of(tree):
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), tree)


def assert_same_layout(a, b):
    assert jax.tree.structure(a) == jax.tree.structure(b)
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        assert (x.shape, x.dtype) == (y.shape, y.dtype)


# One call of each function, and of those that look at axes all.
ROWS = {call.name: call for call in reversed(CALLS) if call.usual}
ROWS |= {str(call): call for call in CALLS if call.usual and call.arrays == "three axes"}


@pytest.mark.parametrize("call", ROWS.values(), ids=str)
def test_init_takes_shapes_where_optaxs_init_does(call):
    shapes = shapes_of(params_of(call, OPTAX))
    try:
        with as_optax_wants():
            call.theirs().init(shapes)
    except (TypeError, AttributeError):
        return  # it computes with its parameters, as ours must
    params = params_of(call)
    assert_same_layout(call.ours().init(shapes_of(params)), call.ours().init(params))


# They begin with a norm of the parameters, of which a shape has none.
NEEDS_NUMBERS = {"dog"}


def params_for(tx):
    try:
        tx.init(PARAMS)
    except ValueError:
        return MATRIX
    return PARAMS


@pytest.mark.parametrize("name", [k for k in OPTIMIZERS if k not in NEEDS_NUMBERS])
def test_an_optimizer_is_initialized_from_shapes(name):
    tx = OPTIMIZERS[name].tx
    params = params_for(tx)
    state = tx.init(params)
    assert_same_layout(tx.init(shapes_of(params)), state)
    assert_same_layout(jax.eval_shape(tx.init, params), state)


SPECS = {"w": ("x", "y"), "k": ("x", None, "y"), "b": ("x",), "s": ()}
# They compute with whole matrices, and leave it to the user to say where.
WHOLE_MATRICES = {"muon", "galore", "shampoo", "ggt", "lbfgs", "lbfgs_steps", "lbfgsb"}
WHOLE_MATRICES |= {"normuon", "adamuon", "dion", "dion2", "scion", "muonclip"}
WHOLE_MATRICES |= {"soap", "distributed_shampoo", "psgd_kron"}


def explicit_mesh():
    if jax.device_count() < 8:
        pytest.skip("needs 8 devices")
    return jax.make_mesh((4, 2), ("x", "y"), axis_types=(jax.sharding.AxisType.Explicit,) * 2)


def types_of(tree):
    """Shapes, dtypes and how each leaf is spread."""
    return jax.tree.map(lambda x: str(jax.typeof(x)), tree)


def spread(mesh, params):
    return {
        k: jax.device_put(p, jax.NamedSharding(mesh, jax.P(*SPECS[k]))) for k, p in params.items()
    }


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_optimizer_takes_explicitly_sharded_parameters(name):
    mesh, case = explicit_mesh(), OPTIMIZERS[name]
    params = params_for(case.tx)
    grads = case.like(jax.tree.map(lambda p: 0.5 * p + 0.1, params))

    @jax.jit
    def two_states(params, grads):
        state = case.tx.init(params)
        if name.split("/")[0] in WHOLE_MATRICES:
            return state, state
        return state, case.bound.update(grads, state, params)[1]

    with jax.set_mesh(mesh):
        if case.examples is None:
            grads = spread(mesh, grads)
        first, later = jax.eval_shape(two_states, spread(mesh, params), grads)
    assert_same_layout(first, case.tx.init(params))
    assert types_of(first) == types_of(later)


@pytest.mark.parametrize(
    "make", [gx.sm3, lambda rate: gx.adafactor(rate, min_dim_size_to_factor=2)]
)
def test_factored_moments_are_sharded_like_explicitly_sharded_parameters(make):
    mesh, tx = explicit_mesh(), make(0.1)
    grads = jax.tree.map(lambda p: 0.5 * p + 0.1, PARAMS)

    @jax.jit
    def two_steps(params, grads):
        state = tx.init(params)
        _, state = tx.update(grads, state, params)
        return tx.update(grads, state, params)

    want = two_steps(PARAMS, grads)
    with jax.set_mesh(mesh):
        params, grads = spread(mesh, PARAMS), spread(mesh, grads)
        got = two_steps(params, grads)
        first = tx.init(params)
        _, later = tx.update(grads, first, params)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7)
    assert types_of(first) == types_of(later)
