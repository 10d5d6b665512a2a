"""Gradient descent with normalized gradients."""

from gradxform.errors import must_be
from gradxform.optimizers.optimizer import optimizer
from gradxform.transforms.normalization import normalize_by_block_norm, normalize_by_update_norm
from gradxform.transforms.scaling import scale_by_learning_rate
from gradxform.types import ScalarOrSchedule
from gradxform.wrappers.compose import chain


@optimizer
def normalized_sgd(
    learning_rate: ScalarOrSchedule,
    norm_of: str = "array",
    min_norm: float = 1e-6,
) -> chain:
    """Normalized SGD: steps of a given length, u = -lr g / |g|.

    Args:
      learning_rate: the length of the step, at least 0, or a schedule.
      norm_of: "array" for the norm of each array by itself, "tree" for the norm of all together.

    See `normalize_by_block_norm` for the other arguments.

    Reference: Hazan et al., Beyond Convexity: Stochastic Quasi-Convex Optimization, 2015,
    Algorithm 1.
    """
    rules = {
        "array": normalize_by_block_norm(min_norm=min_norm),
        "tree": normalize_by_update_norm(eps=min_norm),
    }
    if norm_of not in rules:
        raise ValueError(must_be("normalized_sgd", "norm_of", "one of 'array', 'tree'", norm_of))
    return chain(rules[norm_of], scale_by_learning_rate(learning_rate))
