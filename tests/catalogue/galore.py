"""Rows for `gradxform/wrappers/low_rank/galore.py` and its recipes."""

import gradxform as gx
from tests import references as ref
from tests.catalogue.case import ADAM, SGD, Case, with_lr

WRAPPERS: dict[str, Case] = {
    # Without a base that remembers, the signs of singular vectors do not matter.
    "scale_by_galore": Case(
        gx.scale_by_galore(2, 3, 0.5, gx.scale(-0.1)),
        ref.galore(2, 3, 0.5, SGD),
        holds_optimizer=False,  # projections take the place of the gradients
        rows=False,
        derivatives=None,  # nor have singular vectors of equal singular values
        huge_ok=1 / 8,  # its scale is above 1
    ),
    "scale_by_galore/shorter": Case(
        gx.scale_by_galore(2, 3, 0.5, gx.scale(-0.1), shorter_side=True),
        ref.galore(2, 3, 0.5, SGD, longer=False),
        holds_optimizer=False,
        rows=False,
        derivatives=None,
        huge_ok=1 / 8,
    ),
    # The array of three dimensions is a stack of matrices.
    "scale_by_galore/stacks": Case(
        gx.scale_by_galore(1, 3, 0.5, gx.scale(-0.1), gx.GaLoreDimensionNumbers(-2, -1)),
        ref.galore(1, 3, 0.5, SGD, (-2, -1)),
        holds_optimizer=False,
        rows=False,
        derivatives=None,
        huge_ok=1 / 8,
    ),
}


OPTIMIZERS: dict[str, Case] = {
    "galore": Case(
        gx.galore(0.1, 2, weight_decay=0.2),
        with_lr(0.1, ref.galore(2, 200, 1.0, ADAM), ref.decay(0.2)),
        rows=False,
        derivatives=None,
        huge_ok=1 / 8,  # its scale is above 1
    ),
    "galore/paper": Case(
        gx.galore(
            0.1, 1, weight_dimension_numbers=gx.GaLoreDimensionNumbers(0, -1), shorter_side=True
        ),
        with_lr(0.1, ref.galore(1, 200, 1.0, ADAM, (0, -1), longer=False)),
        rows=False,
        derivatives=None,
        huge_ok=1 / 8,  # its scale is above 1
    ),
    "galore/stacks": Case(
        gx.galore(0.1, 1, weight_dimension_numbers=gx.GaLoreDimensionNumbers(0, -1)),
        with_lr(0.1, ref.galore(1, 200, 1.0, ADAM, (0, -1))),
        rows=False,
        derivatives=None,
        huge_ok=1 / 8,  # its scale is above 1
    ),
    "galore/narrow": Case(
        gx.galore(0.1, 2, mu_dtype="bfloat16"),
        None,
        rows=False,
        derivatives=None,
        huge_ok=1 / 8,  # its scale is above 1
    ),
}


REFUSED = [
    ("galore(0.1, 0)", ValueError, "scale_by_galore: rank must be at least 1, got 0."),
    ("galore(0.1, base_optimizer=adam)", TypeError, "not a transform; call it"),
    ("galore(0.1, weight_dimension_numbers=GaLoreDimensionNumbers(1, 2)).init(WEIGHTS)",
     ValueError, "names an axis that parameter ['w'] of shape (3, 4) does not have."),
    ("one_step(galore(0.1, 2, base_optimizer=lamb(0.1)), WEIGHTS)",
     ValueError, "needs the parameters"),
    ("galore(0.1, base_optimizer=scale_by_adam(), mu_dtype='bfloat16')",
     ValueError, "galore: mu_dtype does nothing with a base_optimizer; give it to that one."),
]  # fmt: skip
