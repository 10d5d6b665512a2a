"""A small regression in float64, with its curvature as dense matrices."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

_RNG = np.random.default_rng(0)
WEIGHTS = {"w": _RNG.normal(size=(4, 3)), "b": _RNG.normal(size=3), "v": _RNG.normal(size=(3, 2))}
BATCH = {"inputs": _RNG.normal(size=(16, 4)), "labels": _RNG.normal(size=(16, 2))}


def params():
    """The parameters; in float64 within `jax.enable_x64`."""
    return jax.tree.map(jnp.asarray, WEIGHTS)


def batch():
    return jax.tree.map(jnp.asarray, BATCH)


def model(params, inputs):
    return jnp.tanh(inputs @ params["w"] + params["b"][None]) @ params["v"]


def squared_error(outputs, labels):
    return jnp.mean((outputs - labels) ** 2) / 2


def loss(params, inputs, labels):
    return squared_error(model(params, inputs), labels)


def dense_of(product, tree):
    """The matrix whose products a function of trees returns."""
    vector, unravel = ravel_pytree(tree)
    basis = jnp.eye(vector.size, dtype=vector.dtype)
    return np.stack([np.asarray(ravel_pytree(product(unravel(e)))[0]) for e in basis])


def hessian_of(function, tree):
    """The Hessian of a function of a tree."""
    vector, unravel = ravel_pytree(tree)
    return np.asarray(jax.hessian(lambda v: function(unravel(v)))(vector))


def jacobian_of(function, tree):
    """The derivative of a function of a tree, whose value is flattened."""
    vector, unravel = ravel_pytree(tree)
    return np.asarray(jax.jacobian(lambda v: function(unravel(v)).ravel())(vector))


def flat(tree):
    return np.asarray(ravel_pytree(tree)[0])
