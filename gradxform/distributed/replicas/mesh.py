"""The mesh of replicas: which one is used, where arrays lie on it, and how processes read them."""

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from gradxform.distributed.shares.shared_leaves import is_shared
from gradxform.distributed.wire.axis import check_in_mesh
from gradxform.errors import shown
from gradxform.leaves import dtype_of
from gradxform.types import PyTree


def check_axes(outer: tuple[str, ...], inner: tuple[str, ...]) -> None:
    """Require at least one axis of replicas, which is none of those inside a replica."""
    if not outer:
        raise ValueError("Replicas: axis must name at least one axis, of the replicas, got ().")
    both = [name for name in inner if name in outer]
    if both:
        raise ValueError(
            f"Replicas: the axis {both[0]!r} is named twice, axis={outer} and inner_axes={inner}; "
            "an axis is either one of replicas or one inside a replica."
        )


def replica_mesh(
    mesh: Mesh | None, outer: tuple[str, ...], inner_axes: tuple[str, ...], n: int | None
) -> Mesh:
    """Return a checked mesh, by default a new one of `n` devices."""
    if mesh is None:
        if inner_axes:
            raise ValueError("Replicas: inner_axes need a mesh that has them.")
        if len(outer) > 1:
            raise ValueError(f"Replicas: several axes of replicas, {outer}, need a mesh.")
        devices = jax.devices()
        size = n or len(devices)
        if size > len(devices):
            raise ValueError(
                f"Replicas: {size} replicas need as many devices, there are {len(devices)}; "
                'mode="vmap" simulates them on one.'
            )
        return jax.make_mesh((size,), outer, axis_types=(AxisType.Auto,), devices=devices[:size])
    if not isinstance(mesh, Mesh):
        raise TypeError(f"Replicas: mesh must be a jax.sharding.Mesh, got {shown(mesh)}.")
    _check(mesh, (*outer, *inner_axes))
    size = math.prod(mesh.shape[name] for name in outer)
    if n is not None and n != size:
        listed = " and ".join(map(repr, outer))
        raise ValueError(
            f"Replicas: n is {n}, but the axis {listed} of the mesh has {size} devices."
        )
    return mesh


def _check(mesh: Mesh, axes: tuple[str, ...]) -> None:
    for axis in axes:
        check_in_mesh("Replicas", axis, mesh.axis_names)
    for name, kind in zip(mesh.axis_names, mesh.axis_types, strict=True):
        if kind == AxisType.Explicit:
            raise ValueError(
                f"Replicas: the mesh's axis {name!r} is Explicit, the default of jax.make_mesh; "
                "make it with axis_types=(jax.sharding.AxisType.Auto,) * number of axes."
            )


def replica_sharding(mesh: Mesh, axis: Any, inner: Any = ()) -> NamedSharding:
    """Return the sharding of an array; if `axis` is None, of one that all replicas share."""
    return NamedSharding(mesh, PartitionSpec(*([] if axis is None else [axis]), *inner))


def is_readable(x: Any) -> bool:
    """Whether this process can read an array."""
    return not isinstance(x, jax.Array) or x.is_fully_addressable or x.is_fully_replicated


def fetched(tree: PyTree, replica: int | None, mesh: Mesh | None) -> PyTree:
    """Return the arrays of one replica, or of all for None, and shared arrays, on the host."""
    leaves, treedef = jax.tree.flatten(tree)
    rows = [None if shared else replica for shared in is_shared(tree)]
    remote = [i for i, x in enumerate(leaves) if not is_readable(x)]
    if remote and mesh is not None:
        copy = copying_program(replica_sharding(mesh, None), replica)
        for i, x in zip(remote, copy([leaves[i] for i in remote]), strict=True):
            leaves[i], rows[i] = x.addressable_data(0), None
    own = [x if r is None else x[r] for x, r in zip(leaves, rows, strict=True)]
    return treedef.unflatten(map(_array_of_mesh_on_host, own))


def _array_of_mesh_on_host(x: Any) -> Any:
    """Return a NumPy array, or PRNG keys as keys, read from the devices."""
    if not jnp.issubdtype(dtype_of(x), jax.dtypes.prng_key):
        return np.asarray(x)
    data = jnp.asarray(np.asarray(jax.random.key_data(x)))
    return jax.random.wrap_key_data(data, impl=jax.random.key_impl(x))


@functools.cache
def copying_program(
    sharding: NamedSharding, replica: int | None
) -> Callable[[list[Any]], list[Any]]:
    """Return a program that gives every process a copy of the arrays of all replicas or of one."""

    def copies(leaves: list[Any]) -> list[Any]:
        return leaves if replica is None else [x[replica] for x in leaves]

    return jax.jit(copies, out_shardings=sharding)


@functools.cache
def resharding_program(sharding: NamedSharding) -> Callable[[jax.Array], jax.Array]:
    """Return a program that moves an array of the mesh's devices from its shards to others."""
    return jax.jit(lambda x: x, out_shardings=sharding)


@functools.cache
def spreading_program(
    n: int, flags: tuple[bool, ...], places: Any
) -> Callable[[list[Any]], list[Any]]:
    """Return a program that gives each of n replicas a copy of every array that is not shared."""

    def spread(leaves: list[Any]) -> list[Any]:
        rows = zip(leaves, flags, strict=True)
        return [
            jnp.array(x, copy=True) if shared else jnp.broadcast_to(x, (n, *jnp.shape(x)))
            for x, shared in rows
        ]

    return jax.jit(spread, out_shardings=None if places is None else list(places))
