"""Integers and keys among the parameters of replicas: they stay, and change nothing."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradxform as gx
import gradxform.distributed as gd
from gradxform.types import MaskedNode
from tests.distributed.modes import replicas, step_of
from tests.distributed.replicas.test_replicas import RULES, N, local_grads, start

pytestmark = [pytest.mark.numeric, pytest.mark.usefixtures("eight_devices")]

OTHERS = {"steps": jnp.array([3, 4]), "on": jnp.array(True), "key": jax.random.key(0)}
TRANSFORMS = {
    **{name: tx for name, (tx, _) in RULES.items()},
    "tower": gd.tower(gx.adam(0.1), "replica"),
    "zero1": gd.zero1(gx.adam(0.1), "replica"),
    "average_state": gd.model_average(gx.adam(0.1), "replica", period=2, average_state=True),
}
GRADIENTS = {
    "none": lambda x: None,
    "masked": lambda x: MaskedNode(),
    "float0": lambda x: np.zeros(jnp.shape(x), jax.dtypes.float0),
}


def run(tx, form, others, no_gradient=None):
    r, step = replicas("vmap", N), step_of(tx, form)
    params = r.replicate({"w": jnp.asarray(start(), jnp.float32), **others})
    state = r.wrap(tx.init)(params)

    def step_with_all(params, state, w):
        return step(params, state, {"w": w} | {k: no_gradient(x) for k, x in others.items()})

    for g in local_grads(6):
        params, state = r.wrap(step_with_all)(params, state, np.asarray(g, np.float32))
    return params, state


@pytest.mark.parametrize("form", ["step", "update"])
@pytest.mark.parametrize("name", list(TRANSFORMS))
def test_what_has_no_gradient_stays_and_changes_nothing(name, form):
    alone, _ = run(TRANSFORMS[name], form, {})
    kinds = GRADIENTS if name in ("diloco", "zero1") else {"none": GRADIENTS["none"]}
    for kind, no_gradient in kinds.items():
        params, _ = run(TRANSFORMS[name], form, OTHERS, no_gradient)
        np.testing.assert_array_equal(params["w"], alone["w"], err_msg=kind)
        for k, x in OTHERS.items():
            assert jnp.all(params[k] == jnp.broadcast_to(x, params[k].shape)), (kind, k)
