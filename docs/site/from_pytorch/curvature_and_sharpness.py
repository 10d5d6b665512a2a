"""Rows of optimizers that use curvature, look at sharpness, or take steps of a fixed norm."""

from typing import Any

import gradxform as gx
from docs.site.from_pytorch.row import Row
from tests.interop.recordings import by_hessian


def _given(updates: Any, state: Any, params: Any = None, *, hessian_diagonal: Any) -> Any:
    """Return a diagonal that is known as the estimate."""
    return hessian_diagonal, state


GIVEN = gx.GradientTransformationExtraArgs(lambda params: gx.EmptyState(), _given)

ROWS = [
    Row(
        "AdaHessian(params, lr)",
        "gx.adahessian(lr, eps=1e-16, hessian_diagonal_fn=given, spatial_averaging=False)",
        1e-12,
        "AdaHessian",
        "the authors average over the windows of kernels and have eps=1e-4, which are the defaults",
        {"given": GIVEN},
        by_hessian,
        shown="`gx.adahessian(lr, eps=1e-16, spatial_averaging=False)`",
    ),
]
