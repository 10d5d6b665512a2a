"""Running a step that is written for one replica on all replicas."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from gradxform.distributed.decisions import check_decisions
from gradxform.distributed.replica_mesh import (
    copier,
    is_readable,
    replica_mesh,
    replica_sharding,
)
from gradxform.distributed.shared_leaves import is_shared
from gradxform.errors import did_you_mean, shown
from gradxform.jaxprs import traced_along
from gradxform.leaves import path_at
from gradxform.storage import in_memory, is_on_host, returned
from gradxform.types import PyTree

__all__ = [
    "Replicas",
]

MODES = ("shard_map", "pmap", "jit", "vmap")

# For every leaf of a tree, whether all replicas share it.
Flags = Sequence[bool]


@dataclass(frozen=True)
class Wrapped:
    """A compiled function for all replicas; `lower(*args)` is that of `jax.jit`."""

    run: Callable[..., Any]
    lower: Callable[..., Any]

    def __call__(self, *args: Any) -> Any:
        return self.run(*args)


class _Shared(NamedTuple):
    """The structure of a tree, and which of its leaves all replicas share."""

    treedef: Any
    flags: Flags

    def map(self, function: Callable[[bool], Any]) -> PyTree:
        """Return a tree of the function's results for the flags."""
        return self.treedef.unflatten([function(shared) for shared in self.flags])

    def axes(self) -> PyTree:
        """Return for every leaf its axis of replicas, as `jax.vmap` takes them."""
        return self.map(lambda shared: None if shared else 0)


class Replicas:
    """N replicas of a training step along one axis.

    `wrap` turns a step for one replica into a step for all. Every array has a leading axis of
    replicas, `[N, ...]`, except for the fields of states that are annotated `Everywhere`, which all
    replicas share. The same step runs in four modes:

    - "shard_map": one replica on each device along `axis` of a mesh;
    - "pmap": the same with `jax.pmap`;
    - "jit": `jax.vmap` under `jax.jit`, arrays divided along `axis`; the compiler places the rest;
    - "vmap": all N on one device, a simulation.

    With several processes (`jax.distributed`), every process calls the same methods with the same
    arguments. Each process passes whole arrays, and keeps the parts that belong on its devices.

    Args:
      axis: the name of the axis of replicas.
      inner_axes: names of mesh axes inside a replica that are left to the compiler (FSDP or tensor
        parallelism); "shard_map" and "jit" only.
      mesh: a mesh with these axes, of type Auto. Defaults to all devices along `axis`.
      n: the number of replicas. Defaults to the size of the axis, or, for "vmap", to the number of
        devices.
      mode: "shard_map", "pmap", "jit" or "vmap".
      check_vma: for "shard_map", whether JAX tracks what varies between replicas.

    Raises:
      ValueError: for an unknown mode, a mesh without the axes or with an Explicit one, or an n that
        is not the size of the axis.
    """

    def __init__(
        self,
        axis: str = "replica",
        inner_axes: tuple[str, ...] = (),
        mesh: Mesh | None = None,
        n: int | None = None,
        mode: str = "shard_map",
        check_vma: bool = True,
    ) -> None:
        if mode not in MODES:
            raise ValueError(
                f"Replicas: mode must be one of {', '.join(map(repr, MODES))}, got {mode!r}."
                f"{did_you_mean(mode, MODES)}"
            )
        if n is not None and (not isinstance(n, int) or isinstance(n, bool) or n < 1):
            raise ValueError(f"Replicas: n must be an int of at least 1, got {shown(n)}.")
        if inner_axes and mode not in ("shard_map", "jit"):
            raise ValueError(f"Replicas: inner_axes need mode 'shard_map' or 'jit', not {mode!r}.")
        if inner_axes and mesh is None:
            raise ValueError("Replicas: inner_axes need a mesh that has them.")
        self.axis, self.inner_axes, self.mode, self.check_vma = axis, inner_axes, mode, check_vma
        if mode == "vmap":
            self.mesh, self.n = mesh, n or jax.device_count()
        else:
            self.mesh = replica_mesh(mesh, axis, inner_axes, n)
            self.n = self.mesh.shape[axis]

    def __repr__(self) -> str:
        return f"Replicas({self.axis!r}, n={self.n}, mode={self.mode!r})"

    # ------------------------------------------------------------------------------ placing data

    def sharding(self, shared: bool = False, inner: Any = ()) -> NamedSharding | None:
        """Return the sharding of an array, with an axis of replicas or shared; None for "vmap".

        Args:
          shared: whether all replicas share the array, so that it has no axis of replicas.
          inner: how one replica's array is divided over inner axes, a `PartitionSpec`.
        """
        if self.mesh is None or self.mode == "vmap":
            return None
        return replica_sharding(self.mesh, None if shared else self.axis, inner)

    def _place(self, x: Any, shared: bool = False, inner: Any = ()) -> Any:
        sharding = self.sharding(shared, inner)
        if sharding is None:
            return jnp.asarray(x)
        if sharding.is_fully_addressable:
            return jax.device_put(x, sharding)
        if isinstance(x, jax.Array) and jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
            data = self._place(jax.random.key_data(x), shared)
            return jax.random.wrap_key_data(data, impl=jax.random.key_impl(x))
        whole = np.asarray(x)  # every process has all of it, and keeps the parts of its devices
        return jax.make_array_from_callback(whole.shape, sharding, lambda index: whole[index])

    def _inner_specs(self, tree: PyTree, specs: PyTree) -> list[Any]:
        """Return for every leaf how it is divided over inner axes."""
        leaves, treedef = jax.tree.flatten(tree)
        if specs is None:
            return [()] * len(leaves)
        flat, other = jax.tree.flatten(specs, is_leaf=lambda x: isinstance(x, PartitionSpec))
        if other != treedef:
            raise ValueError(
                f"Replicas: specs must have a PartitionSpec for each leaf of the tree, {treedef}, "
                f"got {other}."
            )
        for i, spec in enumerate(flat):
            entries = [(e,) if isinstance(e, str) else tuple(e or ()) for e in spec]
            names = {name for entry in entries for name in entry}
            if not names <= set(self.inner_axes):
                raise ValueError(
                    f"Replicas: the spec of {path_at(tree, i)} names {sorted(names)}, but it must "
                    f"name only inner_axes, {self.inner_axes}; leave out the axis of replicas."
                )
        return flat

    def place(self, tree: PyTree, specs: PyTree = None) -> PyTree:
        """Return arrays with an axis of replicas, [N, ...], each replica's part on its devices.

        Args:
          tree: the arrays.
          specs: for every leaf a `PartitionSpec`, how one replica's array is divided over inner
            axes. Defaults to not at all.
        """
        leaves, treedef = jax.tree.flatten(tree)
        rows = zip(leaves, is_shared(tree), self._inner_specs(tree, specs), strict=True)
        return jax.tree.unflatten(treedef, [self._place(*row) for row in rows])

    def replicate(self, tree: PyTree, specs: PyTree = None) -> PyTree:
        """Return N copies of every array along a new leading axis, one copy for each replica.

        Args:
          tree: the arrays of one replica.
          specs: as for `place`.
        """
        leaves, treedef = jax.tree.flatten(tree)
        inner_specs = self._inner_specs(tree, specs)
        copies = []
        for x, shared, inner in zip(leaves, is_shared(tree), inner_specs, strict=True):
            if shared:
                x = jnp.array(x, copy=True)
            else:
                x = jnp.broadcast_to(x, (self.n, *jnp.shape(x)))
            copies.append(self._place(x, shared, inner))
        return jax.tree.unflatten(treedef, copies)

    def split(self, batch: PyTree) -> PyTree:
        """Return a batch divided over the replicas: [B, ...] becomes [N, B / N, ...].

        Raises:
          ValueError: if N does not divide the first axis of every array.
        """

        def one(path: Any, x: Any) -> Any:
            size = jnp.shape(x)[0] if jnp.ndim(x) else None
            if size is None or size % self.n:
                raise ValueError(
                    f"Replicas: {self.n} replicas cannot divide {jax.tree_util.keystr(path)} of "
                    f"shape {jnp.shape(x)} along its first axis."
                )
            return self._place(x.reshape(self.n, size // self.n, *x.shape[1:]))

        return jax.tree_util.tree_map_with_path(one, batch)

    def unreplicate(self, tree: PyTree, replica: int = 0) -> PyTree:
        """Return one replica's arrays, and shared arrays, as NumPy arrays.

        With several processes, all must call it, and all get that replica's arrays.
        """
        return self._fetch(tree, replica)

    def gather(self, tree: PyTree) -> PyTree:
        """Return the arrays of all replicas, [N, ...], and shared arrays, as NumPy arrays.

        With several processes, all must call it, and all get all arrays. Use it for measurements,
        and for parameters that fit on one host.
        """
        return self._fetch(tree, None)

    def _fetch(self, tree: PyTree, replica: int | None) -> PyTree:
        leaves, treedef = jax.tree.flatten(tree)
        rows = [None if shared else replica for shared in is_shared(tree)]
        remote = [i for i, x in enumerate(leaves) if not is_readable(x)]
        if remote and self.mesh is not None:
            copy = copier(replica_sharding(self.mesh, None), replica)
            for i, x in zip(remote, copy([leaves[i] for i in remote]), strict=True):
                leaves[i], rows[i] = x.addressable_data(0), None
        arrays = [np.asarray(x if r is None else x[r]) for x, r in zip(leaves, rows, strict=True)]
        return jax.tree.unflatten(treedef, arrays)

    # ------------------------------------------------------------------------------ running steps

    def wrap(self, function: Callable[..., Any], donate_argnums: Any = ()) -> Wrapped:
        """Return `function`, written for one replica, as a compiled function for all replicas.

        Args:
          function: takes and returns trees of arrays, and may use collectives over `axis`.
          donate_argnums: the indices of arguments whose buffers may be reused.
        """
        compiled: dict[Any, Callable[..., Any]] = {}

        def run(*args: Any) -> Any:
            leaves, treedef = jax.tree.flatten(args)
            flags = tuple(is_shared(args))
            for x, shared in zip(leaves, flags, strict=True):
                if not shared and (not jnp.ndim(x) or jnp.shape(x)[0] != self.n):
                    raise ValueError(
                        f"Replicas: an argument of shape {jnp.shape(x)} has no leading axis of "
                        f"{self.n} replicas; create it with replicate(...) or split(...)."
                    )
            key = (
                treedef,
                flags,
                tuple((jnp.shape(x), jnp.result_type(x), is_on_host(x)) for x in leaves),
            )
            if key not in compiled:
                compiled[key] = self._compile(function, args, flags, donate_argnums)
            return compiled[key](*args)

        def lower(*args: Any) -> Any:
            flags = tuple(is_shared(args))
            return self._compile(function, args, flags, donate_argnums).lower(*args)

        return Wrapped(run, lower)

    def _compile(
        self, function: Callable[..., Any], args: Any, flags: Flags, donate_argnums: Any
    ) -> Any:
        """Return a compiled function for all replicas, for arguments of these shapes."""
        leaves, treedef = jax.tree.flatten(args)
        one_replica = [
            jax.ShapeDtypeStruct(jnp.shape(x) if shared else jnp.shape(x)[1:], jnp.result_type(x))
            for x, shared in zip(leaves, flags, strict=True)
        ]

        def in_their_memories(*one: Any) -> Any:
            return function(*returned(one, args))

        one = treedef.unflatten(one_replica)
        program, results = traced_along(in_their_memories, one, {self.axis: self.n})
        check_decisions(program, one_replica, flags, self.axis)
        inputs = _Shared(treedef, flags)
        outputs = _Shared(jax.tree.structure(results), is_shared(results))
        if self.mode == "pmap" and self.mesh is not None:
            return _pmapped(function, self.axis, self.mesh, inputs, outputs, donate_argnums)
        if self.mode == "shard_map":
            mapped = self._shard_mapped(function, inputs, outputs)
            return jax.jit(mapped, donate_argnums=donate_argnums)
        mapped = jax.vmap(
            function,
            in_axes=inputs.axes(),
            out_axes=outputs.axes(),
            axis_name=self.axis,
            axis_size=self.n,
            spmd_axis_name=self.axis if self.mode == "jit" else None,
        )
        # Arrays that are divided over inner axes too keep the shardings that they have.
        if self.mode == "vmap" or self.inner_axes:
            return jax.jit(mapped, donate_argnums=donate_argnums)
        types = (
            treedef.unflatten(map(jax.typeof, leaves)),
            outputs.treedef.unflatten(program.out_avals),
        )
        places = inputs.map(self.sharding), outputs.map(self.sharding)
        given, made = jax.tree.map(in_memory, places, types)
        return jax.jit(
            mapped, in_shardings=given, out_shardings=made, donate_argnums=donate_argnums
        )

    def _shard_mapped(
        self, function: Callable[..., Any], inputs: _Shared, outputs: _Shared
    ) -> Callable[..., Any]:
        def body(*local: Any) -> Any:
            return _unsqueeze(function(*_squeeze(local, inputs.flags)), outputs.flags)

        def spec(shared: bool) -> PartitionSpec:
            return PartitionSpec() if shared else PartitionSpec(self.axis)

        return jax.shard_map(
            body,
            mesh=self.mesh,
            in_specs=inputs.map(spec),
            out_specs=outputs.map(spec),
            axis_names={self.axis},
            check_vma=self.check_vma,
        )


def _pmapped(
    function: Callable[..., Any],
    axis: str,
    mesh: Mesh,
    inputs: _Shared,
    outputs: _Shared,
    donate_argnums: Any,
) -> Wrapped:
    """Return `jax.pmap` of a function, with results that have the replicas of all processes."""
    shardings = [replica_sharding(mesh, None if shared else axis) for shared in outputs.flags]
    mapped = jax.pmap(
        lambda *args: tuple(jax.tree.leaves(function(*args))),
        axis,
        in_axes=inputs.axes(),
        out_axes=tuple(None if shared else 0 for shared in outputs.flags),
        devices=list(mesh.devices.flat),
        donate_argnums=donate_argnums,
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


def _squeeze(tree: PyTree, flags: Flags) -> PyTree:
    """Remove the axis of replicas, of length 1, from every leaf that has one."""
    leaves, treedef = jax.tree.flatten(tree)
    pairs = zip(leaves, flags, strict=True)
    return jax.tree.unflatten(treedef, [x if s else jnp.squeeze(x, 0) for x, s in pairs])


def _unsqueeze(tree: PyTree, flags: Flags) -> PyTree:
    """Add an axis of replicas, of length 1, to every leaf that has one."""
    leaves, treedef = jax.tree.flatten(tree)
    pairs = zip(leaves, flags, strict=True)
    return jax.tree.unflatten(treedef, [x if s else jnp.asarray(x)[None] for x, s in pairs])
