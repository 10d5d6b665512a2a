"""Rows for `gradxform/transforms/adahessian.py` and its recipe."""

import gradxform as gx
from tests import references as ref
from tests.catalogue.case import Case, with_lr
from tests.catalogue.sophia import CURVED

# The curvature does not grow with the gradient that it divides.
FEW = {"extra": CURVED, "rows": False, "holds_optimizer": False, "huge_ok": 1e-4}
AVERAGED = gx.chain(gx.hutchinson_estimator_diag_hessian(), gx.average_spatial_axes(3))


def window_means_of_curvature(p):
    """The diagonal of the loss `curved`, averaged over the windows of kernels."""
    return ref.window_means(3).step(p**2, (), p, 1)[0]


TRANSFORMS: dict[str, Case] = {
    "average_spatial_axes": Case(gx.average_spatial_axes(3), ref.window_means(3), rows=False),
    "scale_by_adahessian": Case(
        gx.scale_by_adahessian(),
        ref.adahessian(0.9, 0.999, 1e-4, 1.0, 1, lambda p: p**2),
        **FEW,
    ),
    "scale_by_adahessian/rarely": Case(
        gx.scale_by_adahessian(0.5, 0.6, 0.1, 0.5, 2, AVERAGED),
        ref.adahessian(0.5, 0.6, 0.1, 0.5, 2, window_means_of_curvature),
        **FEW,
    ),
}


OPTIMIZERS: dict[str, Case] = {
    "adahessian": Case(
        gx.adahessian(0.1, weight_decay=0.1),
        with_lr(0.1, ref.adahessian(0.9, 0.999, 1e-4, 1.0, 1, lambda p: p**2), ref.decay(0.1)),
        extra=CURVED,
        rows=False,
        huge_ok=1e-4,
    ),
}


REFUSED = [
    ("average_spatial_axes(2)",
     ValueError, "average_spatial_axes: min_ndim must be at least 3, got 2."),
    ("one_step(adahessian(0.1))",
     TypeError, "hutchinson_estimator_diag_hessian: needs the extra argument 'obj_fn'"),
    ("adahessian(0.1, hessian_diagonal_fn=None, spatial_averaging=False)",
     TypeError, "scale_by_adahessian: hessian_diagonal_fn must have init and update"),
    ("adahessian(0.1, hessian_power=0.0)",
     ValueError, "scale_by_adahessian: hessian_power must be in (0, 1], got 0.0."),
]  # fmt: skip
