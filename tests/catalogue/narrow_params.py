"""Rows for `gradxform/wrappers/narrow/narrow_params.py`."""

import jax.numpy as jnp

import gradxform as gx
from tests.catalogue.case import ADAM, Case, with_lr

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
    ("REMAINDERS.init(WIDE)", ValueError,
     "master_weights: parameter ['w'] is float32, and remainders complete bfloat16 ones."),
    ("REMAINDERS.init(REST)", ValueError, "parameter ['scale'] is float16", "partition"),
    ("crossed(master_weights(SGD), REMAINDERS)",
     ValueError, "master of ['w'] is float32 of shape (3,); a", "needs uint16 of shape (3,)"),
    ("master_weights(SGD).update(NARROW, master_weights(SGD).init(WIDE), NARROW)",
     ValueError, "master of ['w'] is float32 of shape (1,)", "made for other parameters?"),
    ("crossed(kahan(SGD), stochastic_rounding(SGD, 0))",
     TypeError, "stochastic_rounding", "KahanState"),
    *((f"{tx}.update(NARROW, {tx}.init(NARROW))", ValueError, tx.partition("(")[0], "params")
      for tx in ("master_weights(SGD)", "stochastic_rounding(SGD, 0)", "kahan(SGD)")),
    ("stochastic_rounding(SGD, None)",
     TypeError, "stochastic_rounding: key must be an integer or one PRNG key, got None."),
    ("stochastic_rounding(SGD, 'seed')", TypeError, "stochastic_rounding: key must be", "'seed'"),
    ("master_weights(3)", TypeError, "master_weights: inner", "3"),
    ("chain(kahan(SGD), scale(2.0))", ValueError, "kahan", "scale"),
    ("crossed(adam(0.1), master_weights(adam(0.1)))",
     TypeError, "master_weights", "MasterWeightsState"),
    *((f"one_step({name}(kahan(SGD){more}), NARROW)",
       ValueError, name, "the gradient of ['w'] is bfloat16", "Put it inside: kahan(")
      for name, more in (("apply_if_finite", ", 5"), ("MultiSteps", ", 2"), ("accumulate", ", 2"),
                         ("loss_scale", ""))),
    ("kahan(kahan(optax.sgd))", TypeError, "kahan", "inner"),
]  # fmt: skip
