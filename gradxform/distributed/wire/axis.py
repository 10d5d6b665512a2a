"""The axis that replicas share: whether it is bound, what varies along it, and sums over it.

The same code runs under `shard_map` (with and without `check_vma`), `pmap` and `vmap`. Only
`shard_map` with `check_vma=True` tracks which values vary between replicas; there, the operand of a
sum must be marked as varying.
"""

from collections.abc import Iterable
from typing import Any

import jax
from jax import lax

from gradxform._jax import versions as _compat
from gradxform._jax.versions import varying_axes
from gradxform.errors import did_you_mean, must_be, name_of
from gradxform.leaves import path_at
from gradxform.leaves.row_sparse import is_row_sparse
from gradxform.numerics import at_least_float32, cast
from gradxform.types import Array, PyTree
from gradxform.wrappers import agree
from gradxform.wrappers.parts import all_parts

__all__ = [
    "AlreadyReducedError",
    "local_view",
]

Axes = str | tuple[str, ...]


class AlreadyReducedError(ValueError):
    """Raised for gradients that are already summed over the replicas, where local ones are due."""


def axis_names(axis: Axes) -> tuple[str, ...]:
    """Return the names of one or several axes."""
    return (axis,) if isinstance(axis, str) else tuple(axis)


def axes_argument(part: Any, argument: str, axis: Any) -> tuple[str, ...]:
    """Return the names in an argument: a name, or a tuple or a list of different names.

    Raises:
      TypeError: if it is something else.
      ValueError: if a name is empty or stands in it twice.
    """
    names = (axis,) if isinstance(axis, str) else axis
    if not isinstance(names, tuple | list) or not all(isinstance(name, str) for name in names):
        raise TypeError(
            must_be(part, argument, "the name of a mesh axis, or a tuple of names", axis)
        )
    if not all(names) or len(set(names)) != len(names):
        raise ValueError(
            must_be(part, argument, "the name of a mesh axis, or a tuple of different names", axis)
        )
    return tuple(names)


def check_in_mesh(part: Any, axis: str, names: Iterable[str]) -> None:
    """Require an axis to be among those of a mesh."""
    if axis not in names:
        raise ValueError(
            f"{name_of(part)}: the mesh lacks the axis {axis!r}, only {', '.join(names)}."
            f"{did_you_mean(axis, names)}"
        )


def check_axis_name(part: Any, field: str = "axis") -> None:
    """Require a field to be the name of an axis, or a tuple of different names."""
    axis = getattr(part, field)
    names = (axis,) if isinstance(axis, str) else axis
    are_names = isinstance(names, tuple) and all(isinstance(n, str) and n for n in names)
    if not are_names or not names or len(set(names)) != len(names):
        raise ValueError(
            must_be(part, field, "the name of a mesh axis, or a tuple of different names", axis)
        )


def check_inner_axes(part: Any) -> None:
    """Require `inner_axes` to be different names, none of them an axis of replicas."""
    inner, outer = part.inner_axes, axis_names(part.axis)
    if len(set(inner)) != len(inner):
        raise ValueError(f"{name_of(part)}: inner_axes must be different names, got {inner}.")
    both = [name for name in inner if name in outer]
    if both:
        raise ValueError(
            f"{name_of(part)}: {both[0]!r} is in axis and in inner_axes; an axis is either one of "
            "replicas or one inside a replica. Leave it out of inner_axes."
        )


def check_divided_inside(part: Any) -> None:
    """Require the states of `part.inner` not to be divided over the axis of replicas."""
    for inside in all_parts(part.inner):
        for name in getattr(inside, "divides", ()):
            if name in axis_names(part.axis):
                raise ValueError(
                    f"{name_of(part)}: {name_of(inside)} inside of it divides a state over "
                    f"{name!r}, the axis of replicas, which each have a state of their own; "
                    "give it an axis inside a replica."
                )


def check_bound(part: Any, axis: Axes) -> None:
    """Require the axis to exist where this is traced."""
    agree.check_bound(part, axis_names(axis))


def size_of(axis: Axes) -> int:
    """Return the number of replicas along the axis, a Python int."""
    size = 1
    for name in axis_names(axis):
        size *= lax.axis_size(name)
    return size


def knows_what_varies(axis: Axes) -> bool:
    """Whether JAX tracks here what varies along the axis (`check_vma=True`)."""
    return any(map(_compat.knows_what_varies, axis_names(axis)))


def varies_along(x: Any, axis: Axes) -> bool:
    """Whether `x` may vary along the axis; always True where JAX does not track it."""
    if not knows_what_varies(axis):
        return True
    return all(name in varying_axes(x) for name in axis_names(axis))


def as_varying(tree: PyTree, axis: Axes) -> PyTree:
    """Mark the tree as varying along the axis, where JAX tracks that."""
    tracked = [name for name in axis_names(axis) if _compat.knows_what_varies(name)]
    return jax.tree.map(lambda x: _compat.marked_as_varying(x, tracked), tree) if tracked else tree


def local_view(params: PyTree, axis: Axes) -> PyTree:
    """Return a view of replicated parameters whose gradients stay local to each replica.

    Under `shard_map(check_vma=True)`, the gradient of replicated parameters is summed over the
    replicas before any transform sees it. Differentiate with respect to this view instead:
    `jax.grad(loss)(local_view(params, "replica"), batch)`. Elsewhere it changes nothing.

    Args:
      params: replicated parameters.
      axis: the name of the axis, or several.

    Raises:
      TypeError, ValueError: if `axis` is something else.
    """
    return as_varying(params, axes_argument("local_view", "axis", axis))


def require_local(part: Any, grads: PyTree, axis: Axes) -> None:
    """Require gradients that have not been summed over the replicas yet.

    Raises:
      AlreadyReducedError: if JAX knows that one has been summed.
    """
    names = axis_names(axis)
    if not knows_what_varies(axis):
        return
    for i, g in enumerate(jax.tree.leaves(grads, is_leaf=is_row_sparse)):
        axes_of_parts = map(varying_axes, jax.tree.leaves(g))
        if not any(axes.issuperset(names) for axes in axes_of_parts):
            raise AlreadyReducedError(
                f"{name_of(part)}: the gradient of {path_at(grads, i)} is the same on all "
                f"replicas of {axis!r}: it has been summed over them already, as shard_map does "
                "where parameters are replicated (P()). Differentiate with respect to "
                "gradxform.distributed.local_view(params, axis), or give every replica its own "
                f"parameters (P({names[0]!r}))."
            )


# ------------------------------------------------------------------------------------------ sums


def widen(x: Array) -> Array:
    """Return an array in float32 or wider."""
    return cast(x, at_least_float32(x.dtype))


def wide_psum(x: Array, axis: Axes) -> Array:
    """Return the sum over the replicas, formed in float32 or wider, in the dtype of `x`."""
    return cast(lax.psum(as_varying(widen(x), axis), axis_names(axis)), x.dtype)
