"""Whatever a wrapper does to the updates in it, what records the parameters there knows of it."""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradxform as gx
from gradxform.base import call_update
from gradxform.leaves import is_hole, with_paths
from gradxform.testing.promise import Broken, check_close, run, settings
from gradxform.values import fields_of
from gradxform.wrappers.parts import check_movable, keeps_copies
from tests.catalogue import CASES, WRAPPERS

pytestmark = pytest.mark.numeric


class CopyState(NamedTuple):
    inner_state: Any
    copy: gx.Slot


@gx.transform(name="tests:copying")
class copying(gx.Transform):
    """Keep a copy of the parameters, add the inner updates to it, and lead to it.

    If it is not told of a move, its next step undoes it.
    """

    inner: Any

    holds = (("inner", "inner_state"),)
    follows = ("copy",)

    @property
    def locality(self):
        """That of the inner transform."""
        return self.inner.locality

    def init(self, params):
        """Return the copy."""
        return CopyState(self.inner.init(params), jax.tree.map(jnp.copy, params))

    def update(self, updates, state, params=None, **extra):
        """Return the way to the copy."""
        updates, inner_state = call_update(self.inner, updates, state.inner_state, params, extra)
        copy = jax.tree.map(lambda c, u: c + u.astype(c.dtype), state.copy, updates)
        updates = jax.tree.map(lambda u, c, p: (c - p).astype(u.dtype), updates, copy, params)
        return updates, CopyState(inner_state, copy)


def recording(inner):
    return gx.moving_average(gx.stochastic_weight_average(copying(inner), 0, 2), 0.5)


def recorded(state):
    """The states of the two averages and of the copy, at any depth of a state."""

    def is_it(x):
        return isinstance(getattr(getattr(x, "inner_state", None), "inner_state", None), CopyState)

    ((found),) = (x for x in jax.tree.leaves(state, is_leaf=is_it) if is_it(x))
    return found, found.inner_state, found.inner_state.inner_state


def arrays(tree):
    return {path: np.asarray(x) for path, x in with_paths(tree) if not is_hole(x)}


def beside(slot, params):
    """A slot, and the parameters in its form: some of the leaves, or all in one vector."""
    ours, theirs = arrays(slot), arrays(params)
    if not set(ours) <= set(theirs):
        theirs = {path: np.concatenate([np.ravel(x) for x in theirs.values()]) for path in ours}
    return ours, {path: theirs[path] for path in ours}


# What does not wrap an optimizer, or does not give it the parameters or their gradients.
OTHERS = {
    "scale_by_galore": "projections take the place of the gradients",
    "offload_state": "averages cannot lie in another memory",
    "only_rows": "dense gradients pass beside it",
    "split_real_and_imaginary/complex": "its parts have other paths",
}


def around(name):
    """The row with the recorders around what it holds; None if it does not hold one transform."""
    case = WRAPPERS[name]
    if case.foreign or name in OTHERS or name.split("/")[0] in OTHERS:
        return None
    held = {k: x for k, x in fields_of(case.tx).items() if isinstance(x, gx.Transform)}
    if len(held) != 1:
        return None
    try:
        changed = {k: recording(x) for k, x in held.items()}
        return dataclasses.replace(case, tx=dataclasses.replace(case.tx, **changed))
    except ValueError:  # averages are refused in it
        return None


ROWS = {name: case for name in WRAPPERS if (case := around(name)) is not None}


def test_nearly_all_wrappers_of_one_transform_are_tried():
    assert len(ROWS) > 45, list(ROWS)


@pytest.mark.parametrize("name", ROWS)
def test_averages_and_copies_in_a_wrapper_go_where_the_parameters_go(name):
    case, plain = ROWS[name], WRAPPERS[name]
    with settings(case):
        p = case.params()
        state, (end, *_) = case.bound.init(p), run(plain.bound, p, case.gradients(p, 5))
        for g in case.gradients(p, 5):
            average, mean, _ = recorded(state)
            updates, state = case.compiled(g, state, p)
            old, p = p, gx.apply_updates(p, updates)
            new_average, new_mean, copied = recorded(state)
            copy, places = beside(copied.copy, p)
            for path, x in copy.items():
                np.testing.assert_allclose(x, places[path], rtol=1e-5, atol=1e-5)
            before, after = int(average.num_updates), int(new_average.num_updates)
            for one, new, share in (
                (average, new_average, 0.5 if after else 0.0),
                (mean, new_mean, 0.0 if after % 2 else 1 / (after // 2 + 1) if after else 0.0),
            ):
                first, ends = beside(one.average, p)
                _, starts = beside(one.average, old)
                for path, x in beside(new.average, p)[0].items():
                    # Without a step inside, what moves the parameters moves the end of the last.
                    start = first[path] if before < after else starts[path]
                    expected = first[path] + share * (ends[path] - start)
                    np.testing.assert_allclose(x, expected, rtol=1e-5, atol=1e-5)
    check_close("params", p, end, 1e-5, what=" without what records them")


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
    with settings(case):
        p = case.params()
        made = updates_of(case, p, False)
        try:
            check_close("updates", updates_of(case, shifted(p), False), made, 1e-3)
        except Broken:
            pytest.skip("its steps depend on where the parameters are")
        check_close("updates", updates_of(case, p, True), made, 1e-3, what=" without the moves")


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
