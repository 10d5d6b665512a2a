"""Rules for one matrix after the other, as on TPUs: the numbers of the rule for a batch."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradxform as gx
from gradxform.linalg import panels
from gradxform.transforms.matrices import rule
from gradxform.transforms.shampoo.distributed_shampoo import scale_by_distributed_shampoo
from gradxform.transforms.soap import scale_by_soap

TREES = {
    "alike": {"a": (24, 24), "b": (24, 24), "c": (24, 24)},
    "wide and tall": {"a": (24, 36), "b": (36, 24), "c": (24, 36), "bias": (7,)},
    "stacks": {"a": (3, 24, 24), "b": (2, 24, 24)},
}
NUMBERS = gx.MuonDimensionNumbers(-2, -1)
NAMED = {
    "soap": lambda **how: gx.soap(0.1, precondition_frequency=2, **how),
    "soap of equal lengths": lambda **how: gx.soap(
        gx.linear_schedule(0.1, 0.01, 5), normalize_grads=True, b2=0.9, shampoo_beta=0.8, **how
    ),
    "soap of one side": lambda **how: gx.soap(0.1, one_sided=True, weight_decay=None, **how),
    "shampoo": lambda **how: gx.distributed_shampoo(0.1, 12, **how),
    "shampoo of adam": lambda **how: gx.distributed_shampoo(
        0.1,
        block_size=16,
        beta2=0.9,
        matrix_epsilon=1e-3,
        graft_type="adam",
        preconditioning_compute_steps=2,
        statistics_compute_steps=2,
        start_preconditioning_step=1,
        **how,
    ),
}


@pytest.fixture
def on_tpu(monkeypatch):
    for module in (panels, rule):
        monkeypatch.setattr(module, "platform_of", lambda _: "tpu")
    monkeypatch.setattr(panels, "PANEL", 8)
    monkeypatch.setattr(panels, "LEAST", 8)


def tree_of(shapes, seed, dtype=jnp.float32):
    rng = np.random.default_rng(seed)
    return {k: jnp.asarray(rng.normal(size=shape), dtype) for k, shape in shapes.items()}


def steps(tx, shapes, of_params, dtype=jnp.float32):
    params = tree_of(shapes, 0, dtype)
    state = tx.init(params)

    @jax.jit
    def step(params, state, grads):
        if of_params:
            return gx.apply_gradients(tx, grads, state, params)
        updates, state = tx.update(grads, state, params)
        return gx.apply_updates(params, updates), state

    grads = tree_of(shapes, 1, dtype)
    turns = step.lower(params, state, grads).as_text().count("stablehlo.optimization_barrier")
    for seed in range(1, 6):
        params, state = step(params, state, tree_of(shapes, seed, dtype))
    return (params, state), turns


def close(got, expected, within):
    for x, y in zip(*map(jax.tree.leaves, (got, expected)), strict=True):
        x, y = np.asarray(x, np.float64), np.asarray(y, np.float64)
        assert np.max(np.abs(x - y), initial=0) <= within * (1 + np.max(np.abs(y), initial=0))


@pytest.mark.parametrize(
    "name, shapes, of_params",
    [
        *[("soap", shapes, True) for shapes in TREES],
        *[("shampoo of adam", shapes, True) for shapes in TREES],
        *[(name, "wide and tall", False) for name in NAMED],
    ],
)
def test_one_matrix_after_the_other_goes_as_a_batch(name, shapes, of_params, on_tpu, monkeypatch):
    how = {"weight_dimension_numbers": {"a": NUMBERS, "b": NUMBERS}} if shapes == "stacks" else {}
    tx = NAMED[name](**how)
    got, turns = steps(tx, TREES[shapes], of_params)
    assert turns > 5
    for kind in (scale_by_soap, scale_by_distributed_shampoo):
        monkeypatch.setattr(kind, "goes_in_place", None)
        monkeypatch.setattr(kind, "rule_in_place", None)
    expected, _ = steps(NAMED[name](**how), TREES[shapes], of_params)
    close(got, expected, 2e-4)


@pytest.mark.parametrize("name", ["soap", "shampoo"])
def test_updates_of_sixteen_bits_are_rounded_as_elsewhere(name, on_tpu):
    tx = NAMED[name]()
    with_params, alone = (steps(tx, TREES["alike"], x, jnp.bfloat16)[0] for x in (True, False))
    close(with_params, alone, 1e-2)
