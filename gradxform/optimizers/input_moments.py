"""Newton-Muon."""

from typing import Any

from gradxform.optimizers.muon import beside_adamw, muon_coefficients
from gradxform.optimizers.optimizer import optimizer, with_arguments
from gradxform.transforms.input_moments import precondition_by_inputs
from gradxform.transforms.muon import NS_COEFFS, scale_by_muon, scale_by_shape
from gradxform.types import Decay, DType, ScalarOrSchedule, Size, StaticTree
from gradxform.wrappers.compose import chain
from gradxform.wrappers.select import partition


@optimizer
def newton_muon(
    learning_rate: ScalarOrSchedule,
    beta: float = 0.95,
    weight_decay: ScalarOrSchedule = 0.0,
    mu_dtype: DType = None,
    *,
    moment_decay: Decay = 0.95,
    update_interval: int = 64,
    ridge: float = 0.2,
    nesterov: bool = True,
    debias: bool = False,
    consistent_rms: float | None = None,
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
    """Newton-Muon: Muon on gradients that know the inputs of layers; AdamW for other parameters.

    Every update needs `input_moments=`, as `precondition_by_inputs` says. Embeddings and output
    layers are matrices too. To leave them to AdamW, put None in their place in
    `weight_dimension_numbers`.

    Args:
      learning_rate: of the matrices, at least 0, or a schedule; one for Muon fits.
      weight_decay: of all parameters, at least 0, or a schedule; the learning rate multiplies it.
      moment_decay: the decay of the average of the moments at each renewal, in [0, 1).
      ns_coeffs: three coefficients for all turns of the orthogonalization, three for each turn, or
        the name of a preset, "standard", "dion" or "polar_express".
      eps: added to the diagonal of the moments, and to the norm of a matrix, at least 0.
      adam_eps: added to AdamW's root, at least 0.
      weight_dimension_numbers: as `muon_weight_dimension_numbers` in `muon`: by default, parameters
        of two dimensions are matrices.

    See `precondition_by_inputs`, `scale_by_muon` and `muon` for the other arguments.

    Reference: Du and Su, The Newton-Muon Optimizer, 2026, Algorithm 1.
    """
    ns_coeffs = muon_coefficients("newton_muon", ns_coeffs, ns_steps)
    direction = chain(
        with_arguments(precondition_by_inputs, locals(), beta=moment_decay),
        with_arguments(scale_by_muon, locals()),
        scale_by_shape(weight_dimension_numbers, consistent_rms),
    )
    adam = adam_learning_rate, adam_b1, adam_b2, adam_eps
    return beside_adamw(direction, weight_dimension_numbers, learning_rate, weight_decay, *adam)
