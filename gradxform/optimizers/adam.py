"""Adam and its closest kin."""

from gradxform.optimizers.optimizer import (
    decayed_descent,
    optimizer,
    with_arguments,
    with_weight_decay,
)
from gradxform.transforms.adam import (
    scale_by_adam,
    scale_by_amsgrad,
    scale_by_nadam,
    scale_by_tf_amsgrad,
    scale_by_torch_amsgrad,
)
from gradxform.transforms.scaling import scale_by_learning_rate
from gradxform.types import DType, ScalarOrSchedule, StaticMask
from gradxform.wrappers.compose import chain


@optimizer
def adam(
    learning_rate: ScalarOrSchedule,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
    eps_root: float = 0.0,
    mu_dtype: DType = None,
    *,
    nesterov: bool = False,
) -> chain:
    """Adam: the average gradient over the root of the average squared gradient.

    See `scale_by_adam` and `scale_by_learning_rate` for the arguments.
    """
    direction = scale_by_adam(b1, b2, eps, eps_root, mu_dtype, nesterov=nesterov)
    return chain(direction, scale_by_learning_rate(learning_rate))


@optimizer
def adamw(
    learning_rate: ScalarOrSchedule,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
    eps_root: float = 0.0,
    mu_dtype: DType = None,
    weight_decay: ScalarOrSchedule | None = 1e-4,
    weight_decay_mask: StaticMask | None = None,
    *,
    nesterov: bool = False,
    decay_by_learning_rate: bool = True,
) -> chain:
    """AdamW: Adam with decoupled weight decay, u = -lr (adam + weight_decay p).

    Args:
      learning_rate: at least 0, or a schedule; it multiplies the decay too.
      decay_by_learning_rate: without it u = -lr adam - weight_decay p, as in TensorFlow; choose a
        weight_decay that is smaller by about the learning rate.

    See `scale_by_adam` and `add_decayed_weights` for the other arguments.

    Reference: Loshchilov and Hutter, Decoupled Weight Decay Regularization, 2019, Algorithm 2.
    """
    direction = scale_by_adam(b1, b2, eps, eps_root, mu_dtype, nesterov=nesterov)
    return with_weight_decay(
        direction, learning_rate, weight_decay, weight_decay_mask, decay_by_learning_rate
    )


@optimizer
def nadam(
    learning_rate: ScalarOrSchedule,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
    eps_root: float = 0.0,
    mu_dtype: DType = None,
    *,
    nesterov: bool = True,
    schedule_decay: float | None = None,
) -> chain:
    """NAdam: Adam with Nesterov momentum.

    The momentum is constant; with `schedule_decay=0.004` it warms up, as in Keras.

    Args:
      eps_root: added under the root, at least 0. Must be 0 with schedule_decay.
      schedule_decay: how fast the momentum warms up, at least 0. By default it is constant.

    See `scale_by_adam` and `scale_by_learning_rate` for the other arguments.

    Reference: Dozat, Incorporating Nesterov Momentum into Adam, 2016, Algorithm 2.
    """
    if schedule_decay is None:
        return adam(learning_rate, b1, b2, eps, eps_root, mu_dtype, nesterov=nesterov)
    conflicts = {"eps_root": eps_root != 0, "nesterov": not nesterov}
    for name, conflict in conflicts.items():
        if conflict:
            raise ValueError(f"nadam: {name} cannot be set together with schedule_decay.")
    direction = scale_by_nadam(b1, b2, eps, schedule_decay, mu_dtype)
    return chain(direction, scale_by_learning_rate(learning_rate))


@optimizer
def nadamw(
    learning_rate: ScalarOrSchedule,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
    eps_root: float = 0.0,
    mu_dtype: DType = None,
    weight_decay: ScalarOrSchedule = 1e-4,
    weight_decay_mask: StaticMask | None = None,
    *,
    nesterov: bool = True,
) -> chain:
    """NAdamW: Adam with Nesterov momentum and decoupled weight decay.

    See `adamw` for the arguments.

    Reference: Dozat, Incorporating Nesterov Momentum into Adam, 2016; Loshchilov and Hutter,
    Decoupled Weight Decay Regularization, 2019.
    """
    return adamw(
        learning_rate,
        b1,
        b2,
        eps,
        eps_root,
        mu_dtype,
        weight_decay,
        weight_decay_mask,
        nesterov=nesterov,
    )


@optimizer
def amsgrad(
    learning_rate: ScalarOrSchedule,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
    eps_root: float = 0.0,
    mu_dtype: DType = None,
    bias_correction_mu: bool = True,
    bias_correction_nu: bool = True,
    *,
    correct_after: bool = False,
    eps_before_correction: bool | None = None,
    weight_decay: ScalarOrSchedule | None = None,
    weight_decay_mask: StaticMask | None = None,
) -> chain:
    """AMSGrad: Adam, divided by the root of the largest second moment so far.

    `amsgrad(lr, correct_after=True, eps_before_correction=False)` is PyTorch's `Adam(amsgrad=True)`
    and, with a weight_decay, its `AdamW`; with correct_after alone it is Keras's.

    Args:
      correct_after: whether the maximum is taken before v is corrected, as by
        `scale_by_tf_amsgrad` and `scale_by_torch_amsgrad`.
      eps_before_correction: with correct_after, whether eps is added before the correction, as in
        Keras; by default it is. Without, the rule is PyTorch's.

    See `scale_by_amsgrad` and `scale_by_learning_rate` for the other arguments.

    Raises:
      ValueError: if eps_before_correction is set without correct_after, or a correction is left out
        with it.
    """
    if eps_before_correction and not correct_after:
        raise ValueError("amsgrad: eps_before_correction=True needs correct_after=True.")
    if correct_after and not (bias_correction_mu and bias_correction_nu):
        raise ValueError("amsgrad: correct_after=True corrects both moments; leave both in.")
    late = scale_by_torch_amsgrad if eps_before_correction is False else scale_by_tf_amsgrad
    direction = with_arguments(late if correct_after else scale_by_amsgrad, locals())
    return decayed_descent("amsgrad", direction, learning_rate, weight_decay, weight_decay_mask)
