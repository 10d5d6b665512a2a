"""Muown."""

from typing import Any

from gradxform.optimizers.matrices import with_adamw
from gradxform.optimizers.muon import muon_coefficients
from gradxform.optimizers.optimizer import optimizer, with_arguments
from gradxform.transforms.muon import NS_COEFFS
from gradxform.transforms.muown import step_by_muown
from gradxform.types import Decay, DType, ScalarOrSchedule, Size, StaticTree
from gradxform.wrappers.select import partition


@optimizer
def muown(
    learning_rate: ScalarOrSchedule,
    beta: float = 0.95,
    weight_decay: ScalarOrSchedule = 0.0,
    *,
    b1: float = 0.9,
    b2: float = 0.95,
    nesterov: bool = False,
    consistent_rms: float | None = 0.2,
    ns_coeffs: tuple[Any, ...] | str = NS_COEFFS["standard"],
    ns_steps: Size = 5,
    eps: float = 1e-8,
    preconditioning: str = "frobenius",
    compute_dtype: DType = None,
    adam_b1: Decay = 0.9,
    adam_b2: Decay = 0.95,
    adam_eps: float = 1e-8,
    adam_learning_rate: ScalarOrSchedule | None = None,
    weight_dimension_numbers: StaticTree = None,
) -> partition:
    """Muown: Muon for directions of neurons and Adam for their norms; AdamW for other parameters.

    Embeddings and output layers are matrices too. To leave them to AdamW, put None in their place
    in `weight_dimension_numbers`.

    Args:
      learning_rate: of the matrices, at least 0, or a schedule; one for AdamW fits.
      weight_decay: of norms and other parameters, at least 0, or a schedule; the learning rate
        multiplies it.
      ns_coeffs: three coefficients for all turns of the orthogonalization, three for each turn, or
        the name of a preset, "standard", "dion" or "polar_express".
      adam_eps: added to the roots of Adam and AdamW, at least 0.
      weight_dimension_numbers: as `muon_weight_dimension_numbers` in `muon`: by default, parameters
        of two dimensions are matrices.

    See `step_by_muown` and `muon` for the other arguments.

    Reference: Lion et al., Muown: Row-Norm Control for Muon Optimization, 2026.
    """
    ns_coeffs = muon_coefficients("muown", ns_coeffs, ns_steps)
    matrices = with_arguments(step_by_muown, locals())
    adam = adam_learning_rate, adam_b1, adam_b2, adam_eps
    numbers = weight_dimension_numbers
    return with_adamw("muon", matrices, numbers, learning_rate, *adam, weight_decay=weight_decay)
