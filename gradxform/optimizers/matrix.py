"""Optimizers that look at whole matrices."""

from typing import Any

import jax

from gradxform.errors import did_you_mean
from gradxform.masks import label_by, ndim_at_least
from gradxform.optimizers.adam import adamw
from gradxform.optimizers.base import optimizer
from gradxform.transforms.galore import scale_by_galore
from gradxform.transforms.ggt import scale_by_ggt
from gradxform.transforms.muon import NS_COEFFS, muon_labels, scale_by_muon, scale_by_shape
from gradxform.transforms.scaling import add_decayed_weights, scale_by_learning_rate
from gradxform.transforms.shampoo import step_by_shampoo
from gradxform.types import DType, ScalarOrSchedule, Schedule, Size, StaticTree
from gradxform.wrappers.compose import chain
from gradxform.wrappers.select import partition


@optimizer
def shampoo(
    learning_rate: ScalarOrSchedule = 1.0,
    max_matrix_size: Size = 768,
    gbar_decay: ScalarOrSchedule = 0.0,
    gbar_weight: ScalarOrSchedule = 1.0,
    mat_gbar_decay: ScalarOrSchedule = 1.0,
    mat_gbar_weight: ScalarOrSchedule = 1.0,
    svd_interval: int | float | jax.Array | Schedule = 1,
    precond_update_interval: int | float | jax.Array | Schedule = 1,
    epsilon: float = 1e-4,
    alpha: ScalarOrSchedule = 0.5,
    use_iterative_root: bool = False,
) -> chain:
    """The gradient multiplied along every axis by the root of a matrix; see `step_by_shampoo`.

    A function in place of a number, a learning rate included, is called with T = 1, 2, ..., the
    number of this update; elsewhere in this library schedules count from 0.

    Args:
      learning_rate: at least 0, or a function of T.
      max_matrix_size: the longest axis that has a whole matrix, at least 0.
      gbar_decay: how much of the average of the gradient is kept, in [0, 1], or a function of T.
      gbar_weight: the weight of a new gradient in it, at least 0, or a function of T.
      mat_gbar_decay: how much of the matrices is kept, in [0, 1], or a function of T.
      mat_gbar_weight: the weight of a new product in them, at least 0, or a function of T.
      svd_interval: how many steps the roots are kept, at least 1, or a function of T.
      precond_update_interval: how many steps the matrices are kept, at least 1, or a function of T.
      epsilon: added to the diagonals of the matrices, greater than 0.
      alpha: the power, greater than 0, or a function of T.
      use_iterative_root: whether the roots are found by matrix products only.

    Reference: Gupta et al., Shampoo: Preconditioned Stochastic Tensor Optimization, 2018,
    Algorithm 2.
    """
    return chain(
        step_by_shampoo(
            learning_rate,
            max_matrix_size,
            gbar_decay,
            gbar_weight,
            mat_gbar_decay,
            mat_gbar_weight,
            svd_interval,
            precond_update_interval,
            epsilon,
            alpha,
            use_iterative_root,
        )
    )


@optimizer
def ggt(
    learning_rate: ScalarOrSchedule = 1e-3,
    b1: float = 0.9,
    window: Size = 10,
    eps: float = 1e-4,
    svd_eps: float = 1e-6,
    sigma_eps: float = 1e-2,
) -> chain:
    """The gradient over the root of the matrix of its last averages, over all parameters.

    Args:
      learning_rate: at least 0, or a schedule.
      b1: the decay of the average, in [0, 1).
      window: how many averages are kept, at least 1.
      eps: the root of the smallest eigenvalue above which directions outside the window move too.
      svd_eps: added to the eigenvalues, greater than 0.
      sigma_eps: added to their roots, at least 0.

    Reference: Agarwal et al., Efficient Full-Matrix Adaptive Regularization, 2019, Algorithm 1.
    """
    return chain(
        scale_by_ggt(b1, window, eps, svd_eps, sigma_eps), scale_by_learning_rate(learning_rate)
    )


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
    """Orthogonalized momentum for matrices, AdamW for all other parameters.

    Embeddings and heads are matrices too; leave them to AdamW by None in their place in
    `muon_weight_dimension_numbers`.

    Args:
      learning_rate: at least 0, or a schedule.
      ns_coeffs: the coefficients of the orthogonalization: three, three for each turn, or the name
        of a preset, "standard" or "dion".
      ns_steps: the number of turns, at least 1.
      beta: the decay of the momentum, in [0, 1).
      eps: added to the norm of a matrix and, in AdamW, to the root, at least 0.
      weight_decay: that of matrices, at least 0, or a schedule; the learning rate multiplies it.
      weight_decay_mask: which matrices decay; None: all.
      mu_dtype: the dtype of the momentum; by default the parameter's, float32 for 16-bit ones.
      nesterov: whether to look one step ahead.
      adaptive: whether the update follows the size of the gradient.
      preconditioning: what a matrix is divided by before it is orthogonalized: "frobenius",
        "spectral", "aol" or "schatten".
      adam_b1: the decay of AdamW's first moment, in [0, 1).
      adam_b2: the decay of its second moment, in [0, 1).
      adam_eps_root: added under its root, at least 0.
      adam_weight_decay: its weight decay, at least 0, or a schedule.
      adam_learning_rate: its learning rate; None: as for the matrices.
      muon_weight_dimension_numbers: `MuonDimensionNumbers` for all parameters, a tree of them with
        None for those that AdamW gets (a prefix of the parameters will do), or a function of the
        parameters that returns one. None: parameters of two dimensions are matrices.
      consistent_rms: the root mean square of the entries of an update; 0.2 is that of Adam. None:
        sqrt(max(1, columns / rows)) times what has all singular values near 1.

    Reference: Jordan et al., Muon: An optimizer for hidden layers in neural networks, 2024; Liu et
    al., Muon is Scalable for LLM Training, 2025, for consistent_rms.
    """
    if isinstance(ns_coeffs, str):
        if ns_coeffs not in NS_COEFFS:
            listed = " or ".join(repr(k) for k in NS_COEFFS)
            raise ValueError(
                f"muon: ns_coeffs must be numbers, {listed}, got {ns_coeffs!r}."
                f"{did_you_mean(ns_coeffs, NS_COEFFS)}"
            )
        ns_coeffs = NS_COEFFS[ns_coeffs]
    given = muon_weight_dimension_numbers
    labels = label_by(("muon", ndim_at_least(2) & ~ndim_at_least(3)), ("adam", True))
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
            weight_dimension_numbers=given,
        ),
        scale_by_shape(given, consistent_rms),
        add_decayed_weights(weight_decay, weight_decay_mask),
        scale_by_learning_rate(learning_rate),
    )
    rest = adamw(
        learning_rate if adam_learning_rate is None else adam_learning_rate,
        adam_b1,
        adam_b2,
        eps,
        adam_eps_root,
        mu_dtype,
        adam_weight_decay,
        nesterov=nesterov,
    )
    return partition(
        {"muon": matrices, "adam": rest}, labels if given is None else muon_labels(given)
    )


@optimizer
def galore(
    learning_rate: ScalarOrSchedule,
    rank: Size = 128,
    update_proj_gap: int = 200,
    scale: float = 1.0,
    base_optimizer: Any = None,
    weight_decay: ScalarOrSchedule = 0.0,
    mask: StaticTree = None,
    weight_dimension_numbers: StaticTree = None,
) -> chain:
    """Any rule of gradients, Adam by default, on projections of low rank, for little memory.

    Args:
      learning_rate: at least 0, or a schedule.
      rank: the rank of the projections, at least 1.
      update_proj_gap: the number of steps for which a projection is kept, at least 1.
      scale: multiplies the updates of matrices, finite.
      base_optimizer: a transform that needs no parameters; None for `scale_by_adam()`. One with a
        learning rate of its own wants a `learning_rate` of 1 here.
      weight_decay: decoupled, on the whole parameters; at least 0, or a schedule.
      mask: which parameters decay; None: all.
      weight_dimension_numbers: `GaLoreDimensionNumbers` for all parameters, a tree of them with
        None for what is not projected, or a function of the parameters that returns one. None:
        parameters of two dimensions are matrices.

    Reference: Zhao et al., GaLore: Memory-Efficient LLM Training by Gradient Low-Rank Projection,
    2024, Algorithm 1.
    """
    return chain(
        scale_by_galore(rank, update_proj_gap, scale, base_optimizer, weight_dimension_numbers),
        add_decayed_weights(weight_decay, mask),
        scale_by_learning_rate(learning_rate),
    )
