"""Aurora."""

from typing import Any

from gradxform.optimizers.muon import beside_adamw, muon_coefficients
from gradxform.optimizers.optimizer import optimizer, with_arguments
from gradxform.transforms.aurora import scale_by_aurora
from gradxform.transforms.muon import scale_by_shape
from gradxform.transforms.spectra import SIMPLE_TURN
from gradxform.types import Decay, DType, PositiveShare, ScalarOrSchedule, Size, StaticTree
from gradxform.wrappers.compose import chain
from gradxform.wrappers.select import partition


@optimizer
def aurora(
    learning_rate: ScalarOrSchedule,
    beta: float = 0.95,
    weight_decay: ScalarOrSchedule = 0.025,
    mu_dtype: DType = None,
    *,
    iterations: Size = 2,
    damping: PositiveShare = 0.5,
    nesterov: bool = True,
    ns_coeffs: tuple[Any, ...] | str = SIMPLE_TURN,
    ns_steps: Size = 12,
    eps: float = 1e-7,
    preconditioning: str = "frobenius",
    compute_dtype: DType = None,
    adam_b1: Decay = 0.9,
    adam_b2: Decay = 0.95,
    adam_eps: float = 1e-8,
    adam_learning_rate: ScalarOrSchedule | None = None,
    weight_dimension_numbers: StaticTree = None,
) -> partition:
    """Aurora: Muon whose steps have equally long vectors along the longer side; AdamW for the rest.

    Embeddings and output layers are matrices too. To leave them to AdamW, put None in their place
    in `weight_dimension_numbers`.

    Args:
      learning_rate: of the matrices, at least 0, or a schedule; 0.05 in the source.
      weight_decay: of all parameters, at least 0, or a schedule; the learning rate multiplies it.
      ns_coeffs: as in `muon`.
      adam_eps: added to AdamW's root, at least 0.
      weight_dimension_numbers: as `muon_weight_dimension_numbers` in `muon`: by default, parameters
        of two dimensions are matrices.

    See `scale_by_aurora` and `muon` for the other arguments.

    Reference: Tilde Research, Aurora, github.com/tilde-research/aurora-release, 2026.
    """
    ns_coeffs = muon_coefficients("aurora", ns_coeffs, ns_steps)
    direction = with_arguments(scale_by_aurora, locals())
    matrices = chain(direction, scale_by_shape(weight_dimension_numbers))
    adam = adam_learning_rate, adam_b1, adam_b2, adam_eps
    return beside_adamw(matrices, weight_dimension_numbers, learning_rate, weight_decay, *adam)
