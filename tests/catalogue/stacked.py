"""Rows for `gradxform/wrappers/stacked.py`."""

import gradxform as gx
from tests import references as ref
from tests.catalogue.case import ADAM, SGD, Case, with_lr

# The leaves of the rows' parameters are b, deep/k, s and w.
K, W = 1, 3
CLIPPED = gx.chain(gx.clip_by_block_rms(0.5), gx.trace(0.9), gx.scale(-0.1))
REF_CLIPPED = ref.sequence(ref.clip_by_block_rms(0.5), ref.trace(0.9), SGD)

WRAPPERS: dict[str, Case] = {
    "stacked": Case(gx.stacked(CLIPPED, "deep"), ref.stacked(REF_CLIPPED, [K]), rows=False),
    "stacked/axis": Case(
        gx.stacked(CLIPPED, gx.path_matches("^w$"), axis=1),
        ref.stacked(REF_CLIPPED, [W], 1),
        holds_optimizer=False,  # the layers of w come first in what it holds
        rows=False,
    ),
    "stacked/norm": Case(
        gx.stacked(gx.chain(gx.clip_by_global_norm(0.5), gx.adam(0.1)), "deep/k"),
        ref.stacked(ref.sequence(ref.clip_by_global_norm(0.5), with_lr(0.1, ADAM)), [K]),
        rows=None,
    ),
    "stacked/mean": Case(
        gx.stacked(gx.adai(0.1), "deep/k"),
        ref.stacked(with_lr(0.1, ref.adai(0.1, 0.99, 1e-3)), [K]),
        huge_ok=1 / 8,
        rows=None,
    ),
}


REFUSED = [
    ("stacked(sgd(0.1), '/')", ValueError, "stacked: where must be the path of a parameter"),
]  # fmt: skip
