"""`tf.keras.optimizers` of TensorFlow 2.8 (OptimizerV2).

`name` is accepted and ignored. A learning rate may be one of `schedules` or any function of the
step. Row-sparse gradients move only the rows that they touch, and change only the slots of
these rows, unless an optimizer says otherwise; clipping uses the norms of the slices, before those
of one row are summed. Every optimizer counts its updates, as Keras's `iterations`.
"""

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Annotated, Any

import jax
import jax.numpy as jnp

from gradxform._names.deferred import signature_of
from gradxform.base import EmptyState, Transform, transform
from gradxform.compat.arguments import by_step, descend, not_below_zero, with_semantics
from gradxform.compat.called_numbers import with_called_numbers
from gradxform.compat.inversion import Unknown, arguments_of
from gradxform.compat.keras.configs import CLIPS, IGNORED, Door, choices_of, with_from_config
from gradxform.compat.keras.holders import (
    LossScaleOptimizer as LossScaleOptimizer,
    LossScaleOptimizerV1 as LossScaleOptimizerV1,
)
from gradxform.compat.keras.schedules import made_by, with_schedules, written_object
from gradxform.errors import did_you_mean, must_be, name_of, shown
from gradxform.interop import stateless
from gradxform.leaves import flatten_with_names
from gradxform.leaves.states import check_state
from gradxform.schedules.basic import constant_schedule
from gradxform.schedules.decay import inverse_time_decay
from gradxform.schedules.product import product_schedule
from gradxform.transforms.adam import scale_by_nadam, scale_by_tf_amsgrad
from gradxform.transforms.adam_kin import scale_by_adamax
from gradxform.transforms.adaptive import (
    scale_by_adadelta,
    scale_by_rms,
    scale_by_rss,
    scale_by_stddev,
)
from gradxform.transforms.clipping import clip
from gradxform.transforms.counts import count_updates
from gradxform.transforms.densify import densify
from gradxform.transforms.momentum import trace
from gradxform.transforms.proximal import step_by_ftrl
from gradxform.transforms.tf_adam import scale_by_tf_adam
from gradxform.types import AliasOf, Params, ScalarOrSchedule, Updates, ZeroIsNone
from gradxform.values import Value, is_live
from gradxform.values.called import Called
from gradxform.values.fields import value
from gradxform.wrappers.compose import chain

Factory = Callable[..., chain]

# The order in which Keras 2.8 clips.
_CLIPS = ("clipvalue", "clipnorm", "global_clipnorm")

# Each with its default and its annotation.
_KEYWORDS: dict[str, tuple[Any, Any]] = {
    "clipnorm": (None, ZeroIsNone | None),
    "clipvalue": (None, ZeroIsNone | None),
    "global_clipnorm": (None, ZeroIsNone | None),
    "decay": (0.0, ZeroIsNone),
    "lr": (None, Annotated[Any, AliasOf("learning_rate")]),
    "gradient_transformers": (None, Any),
    "gradient_aggregator": (None, Any),
}

_DOC = """
    Keywords of every Keras optimizer: clipvalue bounds entries, clipnorm the norm of every array,
    global_clipnorm the norm of all together, in this order; decay divides the learning rate by
    1 + decay n after n steps; lr is an alias of learning_rate; gradient_aggregator and
    gradient_transformers are functions of a list of pairs (gradient, path) that return such pairs,
    before and after the clips; name is ignored.

    Raises:
      TypeError: for an unknown keyword.
      ValueError: for negative keyword numbers, and for clipnorm and global_clipnorm together.
"""


def keras_optimizer(function: Factory) -> Door[..., chain]:
    """Add the keywords that all Keras optimizers share to a factory."""
    own = signature_of(function)
    keywords = keyword_parameters(_KEYWORDS)
    own_parameters = [p for p in own.parameters.values() if p.name not in _KEYWORDS]
    signature = own.replace(parameters=[*own_parameters, *keywords])

    def made(*args: Any, **kwargs: Any) -> chain:
        shared = {k: default for k, (default, _) in _KEYWORDS.items()}
        for k in list(kwargs):
            if k in shared:
                shared[k] = kwargs.pop(k)
            elif k not in own.parameters:
                raise TypeError(
                    f"{function.__name__}: unexpected keyword argument {k!r}."
                    f"{did_you_mean(k, signature.parameters)}"
                )
        bound = own.bind(*args, **kwargs)
        bound.apply_defaults()
        clips = _clips(function.__name__, shared)
        if clips:  # before the slices of one row are summed
            clips = with_semantics("raw", *clips).transforms
        if shared["lr"] is not None:
            bound.arguments["learning_rate"] = shared["lr"]
        if "schedule_decay" not in own.parameters:
            bound.arguments["learning_rate"] = _rate_decayed(
                function.__name__, bound.arguments["learning_rate"], shared["decay"]
            )
        first, last = _functions(function.__name__, shared)
        return chain(*first, *clips, *last, *function(*bound.args, **bound.kwargs).transforms)

    return with_keywords(function, made, signature, _DOC, _read, _write)


def _read(factory: Factory, config: Mapping[str, Any], custom_objects: Any, where: str) -> chain:
    # The decay of Nadam's config is its schedule_decay, which Keras does not read either.
    arguments = with_schedules(config, custom_objects, where)
    arguments = {k: v for k, v in arguments.items() if k not in IGNORED}
    return made_by(factory, arguments, where, TypeError)


def _write(
    factory: Factory, tx: Any, name: str | None, version: float | None
) -> dict[str, Any] | None:
    if version not in (None, 2):
        return None
    choices = choices_of(factory, tx) | {"decay": [Unknown(0.713719), 0.0]}
    arguments = arguments_of(factory, tx, choices)
    if arguments is None:
        return None
    if "schedule_decay" in arguments:
        arguments["decay"] = arguments.pop("schedule_decay")
    config = {k: v for k, v in arguments.items() if v is not None}
    title = factory.__name__
    return written_object(title, {"name": name or title, **config}, None)


def keyword_parameters(options: Mapping[str, tuple[Any, Any]]) -> list[inspect.Parameter]:
    """Return the parameters of keywords that are given with their defaults and annotations."""
    return [
        inspect.Parameter(k, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)
        for k, (default, kind) in options.items()
    ]


def with_keywords(
    function: Factory,
    made: Factory,
    signature: inspect.Signature,
    doc: str,
    read: Callable[..., chain],
    write: Callable[..., dict[str, Any] | None],
) -> Door[..., chain]:
    """Return a factory with the keywords of its generation, whose configs are read and written.

    Args:
      function: the factory without them; its docstring ends with the source.
      made: makes the optimizer.
      signature: all arguments.
      doc: what is said of the keywords, before the source.
      read: as in `with_from_config`, but with the factory first.
      write: likewise.
    """

    @functools.wraps(function)
    def factory(*args: Any, **kwargs: Any) -> chain:
        return with_called_numbers(made, factory, args, kwargs, signature)

    shown_as: Any = factory
    shown_as.__signature__ = signature
    shown_as.__annotations__ = {k: p.annotation for k, p in signature.parameters.items()}
    shown_as.__annotations__["return"] = signature.return_annotation
    head, _, reference = (function.__doc__ or "").partition("\n    Reference:")
    factory.__doc__ = f"{head.rstrip()}\n{doc}\n    Reference:{reference}"
    partial = functools.partial
    return with_from_config(partial(read, factory), partial(write, factory))(factory)


def _clips(name: str, keywords: dict[str, Any]) -> list[Any]:
    """Return the parts that clip, from the keywords of an optimizer."""
    not_below_zero(name, **{k: keywords[k] for k in (*_CLIPS, "decay", "lr")})
    bounds = {k: keywords[k] for k in _CLIPS if keywords[k] is not None}
    if "clipnorm" in bounds and "global_clipnorm" in bounds:
        raise ValueError(
            f"{name}: clipnorm and global_clipnorm cannot both be given, got "
            f"{bounds['clipnorm']!r} and {bounds['global_clipnorm']!r}."
        )
    if keywords["gradient_transformers"] and bounds:
        clipping = next(iter(bounds))
        raise ValueError(f"{name}: gradient_transformers cannot be given with {clipping}.")
    # A bound of 0 makes every update 0, as in the original; the norms' parts need one above 0.
    return [CLIPS[k](bound) if is_present(bound) else clip(0.0) for k, bound in bounds.items()]


def _functions(name: str, keywords: dict[str, Any]) -> tuple[list[Any], list[Any]]:
    """Return the parts before and after the clips, from functions of pairs (gradient, path)."""
    aggregator, transformers = keywords["gradient_aggregator"], keywords["gradient_transformers"]
    is_list = transformers is None or isinstance(transformers, list | tuple)
    if not (is_list and all(map(callable, transformers or ()))):
        raise TypeError(
            f"{name}: gradient_transformers must be a list of functions of pairs (gradient, path), "
            f"got {shown(transformers)}."
        )
    if aggregator is not None and not callable(aggregator):
        raise TypeError(
            must_be(name, "gradient_aggregator", "a function of pairs (gradient, path)", aggregator)
        )
    first = [] if aggregator is None else [aggregate_pairs(aggregator)]
    return first, [stateless(of_pairs(f)) for f in transformers or ()]


def _rate_decayed(name: str, learning_rate: Any, decay: Any) -> Any:
    """Return a schedule of the learning rate, a number or a schedule, over 1 + decay n."""
    if not is_present(decay):
        return learning_rate
    if callable(learning_rate):
        return product_schedule(learning_rate, inverse_time_decay(1.0, 1, decay))
    not_below_zero(name, learning_rate=learning_rate)
    return inverse_time_decay(learning_rate, 1, decay)


def is_present(number: Any) -> bool:
    """Whether a number of a factory asks for its part: a live one does, whatever it is."""
    return is_live(number) or bool(number)


def counting_part(learning_rate: Any) -> list[Any]:
    """Return the part that counts `iterations`, where nothing else does; a schedule counts."""
    return [] if callable(learning_rate) else [count_updates()]


def epsilon_of(epsilon: Any) -> Any:
    """Return Keras's own epsilon for None and 0, as Keras does."""
    if is_live(epsilon):
        return jnp.where(epsilon == 0, jnp.asarray(1e-7, epsilon.dtype), epsilon)
    return epsilon or 1e-7


def adam_parts(
    beta_1: float, beta_2: float, epsilon: float, amsgrad: bool
) -> tuple[densify, scale_by_tf_amsgrad | scale_by_tf_adam]:
    """Return the parts of Keras's Adam before its learning rate."""
    if amsgrad:
        return densify(), scale_by_tf_amsgrad(beta_1, beta_2, epsilon)
    return densify(), scale_by_tf_adam(beta_1, beta_2, epsilon)


# --------------------------------------------------------------------------- functions of gradients


@value
class of_pairs(Value):
    """Make a function of pairs a function of a tree, for `stateless`.

    The function gets a list of pairs `(gradient, path)`, where Keras has `(gradient, variable)`;
    the path is a string such as `encoder/kernel`. Gradients that are None are left out. It returns
    pairs with the same paths, in any order, and gradients of the same shapes.

    Args:
      function: the function of pairs.
      keyword: the argument of Keras that it is, for messages.
    """

    function: Callable[..., Any]
    keyword: str = "gradient_transformers"

    never_schedule = True

    def __call__(self, updates: Updates, params: Params | None = None) -> Updates:
        """Return the updates that the function makes.

        Raises:
          ValueError: if it returns other paths or shapes.
          TypeError: if it does not return pairs.
        """
        named, treedef = flatten_with_names(updates)
        pairs = [(g, "/".join(path)) for path, g in named]
        answer = self.function(list(pairs))
        title = f"{self.keyword}: {name_of(self.function)}"
        if not isinstance(answer, list | tuple) or not all(
            isinstance(pair, list | tuple) and len(pair) == 2 and isinstance(pair[1], str)
            for pair in answer
        ):
            raise TypeError(
                f"{title} must return a list of pairs (gradient, path), got {shown(answer)}."
            )
        by_path = {path: g for g, path in answer}
        known = [path for _, path in pairs]
        if sorted(path for _, path in answer) != sorted(known):
            raise ValueError(
                f"{title} must return the paths that it was given, {', '.join(known)}, got "
                f"{', '.join(path for _, path in answer) or 'none'}."
            )
        for g, path in pairs:
            if getattr(by_path[path], "shape", None) != g.shape:
                raise ValueError(
                    f"{title} must return a gradient of shape {g.shape} for {path}, got "
                    f"{shown(by_path[path])}."
                )
        return jax.tree.unflatten(treedef, [by_path[path] for path in known])


@transform
class aggregate_pairs(Transform):
    """Aggregate gradients by a function of pairs, unless the caller has done so.

    The extra argument `experimental_aggregate_gradients=False` of `update` leaves the gradients as
    they are, as that of Keras's `apply_gradients` does.

    Args:
      function: gets and returns a list of pairs `(gradient, path)`.

    Raises:
      TypeError: at update, if `experimental_aggregate_gradients` is not True or False, or the
        function does not return pairs.
      ValueError: at update, if it returns other paths or shapes.

    Reference: `gradient_aggregator` of `tf.keras.optimizers`.
    """

    function: Callable[..., Any]

    locality = "tree"

    def init(self, params):
        """Return the empty state."""
        return EmptyState()

    def update(
        self, updates, state, params=None, *, experimental_aggregate_gradients=True, **extra
    ):
        """Return the updates that the function makes."""
        state = check_state(self, state, EmptyState)
        if not isinstance(experimental_aggregate_gradients, bool):
            raise TypeError(
                f"{name_of(self)}: experimental_aggregate_gradients must be True or False, got "
                f"{shown(experimental_aggregate_gradients)}."
            )
        if not experimental_aggregate_gradients:
            return updates, state
        return of_pairs(self.function, "gradient_aggregator")(updates, params), state


# --------------------------------------------------------------------------------------- optimizers


def _check_momentum(name: str, momentum: Any) -> None:
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
    _check_momentum("SGD", momentum)
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
    _check_momentum("RMSprop", momentum)
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

    With amsgrad: `scale_by_tf_amsgrad`. A row-sparse gradient is
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
