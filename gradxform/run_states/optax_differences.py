"""The fields of states that Optax stores differently, and the hyperparameters that only it has."""

import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gradxform._names.deferred import signature_of
from gradxform.errors import leaf_path, name_of, shown
from gradxform.run_states.optax_fields import (
    Converter,
    KeyPath,
    fitting_optax_array,
    optax_children_by_name,
    optax_fitted,
)
from gradxform.schedules.stateful import WrappedScheduleState
from gradxform.transforms.factored import ScaleBySM3State
from gradxform.transforms.step_size import ScaleByDistanceOverGradientsState
from gradxform.values.content import parts_of
from gradxform.wrappers.hyperparams.inject import InjectStatefulHyperparamsState, injected
from gradxform.wrappers.low_rank.galore import GaLoreState


def _sm3_vectors(like: Any, field: Any, path: KeyPath) -> Any:
    """Return SM3's maxima: the vectors of a parameter's axes, concatenated."""

    def join(like: Any, x: Any, path: KeyPath) -> Any:
        parts = optax_children_by_name(x)
        if parts is None:  # one vector already
            return fitting_optax_array(like, x, path)
        vectors = [jnp.asarray(parts[str(i)]) for i in range(len(parts)) if str(i) in parts]
        if not vectors or len(vectors) < len(parts) or any(v.ndim != 1 for v in vectors):
            raise ValueError(
                f"interop: {leaf_path(path)} must be a list of vectors, one for each axis of the "
                f"parameter, got {shown(x)}."
            )
        return fitting_optax_array(like, jnp.concatenate(vectors), path)

    return optax_fitted(like, field, path, leaf=join)


def _sm3_vectors_in_optax(vector: Any, like: Any) -> list[Any]:
    """Split a vector into the vectors of its parameter's axes."""
    return jnp.split(vector, np.cumsum(like.shape)[:-1]) if like.ndim else [vector]


def _scalars(like: Any, field: Any, path: KeyPath) -> Any:
    """Return arrays of shape (1,) as scalars."""

    def entry(like: Any, x: Any, path: KeyPath) -> Any:
        has_axis = hasattr(x, "shape") and x.shape == (1,)
        return fitting_optax_array(like, x[0] if has_axis else x, path)

    return optax_fitted(like, field, path, leaf=entry)


def _galore_projectors(like: Any, field: Any, path: KeyPath) -> Any:
    """Return GaLore's projectors, with a scalar for each array that is not projected."""

    def projector(like: Any, x: Any, path: KeyPath) -> Any:
        is_empty = like.shape == () and jnp.shape(x) == (0, 0)
        return fitting_optax_array(like, x.sum() if is_empty else x, path)

    return optax_fitted(like, field, path, leaf=projector)


def _galore_projectors_in_optax(state: Any) -> dict[str, Any]:
    """Return GaLore's projectors, without an entry where an array is not projected."""
    return {
        "projector": jax.tree.map(
            lambda x: x if x.ndim else jnp.zeros((0, 0), x.dtype), state.projector
        )
    }


FROM_OPTAX: dict[Any, Converter] = {
    (GaLoreState, "projector"): _galore_projectors,
    (ScaleBySM3State, "mu"): _sm3_vectors,
    (ScaleByDistanceOverGradientsState, "grad_sum_of_squares"): _scalars,
}
# For a class of states, the fields that Optax stores differently.
TO_OPTAX: dict[type, Callable[[Any], dict[str, Any]]] = {
    GaLoreState: _galore_projectors_in_optax,
    ScaleBySM3State: lambda state: {"mu": jax.tree.map(_sm3_vectors_in_optax, state.mu, state.nu)},
    ScaleByDistanceOverGradientsState: lambda state: {
        "grad_sum_of_squares": jax.tree.map(jnp.atleast_1d, state.grad_sum_of_squares)
    },
}

HYPERPARAMS = [
    (InjectStatefulHyperparamsState, field) for field in ("hyperparams", "hyperparams_states")
]


def optax_hyperparams(x: Any) -> dict[str, Any]:
    """Return the arguments in a transform that are hyperparameters only to Optax.

    Optax's `inject_hyperparams` takes a class, such as a dtype, for a schedule, and a seed or a
    size for a number.
    """
    if isinstance(x, injected):
        factory = x.factory.inner_factory
        theirs = getattr(sys.modules.get("optax"), name_of(factory), factory)
        parameters = signature_of(theirs).parameters
        arguments = {k: v for k, v in x.others().items() if k not in x.factory.static_args}
        numbers = {k: v for k, v in arguments.items() if type(v) is int}
        defaults = {k: parameters[k].default if k in parameters else None for k in arguments}
        dtypes = {k: _dtype_hyperparam(v, defaults[k]) for k, v in arguments.items()}
        return numbers | {k: v for k, v in dtypes.items() if v is not None}
    return {k: v for part in parts_of(x) or () for k, v in optax_hyperparams(part).items()}


def _dtype_hyperparam(x: Any, default: Any) -> Any:
    """Return the dtype that an argument, or else Optax's default for it, names as a class."""
    cls = default if x is None or x == default else x
    try:
        return jnp.dtype(cls) if isinstance(cls, type) else None
    except TypeError:  # a class that is not a dtype
        return None


def hyperparams_from_optax(static: dict[str, Any], like: Any, field: Any, path: KeyPath) -> Any:
    """Return hyperparameters without those that are only Optax's."""
    actual = optax_children_by_name(field) or {}
    return optax_fitted(
        like, {k: x for k, x in actual.items() if k in like or k not in static}, path
    )


def hyperparams_in_optax(static: dict[str, Any], state: Any) -> dict[str, Any]:
    """Return the hyperparameters with those that are only Optax's."""
    last = jnp.maximum(state.count - 1, 0)  # the step that set them
    dtypes = {k: x for k, x in static.items() if isinstance(x, jnp.dtype)}
    values = {k: last.astype(x) if k in dtypes else jnp.asarray(x) for k, x in static.items()}
    counts = {k: WrappedScheduleState(jnp.array(state.count, copy=True)) for k in dtypes}
    return {
        "hyperparams": state.hyperparams | values,
        "hyperparams_states": state.hyperparams_states | counts,
    }
