"""Steps outside of jit: nothing is compiled after the first ones."""

import contextlib
import os
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradxform as gx
from gradxform._jax.programs import by_program
from gradxform.testing.promise import settings
from tests.catalogue import CASES, WRAPPERS
from tests.telling import with_new_parts

pytestmark = pytest.mark.numeric


@contextlib.contextmanager
def counting_programs():
    """Count the programs that are compiled in this context."""
    count = [0]

    def listen(event, _, **__):
        count[0] += event == "/jax/core/compile/backend_compile_duration"

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        yield count
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)


def programs_of_later_steps(case):
    """Return how many programs the second, third and fourth step compile."""
    tree = case.params()
    (g,) = case.gradients(tree, 1)
    with settings(case):
        state = case.bound.init(tree)
        _, state = case.bound.update(g, state, tree)
        with counting_programs() as count:
            for _ in range(3):
                _, state = case.bound.update(g, state, tree)
    return count[0]


SEARCHES = [name for name in CASES if "linesearch" in name or "lbfgs" in name]


@pytest.mark.parametrize("name", with_new_parts(WRAPPERS))
def test_later_steps_of_a_wrapper_compile_nothing(name):
    assert programs_of_later_steps(CASES[name]) == 0


@pytest.mark.parametrize("name", SEARCHES)
def test_later_steps_of_a_search_compile_nothing(name):
    assert programs_of_later_steps(CASES[name]) == 0


def losses_of_batches():
    """Yield a new function for each batch."""
    for x in (1.0, 2.0, 3.0):
        batch = jnp.full(3, x)
        yield lambda w, batch=batch: jnp.sum(jax.nn.softplus(3 * (w - batch)) + jax.nn.relu(-w))


SEARCH = gx.scale_by_backtracking_linesearch


@pytest.mark.parametrize(
    "tx",
    [
        gx.chain(gx.sgd(1.0), SEARCH(5)),
        gx.chain(gx.sgd(1.0), SEARCH(5, store_grad=True, verbose=True)),
        gx.chain(gx.sgd(1.0), gx.scale_by_zoom_linesearch(5)),
        gx.lbfgs(),
        gx.apply_if_finite(gx.lbfgs(), 3),
    ],
    ids=["backtracking", "store_grad", "zoom", "lbfgs", "apply_if_finite"],
)
def test_searches_compile_nothing_for_new_losses_with_the_same_equations(tx):
    compiled = jax.jit(tx.update, static_argnames="value_fn")
    w = jnp.arange(3.0)
    states = [tx.init(w)] * 2
    counts = []
    for loss in losses_of_batches():
        value, g = jax.value_and_grad(loss)(w)
        extra = {"value": value, "grad": g, "value_fn": loss}
        expected, states[1] = compiled(g, states[1], w, **extra)
        with counting_programs() as count:
            u, states[0] = tx.update(g, states[0], w, **extra)
        counts += count
        np.testing.assert_allclose(u, expected, rtol=1e-5)
        w = w + u
    assert counts[0] > 0 and not any(counts[1:])


def one_loss(w):
    return jnp.sum((w - 1) ** 4)


def stored(state):
    return gx.value_and_grad_from_state(one_loss)(jnp.ones(3), state=state)


A = jnp.asarray([[2.0, 1.0], [0.0, 3.0]])


@pytest.mark.parametrize(
    "call",
    [
        lambda: stored(gx.lbfgs().init(jnp.ones(3))),
        lambda: gx.minimize(one_loss, jnp.ones(3), gx.lbfgs_steps(2), max_evaluations=3),
        lambda: gx.nnls(A, A[0], 3),
        lambda: gx.power_iteration(A),
        lambda: gx.matrix_inverse_pth_root(A.T @ A, 4),
        lambda: gx.polytopes.projection_polyhedron(A[0], A[:0], A[0, :0], A, A[0]),
        lambda: gx.polytopes.projection_box_section(A[0], -A[0], A[0], A[0], 1.0),
        lambda: gx.polytopes.projection_birkhoff(A),
    ],
    ids=["from_state", "minimize", "nnls", "power", "root", "polyhedron", "section", "birkhoff"],
)
def test_later_calls_with_a_loop_compile_nothing(call):
    call()
    with counting_programs() as count:
        call()
    assert count[0] == 0


def repeated(turn, x):
    return jax.lax.fori_loop(0, 3, lambda _, x: turn(x), x)


def test_only_equal_programs_are_shared():
    turns = [
        lambda x: x + 1,
        lambda x: x + 2,
        lambda x: x - 1,
        lambda x: jnp.sin(x + jnp.nan),
        lambda x: jnp.where(x > 5, jax.nn.relu(x), -x),
        lambda x: jnp.where(x > 5, jax.nn.relu(-x), x),
        lambda x: x.astype(jnp.int32).astype(jnp.float32) + 1,
    ]
    x = jnp.asarray(6.5)
    for _ in range(2):
        for turn in turns:
            found = by_program(
                lambda x, turn=turn: jax.lax.fori_loop(0, 3, lambda _, x: turn(x), x), x
            )
            expected = turn(turn(turn(x)))
            assert found == expected or (jnp.isnan(expected) and jnp.isnan(found))


def test_derivatives_pass_through_programs_that_are_shared():
    def cubed(scale):
        return by_program(lambda x: repeated(lambda x: x * scale, x), jnp.ones(()))

    assert jax.grad(cubed)(2.0) == 12
    assert jnp.array_equal(jax.vmap(cubed)(jnp.arange(3.0)), jnp.arange(3.0) ** 3)
    with jax.disable_jit():
        assert cubed(3.0) == 27


LAYERS = {f"layer_{i}": {"w": jnp.ones((4, 3)), "b": jnp.ones(3)} for i in range(2)}
PARTS = {"matrix": gx.adamw(0.1), "vector": gx.sgd(0.1)}
MATRICES = gx.ndim_at_least(2)


def calls_of_the_second_step(tx):
    """Return how many functions of the library that calls; comprehensions are not functions."""
    grads, state = jax.tree.map(lambda p: 0.1 * p, LAYERS), tx.init(LAYERS)
    _, state = tx.update(grads, state, LAYERS)
    count = 0

    def on_event(frame, event, _):
        nonlocal count
        code = frame.f_code
        is_ours = code.co_filename.startswith(HOME) and code.co_name not in COMPREHENSIONS
        count += event == "call" and is_ours

    sys.setprofile(on_event)
    try:
        tx.update(grads, state, LAYERS)
    finally:
        sys.setprofile(None)
    return count


HOME = os.path.dirname(gx.__file__)
COMPREHENSIONS = ("<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>")


@pytest.mark.parametrize(
    ("tx", "most"),
    [
        (gx.adamw(0.1), 70),
        (gx.adamw(0.1, mask=MATRICES), 90),
        (gx.masked(gx.adamw(0.1), MATRICES), 100),
        (gx.partition(PARTS, gx.label_by(("matrix", MATRICES), ("vector", True))), 160),
        (gx.partition(PARTS, {k: {"w": "matrix", "b": "vector"} for k in LAYERS}), 160),
        (gx.muon(0.1), 250),
    ],
    ids=["adamw", "adamw_mask", "masked", "label_by", "labels", "muon"],
)
def test_a_later_step_calls_few_functions(tx, most):
    assert calls_of_the_second_step(tx) <= most
