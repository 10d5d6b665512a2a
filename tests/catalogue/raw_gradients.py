"""Rows for `gradxform/compat/returnn/raw_gradients.py`."""

import gradxform as gx
from tests import references as ref
from tests.catalogue.case import Case

TRANSFORMS: dict[str, Case] = {
    "add_truncated_noise": Case(gx.add_truncated_noise(0.1, 0), None),
    "clip_by_mean_norm": Case(gx.clip_by_mean_norm(0.05), ref.clip_by_mean_norm(0.05), rows=False),
    "clip_by_raw_norm": Case(gx.clip_by_raw_norm(0.5), ref.clip_by_raw_norm(0.5)),
    "zero_above_raw_norm": Case(gx.zero_above_raw_norm(4.6), ref.zero_above_raw_norm(4.6)),
    "zero_non_finite": Case(gx.zero_non_finite(), ref.zero_non_finite()),
}

WRAPPERS: dict[str, Case] = {
    "raw_gradient_norms": Case(
        gx.raw_gradient_norms(gx.chain(gx.clip(0.1), gx.clip_by_raw_norm(0.5))),
        ref.clipped_by_entry_and_raw_norm(0.1, 0.5),
    ),
    "raw_gradient_norms/tag": Case(
        gx.raw_gradient_norms(gx.clip_by_raw_norm(0.5, "all"), (("all", gx.ndim_at_least(0)),)),
        ref.clip_by_raw_norm(0.5),
    ),
}

REFUSED = [
    ("clip_by_mean_norm(0.0)", ValueError, "clip_by_mean_norm: max_norm must be"),
    ("clip_by_raw_norm(-1.0)", ValueError, "clip_by_raw_norm: max_norm", "-1.0"),
    ("zero_above_raw_norm('1')", TypeError, "zero_above_raw_norm: max_norm", "number"),
    ("add_truncated_noise(-0.1, 0)", ValueError, "deviation must be at least 0"),
    ("one_step(clip_by_raw_norm(1.0, 'encoder'))",
     TypeError, "clip_by_raw_norm: tag='encoder' names a norm of raw_gradient_norms"),
    ("one_step(raw_gradient_norms(clip_by_raw_norm(1.0, 'encoder')))", ValueError,
     "clip_by_raw_norm: raw_gradient_norms around this part has no tags, not 'encoder'."),
    ("raw_gradient_norms(sgd(0.1), ('encoder',))",
     TypeError, "raw_gradient_norms: tags must be pairs of a tag and a mask", "pair 0 is not"),
    ("raw_gradient_norms(sgd(0.1), (('a', path_matches('^encoder')),)).init({'w': jnp.ones(2)})",
     ValueError, "encoder", "raw_gradient_norms"),
    ("raw_gradient_norms(0.1)", TypeError, "raw_gradient_norms", "inner"),
]  # fmt: skip
