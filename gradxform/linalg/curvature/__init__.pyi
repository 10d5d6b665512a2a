# Written by `make tables`; do not edit.
from gradxform.linalg.curvature.diagonals import (
    bartlett_diagonal as bartlett_diagonal,
    hutchinson_diagonal as hutchinson_diagonal,
)
from gradxform.linalg.curvature.fisher import fisher_product as fisher_product
from gradxform.linalg.curvature.likelihoods import likelihood as likelihood
from gradxform.linalg.curvature.products import (
    gauss_newton_product as gauss_newton_product,
    hessian_product as hessian_product,
)
