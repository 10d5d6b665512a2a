"""Descent on spectral spheres."""

from typing import Any

from gradxform.optimizers.muon import beside_adamw, muon_coefficients
from gradxform.optimizers.optimizer import optimizer, with_arguments
from gradxform.transforms.spectral_sphere import scale_by_spectral_sphere
from gradxform.types import Decay, DType, NonNegative, ScalarOrSchedule, Size, StaticTree
from gradxform.wrappers.select import partition


@optimizer
def spectral_sphere(
    learning_rate: ScalarOrSchedule,
    beta: float = 0.9,
    weight_decay: ScalarOrSchedule = 0.01,
    mu_dtype: DType = None,
    *,
    nesterov: bool = True,
    power_steps: Size = 10,
    tolerance: NonNegative = 1e-8,
    max_iterations: Size = 100,
    ns_coeffs: tuple[Any, ...] | str = "polar_express",
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
    """Spectral sphere: Muon whose steps keep spectral norms, for matrices; AdamW for the rest.

    Embeddings and output layers are matrices too. To leave them to AdamW, put None in their place
    in `weight_dimension_numbers`.

    Args:
      learning_rate: of the matrices, at least 0, or a schedule.
      weight_decay: of all parameters, at least 0, or a schedule; the learning rate multiplies it.
      ns_coeffs: three coefficients for all turns of the orthogonalization, three for each turn, or
        the name of a preset, "standard", "dion" or "polar_express".
      adam_eps: added to AdamW's root, at least 0.
      weight_dimension_numbers: as `muon_weight_dimension_numbers` in `muon`: by default, parameters
        of two dimensions are matrices.

    See `scale_by_spectral_sphere` and `muon` for the other arguments.

    Reference: Xie et al., Controlled LLM Training on Spectral Sphere, 2026, without its retraction.
    """
    ns_coeffs = muon_coefficients("spectral_sphere", ns_coeffs, ns_steps)
    matrices = with_arguments(scale_by_spectral_sphere, locals())
    adam = adam_learning_rate, adam_b1, adam_b2, adam_eps
    return beside_adamw(matrices, weight_dimension_numbers, learning_rate, weight_decay, *adam)
