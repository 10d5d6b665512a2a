"""Linear algebra: decompositions, roots, polar factors, products and norms of matrices.

Rules import these names and the modules. Below is the engine.
"""

from typing import TYPE_CHECKING

from gradxform._names.lazy import public_names as _public_names

if TYPE_CHECKING:
    from gradxform.linalg.decompositions import (
        eigen as eigen,
        one_by_one as one_by_one,
        orthonormal as orthonormal,
        spectral_norm as spectral_norm,
    )
    from gradxform.linalg.polar import (
        GRAM_RATIO as GRAM_RATIO,
        PRECONDITIONINGS as PRECONDITIONINGS,
        grams_needed as grams_needed,
        orthogonalize as orthogonalize,
        sums_of_iterates as sums_of_iterates,
    )
    from gradxform.linalg.powers import (
        inverse_root as inverse_root,
        inverse_root_within as inverse_root_within,
        largest_eigenvalue as largest_eigenvalue,
        rounding as rounding,
        square_root as square_root,
        square_roots as square_roots,
        symmetric_power as symmetric_power,
    )
    from gradxform.linalg.products import (
        HIGHEST as HIGHEST,
        frobenius_norm as frobenius_norm,
        inner_products as inner_products,
        matmul as matmul,
        matmul_in as matmul_in,
        weighted_sum as weighted_sum,
    )
else:
    __all__, __getattr__, __dir__ = _public_names(__name__)
