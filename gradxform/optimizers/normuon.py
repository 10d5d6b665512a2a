"""NorMuon and AdaMuon."""

from typing import Any

from gradxform.optimizers.muon import beside_adamw, muon_coefficients
from gradxform.optimizers.optimizer import optimizer, with_arguments
from gradxform.transforms.muon import NS_COEFFS
from gradxform.transforms.normuon import scale_by_adamuon, scale_by_normuon
from gradxform.types import Decay, DType, ScalarOrSchedule, Size, StaticTree
from gradxform.wrappers.select import partition


@optimizer
def normuon(
    learning_rate: ScalarOrSchedule,
    beta: float = 0.95,
    beta2: float = 0.95,
    weight_decay: ScalarOrSchedule = 0.0,
    mu_dtype: DType = None,
    *,
    nesterov: bool = False,
    debias: bool = False,
    rms: float | None = 0.2,
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
    """NorMuon: orthogonalized momentum with equal neurons for matrices, AdamW for the rest.

    Embeddings and output layers are matrices too. To leave them to AdamW, put None in their place
    in `weight_dimension_numbers`. The authors' code is `rms=None, nesterov=True`.

    Args:
      learning_rate: of the matrices, at least 0, or a schedule; one for AdamW fits, or with an rms
        of None one for Muon.
      weight_decay: of all parameters, at least 0, or a schedule; the learning rate multiplies it.
      ns_coeffs: three coefficients for all turns of the orthogonalization, three for each turn, or
        the name of a preset, "standard", "dion" or "polar_express".
      adam_eps: added to AdamW's root, at least 0.
      weight_dimension_numbers: as `muon_weight_dimension_numbers` in `muon`: by default, parameters
        of two dimensions are matrices.

    See `scale_by_normuon` and `muon` for the other arguments.

    Reference: Li et al., NorMuon: Making Muon more efficient and scalable, 2025, Algorithm 1.
    """
    ns_coeffs = muon_coefficients("normuon", ns_coeffs, ns_steps)
    matrices = with_arguments(scale_by_normuon, locals())
    adam = adam_learning_rate, adam_b1, adam_b2, adam_eps
    return beside_adamw(matrices, weight_dimension_numbers, learning_rate, weight_decay, *adam)


@optimizer
def adamuon(
    learning_rate: ScalarOrSchedule,
    beta: float = 0.95,
    beta2: float = 0.95,
    weight_decay: ScalarOrSchedule = 0.0,
    mu_dtype: DType = None,
    *,
    signs: bool = True,
    nesterov: bool = False,
    debias: bool = False,
    rms: float = 0.2,
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
    """AdaMuon: orthogonalized signs with a second moment for matrices, AdamW for the rest.

    Embeddings and output layers are matrices too. To leave them to AdamW, put None in their place
    in `weight_dimension_numbers`.

    Args:
      learning_rate: of the matrices, at least 0, or a schedule; one for AdamW fits.
      weight_decay: of all parameters, at least 0, or a schedule; the learning rate multiplies it.
      ns_coeffs: three coefficients for all turns of the orthogonalization, three for each turn, or
        the name of a preset, "standard", "dion" or "polar_express".
      adam_eps: added to AdamW's root, at least 0.
      weight_dimension_numbers: as `muon_weight_dimension_numbers` in `muon`: by default, parameters
        of two dimensions are matrices.

    See `scale_by_adamuon` and `muon` for the other arguments.

    Reference: Si et al., AdaMuon: Adaptive Muon Optimizer, 2025, Algorithm 1.
    """
    ns_coeffs = muon_coefficients("adamuon", ns_coeffs, ns_steps)
    matrices = with_arguments(scale_by_adamuon, locals())
    adam = adam_learning_rate, adam_b1, adam_b2, adam_eps
    return beside_adamw(matrices, weight_dimension_numbers, learning_rate, weight_decay, *adam)
