"""Rows for `gradxform/transforms/scion.py` and its recipe."""

import gradxform as gx
from tests import references as ref
from tests.catalogue.case import Case, matrix
from tests.catalogue.muon import flat
from tests.catalogue.normuon import COARSE
from tests.catalogue.orthogonal import NUMBERS

TRANSFORMS: dict[str, Case] = {
    **{
        f"scale_by_lmo/{norm}": Case(
            gx.masked(gx.scale_by_lmo(norm, NUMBERS), gx.ndim_at_least(2)),
            ref.only(matrix, ref.lmo(norm)),
            rows=False,
        )
        for norm in ("inputs", "outputs", "sign")
    },
    "scale_by_lmo/rms": Case(gx.scale_by_lmo("rms"), ref.lmo("rms"), rows=False),
}


OPTIMIZERS: dict[str, Case] = {
    "scion": Case(
        gx.scion(0.001),
        ref.scion(0.001, lambda p: "spectral" if flat(p) else "rms", {"spectral": 50, "rms": 50}),
        rtol=COARSE,
        rows=False,
    ),
    "scion/kernels": Case(
        gx.scion(
            0.001,
            gx.label_by(
                ("convolution", gx.ndim_at_least(3)),
                ("outputs", gx.ndim_at_least(2)),
                ("rms", True),
            ),
            {"convolution": 20.0},
            weight_dimension_numbers=gx.label_by(
                (gx.MuonDimensionNumbers((0, 1), 2), gx.ndim_at_least(3)), (None, True)
            ),
        ),
        ref.scion(
            0.001,
            lambda p: {3: "convolution", 2: "outputs"}.get(p.ndim, "rms"),
            {"convolution": 20, "outputs": 3000, "rms": 50},
        ),
        rtol=COARSE,
        rows=False,
    ),
    "scion/constrained": Case(
        gx.scion(
            0.1,
            gx.label_by(("outputs", gx.ndim_at_least(2) & ~gx.ndim_at_least(3)), ("rms", True)),
            {"outputs": 5.0, "rms": 2},
            0.5,
            constrained=True,
        ),
        ref.scion(
            0.1,
            lambda p: "outputs" if flat(p) else "rms",
            {"outputs": 5, "rms": 2},
            0.5,
            constrained=True,
        ),
        rows=False,
        huge_ok=1 / 8,  # momentum is up to ten times the gradient
    ),
}


REFUSED = [
    ("scale_by_lmo('signs')",
     ValueError, "scale_by_lmo: norm must be one of", "Did you mean 'sign'?"),
    ("scale_by_lmo('sign').init(WEIGHTS)",
     ValueError, "parameter ['k'] of shape (2, 3, 2) is not a matrix. Give its weight_dimension"),
    ("scion(0.1, radii={'signs': 2.0})",
     ValueError, "scion: radii must be for norms,", "got one for 'signs'. Did you mean 'sign'?"),
    ("scion(0.1, radii={'sign': 0.0})",
     ValueError, "scion: the radius for 'sign' must be a number greater than 0, got 0.0."),
    ("scion(0.1, 'row').init(WEIGHTS)", ValueError,
     "does not have a transform; there are 'convolution', 'inputs', 'outputs', 'rms', 'sign'"),
    ("scion(0.1, radii=0.5)", TypeError,
     "scion: radii must be a dict from norms to radii, such as {'spectral': 50.0}, got 0.5."),
    ("scion(0.1, norms='x')", ValueError,
     "scion: norms: the label 'x' of param_labels does not have a transform; there are"),
]  # fmt: skip
