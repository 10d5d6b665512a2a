"""Leaves of the parameters that no gradient can have: integers, keys, functions, strings.

To every transform they are holes, as None is: `init` keeps nothing for them, and `update` passes
the None or the `float0` that a gradient has in their place. So are the indices of JAX's sparse
arrays, which a gradient may repeat. Functions of the parameters among the extra arguments, such as
`value_fn`, get them all the same.
"""

import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gradxform.errors import name_of, shown
from gradxform.leaves.trees import (
    Path,
    is_abstract,
    is_hole,
    is_update_leaf,
    kinds_of_sparse,
    map_with_paths,
    path_at,
    with_paths,
)
from gradxform.types import MaskedNode, OptState, Params, PyTree, Updates
from gradxform.values.extra_args import OF_PARAMS, wrapped_function


@functools.cache
def _is_dtype_of_jax(dtype: Any) -> bool:
    """Whether JAX has arrays of a dtype: of no objects, texts, dates or records of NumPy."""
    if dtype == jax.dtypes.float0 or jnp.issubdtype(dtype, jax.dtypes.extended):
        return True
    is_long = any(
        dtype == long and np.dtype(long) != short
        for long, short in ((np.longdouble, np.float64), (np.clongdouble, np.complex128))
    )
    return not is_long and any(jnp.issubdtype(dtype, kind) for kind in (jnp.number, jnp.bool_))


def _is_kind_of_array(kind: type) -> bool:
    # Not a class such as jnp.float32, which has a dtype, too, and not a sparse matrix of SciPy.
    return not any(vars(base).keys() & {"__call__", "tocsr"} for base in kind.__mro__)


def takes_gradient(x: Any) -> bool:
    """Whether a leaf is a floating or complex array or number."""
    return _is_differentiable(type(x), getattr(x, "dtype", None))


def take_gradients(leaves: list[Any]) -> bool:
    """Whether all leaves are floating or complex arrays or numbers."""
    kinds = {(type(x), getattr(x, "dtype", None)) for x in leaves}
    return all(itertools.starmap(_is_differentiable, kinds))


@functools.cache
def _is_differentiable(kind: type, dtype: Any) -> bool:
    if dtype is None:
        return issubclass(kind, float | complex)
    if not _is_kind_of_array(kind):  # of a class, `dtype` may be a property
        return False
    return _is_dtype_of_jax(dtype) and jnp.issubdtype(dtype, jnp.inexact)


def _is_array(x: Any) -> bool:
    if isinstance(x, int | float | complex):
        return True
    return _is_kind_of_array(type(x)) and hasattr(x, "dtype") and _is_dtype_of_jax(x.dtype)


def _is_float0_gradient(x: Any) -> bool:
    return getattr(x, "dtype", None) == jax.dtypes.float0


def as_holes(params: Params) -> Params:
    """Return parameters with a MaskedNode in the place of every leaf that no gradient can have."""
    leaves, treedef = jax.tree.flatten(params)
    if take_gradients(leaves):
        return params
    return treedef.unflatten(x if takes_gradient(x) else MaskedNode() for x in leaves)


def indices_as_float0(updates: Updates) -> Updates:
    """Return updates with a `float0` for the indices of every sparse array of JAX.

    `jax.experimental.sparse.grad` returns the indices themselves in a gradient, where
    `jax.grad(allow_int=True)` has a `float0`.
    """
    kind = kinds_of_sparse()
    if not kind or not any(map(_is_integer_array, jax.tree.leaves(updates))):
        return updates

    def one(x: Any) -> Any:
        if not isinstance(x, kind):
            return x
        return jax.tree.map(
            lambda a: np.zeros(a.shape, jax.dtypes.float0) if _is_integer_array(a) else a, x
        )

    return jax.tree.map(one, updates, is_leaf=lambda x: isinstance(x, kind))


def _is_integer_array(x: Any) -> bool:
    return _is_integer_dtype(getattr(x, "dtype", None))


@functools.cache
def _is_integer_dtype(dtype: Any) -> bool:
    return dtype is not None and jnp.issubdtype(dtype, jnp.integer)


def float0_as_holes(updates: Updates) -> Updates:
    """Return updates with a MaskedNode in the place of every `float0`, a gradient of an integer."""
    updates = indices_as_float0(updates)
    leaves, treedef = jax.tree.flatten(updates)
    if not any(map(_is_float0_gradient, leaves)):
        return updates
    return treedef.unflatten(MaskedNode() if _is_float0_gradient(x) else x for x in leaves)


def _without_gradient_as_holes(updates: Updates, params: Params) -> Params:
    """Return `as_holes(params)`, but with the leaves for which there are updates all the same."""
    if as_holes(params) is params:
        return params
    holes = {path for path, leaf in with_paths(updates) if is_hole(leaf)}

    def one(path: Path, x: Any) -> Any:
        is_hole_there = any(path[:n] in holes for n in range(len(path) + 1))
        return MaskedNode() if is_hole_there and not takes_gradient(x) else x

    return map_with_paths(one, params)


def init_without(tx: Any, init: Callable[[Params], OptState], params: Params) -> OptState:
    """Return `init(params)`, where leaves that no gradient can have are holes.

    For the shapes and dtypes of parameters a state that depends on their numbers is one of shapes
    and dtypes too.

    Raises:
      TypeError: if a leaf is not an array, and the state would have one for it.
    """
    holed = as_holes(params)
    try:
        state = init(holed)
    except TypeError:
        if not any(map(is_abstract, jax.tree.leaves(params))):
            raise
        state = jax.eval_shape(init, holed)  # it computes with the parameters
    if holed is params or all(map(_is_array, jax.tree.leaves(params))):
        return state
    stand_in = jax.ShapeDtypeStruct((1,), np.float32)
    leaves, treedef = jax.tree.flatten(params)
    arrays = [x if takes_gradient(x) or _is_array(x) else stand_in for x in leaves]
    full = jax.eval_shape(init, as_holes(treedef.unflatten(arrays)))
    if len(jax.tree.leaves(full)) == len(jax.tree.leaves(state)):
        return state
    index = next(i for i, x in enumerate(leaves) if not _is_array(x))
    where = f"{tx.written_as or name_of(tx)}: parameter {path_at(params, index)} is"
    x = leaves[index]
    if hasattr(type(x), "tocsr"):
        raise TypeError(
            f"{where} a {type(x).__name__} of SciPy, which JAX does not know: let its array .data "
            "be the parameter, or all of it, .toarray()."
        )
    if isinstance(x, np.ndarray | np.generic):
        raise TypeError(
            f"{where} an array of dtype {x.dtype}, which JAX does not have; make it one of "
            "numbers: np.asarray(x, np.float32)."
        )
    raise TypeError(
        f"{where} {shown(x)}, which is not an array, and this transform keeps arrays for each "
        "parameter. Give it the arrays alone: for an Equinox model, "
        "init(eqx.filter(model, eqx.is_array))."
    )


def update_without(
    update: Callable[..., tuple[Updates, OptState]], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Updates, OptState]:
    """Return `update(*args, **kwargs)`, where leaves without a gradient are holes.

    A `float0` comes back as it was, and as one the indices of a sparse array.
    """
    arguments = given_by_name(args, kwargs)
    updates, params = indices_as_float0(arguments.get("updates")), arguments.get("params")
    holed_updates = float0_as_holes(updates)
    holed_params = _without_gradient_as_holes(holed_updates, params)
    if holed_updates is updates and holed_params is params:
        return update(*args, **kwargs)
    if holed_params is not params:
        arguments = seen_whole(arguments, lambda part: filled(part, params), as_holes)
    arguments["updates"] = holed_updates
    if holed_params is not params:
        arguments["params"] = holed_params
    new, state = update(**arguments)
    return (new if holed_updates is updates else filled(new, updates)), state


def moved_without(moved: Callable[..., OptState]) -> Callable[..., OptState]:
    """Return a method `moved(state, old, new)` to which leaves without a gradient are holes."""

    @functools.wraps(moved)
    def call(owner: Any, state: OptState, old: Params, new: Params) -> OptState:
        return moved(owner, state, as_holes(old), as_holes(new))

    return call


def step_of_gradients(step: Callable[..., tuple[Params, Any]]) -> Callable[..., tuple[Params, Any]]:
    """Return a method `step(grads, state, params)` to which leaves without a gradient are holes.

    They come back as they were among the new parameters.
    """

    @functools.wraps(step)
    def call(owner: Any, grads: Updates, state: Any, params: Params, **extra: Any) -> Any:
        holed_grads = float0_as_holes(grads)
        holed_params = _without_gradient_as_holes(holed_grads, params)
        if holed_params is params:
            return step(owner, holed_grads, state, params, **extra)
        extra = seen_whole(extra, lambda part: filled(part, params), as_holes)
        new, state = step(owner, holed_grads, state, holed_params, **extra)
        return filled(new, params), state

    return call


def given_by_name(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of an `update` by their names."""
    return {**dict(zip(("updates", "state", "params"), args, strict=False)), **kwargs}


def filled(tree: PyTree, whole: PyTree) -> PyTree:
    """Return `tree` with the leaves of `whole` in the places of its holes."""
    if tree is whole:
        return tree
    return jax.tree.map(
        lambda old, new: old if is_hole(new) else new, whole, tree, is_leaf=is_update_leaf
    )


def value_and_grad(
    function: Callable[..., Any], argnums: int | Sequence[int] = 0, has_aux: bool = False
) -> Callable[..., Any]:
    """Return `jax.value_and_grad(function)`, for which leaves without a gradient are constants.

    Their gradient is a hole.
    """

    def call(*args: Any, **kwargs: Any) -> Any:
        single = isinstance(argnums, int)
        places = [argnums] if isinstance(argnums, int) else list(argnums)

        def of_holed(*trees: PyTree) -> Any:
            all_args = list(args)
            for i, tree in zip(places, trees, strict=True):
                all_args[i] = filled(tree, args[i])
            return function(*all_args, **kwargs)

        holed = [as_holes(args[i]) for i in places]
        numbers = 0 if single else tuple(range(len(places)))
        return jax.value_and_grad(of_holed, numbers, has_aux)(*holed)

    return call


def refuse_other_than_arrays(part: Any, params: Params) -> None:
    """Refuse parameters with a leaf that is not an array, for what compiles a program."""
    for index, x in enumerate(jax.tree.leaves(params)):
        if not _is_array(x):
            raise TypeError(
                f"{name_of(part)}: parameter {path_at(params, index)} is {shown(x)}, which is not "
                "an array, and a compiled step takes arrays alone. For an Equinox model: params, "
                "rest = eqx.partition(model, eqx.is_array); in the loss, model = "
                "eqx.combine(params, rest)."
            )


_NOTE_ON_GRAD_FN = (
    "grad_fn gets all parameters, also integers, booleans and keys. jax.grad differentiates by "
    "them only if asked: grad_fn=lambda params, i: jax.grad(loss, allow_int=True)(params)."
)


def seen_whole(
    extra: Mapping[str, Any],
    whole: Callable[[Params], Params],
    chosen: Callable[[Updates], Updates],
) -> dict[str, Any]:
    """Return extra arguments whose functions of the parameters get all parameters.

    Args:
      extra: the arguments.
      whole: returns all parameters from those that a transform sees.
      chosen: returns from the gradients of all parameters those that the transform sees.
    """

    def at(name: str, f: Any) -> Any:
        if name not in OF_PARAMS or not callable(f):
            return f

        def of_chosen(f: Callable[..., Any]) -> Callable[..., Any]:
            @functools.wraps(f)
            def function(params: Params, *args: Any, **kwargs: Any) -> Any:
                all_params = whole(params)
                try:
                    result = f(all_params, *args, **kwargs)
                except TypeError as error:
                    if name == "grad_fn" and as_holes(all_params) is not all_params:
                        error.add_note(_NOTE_ON_GRAD_FN)
                    raise
                return chosen(result) if name == "grad_fn" else result

            return function

        return wrapped_function(f, of_chosen)

    return {name: at(name, x) for name, x in extra.items()}
