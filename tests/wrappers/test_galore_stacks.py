"""GaLore on stacks of matrices: each takes the steps that it takes alone."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradxform as gx

pytestmark = pytest.mark.numeric

STEPS, NUMBERS = 3, gx.GaLoreDimensionNumbers
# The shape of a stack, its dimension numbers, its batch, and the numbers of one of its matrices.
STACKS = {
    "first": ((4, 6, 3), NUMBERS(1, 2), (0,), NUMBERS()),
    "middle": ((3, 4, 5), NUMBERS(0, 2), (1,), NUMBERS()),
    "last": ((5, 3, 2), NUMBERS(1, 0), (2,), NUMBERS(1, 0)),
    "two": ((2, 3, 4, 4), NUMBERS(-2, -1), (0, 1), NUMBERS()),
    "apart": ((2, 3, 5, 4), NUMBERS(1, 2), (0, 3), NUMBERS()),
    "sides": ((2, 2, 3, 4), NUMBERS((1, 2), 3), (0,), NUMBERS((0, 1), 2)),
    "single": ((1, 5, 4), NUMBERS(1, 2), (0,), NUMBERS()),
}


def drawn(seed, dtype="float32", shapes=None):
    shapes = shapes or {name: shape for name, (shape, *_) in STACKS.items()}
    rng = np.random.default_rng(seed)
    draw = lambda shape: rng.normal(size=shape) + 1j * rng.normal(size=shape)  # noqa: E731
    as_dtype = lambda x: x if jnp.issubdtype(dtype, jnp.complexfloating) else x.real  # noqa: E731
    return {name: jnp.asarray(as_dtype(draw(shape)), dtype) for name, shape in shapes.items()}


def apart(tree):
    """The matrices of stacks, each as a parameter of its own."""
    out = {}
    for name, x in tree.items():
        batch = STACKS[name][2]
        x = np.moveaxis(np.asarray(x), batch, range(len(batch)))
        out |= slots_apart({name: x})
    return out


def slots_apart(tree):
    """The same of slots, whose first axes are the batch."""
    out = {}
    for name, x in tree.items():
        for index in np.ndindex(x.shape[: len(STACKS[name][2])]):
            out[f"{name} {index}"] = jnp.asarray(x[index])
    return out


def pair(rank, gap=2, base=None):
    """The transform for stacks, and the one for their matrices apart."""
    stacked = {name: numbers for name, (_, numbers, _, _) in STACKS.items()}
    alone = {name: STACKS[name.split()[0]][3] for name in apart(drawn(0))}
    return [gx.scale_by_galore(rank, gap, 0.5, base, numbers) for numbers in (stacked, alone)]


def eager(tx, params, grads):
    return steps(tx.update, tx.init(params), params, grads)


def compiled(tx, params, grads):
    return steps(jax.jit(tx.update), tx.init(params), params, grads)


def steps(update, state, params, grads):
    all_updates = []
    for g in grads:
        updates, state = update(g, state, params)
        all_updates.append(updates)
    return all_updates[-1], state


def scanned(tx, params, grads):
    def one(state, g):
        updates, state = tx.update(g, state, params)
        return state, updates

    grads = jax.tree.map(lambda *xs: jnp.stack(xs), *grads)
    state, updates = jax.jit(lambda state: jax.lax.scan(one, state, grads))(tx.init(params))
    return jax.tree.map(lambda x: x[-1], updates), state


def mapped(tx, params, grads):
    """The second of two runs that a vmap makes at once."""
    twice = lambda tree: jax.tree.map(lambda x: jnp.stack([jnp.cos(x), x]), tree)  # noqa: E731
    both = jax.vmap(lambda params, *grads: compiled(tx, params, grads))(
        twice(params), *map(twice, grads)
    )
    return jax.tree.map(lambda x: x[1], both)


WAYS = {"eager": eager, "compiled": compiled, "scanned": scanned, "mapped": mapped}


def assert_close(got, want, dtype="float32"):
    assert set(got) == set(want)
    tolerance = max(1e-5, 2 * float(jnp.finfo(dtype).eps))
    for name, x in want.items():
        y = got[name]
        assert x.shape == y.shape and x.dtype == y.dtype, name
        x, y = (np.asarray(a, np.complex128) for a in (x, y))
        np.testing.assert_allclose(y, x, rtol=0, atol=tolerance * np.max(np.abs(x)), err_msg=name)


@pytest.mark.parametrize(
    "way, dtype",
    [(way, "float32") for way in WAYS] + [("compiled", "bfloat16"), ("compiled", "complex64")],
)
@pytest.mark.parametrize("rank", [2, 9])
def test_each_matrix_of_a_stack_takes_the_steps_that_it_takes_alone(way, dtype, rank):
    params, *grads = (drawn(seed, dtype) for seed in range(STEPS + 1))
    stacked, alone = pair(rank)
    got, state = WAYS[way](stacked, params, grads)
    want, theirs = compiled(alone, apart(params), [apart(g) for g in grads])
    assert_close(apart(got), want, dtype)
    assert_close(slots_apart(state.projector), theirs.projector)
    for field in "mu", "nu":
        ours, other = (getattr(s.base_optimizer_state, field) for s in (state, theirs))
        assert_close(slots_apart(ours), other)


def test_slots_of_a_stack_begin_with_its_batch():
    params, (tx, _) = drawn(0), pair(2)
    state = tx.init(params)
    shapes = {name: (x.shape, state.base_optimizer_state.mu[name].shape) for name, x in
              state.projector.items()}  # fmt: skip
    assert shapes == {
        "first": ((4, 6, 2), (4, 2, 3)),
        "middle": ((4, 5, 2), (4, 3, 2)),
        "last": ((2, 5, 2), (2, 3, 2)),
        "two": ((2, 3, 4, 2), (2, 3, 2, 4)),
        "apart": ((2, 4, 5, 2), (2, 4, 3, 2)),
        "sides": ((2, 6, 2), (2, 2, 4)),
        "single": ((1, 5, 2), (1, 2, 4)),
    }
    _, new = jax.eval_shape(tx.update, params, state, params)
    assert jax.tree.map(jnp.shape, new) == jax.tree.map(jnp.shape, state)


def test_one_matrix_has_no_batch():
    tx = gx.scale_by_galore(2, weight_dimension_numbers=NUMBERS(-2, -1))
    state = tx.init({"w": jnp.ones((6, 4)), "k": jnp.ones((3, 6, 4)), "b": jnp.ones(3)})
    assert {k: x.shape for k, x in state.projector.items()} == {
        "w": (6, 2), "k": (3, 6, 2), "b": ()
    }  # fmt: skip


def test_only_matrices_are_projected_without_numbers():
    state = gx.scale_by_galore(2).init({"w": jnp.ones((6, 4)), "k": jnp.ones((3, 6, 4))})
    assert {k: x.shape for k, x in state.projector.items()} == {"w": (6, 2), "k": ()}
    assert state.base_optimizer_state.mu["k"].shape == (3, 6, 4)


@pytest.mark.parametrize("shape", [(0, 4, 3), (3, 0, 4), (3, 4, 0)])
def test_an_empty_stack_is_not_projected(shape):
    tx = gx.galore(0.1, 2, weight_dimension_numbers=NUMBERS(1, 2))
    params = {"e": jnp.ones(shape)}
    state = tx.init(params)
    assert state[0].projector["e"].shape == ()
    updates, _ = jax.jit(tx.update)(params, state, params)
    assert updates["e"].shape == shape


def test_a_base_transform_sees_the_projections_of_a_stack_as_one_array():
    """Muon has numbers of its own, for the projections."""
    shapes = {"k": (3, 8, 6)}
    params, grads = drawn(0, shapes=shapes), drawn(1, shapes=shapes)
    numbers = {"k": gx.MuonDimensionNumbers(1, 2)}
    base = gx.scale_by_muon(weight_dimension_numbers=numbers)
    tx = gx.scale_by_galore(4, 1, 1.0, base, NUMBERS(1, 2))
    got, _ = jax.jit(tx.update)(grads, tx.init(params), params)
    alone = gx.scale_by_galore(4, 1, 1.0, gx.scale_by_muon())
    for i, g in enumerate(grads["k"]):
        want, _ = jax.jit(alone.update)(g, alone.init(g), g)
        assert_close({"k": got["k"][i]}, {"k": want})
