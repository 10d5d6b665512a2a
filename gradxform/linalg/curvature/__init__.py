"""Products of a vector with Hessians, Gauss-Newton and Fisher matrices, and their diagonals.

No matrix is formed: a product costs about two gradients. `scale_by_newton_cg` solves with them.
"""

from gradxform._names.lazy import public_names as _public_names

__all__, __getattr__, __dir__ = _public_names(__name__)
