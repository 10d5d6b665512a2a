"""States that begin anew inside of what stores them in another form."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradxform as gx

pytestmark = pytest.mark.numeric

PARAMS = {"w": jnp.linspace(0.1, 1.0, 64 * 128, dtype=jnp.float32).reshape(64, 128)}
INNER = {
    "reset": gx.reset_state(gx.scale_by_adam(), 3),
    "reset slots": gx.reset_state(gx.scale_by_adam(), 3, counts=False),
    "lookahead": gx.lookahead(gx.adam(0.1), 2, 0.5, reset_state=True),
    "sam": gx.sam(gx.sgd(0.1), gx.sgd(0.1, momentum=0.9)),
    "opaque sam": gx.sam(gx.sgd(0.1), gx.sgd(0.1, momentum=0.9), opaque_mode=True),
}
STORED = {
    "bfloat16": gx.state_dtype,
    "chance": lambda tx: gx.state_dtype(tx, stochastic=True, key=0),
    "8 bits": lambda tx: gx.quantize_state(tx, min_size=64),
    "4 bits": lambda tx: gx.quantize_state(tx, 4, min_size=64),
    "factors": lambda tx: gx.factor_state(tx, min_dim_size_to_factor=8),
    "host": lambda tx: gx.offload_state(tx, min_size=64),
    "momentum on host": lambda tx: gx.offload_state(tx, min_size=64, which="trace"),
}
# The slot of slow weights, and that of the start, belong to wrappers, which compute with them.
ON_DEVICE = {"lookahead": ("factors", "host"), "sam": ("factors", "host")}
CASES = [
    (name, how)
    for name in INNER
    for how in STORED
    if how not in ON_DEVICE.get(name.split()[-1], ())
    and ("sam" in name or how != "momentum on host")
]


def form_of(state):
    leaves, structure = jax.tree.flatten(state)
    return structure, [*map(jax.typeof, leaves)]


def steps(tx, name):
    """Return the first state and what four steps give."""
    extra = {"grad_fn": lambda p, i: p} if name == "opaque sam" else {}
    update = jax.jit(lambda state: tx.update(PARAMS, state, PARAMS, **extra))
    outs = [(None, jax.jit(tx.init)(PARAMS))]
    for _ in range(4):
        outs.append(update(outs[-1][1]))
    return outs


@functools.cache
def plain_steps(name):
    return steps(INNER[name], name)


@pytest.mark.parametrize("name, how", CASES)
def test_a_state_begins_anew_in_the_form_in_which_it_is_kept(name, how):
    (_, first), *got = steps(STORED[how](INNER[name]), name)
    for (u, state), (v, _) in zip(got, plain_steps(name)[1:], strict=True):
        assert form_of(state) == form_of(first)
        # All gradients are equal, and positive: forms of few bits err by little.
        np.testing.assert_allclose(u["w"], v["w"], rtol=0.3 if how == "4 bits" else 0.1)


@pytest.mark.parametrize("name", INNER)
def test_a_loop_carries_narrow_slots_that_begin_anew(name):
    tx = gx.state_dtype(INNER[name], jnp.float16)
    extra = {"grad_fn": lambda p, i: p} if name == "opaque sam" else {}

    def step(state, _):
        return tx.update(PARAMS, state, PARAMS, **extra)[::-1]

    state, _ = jax.eval_shape(lambda s: jax.lax.scan(step, s, None, 4), tx.init(PARAMS))
    assert {x.dtype for x in jax.tree.leaves(state)} >= {jnp.dtype("float16")}
