"""`external_step`: every count inside is replaced by a step from outside."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradxform as gx

pytestmark = pytest.mark.numeric

LINE = gx.linear_schedule(1.0, 0.0, 10)


@pytest.mark.parametrize("step", [4, np.int64(4), jnp.asarray(4, jnp.int32), jnp.uint32(4)])
def test_an_external_step_replaces_the_count_of_every_part_inside(step):
    tx, params = gx.external_step(gx.chain(gx.ema(0.9), gx.scale_by_schedule(LINE))), jnp.ones(2)
    state = tx.init(params)
    updates, after = tx.update(params, state, params, step=step)
    np.testing.assert_allclose(updates, 0.6 * 0.1 / (1 - 0.9**5), rtol=1e-6)
    assert jax.tree.structure(after) == jax.tree.structure(state)
    assert [int(n) for _, n in gx.tree.get_all_with_path(after, "count")] == [5, 5]
    updates, _ = tx.update(params, after, params)  # and goes on from there
    np.testing.assert_allclose(updates, 0.5 * 0.19 / (1 - 0.9**6), rtol=1e-6)


def test_an_external_step_reaches_through_wrappers():
    inner = gx.external_step(gx.scale_by_schedule(LINE))
    params = {"w": jnp.ones(2), "b": jnp.ones(1)}
    for tx in (
        gx.chain(gx.clip(9.0), inner),
        gx.masked(inner, gx.path_matches("w")),
        gx.partition({"a": inner, "z": gx.identity()}, gx.label_by(("a", True))),
        gx.apply_if_finite(inner, 2),
        gx.MultiSteps(inner, 1),
        gx.external_step(gx.named_chain(("here", gx.scale_by_schedule(LINE)))),
    ):
        updates, _ = tx.update(params, tx.init(params), params, step=3)
        np.testing.assert_allclose(updates["w"], 0.7, rtol=1e-6, err_msg=repr(tx))
