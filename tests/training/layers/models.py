"""Small models whose losses scan over layers, and both kinds of step for them."""

import jax
import jax.numpy as jnp
import numpy as np

import gradxform as gx
from gradxform.testing.promise import check_close

LAYERS, WIDTH = 3, 8
TOKENS = jnp.asarray([0, 1, 2, 3])


def drawn(i, *shape):
    return jnp.asarray(np.random.default_rng(i).normal(size=shape) * 0.3, jnp.float32)


def params_of(dtype=jnp.float32):
    tree = {
        "embed": drawn(0, 5, WIDTH),
        "encoder": {"w": drawn(1, LAYERS, WIDTH, WIDTH), "b": drawn(4, LAYERS, WIDTH)},
        "decoder": {"w": drawn(2, LAYERS + 1, WIDTH, WIDTH)},
        "scale": jnp.ones(WIDTH),
        "head": drawn(3, WIDTH),
    }
    return jax.tree.map(lambda x: x.astype(dtype), tree)


def block(p, x):
    h = x @ p["w"]
    return x + jnp.tanh(h + p["b"][None] if "b" in p else h)


def loss(params, tokens):
    """Two scans, one after the other."""
    x = gx.scan_layers(block, params["encoder"], params["embed"][tokens])
    x = gx.scan_layers(block, params["decoder"], x * params["scale"][None])
    return jnp.mean((x @ params["head"]) ** 2)


def trained(tx, loss_fn=loss, params=None, batch=(TOKENS,), steps=3, kinds=None, **options):
    """The parameters, the state and the last loss after some steps of these kinds."""
    both = [gx.make_step(tx, loss_fn, update_in_backward=k, **options) for k in (False, True)]
    p = jax.tree.map(jnp.copy, params_of() if params is None else params)
    s, out = jax.jit(tx.init)(p), None
    for kind in kinds or ():
        p, s, out = both[kind](p, s, *batch)
    return p, s, out


def check_alike(tx, loss_fn=loss, rtol=0.0, steps=3, **options):
    """Both kinds of step lead to the same place."""
    ours = trained(tx, loss_fn, kinds=[1] * steps, **options)
    others = trained(tx, loss_fn, kinds=[0] * steps, **options)
    check_equal(ours, others, rtol)


def check_equal(ours, others, rtol=0.0):
    assert jax.tree.structure(ours) == jax.tree.structure(others)
    for (path, x), y in zip(jax.tree.leaves_with_path(ours), jax.tree.leaves(others), strict=True):
        name = jax.tree_util.keystr(path)
        assert (x.shape, x.dtype) == (y.shape, y.dtype), name
        if rtol and jnp.issubdtype(x.dtype, jnp.floating):
            check_close(name, x, y, rtol)
        elif not jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
            np.testing.assert_array_equal(x, y, err_msg=name)
