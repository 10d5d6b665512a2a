"""Guards and row-sparse gradients: padding holds anything, and a NaN in a row is one."""

import jax.numpy as jnp
import numpy as np
import pytest

import gradxform as gx
import gradxform.distributed as gd
from gradxform.sparse import RowSparse

ROWS, NAN = 5, float("nan")
SGD = gx.sgd(1.0)

# Indices, values, and whether all is finite; the index 5 is padding.
GRADIENTS = {
    "bad padding": ([1, ROWS, 3, ROWS], [1.0, NAN, 2.0, np.inf], True),
    "only padding": ([ROWS] * 4, [NAN] * 4, True),
    "a bad row": ([1, ROWS, 3, ROWS], [1.0, 0.0, NAN, 0.0], False),
    "both": ([1, ROWS, 3, ROWS], [1.0, NAN, np.inf, 0.0], False),
    "the last row": ([ROWS - 1, ROWS, 0, 0], [NAN, 1.0, 2.0, 3.0], False),
    "a row met twice": ([2, 2, ROWS, 0], [1.0, NAN, NAN, 3.0], False),
    "the first row": ([0, 1, 2, 3], [NAN, 1.0, 2.0, 3.0], False),
}


def gradient(name, form):
    ids, values, _ = GRADIENTS[name]
    g = RowSparse(jnp.asarray(ids, jnp.int32), jnp.asarray(values)[:, None], ROWS)
    forms = {"as it is": g, "coalesced": g.coalesce(), "raw": g.with_raw(True)}
    return {"table": forms[form], "w": jnp.ones(2)}


FORMS = pytest.mark.parametrize("form", ["as it is", "coalesced", "raw"])
NAMES = pytest.mark.parametrize("name", list(GRADIENTS))


@FORMS
@NAMES
def test_a_guard_looks_only_at_rows_that_are_not_padding(name, form):
    g, good = gradient(name, form), GRADIENTS[name][2]
    assert bool(gx.all_finite(g)) == good
    skip, said = gx.skip_not_finite(g, 0, None)
    assert bool(skip) != good and (int(said["num_not_finite"]) > 0) != good
    large, _ = gx.skip_large_updates(g, 0, None, 1e6)
    assert bool(large) != good


def test_bad_entries_of_padding_are_not_counted():
    g = gradient("both", "as it is")
    assert int(gx.skip_not_finite(g, 0, None)[1]["num_not_finite"]) == 1


@FORMS
@NAMES
def test_a_guard_passes_a_good_gradient_and_drops_a_bad_one(name, form):
    inner = gx.sparse_semantics(gx.apply_if_finite(SGD, 3), "raw" if form == "raw" else "rows")
    params = {"table": jnp.zeros((ROWS, 1)), "w": jnp.zeros(2)}
    g, good = gradient(name, form), GRADIENTS[name][2]
    updates, _ = inner.update(g, inner.init(params), params)
    new = gx.apply_updates(params, updates)
    ids, values, _ = GRADIENTS[name]
    expected = np.zeros(ROWS + 1)
    if good:
        np.subtract.at(expected, ids, values)
    np.testing.assert_array_equal(new["table"][:, 0], expected[:ROWS])
    np.testing.assert_array_equal(new["w"], -np.ones(2) * good)


@NAMES
def test_padding_reaches_no_row_of_a_gradient_that_is_dropped_or_accumulated(name):
    params = {"table": jnp.zeros((ROWS, 1)), "w": jnp.zeros(2)}
    g, good = gradient(name, "as it is"), GRADIENTS[name][2]
    stale = gd.drop_stale(SGD, 0)
    updates, _ = stale.update(g, stale.init(params), params, grad_step=-1)
    assert not gx.apply_updates(params, updates)["table"].any()
    several = gx.accumulate_rows(gx.apply_if_finite(SGD, 3), 1, rows={"table": 4, "w": 0})
    updates, state = several.update(g, several.init(params), params)
    assert bool(state.inner_opt_state.last_finite) == good
    assert bool(jnp.isfinite(gx.apply_updates(params, updates)["table"]).all())
