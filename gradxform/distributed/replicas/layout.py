"""How the arguments and results of a step lie on the devices of replicas."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

from gradxform.distributed.shares.param_places import axes_in, entries_of, read_places, spec_of
from gradxform.distributed.shares.shared_leaves import is_shared
from gradxform.distributed.wire.axis import axis_names
from gradxform.errors import leaf_path
from gradxform.leaves import dtype_of, path_at
from gradxform.types import PyTree

# Whether all replicas share an array, for every leaf of a tree.
Flags = Sequence[bool]


class Layout(NamedTuple):
    """The structure of a tree, and how its leaves lie."""

    treedef: Any
    flags: Flags  # which leaves all replicas share
    inner: Sequence[PartitionSpec]  # how each leaf of one replica is divided over inner axes

    def map(self, function: Callable[[bool], Any]) -> PyTree:
        """Return a tree of the function's results for the flags."""
        return self.treedef.unflatten([function(shared) for shared in self.flags])

    def axes(self) -> PyTree:
        """Return for every leaf its axis of replicas, as `jax.vmap` takes them."""
        return self.map(lambda shared: None if shared else 0)

    def specs(self, lead: Any) -> PyTree:
        """Return for every leaf its spec, where `lead` is the axis of replicas."""
        pairs = zip(self.flags, self.inner, strict=True)
        specs = [spec if shared else PartitionSpec(lead, *spec) for shared, spec in pairs]
        return self.treedef.unflatten(specs)

    def squeezed(self, tree: PyTree) -> PyTree:
        """Remove the axis of replicas, of length 1, from every leaf that has one."""
        pairs = zip(jax.tree.leaves(tree), self.flags, strict=True)
        return self.treedef.unflatten([x if s else jnp.squeeze(x, 0) for x, s in pairs])

    def unsqueezed(self, tree: PyTree) -> PyTree:
        """Add an axis of replicas, of length 1, to every leaf that has one."""
        pairs = zip(jax.tree.leaves(tree), self.flags, strict=True)
        return self.treedef.unflatten([x if s else jnp.asarray(x)[None] for x, s in pairs])


def inner_spec(x: Any, shared: bool, axes: Iterable[str]) -> PartitionSpec:
    """Return how one replica's array is divided over inner axes, as its own sharding says."""
    place = getattr(x, "sharding", None)
    entries = entries_of(place) if isinstance(place, NamedSharding) else ()
    rows = entries if shared else entries[1:]
    return spec_of([tuple(a for a in axes_in(e) if a in axes) for e in rows])


def piece_of(
    x: Any, shared: bool, spec: PartitionSpec, sizes: Mapping[str, int]
) -> jax.ShapeDtypeStruct:
    """Return the shape and dtype of a device's piece of one replica's array."""
    shape = list(jnp.shape(x) if shared else jnp.shape(x)[1:])
    for dim, entry in enumerate(spec):
        for name in axes_in(entry):
            shape[dim] //= sizes[name]
    return jax.ShapeDtypeStruct(tuple(shape), jnp.result_type(x))


def names_in(spec: PartitionSpec) -> set[str]:
    """Return the mesh axes that a spec names."""
    return {name for entry in spec for name in axes_in(entry)}


def read_specs(tree: PyTree, specs: PyTree, allowed: tuple[str, ...]) -> list[PartitionSpec]:
    """Return for every leaf how it is divided over inner axes, as the caller says.

    Raises:
      TypeError: for anything else than a `PartitionSpec` or a `NamedSharding`.
      ValueError: if the specs do not fit the tree, or name another axis.
    """
    leaves = jax.tree.leaves(tree)
    if specs is None:
        return [PartitionSpec()] * len(leaves)
    out = []
    for i, parameter in enumerate(read_places("Replicas", tree, specs)):
        spec = PartitionSpec(*entries_of(parameter.place))
        if not names_in(spec) <= set(allowed):
            raise ValueError(
                f"Replicas: the spec of {path_at(tree, i)} names {sorted(names_in(spec))}, but it "
                f"must name only inner_axes, {allowed}; leave out the axis of replicas."
            )
        out.append(spec)
    return out


def check_divides(tree: PyTree, specs: Sequence[PartitionSpec], sizes: Mapping[str, int]) -> None:
    """Require specs to divide every array of one replica evenly."""
    for i, (x, spec) in enumerate(zip(jax.tree.leaves(tree), specs, strict=True)):
        for dim, entry in enumerate(spec):
            n = math.prod(sizes[name] for name in axes_in(entry))
            if jnp.shape(x)[dim] % n:
                raise ValueError(
                    f"Replicas: {path_at(tree, i)} of shape {jnp.shape(x)} cannot be divided into "
                    f"{n} equal pieces along dimension {dim}, as its spec says."
                )


def without_lead(specs: PyTree, axis: Any) -> PyTree:
    """Return the specs of a state over inner axes, from those that `state_specs` returns.

    Raises:
      ValueError: if replicas along an inner axis have states of their own.
    """
    flags = is_shared(specs)
    leaves, treedef = jax.tree.flatten(specs)
    for spec, shared in zip(leaves, flags, strict=True):
        if not shared and axes_in(spec[0]) != axis_names(axis):
            inside = [name for name in axes_in(spec[0]) if name not in axis_names(axis)]
            raise ValueError(
                f"Replicas: the optimizer lets replicas along {inside} differ; name these axes in "
                "axis, not in inner_axes."
            )
    return treedef.unflatten(
        [
            spec if shared else PartitionSpec(*spec[1:])
            for spec, shared in zip(leaves, flags, strict=True)
        ]
    )


# ------------------------------------------------------------------- how results of a step lie


class Known(NamedTuple):
    """A tree whose layout is known: an argument of one replica."""

    pieces: PyTree  # shapes and dtypes
    flags: Flags
    inner: Sequence[PartitionSpec]


def like_arguments(results: PyTree, known: Sequence[Known]) -> list[PartitionSpec]:
    """Return how every leaf of the results is divided over inner axes.

    A result, or a tree anywhere in the results, lies as the argument that has its structure, shapes
    and dtypes. A single array is compared with the argument at its own position alone. Anything
    else is not divided.

    Raises:
      ValueError: if several such arguments lie differently.
    """
    out: list[PartitionSpec] = []
    _add_results(results, known, "", 0, out)
    return out


def _add_results(
    x: PyTree, known: Sequence[Known], path: str, position: int | None, out: list[PartitionSpec]
) -> None:
    found = _replica_layout_of_argument(
        x, known, position, f"the result {path}" if path else "the result"
    )
    if found is not None:
        out += found
        return
    one_level = jax.tree_util.default_registry.flatten_one_level(x)
    if one_level is None:
        out.append(PartitionSpec())
        return
    is_top = not path and isinstance(x, tuple | list)
    for i, child in enumerate(one_level[0]):
        _add_results(child, known, f"{path}[{i}]", i if is_top else None, out)


def _replica_layout_of_argument(
    x: PyTree, known: Sequence[Known], position: int | None, name: str
) -> Any:
    """Return the inner specs of the argument that `x` is like; None if there is none."""
    if position is not None and position < len(known) and _kinds(x) == _kinds(known[position][0]):
        return list(known[position].inner)
    if jax.tree.structure(x) == jax.tree.structure(0):
        return None
    found = [k for k in known if _kinds(k.pieces) == _kinds(x)]
    if any(list(k.inner) != list(found[0].inner) for k in found):
        raise ValueError(
            f"Replicas: {name} has the structure and shapes of several arguments that lie "
            "differently over inner_axes; say how it lies, out_specs=..."
        )
    return list(found[0].inner) if found else None


def _kinds(tree: PyTree) -> Any:
    leaves, treedef = jax.tree.flatten(tree)
    return treedef, [(jnp.shape(x), dtype_of(x)) for x in leaves]


def refuse_different(results: PyTree, index: int, axis: Any, shared: bool) -> None:
    """Refuse a result that differs where it must not."""
    path = leaf_path(jax.tree_util.tree_flatten_with_path(results)[0][index][0])
    where = f"{path or 'a single array'} of the step's results"
    if shared:
        raise ValueError(
            f"Replicas: {where} is in shared_outputs and may differ between the replicas of "
            f"{axis!r}; average it, jax.lax.pmean(x, {axis!r}), or leave it out of shared_outputs."
        )
    raise ValueError(
        f"Replicas: {where} is not divided over the inner axis {axis!r} and may differ between the "
        f"devices along it; average it, jax.lax.pmean(x, {axis!r}), say how it is divided, "
        "out_specs=..., or, where you know that it is equal, give Replicas check_vma=False."
    )
