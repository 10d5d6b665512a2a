"""Rows for `gradxform/transforms/dion.py` and its recipes."""

import gradxform as gx
from tests import references as ref
from tests.catalogue.case import Case, matrix
from tests.catalogue.normuon import COARSE, for_matrices, masked

TRANSFORMS: dict[str, Case] = {
    "scale_by_dion": Case(
        masked(gx.scale_by_dion, rank_fraction=0.5, decay=0.6, key=3),
        ref.only(matrix, ref.dion(0.5, 0.6, 3)),
        rtol=COARSE,
        rows=False,
        derivatives=None,  # a matrix of zeros has no QR decomposition with a derivative
    ),
}


OPTIMIZERS: dict[str, Case] = {
    "dion": Case(
        gx.dion(0.1, weight_decay=0.3),
        for_matrices(ref.dion(), ref.fans()),
        rtol=COARSE,
        rows=False,
    ),
    "dion2": Case(
        gx.dion2(0.1, 0.5, weight_decay=0.3),
        for_matrices(ref.dion2(0.5), ref.fans()),
        rtol=COARSE,
        rows=False,
    ),
}


REFUSED = [
    ("scale_by_dion(0.0)", ValueError, "fraction must be in (0, 1], got 0.0."),
    ("scale_by_dion(1.5)", ValueError, "fraction must be in (0, 1], got 1.5."),
    ("scale_by_dion2(0.0)", ValueError, "fraction must be in (0, 1], got 0.0."),
    ("scale_by_dion2(1.5)", ValueError, "fraction must be in (0, 1], got 1.5."),
    ("inject_hyperparams(scale_by_dion)(0.5).init({'w': jnp.ones((3, 4))})", TypeError,
     "rank_fraction decides shapes, so it must be a Python number", "name it in static_args."),
    ("other_state(scale_by_dion(), (4, 8), made_for=(4, 4))",
     ValueError, "scale_by_dion: the state's mu of ['w'] has shape (1, 4, 4); a gradient of",
     "shape (4, 8) needs (1, 4, 8). Was this state made for other parameters, or"),
    ("scale_by_dion().init(WEIGHTS)",
     ValueError, "parameter ['k'] of shape (2, 3, 2) is not a matrix. Give its weight_dimension"),
    *((f"one_step({rule}(), grads={{'w': jnp.ones((2, 3), {dtype!r})}})",
       TypeError, f"gradient of ['w'] has dtype {dtype}")
      for rule in ("scale_by_dion", "scale_by_dion2") for dtype in ("int32", "complex64")),
]  # fmt: skip
