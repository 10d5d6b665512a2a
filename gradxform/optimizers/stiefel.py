"""SPEL: spectral steepest descent among orthogonal matrices."""

from typing import Any

from gradxform.optimizers.matrices import with_adamw
from gradxform.optimizers.muon import muon_coefficients
from gradxform.optimizers.optimizer import optimizer, with_arguments
from gradxform.transforms.momentum import ema
from gradxform.transforms.orthogonal import orthogonalize_updates
from gradxform.transforms.scaling import scale_by_learning_rate
from gradxform.transforms.stiefel import keep_orthogonal, project_to_tangent
from gradxform.types import Decay, DType, ScalarOrSchedule, Size, StaticTree
from gradxform.wrappers.compose import chain
from gradxform.wrappers.select import partition


@optimizer
def spel(
    learning_rate: ScalarOrSchedule,
    beta: Decay = 0.95,
    weight_decay: ScalarOrSchedule = 0.0,
    mu_dtype: DType = None,
    *,
    tangent: bool = True,
    ns_coeffs: tuple[Any, ...] | str = "polar_express",
    ns_steps: Size = 10,
    eps: float = 1e-8,
    preconditioning: str = "frobenius",
    compute_dtype: DType = None,
    adam_b1: Decay = 0.9,
    adam_b2: Decay = 0.95,
    adam_eps: float = 1e-8,
    adam_learning_rate: ScalarOrSchedule | None = None,
    weight_dimension_numbers: StaticTree = None,
) -> partition:
    """SPEL: Muon whose matrices are orthogonal and stay so; AdamW for all other parameters.

    With m <- beta m + (1 - beta) g, a step leads to polar(p - lr polar(tangent(m))). Begin with
    orthogonal matrices, such as those of `jax.nn.initializers.orthogonal()`: the first step makes
    others orthogonal. To leave matrices to AdamW, such as embeddings, put None in their place in
    `weight_dimension_numbers`.

    Args:
      learning_rate: of the matrices, at least 0, or a schedule: a step turns each column, or row,
        by about that many radians.
      beta: the decay of m, in [0, 1).
      weight_decay: of other parameters, at least 0, or a schedule; the learning rate multiplies it.
      mu_dtype: the dtype of m. Defaults to the parameter's.
      tangent: whether m is projected on the tangent space, as in the paper; False is NVIDIA's form.
      ns_coeffs: three coefficients for all turns of both orthogonalizations, three for each turn,
        or the name of a preset, "standard", "dion" or "polar_express".
      adam_eps: added to AdamW's root, at least 0.
      weight_dimension_numbers: as `muon_weight_dimension_numbers` in `muon`: by default, parameters
        of two dimensions are matrices.

    See `keep_orthogonal` and `muon` for the other arguments.

    Reference: Yang and Lai, Manifold Constrained Steepest Descent, 2026, with momentum.
    """
    ns_coeffs, numbers = muon_coefficients("spel", ns_coeffs, ns_steps), weight_dimension_numbers
    direction = with_arguments(orthogonalize_updates, locals())
    matrices = chain(
        ema(beta, debias=False, accumulator_dtype=mu_dtype),
        *([project_to_tangent(numbers)] if tangent else []),
        direction,
        scale_by_learning_rate(learning_rate),
        with_arguments(keep_orthogonal, locals()),
    )
    adam = adam_learning_rate, adam_b1, adam_b2, adam_eps
    return with_adamw("muon", matrices, numbers, learning_rate, *adam, weight_decay=weight_decay)
