"""AdaGO."""

from typing import Any

from gradxform.optimizers.matrices import with_adamw
from gradxform.optimizers.muon import muon_coefficients
from gradxform.optimizers.optimizer import optimizer, with_arguments
from gradxform.transforms.adago import scale_by_adago, scale_by_shaped_adago
from gradxform.transforms.muon import NS_COEFFS
from gradxform.transforms.scaling import scale
from gradxform.types import Decay, DType, ScalarOrSchedule, Size, StaticTree
from gradxform.wrappers.compose import chain
from gradxform.wrappers.select import partition


@optimizer
def adago(
    learning_rate: ScalarOrSchedule = 0.05,
    beta: float = 0.95,
    max_norm: float = 10.0,
    min_step: float = 5e-4,
    initial_accumulator_value: float = 1e-6,
    mu_dtype: DType = None,
    *,
    nesterov: bool = False,
    root: bool = True,
    by_shape: bool = False,
    consistent_rms: float | None = None,
    ns_coeffs: tuple[Any, ...] | str = NS_COEFFS["standard"],
    ns_steps: Size = 5,
    eps: float = 1e-8,
    preconditioning: str = "frobenius",
    compute_dtype: DType = None,
    adam_b1: Decay = 0.9,
    adam_b2: Decay = 0.95,
    adam_eps: float = 1e-10,
    adam_learning_rate: ScalarOrSchedule | None = 3e-4,
    weight_dimension_numbers: StaticTree = None,
) -> partition:
    """AdaGO: orthogonalized momentum with AdaGrad's step sizes for matrices, Adam for the rest.

    With `nesterov`, `by_shape`, `consistent_rms` or `root=False` it is the AdaGO of
    pytorch_optimizer. Weights do not decay. Embeddings and output layers are matrices too. To leave
    them to Adam, put None in their place in `weight_dimension_numbers`.

    Args:
      learning_rate: of the matrices, at least 0, or a schedule; no step is less than `min_step`.
      ns_coeffs: three coefficients for all turns of the orthogonalization, three for each turn, or
        the name of a preset, "standard", "dion" or "polar_express".
      adam_b1: the decay of Adam's first moment, in [0, 1).
      adam_b2: the decay of Adam's second moment, in [0, 1).
      adam_eps: added to Adam's root, at least 0.
      adam_learning_rate: Adam's learning rate, at least 0, or a schedule; None for that of the
        matrices.
      weight_dimension_numbers: as `muon_weight_dimension_numbers` in `muon`: by default, parameters
        of two dimensions are matrices.

    See `scale_by_adago` and `scale_by_shaped_adago` for the other arguments.

    Reference: Zhang et al., AdaGrad Meets Muon: Adaptive Stepsizes for Orthogonal Updates, 2025,
    Algorithm 1.
    """
    ns_coeffs = muon_coefficients("adago", ns_coeffs, ns_steps)
    is_papers = root and not (nesterov or by_shape or consistent_rms is not None)
    rule = with_arguments(scale_by_adago if is_papers else scale_by_shaped_adago, locals())
    matrices = chain(rule, scale(-1.0))
    adam = adam_learning_rate, adam_b1, adam_b2, adam_eps
    numbers = weight_dimension_numbers
    return with_adamw("adago", matrices, numbers, learning_rate, *adam, weight_decay=0.0)
