"""Into which shapes and shardings a checkpoint of other slices is restored."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec

from gradxform.distributed.replicas.layout import check_divides, read_specs
from gradxform.distributed.shares.param_places import axes_in, entries_of
from gradxform.distributed.shares.shared_leaves import is_shared
from gradxform.distributed.specs.state_specs import state_specs
from gradxform.distributed.wire.axis import axis_names
from gradxform.errors import did_you_mean, shown
from gradxform.types import PyTree


def abstract_replicas(
    mesh: Mesh,
    axis: Any,
    inner_axes: tuple[str, ...],
    saved: Mapping[str, int],
    kinds: PyTree,
    tx: Any,
    specs: PyTree,
    extra: Mapping[str, Any] | None,
) -> Any:
    """Return what `Replicas.abstract` does, for parameters of these shapes and dtypes."""
    names = (*axis_names(axis), *inner_axes)
    if not isinstance(saved, Mapping):
        raise TypeError(
            f"Replicas: saved must be lengths of axes by name, such as {{{names[0]!r}: 3}}, got "
            f"{shown(saved)}."
        )
    for name, size in saved.items():
        if name not in names or type(size) is not int or size < 1:
            raise ValueError(
                f"Replicas: saved must give lengths of the axes {', '.join(names)}, of at least 1, "
                f"got {name!r}: {shown(size)}."
                f"{'' if name in names else did_you_mean(name, names)}"
            )
    lengths = {name: saved.get(name, mesh.shape[name]) for name in names}
    old = AbstractMesh(tuple(lengths.values()), names, axis_types=(AxisType.Auto,) * len(names))
    inner = read_specs(kinds, specs, inner_axes)
    check_divides(kinds, inner, lengths)
    n = math.prod(lengths[name] for name in axis_names(axis))
    lead = axis_names(axis)[0] if len(axis_names(axis)) == 1 else axis_names(axis)
    params = jax.tree.map(lambda p: jax.ShapeDtypeStruct((n, *p.shape), p.dtype), kinds)
    treedef = jax.tree.structure(kinds)
    places = treedef.unflatten([PartitionSpec(lead, *spec) for spec in inner])
    put = _putting_on_restored_mesh(mesh)
    if tx is None:
        return jax.tree.map(put, params, places)
    told = state_specs(tx, kinds, treedef.unflatten(inner), mesh=old, replicas=axis, extra=extra)

    def init(params: PyTree) -> PyTree:
        state = tx.init(jax.tree.map(lambda p: jnp.squeeze(p, 0), params))
        leaves, structure = jax.tree.flatten(state)
        pairs = zip(leaves, is_shared(state), strict=True)
        return structure.unflatten([x if s else jnp.asarray(x)[None] for x, s in pairs])

    mapped: Callable[..., Any] = jax.shard_map(
        init, mesh=old, in_specs=(places,), out_specs=told, check_vma=False
    )
    state = jax.eval_shape(mapped, params)
    return jax.tree.map(put, params, places), jax.tree.map(put, state, told)


def _putting_on_restored_mesh(mesh: Mesh) -> Callable[[Any, Any], jax.ShapeDtypeStruct]:
    """Return the function that gives an array of the old mesh its place on the new one."""

    def put(x: Any, spec: Any) -> jax.ShapeDtypeStruct:
        entries = [*entries_of(spec)]
        for dim, entry in enumerate(entries):
            # What the new mesh cannot divide evenly, each of its devices gets whole.
            if x.shape[dim] % math.prod(mesh.shape[name] for name in axes_in(entry)):
                entries[dim] = None
        place = NamedSharding(mesh, PartitionSpec(*entries))
        return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=place)

    return put
