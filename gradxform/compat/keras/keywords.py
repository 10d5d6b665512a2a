"""The keywords of every Keras optimizer: clipping, a decay of the learning rate, aliases."""

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Annotated, Any

import jax.numpy as jnp

from gradxform.compat.arguments import not_below_zero, with_semantics
from gradxform.compat.called_numbers import with_called_numbers
from gradxform.compat.keras.from_config import Door, with_from_config
from gradxform.compat.keras.pairs import aggregate_pairs, of_pairs
from gradxform.errors import did_you_mean, must_be, shown
from gradxform.interop import stateless
from gradxform.schedules.decay import inverse_time_decay
from gradxform.schedules.product import product_schedule
from gradxform.transforms.adam import scale_by_amsgrad
from gradxform.transforms.clipping import clip, clip_by_block_norm, clip_by_global_norm
from gradxform.transforms.counts import count_updates
from gradxform.transforms.densify import densify
from gradxform.transforms.tf_adam import scale_by_tf_adam
from gradxform.types import AliasOf, ZeroIsNone
from gradxform.values import is_live
from gradxform.wrappers.compose import chain

Factory = Callable[..., chain]

CLIPS: dict[str, Callable[[Any], Any]] = {
    "clipnorm": clip_by_block_norm,
    "global_clipnorm": clip_by_global_norm,
    "clipvalue": clip,
}
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
    own = inspect.signature(function)
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
        clips = _clips_of_keywords(function.__name__, shared)
        if clips:  # before the slices of one row are summed
            clips = with_semantics("raw", *clips).transforms
        if shared["lr"] is not None:
            bound.arguments["learning_rate"] = shared["lr"]
        if "schedule_decay" not in own.parameters:
            bound.arguments["learning_rate"] = _rate_decayed_by_keyword(
                function.__name__, bound.arguments["learning_rate"], shared["decay"]
            )
        first, last = _functions_of_keywords(function.__name__, shared)
        return chain(*first, *clips, *last, *function(*bound.args, **bound.kwargs).transforms)

    @functools.wraps(function)
    def factory(*args: Any, **kwargs: Any) -> chain:
        return with_called_numbers(made, factory, args, kwargs, signature)

    return with_from_config(
        presented_factory(factory, signature, function.__doc__, _DOC), is_new=False
    )


def keyword_parameters(options: Mapping[str, tuple[Any, Any]]) -> list[inspect.Parameter]:
    """Return the parameters of keywords that are given with their defaults and annotations."""
    return [
        inspect.Parameter(k, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)
        for k, (default, kind) in options.items()
    ]


def presented_factory(
    factory: Callable[..., chain], signature: inspect.Signature, doc: str | None, shared_doc: str
) -> Callable[..., chain]:
    """Return `factory` with this signature, and the shared docstring before its source."""
    open_function: Any = factory
    open_function.__signature__ = signature
    open_function.__annotations__ = {
        p.name: p.annotation for p in signature.parameters.values()
    } | {"return": signature.return_annotation}
    head, _, reference = (doc or "").partition("\n    Reference:")
    factory.__doc__ = f"{head.rstrip()}\n{shared_doc}\n    Reference:{reference}"
    return factory


def adam_parts(
    beta_1: float, beta_2: float, epsilon: float, amsgrad: bool
) -> tuple[densify, scale_by_amsgrad | scale_by_tf_adam]:
    """Return the parts of Keras's Adam before its learning rate."""
    if amsgrad:
        return densify(), scale_by_amsgrad(beta_1, beta_2, epsilon, correct_after=True)
    return densify(), scale_by_tf_adam(beta_1, beta_2, epsilon)


def _clips_of_keywords(name: str, keywords: dict[str, Any]) -> list[Any]:
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


def _functions_of_keywords(name: str, keywords: dict[str, Any]) -> tuple[list[Any], list[Any]]:
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


def _rate_decayed_by_keyword(name: str, learning_rate: Any, decay: Any) -> Any:
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
