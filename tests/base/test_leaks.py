"""A trace leaves no traced array behind, whatever a transform is inside of."""

import jax
import jax.numpy as jnp
import pytest

import gradxform as gx

PARAMS = {"w": jnp.ones((4, 3)), "b": jnp.ones(3)}
GRADS = jax.tree.map(lambda p: 0.5 * p, PARAMS)
ACCUMULATED = gx.MultiSteps(gx.adam(0.1), 2)


def loss(params):
    return jnp.sum((params["w"] @ params["b"] - 1) ** 2)


def update_of(tx):
    def update(g, state, p):  # a new function, whose trace nobody knows
        return tx.update(g, state, p)

    return lambda: jax.make_jaxpr(update)(GRADS, tx.init(PARAMS), PARAMS)


def derivative_of(tx):
    def total(g, p):
        return sum(map(jnp.sum, jax.tree.leaves(tx.update(g, tx.init(p), p)[0])))

    return lambda: jax.make_jaxpr(jax.grad(total, argnums=(0, 1)))(GRADS, PARAMS)


def step_of(tx):
    return lambda: jax.make_jaxpr(gx.make_step(tx, loss))(PARAMS, tx.init(PARAMS))


@pytest.mark.parametrize(
    "trace",
    [
        update_of(ACCUMULATED),
        derivative_of(ACCUMULATED),
        update_of(gx.apply_if_finite(gx.inject_hyperparams(gx.adamw)(0.1), 3)),
        update_of(gx.inject_hyperparams(gx.distributed_shampoo)(0.1, block_size=8)),
        step_of(ACCUMULATED),
        step_of(gx.lbfgs()),
        step_of(gx.chain(gx.sgd(1.0), gx.scale_by_backtracking_linesearch(5))),
    ],
    ids=["update", "derivative", "guard", "shampoo", "step", "zoom", "backtracking"],
)
def test_a_trace_leaks_nothing(trace):
    with jax.checking_leaks():
        trace()
