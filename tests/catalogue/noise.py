"""Rows for `gradxform/transforms/noise.py` and its recipes."""

import gradxform as gx
from tests.catalogue.case import Case
from tests.catalogue.complex_parts import MIXED

TRANSFORMS: dict[str, Case] = {
    "add_noise": Case(gx.add_noise(0.1, 0.55, 0), None),
    "add_noise/complex": Case(gx.add_noise(0.1, 0.55, 0), None, tree=MIXED),
}


OPTIMIZERS: dict[str, Case] = {
    # It needs a key, which the test of schedules does not pass.
    "noisy_sgd/seed": Case(gx.noisy_sgd(0.1, key=0), None),
}

REFUSED = [
    ("add_noise(0.1, 0.55, 2**70)",
     ValueError, "add_noise: key must be a seed of at most 64 bits, such as 0, got 118059"),
    ("add_noise(0.1, 0.55, (0, 2**70))",
     ValueError, "add_noise: key must be a PRNG key of words of 32 bits, got the word 118059"),
    ("noisy_sgd(0.1, seed=2**70)",
     ValueError, "noisy_sgd: seed must be a seed of at most 64 bits, such as 0, got 118059"),
]  # fmt: skip
