"""Slots of a rule that says it looks at rows, but has not one row for each of the parameter's."""

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
def test_a_slot_without_a_row_for_each_of_the_table_is_refused(shape):
    table = {"table": jnp.ones((4, 3))}
    rows = {"table": gx.RowSparse([1], jnp.ones((1, 3)), 4)}
    tx = one_sum(shape)
    with pytest.raises(ValueError, match=r"tests:one_sum: its slot of shape .* for \['table'\]"):
        tx.update(rows, tx.init(table), table)
    updates, _ = one_sum((4,)).update(rows, one_sum((4,)).init(table), table)
    assert updates["table"].num_rows == 4
