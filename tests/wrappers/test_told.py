"""Moves of the parameters between the steps of a part; moves inside wrappers are a promise."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradxform as gx
from gradxform.testing import promises_inside
from gradxform.testing.promise import Broken, Skipped, check_close, settings
from gradxform.wrappers.parts import all_parts, check_movable, keeps_copies
from tests.catalogue import CASES, WRAPPERS

pytestmark = pytest.mark.numeric


def test_nearly_all_wrappers_of_one_transform_are_tried():
    def is_tried(case):
        try:
            promises_inside._around(case)
        except Skipped:
            return False
        return True

    assert sum(map(is_tried, WRAPPERS.values())) > 75


# ------------------------------------------------------------- moves between the steps of a part


def is_told(name):
    """Whether something in a row reacts to moves, none of which undoes them."""
    case = CASES[name]
    if name == "overwriting_average/every":  # takes the steps to an average, of which a move is one
        return False
    if case.foreign or not isinstance(case.tx, gx.Transform) or not keeps_copies(case.tx):
        return False
    try:
        check_movable("moved", case.tx)
    except ValueError:
        return False
    return True


TOLD = [name for name in CASES if is_told(name)]


def shifted(tree):
    return jax.tree.map(lambda p: p + 0.25 * jnp.sign(p) + 0.5, tree)


def updates_of(case, p, move):
    """The updates of six steps; before every second one something moves the parameters."""
    state, made = case.bound.init(p), []
    for t, g in enumerate(case.gradients(p, 6)):
        updates, state = case.compiled(g, state, p)
        made.append(updates)
        p = gx.apply_updates(p, updates)
        if move and not t % 2:
            old, p = p, jax.tree.map(lambda x: x + 0.375, p)
            state = case.tx.moved(state, old, p)
    return made


@pytest.mark.parametrize("name", TOLD)
def test_a_step_goes_on_from_where_something_else_has_moved_the_parameters(name):
    case = CASES[name]
    if any(getattr(part, "copies", ()) for part in all_parts(case.tx)):
        pytest.skip("a part measures how far the parameters are from where they began")
    with settings(case):
        p = case.params()
        made = updates_of(case, p, False)
        try:
            check_close("updates", updates_of(case, shifted(p), False), made, 1e-3)
        except Broken:
            pytest.skip("its steps depend on where the parameters are")
        check_close("updates", updates_of(case, p, True), made, 1e-3, what=" without the moves")


NO_GRADIENTS = {
    "z key": jax.random.key(3),
    "z step": jnp.asarray(3),
    "z flags": np.asarray([True, False]),
    "z number": 7,
    "z none": None,
}


@pytest.mark.parametrize("name", [name for name in TOLD if not CASES[name].names_leaves])
def test_leaves_without_a_gradient_are_holes_in_a_move(name):
    case = CASES[name]
    with settings(case):
        p = case.params()
        (g,) = case.gradients(p, 1)
        _, state = case.bound.update(g, case.bound.init(p), p)
        expected = case.tx.moved(state, p, shifted(p))
        nones = dict.fromkeys(NO_GRADIENTS)
        _, state = case.bound.update(g | nones, case.bound.init(p | NO_GRADIENTS), p | NO_GRADIENTS)
        made = case.tx.moved(state, p | NO_GRADIENTS, shifted(p) | NO_GRADIENTS)
    check_close("moved", jax.tree.leaves(made), jax.tree.leaves(expected), 1e-6)


def test_many_parts_are_told_of_moves():
    assert len(TOLD) > 15, TOLD


def test_what_moves_the_parameters_between_climbs_tells_sam():
    """A pull after a climb of half of it is there after the step that goes back."""
    w, (g, h) = jnp.asarray([1.0, -2.0]), (jnp.asarray([1.0, 0.5]), jnp.asarray([3.0, -1.0]))
    tx = gx.lookahead(gx.sam(gx.sgd(0.1), gx.sgd(0.5)), 1, 0.5)
    updates, state = tx.update(g, tx.init(w), w)
    p = w + updates
    np.testing.assert_allclose(p, w + 0.25 * g, rtol=1e-6)
    updates, state = tx.update(h, state, p)
    fast = w - 0.25 * g - 0.1 * h
    np.testing.assert_allclose(p + updates, (p + fast) / 2, rtol=1e-6)
