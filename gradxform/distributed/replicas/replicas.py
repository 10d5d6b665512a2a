"""Running a step that is written for one replica on all replicas."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from gradxform.base import check_transform
from gradxform.distributed.replicas.arguments import Call, Roles, Which
from gradxform.distributed.replicas.layout import Flags, check_divides, read_specs, without_lead
from gradxform.distributed.replicas.mesh import (
    check_axes,
    fetched,
    replica_mesh,
    replica_sharding,
    resharding_program,
    spreading_program,
)
from gradxform.distributed.replicas.programs import (
    Pod,
    Wrapped,
    argument_layout,
    compiled_for_replicas,
)
from gradxform.distributed.replicas.restore import abstract_replicas
from gradxform.distributed.shares.shared_leaves import is_shared
from gradxform.distributed.specs.state_specs import state_specs
from gradxform.distributed.wire.axis import axes_argument
from gradxform.errors import (
    did_you_mean,
    leaf_path,
    must_be,
    require_bool,
    require_choice,
    shown,
)
from gradxform.leaves.no_gradient import refuse_other_than_arrays
from gradxform.leaves.storage import is_on_host
from gradxform.types import Params, PyTree

__all__ = [
    "Replicas",
]

MODES = ("shard_map", "pmap", "jit", "vmap")


def _check_mode(
    mode: str, outer: tuple[str, ...], inner_axes: tuple[str, ...], manual: bool
) -> None:
    """Require a mode that exists, and that has what is asked of it."""
    require_choice("Replicas", "mode", mode, MODES)
    if inner_axes and mode not in ("shard_map", "jit"):
        raise ValueError(f"Replicas: inner_axes need mode 'shard_map' or 'jit', not {mode!r}.")
    if manual and (mode != "shard_map" or not inner_axes):
        raise ValueError(
            "Replicas: manual=True is for inner_axes under mode='shard_map', got inner_axes="
            f"{inner_axes} and mode={mode!r}; leave manual out."
        )
    if len(outer) > 1 and mode != "shard_map":
        raise ValueError(
            f"Replicas: several axes of replicas, {outer}, need mode 'shard_map', not {mode!r}."
        )


def _check_number(n: int | None) -> None:
    """Require a number of replicas, where it is given."""
    if n is not None and (not isinstance(n, int) or isinstance(n, bool) or n < 1):
        raise ValueError(f"Replicas: n must be an int of at least 1, got {shown(n)}.")


def _check_function(argument: str, function: Any) -> None:
    """Require a function, which an optimizer is not."""
    if not callable(function):
        is_one = hasattr(function, "init") and hasattr(function, "update")
        hint = " Pass one of its methods, such as init." if is_one else ""
        raise TypeError(
            must_be("Replicas", argument, "a function for one replica", function) + hint
        )


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
      axis: the name of the axis of replicas, or, for "shard_map", several, the outermost first.
      inner_axes: names of mesh axes inside a replica (FSDP or tensor parallelism), which are left
        to the compiler unless `manual`; "shard_map" and "jit" only.
      mesh: a mesh with these axes, of type Auto. Defaults to all devices along `axis`.
      n: the number of replicas. Defaults to the size of the axis, or, for "vmap", to the number of
        devices.
      mode: "shard_map", "pmap", "jit" or "vmap".
      check_vma: for "shard_map", whether JAX tracks what varies between replicas.
      manual: for "shard_map", whether the step names the inner axes, as `tower` and `zero1` over
        them do, and sees each device's piece of what is divided over them. Arguments lie as their
        own shardings say: make them with `init`, `replicate`, `place` and `split`.

    Raises:
      TypeError: for an argument of another kind.
      ValueError: for an unknown mode, a mesh without the axes or with an Explicit one, or an n that
        is not the size of the axis.
    """

    def __init__(
        self,
        axis: str | tuple[str, ...] = "replica",
        inner_axes: tuple[str, ...] = (),
        mesh: Mesh | None = None,
        n: int | None = None,
        mode: str = "shard_map",
        check_vma: bool = True,
        manual: bool = False,
    ) -> None:
        outer = axes_argument("Replicas", "axis", axis)
        inner_axes = axes_argument("Replicas", "inner_axes", inner_axes)
        check_axes(outer, inner_axes)
        require_bool("Replicas", "check_vma", check_vma)
        require_bool("Replicas", "manual", manual)
        _check_mode(mode, outer, inner_axes, manual)
        _check_number(n)
        self.axis: Any = outer[0] if len(outer) == 1 else outer
        self.inner_axes, self.mode, self.check_vma = inner_axes, mode, check_vma
        self.manual = manual
        bound = inner_axes if manual else ()  # the axes that a step may name besides
        if mode == "vmap":
            self.mesh, self.n = mesh, n or jax.device_count()
            sizes = {self.axis: self.n}
        else:
            self.mesh = replica_mesh(mesh, outer, inner_axes, n)
            sizes = {name: self.mesh.shape[name] for name in (*outer, *bound)}
            self.n = math.prod(sizes[name] for name in outer)
        leaves_inner = bool(inner_axes) and not manual
        self._pod = Pod(self.axis, bound, sizes, self.mesh, mode, check_vma, leaves_inner)

    def __repr__(self) -> str:
        return f"Replicas({self.axis!r}, n={self.n}, mode={self.mode!r})"

    # ------------------------------------------------------------------------------ placing data

    def sharding(self, shared: bool = False, inner: Any = ()) -> NamedSharding | None:
        """Return the sharding of an array, with an axis of replicas or shared; None for "vmap".

        Args:
          shared: whether all replicas share the array, which then lacks an axis of replicas.
          inner: how one replica's array is divided over inner axes, a `PartitionSpec`.
        """
        require_bool("Replicas", "shared", shared)
        if not isinstance(inner, tuple | PartitionSpec):
            raise TypeError(must_be("Replicas", "inner", "a PartitionSpec", inner))
        if self.mesh is None or self.mode == "vmap":
            return None
        return replica_sharding(self.mesh, None if shared else self.axis, inner)

    def _place(self, x: Any, shared: bool = False, inner: Any = ()) -> Any:
        sharding = self.sharding(shared, inner)
        if sharding is None:
            return jnp.asarray(x)
        # To move an array between shards, device_put goes by the host; a program does not.
        if isinstance(x, jax.Array) and x.sharding.device_set == sharding.device_set:
            return resharding_program(sharding)(x)
        if sharding.is_fully_addressable:
            return jax.device_put(x, sharding)
        if isinstance(x, jax.Array) and jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
            data = self._place(jax.random.key_data(x), shared)
            return jax.random.wrap_key_data(data, impl=jax.random.key_impl(x))
        whole = np.asarray(x)  # every process has all of it, and keeps the parts of its devices
        return jax.make_array_from_callback(whole.shape, sharding, lambda index: whole[index])

    def place(self, tree: PyTree, specs: PyTree = None) -> PyTree:
        """Return arrays with an axis of replicas, [N, ...], each replica's part on its devices.

        Args:
          tree: the arrays.
          specs: for every leaf a `PartitionSpec`, how one replica's array is divided over inner
            axes, or one for all. Defaults to not at all. Arrays on the devices of the mesh go from
            shards to shards, without a host.
        """
        self._check_leads(tree)
        leaves, treedef = jax.tree.flatten(tree)
        rows = zip(leaves, is_shared(tree), read_specs(tree, specs, self.inner_axes), strict=True)
        return jax.tree.unflatten(treedef, [self._place(*row) for row in rows])

    def _check_leads(self, tree: PyTree) -> None:
        """Require arrays with an axis of replicas, where these do not share them."""
        refuse_other_than_arrays("Replicas", tree)
        flat = jax.tree_util.tree_flatten_with_path(tree)[0]
        for (path, x), shared in zip(flat, is_shared(tree), strict=True):
            if not shared and jnp.shape(x)[:1] != (self.n,):
                where = leaf_path(path) if path else "an array"
                raise ValueError(
                    f"Replicas: {where} of shape {jnp.shape(x)} has no leading axis of {self.n} "
                    "replicas; create it with replicate(...) or split(...)."
                )

    def replicate(self, tree: PyTree, specs: PyTree = None) -> PyTree:
        """Return N copies of every array along a new leading axis, one copy for each replica.

        Args:
          tree: the arrays of one replica.
          specs: as for `place`.
        """
        refuse_other_than_arrays("Replicas", tree)
        leaves, treedef = jax.tree.flatten(tree)
        flags, specs = tuple(is_shared(tree)), read_specs(tree, specs, self.inner_axes)
        here = [self._place(x, True, inner) for x, inner in zip(leaves, specs, strict=True)]
        return jax.tree.unflatten(treedef, self._spread(flags, specs)(here))

    def _spread(self, flags: Flags, specs: Sequence[Any]) -> Callable[[list[Any]], list[Any]]:
        """Return the program that gives each replica a copy of every array."""
        places = [self.sharding(*row) for row in zip(flags, specs, strict=True)]
        return spreading_program(self.n, tuple(flags), None if None in places else tuple(places))

    def init(
        self,
        fn: Callable[..., Params],
        *args: Any,
        tx: Any = None,
        specs: PyTree = None,
        extra: Mapping[str, Any] | None = None,
    ) -> Any:
        """Return parameters, and with `tx` also its state, made on the devices in their parts.

        No host and no device holds a whole array that is divided. All replicas start alike.

        Args:
          fn: returns the parameters of one replica from the arguments.
          *args: its arguments, such as a key; the same on all replicas.
          tx: the optimizer whose state to make. With `manual=True` the state lies as
            `state_specs` says, otherwise as the compiler chooses. Keyword-only.
          specs: for each parameter a `PartitionSpec`, how one replica's is divided over inner axes,
            or one for all. Defaults to not at all. Keyword-only.
          extra: extra arguments that a step of `tx` needs, as for `state_specs`. Keyword-only.

        Returns:
          The parameters, [N, ...]; with `tx`, a pair of these and the state.

        Raises:
          ValueError: if the specs do not match the parameters, name an axis that is not one of
            inner_axes, or do not divide a parameter evenly.
        """
        _check_function("fn", fn)
        if tx is not None:
            check_transform("Replicas", tx, "tx")
        kinds = jax.eval_shape(fn, *args)
        flags, inner = tuple(is_shared(kinds)), read_specs(kinds, specs, self.inner_axes)
        if self.mesh is not None:
            check_divides(kinds, inner, dict(self.mesh.shape))
        treedef = jax.tree.structure(kinds)
        places = [self.sharding(*row) for row in zip(flags, inner, strict=True)]
        spread = spreading_program(self.n, flags, None)
        make = jax.jit(
            lambda *args: spread(jax.tree.leaves(fn(*args))),
            out_shardings=None if None in places else places,
        )
        params = treedef.unflatten(make(*args))
        if tx is None:
            return params
        if not self.manual or self.mesh is None:
            return params, self.wrap(tx.init)(params)
        given = treedef.unflatten(inner)
        told = state_specs(tx, kinds, given, mesh=self.mesh, replicas=self.axis, extra=extra)
        return params, self.wrap(tx.init, out_specs=without_lead(told, self.axis))(params)

    def abstract(
        self,
        fn: Callable[..., Params],
        *args: Any,
        tx: Any = None,
        specs: PyTree = None,
        saved: Mapping[str, int] | None = None,
        extra: Mapping[str, Any] | None = None,
    ) -> Any:
        """Return shapes, dtypes and shardings of what `init` made on this or another mesh.

        A checkpoint of more or fewer slices is restored into them, on this mesh and in shards. Then
        `resize_replicas(restored, n, fresh=...)` makes the arrays those of this mesh.

        Args:
          fn: as for `init`; it is not run.
          *args: its arguments.
          tx: the optimizer. Keyword-only.
          specs: as for `init`. Keyword-only.
          saved: the lengths of the axes of the mesh that saved, by name, such as `{"dcn": 3}`.
            Others are those of this mesh. Keyword-only.
          extra: as for `init`. Keyword-only.

        Raises:
          ValueError: without `manual=True`, for another axis, a length below 1, or such specs.
        """
        if not self.manual or self.mesh is None:
            raise ValueError("Replicas: abstract needs manual=True; it describes what init makes.")
        _check_function("fn", fn)
        how = self.mesh, self.axis, self.inner_axes, saved or {}
        return abstract_replicas(*how, jax.eval_shape(fn, *args), tx, specs, extra)

    def split(self, batch: PyTree, over: tuple[str, ...] | None = None) -> PyTree:
        """Return a batch divided over the replicas: [B, ...] becomes [N, B / N, ...].

        Args:
          batch: the arrays.
          over: the inner axes that divide each replica's part further. Defaults to all of them with
            `manual=True`, and to none without.

        Raises:
          ValueError: if the replicas, and the devices along these axes, cannot divide the first
            axis of every array; or for an axis that is not one of `inner_axes`.
        """
        if over is None:
            over = self.inner_axes if self.manual else ()
        over = axes_argument("Replicas", "over", over)
        unknown = [name for name in over if name not in self.inner_axes]
        if unknown:
            raise ValueError(
                f"Replicas: over names {unknown[0]!r}, which is not one of inner_axes, "
                f"{self.inner_axes}.{did_you_mean(unknown[0], self.inner_axes)}"
            )
        sizes = {} if self.mesh is None else self.mesh.shape
        parts = math.prod(sizes[name] for name in over)
        inner = (over,) if over else ()

        def one(path: Any, x: Any) -> Any:
            size = jnp.shape(x)[0] if jnp.ndim(x) else None
            if size is None or size % (self.n * parts):
                each = f" of {parts} devices" if parts > 1 else ""
                raise ValueError(
                    f"Replicas: {self.n} replicas{each} cannot divide "
                    f"{leaf_path(path) if path else 'an array'} of shape {jnp.shape(x)} along its "
                    "first axis."
                )
            return self._place(x.reshape(self.n, size // self.n, *x.shape[1:]), False, inner)

        return jax.tree_util.tree_map_with_path(one, batch)

    def unreplicate(self, tree: PyTree, replica: int = 0) -> PyTree:
        """Return one replica's arrays, and shared arrays, as NumPy arrays.

        PRNG keys stay keys. With several processes, all must call it, and all get the arrays.
        """
        if not isinstance(replica, int) or not 0 <= replica < self.n:
            raise ValueError(
                f"Replicas: replica must be the index of one of {self.n}, got {shown(replica)}."
            )
        self._check_leads(tree)
        return fetched(tree, replica, self.mesh)

    def gather(self, tree: PyTree) -> PyTree:
        """Return the arrays of all replicas, [N, ...], and shared arrays, as NumPy arrays.

        PRNG keys stay keys. With several processes, all must call it. Use it for measurements, and
        for parameters that fit on one host.
        """
        return fetched(tree, None, self.mesh)

    # ------------------------------------------------------------------------------ running steps

    def wrap(
        self,
        function: Callable[..., Any],
        donate_argnums: Any = (),
        *,
        static: Which = (),
        shared: Which = (),
        keys: Which = (),
        shared_outputs: Any = (),
        has_aux: bool = False,
        out_specs: PyTree = None,
    ) -> Wrapped:
        """Return `function`, written for one replica, as a compiled function for all replicas.

        Arguments may be positional or by keyword; name them below by position or by name.

        Args:
          function: takes and returns trees of arrays, and may use collectives over `axis`, and over
            `inner_axes` with `manual=True`.
          donate_argnums: the positions of arguments whose buffers may be reused.
          static: arguments that are not arrays, such as a flag or a function. They must be
            hashable, and each value has a compiled program of its own. Keyword-only.
          shared: arguments without an axis of replicas, the same on all: scalars, frozen weights,
            or a key that all use. Keyword-only.
          keys: arguments that are PRNG keys, without an axis of replicas, each folded with the
            index of the replica: `jax.random.fold_in(key, index)`. Keyword-only.
          shared_outputs: results that are the same on all replicas, such as a loss after
            `lax.pmean`, and are returned without an axis of replicas: True for everything that the
            step returns, or positions in the tuple or keys of the dict that it returns.
            Keyword-only.
          has_aux: whether the step returns a pair, `(results, aux)`, with a tree of floating
            arrays, such as a dict of metrics, that is averaged over replicas and manual inner axes
            and returned without an axis of replicas. That is one sum at every step. Keyword-only.
          out_specs: with `manual=True`, for each leaf of the results a `PartitionSpec`, how one
            replica's array is divided over inner axes. By default a result lies as the argument
            with its structure and shapes, and is otherwise not divided. Keyword-only.

        Raises:
          ValueError: for an unknown argument or result; when called, for an array without an axis
            of replicas, or for a shared result that may differ.
          TypeError: for a static argument that cannot be hashed, an argument in `keys` that is not
            a key, or `aux` that is not floating.
        """
        _check_function("function", function)
        roles = Roles(function, static=static, shared=shared, keys=keys)
        if out_specs is not None and not self.manual:
            raise ValueError(
                "Replicas: out_specs divides results over inner_axes of a step that names them; "
                "give Replicas manual=True, or leave out_specs out."
            )
        programs: dict[Any, Callable[..., Any]] = {}

        def specs_of(results: PyTree) -> Sequence[PartitionSpec]:
            return read_specs(results, out_specs, self.inner_axes)

        def program_of(call: Call) -> Any:
            how = None if out_specs is None else specs_of
            return compiled_for_replicas(
                self._pod, function, call, donate_argnums, shared_outputs, has_aux, how
            )

        def run(*args: Any, **kwargs: Any) -> Any:
            call = Call(roles, args, kwargs)
            layout = argument_layout(self._pod, call)
            leaves = jax.tree.leaves(call.values)
            for i, (x, one) in enumerate(zip(leaves, layout.flags, strict=True)):
                if not one and (not jnp.ndim(x) or jnp.shape(x)[0] != self.n):
                    raise ValueError(
                        f"Replicas: an argument of shape {jnp.shape(x)}, {call.path_at(i)}, has no "
                        f"leading axis of {self.n} replicas; create it with replicate(...) or "
                        "split(...), or name it in shared=... if all replicas share it."
                    )
            key = (
                call.key,
                layout.treedef,
                tuple(layout.flags),
                tuple(layout.inner),
                tuple((jnp.shape(x), jnp.result_type(x), is_on_host(x)) for x in leaves),
            )
            if key not in programs:
                programs[key] = program_of(call)
            return programs[key](*call.values)

        def lower(*args: Any, **kwargs: Any) -> Any:
            call = Call(roles, args, kwargs)
            return program_of(call).lower(*call.values)

        return Wrapped(run, lower)
