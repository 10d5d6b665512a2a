"""Rows for `gradxform/transforms/lbfgs/zoom.py`."""

import gradxform as gx
from tests import references as ref
from tests.catalogue.case import Case
from tests.catalogue.line_search import BOWL, bowl_reference, bowl_slope_reference


def zoom(*args, **kwargs):
    return ref.zoom(bowl_reference, bowl_slope_reference, *args, **kwargs)


TRANSFORMS: dict[str, Case] = {
    "scale_by_zoom_linesearch": Case(gx.scale_by_zoom_linesearch(8), zoom(8), **BOWL),
    "scale_by_zoom_linesearch/one, bounded": Case(
        gx.scale_by_zoom_linesearch(9, 0.3, initial_guess_strategy="one"),
        zoom(9, 0.3, keep=False),
        **BOWL,
    ),
    "scale_by_zoom_linesearch/steep": Case(
        gx.scale_by_zoom_linesearch(9, None, 0.0, 3.0, 0.4, 0.3, None),
        zoom(9, up=3.0, c1=0.4, c2=0.3, near=None),
        **BOWL,
    ),
    "scale_by_zoom_linesearch/tolerant": Case(
        gx.scale_by_zoom_linesearch(9, tol=5.0, curv_rtol=1e-2), zoom(9, tol=5.0, c2=1e-2), **BOWL
    ),
    "scale_by_zoom_linesearch/approximate": Case(
        gx.scale_by_zoom_linesearch(9, slope_rtol=0.4, curv_rtol=0.5, approx_dec_rtol=10.0),
        zoom(9, c1=0.4, c2=0.5, near=10.0),
        **BOWL,
    ),
    "scale_by_zoom_linesearch/coarse": Case(
        gx.scale_by_zoom_linesearch(9, curv_rtol=1e-3, stepsize_precision=0.3),
        zoom(9, c2=1e-3, precision=0.3),
        **BOWL,
    ),
}

REFUSED = [
    ("scale_by_zoom_linesearch(0)",
     ValueError, "scale_by_zoom_linesearch: max_linesearch_steps must be at least 1, got 0."),
    ("scale_by_zoom_linesearch(5, increase_factor=1.0)",
     ValueError, "increase_factor must be greater than 1, got 1.0."),
    ("scale_by_zoom_linesearch(5, initial_guess_strategy='last')",
     ValueError, "initial_guess_strategy", "'one'", "'keep'", "got 'last'"),
    ("one_step(scale_by_zoom_linesearch(5))",
     TypeError, "scale_by_zoom_linesearch: needs the extra argument 'value'"),
]  # fmt: skip
