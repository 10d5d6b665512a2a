"""Rows for `gradxform/wrappers/offload.py`."""

import jax.numpy as jnp

import gradxform as gx
from tests import references as ref
from tests.catalogue.case import ADAM, Case
from tests.catalogue.storage import TREE, quantized

RULE = gx.scale_by_adam()
MATRIX = {"w": jnp.ones((256, 256))}

WRAPPERS: dict[str, Case] = {
    "offload_state": Case(
        gx.offload_state(RULE, min_size=0),
        ADAM,
        holds_optimizer=False,  # averages cannot lie in another memory
        derivatives=None,  # JAX has no tangents in the memory of the host
    ),
    "offload_state/blocks": Case(
        gx.offload_state(quantized(), min_size=0),
        ref.in_blocks(ADAM, (True, False)),
        holds_optimizer=False,
        tree=TREE,
    ),
}

REFUSED = [
    ("offload_state(RULE, 'device')",
     ValueError, "offload_state: memory_kind must be one of 'pinned_host', got 'device'."),
    ("offload_state(RULE, 'pined_host')", ValueError,
     "offload_state: memory_kind must be one of 'pinned_host', got 'pined_host'. Did you"),
    ("offload_state(RULE, min_size=-1)", ValueError, "min_size must be at least 0"),
    ("offload_state(RULE, which='nuu').init(MATRIX)", ValueError,
     "offload_state: which names 'nuu', which is not a slot of scale_by_adam; there are"),
    ("offload_state(MultiSteps(sgd(0.1), 2), which='acc_grads').init(MATRIX)", TypeError,
     "MultiSteps computes with the slot acc_grads of ['w'] itself, so it cannot be stored"),
    ("offload_state(prodigy(1.0)).init(MATRIX)",
     TypeError, "offload_state: step_by_prodigy looks at the whole tree, so the slot"),
    ("offload_state(stateless(lambda u, p: u))", TypeError,
     "offload_state: inner holds ", "which keeps its state itself. Use the transform of"),
]  # fmt: skip
