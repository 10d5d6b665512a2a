"""Gradients before any transform sees them: scaled on their way back, or taken from a state."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from gradxform import tree
from gradxform._jax.programs import by_program
from gradxform.errors import shown
from gradxform.leaves import dtype_of, no_gradient
from gradxform.numerics import at_least_float32, cast, promote
from gradxform.training.gradients import check_call
from gradxform.types import Array, OptState, Params, PyTree, Updates


def scale_gradient(inputs: PyTree, scale: Any) -> PyTree:
    """Return the inputs unchanged, but with their gradient multiplied by `scale`.

    Works in reverse and in forward mode. Leaves of integers stay as they are, without a gradient.

    Args:
      inputs: a tree of arrays.
      scale: the factor of the gradient: a number, or a scalar that may be traced; -1 reverses it,
        0 stops it.
    """
    if isinstance(scale, int | float) and scale == 1:
        return inputs
    if isinstance(scale, int | float) and scale == 0:
        return jax.tree.map(lax.stop_gradient, inputs)
    return jax.tree.map(lambda x: _with_scaled_derivative(x, scale), inputs)


def _with_scaled_derivative(x: Any, scale: Any) -> Any:
    if not jnp.issubdtype(dtype_of(x), jnp.inexact):
        return x
    return _identity(jnp.asarray(x), lax.stop_gradient(jnp.asarray(scale)))


@jax.custom_jvp
def _identity(x: Array, scale: Array) -> Array:
    return x


@_identity.defjvp
def _tangent_of_scaled_derivative(primals: Any, tangents: Any) -> tuple[Array, Array]:
    x, scale = primals
    t = tangents[0]
    wide = at_least_float32(promote(t.dtype, dtype_of(scale)))
    return x, cast(cast(t, wide) * cast(scale, wide), t.dtype)


def value_and_grad_from_state(
    value_fn: Callable[..., Any],
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
) -> Callable[..., tuple[Any, Updates]]:
    """Return a function like `jax.value_and_grad(value_fn)` that looks into a state first.

    A line search has computed value and gradient at the parameters that it chose. The returned
    function is called `value_and_grad(params, *args, state=state, **kwargs)` and takes both from
    there, unless the value in the state is not finite, as before the first step. A state with both
    fields, `value` and `grad`, counts before fields of these names in different states.

    Args:
      value_fn: `value_fn(params, *args, **kwargs)`, which returns a real scalar.
      argnums: the arguments that the optimizer moves, as in `jax.value_and_grad`: of several, the
        parameters of the optimizer are a tuple.
      has_aux: whether `value_fn` returns a pair `(value, aux)`; the returned function then returns
        `((value, aux), grad)`. The state does not hold aux: `value_fn` is evaluated for it,
        without a gradient.

    Raises:
      ValueError: from the returned function, if the state holds no pair of `value` and `grad`, as
        that of a line search with `store_grad=True` does, or the gradient of some parameters only.
      KeyError: from the returned function, if the state holds several.
    """

    def value_and_grad(
        params: Params, *args: Any, state: OptState, **kwargs: Any
    ) -> tuple[Any, Updates]:
        value, grad = _stored_value_and_grad(state)
        call = "value_and_grad_from_state: value_fn(params, *args, **kwargs)"
        check_call(call, value_fn, params, *args, **kwargs)

        def look_up() -> tuple[tuple[Array, PyTree], Updates]:
            aux = value_fn(params, *args, **kwargs)[1] if has_aux else None
            return (value, jax.tree.map(jnp.asarray, aux)), grad

        def compute() -> tuple[tuple[Array, PyTree], Updates]:
            function = no_gradient.value_and_grad(value_fn, argnums, has_aux)
            new, new_grad = function(params, *args, **kwargs)
            new_value, aux = new if has_aux else (new, None)
            if jax.tree.structure(new_grad) != jax.tree.structure(grad):
                raise ValueError(
                    "value_and_grad_from_state: state holds the gradient of other trees than "
                    f"these parameters: {shown(grad)}, and not {shown(new_grad)}. A search for "
                    "some parameters only, or for one vector of all, does not know the point "
                    "where all are; use jax.value_and_grad."
                )
            # Both branches of a condition have the same dtypes.
            new_grad = jax.tree.map(lambda g, old: cast(g, dtype_of(old)), new_grad, grad)
            new_value = cast(jnp.asarray(new_value), dtype_of(value))
            return (new_value, jax.tree.map(jnp.asarray, aux)), new_grad

        (value, aux), grad = by_program(
            lambda known: lax.cond(known, look_up, compute), jnp.isfinite(value)
        )
        return ((value, aux) if has_aux else value), grad

    return value_and_grad


def stored_pair(state: OptState) -> tuple[Array, Updates] | None:
    """Return the value and the gradient in a state; None if it does not hold just one of each."""
    values, grads = _stored_values_and_grads(state)
    if len(values) != 1 or len(grads) != 1:
        return None
    return jnp.asarray(values[0]), grads[0]


def _stored_values_and_grads(state: OptState) -> tuple[list[Any], list[Any]]:
    """Return the values and the gradients in a state, those of one part of it first."""
    # A parameter may be called "value" too; only fields of states count.
    values, grads = (
        {
            path: x
            for path, x in tree.get_all_with_path(
                state, name, lambda path, _: _is_state_field(path[-1])
            )
            if x is not None
        }
        for name in ("value", "grad")
    )
    owners = {path[:-1] for path in values} & {path[:-1] for path in grads}
    if owners:  # a line search; other states may have a field of either name
        values, grads = (
            {path: x for path, x in by_path.items() if path[:-1] in owners}
            for by_path in (values, grads)
        )
    return list(values.values()), list(grads.values())


def _stored_value_and_grad(state: OptState) -> tuple[Array, Updates]:
    """Return the value and the gradient in a state."""
    pair = stored_pair(state)
    if pair is None:
        values, grads = _stored_values_and_grads(state)
        raise (KeyError if values and grads else ValueError)(
            "value_and_grad_from_state: state must hold one value and one gradient, got "
            f"{len(values)} fields named 'value' and {len(grads)} named 'grad'. Use one line "
            "search with store_grad=True, or jax.value_and_grad."
        )
    return pair


def _is_state_field(entry: Any) -> bool:
    return isinstance(entry, tree.NamedTupleKey)
