"""Projections onto balls, boxes, simplices and polytopes."""

from typing import TYPE_CHECKING

from gradxform._names.lazy import public_names as _public_names

if TYPE_CHECKING:
    from gradxform.projections.projections import (
        projection_box as projection_box,
        projection_halfspace as projection_halfspace,
        projection_hypercube as projection_hypercube,
        projection_hyperplane as projection_hyperplane,
        projection_l1_ball as projection_l1_ball,
        projection_l1_sphere as projection_l1_sphere,
        projection_l2_ball as projection_l2_ball,
        projection_l2_sphere as projection_l2_sphere,
        projection_linf_ball as projection_linf_ball,
        projection_non_negative as projection_non_negative,
        projection_simplex as projection_simplex,
        projection_vector as projection_vector,
    )
else:
    __all__, __getattr__, __dir__ = _public_names(__name__)
