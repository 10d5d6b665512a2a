"""Products of a vector with Hessians, Gauss-Newton and Fisher matrices, and their diagonals.

No matrix is formed: a product costs about two gradients. `scale_by_newton_cg` solves with them.
"""

from typing import TYPE_CHECKING

from gradxform._names.lazy import public_names as _public_names

if TYPE_CHECKING:
    from gradxform.linalg.curvature.diagonals import *
    from gradxform.linalg.curvature.fisher import *
    from gradxform.linalg.curvature.likelihoods import *
    from gradxform.linalg.curvature.products import *

__all__, __getattr__, __dir__ = _public_names(__name__)
