"""`tf.keras.optimizers` of TensorFlow 2.8 (OptimizerV2), and its learning rate schedules.

`name` is accepted and ignored. A learning rate may be a schedule of this module or any function of
the step. Row-sparse gradients move only the rows that they touch, and change only the slots of
these rows, unless an optimizer says otherwise; clipping uses the norms of the slices, before those
of one row are summed. Every optimizer counts its updates, as Keras's `iterations`.
"""

import os
from collections.abc import Sequence
from typing import Any

from gradxform.compat.arguments import by_step, descend, with_semantics
from gradxform.compat.keras import configs as _configs, decays, files as _files
from gradxform.compat.keras.decays import (
    CosineDecay as CosineDecay,
    CosineDecayRestarts as CosineDecayRestarts,
    ExponentialDecay as ExponentialDecay,
    InverseTimeDecay as InverseTimeDecay,
    LinearCosineDecay as LinearCosineDecay,
    PiecewiseConstantDecay as PiecewiseConstantDecay,
    PolynomialDecay as PolynomialDecay,
)
from gradxform.compat.keras.keywords import (
    adam_parts,
    counting_part,
    epsilon_of,
    is_present,
    keras_optimizer,
)
from gradxform.compat.keras.loss_scale import (
    LossScaleOptimizer as LossScaleOptimizer,
    LossScaleOptimizerV1 as LossScaleOptimizerV1,
)
from gradxform.compat.keras.optimizer import (
    as_keras as as_keras,
    register_optimizer as register_optimizer,
)
from gradxform.compat.keras.own_optimizer import Optimizer as Optimizer
from gradxform.compat.keras.transform import from_keras as from_keras
from gradxform.compat.keras.weights import get_weights as get_weights, set_weights as set_weights
from gradxform.errors import shown
from gradxform.schedules.basic import constant_schedule
from gradxform.transforms.adam import scale_by_nadam
from gradxform.transforms.adam_kin import scale_by_adamax
from gradxform.transforms.adaptive import (
    scale_by_adadelta,
    scale_by_rms,
    scale_by_rss,
    scale_by_stddev,
)
from gradxform.transforms.momentum import trace
from gradxform.transforms.proximal import step_by_ftrl
from gradxform.types import OptState, Params, ScalarOrSchedule, SupportsTransform, ZeroIsNone
from gradxform.values.called import Called
from gradxform.wrappers.compose import chain

schedules = decays  # as `tf.keras.optimizers.schedules`


def _check_keras_momentum(name: str, momentum: Any) -> None:
    if isinstance(momentum, int | float) and not 0 <= momentum <= 1:
        raise ValueError(f"{name}: momentum must be in [0, 1], got {momentum!r}.")


@keras_optimizer
def SGD(
    learning_rate: ScalarOrSchedule = 0.01,
    momentum: ZeroIsNone = 0.0,
    nesterov: bool = False,
    name: Any = "SGD",
) -> chain:
    """Gradient descent with the learning rate in the momentum: `scale_by_learning_rate`, `trace`.

    Reference: `tf.keras.optimizers.SGD`.
    """
    _check_keras_momentum("SGD", momentum)
    parts = [descend(learning_rate)]
    if is_present(momentum):
        parts += [trace(momentum, nesterov)]
    return chain(*parts, *counting_part(learning_rate))


@keras_optimizer
def RMSprop(
    learning_rate: ScalarOrSchedule = 0.001,
    rho: float = 0.9,
    momentum: ZeroIsNone = 0.0,
    epsilon: float | None = 1e-7,
    centered: bool = False,
    name: Any = "RMSprop",
) -> chain:
    """RMSProp, epsilon inside the root if there is momentum, else outside.

    A chain of `scale_by_rms` (`scale_by_stddev` if centered), `scale_by_learning_rate` and, with
    momentum, `trace`. Without momentum a row-sparse gradient moves the touched rows, but the
    averages of all rows decay.

    Reference: `tf.keras.optimizers.RMSprop`.
    """
    _check_keras_momentum("RMSprop", momentum)
    scale_by = scale_by_stddev if centered else scale_by_rms
    rule = scale_by(rho, epsilon_of(epsilon), eps_in_sqrt=is_present(momentum))
    if not is_present(momentum):
        parts = with_semantics("slots", rule, descend(learning_rate)).transforms
        return chain(*parts, *counting_part(learning_rate))
    return chain(rule, descend(learning_rate), trace(momentum), *counting_part(learning_rate))


@keras_optimizer
def Adagrad(
    learning_rate: ScalarOrSchedule = 0.001,
    initial_accumulator_value: float = 0.1,
    epsilon: float | None = 1e-7,
    name: Any = "Adagrad",
) -> chain:
    """Adagrad with epsilon outside the root: `scale_by_rss`, `scale_by_learning_rate`.

    Reference: `tf.keras.optimizers.Adagrad`.
    """
    rule = scale_by_rss(initial_accumulator_value, epsilon_of(epsilon), eps_in_sqrt=False)
    return chain(rule, descend(learning_rate), *counting_part(learning_rate))


@keras_optimizer
def Adadelta(
    learning_rate: ScalarOrSchedule = 0.001,
    rho: float = 0.95,
    epsilon: float | None = 1e-7,
    name: Any = "Adadelta",
) -> chain:
    """Adadelta: `scale_by_adadelta`, `scale_by_learning_rate`.

    Reference: `tf.keras.optimizers.Adadelta`.
    """
    rule = scale_by_adadelta(rho, epsilon_of(epsilon))
    return chain(rule, descend(learning_rate), *counting_part(learning_rate))


@keras_optimizer
def Adam(
    learning_rate: ScalarOrSchedule = 0.001,
    beta_1: float = 0.9,
    beta_2: float = 0.999,
    epsilon: float | None = 1e-7,
    amsgrad: bool = False,
    name: Any = "Adam",
) -> chain:
    """Adam with the paper's epsilon hat: `densify`, `scale_by_tf_adam`, `scale_by_learning_rate`.

    With amsgrad: `scale_by_amsgrad`, corrected after the maximum. A row-sparse gradient is
    converted to an array: every row moves.

    Reference: `tf.keras.optimizers.Adam`.
    """
    parts = adam_parts(beta_1, beta_2, epsilon_of(epsilon), amsgrad)
    return chain(*parts, descend(learning_rate))


@keras_optimizer
def Adamax(
    learning_rate: ScalarOrSchedule = 0.001,
    beta_1: float = 0.9,
    beta_2: float = 0.999,
    epsilon: float | None = 1e-7,
    name: Any = "Adamax",
) -> chain:
    """AdaMax with epsilon added to the maximum: `scale_by_adamax`, `scale_by_learning_rate`.

    Reference: `tf.keras.optimizers.Adamax`.
    """
    rule = scale_by_adamax(beta_1, beta_2, epsilon_of(epsilon), eps_in_max=False)
    return chain(rule, descend(learning_rate))


@keras_optimizer
def Nadam(
    learning_rate: ScalarOrSchedule = 0.001,
    beta_1: float = 0.9,
    beta_2: float = 0.999,
    epsilon: float | None = 1e-7,
    name: Any = "Nadam",
    *,
    schedule_decay: float = 0.004,
) -> chain:
    """Adam with Nesterov momentum that warms up: `scale_by_nadam`, `scale_by_learning_rate`.

    As in the original the learning rate is a number, and the keyword decay is ignored. With a
    row-sparse gradient the moments of all rows decay, and touched rows move.

    Reference: `tf.keras.optimizers.Nadam`.
    """
    if callable(learning_rate) and not isinstance(learning_rate, Called | constant_schedule):
        raise ValueError(
            f"Nadam: learning_rate must be a number, got {shown(learning_rate)}; Keras's Nadam "
            "does not take schedules."
        )
    rule = scale_by_nadam(beta_1, beta_2, epsilon_of(epsilon), schedule_decay)
    return with_semantics("slots", rule, descend(learning_rate))


@keras_optimizer
def Ftrl(
    learning_rate: ScalarOrSchedule = 0.001,
    learning_rate_power: float = -0.5,
    initial_accumulator_value: float = 0.1,
    l1_regularization_strength: float = 0.0,
    l2_regularization_strength: float = 0.0,
    name: Any = "Ftrl",
    l2_shrinkage_regularization_strength: float = 0.0,
    beta: float = 0.0,
) -> chain:
    """Follow the regularized leader: `step_by_ftrl`.

    Reference: `tf.keras.optimizers.Ftrl`.
    """
    rule = step_by_ftrl(
        learning_rate,
        learning_rate_power,
        initial_accumulator_value,
        l1_regularization_strength,
        l2_regularization_strength,
        l2_shrinkage_regularization_strength,
        beta=beta,
    )
    return chain(by_step(rule, learning_rate))


# ------------------------------------------------------------------------- identifiers and configs

_DOORS = _configs.doors_of((SGD, RMSprop, Adagrad, Adadelta, Adam, Adamax, Nadam, Ftrl))


def get(identifier: Any, custom_objects: dict[str, Any] | None = None) -> Any:
    """Return the optimizer of a name or a config of Keras; a transform is returned as it is.

    Args:
      identifier: a name in any case, such as "adam"; a config, see `deserialize`; or a transform.
      custom_objects: as in `deserialize`.

    Raises:
      ValueError: for anything else, None and classes included, and for an unknown name.
    """
    return _configs.get(_DOORS, identifier, custom_objects)


def deserialize(config: dict[str, Any], custom_objects: dict[str, Any] | None = None) -> Any:
    """Return the optimizer that Keras's plain data describes.

    A config with an argument or module that came with Keras 2.11 is of `compat.keras3`, any other
    of this module. Nothing is imported.

    Args:
      config: a dict with class_name and config, as `keras.optimizers.serialize` writes it in
        TensorFlow 2.8, Keras 2.11 to 2.15, and Keras 3.
      custom_objects: factories of your own optimizers and schedules, by the names of their classes.

    Raises:
      KeyError: if the class_name is missing.
      ValueError, TypeError: for an unknown class or argument, or a wrong number, with its place.
    """
    return _configs.deserialize(_DOORS, config, custom_objects)


def load_optimizer(
    path: str | os.PathLike[str],
    params: Params,
    *,
    order: Sequence[str] | None = None,
    custom_objects: dict[str, Any] | None = None,
) -> tuple[SupportsTransform, OptState]:
    """Return the optimizer in the file of a Keras model, and its state.

        order = [v.path for v in model.trainable_variables]                              in Keras
        tx, state = compat.keras.load_optimizer("model.keras", params, order=order)

    Reads `.keras` archives and HDF5 files (`.h5`) of Keras 3, and HDF5 files of Keras 1 and 2. An
    optimizer of `as_keras` comes as its transform, with its learning rate and Keras's options. One
    that was saved before it took a step begins here with `init`. Nothing is imported but h5py, and
    no code of the file is run.

    Args:
      path: the file, as `model.save(path)` writes it.
      params: the parameters here, of the same shapes.
      order: the parameters' paths here, in the order of the Keras model's trainable variables. By
        default the order of the tree, in which dicts are sorted by key: `bias` before `kernel`.
      custom_objects: as in `deserialize`.

    Raises:
      ImportError: if h5py is not installed; it is in the extra `keras`.
      FileNotFoundError: if there is no such file.
      TypeError: if `path` is not a path, or a part of the config has another type.
      ValueError: if the file is of another kind or without an optimizer, or its config names an
        unknown class or argument; and as `set_weights` for its weights.
    """
    return _files.loaded(lambda x: get(x, custom_objects), path, params, order, custom_objects)


def with_arguments(tx: Any) -> dict[str, Any]:
    """Return what `serialize` returns, but with schedules and functions as they are."""
    return _configs.with_arguments(_DOORS, tx)


def serialize(tx: Any, name: str | None = None, *, version: float | None = None) -> dict[str, Any]:
    """Return an optimizer as Keras's plain data.

    The arguments are read off its parts: it may be what a factory of this module or of
    `compat.keras3` has returned, or any equal transform.

    Args:
      tx: the optimizer.
      name: the name in the config. Defaults to Keras's own for the class.
      version: 2 for the form of TensorFlow 2.8, 3 for that of Keras 3, 2.15 for that of Keras 2.11
        to 2.15, whose average begins with the first parameters. Defaults to the first of 2, 3 and
        2.15 that has this optimizer.

    Raises:
      ValueError: if no optimizer of Keras has these parts; `to_config` writes any transform.
      TypeError: if `tx` is not an optimizer.
    """
    return _configs.serialize(_DOORS, tx, name, version)
