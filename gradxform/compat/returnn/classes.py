"""The optimizer classes that RETURNN adds to TensorFlow 1.

`use_locking` and `var_list` are accepted and ignored; `name` counts in `tf1.to_checkpoint`. A
learning rate may be a schedule of `gradxform.compat.tf1` or any function of the step. RETURNN's
Updater sets epsilon to `optimizer_epsilon` of its config, 1e-16 by default; the defaults here are
those of the classes.
"""

from typing import Any, NoReturn

from gradxform.compat.arguments import descend, with_semantics
from gradxform.compat.called_numbers import takes_called_numbers
from gradxform.compat.tf1.door_names import remembers_names
from gradxform.compat.tf_contrib import Nadam as Nadam
from gradxform.schedules.decay import inverse_sqrt_decay
from gradxform.transforms.adam import scale_by_amsgrad
from gradxform.transforms.agreement import scale_by_grad_variance, scale_by_sign_agreement
from gradxform.transforms.normalization import normalize_by_block_norm
from gradxform.transforms.scaling import scale_by_schedule
from gradxform.transforms.tf_adam import scale_by_tf_adam
from gradxform.types import ScalarOrSchedule
from gradxform.wrappers.compose import chain
from gradxform.wrappers.sparse import sparse_semantics


@takes_called_numbers
def AMSGrad(
    learning_rate: ScalarOrSchedule = 0.001,
    decay: bool = False,
    beta1: float = 0.9,
    beta2: float = 0.99,
    epsilon: float = 0.0,
    var_list: Any = (),
) -> chain:
    """AMSGrad without bias corrections: `scale_by_amsgrad`, `scale_by_learning_rate`.

    With decay, the learning rate is divided by sqrt(t) too: `inverse_sqrt_decay`, which counts the
    updates of this optimizer. A row-sparse gradient is a TypeError at update.

    Reference: `AMSGradOptimizer` of RETURNN.
    """
    rule = scale_by_amsgrad(
        beta1, beta2, epsilon, bias_correction_mu=False, bias_correction_nu=False
    )
    rates = [descend(learning_rate)]
    if decay:
        rates.insert(0, scale_by_schedule(inverse_sqrt_decay(1.0)))
    return chain(sparse_semantics(rule, "error"), *rates)


def BaseCustom(learning_rate: Any, use_locking: Any = False, name: Any = None) -> NoReturn:
    """Raise an error, because the original is abstract.

    Raises:
      NotImplementedError: always.

    Reference: `BaseCustomOptimizer` of RETURNN.
    """
    raise NotImplementedError(
        "BaseCustom: does not have an update rule; write one as an ArrayRule, or use CustomAdam "
        "or CustomGradientDescent."
    )


@remembers_names("CustomGradientDescentOptimizer")
def CustomGradientDescent(
    learning_rate: ScalarOrSchedule, use_locking: Any = False, name: Any = None
) -> chain:
    """Gradient descent: `scale_by_learning_rate`.

    Reference: `CustomGradientDescentOptimizer` of RETURNN.
    """
    return with_semantics("raw", descend(learning_rate))


@remembers_names("CustomAdamOptimizer")
def CustomAdam(
    beta1: float = 0.9,
    beta2: float = 0.999,
    epsilon: float = 1e-8,
    *,
    learning_rate: ScalarOrSchedule,
    use_locking: Any = False,
    name: Any = None,
) -> chain:
    """Adam: `scale_by_tf_adam`, `scale_by_learning_rate`; on arrays it equals `tf1.Adam`.

    With a row-sparse gradient the touched rows move. Slices of one row are not summed: the last
    one sets the moments of the row, and the row moves by these once for each slice.

    Reference: `CustomAdamOptimizer` of RETURNN.
    """
    rule = scale_by_tf_adam(beta1, beta2, epsilon)
    return with_semantics("raw", rule, descend(learning_rate))


@remembers_names("NormalizedSGD")
def NormalizedSGD(
    learning_rate: ScalarOrSchedule, use_locking: Any = False, name: Any = None
) -> chain:
    """Steps of one length for every array: `normalize_by_block_norm`, learning rate.

    The norm of a row-sparse gradient is that of its slices, before those of one row are summed.

    Reference: `NormalizedSGD` of RETURNN.
    """
    rule = normalize_by_block_norm(min_norm=1e-6)
    return with_semantics("raw", rule, descend(learning_rate))


@remembers_names("NeuralOptimizer1")
def NeuralOptimizer1(
    beta1: float = 0.9,
    decrease_factor: float = 0.1,
    *,
    learning_rate: ScalarOrSchedule,
    use_locking: Any = False,
    name: Any = None,
) -> chain:
    """Smaller steps where signs differ: `scale_by_sign_agreement`, learning rate.

    With a row-sparse gradient the averages of all rows decay, and the slices of a row are summed in
    its average. Then the row moves once for each slice, which is compared with that average.

    Reference: `NeuralOptimizer1` of RETURNN.
    """
    rule = scale_by_sign_agreement(beta1, decrease_factor)
    return with_semantics("raw", rule, descend(learning_rate))


@remembers_names("GradVarianceScaledOptimizer")
def GradVarianceScaled(
    beta1: float = 0.9,
    beta2: float = 0.999,
    epsilon: float = 1e-8,
    *,
    learning_rate: ScalarOrSchedule,
    use_locking: Any = False,
    name: Any = None,
) -> chain:
    """Smaller steps at unusual gradients: `scale_by_grad_variance`, learning rate.

    Row-sparse gradients as in `NeuralOptimizer1`, for both averages.

    Reference: `GradVarianceScaledOptimizer` of RETURNN.
    """
    rule = scale_by_grad_variance(beta1, beta2, epsilon)
    return with_semantics("raw", rule, descend(learning_rate))
