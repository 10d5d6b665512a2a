"""`keras.optimizers` of Keras 3, and of Keras 2.11 to 2.15.

They differ from those of TensorFlow 2.8 in `gradxform.compat.keras`: `RMSprop` and `Adagrad` add
epsilon under the root, `Nadam` warms up faster, and weight decay, averages of the parameters and
accumulation are arguments of all. A learning rate may be a schedule of
`gradxform.compat.keras.schedules` or any function of the count of updates. `name` is ignored.

Any transform trains a model of Keras 3 by `model.compile(optimizer=as_keras(tx))`.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp

from gradxform._names.deferred import signature_of
from gradxform.base import ArrayRule, transform
from gradxform.compat.arguments import not_below_zero
from gradxform.compat.inversion import arguments_of
from gradxform.compat.keras.bridge import (
    as_keras as as_keras,
    from_keras as from_keras,
    register_optimizer as register_optimizer,
)
from gradxform.compat.keras.configs import (
    CLIPS,
    IGNORED,
    OPTIONS,
    Door,
    Optimizer as Optimizer,
    choices_of,
)
from gradxform.compat.keras.holders import (
    LossScaleOptimizer as LossScaleOptimizer,
    MultiOptimizer as MultiOptimizer,
    OptimizerMap as OptimizerMap,
)
from gradxform.compat.keras.keras import (
    Factory,
    adam_parts,
    counting_part,
    is_present,
    keyword_parameters,
    with_keywords,
)
from gradxform.compat.keras.schedules import (
    at_most_inverse_sqrt,
    last_of_every,
    made_by,
    with_schedules,
    written_object,
)
from gradxform.errors import did_you_mean, must_be
from gradxform.leaves.masks import label_by, ndim_at_least, path_matches
from gradxform.numerics import abs_sq, cast, count_and_debias, scalar, value_at
from gradxform.numerics.overflow import bounded_square, saturated
from gradxform.numerics.roots import over_root
from gradxform.schedules.product import product_schedule
from gradxform.slots import real_zeros_like, zero_count
from gradxform.transforms.adam import scale_by_adam, scale_by_nadam
from gradxform.transforms.adam_kin import scale_by_adamax
from gradxform.transforms.adaptive import (
    scale_by_adadelta,
    scale_by_rms,
    scale_by_rss,
    scale_by_stddev,
)
from gradxform.transforms.clipping import clip_by_block_rms
from gradxform.transforms.factored import scale_by_factored_rms
from gradxform.transforms.layerwise import scale_by_param_block_rms, scale_by_trust_ratio
from gradxform.transforms.momentum import trace
from gradxform.transforms.muon import scale_by_muon, scale_by_shape
from gradxform.transforms.proximal import step_by_ftrl
from gradxform.transforms.scaling import scale, scale_by_learning_rate
from gradxform.transforms.sign import scale_by_lion
from gradxform.transforms.tree_rules import copied_params
from gradxform.types import (
    Array,
    Decay,
    Fixed,
    NonNegative,
    NonNegativeInt,
    NonNegativeOrSchedule,
    NonNegativeSlot,
    Params,
    PositiveShare,
    PyTree,
    ScalarOrSchedule,
    Size,
    Slot,
    ZeroIsNone,
)
from gradxform.wrappers.compose import chain
from gradxform.wrappers.decay import decoupled_weight_decay
from gradxform.wrappers.multi_steps import MultiSteps
from gradxform.wrappers.overwrite import overwriting_average
from gradxform.wrappers.schedule_free import average_of
from gradxform.wrappers.select import partition

# The optimizers whose own rule does what their weight_decay says.
_OWN_DECAY = ("Muon", "ScheduleFreeAdamW")

# What came after Keras 2.15.
_ONLY_3 = ("loss_scale_factor", "gradient_accumulation_steps")
_CLASSES_ONLY_3 = ("Lamb", "Muon", "ScheduleFreeAdamW")

_DOC = """
    Arguments of every optimizer of Keras 3, by name: clipnorm, clipvalue or global_clipnorm, only
    one of them; weight_decay times the learning rate, by which the parameters shrink before the
    step; use_ema, ema_momentum and ema_overwrite_frequency for `overwriting_average`;
    loss_scale_factor, which divides the gradients; gradient_accumulation_steps, for `MultiSteps`.
    A schedule counts the updates, as Keras does, also those that only accumulate.

    Raises:
      ValueError: for an unknown argument, several clips, and what Keras 3 refuses.
"""


def keras3_optimizer(function: Factory) -> Door[..., chain]:
    """Add the arguments that all optimizers of Keras 3 share to a factory."""
    own = signature_of(function)
    own_parameters = [
        p.replace(kind=p.POSITIONAL_OR_KEYWORD) for p in own.parameters.values() if p.name != "name"
    ]
    shared = keyword_parameters({k: x for k, x in OPTIONS.items() if k not in own.parameters})
    signature = own.replace(parameters=[*own_parameters, *shared])
    title = function.__name__

    def made(*args: Any, **kwargs: Any) -> chain:
        for k in kwargs:
            if k not in signature.parameters:
                known = ", ".join(signature.parameters)
                hint = did_you_mean(k, signature.parameters)
                raise ValueError(f"{title}: unknown argument {k!r}, only {known}.{hint}")
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        options = {k: bound.arguments[k] for k in OPTIONS if k in bound.arguments}
        own_arguments = {k: x for k, x in bound.arguments.items() if k in own.parameters}
        return around_keras3_step(
            title,
            lambda rate: function(**own_arguments | {"learning_rate": rate}),
            own_arguments["learning_rate"],
            options,
            decays=title not in _OWN_DECAY,
        )

    return with_keywords(function, made, signature, _DOC, _read, _write)


def _read(factory: Factory, config: Mapping[str, Any], custom_objects: Any, where: str) -> chain:
    if config.get("decay"):
        raise ValueError(
            f"{where}: decay={config['decay']!r} is not of this generation of Keras, which "
            "ignores it; use a schedule, such as InverseTimeDecay."
        )
    arguments = with_schedules(config, custom_objects, where)
    arguments = {k: v for k, v in arguments.items() if k not in (*IGNORED, "decay")}
    # Keras 2.11 to 2.15 begin an average with the parameters, Keras 3 with those of the first step.
    if config.get("use_ema") and "jit_compile" in config:
        arguments["ema_from_start"] = True
    return made_by(factory, arguments, where, ValueError)


def _write(
    factory: Factory, tx: Any, name: str | None, version: float | None
) -> dict[str, Any] | None:
    outer, core = _peeled_options(tx) if version != 2 else ({}, None)
    if core is None:
        return None
    choices = choices_of(factory, tx, OPTIONS.keys() - {*CLIPS, "weight_decay"})
    # The options around the step are known, which leaves few templates.
    found = arguments_of(factory, tx, choices | {k: [v] for k, v in outer.items()})
    if found is None:
        return None
    title = factory.__name__
    for form in (3, 2.15) if version is None else (version,):
        if (config := _config(title, found, name, form == 2.15)) is not None:
            return written_object(title, config, "keras.optimizers")
    return None


def _check(title: str, options: dict[str, Any]) -> None:
    """Require what Keras 3 requires."""
    clips = {k: options[k] for k in CLIPS if options[k] is not None}
    if len(clips) > 1:
        listed = " and ".join(f"{k}={x!r}" for k, x in clips.items())
        raise ValueError(f"{title}: only one of {', '.join(CLIPS)} can be given, got {listed}.")
    not_below_zero(title, **clips, weight_decay=options["weight_decay"])
    for name, least in (("gradient_accumulation_steps", 2), ("ema_overwrite_frequency", 1)):
        n = options[name]
        if n is not None and n is not False and not (type(n) is int and n >= least):
            if n == 0 and type(n) is int:
                continue
            raise ValueError(must_be(title, name, f"an integer of at least {least}, or None", n))
    factor = options["loss_scale_factor"]
    if isinstance(factor, int | float) and not factor > 0:
        raise ValueError(
            f"{title}: loss_scale_factor must be greater than 0, or None, got {factor!r}."
        )


def around_keras3_step(
    title: str,
    rule: Callable[[Any], chain],
    learning_rate: Any,
    options: dict[str, Any],
    decays: bool = True,
) -> chain:
    """Return an optimizer with what Keras 3 does before and after its step.

    Args:
      title: the name of the optimizer, for messages.
      rule: returns the step of a learning rate.
      learning_rate: a number or a schedule, which counts the calls that only accumulate, too.
      options: a value for every name of `OPTIONS`.
      decays: whether the weight decay stands around the step, and is not in its rule.

    Raises:
      ValueError: for what Keras 3 refuses.
    """
    _check(title, options)
    k = options["gradient_accumulation_steps"]
    if k and callable(learning_rate):
        learning_rate = last_of_every(learning_rate, k)
    # A bound of 0 switches the clip off, in contrast to Keras 2.8.
    clips = [
        CLIPS[k](options[k]) for k in CLIPS if options[k] is not None and is_present(options[k])
    ]
    inner: Any = chain(*clips, *rule(learning_rate).transforms)
    decay = options["weight_decay"]
    if decays and decay is not None and is_present(decay):
        inner = decoupled_weight_decay(inner, decay, learning_rate=learning_rate, decay_first=True)
    if k:
        inner = MultiSteps(inner, k)
    if options["loss_scale_factor"] is not None:
        inner = chain(scale(1.0 / options["loss_scale_factor"]), inner)
    if options["use_ema"]:
        inner = overwriting_average(
            inner,
            options["ema_momentum"],
            options["ema_overwrite_frequency"] or None,
            k or 1,
            from_first_step=not options["ema_from_start"],
        )
    return inner if isinstance(inner, chain) else chain(inner)


def _peeled_options(tx: Any) -> tuple[dict[str, Any], Any]:
    """Return the options of Keras 3 that stand around the step, and what is inside them."""
    outer: dict[str, Any] = {}
    core = _only_part_of_chain(tx)
    if isinstance(core, overwriting_average):
        outer |= {"use_ema": True, "ema_momentum": core.decay}
        outer["ema_overwrite_frequency"] = core.every
        outer["ema_from_start"] = not core.from_first_step
        core = core.inner
    parts = core.transforms if isinstance(core, chain) else ()
    if len(parts) == 2 and isinstance(parts[0], scale) and isinstance(parts[0].step_size, float):
        if parts[0].step_size <= 0:
            return outer, None
        outer["loss_scale_factor"] = 1.0 / parts[0].step_size
        core = parts[1]
    core = _only_part_of_chain(core)
    if isinstance(core, MultiSteps):
        outer["gradient_accumulation_steps"] = core.every_k_schedule
    return outer, core


def _only_part_of_chain(x: Any) -> Any:
    """Return the one part of a chain of one; else `x`."""
    return x.transforms[0] if isinstance(x, chain) and len(x.transforms) == 1 else x


def _config(
    title: str, arguments: dict[str, Any], name: str | None, is_2_15: bool
) -> dict[str, Any] | None:
    """Return a config of Keras 3, or of Keras 2.11 to 2.15; None if that lacks the optimizer."""
    config = {k: default for k, (default, _) in OPTIONS.items()} | arguments
    from_start = config.pop("ema_from_start")
    if is_2_15:
        if title in _CLASSES_ONLY_3 or any(config.pop(k) is not None for k in _ONLY_3):
            return None
        config |= {"jit_compile": True, "is_legacy_optimizer": False}
    if config["use_ema"] and from_start != is_2_15:
        return None
    config["name"] = name or (title if is_2_15 else title.lower())
    return config


# --------------------------------------------------------------------------------------- optimizers


@keras3_optimizer
def SGD(
    learning_rate: ScalarOrSchedule = 0.01, momentum: ZeroIsNone = 0.0, nesterov: bool = False
) -> chain:
    """Gradient descent with the learning rate in the momentum: `scale_by_learning_rate`, `trace`.

    Reference: `keras.optimizers.SGD`.
    """
    parts: list[Any] = [scale_by_learning_rate(learning_rate)]
    if is_present(momentum):
        parts += [trace(momentum, nesterov)]
    return chain(*parts, *counting_part(learning_rate))


@keras3_optimizer
def RMSprop(
    learning_rate: ScalarOrSchedule = 0.001,
    rho: float = 0.9,
    momentum: ZeroIsNone = 0.0,
    epsilon: float = 1e-7,
    centered: bool = False,
) -> chain:
    """RMSProp with epsilon inside the root: `scale_by_rms`, learning rate, `trace`.

    `scale_by_stddev` if centered; `trace` with momentum.

    Reference: `keras.optimizers.RMSprop`.
    """
    scale_by = scale_by_stddev if centered else scale_by_rms
    parts: list[Any] = [scale_by(rho, epsilon), scale_by_learning_rate(learning_rate)]
    if is_present(momentum):
        parts += [trace(momentum)]
    return chain(*parts, *counting_part(learning_rate))


@keras3_optimizer
def Adagrad(
    learning_rate: ScalarOrSchedule = 0.001,
    initial_accumulator_value: float = 0.1,
    epsilon: float = 1e-7,
) -> chain:
    """Adagrad with epsilon inside the root: `scale_by_rss`, `scale_by_learning_rate`.

    Reference: `keras.optimizers.Adagrad`.
    """
    rule = scale_by_rss(initial_accumulator_value, epsilon)
    return chain(rule, scale_by_learning_rate(learning_rate), *counting_part(learning_rate))


@keras3_optimizer
def Adadelta(
    learning_rate: ScalarOrSchedule = 0.001, rho: float = 0.95, epsilon: float = 1e-7
) -> chain:
    """Adadelta: `scale_by_adadelta`, `scale_by_learning_rate`.

    Reference: `keras.optimizers.Adadelta`.
    """
    rule = scale_by_adadelta(rho, epsilon)
    return chain(rule, scale_by_learning_rate(learning_rate), *counting_part(learning_rate))


@keras3_optimizer
def Adam(
    learning_rate: ScalarOrSchedule = 0.001,
    beta_1: float = 0.9,
    beta_2: float = 0.999,
    epsilon: float = 1e-7,
    amsgrad: bool = False,
) -> chain:
    """Adam with the paper's epsilon hat: `densify`, `scale_by_tf_adam`, `scale_by_learning_rate`.

    With amsgrad: `scale_by_tf_amsgrad`.

    Reference: `keras.optimizers.Adam`.
    """
    return _adam(learning_rate, beta_1, beta_2, epsilon, amsgrad)


@keras3_optimizer
def AdamW(
    learning_rate: ScalarOrSchedule = 0.001,
    weight_decay: ZeroIsNone = 0.004,
    beta_1: float = 0.9,
    beta_2: float = 0.999,
    epsilon: float = 1e-7,
    amsgrad: bool = False,
) -> chain:
    """`Adam` with a weight decay of 0.004 by default: `decoupled_weight_decay`.

    Reference: `keras.optimizers.AdamW`.
    """
    return _adam(learning_rate, beta_1, beta_2, epsilon, amsgrad)


def _adam(
    learning_rate: ScalarOrSchedule, beta_1: float, beta_2: float, epsilon: float, amsgrad: bool
) -> chain:
    parts = adam_parts(beta_1, beta_2, epsilon, amsgrad)
    return chain(*parts, scale_by_learning_rate(learning_rate))


@keras3_optimizer
def Adamax(
    learning_rate: ScalarOrSchedule = 0.001,
    beta_1: float = 0.9,
    beta_2: float = 0.999,
    epsilon: float = 1e-7,
) -> chain:
    """AdaMax with epsilon added to the maximum: `scale_by_adamax`, `scale_by_learning_rate`.

    Reference: `keras.optimizers.Adamax`.
    """
    rule = scale_by_adamax(beta_1, beta_2, epsilon, eps_in_max=False)
    return chain(rule, scale_by_learning_rate(learning_rate))


@keras3_optimizer
def Nadam(
    learning_rate: ScalarOrSchedule = 0.001,
    beta_1: float = 0.9,
    beta_2: float = 0.999,
    epsilon: float = 1e-7,
) -> chain:
    """Adam with Nesterov momentum that warms up: `scale_by_nadam`, `scale_by_learning_rate`.

    The momentum's schedule is that of Keras 2 with schedule_decay=1.

    Reference: `keras.optimizers.Nadam`.
    """
    rule = scale_by_nadam(beta_1, beta_2, epsilon, 1.0)
    return chain(rule, scale_by_learning_rate(learning_rate))


@keras3_optimizer
def Ftrl(
    learning_rate: ScalarOrSchedule = 0.001,
    learning_rate_power: float = -0.5,
    initial_accumulator_value: float = 0.1,
    l1_regularization_strength: float = 0.0,
    l2_regularization_strength: float = 0.0,
    l2_shrinkage_regularization_strength: float = 0.0,
    beta: float = 0.0,
) -> chain:
    """Follow the regularized leader: `step_by_ftrl`.

    Reference: `keras.optimizers.Ftrl`.
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
    return chain(rule)


@keras3_optimizer
def Lion(
    learning_rate: ScalarOrSchedule = 0.001, beta_1: float = 0.9, beta_2: float = 0.99
) -> chain:
    """The sign of an interpolated momentum: `scale_by_lion`, `scale_by_learning_rate`.

    Reference: `keras.optimizers.Lion`.
    """
    return chain(scale_by_lion(beta_1, beta_2), scale_by_learning_rate(learning_rate))


@keras3_optimizer
def Lamb(
    learning_rate: ScalarOrSchedule = 0.001,
    beta_1: float = 0.9,
    beta_2: float = 0.999,
    epsilon: float = 1e-7,
) -> chain:
    """Adam's step with the norm of its array: `scale_by_adam`, `scale_by_trust_ratio`.

    Then `scale_by_learning_rate`. A weight decay comes before the step, which takes the norm of the
    array that has decayed.

    Reference: `keras.optimizers.Lamb`.
    """
    rule = scale_by_adam(beta_1, beta_2, epsilon)
    return chain(rule, scale_by_trust_ratio(), scale_by_learning_rate(learning_rate))


@keras3_optimizer
def Adafactor(
    learning_rate: ScalarOrSchedule = 0.001,
    beta_2_decay: float = -0.8,
    epsilon_1: float = 1e-30,
    epsilon_2: float = 1e-3,
    clip_threshold: float = 1.0,
    relative_step: bool = True,
) -> chain:
    """Second moments of rows and columns: `scale_by_factored_rms`, `clip_by_block_rms`.

    Then `scale_by_param_block_rms` and the learning rate, at most 1 / sqrt(t), also without
    relative_step, as in the original. In an array of more than two dimensions the last two axes
    form the matrix.

    Reference: `keras.optimizers.Adafactor`.
    """
    return chain(
        scale_by_factored_rms(
            decay_rate=-beta_2_decay,
            min_dim_size_to_factor=0,
            epsilon=epsilon_1,
            last_axes=True,
        ),
        clip_by_block_rms(clip_threshold),
        scale_by_param_block_rms(epsilon_2),
        scale_by_learning_rate(at_most_inverse_sqrt(learning_rate)),
    )


@keras3_optimizer
def ScheduleFreeAdamW(
    learning_rate: ScalarOrSchedule = 0.0025,
    beta_1: float = 0.9,
    beta_2: float = 0.999,
    epsilon: float = 1e-8,
    warmup_steps: NonNegativeInt = 0,
    weight_decay: ZeroIsNone | None = None,
) -> chain:
    """Adam with an average in the place of a schedule: `step_by_schedule_free_adam`.

    Evaluate and save `eval_params(state, params)`, the average, which Keras does not offer: it
    evaluates and saves the parameters. The weight decay moves these alone, in the rule itself.

    Reference: `keras.optimizers.ScheduleFreeAdamW`.
    """
    decay = 0.0 if weight_decay is None else weight_decay
    return chain(
        step_by_schedule_free_adam(learning_rate, beta_1, beta_2, epsilon, warmup_steps, decay)
    )


@keras3_optimizer
def Muon(
    learning_rate: ScalarOrSchedule = 0.001,
    adam_beta_1: float = 0.9,
    adam_beta_2: float = 0.999,
    adam_weight_decay: ZeroIsNone | None = 0.004,
    epsilon: float = 1e-7,
    weight_decay: ZeroIsNone | None = 0.004,
    exclude_layers: Sequence[str] | None = None,
    exclude_embeddings: bool = True,
    muon_a: Fixed = 3.4445,
    muon_b: Fixed = -4.7750,
    muon_c: Fixed = 2.0315,
    adam_lr_ratio: float = 1.0,
    momentum: float = 0.95,
    ns_steps: Size = 5,
    nesterov: bool = True,
    rms_rate: float | None = 0.2,
) -> chain:
    """Orthogonalized momentum for matrices, Adam for the rest: a `partition`.

    Matrices: `trace`, `scale_by_muon` without an average, `scale_by_shape`. Parameters whose path
    contains "embedding", or matches a pattern of exclude_layers, are Adam's too. Each group decays
    by its own weight decay times the learning rate.

    Reference: `keras.optimizers.Muon`.
    """
    parts: list[Any] = [
        trace(momentum, nesterov),
        scale_by_muon((muon_a, muon_b, muon_c), ns_steps, beta=0.0, eps=1e-7, nesterov=False),
    ]
    if rms_rate is not None:
        parts.append(scale_by_shape(consistent_rms=rms_rate))
    matrices = chain(*parts, scale_by_learning_rate(learning_rate))
    adam_rate = _rate_times(learning_rate, adam_lr_ratio)
    others = _adam(adam_rate, adam_beta_1, adam_beta_2, epsilon, amsgrad=False)
    excluded = ~(ndim_at_least(2) & ~ndim_at_least(3))
    patterns = list(exclude_layers or ())
    if exclude_embeddings:
        patterns.append("(?i)embedding")
    for pattern in patterns:
        excluded = excluded | path_matches(pattern, optional=True)
    groups = {
        "muon": _with_weight_decay(matrices, weight_decay, learning_rate),
        "adam": _with_weight_decay(others, adam_weight_decay, learning_rate),
    }
    return chain(partition(groups, label_by(("adam", excluded), ("muon", True))))


def _rate_times(learning_rate: Any, ratio: Any) -> Any:
    if callable(learning_rate):
        return learning_rate if ratio == 1 else product_schedule(learning_rate, ratio)
    return learning_rate * ratio


def _with_weight_decay(tx: chain, weight_decay: Any, learning_rate: Any) -> Any:
    if weight_decay is None or not is_present(weight_decay):
        return tx
    return decoupled_weight_decay(tx, weight_decay, learning_rate=learning_rate, decay_first=True)


# -------------------------------------------------------------------- the rule of ScheduleFreeAdamW


class ScheduleFreeAdamState(NamedTuple):
    """State of `step_by_schedule_free_adam`."""

    count: Array  # int32 scalar; the number of updates so far
    b1: Array  # scalar, at least float32; the b1 with which the parameters were computed
    z: Slot  # like params, at least float32; where the gradients lead
    nu: NonNegativeSlot  # like params, at least float32; the second moment v

    def evaluated(self, params: Params | None) -> dict[str, PyTree]:
        """Return the average x, which follows from the parameters y and from z."""
        return {"x": average_of(self, params)}

    def exchanged(self, name: str, params: Params) -> "SwappedScheduleFreeAdamState":
        """Return the state that keeps the parameters y, where x is in their place."""
        return SwappedScheduleFreeAdamState(*self, y=copied_params(params))


class SwappedScheduleFreeAdamState(NamedTuple):
    """State of `step_by_schedule_free_adam` after `swap`, which must be swapped again to go on."""

    count: Array  # as in `ScheduleFreeAdamState`, and so are the next three
    b1: Array
    z: Slot
    nu: NonNegativeSlot
    y: Slot  # like params, at least float32; the parameters

    def evaluated(self, params: Params | None) -> dict[str, PyTree]:
        """Return the parameters y."""
        return {"y": self.y}

    def exchanged(self, name: str, params: Params) -> ScheduleFreeAdamState:
        """Return the state without y, which is in its place again."""
        return ScheduleFreeAdamState(*self[:4])


@transform
class step_by_schedule_free_adam(ArrayRule):
    """Emit the whole step of schedule-free Adam as Keras computes it, its weight decay included.

    Update rule, from z = y = the parameter at `init`, v = 0, and t = 1, 2, ... the step, with
    r = learning_rate(t - 1):

        y <- y - weight_decay r y
        v <- b2 v + (1 - b2) |g|^2
        x = (y - (1 - b1) z) / b1
        z <- z - r min(t / warmup_steps, 1) g / (sqrt(v / (1 - b2^t)) + eps)
        x <- x + (z - x) / t
        y <- b1 x + (1 - b1) z

    All steps have the same weight in the average x, also those of the warm-up. The decay moves y
    and, with it, x, but not z; in `schedule_free_adamw` it moves z. Evaluate and save x:
    `eval_params(state, params)`, or `swap`.

    The step includes the learning rate, and points downhill. It must be the last part of a chain.
    Every entry moves towards the average in every step, so that it refuses row-sparse gradients.

    Args:
      learning_rate: at least 0, or a schedule.
      b1: the share of x in y, in (0, 1].
      b2: the decay of the average of the squared gradients, in [0, 1).
      eps: added to the root, at least 0; with 0, an entry that never had a gradient stays put.
      warmup_steps: how many steps the rate of z climbs, at least 0; 0 for none.
      weight_decay: the share of y that decays, times the learning rate, at least 0.

    Raises:
      ValueError: at update, if no parameters are given.

    Reference: `keras.optimizers.ScheduleFreeAdamW`; Defazio et al., The Road Less Scheduled, 2024,
    Algorithm 1.
    """

    learning_rate: NonNegativeOrSchedule
    b1: PositiveShare = 0.9
    b2: Decay = 0.999
    eps: NonNegative = 1e-8
    warmup_steps: NonNegativeInt = 0
    weight_decay: NonNegative = 0.0

    State = ScheduleFreeAdamState
    locality = "entry"
    handles_rows = False
    why_no_rows = "moves every row towards an average"
    handles_complex = True
    needs_params = True
    follows = ("z",)

    def init(self, params):
        """Return a copy of the parameters, and second moments of 0."""
        return ScheduleFreeAdamState(
            count=zero_count(),
            b1=jnp.array(scalar(self.b1), copy=True),
            z=copied_params(params),
            nu=real_zeros_like(params),
        )

    def prepare(self, updates, state, params):
        """Return the advanced count, and the numbers of this step."""
        rate = value_at(self.learning_rate, state.count)
        decay = rate * scalar(self.weight_decay)
        inverse = 1 / scalar(state.b1)  # of the parameters; b1 may have changed since
        state, of_v = count_and_debias(state, self.b2)
        rate = rate * jnp.minimum(
            scalar(state.count) / jnp.maximum(scalar(self.warmup_steps), 1), 1
        )
        state = state._replace(b1=cast(scalar(self.b1), state.b1.dtype))
        return state, rate, decay, of_v, 1 / scalar(state.count), inverse

    def rule(self, g, z, v, p, rate, decay, of_v, share, inverse):
        """Return the step of y, z and the second moment."""
        g = bounded_square(g)
        v = saturated(self.b2 * v + (1 - self.b2) * abs_sq(g))
        x = z + inverse * (p - decay * p - z)
        z = z - rate * over_root(g, of_v * v, self.eps)
        x = x + share * (z - x)
        return z + self.b1 * (x - z) - p, z, v
