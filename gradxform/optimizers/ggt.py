"""GGT."""

from gradxform.optimizers.optimizer import optimizer
from gradxform.transforms.ggt import scale_by_ggt
from gradxform.transforms.scaling import scale_by_learning_rate
from gradxform.types import ScalarOrSchedule, Size
from gradxform.wrappers.compose import chain


@optimizer
def ggt(
    learning_rate: ScalarOrSchedule = 1e-3,
    b1: float = 0.9,
    window: Size = 10,
    eps: float = 1e-4,
    svd_eps: float = 1e-6,
    sigma_eps: float = 1e-2,
) -> chain:
    """GGT: the gradient over the root of a full matrix of its last averages, over all parameters.

    See `scale_by_ggt` and `scale_by_learning_rate` for the arguments.

    Reference: Agarwal et al., Efficient Full-Matrix Adaptive Regularization, 2019, Algorithm 1.
    """
    return chain(
        scale_by_ggt(b1, window, eps, svd_eps, sigma_eps), scale_by_learning_rate(learning_rate)
    )
