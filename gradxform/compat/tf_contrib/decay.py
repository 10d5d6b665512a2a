"""`tf.contrib.opt` of TensorFlow 1: weight decay for any optimizer, and clipping of variables.

`use_locking` is accepted and ignored, and so is the `name` of `VariableClipping`. The doors of this
module are names of `gradxform.compat.tf_contrib`.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gradxform._names.deferred import signature_of
from gradxform.compat import tf1
from gradxform.compat.arguments import mask_of_names
from gradxform.compat.called_numbers import takes_called_numbers
from gradxform.errors import name_of, shown
from gradxform.types import ScalarOrSchedule
from gradxform.values.called import number_or_called
from gradxform.wrappers.compose import chain
from gradxform.wrappers.decay import decoupled_weight_decay
from gradxform.wrappers.norm_bounds import variable_clipping
from gradxform.wrappers.sparse import only_dense, only_rows


def extend_with_decoupled_weight_decay(Base: Callable[..., Any]) -> Callable[..., chain]:
    """Return a factory like `Base` whose optimizer has decoupled weight decay.

    The factory takes `weight_decay` first, then the arguments of `Base`, and the keyword
    `decay_var_list`, an argument of the original's `apply_gradients`: the names of the parameters
    that decay; without names all decay. Its optimizer is `Base`'s in `decoupled_weight_decay`: a
    parameter first decays by weight_decay p, not scaled by the learning rate, and then takes the
    step of `Base`, which sees the decayed value.

    For a row-sparse gradient, the touched rows decay; with `tf1.GradientDescent` none do, as in the
    original.

    Args:
      Base: a factory of this package, such as `tf1.Adam`, or any function that returns a transform.

    Raises:
      TypeError: if `Base` cannot be called.

    Reference: `tf.contrib.opt.extend_with_decoupled_weight_decay`.
    """
    if not callable(Base):
        raise TypeError(
            "extend_with_decoupled_weight_decay: Base must be a factory such as tf1.Adam, got "
            f"{shown(Base)}."
        )
    factory = f"ExtendWD_{name_of(Base)}"

    def extended(
        weight_decay: ScalarOrSchedule,
        *args: Any,
        decay_var_list: Sequence[str] | None = None,
        **kwargs: Any,
    ) -> chain:
        base = Base(*args, **kwargs)
        mask = mask_of_names(factory, "decay_var_list", decay_var_list)
        weight_decay = number_or_called(weight_decay, or_schedule=False)
        decay = decoupled_weight_decay(base, weight_decay, mask, decay_first=True)
        if Base is tf1.GradientDescent:
            return chain(only_dense(decay), only_rows(base))
        return chain(decay)

    extended.__name__ = extended.__qualname__ = factory
    extended.__doc__ = (
        f"`{name_of(Base)}` with weight decay: see `extend_with_decoupled_weight_decay`.\n\n"
        f"Reference: `tf.contrib.opt.extend_with_decoupled_weight_decay`."
    )
    return _extended_with_base_signature(extended, Base)


def _extended_with_base_signature(extended: Any, Base: Callable[..., Any]) -> Any:
    """Give a factory the signature of its base between its own arguments, where it is known."""
    try:
        of_base = list(signature_of(Base).parameters.values())
    except (TypeError, ValueError):
        return extended
    first, _, listed, _ = signature_of(extended).parameters.values()
    positional = [
        p for p in of_base if p.kind is not p.KEYWORD_ONLY and p.kind is not p.VAR_KEYWORD
    ]
    rest = [p for p in of_base if p not in positional]
    keyword = [p for p in rest if p.kind is p.KEYWORD_ONLY]
    last = [p for p in rest if p.kind is p.VAR_KEYWORD]
    parameters = [first, *positional, *keyword, listed, *last]
    extended.__signature__ = inspect.Signature(parameters, return_annotation=chain)
    return extended


ExtendWD_Adagrad = extend_with_decoupled_weight_decay(tf1.Adagrad)
ExtendWD_Adam = extend_with_decoupled_weight_decay(tf1.Adam)
ExtendWD_Ftrl = extend_with_decoupled_weight_decay(tf1.Ftrl)
ExtendWD_GradientDescent = extend_with_decoupled_weight_decay(tf1.GradientDescent)
ExtendWD_Momentum = extend_with_decoupled_weight_decay(tf1.Momentum)
ExtendWD_RMSProp = extend_with_decoupled_weight_decay(tf1.RMSProp)


@takes_called_numbers
def VariableClipping(
    opt: Any,
    vars_to_clip_dims: Mapping[str, Sequence[int]],
    max_norm: float,
    use_locking: Any = False,
    colocate_clip_ops_with_vars: Any = False,
    name: Any = "VariableClipping",
) -> chain:
    """Clip parameters after every step: `variable_clipping`.

    vars_to_clip_dims maps the names of parameters to the dimensions of a norm. With a row-sparse
    gradient the touched rows are clipped, and one that several slices touch is corrected once for
    each of them, which overshoots.

    Reference: `tf.contrib.opt.VariableClippingOptimizer`.
    """
    return chain(variable_clipping(opt, vars_to_clip_dims, max_norm, per_slice=True))
