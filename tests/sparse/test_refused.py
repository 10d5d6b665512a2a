"""A rule with locality "row" must have slots with one row per row of the parameter."""

from typing import NamedTuple

import jax.numpy as jnp
import pytest

import gradxform as gx

pytestmark = pytest.mark.numeric


class SumState(NamedTuple):
    total: gx.Slot


@gx.transform(name="tests:one_sum")
class one_sum(gx.ArrayRule):
    """A sum for every column, or of all: no row of it belongs to a row of the parameter."""

    shape: tuple[int, ...] = ()

    locality = "row"

    def init(self, params):
        return SumState({k: jnp.zeros(self.shape) for k in params})

    def rule(self, g, total, p):
        return g, total + jnp.sum(g)


@pytest.mark.parametrize("shape", [(), (3,), (1, 3), (12, 3)], ids=str)
def test_a_slot_without_one_row_per_table_row_is_refused(shape):
    table = {"table": jnp.ones((4, 3))}
    rows = {"table": gx.RowSparse([1], jnp.ones((1, 3)), 4)}
    tx = one_sum(shape)
    with pytest.raises(ValueError, match=r"tests:one_sum: its slot of shape .* for \['table'\]"):
        tx.update(rows, tx.init(table), table)
    updates, _ = one_sum((4,)).update(rows, one_sum((4,)).init(table), table)
    assert updates["table"].num_rows == 4


@gx.transform(name="tests:center_matrix")
class center_matrix(gx.ArrayRule):
    """Subtract the mean of an array, of the leaves in `names` only; it may remember the mean."""

    names: tuple[str, ...] = ("table", "dense")
    remembers: bool = False

    locality = "array"

    def init(self, params):
        if not self.remembers:
            return gx.EmptyState()
        return SumState({k: jnp.zeros_like(p) for k, p in params.items()})

    def active(self, tree):
        return {k: k in self.names for k in tree}

    def rule(self, g, *slots_and_p):
        return (g - jnp.mean(g), *slots_and_p[:-1])


PARAMS = {"table": jnp.ones((4, 3)), "dense": jnp.ones((4, 3))}


def gradient_of_rows(raw=False):
    rows = gx.RowSparse([1], jnp.ones((1, 3)), 4).with_raw(raw)
    return {"table": rows, "dense": jnp.ones((4, 3))}


def test_a_rule_that_looks_at_arrays_takes_rows_where_it_does_not_act():
    tx = center_matrix(("dense",))
    updates, _ = tx.update(gradient_of_rows(), tx.init(PARAMS), PARAMS)
    assert updates["table"].num_rows == 4
    assert not updates["dense"].any()
    for acting in (center_matrix(), center_matrix(("table",))):
        with pytest.raises(TypeError, match=r"center_matrix: looks at whole arrays.*\['table'\]"):
            acting.update(gradient_of_rows(), acting.init(PARAMS), PARAMS)


def test_slices_that_stay_apart_are_all_that_a_rule_without_slots_needs_to_see():
    tx = center_matrix()
    updates, _ = tx.update(gradient_of_rows(raw=True), tx.init(PARAMS), PARAMS)
    assert not updates["table"].values.any()
    remembering = center_matrix(remembers=True)
    with pytest.raises(TypeError, match=r"center_matrix: looks at whole arrays.*\['table'\]"):
        remembering.update(gradient_of_rows(raw=True), remembering.init(PARAMS), PARAMS)
