"""`tf.contrib.opt` of TensorFlow 1: its optimizers and sign decays.

`use_locking` is accepted and ignored; `name` counts in `tf1.to_checkpoint`. A learning rate may be
a schedule of `gradxform.compat.tf1` or any function of the step. Row-sparse gradients move only the
rows that they touch, and change only the slots of these rows, unless an optimizer says otherwise.
"""

import re
from collections.abc import Sequence
from typing import Any

from gradxform.compat.arguments import (
    above_zero,
    at_global_step,
    by_step,
    descend,
    mask_of_names,
    not_below_zero,
    with_semantics,
)
from gradxform.compat.tf1 import Adam
from gradxform.compat.tf1.door_names import remembers_names
from gradxform.compat.tf1.replicas import (
    AGN as AGN,
    DropStaleGradient as DropStaleGradient,
    ElasticAverage as ElasticAverage,
    ModelAverage as ModelAverage,
    Tower as Tower,
)
from gradxform.compat.tf_contrib.decay import (
    ExtendWD_Adagrad as ExtendWD_Adagrad,
    ExtendWD_Adam as ExtendWD_Adam,
    ExtendWD_Ftrl as ExtendWD_Ftrl,
    ExtendWD_GradientDescent as ExtendWD_GradientDescent,
    ExtendWD_Momentum as ExtendWD_Momentum,
    ExtendWD_RMSProp as ExtendWD_RMSProp,
    VariableClipping as VariableClipping,
    extend_with_decoupled_weight_decay as extend_with_decoupled_weight_decay,
)
from gradxform.compat.tf_contrib.sign import (
    AddSign as AddSign,
    PowerSign as PowerSign,
    get_cosine_decay_fn as get_cosine_decay_fn,
    get_linear_decay_fn as get_linear_decay_fn,
    get_restart_decay_fn as get_restart_decay_fn,
)
from gradxform.compat.tf_contrib.wrappers import MovingAverage as MovingAverage
from gradxform.interop import set_to_zero
from gradxform.leaves.masks import path_matches
from gradxform.optimizers.layerwise import lars
from gradxform.transforms.adam_kin import scale_by_adamax
from gradxform.transforms.adaptive import scale_by_rss
from gradxform.transforms.densify import densify
from gradxform.transforms.ggt import scale_by_ggt
from gradxform.transforms.momentum import trace
from gradxform.transforms.scaling import add_decayed_weights, scale, scale_by_learning_rate
from gradxform.transforms.shampoo import step_by_shampoo
from gradxform.transforms.tf_adam import scale_by_tf_adam
from gradxform.types import Fixed, ScalarOrSchedule, Size, ZeroIsNone
from gradxform.wrappers.compose import chain, sum_of
from gradxform.wrappers.sparse import only_dense, only_rows


@remembers_names()
def AdaMax(
    learning_rate: ScalarOrSchedule = 0.001,
    beta1: float = 0.9,
    beta2: float = 0.999,
    epsilon: float = 1e-8,
    use_locking: Any = False,
    name: Any = "AdaMax",
) -> chain:
    """AdaMax with epsilon added to the maximum: `scale_by_adamax`, `scale_by_learning_rate`.

    Reference: `tf.contrib.opt.AdaMaxOptimizer`.
    """
    return chain(scale_by_adamax(beta1, beta2, epsilon, eps_in_max=False), descend(learning_rate))


@remembers_names()
def AdamGS(
    global_step: Fixed = 0,
    learning_rate: ScalarOrSchedule = 0.001,
    beta1: float = 0.9,
    beta2: float = 0.999,
    epsilon: float = 1e-8,
    use_locking: Any = False,
    name: Any = "Adam",
) -> chain:
    """Adam with bias corrections that read global_step: `tf1.Adam`, its rule in `external_step`.

    With global_step None it reads the extra argument `step` of `update`. An integer is a constant:
    with the default, 0, every step counts as the first, as in the original. A row-sparse gradient
    is converted to an array, as by `tf1.Adam`.

    Raises:
      TypeError: if global_step is neither None nor an integer.
      ValueError: if it is below 0.

    Reference: `tf.contrib.opt.AdamGSOptimizer`.
    """
    return chain(densify(), *_adam_gs("AdamGS", global_step, learning_rate, beta1, beta2, epsilon))


@remembers_names()
def LazyAdam(
    learning_rate: ScalarOrSchedule = 0.001,
    beta1: float = 0.9,
    beta2: float = 0.999,
    epsilon: float = 1e-8,
    use_locking: Any = False,
    name: Any = "Adam",
) -> chain:
    """Adam that moves the touched rows only: `scale_by_tf_adam`, `scale_by_learning_rate`.

    On arrays it equals `tf1.Adam`. The corrections count every step, also for untouched rows.

    Reference: `tf.contrib.opt.LazyAdamOptimizer`.
    """
    return chain(scale_by_tf_adam(beta1, beta2, epsilon), descend(learning_rate))


@remembers_names()
def LazyAdamGS(
    global_step: Fixed = 0,
    learning_rate: ScalarOrSchedule = 0.001,
    beta1: float = 0.9,
    beta2: float = 0.999,
    epsilon: float = 1e-8,
    use_locking: Any = False,
    name: Any = "Adam",
) -> chain:
    """`LazyAdam` with corrections that read global_step: its rule is in `external_step`.

    On arrays it equals `AdamGS`, and it refuses the same values of global_step.

    Reference: `tf.contrib.opt.LazyAdamGSOptimizer`.
    """
    return chain(*_adam_gs("LazyAdamGS", global_step, learning_rate, beta1, beta2, epsilon))


def _adam_gs(
    factory: str,
    global_step: Any,
    learning_rate: ScalarOrSchedule,
    beta1: float,
    beta2: float,
    epsilon: float,
) -> tuple[Any, Any]:
    rule = scale_by_tf_adam(beta1, beta2, epsilon)
    return at_global_step(factory, rule, global_step), descend(learning_rate)


def _weight_decay(factory: str, weight_decay: Any, decay_var_list: Sequence[str] | None) -> Any:
    """Return the part that subtracts weight_decay p, not scaled by the learning rate."""
    mask = mask_of_names(factory, "decay_var_list", decay_var_list)
    return by_step(add_decayed_weights(weight_decay, mask, flip_sign=True), weight_decay)


@remembers_names()
def AdamW(
    weight_decay: ScalarOrSchedule,
    learning_rate: ScalarOrSchedule = 0.001,
    beta1: float = 0.9,
    beta2: float = 0.999,
    epsilon: float = 1e-8,
    use_locking: Any = False,
    name: Any = "AdamW",
    *,
    decay_var_list: Sequence[str] | None = None,
) -> chain:
    """Adam with decoupled weight decay that is not scaled by the learning rate.

    The `sum_of` the steps of `tf1.Adam` and of `add_decayed_weights`. decay_var_list, an argument
    of the original's `apply_gradients`, names the parameters that decay; without names all decay.
    With a row-sparse gradient Adam moves every row, and the touched ones decay.

    Reference: `tf.contrib.opt.AdamWOptimizer`.
    """
    adam = Adam(learning_rate, beta1, beta2, epsilon)
    decay = chain(set_to_zero(), _weight_decay("AdamW", weight_decay, decay_var_list))
    return chain(sum_of(adam, decay))


@remembers_names()
def MomentumW(
    weight_decay: ScalarOrSchedule,
    learning_rate: ScalarOrSchedule,
    momentum: float,
    use_locking: Any = False,
    name: Any = "MomentumW",
    use_nesterov: bool = False,
    *,
    decay_var_list: Sequence[str] | None = None,
) -> chain:
    """Momentum with decoupled weight decay that is not scaled by the learning rate.

    A chain of `trace`, `scale_by_learning_rate`, `add_decayed_weights`; decay_var_list as for
    `AdamW`. With a row-sparse gradient the touched rows decay and move.

    Reference: `tf.contrib.opt.MomentumWOptimizer`.
    """
    decay = _weight_decay("MomentumW", weight_decay, decay_var_list)
    return chain(trace(momentum, use_nesterov), descend(learning_rate), decay)


@remembers_names()
def GGT(
    learning_rate: ScalarOrSchedule = 0.001,
    beta1: float = 0.9,
    use_locking: Any = False,
    name: Any = "GGT",
    window: Size = 10,
    eps: float = 1e-4,
    svd_eps: float = 1e-6,
    sigma_eps: float = 1e-2,
) -> chain:
    """Full-matrix adaptation over a window: `scale_by_ggt`, `scale_by_learning_rate`.

    A row-sparse gradient is a TypeError at update, as in the original.

    Reference: `tf.contrib.opt.GGTOptimizer`.
    """
    return chain(scale_by_ggt(beta1, window, eps, svd_eps, sigma_eps), descend(learning_rate))


@remembers_names()
def LARS(
    learning_rate: ScalarOrSchedule,
    momentum: float = 0.9,
    weight_decay: float = 0.0001,
    eeta: float = 0.001,
    epsilon: float = 0.0,
    name: Any = "LARSOptimizer",
    skip_list: Sequence[str] | None = None,
    use_nesterov: bool = False,
) -> chain:
    """Steps in proportion to each array's norm: `scale_by_trust_ratio`, learning rate, `trace`.

    A parameter with a name (`encoder/bias`) that contains a string of skip_list has neither weight
    decay nor ratio. With a row-sparse gradient only the touched rows move, without decay and ratio:
    `trace`, then the learning rate, which is then not in the buffer.

    Raises:
      ValueError: for a negative momentum or weight_decay.

    Reference: `tf.contrib.opt.LARSOptimizer`.
    """
    not_below_zero("LARS", momentum=momentum, weight_decay=weight_decay)
    mask: Any = True
    if skip_list:
        mask = ~path_matches("|".join(map(re.escape, skip_list)), optional=True)
    parts = lars(
        learning_rate,
        weight_decay,
        mask,
        eeta,
        epsilon,
        mask,
        momentum,
        use_nesterov,
        sum_norms=True,
    )
    ratio, _, momentum_part = parts.transforms
    rate = descend(learning_rate)
    # The buffer holds the originals' momentum with the other sign, of rows without the rate too.
    along = scale_by_learning_rate(learning_rate, flip_sign=False)
    along_rows = by_step(along, learning_rate)
    return chain(
        only_dense(chain(ratio, rate)), only_rows(scale(-1.0)), momentum_part, only_rows(along_rows)
    )


@remembers_names()
def Nadam(
    learning_rate: ScalarOrSchedule = 0.001,
    beta1: float = 0.9,
    beta2: float = 0.999,
    epsilon: float = 1e-8,
    use_locking: Any = False,
    name: Any = "Adam",
) -> chain:
    """Adam with Nesterov momentum, corrected as one: `scale_by_tf_adam`, `scale_by_learning_rate`.

    With a row-sparse gradient the moments of all rows decay, and touched rows move.

    Reference: `tf.contrib.opt.NadamOptimizer`.
    """
    rule = scale_by_tf_adam(beta1, beta2, epsilon, nesterov=True)
    return with_semantics("slots", rule, descend(learning_rate))


@remembers_names()
def RegAdagrad(
    learning_rate: ScalarOrSchedule,
    initial_accumulator_value: float = 0.1,
    use_locking: Any = False,
    name: Any = "RegAdagrad",
) -> chain:
    """Adagrad: `scale_by_rss`, `scale_by_learning_rate`.

    Instead of `with opt.avoid_updating_slots()`, call `update` with the extra argument
    `update_slots=False`.

    Raises:
      ValueError: unless initial_accumulator_value is greater than 0.

    Reference: `tf.contrib.opt.RegAdagradOptimizer`.
    """
    above_zero("RegAdagrad", initial_accumulator_value=initial_accumulator_value)
    return chain(scale_by_rss(initial_accumulator_value, 0.0), descend(learning_rate))


@remembers_names(of_step=("learning_rate",))
def Shampoo(
    global_step: Fixed = 0,
    max_matrix_size: Size = 768,
    gbar_decay: Any | ZeroIsNone = 0.0,
    gbar_weight: Any = 1.0,
    mat_gbar_decay: Any = 1.0,
    mat_gbar_weight: Any = 1.0,
    learning_rate: ScalarOrSchedule = 1.0,
    svd_interval: Fixed = 1,
    precond_update_interval: Fixed = 1,
    epsilon: float = 1e-4,
    alpha: Any = 0.5,
    use_iterative_root: bool = False,
    use_locking: Any = False,
    name: Any = "Shampoo",
) -> chain:
    """Preconditioning by a matrix for every axis: `step_by_shampoo`, which reads global_step.

    With global_step None it reads the extra argument `step` of `update`; an integer, such as the
    default 0, is a constant. The numbers from gbar_decay to precond_update_interval, learning_rate
    and alpha may be functions of the step + 1, which is then a constant, too. A row-sparse gradient
    is converted to an array, except that in a table of more than max_matrix_size rows, without
    gbar_decay, only the touched rows move; see `step_by_shampoo`.

    Raises:
      TypeError: if global_step is neither None nor an integer.
      ValueError: if it is below 0.

    Reference: `tf.contrib.opt.ShampooOptimizer`.
    """
    rule = step_by_shampoo(
        learning_rate=learning_rate,
        max_matrix_size=max_matrix_size,
        gbar_decay=gbar_decay,
        gbar_weight=gbar_weight,
        mat_gbar_decay=mat_gbar_decay,
        mat_gbar_weight=mat_gbar_weight,
        svd_interval=svd_interval,
        precond_update_interval=precond_update_interval,
        epsilon=epsilon,
        alpha=alpha,
        use_iterative_root=use_iterative_root,
    )
    return chain(at_global_step("Shampoo", rule, global_step))
