"""`tf.train` of TensorFlow 1: its optimizers and schedules.

`use_locking` is accepted and ignored; `name` and other names count in `to_checkpoint`. A learning
rate may be a schedule of this module or any function of the step. Row-sparse gradients move only
the rows that they touch, and change only the slots of these rows, unless an optimizer says
otherwise.
"""

from typing import Any

from gradxform.compat.arguments import (
    REQUIRED,
    above_zero,
    at_global_step,
    by_step,
    descend,
    not_below_zero,
    piecewise,
    require_arguments,
)
from gradxform.compat.tf1.checkpoints import (
    from_checkpoint as from_checkpoint,
    to_checkpoint as to_checkpoint,
)
from gradxform.compat.tf1.door_names import remembers_names
from gradxform.compat.tf1.replicas import SyncReplicas as SyncReplicas
from gradxform.schedules.basic import polynomial_schedule
from gradxform.schedules.decay import (
    cosine_decay_restarts as _cosine_decay_restarts,
    cosine_decay_schedule,
    exponential_decay as _exponential_decay,
    inverse_time_decay as _inverse_time_decay,
    linear_cosine_decay as _linear_cosine_decay,
    natural_exp_decay as _natural_exp_decay,
)
from gradxform.transforms.adaptive import (
    scale_by_adadelta,
    scale_by_rms,
    scale_by_rss,
    scale_by_stddev,
)
from gradxform.transforms.densify import densify
from gradxform.transforms.momentum import trace
from gradxform.transforms.proximal import (
    step_by_dual_averaging,
    step_by_ftrl,
    step_by_proximal_adagrad,
    step_by_proximal_gradient,
)
from gradxform.transforms.tf_adam import scale_by_tf_adam
from gradxform.types import Fixed, ScalarOrSchedule, Schedule
from gradxform.values.arguments import with_checked_arguments
from gradxform.wrappers.compose import chain

# ------------------------------------------------------------------------------------ optimizers


@remembers_names()
def GradientDescent(
    learning_rate: ScalarOrSchedule, use_locking: Any = False, name: Any = "GradientDescent"
) -> chain:
    """Gradient descent: `scale_by_learning_rate`.

    Reference: `tf.train.GradientDescentOptimizer`.
    """
    return chain(descend(learning_rate))


@remembers_names()
def Momentum(
    learning_rate: ScalarOrSchedule,
    momentum: float,
    use_locking: Any = False,
    name: Any = "Momentum",
    use_nesterov: bool = False,
) -> chain:
    """Momentum, with the learning rate outside its buffer: `trace`, `scale_by_learning_rate`.

    Reference: `tf.train.MomentumOptimizer`.
    """
    return chain(trace(momentum, use_nesterov), descend(learning_rate))


@remembers_names()
def Adagrad(
    learning_rate: ScalarOrSchedule,
    initial_accumulator_value: float = 0.1,
    use_locking: Any = False,
    name: Any = "Adagrad",
) -> chain:
    """Adagrad without epsilon: `scale_by_rss`, `scale_by_learning_rate`.

    Raises:
      ValueError: unless initial_accumulator_value is greater than 0.

    Reference: `tf.train.AdagradOptimizer`.
    """
    above_zero("Adagrad", initial_accumulator_value=initial_accumulator_value)
    return chain(scale_by_rss(initial_accumulator_value, 0.0), descend(learning_rate))


@remembers_names()
def Adadelta(
    learning_rate: ScalarOrSchedule = 0.001,
    rho: float = 0.95,
    epsilon: float = 1e-8,
    use_locking: Any = False,
    name: Any = "Adadelta",
) -> chain:
    """Adadelta: `scale_by_adadelta`, `scale_by_learning_rate`.

    Reference: `tf.train.AdadeltaOptimizer`.
    """
    return chain(scale_by_adadelta(rho, epsilon), descend(learning_rate))


@remembers_names()
def AdagradDA(
    learning_rate: ScalarOrSchedule,
    global_step: Fixed = None,
    initial_gradient_squared_accumulator_value: float = 0.1,
    l1_regularization_strength: float = 0.0,
    l2_regularization_strength: float = 0.0,
    use_locking: Any = False,
    name: Any = "AdagradDA",
) -> chain:
    """Adagrad by dual averaging: `step_by_dual_averaging`, which reads global_step.

    With global_step None it reads the extra argument `step` of `update`; an integer is a constant.

    Raises:
      TypeError: if global_step is neither None nor an integer.
      ValueError: unless the accumulator's first value is greater than 0, and the strengths and
        global_step are at least 0; or if the learning rate is a schedule and global_step constant.

    Reference: `tf.train.AdagradDAOptimizer`.
    """
    if global_step is not None and callable(learning_rate):
        raise ValueError(
            "AdagradDA: learning_rate must be a number where global_step is a constant; a schedule "
            "needs global_step=None."
        )
    above_zero(
        "AdagradDA",
        initial_gradient_squared_accumulator_value=initial_gradient_squared_accumulator_value,
    )
    not_below_zero(
        "AdagradDA",
        l1_regularization_strength=l1_regularization_strength,
        l2_regularization_strength=l2_regularization_strength,
    )
    rule = step_by_dual_averaging(
        learning_rate,
        initial_gradient_squared_accumulator_value,
        l1_regularization_strength,
        l2_regularization_strength,
    )
    return chain(at_global_step("AdagradDA", rule, global_step))


@remembers_names()
def Adam(
    learning_rate: ScalarOrSchedule = 0.001,
    beta1: float = 0.9,
    beta2: float = 0.999,
    epsilon: float = 1e-8,
    use_locking: Any = False,
    name: Any = "Adam",
) -> chain:
    """Adam with the paper's epsilon hat: `densify`, `scale_by_tf_adam`, `scale_by_learning_rate`.

    A row-sparse gradient is converted to an array: every row moves. `tf_contrib.LazyAdam` moves
    only the touched rows.

    Reference: `tf.train.AdamOptimizer`.
    """
    rule = scale_by_tf_adam(beta1, beta2, epsilon)
    return chain(densify(), rule, descend(learning_rate))


@remembers_names()
def RMSProp(
    learning_rate: ScalarOrSchedule,
    decay: float = 0.9,
    momentum: float = 0.0,
    epsilon: float = 1e-10,
    use_locking: Any = False,
    centered: bool = False,
    name: Any = "RMSProp",
) -> chain:
    """RMSProp with a mean square that starts at 1, and momentum with the learning rate inside.

    A chain of `scale_by_rms` (`scale_by_stddev` if centered), `scale_by_learning_rate`, `trace`.

    Reference: `tf.train.RMSPropOptimizer`.
    """
    scale_by = scale_by_stddev if centered else scale_by_rms
    return chain(scale_by(decay, epsilon, 1.0), descend(learning_rate), trace(momentum))


@remembers_names()
def Ftrl(
    learning_rate: ScalarOrSchedule,
    learning_rate_power: float = -0.5,
    initial_accumulator_value: float = 0.1,
    l1_regularization_strength: float = 0.0,
    l2_regularization_strength: float = 0.0,
    use_locking: Any = False,
    name: Any = "Ftrl",
    accum_name: Any = None,
    linear_name: Any = None,
    l2_shrinkage_regularization_strength: float = 0.0,
) -> chain:
    """Follow the regularized leader: `step_by_ftrl`.

    Raises:
      ValueError: for a negative first value or strength, or a positive power.

    Reference: `tf.train.FtrlOptimizer`.
    """
    rule = step_by_ftrl(
        learning_rate,
        learning_rate_power,
        initial_accumulator_value,
        l1_regularization_strength,
        l2_regularization_strength,
        l2_shrinkage_regularization_strength,
    )
    return chain(by_step(rule, learning_rate))


@remembers_names()
def ProximalAdagrad(
    learning_rate: ScalarOrSchedule,
    initial_accumulator_value: float = 0.1,
    l1_regularization_strength: float = 0.0,
    l2_regularization_strength: float = 0.0,
    use_locking: Any = False,
    name: Any = "ProximalAdagrad",
) -> chain:
    """Adagrad with a proximal step: `step_by_proximal_adagrad`.

    Raises:
      ValueError: unless the accumulator's first value is greater than 0 and the strengths at least
        0.

    Reference: `tf.train.ProximalAdagradOptimizer`.
    """
    rule = step_by_proximal_adagrad(
        learning_rate,
        initial_accumulator_value,
        l1_regularization_strength,
        l2_regularization_strength,
    )
    return chain(by_step(rule, learning_rate))


@remembers_names()
def ProximalGradientDescent(
    learning_rate: ScalarOrSchedule,
    l1_regularization_strength: float = 0.0,
    l2_regularization_strength: float = 0.0,
    use_locking: Any = False,
    name: Any = "ProximalGradientDescent",
) -> chain:
    """Gradient descent with a proximal step: `step_by_proximal_gradient`.

    Raises:
      ValueError: for a negative strength.

    Reference: `tf.train.ProximalGradientDescentOptimizer`.
    """
    rule = step_by_proximal_gradient(
        learning_rate, l1_regularization_strength, l2_regularization_strength
    )
    return chain(by_step(rule, learning_rate))


# ------------------------------------------------------------------------------------- schedules

# `global_step` keeps its place in the signatures and is ignored: these return a function of the
# step, which an optimizer of this module reads.


def _schedule_by_decay_rate(schedule: Any, formula: str):  # noqa: ANN202, the inferred type keeps the signature
    """Return the factory of a schedule that has a decay rate, under TensorFlow's signature."""

    def factory(
        learning_rate: float,
        global_step: Fixed = None,
        decay_steps: Any = REQUIRED,
        decay_rate: Any = REQUIRED,
        staircase: bool = False,
        name: Any = None,
    ) -> Schedule:
        require_arguments(schedule.__name__, decay_steps=decay_steps, decay_rate=decay_rate)
        return schedule(learning_rate, decay_steps, decay_rate, staircase=staircase)

    factory.__name__ = factory.__qualname__ = schedule.__name__
    factory.__doc__ = f"Return `{schedule.__name__}`: {formula}."
    return factory


exponential_decay = _schedule_by_decay_rate(
    _exponential_decay, "learning_rate decay_rate^(n / decay_steps)"
)
natural_exp_decay = _schedule_by_decay_rate(
    _natural_exp_decay, "learning_rate exp(-decay_rate n / decay_steps)"
)
inverse_time_decay = _schedule_by_decay_rate(
    _inverse_time_decay, "learning_rate / (1 + decay_rate n / decay_steps)"
)


@with_checked_arguments
def polynomial_decay(
    learning_rate: float,
    global_step: Fixed = None,
    decay_steps: Any = REQUIRED,
    end_learning_rate: float = 0.0001,
    power: float = 1.0,
    cycle: bool = False,
    name: Any = None,
) -> Schedule:
    """Return `polynomial_schedule` from learning_rate to end_learning_rate in decay_steps."""
    require_arguments("polynomial_decay", decay_steps=decay_steps)
    return polynomial_schedule(learning_rate, end_learning_rate, power, decay_steps, cycle=cycle)


@with_checked_arguments
def piecewise_constant(
    x: Any = None, boundaries: Any = REQUIRED, values: Any = REQUIRED, name: Any = None
) -> Schedule:
    """Return values[i] up to and including step boundaries[i]: `join_schedules` of constants.

    Raises:
      ValueError: unless there is one more value than boundaries.
    """
    require_arguments("piecewise_constant", boundaries=boundaries, values=values)
    return piecewise("piecewise_constant", boundaries, values)


piecewise_constant_decay = piecewise_constant  # TensorFlow has both names


@with_checked_arguments
def cosine_decay(
    learning_rate: float,
    global_step: Fixed = None,
    decay_steps: Any = REQUIRED,
    alpha: float = 0.0,
    name: Any = None,
) -> Schedule:
    """Return `cosine_decay_schedule`, down to alpha learning_rate."""
    require_arguments("cosine_decay", decay_steps=decay_steps)
    return cosine_decay_schedule(learning_rate, decay_steps, alpha)


@with_checked_arguments
def cosine_decay_restarts(
    learning_rate: float,
    global_step: Fixed = None,
    first_decay_steps: Any = REQUIRED,
    t_mul: float = 2.0,
    m_mul: float = 1.0,
    alpha: float = 0.0,
    name: Any = None,
) -> Schedule:
    """Return `cosine_decay_restarts`."""
    require_arguments("cosine_decay_restarts", first_decay_steps=first_decay_steps)
    return _cosine_decay_restarts(learning_rate, first_decay_steps, t_mul, m_mul, alpha)


@with_checked_arguments
def linear_cosine_decay(
    learning_rate: float,
    global_step: Fixed = None,
    decay_steps: Any = REQUIRED,
    num_periods: float = 0.5,
    alpha: float = 0.0,
    beta: float = 0.001,
    name: Any = None,
) -> Schedule:
    """Return `linear_cosine_decay`."""
    require_arguments("linear_cosine_decay", decay_steps=decay_steps)
    return _linear_cosine_decay(learning_rate, decay_steps, num_periods, alpha, beta)
