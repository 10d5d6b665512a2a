"""Rows for `gradxform/wrappers/muonclip.py` and its recipe."""

import jax.numpy as jnp
import numpy as np

import gradxform as gx
from tests import references as ref
from tests.catalogue.case import ADAM, SGD, Case, params
from tests.catalogue.muon import flat

# Names that every tree of the tests has.
LAYERS = {"first": gx.query_key("w", "b", -1)}
LOGITS = {"first": jnp.asarray([3.0, 1.0])}
HEADS = {"w": jnp.ones((3, 4)), "k": jnp.ones((3, 2, 2))}


def logits(query_share):
    """The logits of every entry, in blocks of the last axis, and the power; None for others."""

    def of(p):
        s = np.repeat([3.0, 1.0], 2)
        return {2: (s, query_share), 1: (s, 1 - query_share)}.get(p.ndim)

    return of


def clip(**fields):
    return gx.qk_clip(gx.sgd(0.1), {"a": gx.query_key("w", "k", 1)}, **fields)


def clipped(s, **fields):
    tx = clip(**fields)
    return tx.update(HEADS, tx.init(HEADS), HEADS, **({} if s is None else {"max_logits": s}))


WRAPPERS: dict[str, Case] = {
    "qk_clip": Case(
        gx.qk_clip(gx.sgd(0.1), LAYERS, 2.0, 0.3),
        ref.qk_clip(SGD, logits(0.3), 2.0),
        rows=False,
        extra={"max_logits": LOGITS},
        tree=params(),
        names=("query_key",),
    ),
}


def clipped_muon(direction, others, rms=0.2):
    """MuonClip with a decay of 0.1 and a rate of 0.1, for two heads."""
    return ref.qk_clip(
        ref.sequence(
            ref.only(flat, direction),
            ref.only(flat, ref.shape_factor(rms)),
            ref.only(lambda p: not flat(p), others),
            ref.decay(0.1),
            ref.scale(-0.1),
        ),
        logits(0.5),
        2.0,
    )


OPTIMIZERS: dict[str, Case] = {
    "muonclip/nesterov": Case(
        gx.muonclip(0.1, LAYERS, 2.0),
        clipped_muon(ref.muon(debias=False), ref.adam(0.9, 0.95, 1e-8)),
        rtol=1e-4,
        rows=False,
        extra={"max_logits": LOGITS},
        tree=params(),
        huge_ok=1 / 8,  # with nesterov, the average is 1.5 times the gradient
    ),
    "muonclip/debias": Case(
        gx.muonclip(0.1, LAYERS, 2.0, debias=True),
        clipped_muon(ref.muon(), ref.adam(0.9, 0.95, 1e-8, nesterov=True)),
        rtol=1e-4,
        rows=False,
        extra={"max_logits": LOGITS},
        tree=params(),
        huge_ok=1 / 8,  # with nesterov, the average is 1.5 times the gradient
    ),
    "muonclip/two_heads": Case(
        gx.muonclip(0.1, LAYERS, 2.0, nesterov=False, rms=None, adam_b2=0.999),
        clipped_muon(ref.muon(nesterov=False), ADAM, None),
        rtol=1e-4,
        rows=False,
        extra={"max_logits": LOGITS},
        tree=params(),
        huge_ok=1 / 8,  # with nesterov, the average is 1.5 times the gradient
    ),
}


REFUSED = [
    ("clipped(None)", ValueError,
     "qk_clip: parameter ['w'] and parameter ['k'] need the largest", "none were given. Pass"),
    ("clipped(jnp.ones(2))",
     ValueError, "parameter ['w']", "got ", "Pass update(..., max_logits={'a': array})"),
    ("clipped({})", ValueError,
     "max_logits lacks 'a', the layer of parameter ['w']; it is empty. Pass the largest"),
    ("clipped({'a': 'x'})",
     TypeError, "max_logits['a'], for parameter ['w'], must be an array", "got 'x'."),
    ("clipped({'a': None})",
     TypeError, "max_logits['a'], for parameter ['w'], must be an array", "got None."),
    ("clipped({'b': jnp.ones(2)})",
     ValueError, "max_logits lacks 'a', the layer of parameter ['w']; it has 'b'. Pass the"),
    ("clipped({'a': jnp.ones(2), 'b': jnp.ones(2)})",
     ValueError, "max_logits has 'b', which is not in layers; there are 'a'."),
    ("clipped({'a': jnp.ones(3)})", ValueError,
     "max_logits['a'] has shape (3,), and the axes (1,) of parameter ['w'] have the lengths"),
    ("clipped({'a': jnp.ones((2, 1))})", ValueError,
     "has shape (2, 1), and the axes (1,) of parameter ['w']", "Pass one number for each"),
    ("clipped({'a': jnp.ones(2, jnp.int32)})",
     TypeError, "max_logits['a'], for parameter ['w'], must be floating, got dtype int32."),
    ("qk_clip(sgd(0.1), {'a': query_key('v', 'k', 1)}).init(HEADS)",
     ValueError, "qk_clip: layers has 'v', which is not the path of a parameter."),
    ("clip().init({'w': jnp.ones((3, 8)), 'k': jnp.ones((3, 2))})", ValueError,
     "heads have lengths [8] in parameter ['w'] and [2] in parameter ['k'].", "leave the layer"),
    ("qk_clip(sgd(0.1), {'a': query_key('w', 'k', 2)}).init(HEADS)",
     ValueError, "layers has heads=2 for parameter ['w'], whose shape is (3, 4). Name axes of it."),
    ("qk_clip(sgd(0.1), {'a': ('w', 'k')})", TypeError,
     "qk_clip: layers must be a dict from names of attention layers to query_key(...), got"),
    ("qk_clip(sgd(0.1), {n: query_key('w', n, 1) for n in ('a', 'b')})",
     ValueError, "qk_clip: two entries of layers have the parameter 'w'."),
    ("query_key('w', 'w')", ValueError,
     "query_key: queries and keys are the same parameter, 'w'. Make them two parameters."),
    ("one_step(chain(clip(), scale(2.0)), HEADS)", ValueError,
     "scale changes the updates of qk_clip before it", "put it before qk_clip, or inside."),
]  # fmt: skip
