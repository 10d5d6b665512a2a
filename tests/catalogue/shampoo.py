"""Rows for `gradxform/transforms/shampoo/shampoo.py` and its recipes."""

import gradxform as gx
from tests import references as ref
from tests.catalogue.case import FALLING, Case, falling

TRANSFORMS: dict[str, Case] = {
    "step_by_shampoo/options": Case(
        gx.step_by_shampoo(FALLING, 3, 0.9, 0.5, 0.8, 0.5, 2, 2, 1e-2, 0.7),
        ref.shampoo(lambda T: falling(T - 1), 3, 0.9, 0.5, 0.8, 0.5, 2, 2, 1e-2, 0.7),
        rtol=1e-4,
    ),
}


OPTIMIZERS: dict[str, Case] = {
    "shampoo": Case(gx.shampoo(0.1), ref.shampoo(0.1), rtol=1e-4),
}


REFUSED = [
    ("shampoo(-1.0)", ValueError, "step_by_shampoo: learning_rate must be at least 0"),
    ("shampoo(alpha=0.0)", ValueError, "alpha must be greater than 0, got 0.0."),
    ("shampoo(svd_interval=0)", ValueError, "svd_interval must be at least 1, got 0."),
    ("shampoo(alpha=FALLING, use_iterative_root=True)",
     ValueError, "alpha must be a Python number where use_iterative_root is True, got linear_s"),
    ("shampoo(alpha=1.0, use_iterative_root=True).init(WEIGHTS)",
     ValueError,
     "step_by_shampoo: use_iterative_root needs k / (2 alpha) to be an integer, parameter ['k'] "
     "has k = 3 dimensions, alpha is 1.0."),
    ("shampoo().init(COMPLEX)", TypeError, "parameter ['w'] has dtype complex64, for which"),
]  # fmt: skip
