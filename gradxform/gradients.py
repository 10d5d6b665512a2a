"""Gradients before any transform sees them: scaled on their way back, or taken from a state."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from gradxform import tree
from gradxform.leaves import dtype_of
from gradxform.numerics import at_least_float32, cast, promote
from gradxform.types import Array, OptState, Params, PyTree, Updates


def scale_gradient(inputs: PyTree, scale: Any) -> PyTree:
    """Return the inputs unchanged, but with their gradient multiplied by `scale`.

    Works in reverse and in forward mode. Leaves of integers have no gradient and stay as they are.

    Args:
      inputs: a tree of arrays.
      scale: the factor of the gradient: a number, or a scalar that may be traced; -1 reverses it,
        0 stops it.
    """
    if isinstance(scale, int | float) and scale == 1:
        return inputs
    if isinstance(scale, int | float) and scale == 0:
        return jax.tree.map(lax.stop_gradient, inputs)
    return jax.tree.map(lambda x: _scaled_backward(x, scale), inputs)


def _scaled_backward(x: Any, scale: Any) -> Any:
    if not jnp.issubdtype(dtype_of(x), jnp.inexact):
        return x
    return _with_tangent(jnp.asarray(x), lax.stop_gradient(jnp.asarray(scale)))


@jax.custom_jvp
def _with_tangent(x: Array, scale: Array) -> Array:
    return x


@_with_tangent.defjvp
def _scaled_tangent(primals: Any, tangents: Any) -> tuple[Array, Array]:
    x, scale = primals
    t = tangents[0]
    wide = at_least_float32(promote(t.dtype, dtype_of(scale)))
    return x, cast(cast(t, wide) * cast(scale, wide), t.dtype)


def value_and_grad_from_state(
    value_fn: Callable[..., Any],
) -> Callable[..., tuple[Array, Updates]]:
    """Return a function like `jax.value_and_grad(value_fn)` that looks into a state first.

    A line search has computed value and gradient at the parameters that it chose. The returned
    function is called `value_and_grad(params, *args, state=state, **kwargs)` and takes both from
    there, unless the value in the state is not finite, as before the first step.

    Args:
      value_fn: `value_fn(params, *args, **kwargs)`, which returns a real scalar.

    Raises:
      ValueError: from the returned function, if the state does not hold exactly one pair of `value`
        and `grad`, as that of a line search with `store_grad=True` does.
    """

    def value_and_grad(
        params: Params, *args: Any, state: OptState, **kwargs: Any
    ) -> tuple[Array, Updates]:
        value, grad = _stored(state)

        def compute() -> tuple[Array, Updates]:
            new_value, new_grad = jax.value_and_grad(value_fn)(params, *args, **kwargs)
            # Both branches of a condition have the same dtypes.
            like = (dtype_of(value), jax.tree.map(dtype_of, grad))
            return jax.tree.map(cast, (jnp.asarray(new_value), new_grad), like)

        return lax.cond(jnp.isfinite(value), lambda: (value, grad), compute)

    return value_and_grad


def stored_pair(state: OptState) -> tuple[Array, Updates] | None:
    """Return the value and the gradient in a state; None if it does not hold just one of each."""
    values, grads = _stored_fields(state)
    if len(values) != 1 or len(grads) != 1 or grads[0] is None:
        return None
    return jnp.asarray(values[0]), grads[0]


def _stored_fields(state: OptState) -> tuple[list[Any], list[Any]]:
    # A parameter may be called "value" too; only fields of states count.
    values, grads = (
        tree.get_all_with_path(state, name, lambda path, _: _is_field(path[-1]))
        for name in ("value", "grad")
    )
    return [value for _, value in values], [grad for _, grad in grads]


def _stored(state: OptState) -> tuple[Array, Updates]:
    """Return the value and the gradient in a state."""
    pair = stored_pair(state)
    if pair is None:
        values, grads = _stored_fields(state)
        raise ValueError(
            "value_and_grad_from_state: state must hold one value and one gradient, got "
            f"{len(values)} fields named 'value' and "
            f"{sum(grad is not None for grad in grads)} named 'grad'. Use a line search with "
            "store_grad=True, or jax.value_and_grad."
        )
    return pair


def _is_field(entry: Any) -> bool:
    return isinstance(entry, tree.NamedTupleKey)
