"""Outside of jit, transforms that differ in numbers alone share their programs."""

import gc
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradxform as gx
from gradxform._jax.programs import bound_program, by_program
from gradxform.values.memory import Recent
from tests.base.test_eager_steps import counting_programs

pytestmark = pytest.mark.numeric

PARAMS = {f"layer{i}": {"w": jnp.full((4, 3), 0.5), "b": jnp.arange(3.0)} for i in range(2)}
GRADS = jax.tree.map(lambda p: 0.3 * p + 0.1, PARAMS)


def by_rank(params):
    return jax.tree.map(lambda p: "x" if p.ndim > 1 else "y", params)


# Of a number between 0 and 0.1.
MAKERS = {
    "sgd": lambda x: gx.sgd(x, 0.9),
    "momentum": lambda x: gx.sgd(0.1, 0.9 - x, nesterov=True),
    "adam": lambda x: gx.adam(0.1, b1=0.9 + x, b2=0.99 + x / 20, eps=x),
    "lamb": gx.lamb,
    "clip": lambda x: gx.chain(gx.clip_by_global_norm(10 * x), gx.adamw(0.1, weight_decay=x)),
    "mask": lambda x: gx.adamw(x, mask=gx.ndim_at_least(2)),
    "schedule": lambda x: gx.adam(gx.cosine_decay_schedule(x, 1000)),
    "partition": lambda x: gx.partition({"x": gx.adam(x), "y": gx.sgd(2 * x)}, by_rank),
    "MultiSteps": lambda x: gx.MultiSteps(gx.adam(x), 1),
    "average": lambda x: gx.moving_average(gx.adam(x), 0.9 + x),
    "lookahead": lambda x: gx.lookahead(gx.apply_if_finite(gx.lion(x), 2), 1, 0.4 + x),
    "inject": lambda x: gx.inject_hyperparams(gx.adamw)(x, b1=0.8 + x),
    "matrices": lambda x: gx.muon(x, beta=0.9 + x),
    "stored": lambda x: gx.quantize_state(gx.adam(x, b1=0.9 + x)),
    "loops": lambda x: gx.distributed_shampoo(x, block_size=2, matrix_epsilon=x / 100),
}


def updated(tx, grads=GRADS, params=PARAMS):
    state = tx.init(params)
    for _ in range(2):
        updates, state = tx.update(grads, state, params)
    return updates, state


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_other_numbers_compile_nothing(make):
    updated(make(0.0313))
    with counting_programs() as count:
        found = [updated(make(x)) for x in (0.0317, 0.0411)]
    assert count == [0]
    for x, got in zip((0.0317, 0.0411), found, strict=True):
        tx = make(x)
        state = tx.init(PARAMS)
        for _ in range(2):
            updates, state = jax.jit(tx.update)(GRADS, state, PARAMS)
        for a, b in zip(*map(jax.tree.leaves, (got, (updates, state))), strict=True):
            np.testing.assert_allclose(a, b, rtol=3e-5, atol=1e-6)


def test_other_numbers_of_a_loss_compile_nothing():
    tx = gx.chain(gx.sgd(1.0), gx.scale_by_backtracking_linesearch(5))

    def step(x):
        def loss(p):
            return x * jnp.sum(p**4)

        p = jnp.arange(3.0)
        value, g = jax.value_and_grad(loss)(p)
        return tx.update(g, tx.init(p), p, value=value, grad=g, value_fn=loss)

    step(0.31)
    with counting_programs() as count:
        a, b = step(0.37)[0], step(0.43)[0]
    assert count == [0] and np.any(a != b)


@gx.transform
class branching(gx.ArrayRule):
    """u = rate g, or g itself where the rate is above 1; the rate to a power of its own."""

    rate: float = 1.0
    power: float = 1.0

    def rule(self, g, p):
        if self.rate > 1:
            return g
        return self.rate**self.power * jnp.abs(g) ** self.power


def test_a_branch_on_a_number_is_another_program():
    g = jnp.asarray([0.25, 4.0])
    for rate, power in ((0.3, 0.7), (0.7, 0.3), (1.5, 0.3), (1.7, 0.7), (0.3, 0.5), (0.3, 2.0)):
        tx = branching(rate, power)
        got, _ = tx.update(g, tx.init(g))
        expected = g if rate > 1 else rate**power * np.abs(g) ** power
        np.testing.assert_allclose(got, expected, rtol=1e-6)


def test_what_a_rule_computes_of_numbers_keeps_its_digits():
    g = jnp.asarray([0.75], jnp.float32)
    for b2 in (0.999, 0.9999, 0.99999):
        tx = gx.scale_by_adam(b2=b2)
        _, state = tx.update(g, tx.init(g))
        # In float32, 1 - b2 would have an error of 1e-5 and more.
        np.testing.assert_allclose(state.nu, (1 - b2) * 0.75**2, rtol=3e-7)


@gx.transform
class reading_the_context(gx.ArrayRule):
    """u = g g^T g, and remembers the traces."""

    factor: float = 1.0
    locality = "array"

    def rule(self, g, p):
        TRACES.append(g.shape)
        return self.factor * (g @ g.T @ g)


TRACES = []


def test_another_precision_is_another_trace():
    tx, g = reading_the_context(0.3), jnp.eye(2)
    TRACES.clear()
    for _ in range(2):
        tx.update(g, tx.init(g))
        with jax.default_matmul_precision("highest"):
            tx.update(g, tx.init(g))
    assert len(TRACES) == 2


@gx.transform
class sharing(gx.ArrayRule):
    """u = rate g / n, with the number n of replicas."""

    rate: float = 1.0

    def rule(self, g, p):
        return self.rate * g / jax.lax.axis_size("replicas")


def test_the_size_of_an_axis_is_not_remembered():
    tx, g = sharing(0.3), jnp.ones(3)
    for n in (2, 3):
        # What is not mapped over is not traced.
        update = jax.vmap(lambda x: x + tx.update(g, tx.init(g))[0], axis_name="replicas")
        np.testing.assert_allclose(update(jnp.zeros((n, 3))), np.full((n, 3), 0.3 / n), rtol=1e-6)


def test_without_jit_a_rule_runs_as_it_is_written():
    tx, g = reading_the_context(0.37), jnp.eye(2)
    TRACES.clear()
    with jax.disable_jit():
        for _ in range(2):
            tx.update(g, tx.init(g))
    assert len(TRACES) == 2


# ------------------------------------------------------------------------------- the mechanism


def powers(x, y):
    def turn(i, total):
        return total + jnp.where(i > 1, y, 0.7 * y) * x

    start = jax.lax.fori_loop(0, 3, turn, 0.1 * x)
    kept = jax.lax.cond(x.sum() > 0, lambda a: y * a, lambda a: a - y, start)
    return jax.lax.scan(lambda c, a: (c * y + a, jax.jit(jnp.hypot)(c, y)), kept.sum(), kept)


def test_numbers_in_loops_and_conditions_are_arguments():
    x = jnp.asarray([1.0, -0.5])
    by_program(lambda x: powers(x, 0.3), x)
    inputs = [(sign * x, y) for y in (0.8, 4.3) for sign in (1, -1)]
    with counting_programs() as count:
        found = [by_program(lambda x, y=y: powers(x, y), at) for at, y in inputs]
    assert count == [0]
    for got, (at, y) in zip(found, inputs, strict=True):
        expected = jax.jit(lambda x, y=y: powers(x, y))(at)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), got, expected)


def test_a_program_goes_with_the_last_that_is_bound_to_it():
    x = jnp.arange(3.0)
    a, b = (bound_program(lambda x, y=y: jnp.tanh(x * y) - y, x) for y in (0.3, 0.7))
    assert a.run is b.run
    alive = weakref.ref(a.run)
    del a
    gc.collect()
    assert alive() is not None
    np.testing.assert_allclose(b(x), np.tanh(0.7 * x) - 0.7, rtol=1e-6, atol=1e-7)
    del b
    gc.collect()
    assert alive() is None


def test_what_is_asked_for_is_remembered_longest():
    memory = Recent(2)
    memory.keep("kept", 1)
    for i in range(10):
        memory.keep(i, i)
        assert memory.get("kept") == 1
    assert memory.get(9) == 9 and memory.get(0) is None
    assert len(memory._new) + len(memory._old) <= 4
