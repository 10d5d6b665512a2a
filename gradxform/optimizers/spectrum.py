"""Muon with other singular values: Contra-Muon, Soft-Muon, MuonEq, PolarGrad."""

from typing import Any

from gradxform.optimizers.muon import beside_adamw, muon_coefficients
from gradxform.optimizers.optimizer import optimizer, with_arguments
from gradxform.transforms.kept_norms import floor_update_norm
from gradxform.transforms.muon import NS_COEFFS, scale_by_shape
from gradxform.transforms.spectra import (
    contra_spectrum,
    polynomial_spectrum,
    soft_spectrum,
)
from gradxform.transforms.spectrum import scale_by_neuron_rms, scale_by_spectrum
from gradxform.types import (
    Decay,
    DType,
    NonNegative,
    ScalarOrSchedule,
    Size,
    StaticTree,
    UnitIntervalOrSchedule,
    ZeroIsNone,
)
from gradxform.wrappers.compose import chain
from gradxform.wrappers.select import partition


@optimizer
def contra_muon(
    learning_rate: ScalarOrSchedule,
    contra: ScalarOrSchedule = 0.2,
    beta: float = 0.95,
    beta2: float = 0.95,
    weight_decay: ScalarOrSchedule = 0.0,
    mu_dtype: DType = None,
    *,
    soft: UnitIntervalOrSchedule = 0.0,
    ratio: NonNegative | ZeroIsNone = 0.35,
    eps: float = 1e-7,
    nesterov: bool = True,
    compute_dtype: DType = None,
    adam_b1: Decay = 0.9,
    adam_b2: Decay = 0.95,
    adam_eps: float = 1e-8,
    adam_learning_rate: ScalarOrSchedule | None = None,
    weight_dimension_numbers: StaticTree = None,
) -> partition:
    """Contra-Muon: Muon with shorter steps along large singular values; AdamW for the rest.

    A singular value s becomes 1 - contra s, and the norm stays that of Muon's step. Neurons are
    divided by their root mean square, and steps have a least length relative to the matrix, in the
    place of weight decay. `soft` fades Soft-Muon in: s^0.1. In the record that is the source,
    contra falls from 0.2 to 0 in the first 2000 of 3000 steps, and soft rises to 0.8 in the last
    500.

    Embeddings and output layers are matrices too. To leave them to AdamW, put None in their place
    in `weight_dimension_numbers`.

    Args:
      learning_rate: of the matrices, at least 0, or a schedule; 0.0375 in the source.
      contra: how much shorter the step along the largest singular value is, or a schedule.
      beta2: the decay of the mean squares of neurons, in [0, 1).
      weight_decay: of all parameters, at least 0, or a schedule; the learning rate multiplies it.
      soft: the share of Soft-Muon, in [0, 1], or a schedule.
      ratio: the least norm of a step over that of its matrix, before the learning rate.
      adam_eps: added to AdamW's root, at least 0.
      weight_dimension_numbers: as `muon_weight_dimension_numbers` in `muon`: by default, parameters
        of two dimensions are matrices.

    See `scale_by_spectrum`, `scale_by_neuron_rms`, `floor_update_norm` and `muon` for the other
    arguments.

    Reference: nilin.github.io/contra-muon-and-soft-muon, 2026; modded-nanogpt, optimization track,
    pull requests 274, 275 and 291.
    """
    numbers, faded = weight_dimension_numbers, not isinstance(soft, int | float) or soft != 0
    direction = with_arguments(
        scale_by_spectrum,
        locals(),
        spectrum=contra_spectrum(contra),
        to=soft_spectrum() if faded else None,
        share=soft,
        debias=False,
        preconditioning="schatten",
        keep_norm="schatten",
    )
    matrices = chain(
        direction,
        scale_by_shape(numbers),
        scale_by_neuron_rms(beta2, norm="schatten", weight_dimension_numbers=numbers),
        *([] if ratio == 0 else [floor_update_norm(ratio, numbers)]),
    )
    adam = adam_learning_rate, adam_b1, adam_b2, adam_eps
    return beside_adamw(matrices, numbers, learning_rate, weight_decay, *adam)


@optimizer
def soft_muon(
    learning_rate: ScalarOrSchedule,
    soft: UnitIntervalOrSchedule = 0.8,
    beta: float = 0.95,
    beta2: float = 0.95,
    weight_decay: ScalarOrSchedule = 0.0,
    mu_dtype: DType = None,
    *,
    ratio: NonNegative | ZeroIsNone = 0.35,
    eps: float = 1e-7,
    nesterov: bool = True,
    compute_dtype: DType = None,
    adam_b1: Decay = 0.9,
    adam_b2: Decay = 0.95,
    adam_eps: float = 1e-8,
    adam_learning_rate: ScalarOrSchedule | None = None,
    weight_dimension_numbers: StaticTree = None,
) -> partition:
    """Soft-Muon: Muon with singular values s^0.1 in the place of 1; AdamW for the rest.

    `contra_muon` with contra 0 and a share of Soft-Muon from the start: Muon with a share of
    s^0.1, whose norm is that of Muon's step.

    Args:
      soft: the share of Soft-Muon, in [0, 1], or a schedule; the rest is Muon.

    See `contra_muon` for the other arguments.

    Reference: nilin.github.io/contra-muon-and-soft-muon, 2026; modded-nanogpt, optimization track,
    pull requests 274 and 291.
    """
    return contra_muon(contra=0.0, **locals())


@optimizer
def muon_eq(
    learning_rate: ScalarOrSchedule,
    beta: float = 0.95,
    weight_decay: ScalarOrSchedule = 0.0,
    mu_dtype: DType = None,
    *,
    equilibrate: str = "outputs",
    consistent_rms: float | None = 0.2,
    ns_coeffs: tuple[Any, ...] | str = NS_COEFFS["standard"],
    ns_steps: Size = 5,
    eps: float = 1e-8,
    nesterov: bool = True,
    preconditioning: str = "frobenius",
    compute_dtype: DType = None,
    adam_b1: Decay = 0.9,
    adam_b2: Decay = 0.95,
    adam_eps: float = 1e-8,
    adam_learning_rate: ScalarOrSchedule | None = None,
    weight_dimension_numbers: StaticTree = None,
) -> partition:
    """MuonEq: Muon on averages whose neurons have been made equally long; AdamW for the rest.

    A few turns of the iteration bring singular values the nearer to 1 the less they differ before.

    Embeddings and output layers are matrices too. To leave them to AdamW, put None in their place
    in `weight_dimension_numbers`.

    Args:
      learning_rate: of the matrices, at least 0, or a schedule.
      weight_decay: of all parameters, at least 0, or a schedule; the learning rate multiplies it.
      equilibrate: "outputs", the rows of PyTorch's matrices, which the paper takes by default;
        "inputs", or "both".
      ns_coeffs: as in `muon`.
      ns_steps: as in `muon`.
      adam_eps: added to AdamW's root, at least 0.
      weight_dimension_numbers: as `muon_weight_dimension_numbers` in `muon`: by default, parameters
        of two dimensions are matrices.

    See `scale_by_spectrum`, `scale_by_shape` and `muon` for the other arguments.

    Reference: Chang et al., MuonEq: Balancing Before Orthogonalization with Lightweight
    Equilibration, 2026.
    """
    rows = muon_coefficients("muon_eq", ns_coeffs, ns_steps)
    direction = with_arguments(
        scale_by_spectrum, locals(), spectrum=polynomial_spectrum(rows, ns_steps), debias=False
    )
    matrices = chain(direction, scale_by_shape(weight_dimension_numbers, consistent_rms))
    adam = adam_learning_rate, adam_b1, adam_b2, adam_eps
    return beside_adamw(matrices, weight_dimension_numbers, learning_rate, weight_decay, *adam)


@optimizer
def polar_grad(
    learning_rate: ScalarOrSchedule,
    beta: float = 0.95,
    weight_decay: ScalarOrSchedule = 0.0,
    mu_dtype: DType = None,
    *,
    ns_coeffs: tuple[Any, ...] | str = "polar_express",
    ns_steps: Size = 8,
    eps: float = 1e-8,
    preconditioning: str = "frobenius",
    compute_dtype: DType = None,
    adam_b1: Decay = 0.9,
    adam_b2: Decay = 0.95,
    adam_eps: float = 1e-8,
    adam_learning_rate: ScalarOrSchedule | None = None,
    weight_dimension_numbers: StaticTree = None,
) -> partition:
    """PolarGrad: Muon whose steps have the nuclear norm of the average; AdamW for the rest.

    The step is the orthogonal factor of the average times its nuclear norm, the sum of its singular
    values. It becomes shorter as gradients do, so that no schedule has to make it so. Learning
    rates are therefore not those of Muon.

    The polynomials of eight turns reach singular values from 0.001 of the norm on; the authors'
    code has QDWH in their place by default.

    Args:
      learning_rate: of the matrices, at least 0, or a schedule.
      weight_decay: of all parameters, at least 0, or a schedule; the learning rate multiplies it.
      ns_coeffs: as in `muon`.
      ns_steps: as in `muon`.
      adam_eps: added to AdamW's root, at least 0.
      weight_dimension_numbers: as `muon_weight_dimension_numbers` in `muon`: by default, parameters
        of two dimensions are matrices.

    See `scale_by_spectrum` and `muon` for the other arguments.

    Reference: Lau et al., PolarGrad: A Class of Matrix-Gradient Optimizers from a Unifying
    Preconditioning Perspective, 2025, with the average before the factor.
    """
    rows = muon_coefficients("polar_grad", ns_coeffs, ns_steps)
    direction = with_arguments(
        scale_by_spectrum,
        locals(),
        spectrum=polynomial_spectrum(rows, ns_steps),
        nesterov=False,
        debias=False,
        adaptive=True,
    )
    adam = adam_learning_rate, adam_b1, adam_b2, adam_eps
    return beside_adamw(direction, weight_dimension_numbers, learning_rate, weight_decay, *adam)
