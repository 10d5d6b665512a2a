"""Muon."""

from typing import Any

from gradxform.errors import did_you_mean
from gradxform.optimizers.adam import adamw
from gradxform.optimizers.base import optimizer, with_adamw
from gradxform.transforms.muon import NS_COEFFS, scale_by_muon, scale_by_shape
from gradxform.transforms.scaling import add_decayed_weights, scale_by_learning_rate
from gradxform.types import DType, ScalarOrSchedule, StaticTree
from gradxform.wrappers.compose import chain
from gradxform.wrappers.select import partition

__all__ = [
    "muon",
]


@optimizer
def muon(
    learning_rate: ScalarOrSchedule,
    ns_coeffs: tuple[Any, ...] | str = NS_COEFFS["standard"],
    ns_steps: int = 5,
    beta: float = 0.95,
    eps: float = 1e-8,
    weight_decay: ScalarOrSchedule = 0.0,
    weight_decay_mask: StaticTree = None,
    mu_dtype: DType = None,
    *,
    nesterov: bool = True,
    adaptive: bool = False,
    preconditioning: str = "frobenius",
    adam_b1: float = 0.9,
    adam_b2: float = 0.999,
    adam_eps_root: float = 0.0,
    adam_weight_decay: ScalarOrSchedule = 0.0,
    adam_learning_rate: ScalarOrSchedule | None = None,
    muon_weight_dimension_numbers: StaticTree = None,
    consistent_rms: float | None = None,
) -> partition:
    """Muon: orthogonalized momentum for matrices, AdamW for all other parameters.

    Embeddings and output layers are matrices too. To leave them to AdamW, put None in their place
    in `muon_weight_dimension_numbers`.

    Args:
      ns_coeffs: the coefficients of the orthogonalization: three, three for each turn, or the name
        of a preset, "standard" or "dion".
      eps: added to the norm of a matrix and, in AdamW, to the root, at least 0.
      weight_decay: of the matrices, at least 0, or a schedule; the learning rate multiplies it.
      weight_decay_mask: which matrices decay. Defaults to all.
      adam_b1: the decay of AdamW's first moment, in [0, 1).
      adam_b2: the decay of AdamW's second moment, in [0, 1).
      adam_eps_root: added under AdamW's root, at least 0.
      adam_weight_decay: AdamW's weight decay, at least 0, or a schedule.
      adam_learning_rate: AdamW's learning rate. Defaults to that of the matrices.
      muon_weight_dimension_numbers: `MuonDimensionNumbers` for all parameters, a tree of them with
        None for those that AdamW gets (a prefix of the parameters will do), or a function of the
        parameters that returns one. By default, parameters of two dimensions are matrices.
      consistent_rms: the root mean square of the entries of an update; 0.2 is that of Adam. By
        default, a matrix whose singular values are near 1 is multiplied by sqrt(max(1, columns /
        rows)).

    See `scale_by_muon` and `scale_by_learning_rate` for the other arguments.

    Reference: Jordan et al., Muon: An optimizer for hidden layers in neural networks, 2024; Liu et
    al., Muon is Scalable for LLM Training, 2025, for consistent_rms.
    """
    if isinstance(ns_coeffs, str):
        if ns_coeffs not in NS_COEFFS:
            presets = " or ".join(map(repr, NS_COEFFS))
            raise ValueError(
                f"muon: ns_coeffs must be numbers, {presets}, got {ns_coeffs!r}."
                f"{did_you_mean(ns_coeffs, NS_COEFFS)}"
            )
        ns_coeffs = NS_COEFFS[ns_coeffs]
    numbers = muon_weight_dimension_numbers
    matrices = chain(
        scale_by_muon(
            ns_coeffs,
            ns_steps,
            beta,
            eps,
            mu_dtype,
            nesterov=nesterov,
            adaptive=adaptive,
            preconditioning=preconditioning,
            weight_dimension_numbers=numbers,
        ),
        scale_by_shape(numbers, consistent_rms),
        add_decayed_weights(weight_decay, weight_decay_mask),
        scale_by_learning_rate(learning_rate),
    )
    others = adamw(
        learning_rate if adam_learning_rate is None else adam_learning_rate,
        adam_b1,
        adam_b2,
        eps,
        adam_eps_root,
        mu_dtype,
        adam_weight_decay,
        nesterov=nesterov,
    )
    return with_adamw("muon", matrices, others, numbers)
