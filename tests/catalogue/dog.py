"""Rows for `gradxform/transforms/dog.py` and its recipes."""

import gradxform as gx
from tests import references as ref
from tests.catalogue.case import Case, with_lr

TRANSFORMS: dict[str, Case] = {
    "scale_by_dog": Case(
        gx.scale_by_dog(("heuristic", 1e-2)), ref.dog(("heuristic", 1e-2), 1e-8), rows=False
    ),
    "scale_by_dog/learning_rate": Case(
        gx.scale_by_dog(("learning_rate", 0.1)), ref.dog(("learning_rate", 0.1), 1e-8), rows=False
    ),
    "scale_by_dog/eps": Case(
        gx.scale_by_dog(("heuristic", 1e-2), 5.0), ref.dog(("heuristic", 1e-2), 5.0), rows=False
    ),
    "scale_by_dowg/first": Case(gx.scale_by_dowg(0.5, 0.3), ref.dowg(0.5, 0.3), rows=False),
    "scale_by_dowg": Case(gx.scale_by_dowg(), ref.dowg(1e-4, 1e-4), rows=False),
}


OPTIMIZERS: dict[str, Case] = {
    "dog": Case(
        gx.dog(init_step=("distance", 0.1), weight_decay=0.1),
        with_lr(1.0, ref.decay(0.1), ref.dog(("distance", 0.1), 1e-8)),
        rows=False,
    ),
    "dowg": Case(gx.dowg(), with_lr(1.0, ref.dowg(1e-4, 1e-4)), rows=False),
}


REFUSED = [
    ("dog(init_step=('distence', 0.1))",
     ValueError, "scale_by_dog: init_step must be a pair of a kind", "Did you mean 'distance'?"),
    ("dog(init_step=('distance', -0.1))",
     ValueError, "scale_by_dog: init_step's number must be greater than 0 and finite, got -0.1."),
    ("dog(init_step=('distance',))", TypeError, "init_step must be a pair of a kind"),
    ("dog(init_step=('distance', None))", TypeError, "init_step must be a pair of"),
    ("dowg(eps=0)", ValueError, "scale_by_dowg: eps must be greater than 0, got 0.0."),
]  # fmt: skip
