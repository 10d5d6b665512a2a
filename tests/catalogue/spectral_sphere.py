"""Rows for `gradxform/transforms/spectral_sphere.py` and its recipe."""

import gradxform as gx
from tests import references as ref
from tests.catalogue.case import Case, matrix
from tests.catalogue.normuon import for_matrices, masked

# The bisection has a loop that ends by itself; what it finds is as exact as the matrices.
FEW = {"rtol": 1e-3, "rows": False, "derivatives": None}

TRANSFORMS: dict[str, Case] = {
    "scale_by_spectral_sphere": Case(
        masked(gx.scale_by_spectral_sphere, beta=0.5, power_steps=3, tolerance=1e-5, eps=0.3),
        ref.only(matrix, ref.spectral_sphere(0.5, power_steps=3, tolerance=1e-5, eps=0.3)),
        **FEW,
        huge_ok=1 / 8,  # XLA may add the average and the gradient before it halves them
    ),
    "scale_by_spectral_sphere/coarse": Case(
        masked(gx.scale_by_spectral_sphere, nesterov=False, tolerance=0.3, max_iterations=3),
        ref.only(matrix, ref.spectral_sphere(nesterov=False, tolerance=0.3, most=3)),
        **FEW,
    ),
}


OPTIMIZERS: dict[str, Case] = {
    "spectral_sphere": Case(
        gx.spectral_sphere(0.1, weight_decay=0.3),
        for_matrices(ref.spectral_sphere()),
        **FEW,
    ),
}


REFUSED = [
    ("spectral_sphere(0.1, ns_coeffs='polar')",
     ValueError, "spectral_sphere: ns_coeffs must be numbers", "got 'polar'."),
    ("scale_by_spectral_sphere(power_steps=-1)",
     ValueError, "scale_by_spectral_sphere: power_steps must be at least 0, got -1."),
    ("scale_by_spectral_sphere(max_iterations=-1)",
     ValueError, "scale_by_spectral_sphere: max_iterations must be at least 0, got -1."),
    ("scale_by_spectral_sphere().init(WEIGHTS)",
     ValueError, "parameter ['k'] of shape (2, 3, 2) is not a matrix. Give its weight_dimension"),
]  # fmt: skip
