"""Rows for `gradxform/transforms/step_size.py` and its recipes."""

import gradxform as gx
from tests import references as ref
from tests.catalogue.case import Case

LOSS = {"value": 0.7}

TRANSFORMS: dict[str, Case] = {
    # It begins with steps of some units in the last place of the parameters, and measures them.
    "scale_by_distance_over_gradients": Case(
        gx.scale_by_distance_over_gradients(global_scale=-1.0),
        ref.layerwise_dog(factor=-1.0),
        rtol=1e-2,
        rows=False,
    ),
    "scale_by_distance_over_gradients/fast": Case(
        gx.scale_by_distance_over_gradients(0.1, 0.5, None), ref.layerwise_dog(0.1, 0.5), rows=False
    ),
    "scale_by_polyak": Case(gx.scale_by_polyak(), ref.polyak(0.7), extra=LOSS),
    "scale_by_polyak/eps": Case(
        gx.scale_by_polyak(0.1, 1.0, 20.0), ref.polyak(0.7, 0.1, 1.0, 20.0), extra=LOSS
    ),
    "scale_by_polyak/least": Case(
        gx.scale_by_polyak(0.1, 1e-3), ref.polyak(0.7, 0.1, 1e-3), extra=LOSS
    ),
    "scale_by_polyak/sps+": Case(
        gx.scale_by_polyak(0.9, 1.0, 0.1, "sps+"), ref.polyak(0.7, 0.9, 1.0, 0.1, True), extra=LOSS
    ),
}


OPTIMIZERS: dict[str, Case] = {
    # Its first argument is not a learning rate that could be a schedule.
    "polyak_sgd/value": Case(
        gx.polyak_sgd(scaling=0.5), ref.sequence(ref.scale(-0.5), ref.polyak(0.7)), extra=LOSS
    ),
}


REFUSED = [
    ("scale_by_distance_over_gradients(0.0)",
     ValueError, "scale_by_distance_over_gradients: reps_rel must be greater than 0, got 0.0."),
    ("scale_by_polyak(variant='sps-')",
     ValueError, "scale_by_polyak: variant must be one of 'sps', 'sps+', got 'sps-'."),
    ("one_step(polyak_sgd())",
     TypeError, "scale_by_polyak: needs the extra argument 'value'; call update("),
    ("one_step(polyak_sgd(), value=jnp.ones(3))",
     TypeError, "scale_by_polyak: value must be the loss, a scalar, got an array of shape (3,)."),
    ("one_step(polyak_sgd(), value='0.7')", TypeError, "value must be the loss", "'0.7'."),
]  # fmt: skip
