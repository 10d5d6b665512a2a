"""SOAP, Distributed Shampoo and PSGD Kron: long runs, spread renewals, batches, extremes."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradxform as gx
from gradxform import engine
from gradxform.engine import matrices, renewed
from tests import references as ref

pytestmark = pytest.mark.numeric

RNG = np.random.default_rng(0)
NUMBERS = gx.MuonDimensionNumbers(1, 2)
RULES = {
    "soap": gx.scale_by_soap(precondition_frequency=3),
    "distributed_shampoo": gx.scale_by_distributed_shampoo(
        block_size=2, matrix_epsilon=1e-3, preconditioning_compute_steps=3
    ),
    "psgd_kron": gx.scale_by_psgd_kron(preconditioner_update_probability=0.5, key=1),
}


def gradients(shape, steps, size=1.0):
    return [jnp.asarray(size * RNG.normal(size=shape), jnp.float32) for _ in range(steps)]


@pytest.mark.parametrize("every", [1, 3, 10])
def test_every_matrix_is_renewed_once_a_period_and_as_many_at_each_step(every):
    computed = []  # how many at each step

    def renew(given, old):
        jax.debug.callback(lambda x: computed.append(len(x)), old)
        return (old + given,)

    total = jnp.zeros(7)
    for count in range(every):
        computed.clear()
        (new,) = renewed(renew, (jnp.ones(7),), (total,), jnp.asarray(count), every)
        due = np.arange(7) % every == count % every
        jax.effects_barrier()
        assert sum(computed) == due.sum()  # none for nothing
        np.testing.assert_array_equal(np.asarray(new - total) != 0, due)
        # Two devices, each with a part of the batch, renew the same matrices.
        numbers = np.asarray([[0, 4, 1, 6], [5, 2, 3, 0]])
        for device, part in enumerate(numbers):
            with engine.as_share(numbers, jnp.asarray(device)):
                (mine,) = renewed(renew, (jnp.ones(4),), (total[part],), jnp.asarray(count), every)
            np.testing.assert_array_equal(mine, new[part])
        total = new
    np.testing.assert_array_equal(total, 1)


@pytest.mark.parametrize("every", [1, 3])
def test_twenty_steps_of_soap_are_those_of_its_reference(every):
    tx = gx.scale_by_soap(precondition_frequency=every)
    makers = [ref.soap(frequency=every, first=i) for i in range(4)]
    follows(tx, makers, (4, 5))


@pytest.mark.parametrize("every", [1, 3])
@pytest.mark.parametrize("kind", ["auto", "eigh", "newton"])
def test_twenty_steps_of_distributed_shampoo_are_those_of_its_reference(every, kind):
    tx = gx.scale_by_distributed_shampoo(
        2, 0.9, 1e-6, 0.01, preconditioning_compute_steps=every, inverse_root=kind
    )
    makers = [
        ref.distributed_shampoo(2, 0.9, 1e-6, 0.01, root_steps=every, first=6 * i) for i in range(4)
    ]
    follows(tx, makers, (4, 5), 2e-4 if kind == "eigh" else 2e-3)


def follows(tx, makers, shape, rtol=5e-4):
    """Several leaves, one batch: the i-th is the i-th matrix of it."""
    tree = {f"w{i}": jnp.zeros(shape) for i in range(len(makers))}
    state, update = tx.init(tree), jax.jit(tx.update)
    slots = [maker.start(np.zeros(shape)) for maker in makers]
    for t in range(1, 21):
        g = {k: gradients(shape, 1)[0] for k in tree}
        u, state = update(g, state, tree)
        for i, (maker, k) in enumerate(zip(makers, tree, strict=True)):
            expected, slots[i] = maker.step(np.asarray(g[k], np.float64), slots[i], None, t)
            tolerance = rtol * max(np.abs(expected).max(), 1e-30)
            np.testing.assert_allclose(u[k], expected, rtol=0, atol=tolerance, err_msg=f"{t}")


def test_a_nearly_singular_matrix_is_decomposed_where_products_fail():
    """With a condition of 1e12 the iteration by products does not converge in float32."""
    basis = np.linalg.qr(RNG.normal(size=(8, 8)))[0]
    g = jnp.asarray(basis * np.logspace(0, -6, 8), jnp.float32)  # of which L has the squares
    arguments = {"matrix_epsilon": 1e-12, "start_preconditioning_step": 0}
    updates = {}
    for kind in ("auto", "eigh", "newton"):
        tx = gx.scale_by_distributed_shampoo(**arguments, inverse_root=kind)
        state, update = tx.init(g), jax.jit(tx.update)
        for _ in range(3):
            updates[kind], state = update(g, state)
        assert np.all(np.isfinite(updates[kind]))
    np.testing.assert_allclose(updates["auto"], updates["eigh"], 0.02, 2e-3)
    assert np.max(np.abs(updates["newton"] - updates["eigh"])) > 0.01


def test_roots_that_are_chosen_have_derivatives():
    g = gradients((6, 4), 1)[0]

    def moved(size, kind):
        tx = gx.scale_by_distributed_shampoo(start_preconditioning_step=0, inverse_root=kind)
        return jnp.sum(tx.update(size * g, tx.init(g))[0])

    for derive in (jax.grad, jax.jacfwd):
        auto, eigh = (derive(moved)(jnp.float32(1.0), kind) for kind in ("auto", "eigh"))
        np.testing.assert_allclose(auto, eigh, 1e-2, 1e-3)


@pytest.mark.parametrize("name", RULES)
def test_a_run_that_is_resumed_in_a_period_goes_on_exactly(name):
    tx = RULES[name]
    tree = {f"w{i}": jnp.zeros((4, 3)) for i in range(5)}
    grads = [{k: gradients((4, 3), 1)[0] for k in tree} for _ in range(8)]
    state, update = tx.init(tree), jax.jit(tx.update)
    for t, g in enumerate(grads):
        if t == 4:
            leaves, treedef = jax.tree.flatten(state)
            saved = [np.array(x) for x in leaves]
        u, state = update(g, state, tree)
    again = jax.tree.unflatten(treedef, [jnp.asarray(x) for x in saved])
    for g in grads[4:]:
        v, again = jax.jit(tx.update)(g, again, tree)
    jax.tree.map(np.testing.assert_array_equal, (v, again), (u, state))


@pytest.mark.parametrize("name", RULES)
def test_stacked_layers_give_the_numbers_of_single_ones(name):
    tx, shape = RULES[name], (4, 3)
    stacked = gx.replace(tx, weight_dimension_numbers=NUMBERS)
    one = {f"w{i}": jnp.zeros(shape) for i in range(5)}
    all_of_them = {"w": jnp.zeros((5, *shape))}
    state, stacked_state = tx.init(one), stacked.init(all_of_them)
    for _ in range(6):
        g = gradients((5, *shape), 1)[0]
        u, state = tx.update({k: g[i] for i, k in enumerate(one)}, state, one)
        v, stacked_state = stacked.update({"w": g}, stacked_state, all_of_them)
        together = np.stack([u[k] for k in one])
        np.testing.assert_allclose(v["w"], together, rtol=0, atol=1e-5 * np.abs(together).max())


EXTREMES = {
    "zeros": jnp.zeros((3, 4)),
    "rank one": jnp.outer(jnp.arange(1.0, 4), jnp.arange(1.0, 5)),
    "1e-30": 1e-30 * jnp.asarray(RNG.normal(size=(3, 4)), jnp.float32),
    "1e30": 1e30 * jnp.asarray(RNG.normal(size=(3, 4)), jnp.float32),
}


@pytest.mark.parametrize("kind", EXTREMES)
@pytest.mark.parametrize("name", ["soap", "distributed_shampoo", "newton", "psgd_kron"])
def test_extreme_gradients_leave_everything_finite(name, kind):
    tx = {
        "newton": gx.distributed_shampoo(0.1, inverse_root="newton"),
        "psgd_kron": gx.psgd_kron(0.1, preconditioner_update_probability=1.0),
    }.get(name) or getattr(gx, name)(0.1)
    p = {"w": jnp.ones((3, 4))}
    state, update = tx.init(p), jax.jit(tx.update)
    for i in range(30):
        g = jnp.ones((3, 4)) if i == 20 else EXTREMES[kind]
        u, state = update({"w": g}, state, p)
        p = gx.apply_updates(p, u)
    assert all(np.isfinite(x).all() for x in jax.tree.leaves((p, state)))


def test_factors_stay_as_they_are_for_a_gradient_of_zeros():
    """They would grow without bound: a dead layer has no scale."""
    tx, p = gx.scale_by_psgd_kron(), {"w": jnp.zeros((3, 4))}
    state = tx.init(p)
    _, new = tx.update(p, state, p)
    np.testing.assert_array_equal(new.left["w"], state.left["w"])
    np.testing.assert_array_equal(new.right["w"], state.right["w"])


def test_a_fitted_preconditioner_makes_updates_white():
    """Of noise with covariances L and R, times many steps: the root mean square is 1."""
    left, right = (np.diag(10.0 ** RNG.uniform(-0.5, 0.5, n)) for n in (6, 8))
    tx = gx.scale_by_psgd_kron(0.0, 1.0)
    p = {"w": jnp.zeros((6, 8))}
    state, update, sizes = tx.init(p), jax.jit(tx.update), []
    for t in range(1500):
        g = jnp.asarray(left @ RNG.normal(size=(6, 8)) @ right, jnp.float32)
        u, state = update({"w": g}, state, p)
        if t >= 1300:
            sizes.append(np.asarray(u["w"]) ** 2)
    size = np.sqrt(np.mean(sizes, axis=0))
    assert size.min() > 0.5 and size.max() < 2


def test_a_deterministic_schedule_fits_as_often_as_it_says():
    tx = gx.scale_by_psgd_kron(preconditioner_update_probability=0.25, deterministic=True)
    p, fits = {"w": jnp.zeros((3, 4))}, []
    state, update = tx.init(p), jax.jit(tx.update)
    for g in gradients((3, 4), 8):
        _, new = update({"w": g}, state, p)
        fits.append(bool(jnp.any(new.left["w"] != state.left["w"])))
        state = new
    assert fits == [False, False, False, True] * 2


@pytest.mark.parametrize("given", ["params", "no params"])
@pytest.mark.parametrize(
    "tx",
    [
        gx.scale_by_soap(precondition_frequency=2),
        gx.scale_by_distributed_shampoo(preconditioning_compute_steps=2, block_size=8),
    ],
    ids=lambda tx: type(tx).__name__,
)
def test_a_leaf_without_a_gradient_does_not_change_the_turns_of_others(tx, given):
    params = {k: jnp.eye(4, 6) for k in "ab"} | {"c": jnp.eye(4, 5)}
    together, apart = tx.init(params), tx.init(params)
    args = (params,) if given == "params" else ()
    for i in range(8):
        rng = np.random.default_rng(i)
        grads = {k: jnp.asarray(rng.normal(size=p.shape), jnp.float32) for k, p in params.items()}
        want, together = tx.update(grads, together, *args)
        got, apart = tx.update({**grads, "a": grads["a"] if i % 2 == 0 else None}, apart, *args)
        for k in "bc":
            np.testing.assert_allclose(got[k], want[k], rtol=1e-4, atol=1e-5)


def test_turns_are_counted_apart_for_each_dtype():
    with jax.enable_x64(True):
        params = {k: jnp.eye(4, 6, dtype=d) for k, d in zip("abc", ("f4", "f8", "f4"), strict=True)}
        tx = gx.scale_by_soap(precondition_frequency=2)
        state, turns = tx.init(params), []
        for i in range(6):
            rng = np.random.default_rng(i)
            grads = {k: jnp.asarray(rng.normal(size=(4, 6)), p.dtype) for k, p in params.items()}
            given = {**grads, "a": grads["a"] if i % 2 == 0 else None}
            old, (_, state) = state.left_basis["b"], tx.update(given, state, params)
            turns.append(not np.array_equal(old, state.left_basis["b"]))
    assert turns == [True, False] * 3


@pytest.mark.parametrize("lacks", [False, True])
def test_leaves_apart_are_renewed_as_those_of_a_batch_are(lacks, monkeypatch):
    shapes = {"a": (3, 4), "b": (4, 3), "c": (3, 4), "d": (2, 3, 4), "e": (5, 5)}
    numbers = {k: NUMBERS if k == "d" else gx.MuonDimensionNumbers() for k in shapes}
    tx = gx.scale_by_soap(precondition_frequency=3, weight_dimension_numbers=numbers)
    params = {k: jnp.zeros(s) for k, s in shapes.items()}
    grads = [{k: gradients(s, 1)[0] for k, s in shapes.items()} for _ in range(8)]
    results = []
    for is_apart in (True, False):
        monkeypatch.setattr(matrices, "_are_leaves_apart", lambda *_, x=is_apart: x)
        jax.clear_caches()
        update, state = jax.jit(tx.update), tx.init(params)
        for g in grads:
            g = {**g, "a": None} if lacks else g
            u, state = update(g, state, params)
        results.append((u, state))
    assert all(map(np.any, jax.tree.leaves(results[0][0])))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), *results)


DECOMPOSING = {
    "dion": gx.scale_by_dion(0.5),
    "galore": gx.galore(0.1, rank=2),
    "muon, spectral": gx.scale_by_muon(preconditioning="spectral"),
    "keep_matrix_norms": gx.keep_matrix_norms("spectral"),
}


@pytest.mark.parametrize("runs", [1, 3], ids=["one run", "runs under vmap"])
@pytest.mark.parametrize("name", [*RULES, *DECOMPOSING])
def test_no_decomposition_on_a_cpu_is_of_a_batch(name, runs):
    # XLA divides a batch over threads that run other parts, too: two of them wait for each other
    # forever where steps are dispatched without waiting for the one before.
    tx = (RULES | DECOMPOSING)[name]
    params = {f"layer{i}": jnp.ones((4, 6)) for i in range(3)}
    init, update = tx.init, tx.update
    if runs > 1:
        params = jax.tree.map(lambda x: jnp.stack([x] * runs), params)
        init, update = jax.vmap(init), jax.vmap(update)
    cpu = jax.devices("cpu")[0]
    args = jax.device_put((params, jax.jit(init)(params), params), cpu)
    text = jax.jit(update).lower(*args).compile().as_text()
    # The shapes of results: (f32[4,6], f32[4], ...) or f32[1,4,6], without layouts.
    calls = re.findall(r"= (.*) custom-call\(.*custom_call_target=\"(?:lapack|blas)_", text)
    assert calls, "the program is expected to decompose"
    for shapes in calls:
        for shape in re.findall(r"\[([\d,]*)\]", shapes):
            assert shape.count(",") < 2 or shape.startswith("1,"), shapes
