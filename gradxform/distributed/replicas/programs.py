"""Compiling a step that is written for one replica for all replicas."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import Mesh, NamedSharding

from gradxform._jax.jaxprs import as_open_jaxpr, traced_along
from gradxform._jax.versions import varying_axes
from gradxform.distributed.replicas.arguments import SHARED, Call, averaged_aux, shared_results
from gradxform.distributed.replicas.layout import (
    Flags,
    Known,
    Layout,
    inner_spec,
    like_arguments,
    names_in,
    piece_of,
    refuse_different,
)
from gradxform.distributed.replicas.mesh import replica_sharding
from gradxform.distributed.shares.shared_leaves import is_shared
from gradxform.distributed.wire.axis import as_varying, axis_names
from gradxform.distributed.wire.decisions import check_decisions, differing_results
from gradxform.leaves.storage import in_memory, returned
from gradxform.types import PyTree


@dataclass(frozen=True)
class Wrapped:
    """A compiled function for all replicas; `lower(*args, **kwargs)` is that of `jax.jit`."""

    run: Callable[..., Any]
    lower: Callable[..., Any]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.run(*args, **kwargs)


@dataclass(frozen=True)
class Pod:
    """Where programs run: the axes of replicas, and the axes inside one that a step may name."""

    axis: Any  # a name, or several
    bound: tuple[str, ...]  # the inner axes that a step may name
    sizes: dict[str, int]  # of all these axes
    mesh: Mesh | None
    mode: str
    check_vma: bool
    leaves_inner: bool  # whether inner axes are left to the compiler

    @property
    def outer(self) -> tuple[str, ...]:
        """The names of the axes of replicas."""
        return axis_names(self.axis)

    @property
    def all_axes(self) -> tuple[str, ...]:
        """The axes of replicas, and the bound ones inside."""
        return *self.outer, *self.bound


def argument_flags(call: Call) -> list[bool]:
    """Return for every leaf of the values whether all replicas share it."""
    out = []
    for x, role in zip(call.values, call.roles, strict=True):
        out += is_shared(x) if role not in (SHARED, "keys") else [True] * len(jax.tree.leaves(x))
    return out


def argument_layout(pod: Pod, call: Call) -> Layout:
    """Return how the arguments lie, by their roles and their own shardings."""
    leaves, treedef = jax.tree.flatten(call.values)
    flags = argument_flags(call)
    specs = [inner_spec(x, s, pod.bound) for x, s in zip(leaves, flags, strict=True)]
    return Layout(treedef, flags, specs)


def compiled_for_replicas(
    pod: Pod,
    function: Callable[..., Any],
    call: Call,
    donate_argnums: Any = (),
    shared_outputs: Any = (),
    has_aux: bool = False,
    out_specs: Callable[[PyTree], Sequence[Any]] | None = None,
) -> Any:
    """Return a compiled function of the values of a call, for arguments of these shapes.

    Args:
      pod: where it runs.
      function: the step of one replica.
      call: the arguments.
      donate_argnums: the positions of arguments whose buffers may be reused.
      shared_outputs: the results that are the same on all replicas.
      has_aux: whether the step returns a pair, of results and of what is averaged.
      out_specs: returns for every leaf of the results how it is divided over inner axes.
    """
    inputs = argument_layout(pod, call)
    leaves = jax.tree.leaves(call.values)
    rows = zip(leaves, inputs.flags, inputs.inner, strict=True)
    pieces = [piece_of(x, shared, spec, pod.sizes) for x, shared, spec in rows]
    of_values = _replica_program_with_aux(pod, call.program(function, pod.outer), has_aux)

    def in_their_memories(*one: Any) -> Any:
        return of_values(*returned(one, call.values))

    one = inputs.treedef.unflatten(pieces)
    program, results = traced_along(in_their_memories, one, pod.sizes)
    own = _results_differing_between_replicas(pod, program, inputs, pieces)
    chosen = _results_shared(shared_outputs, results, has_aux)
    for axis in pod.outer:
        for i, (shared, differs) in enumerate(zip(chosen, own[axis], strict=True)):
            if shared and differs:
                refuse_different(results, i, axis, True)
    flags = [a or b for a, b in zip(is_shared(results), chosen, strict=True)]
    known, at = [], 0
    for x in one:
        n = len(jax.tree.leaves(x))
        known.append(Known(x, inputs.flags[at : at + n], inputs.inner[at : at + n]))
        at += n
    inner = like_arguments(results, known) if out_specs is None else out_specs(results)
    outputs = Layout(jax.tree.structure(results), flags, inner)
    for axis in pod.bound if not pod.check_vma else ():
        for i, (spec, differs) in enumerate(zip(inner, own[axis], strict=True)):
            if differs and axis not in names_in(spec):
                refuse_different(results, i, axis, False)
    donated = call.donated(donate_argnums)
    if pod.mode == "pmap" and pod.mesh is not None:
        return _pmapped(of_values, pod.outer[0], pod.mesh, inputs, outputs, donated)
    if pod.mode == "shard_map":
        return _shard_mapped_replica_program(pod, of_values, inputs, outputs, program, donated)
    return _vmapped(pod, of_values, inputs, outputs, chosen, call, program, donated)


def _replica_program_with_aux(
    pod: Pod, function: Callable[..., Any], has_aux: bool
) -> Callable[..., Any]:
    """Return a function whose auxiliary results are averaged."""
    if not has_aux:
        return function

    def with_means(*values: Any) -> Any:
        result = function(*values)
        if not isinstance(result, tuple) or len(result) != 2:
            raise TypeError(
                "Replicas: with has_aux=True the step must return a pair, (results, aux), got "
                f"{len(result) if isinstance(result, tuple) else 'one result'}"
                f"{' results' if isinstance(result, tuple) else ''}."
            )
        rest, aux = result
        return rest, averaged_aux(aux, pod.all_axes, lambda x: as_varying(x, pod.all_axes))

    return with_means


def _results_shared(shared_outputs: Any, results: PyTree, has_aux: bool) -> list[bool]:
    if not has_aux:
        return shared_results(shared_outputs, results)
    rest, aux = results
    return shared_results(shared_outputs, rest) + [True] * len(jax.tree.leaves(aux))


def _results_differing_between_replicas(
    pod: Pod, program: Any, inputs: Layout, pieces: Sequence[Any]
) -> dict[str, list[bool]]:
    """Return for every axis which results may differ along it; check decisions along the way."""
    out = {}
    for axis in pod.all_axes:
        if axis in pod.bound:
            alike = [axis not in names_in(spec) for spec in inputs.inner]
        else:
            alike = list(inputs.flags)
        check_decisions(program, pieces, alike, axis)
        if pod.sizes[axis] == 1:
            out[axis] = [False] * len(as_open_jaxpr(program)[0].outvars)
        else:
            out[axis] = differing_results(program, [not x for x in alike], axis)
    return out


# ------------------------------------------------------------------------------------- the modes


def _shard_mapped_replica_program(
    pod: Pod,
    function: Callable[..., Any],
    inputs: Layout,
    outputs: Layout,
    program: Any,
    donated: tuple[int, ...],
) -> Any:
    def body(*local: Any) -> Any:
        results = function(*inputs.squeezed(local))
        leaves = jax.tree.leaves(results)
        rows = zip(leaves, outputs.flags, outputs.inner, strict=True)
        new = [same(results, i, *row) for i, row in enumerate(rows)]
        return outputs.unsqueezed(outputs.treedef.unflatten(new))

    def same(results: PyTree, index: int, x: Any, shared: bool, spec: Any) -> Any:
        if not pod.check_vma:
            return x
        x = jnp.asarray(x)
        for axis in pod.bound:
            if axis in varying_axes(x) and axis not in names_in(spec):
                refuse_different(results, index, axis, False)
        marked = [axis for axis in pod.outer if axis in varying_axes(x)]
        # What is equal although JAX does not know it, such as a gathered array.
        return _array_of_first_replica(x, tuple(marked)) if shared and marked else x

    mapped = jax.shard_map(
        body,
        mesh=pod.mesh,
        in_specs=inputs.specs(pod.axis),
        out_specs=outputs.specs(pod.axis),
        axis_names=set(pod.all_axes),
        check_vma=pod.check_vma,
    )
    mesh = pod.mesh
    if not pod.bound or mesh is None or set(mesh.axis_names) != set(pod.all_axes):
        return jax.jit(mapped, donate_argnums=donated)
    places = jax.tree.map(
        lambda spec: NamedSharding(mesh, spec),
        outputs.specs(pod.axis),
    )
    types = outputs.treedef.unflatten(program.out_avals)
    made = jax.tree.map(in_memory, places, types)
    return jax.jit(mapped, out_shardings=made, donate_argnums=donated)


def _array_of_first_replica(x: jax.Array, axes: tuple[str, ...]) -> jax.Array:
    """Return the array of the first replica."""
    number = x.astype(jnp.int32) if x.dtype == jnp.bool_ else x
    only = jnp.where(lax.axis_index(axes) == 0, number, jnp.zeros_like(number))
    return lax.psum(only, axes).astype(x.dtype)


def _vmapped(
    pod: Pod,
    function: Callable[..., Any],
    inputs: Layout,
    outputs: Layout,
    chosen: Flags,
    call: Call,
    program: Any,
    donated: tuple[int, ...],
) -> Any:
    # A vmap has an axis for what it does not know to be equal; the results of all are then cut.
    marked = outputs._replace(flags=is_shared(outputs.treedef.unflatten(outputs.flags)))
    mapped = jax.vmap(
        function,
        in_axes=inputs.axes(),
        out_axes=marked.axes(),
        axis_name=pod.axis,
        axis_size=pod.sizes[pod.outer[0]],
        spmd_axis_name=pod.axis if pod.mode == "jit" else None,
    )

    def whole(*values: Any) -> Any:
        results = mapped(*values)
        rows = zip(jax.tree.leaves(results), chosen, marked.flags, strict=True)
        return outputs.treedef.unflatten([x[0] if c and not m else x for x, c, m in rows])

    # Arrays that are divided over inner axes too keep the shardings that they have.
    if pod.mode == "vmap" or pod.leaves_inner or pod.mesh is None:
        return jax.jit(whole, donate_argnums=donated)
    mesh = pod.mesh
    types = (
        inputs.treedef.unflatten(map(jax.typeof, jax.tree.leaves(call.values))),
        outputs.treedef.unflatten(program.out_avals),
    )

    def place(shared: bool) -> NamedSharding:
        return replica_sharding(mesh, None if shared else pod.axis)

    given, made = jax.tree.map(in_memory, (inputs.map(place), outputs.map(place)), types)
    return jax.jit(whole, in_shardings=given, out_shardings=made, donate_argnums=donated)


def _pmapped(
    function: Callable[..., Any],
    axis: str,
    mesh: Mesh,
    inputs: Layout,
    outputs: Layout,
    donated: Iterable[int],
) -> Wrapped:
    """Return `jax.pmap` of a function, with results that have the replicas of all processes."""
    shardings = [replica_sharding(mesh, None if shared else axis) for shared in outputs.flags]
    mapped = jax.pmap(
        lambda *args: tuple(jax.tree.leaves(function(*args))),
        axis,
        in_axes=inputs.axes(),
        out_axes=tuple(None if shared else 0 for shared in outputs.flags),
        devices=list(mesh.devices.flat),
        donate_argnums=tuple(donated),
    )

    def whole(x: Any, sharding: NamedSharding) -> Any:
        if sharding.is_fully_addressable:
            return x
        # pmap gives each of several processes the replicas on its own devices only.
        shape = (mesh.size, *x.shape[1:]) if sharding.spec else x.shape
        parts = [part.data for part in x.addressable_shards]
        return jax.make_array_from_single_device_arrays(shape, sharding, parts)

    def run(*args: Any) -> Any:
        results = zip(mapped(*args), shardings, strict=True)
        return outputs.treedef.unflatten([whole(x, sharding) for x, sharding in results])

    return Wrapped(run, mapped.lower)
