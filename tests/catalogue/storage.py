"""Rows for `gradxform/wrappers/stored/storage.py`."""

import jax.numpy as jnp
import numpy as np

import gradxform as gx
from tests import references as ref
from tests.catalogue.case import ADAM, Case

RULE = gx.scale_by_adam()
MATRIX = {"w": jnp.ones((256, 256))}
# Without vectors, whose blocks hold several rows of a row-sparse gradient.
TREE = {"w": np.ones((3, 4), np.float32), "k": np.ones((2, 3, 2), np.float32)}


def quantized(**fields):
    return gx.quantize_state(RULE, min_size=0, **fields)


WRAPPERS: dict[str, Case] = {
    "quantize_state": Case(
        quantized(), ref.in_blocks(ADAM, (True, False)), names=("NonNegativeSlot",), tree=TREE
    ),
    "quantize_state/blocks": Case(
        quantized(block=2, which=("nu", "mu")),
        ref.in_blocks(ADAM, (True, False), 2),
        rtol=1e-4,
        tree=TREE,
    ),
    "quantize_state/4bits": Case(
        quantized(bits=4, block=4),
        ref.in_blocks(ADAM, (True, False), 4, mantissa=1, bits=4),
        tree=TREE,
    ),
    "quantize_state/rank1": Case(
        quantized(bits=4, block=2, code="rank1"), ref.in_squares(ADAM, (True, False), 2), rows=None
    ),
    "quantize_state/dynamic": Case(quantized(code="dynamic"), tree=TREE),
    "quantize_state/e4m3": Case(quantized(code="e4m3"), tree=TREE),
    "state_dtype": Case(gx.state_dtype(RULE), ref.in_bfloat16(ADAM)),
    "state_dtype/stochastic": Case(gx.state_dtype(RULE, stochastic=True, key=0)),
}

REFUSED = [
    ("quantize_state(RULE, 3)", ValueError, "bits must be 8 or 4, got 3."),
    ("quantize_state(RULE, True)", TypeError, "bits must be an integer, got True."),
    ("quantize_state(RULE, block=0)",
     ValueError, "quantize_state: block must be at least 2, got 0."),
    ("quantize_state(RULE, block=200)",
     ValueError, "block must be a power of two, got 200. Take 128 or 256."),
    ("quantize_state(RULE, code='flaot')", ValueError,
     "code must be one of 'float', 'dynamic', 'e4m3', 'e5m2', got 'flaot'. Did you mean"),
    ("quantize_state(RULE, 4, code='e4m3')",
     ValueError, "code must be one of 'float', 'dynamic', 'rank1', got 'e4m3'."),
    ("quantize_state(RULE, min_size=-1)", ValueError, "min_size must be at least 0"),
    ("quantize_state(RULE, which='nuu').init(MATRIX)", ValueError,
     "which names 'nuu', which is not a slot of scale_by_adam; there are mu, nu. Did you"),
    ("quantize_state(RULE, which=3)",
     TypeError, "quantize_state: the entries of which must be True or False, got 3."),
    ("quantize_state(RULE, which=path_matches('v')).init(MATRIX)",
     ValueError, "quantize_state: ", "'v'"),
    ("quantize_state(MultiSteps(RULE, 3)).init(MATRIX)", TypeError,
     "quantize_state: MultiSteps computes with the slot", "of ['w'] itself, so it cannot be"),
    ("quantize_state(stateless(lambda u, p: u))", TypeError,
     "quantize_state: inner holds ", "which keeps its state itself. Use the transform of"),
    ("quantize_state('adam')",
     TypeError, "quantize_state: inner must have init and update", "got 'adam'."),
    ("quantize_state(RULE, 8, code='rank1')",
     ValueError, "code must be one of 'float', 'dynamic', 'e4m3', 'e5m2', got 'rank1'."),
    ("state_dtype(RULE, 'int8')",
     ValueError, "state_dtype: dtype must be a floating dtype, got 'int8'."),
    ("state_dtype(RULE, stochastic=True)",
     ValueError, "stochastic and key go together, got stochastic=True and key=None. Pass key=0."),
    ("state_dtype(RULE, key=1)",
     ValueError, "got stochastic=False and key=1. Pass stochastic=True, or no key."),
    ("state_dtype(RULE, 'float16', stochastic=True, key=1)",
     ValueError, "stochastic=True rounds to bfloat16, got dtype float16."),
    ("state_dtype(RULE, stochastic=True, key='x')",
     TypeError, "state_dtype: key must be an integer or one PRNG key, got 'x'."),
    ("one_step(quantize_state(RULE, 4, code='rank1', min_size=0, which='mu'), MATRIX, "
     "{'w': gx.sparse.RowSparse(jnp.asarray([0]), jnp.ones((1, 256)), 256)})",
     TypeError,
     "scale_by_adam: its slot for ['w'] is stored by rank1, with scales that several rows"),
]  # fmt: skip
