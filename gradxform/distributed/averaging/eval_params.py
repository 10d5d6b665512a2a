"""The parameters to evaluate and to keep, where each replica has its own."""

from gradxform.wrappers.eval_params import eval_params

__all__ = [
    "eval_params",
]
