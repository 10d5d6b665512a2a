"""The gradients of a loss for some of the parameters."""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp

from gradxform._names.deferred import signature_of
from gradxform.errors import TypeAndRuntimeError, TypeAndValueError, must_be
from gradxform.leaves import Path, dtype_of, is_hole, path_str, shape_of, with_paths
from gradxform.leaves.no_gradient import takes_gradient
from gradxform.sparse.gradient import value_and_grad_of_part
from gradxform.sparse.loss import check_loss, pair_of
from gradxform.training.dependence import Dependence
from gradxform.training.var_list import quoted_paths, selected_by_choice
from gradxform.types import Array, Params, Updates
from gradxform.wrappers.loss_scale import times_scale


def compute_gradients(
    loss_fn: Callable[..., Any],
    params: Params,
    *batch: Any,
    var_list: Any = None,
    grad_loss: Any = None,
    has_aux: bool = False,
    sparse: Any = None,
) -> tuple[Any, Updates]:
    """Return a loss and its gradients for some of the parameters, None for all others.

    `(loss, gradients)` of `loss_fn(params, *batch)`, or `((loss, aux), gradients)`, as
    `jax.value_and_grad` returns them. What `var_list` leaves out costs no backward pass: it is a
    constant of the loss. Its gradient is None, which every transform takes for "leave this
    parameter, and its slots, as they are". So is that of an integer, a key or a function among the
    parameters, and of a parameter on which the loss does not depend, for which `jax.grad` has
    zeros. Works under `jax.jit`, `jax.lax.scan` and
    `distributed.Replicas`; `make_step` compiles it together with the update.

    A loss that is not a scalar needs `grad_loss`. (TensorFlow would sum it.) For an optimizer with
    `loss_scale`, return `scaled_loss(loss, state)` from `loss_fn`; `make_step` does so itself.

    Args:
      loss_fn: returns a real scalar, or with `has_aux` a pair of that and anything else.
      params: the parameters.
      *batch: the other arguments of `loss_fn`, such as a batch.
      var_list: which parameters to differentiate: a list of paths such as `encoder/kernel`, each of
        a leaf or of a whole branch; a mask such as `path_matches("kernel$")`; a tree of booleans;
        or a function that returns one of these. Defaults to all that can have a gradient.
        Keyword-only, like the rest.
      grad_loss: the gradient of something else with respect to the loss, by which all gradients
        are multiplied: a number, or an array of the shape of the loss. Defaults to 1.
      has_aux: whether `loss_fn` returns a pair.
      sparse: the tables whose gradients shall be `RowSparse`, chosen as in `var_list` or by a
        function `where(path, leaf)`; see `sparse.value_and_grad`. Defaults to none.

    Raises:
      TypeError: if `loss_fn` is not a function or does not return a real scalar, or if a selected
        parameter is not a floating array.
      ValueError: if `var_list` or `sparse` names what is not there or selects nothing, or
        `grad_loss` does not have the shape of the loss.
    """
    asked = Differentiation(var_list, has_aux, sparse)
    return gradients_of("compute_gradients", loss_fn, params, batch, asked, grad_loss)


class Differentiation(NamedTuple):
    """How a loss is differentiated: the static arguments of `compute_gradients`."""

    var_list: Any = None
    has_aux: bool = False
    sparse: Any = None


class LayersInBackward(Protocol):
    """Updates layers while a loss is differentiated."""

    def keep(self, on: list[bool]) -> list[bool]:
        """Return which of the trained parameters are differentiated as without layers."""
        ...

    def value_and_grad(
        self, objective: Callable[..., Any], chosen: Params, as_gradients: Callable[..., Updates]
    ) -> tuple[Any, Updates]:
        """Return the value of the objective with what else it returns, and its cotangents."""
        ...


def check_loss_fn(part: str, loss_fn: Any) -> None:
    """Require a function."""
    if not callable(loss_fn):
        raise TypeAndRuntimeError(
            must_be(part, "loss_fn", "a function of the parameters that returns the loss", loss_fn)
        )


def check_call(call: str, loss_fn: Any, *args: Any, **kwargs: Any) -> None:
    """Require a function that can be called with these arguments.

    Args:
      call: the part and how it calls its argument: "make_step: loss_fn(params, *batch)".
      loss_fn: the function.
      *args: the parameters, and what comes after them.
      **kwargs: the arguments by name.
    """
    try:
        signature = signature_of(loss_fn)
    except (TypeError, ValueError):  # of a function that does not tell its arguments
        return
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        part, _, form = call.partition(": ")
        name = form.partition("(")[0]
        try:
            signature.bind()
        except TypeError:
            remedy = f"Write it as a function of these arguments, or pass a lambda as {name}."
        else:
            remedy = (
                "A loss without arguments cannot be differentiated: let it take the parameters."
            )
        n = len(args) + len(kwargs)
        raise TypeError(
            f"{part}: {name} is called as {form}, here with {n} argument{'s' * (n > 1)}: {error}. "
            f"{remedy}"
        ) from None


def gradients_of(
    part: str,
    loss_fn: Any,
    params: Params,
    args: Any,
    asked: Differentiation,
    grad_loss: Any,
    scale: Array | None = None,
    layers: LayersInBackward | None = None,
) -> tuple[Any, Updates]:
    """Return what `compute_gradients` returns; `part` is the name in messages.

    With a scale the gradients are those of the loss times the scale. With `layers`, those of layers
    are not returned: the backward pass updates them.
    """
    check_loss_fn(part, loss_fn)
    check_call(f"{part}: loss_fn(params, *batch)", loss_fn, params, *args)
    leaves, treedef = jax.tree.flatten(params)
    paths = [path for path, leaf in with_paths(params) if not is_hole(leaf)]
    on = _params(part, "var_list", asked.var_list, params, paths, default=True)
    if asked.var_list is None and any(map(takes_gradient, leaves)):
        on = list(map(takes_gradient, leaves))
    tables = _params(part, "sparse", asked.sparse, params, paths, default=False)
    for path, leaf, is_on in zip(paths, leaves, on, strict=True):
        if is_on:
            _check_takes_gradient(part, path, leaf)

    if layers is not None:
        on = layers.keep(on)
    sparse = {path for path, i, table in zip(paths, on, tables, strict=True) if i and table}
    dependence = Dependence()

    def objective(chosen: Params) -> tuple[Any, tuple[Any, Any]]:
        next_chosen = iter(jax.tree.leaves(chosen))
        all_leaves = [next(next_chosen) if i else x for i, x in zip(on, leaves, strict=True)]
        for i, path in enumerate(paths):
            if on[i] and path not in sparse:
                all_leaves[i] = dependence.watched(i, all_leaves[i])
        out = loss_fn(jax.tree.unflatten(treedef, all_leaves), *args)
        loss, aux = pair_of(part, out) if asked.has_aux else (out, None)
        total = _scalar_to_differentiate(part, loss, grad_loss)
        return (total if scale is None else times_scale(part, total, scale)), (loss, aux)

    # What is left out is a constant to JAX: no cotangent of it is ever computed.
    chosen = jax.tree.unflatten(
        treedef, [x if i else None for i, x in zip(on, leaves, strict=True)]
    )

    def as_gradients(cotangents: Updates) -> Updates:
        # A parameter without an influence stays where it is, as under a gradient tape.
        gs = treedef.flatten_up_to(cotangents)
        used = [path in sparse or i in dependence.indices for i, path in enumerate(paths)]
        return treedef.unflatten(g if u else None for g, u in zip(gs, used, strict=True))

    if layers is not None:
        (_, (loss, aux)), gradients = layers.value_and_grad(objective, chosen, as_gradients)
        return ((loss, aux) if asked.has_aux else loss), as_gradients(gradients)
    if sparse:
        both = value_and_grad_of_part(
            part, objective, lambda path, _: path in sparse, 0, True, "error", unused=None
        )
    else:
        both = jax.value_and_grad(objective, has_aux=True)
    (_, (loss, aux)), gradients = both(chosen)
    return ((loss, aux) if asked.has_aux else loss), as_gradients(gradients)


def _params(
    part: str, field: str, choice: Any, params: Params, paths: list[Path], default: bool
) -> list[bool]:
    """Return for each parameter whether the field selects it."""
    if choice is None:
        return [default] * len(paths)
    chosen = selected_by_choice(part, field, choice, params)
    if not any(chosen):
        raise ValueError(
            f"{part}: {field} selects none of the parameters {quoted_paths(paths) or '(none)'}."
        )
    return chosen


def _check_takes_gradient(part: str, path: Path, leaf: Any) -> None:
    try:
        dtype = dtype_of(leaf)
        is_floating = jnp.issubdtype(dtype, jnp.inexact)
    except TypeError:
        dtype, is_floating = type(leaf).__name__, False
    if not is_floating:
        raise TypeAndValueError(
            f"{part}: parameter {path_str(path)} has dtype {dtype}; only floating parameters can "
            "be differentiated. Leave it out with var_list."
        )


def _scalar_to_differentiate(part: str, loss: Any, grad_loss: Any) -> Array:
    """Return the scalar to differentiate: the loss, or its product with its cotangent."""
    if grad_loss is None:
        check_loss(part, loss)
        return loss
    dtype = getattr(loss, "dtype", None)
    if dtype is None or not jnp.issubdtype(dtype, jnp.floating):
        check_loss(part, loss)  # a Python float passes
        loss = jnp.asarray(loss)
    is_number = isinstance(grad_loss, int | float) and not isinstance(grad_loss, bool)
    if not is_number and not jnp.issubdtype(getattr(grad_loss, "dtype", bool), jnp.floating):
        raise TypeError(must_be(part, "grad_loss", "a real number or array", grad_loss))
    cotangent = jnp.asarray(grad_loss)
    if shape_of(cotangent) not in ((), shape_of(loss)):
        raise ValueError(
            f"{part}: grad_loss has shape {shape_of(cotangent)}, the loss has {shape_of(loss)}."
        )
    return jnp.sum(jax.lax.stop_gradient(cotangent.astype(loss.dtype)) * loss)
