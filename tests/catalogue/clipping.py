"""Rows for `gradxform/transforms/clipping.py`."""

import gradxform as gx
from tests import references as ref
from tests.catalogue.case import Case


def everything(g):
    """All axes."""
    return tuple(range(g.ndim))


def conv_axes(g):
    """The axes that make one unit of `adaptive_grad_clip`, for the shapes here."""
    return everything(g) if g.ndim < 2 else (0,)


TRANSFORMS: dict[str, Case] = {
    "clip": Case(gx.clip(0.5), ref.clip(0.5)),
    "clip_by_block_rms": Case(gx.clip_by_block_rms(0.5), ref.clip_by_block_rms(0.5), rows=False),
    "clip_by_global_norm": Case(gx.clip_by_global_norm(1.0), ref.clip_by_global_norm(1.0)),
    "clip_by_previous_global_norm": Case(
        gx.clip_by_previous_global_norm(1.0), ref.clip_by_previous_global_norm(1.0)
    ),
    "clip_by_global_norm/eps": Case(
        gx.clip_by_global_norm(1.0, eps=0.5), ref.clip_by_global_norm(1.0, 0.5)
    ),
    "clip_by_global_norm/inside": Case(
        gx.clip_by_global_norm(100.0), ref.clip_by_global_norm(100.0)
    ),
    "adaptive_grad_clip": Case(
        gx.adaptive_grad_clip(0.1), ref.adaptive_grad_clip(0.1, 1e-3, conv_axes), rows=False
    ),
    "adaptive_grad_clip/axis": Case(
        gx.adaptive_grad_clip(0.1, 0.5, ()),
        ref.adaptive_grad_clip(0.1, 0.5, lambda g: ()),
        rows=False,
    ),
    "clip_by_block_norm": Case(gx.clip_by_block_norm(0.5), ref.clip_by_block_norm(0.5), rows=False),
}


REFUSED = [
    ("clip_by_global_norm(1.0, eps=-1e-6)",
     ValueError, "clip_by_global_norm: eps must be at least 0, got -1e-06."),
]  # fmt: skip
