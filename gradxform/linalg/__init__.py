"""Linear algebra: solves, roots, polar factors, products and norms of matrices.

Rules import these names and the modules. Below is the engine.
"""

from typing import TYPE_CHECKING

from gradxform._names.lazy import public_names as _public_names

if TYPE_CHECKING:
    from gradxform.linalg.solves import (
        GRAM_RATIO as GRAM_RATIO,
        HIGHEST as HIGHEST,
        PRECONDITIONINGS as PRECONDITIONINGS,
        eigen as eigen,
        frobenius_norm as frobenius_norm,
        grams_needed as grams_needed,
        inverse_root as inverse_root,
        inverse_root_within as inverse_root_within,
        largest_eigenvalue as largest_eigenvalue,
        matmul as matmul,
        matmul_in as matmul_in,
        one_by_one as one_by_one,
        orthogonalize as orthogonalize,
        orthonormal as orthonormal,
        rounding as rounding,
        square_root as square_root,
        symmetric_power as symmetric_power,
    )
else:
    __all__, __getattr__, __dir__ = _public_names(__name__)
