"""Matrices of equal sides in bounded batches: the numbers are those of one batch."""

from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

import gradxform as gx
import gradxform.distributed as gd
from gradxform.engine import matrices
from gradxform.testing.promise import check_close

pytestmark = pytest.mark.numeric

SHAPES = {"a": (6, 4), "b": (6, 4), "c": (6, 4), "wide": (8, 12), "stack": (7, 6, 4)}
KINDS = {
    "muon": gx.scale_by_muon,
    "normuon": gx.scale_by_normuon,
    "dion": partial(gx.scale_by_dion, 0.5),
    "shampoo": partial(gx.scale_by_distributed_shampoo, 4, start_preconditioning_step=1),
    "psgd": gx.scale_by_psgd_kron,
    "soap": partial(gx.scale_by_soap, precondition_frequency=3),
    "splus": partial(gx.scale_by_splus, precondition_frequency=2),
}
SIDES = gx.MuonDimensionNumbers(-2, -1)
RULES = {name: kind(weight_dimension_numbers=SIDES) for name, kind in KINDS.items()}


def drawn(step=0, dtype=jnp.float32):
    rng = np.random.default_rng(step)
    return {k: jnp.asarray(rng.normal(size=s), dtype) for k, s in SHAPES.items()}


def steps(tx, params, count=4):
    """Return the updates of some steps, and the last state."""
    state, updates = jax.jit(tx.init)(params), []
    update = jax.jit(lambda g, state: tx.update(g, state, params))
    for i in range(count):
        grads = jax.tree.map(lambda g, p: g.astype(p.dtype), drawn(i + 1), params)
        u, state = update(grads, state)
        updates.append(u)
    return updates, state


@cache
def at_once(name, dtype):
    return steps(RULES[name], drawn(dtype=dtype))


@pytest.mark.parametrize(
    "name, most, dtype",
    [(name, 24 * 3, jnp.float32) for name in RULES]
    + [("soap", 24 * 2, jnp.bfloat16), ("muon", 24, jnp.bfloat16), ("muon", 1, jnp.float32)],
)
def test_batches_change_no_number(name, most, dtype, monkeypatch):
    expected = at_once(name, dtype)  # the batch of 24 entries each has 10 matrices
    monkeypatch.setattr(matrices, "ON_CPU", most)
    got = steps(RULES[name], drawn(dtype=dtype))
    assert jax.tree.structure(got) == jax.tree.structure(expected)
    check_close("steps", got, expected, 2e-2 if dtype == jnp.bfloat16 else 1e-4)


def test_a_stack_is_a_loop_over_equal_batches(monkeypatch):
    sizes = []
    run = matrices.run_batch

    def noted(rule, inputs, *rest):
        sizes.append(inputs[0].shape[0])
        return run(rule, inputs, *rest)

    monkeypatch.setattr(matrices, "run_batch", noted)
    tx = RULES["muon"]
    for count, most, wanted in ((8, 5, {4}), (8, 8, {8}), (7, 3, {3, 1}), (6, 1, {1})):
        sizes.clear()
        monkeypatch.setattr(matrices, "ON_CPU", 24 * most)
        params = {"w": jnp.ones((count, 4, 6))}
        jax.eval_shape(lambda p: tx.update(p, tx.init(p), p), params)
        assert set(sizes) == wanted


@pytest.mark.parametrize("shape, most", [((6, 4), 2), ((6, 4), 1), ((4, 6, 4), 2)])
@pytest.mark.parametrize("name", ["soap", "shampoo"])
def test_one_loop_over_leaves_changes_no_number(name, shape, most, monkeypatch):
    """TPUs have one for rules that decompose; here it has the decompositions of CPUs."""
    params = dict.fromkeys("abcd", jnp.ones(shape))
    grads = jax.tree.map(lambda g: g[..., :6, :4], {k: drawn(ord(k))["stack"] for k in params})
    grads = jax.tree.map(lambda g: g[:4] if len(shape) == 3 else g[0], grads)

    def updates():
        tx, state, out = RULES[name], RULES[name].init(params), []
        update = jax.jit(lambda g, state: tx.update(g, state, params))
        for _ in range(4):
            u, state = update(grads, state)
            out.append(u)
        return out, state, update.lower(grads, state).as_text().count("stablehlo.case")

    *expected, _ = updates()
    monkeypatch.setattr(matrices, "platform_of", lambda _: "tpu")
    monkeypatch.setattr(matrices, "ELSEWHERE", 24 * most)
    *got, branches = updates()
    assert branches > 10  # a load and a store of every slot
    check_close("steps", got, expected, 1e-4)


def test_derivatives_pass_through_a_loop_over_batches(monkeypatch):
    tx, params = RULES["muon"], {"stack": drawn()["stack"]}

    def loss(params):
        return jnp.sum(tx.update(params, tx.init(params), params)[0]["stack"] ** 3)

    expected = jax.grad(loss)(params)
    monkeypatch.setattr(matrices, "ON_CPU", 24 * 2)
    check_close("gradients", jax.grad(lambda p: loss(p))(params), expected, 1e-4)


@pytest.mark.usefixtures("eight_devices")
@pytest.mark.parametrize(
    "kind, spec",
    [
        (AxisType.Auto, P("x")),
        (AxisType.Explicit, P("x")),
        (AxisType.Explicit, P()),
        (AxisType.Explicit, P(None, None, "x")),
    ],
)
def test_a_loop_does_not_pass_over_what_devices_divide(kind, spec, monkeypatch):
    """It would send every matrix to every device."""
    monkeypatch.setattr(matrices, "ON_CPU", 32)
    mesh = jax.make_mesh((8,), ("x",), axis_types=(kind,))
    params = {"w": jax.device_put(jnp.ones((16, 4, 8)), NamedSharding(mesh, spec))}
    tx = RULES["muon"]
    state = jax.jit(tx.init)(params)
    step = jax.jit(tx.update).lower(params, state, params).compile()
    assert {c.kind for c in gd.hlo.collectives(step)} <= ({"all-reduce"} if spec[2:] else set())
    u, _ = step(params, state, params)
    u = np.asarray(u["w"])  # of equal matrices
    np.testing.assert_allclose(u, np.broadcast_to(u[:1], u.shape), atol=1e-6)
