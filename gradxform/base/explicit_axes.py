"""Updates of arrays that are divided over explicit mesh axes, which `jax.make_mesh` makes.

The types of arrays say how they lie along explicit axes, and JAX refuses an operation whose result
could lie in several ways: a product that sums along a divided axis, a reshape that joins two, a
decomposition. Callers need not know how an optimizer computes, so `update` leaves these axes to the
compiler, as a mesh with automatic axes does. Its results have the types of what they replace.
"""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax

from gradxform._jax.versions import Tracer, is_tracer, is_tracing
from gradxform.leaves.no_gradient import given_by_name
from gradxform.types import Array, OptState, Params, PyTree, Updates
from gradxform.values.extra_args import OF_PARAMS, wrapped_function


def explicit_mesh(tree: PyTree) -> Any:
    """Return the mesh over whose explicit axes an array of `tree` is divided, or None."""
    for x in jax.tree.leaves(tree):
        if isinstance(x, jax.Array):
            sharding: Any = getattr(jax.typeof(x) if isinstance(x, Tracer) else x, "sharding", None)
            if isinstance(sharding, jax.NamedSharding) and sharding.mesh.explicit_axes:
                if any(axes is not None for axes in sharding.spec):
                    return sharding.mesh
    return None


def update_freed(
    mesh: Any,
    update: Callable[..., tuple[Updates, OptState]],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    returns_params: bool = False,
) -> tuple[Updates, OptState]:
    """Return `update(*args, **kwargs)` with the explicit axes of `mesh` left to the compiler.

    The new updates, or parameters, lie like the old ones, and the new state like the old one.
    Functions of the parameters among the extra arguments see explicit axes.
    """
    axes = _FreedAxes(mesh)
    arguments = given_by_name(args, kwargs)
    params = arguments.get("params")
    freed = {k: axes.free(x) for k, x in arguments.items()}
    # What such a function gets back of the extra arguments lies as the caller gave it.
    given = {k: (freed[k], x) for k, x in arguments.items()}

    def outside(function: Callable[..., Any]) -> Callable[..., Any]:
        return axes.outside(function, params, given)

    functions = {
        k: wrapped_function(arguments[k], outside) for k in OF_PARAMS if callable(arguments.get(k))
    }
    with axes.within():
        updates, state = update(**freed | functions)
    # An update lies like its gradient, or, where that has another shape, such as one with an axis
    # of examples, like its parameter.
    like = (params,) if returns_params else (arguments["updates"], params)
    placed = axes.place(updates, *like)
    return placed, axes.place(state, arguments["state"])


class _FreedAxes:
    """A mesh with explicit axes, and the same mesh with these axes left to the compiler."""

    def __init__(self, mesh: Any) -> None:
        freed = dict.fromkeys(mesh.explicit_axes, jax.sharding.AxisType.Auto)
        self._mesh = mesh if isinstance(mesh, jax.sharding.AbstractMesh) else mesh.abstract_mesh
        self._freed = self._mesh.update_axis_types(freed)
        self._around = jax.sharding.get_abstract_mesh()
        # Outside of a trace, arrays have devices, and putting them where they are copies nothing.
        self._devices = None if self._mesh is mesh else mesh.devices

    def within(self) -> Any:
        """Return a context in which the axes are left to the compiler."""
        return jax.sharding.use_abstract_mesh(self._freed)

    def free(self, tree: PyTree) -> PyTree:
        """Return a tree whose types do not say how its arrays lie; they stay where they are."""
        with self.within():
            return self._retyped(tree, self._mesh, self._freed, lambda i, x: _spec(x))

    def place(self, tree: PyTree, *olds: PyTree) -> PyTree:
        """Return a tree whose arrays lie like those of `olds` in their places; others are whole."""
        treedef = jax.tree.structure(tree)
        like = [jax.tree.leaves(old) for old in olds if jax.tree.structure(old) == treedef]

        def spec(i: int, x: Array) -> Any:
            same = (old[i] for old in like if isinstance(old[i], jax.Array))
            return next((_spec(old) for old in same if old.shape == x.shape), jax.P())

        return self._retyped(tree, self._freed, self._mesh, spec)

    def outside(
        self,
        function: Callable[..., Any],
        params: Params,
        given: Mapping[str, tuple[Any, Any]],
    ) -> Callable[..., Any]:
        """Return a function of the parameters that calls `function` with explicit axes.

        Args:
          function: the function.
          params: the parameters, which say how those that it gets shall lie.
          given: arguments by name, with free axes and as they were.
        """

        @functools.wraps(function)
        def call(freed: Params, *args: Any, **kwargs: Any) -> Any:
            placed = self.place(freed, params)
            known = {k: given[k] for k in kwargs if k in given}
            kwargs |= {k: old for k, (new, old) in known.items() if kwargs[k] is new}
            with jax.sharding.use_abstract_mesh(self._around):
                result = function(placed, *args, **kwargs)
            return self.free(result)

        return call

    def _retyped(
        self, tree: PyTree, old: Any, new: Any, spec: Callable[[int, Array], Any]
    ) -> PyTree:
        """Return a tree with the arrays on one of the meshes typed as on the other."""
        leaves, treedef = jax.tree.flatten(tree)
        at = [i for i, x in enumerate(leaves) if _mesh(x) == old]
        if not at:
            return tree
        xs, specs = [leaves[i] for i in at], [spec(i, leaves[i]) for i in at]
        if self._devices is None or is_tracing() or any(map(is_tracer, xs)):
            if new is self._freed:  # JAX does not let a type name axes that the compiler divides
                specs = [jax.P()] * len(at)
            retyped: Any = jax.sharding.reshard(xs, [jax.NamedSharding(new, s) for s in specs])
        else:
            mesh = jax.sharding.Mesh(self._devices, new.axis_names, new.axis_types)
            kinds = [x.sharding.memory_kind for x in xs]
            places = zip(specs, kinds, strict=True)
            retyped = jax.device_put(
                xs, [jax.NamedSharding(mesh, s, memory_kind=kind) for s, kind in places]
            )
        for i, x in zip(at, retyped, strict=True):
            leaves[i] = x
        return treedef.unflatten(leaves)


def _mesh(x: Any) -> Any:
    """Return the mesh in the type of a leaf; None if it is not an array."""
    return jax.typeof(x).sharding.mesh if isinstance(x, jax.Array) else None


def _spec(x: Array) -> Any:
    """Return how an array lies along the axes of its mesh."""
    sharding: Any = jax.typeof(x).sharding if is_tracer(x) else x.sharding
    return getattr(sharding, "spec", jax.P())
