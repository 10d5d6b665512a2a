"""Losses and transforms that cannot be updated layer by layer are refused, with a remedy."""

import jax
import jax.numpy as jnp
import optax
import pytest

import gradxform as gx
import gradxform.distributed as gd
from tests.training.layers.models import TOKENS, block, loss, params_of, trained

ADAMW = gx.adamw(1e-2)


def x_of(params):
    return params["embed"][TOKENS]


def tied(params, tokens):
    x = gx.scan_layers(block, params["encoder"], x_of(params))
    return jnp.mean(gx.scan_layers(block, params["encoder"], x))


def computed(params, tokens):
    twice = jax.tree.map(lambda p: 2 * p, params["encoder"])
    return jnp.mean(gx.scan_layers(block, twice, x_of(params)))


def scanned(params):
    return gx.scan_layers(block, params["encoder"], x_of(params))


def in_scan(params, tokens):
    return jnp.mean(
        jax.lax.scan(lambda x, _: (scanned(params) + x, None), x_of(params), length=2)[0]
    )


LOSSES = {
    "none": (lambda params, tokens: jnp.sum(params["head"] ** 2), "does not call it"),
    "used twice": (
        lambda params, tokens: loss(params, tokens) + jnp.sum(params["encoder"]["w"] ** 2),
        r"encoder.*w.*and again in .*test_refused_layers.py",
    ),
    "behind a barrier": (
        lambda params, tokens: (
            loss(params, tokens) + jnp.sum(jax.lax.optimization_barrier(params["encoder"]["w"]))
        ),
        "and again in optimization_barrier",
    ),
    "in a function": (
        lambda params, tokens: loss(params, tokens) + jax.jit(optax.tree.norm)(params),
        "and again in",
    ),
    "returned": (
        lambda params, tokens: (loss(params, tokens), params["encoder"]["b"]),
        "and again in what it returns",
    ),
    "tied": (tied, "a parameter of two scans"),
    "computed": (computed, "needs the parameters themselves"),
    "condition": (
        lambda params, tokens: jnp.mean(
            jax.lax.cond(tokens[0] > 0, lambda: scanned(params), lambda: x_of(params))
        ),
        "a condition, a loop or jax.vmap",
    ),
    "loop": (in_scan, "a condition, a loop or jax.vmap"),
    "vmap": (
        lambda params, tokens: jnp.mean(
            jax.vmap(lambda x: gx.scan_layers(block, params["encoder"], x[None]))(x_of(params))
        ),
        "a condition, a loop or jax.vmap",
    ),
    "jit": (lambda params, tokens: jnp.mean(jax.jit(scanned)(params)), "jax.jit"),
    "another scan": (
        lambda params, tokens: jnp.mean(
            gx.scan_layers(
                lambda p, x: gx.scan_layers(block, params["decoder"], x) @ p["w"],
                params["encoder"],
                x_of(params),
            )
        ),
        "two scans|another scan_layers",
    ),
}


@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_is_refused(name):
    loss_fn, message = LOSSES[name]
    with pytest.raises(ValueError, match=message):
        trained(ADAMW, loss_fn, kinds=[1], has_aux=name == "returned")


TRANSFORMS = {
    "MultiSteps": (gx.MultiSteps(ADAMW, 2), "MultiSteps keeps the gradients"),
    "accumulate": (gx.accumulate(ADAMW, 2), "keeps the gradients"),
    "sam": (gx.sam(gx.sgd(0.1), gx.sgd(0.05)), "sam asks for gradients"),
    "line search": (
        gx.chain(gx.sgd(1.0), gx.scale_by_backtracking_linesearch(5)),
        "scale_by_backtracking_linesearch asks",
    ),
    "optax": (optax.adamw(1e-2), "does not say how far it looks"),
    "function": (gx.stateless(lambda g, p: g), "does not say how far it looks"),
    "lamb": (gx.lamb(1e-2), r"looks at whole arrays.*gradxform.stacked\(tx, 'decoder'\)"),
    "muon": (gx.muon(1e-2), "looks at whole arrays"),
    "squares": (
        gx.quantize_state(ADAMW, 4, code="rank1", min_size=0),
        r"several rows share.*gradxform.stacked\(tx,",
    ),
    "flatten": (gx.flatten(gx.sgd(0.1)), "flatten looks at all parameters"),
}


@pytest.mark.parametrize("name", TRANSFORMS)
def test_a_transform_is_refused(name):
    tx, message = TRANSFORMS[name]
    with pytest.raises(ValueError, match=message):
        trained(tx, kinds=[1])


def test_what_divides_arrays_is_refused():
    tx = gd.zero1(ADAMW, "r")
    step = gx.make_step(tx, loss, update_in_backward=True)

    def of_replica(params):
        return step(params, tx.init(params), TOKENS)

    params = jax.tree.map(lambda x: x[None], params_of())
    with pytest.raises(ValueError, match="zero1 divides whole arrays"):
        jax.vmap(of_replica, axis_name="r")(params)


BLOCKS = {
    "shape": (lambda p, x: x[:1], r"block must return x as it gets it, float32\(4, 8\)"),
    "dtype": (lambda p, x: x.astype(jnp.bfloat16), "bfloat16"),
    "structure": (lambda p, x: {"x": x}, "block must return x, or a pair"),
}


@pytest.mark.parametrize("name", BLOCKS)
def test_a_block_is_refused(name):
    function, message = BLOCKS[name]
    with pytest.raises(TypeError, match=message):
        gx.scan_layers(function, params_of()["encoder"], jnp.ones((4, 8)))


def test_layers_are_refused():
    w = jnp.ones((3, 8, 8))
    for layers, message in {
        "lengths": ({"w": w, "b": jnp.ones((4, 8))}, "has 3 layers.*has 4"),
        "scalar": ({"w": w, "b": jnp.ones(())}, "it is a scalar"),
        "none": ({}, "at least one parameter"),
        "no layer": ({"w": w[:0]}, "w of layers has no layer"),
    }.values():
        with pytest.raises(ValueError, match=message):
            gx.scan_layers(block, layers, jnp.ones((4, 8)))
    with pytest.raises(ValueError, match="of xs must have an entry for each of the 3 layers"):
        gx.scan_layers(lambda p, x, s: x, {"w": w}, jnp.ones(8), jnp.ones(4))
    with pytest.raises(ValueError, match="unroll must be an integer of at least 1"):
        gx.scan_layers(block, {"w": w}, jnp.ones(8), unroll=0)
    with pytest.raises(TypeError, match="policy must be a policy such as"):
        gx.scan_layers(block, {"w": w}, jnp.ones(8), policy="dots_saveable")
    with pytest.raises(TypeError, match="update_in_backward must be True or False, got 'layers'"):
        gx.make_step(ADAMW, loss, update_in_backward="layers")
    with pytest.raises(TypeError, match="block must be a function"):
        gx.scan_layers(None, {"w": w}, jnp.ones(8))


@pytest.mark.parametrize("kind", [True, False])
def test_what_was_donated_is_named(kind):
    step, params = gx.make_step(ADAMW, loss, update_in_backward=kind), params_of()
    new, state, _ = step(params, ADAMW.init(params), TOKENS)
    with pytest.raises(ValueError, match=r"decoder.*was donated to an earlier step.*it returned"):
        step(params, state, TOKENS)
    with pytest.raises(ValueError, match=r"params.*embed.*was donated"):
        step({**new, "embed": params["embed"]}, ADAMW.init(new), TOKENS)


def test_sparse_gradients_are_refused():
    with pytest.raises(ValueError, match="has dense gradients; leave sparse out"):
        gx.make_step(ADAMW, loss, sparse=["embed"], update_in_backward=True)
