"""Dion and Dion2."""

from typing import Any

from gradxform.optimizers.muon import beside_adamw, muon_coefficients
from gradxform.optimizers.optimizer import optimizer, with_arguments
from gradxform.transforms.dion import scale_by_dion
from gradxform.transforms.dion2 import scale_by_dion2
from gradxform.transforms.muon import NS_COEFFS
from gradxform.transforms.orthogonal import scale_by_fans
from gradxform.types import Decay, DType, Fixed, Key, ScalarOrSchedule, Size, StaticTree
from gradxform.wrappers.compose import chain
from gradxform.wrappers.select import partition


@optimizer
def dion(
    learning_rate: ScalarOrSchedule,
    rank_fraction: Fixed = 0.25,
    decay: float = 0.95,
    weight_decay: ScalarOrSchedule = 0.01,
    key: Key = 0,
    *,
    adam_b1: Decay = 0.9,
    adam_b2: Decay = 0.95,
    adam_eps: float = 1e-8,
    adam_learning_rate: ScalarOrSchedule | None = None,
    weight_dimension_numbers: StaticTree = None,
    compute_dtype: DType = None,
) -> partition:
    """Dion: orthogonalized momentum of low rank for matrices, AdamW for the rest.

    The updates of matrices are multiplied by sqrt(columns / rows), so that one learning rate fits
    all widths; 0.01 is a good start. Embeddings and output layers are matrices too. To leave them
    to AdamW, put None in their place in `weight_dimension_numbers`.

    Args:
      learning_rate: of the matrices, at least 0, or a schedule.
      weight_decay: of all parameters, at least 0, or a schedule; the learning rate multiplies it.
      adam_eps: added to AdamW's root, at least 0.
      weight_dimension_numbers: as `muon_weight_dimension_numbers` in `muon`: by default, parameters
        of two dimensions are matrices.

    See `scale_by_dion` and `muon` for the other arguments.

    Reference: Ahn et al., Dion: Distributed Orthonormalized Updates, 2025, Algorithm 1.
    """
    direction = with_arguments(scale_by_dion, locals())
    matrices = chain(direction, scale_by_fans(weight_dimension_numbers))
    adam = adam_learning_rate, adam_b1, adam_b2, adam_eps
    return beside_adamw(matrices, weight_dimension_numbers, learning_rate, weight_decay, *adam)


@optimizer
def dion2(
    learning_rate: ScalarOrSchedule,
    fraction: Fixed = 0.25,
    decay: float = 0.95,
    weight_decay: ScalarOrSchedule = 0.01,
    mu_dtype: DType = None,
    *,
    groups: Size = 1,
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
    """Dion2: the largest rows of a momentum, orthogonalized, for matrices, AdamW for the rest.

    The updates of matrices are multiplied by sqrt(columns / rows), so that one learning rate fits
    all widths; 0.01 is a good start. Embeddings and output layers are matrices too. To leave them
    to AdamW, put None in their place in `weight_dimension_numbers`.

    Args:
      learning_rate: of the matrices, at least 0, or a schedule.
      weight_decay: of all parameters, at least 0, or a schedule; the learning rate multiplies it.
      ns_coeffs: three coefficients for all turns of the orthogonalization, three for each turn, or
        the name of a preset, "standard", "dion" or "polar_express".
      adam_eps: added to AdamW's root, at least 0.
      weight_dimension_numbers: as `muon_weight_dimension_numbers` in `muon`: by default, parameters
        of two dimensions are matrices.

    See `scale_by_dion2` and `muon` for the other arguments.

    Reference: Ahn et al., Dion2: A Simple Method to Shrink Matrix in Muon, 2025; `Dion2` of
    https://github.com/microsoft/dion.
    """
    ns_coeffs = muon_coefficients("dion2", ns_coeffs, ns_steps)
    direction = with_arguments(scale_by_dion2, locals())
    matrices = chain(direction, scale_by_fans(weight_dimension_numbers))
    adam = adam_learning_rate, adam_b1, adam_b2, adam_eps
    return beside_adamw(matrices, weight_dimension_numbers, learning_rate, weight_decay, *adam)
