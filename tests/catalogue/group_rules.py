"""Refusals of `param_groups/rules.py` and `frozen.py`, whose parts are compositions."""

import jax
import jax.numpy as jnp


def _model(width, layers=2):
    shapes = {"embed": (9, width), "head": (width, 9)}
    shapes |= {f"layer_{i}": (width, width) for i in range(layers)}
    return {k: jax.ShapeDtypeStruct(shape, jnp.float32) for k, shape in shapes.items()}


TOWERS = {k: {f"layer_{i}": jnp.ones(2) for i in range(2)} for k in ("encoder", "decoder")}

REFUSED = [
    ("mup(_model(4), _model(8), 'lion')", ValueError, "mup: optimizer", "'lion'"),
    ("mup(_model(4, 1), _model(8))", ValueError, "mup: base_params has no parameter ['layer_1']"),
    ("mup(_model(8), _model(4))", ValueError, "mup: ['embed'] shrinks from (9, 8)"),
    ("mup({'w': jnp.ones((0, 2))}, {'w': jnp.ones((3, 2))})",
     ValueError, "mup: ['w'] is empty in base_params, with shape (0, 2)"),
    ("mup({'w': jnp.ones((2, 2, 2))}, {'w': jnp.ones((3, 3, 3))})",
     ValueError, "mup: ['w'] grows in 3 dimensions"),
    ("mup({'w': jnp.ones(2)}, {'w': jnp.ones((2, 2))})",
     ValueError, "mup: ['w'] has 1 dimensions in base_params and 2 in params"),
    ("mup(_model(4), _model(8), inputs=path_matches('bias$'))",
     ValueError, "mup: path_matches('bias$') matches none of the parameters"),
    ("mup(_model(4), _model(8), inputs='bias$')",
     TypeError, "mup: inputs must be a mask such as path_matches", "got 'bias$'"),
    ("layerwise_decay(_model(4), 1.5)",
     ValueError, "layerwise_decay: decay must be in (0, 1], got 1.5."),
    *((f"layerwise_decay(_model(4), 0.5, head={head!r})",
       TypeError, f"layerwise_decay: head must be True, False or None, got {head!r}.")
      for head in (1, "embed", [True])),
    (r"layerwise_decay(_model(4), 0.5, r'block_(\d+)')",
     ValueError, "layerwise_decay: layers", "matches none of the parameters", "'layer_0'"),
    (r"layerwise_decay(_model(4), 0.5, r'layer_\d+')",
     ValueError, "layerwise_decay: layers must have one group"),
    ("layerwise_decay(_model(4), 0.5, r'(layer)_')",
     ValueError, "layerwise_decay: the group of layers must match a number", "'layer'"),
    ("layerwise_decay(_model(4), 0.5, r'layer_(')",
     ValueError, "layerwise_decay: layers must be a regular expression"),
    ("layerwise_decay(_model(4), 0.5, embeddings='tokens')",
     ValueError, "layerwise_decay: embeddings, 'tokens', matches none"),
    ("layerwise_decay(TOWERS, 0.5)",
     ValueError,
     "layerwise_decay: ['decoder']['layer_0'] and ['encoder']['layer_0'] are numbered in",
     "stacks="),
    ("layerwise_decay(TOWERS, 0.5, stacks=['encoder'])",
     ValueError, "layerwise_decay: the layer of ['decoder']['layer_0'] must be in one", "in none."),
    ("layerwise_decay(TOWERS, 0.5, stacks=('coder', 'decoder'))", ValueError,
     "layerwise_decay: the layer of ['decoder']['layer_0']", "in 'coder' and 'decoder'."),
    ("layerwise_decay(TOWERS, 0.5, stacks=('coder', 'tower'))", ValueError,
     "layerwise_decay: stacks, 'tower', matches none of the parameters 'decoder/layer_0'"),
    ("layerwise_decay(TOWERS, 0.5, stacks=('coder',))",
     ValueError, "are numbered in different places"),
    ("layerwise_decay(TOWERS, 0.5, stacks='encoder')",
     TypeError, "layerwise_decay: stacks must be a tuple of regular expressions", "got 'encoder'"),
    ("selective_transform(sgd(0.1), freeze_mask=3)",
     TypeError, "selective_transform: freeze_mask must be a mask", "got 3"),
    ("freeze(3)", TypeError, "masked: ", "mask"),
]  # fmt: skip
