"""Rows for `gradxform/wrappers/narrow/narrow_params.py`."""

import jax.numpy as jnp
import optax

import gradxform as gx
from tests.catalogue.case import ADAM, Case, one_step, with_lr

# Parameters in float32 pass as they are.
WRAPPERS: dict[str, Case] = {
    "master_weights": Case(gx.master_weights(gx.adam(0.1)), with_lr(0.1, ADAM)),
    "stochastic_rounding": Case(gx.stochastic_rounding(gx.adam(0.1), 0), with_lr(0.1, ADAM)),
    "kahan": Case(gx.kahan(gx.adam(0.1)), with_lr(0.1, ADAM)),
}

SGD = gx.sgd(0.1)
WIDE, NARROW = {"w": jnp.ones(3)}, {"w": jnp.ones(3, jnp.bfloat16)}
REST = {"w": jnp.ones(3, jnp.bfloat16), "scale": jnp.ones(3, jnp.float16)}
REMAINDERS = gx.master_weights(SGD, remainders=True)


def crossed(made, used, params=NARROW):
    """An update with the state of another transform."""
    return used.update(params, made.init(params), params)


REFUSED = [
    (
        lambda: REMAINDERS.init(WIDE),
        ValueError,
        ("master_weights: parameter ['w'] is float32, and remainders complete bfloat16 ones.",),
    ),
    (lambda: REMAINDERS.init(REST), ValueError, ("parameter ['scale'] is float16", "partition")),
    (
        lambda: crossed(gx.master_weights(SGD), REMAINDERS),
        ValueError,
        ("master of ['w'] is float32 of shape (3,); a", "needs uint16 of shape (3,)"),
    ),
    (
        lambda: gx.master_weights(SGD).update(NARROW, gx.master_weights(SGD).init(WIDE), NARROW),
        ValueError,
        ("master of ['w'] is float32 of shape (1,)", "made for other parameters?"),
    ),
    (
        lambda: crossed(gx.kahan(SGD), gx.stochastic_rounding(SGD, 0)),
        TypeError,
        ("stochastic_rounding", "KahanState"),
    ),
    *(
        (
            lambda tx=tx: tx.update(NARROW, tx.init(NARROW)),
            ValueError,
            (type(tx).__name__, "params"),
        )
        for tx in (gx.master_weights(SGD), gx.stochastic_rounding(SGD, 0), gx.kahan(SGD))
    ),
    (
        lambda: gx.stochastic_rounding(SGD, None),
        TypeError,
        ("stochastic_rounding: key must be an integer or one PRNG key, got None.",),
    ),
    (
        lambda: gx.stochastic_rounding(SGD, "seed"),
        TypeError,
        ("stochastic_rounding: key must be", "'seed'"),
    ),
    (lambda: gx.master_weights(3), TypeError, ("master_weights: inner", "3")),
    (
        lambda: gx.chain(gx.kahan(SGD), gx.scale(2.0)),
        ValueError,
        ("kahan", "scale"),
    ),
    (
        lambda: crossed(gx.adam(0.1), gx.master_weights(gx.adam(0.1))),
        TypeError,
        ("master_weights", "MasterWeightsState"),
    ),
    *(
        (
            lambda tx=tx: one_step(tx, NARROW),
            ValueError,
            (type(tx).__name__, "the gradient of ['w'] is bfloat16", "Put it inside: kahan("),
        )
        for tx in (
            gx.apply_if_finite(gx.kahan(SGD), 5),
            gx.MultiSteps(gx.kahan(SGD), 2),
            gx.accumulate(gx.kahan(SGD), 2),
            gx.loss_scale(gx.kahan(SGD)),
        )
    ),
    (
        lambda: gx.kahan(gx.kahan(optax.sgd)),
        TypeError,
        ("kahan", "inner"),
    ),
]
