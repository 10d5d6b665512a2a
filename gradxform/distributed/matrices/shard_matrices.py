"""Running rules for matrices on parameters that are divided over a mesh."""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec

from gradxform import engine
from gradxform.base import call_update, check_transform, transform
from gradxform.distributed.matrices.state import Cuts, on_pieces, specs_of_pieces
from gradxform.distributed.shares.param_places import axes_in
from gradxform.distributed.shares.reach import check_entrywise, check_reach
from gradxform.distributed.wire.axis import check_axis_name, check_bound, check_in_mesh, size_of
from gradxform.errors import name_of, shown
from gradxform.leaves import Path, is_hole, like_params, masks, path_str, shape_of, with_paths
from gradxform.leaves.no_gradient import as_holes
from gradxform.types import Params, PyTree, StaticTree
from gradxform.values import FrozenTree, is_function
from gradxform.wrappers.parts import StatelessWrapper


@transform
class shard_matrices(StatelessWrapper):
    """Let every device orthogonalize, or whatever a rule does, its share of the whole matrices.

    Update rule on device i of N, which has a piece of each of the matrices of equal sides:

        x_i <- the pieces of every N-th part of the matrices, together    (all-to-all)
        u_i = rule(x_i)
        u = this device's pieces of u_1, ..., u_N                         (all-to-all)

    The results equal those of the inner optimizer without a mesh. Only matrix products in another
    order differ, by rounding. There are two all-to-alls for all matrices of the same sides, however
    many layers, and none inside the rule, but for long matrices (see below). Together they send
    2 (1 - 1/N) of the bytes that a device holds of the matrices, if N divides their number.
    Otherwise shares are filled up.

    With `mesh`, call it under `jax.jit` on whole arrays, sharded or not:

        tx = shard_matrices(gx.muon(0.02), "model", {"up": P("model"), "norm": P()}, mesh)
        state = jax.jit(tx.init)(params)
        updates, state = jax.jit(tx.update)(grads, state, params)

    Without, call it inside `jax.shard_map`, on this device's pieces. The state is divided as
    `state_specs` says.

    * Stacks that are cut along their batch (layers, experts, heads) need no exchange.
    * Long matrices that are cut along the long side stay as they are if the rule can sum products
      of the short side over the devices (`MatrixRule.grams_needed`), and that sends fewer bytes.
    * Matrices that every device has are computed in shares, and the results gathered.
    * An axis of fused matrices that is cut anywhere but between them is gathered first; cut it
      along the other axis.
    * Slots for whole matrices are divided with a stack that is cut along its batch. Those of
      matrices that are cut are divided along their own first axis whose length the devices divide,
      and exchanged together with the matrices, in their own dtype: with a narrower compute_dtype,
      in two all-to-alls more. All others are the same on every device, and their new values are
      gathered.

    The inner transform may also have parts that act on each entry independently, or on each row if
    only first dimensions are cut. Norms of the whole tree are summed over the devices. The
    gradients are whole sums or means already; see `zero1` for those of each device's own batch.

    Args:
      inner: the optimizer.
      axis: the name of the mesh axis.
      specs: for every parameter a `PartitionSpec` or the index of the dimension that is cut (None
        for none), a tree of them that may be a prefix of the parameters, or a function of the
        parameters that returns one. A spec names this axis only. Along others, all devices do the
        same.
      mesh: a mesh with the axis; None inside `jax.shard_map`.

    Raises:
      ValueError: if the mesh lacks the axis, a spec does not fit, or no parameter is cut; if a part
        of the inner transform looks at whole arrays by itself.
      NameError: without a mesh, where the axis is not bound.
      TypeError: for row-sparse gradients.
    """

    inner: Any
    axis: str
    specs: StaticTree
    mesh: Any = None

    handles_rows = True  # `update` refuses them itself, to say why

    @property
    def divides(self) -> tuple[str, ...]:
        """The axis over which the state is divided, where the caller has bound it."""
        return self.exchanges

    @property
    def exchanges(self) -> tuple[str, ...]:
        """The axis, where the caller has bound it."""
        return () if self.mesh is not None else (self.axis,)

    def __post_init__(self) -> None:
        check_transform(self, self.inner, "inner")
        check_axis_name(self)
        if self.mesh is not None:
            self._check_mesh(self.mesh)
        check_reach(self, self.inner)
        if isinstance(self.specs, FrozenTree):
            object.__setattr__(self, "specs", FrozenTree(self._dims(self.specs.unfreeze())))
        elif not is_function(self.specs):
            raise TypeError(
                f"{name_of(self)}: specs must be a PartitionSpec, a tree of them or a function of "
                f"the parameters, got {shown(self.specs)}."
            )

    def _check_mesh(self, mesh: Any) -> None:
        names = getattr(mesh, "axis_names", None)
        if names is None:
            raise TypeError(f"{name_of(self)}: mesh must be a jax.sharding.Mesh, got {shown(mesh)}")
        check_in_mesh(self, self.axis, names)

    # ------------------------------------------------------------------------------ what is cut

    def _dims(self, specs: PyTree) -> PyTree:
        """Return a tree with the dimension that each spec cuts; None for none."""
        return jax.tree_util.tree_map_with_path(self._dim, specs, is_leaf=_is_spec)

    def _dim(self, path: Any, spec: Any) -> int | None:
        if spec is None or type(spec) is int:
            return spec
        where = jax.tree_util.keystr(path) or "the parameters"
        if not isinstance(spec, PartitionSpec):
            raise TypeError(
                f"{name_of(self)}: specs must hold a PartitionSpec, the index of a dimension "
                f"or None for {where}, got {shown(spec)}."
            )
        used = [(d, name) for d, entry in enumerate(spec) for name in axes_in(entry)]
        if len(used) > 1:
            raise ValueError(
                f"{name_of(self)}: {where} is cut over two mesh axes or more by {spec}. Cut it "
                f"over {self.axis!r} only, and gather it along the others first."
            )
        if used and used[0][1] != self.axis:
            raise ValueError(
                f"{name_of(self)}: {where} is cut over the mesh axis {used[0][1]!r} by {spec}, not "
                f"over {self.axis!r}. Give the axis over which the parameters are cut."
            )
        return used[0][0] if used else None

    def _dims_of(self, params: Params, whole: bool, size: int) -> dict[Path, int | None]:
        """Return for each parameter, or piece, the dimension that is cut."""
        specs = self.specs
        if is_function(specs):
            specs = FrozenTree(self._dims(specs(params)))
        entries = with_paths(masks.resolve(self, specs, params, kind=object))
        out: dict[Path, int | None] = {}
        for (path, p), (_, dim) in zip(with_paths(params), entries, strict=True):
            if is_hole(p):
                continue
            shape, where = shape_of(p), path_str(path)
            if dim is not None and not -len(shape) <= dim < len(shape):
                raise ValueError(
                    f"{name_of(self)}: the spec of {where} cuts dimension {dim}, which an array of "
                    f"shape {shape} does not have."
                )
            if whole and dim is not None and shape[dim] % size:
                raise ValueError(
                    f"{name_of(self)}: {where} of shape {shape} cannot be cut along dimension "
                    f"{dim} into {size} equal pieces. Cut another dimension, or replicate it: P()."
                )
            out[path] = None if dim is None else dim % len(shape)
        if out and all(dim is None for dim in out.values()):
            path = next(iter(out))
            raise ValueError(
                f"{name_of(self)}: {path_str(path)} is not cut over the mesh axis {self.axis!r}, "
                "nor is any other parameter. Give specs that name it, or leave this wrapper out."
            )
        if check_reach(self, self.inner)[0] == "row" and (far := [p for p in out if out[p]]):
            raise ValueError(
                f"{name_of(self)}: {path_str(far[0])} is cut along dimension {out[far[0]]}, and a "
                "part of the inner transform looks at rows. Cut its first dimension."
            )
        return out

    def _cuts(self, params: Params, whole: bool, size: int) -> Cuts:
        dims = self._dims_of(params, whole, size)
        return {path: () if d is None else ((self.axis, d),) for path, d in dims.items()}

    def _specs_of(self, params: Params, cuts: Cuts) -> PyTree:
        """Return a tree of specs with the structure of the parameters, or of updates."""
        paths = [path for path, x in with_paths(params) if not is_hole(x)]
        dims = [cuts[path][0][1] if cuts[path] else None for path in paths]
        leaves = [
            PartitionSpec() if d is None else PartitionSpec(*[None] * d, self.axis) for d in dims
        ]
        return jax.tree.unflatten(jax.tree.structure(params), leaves)

    def state_specs(self, params: Params, mesh: Mesh | None = None) -> PyTree:
        """Return a `PartitionSpec` for every leaf of the state, how it lies on a mesh.

        Args:
          params: the whole parameters, or their shapes and dtypes.
          mesh: a mesh with the axis; defaults to that of the field.
        """
        mesh = self.mesh if mesh is None else mesh
        if mesh is None:
            raise ValueError(f"{name_of(self)}: state_specs needs a mesh.")
        self._check_mesh(mesh)
        size = mesh.shape[self.axis]
        params = as_holes(params)
        cuts, reach = self._cuts(params, True, size), check_reach(self, self.inner)[0]
        return specs_of_pieces(self.inner, params, cuts, {self.axis: size}, reach)

    # ---------------------------------------------------------------------------------- stepping

    def init(self, params):
        """Return the inner state, of pieces."""
        check_entrywise(self, check_reach(self, self.inner)[1], params)
        if self.mesh is None:
            return self._on_pieces(params, lambda: self.inner.init(params))
        cuts = self._cuts(params, True, self.mesh.shape[self.axis])
        with_mesh = self._mapped(cuts, self.inner.init)
        specs = self._specs_of(params, cuts)
        return with_mesh((specs,), self.state_specs(params))(params)

    def update(self, updates, state, params=None, **extra):
        """Return the updates and the state, of pieces if the gradients are.

        Args:
          updates: the gradients, or this device's pieces of them.
          state: the state.
          params: the parameters, or this device's pieces of them.
          **extra: extra arguments of the inner transform, the same on all devices.
        """
        engine.refuse_rows(self, updates, "divides arrays over devices")
        tree = updates if params is None else params
        check_entrywise(self, check_reach(self, self.inner)[1], tree)
        if self.mesh is None:
            return self._on_pieces(
                tree, lambda: call_update(self.inner, updates, state, params, extra)
            )
        cuts = self._cuts(tree, True, self.mesh.shape[self.axis])
        # Only arrays can be arguments of the mapped function; the rest is closed over.
        leaves, treedef = jax.tree.flatten(extra)
        arrays = {i: jnp.asarray(x) for i, x in enumerate(leaves) if _is_argument(x)}

        def one(updates: Any, state: Any, params: Any, arrays: Any) -> Any:
            whole_extra = treedef.unflatten([arrays.get(i, x) for i, x in enumerate(leaves)])
            return call_update(self.inner, updates, state, params, whole_extra)

        specs = self._specs_of(updates, cuts)
        of_params = None if params is None else self._specs_of(params, cuts)
        of_state = self.state_specs(like_params(tree))
        mapped = self._mapped(cuts, one)
        run = mapped((specs, of_state, of_params, PartitionSpec()), (specs, of_state))
        return run(updates, state, params, arrays)

    def _on_pieces(self, tree: PyTree, function: Callable[[], Any]) -> Any:
        """Run a function where the caller has bound the axis."""
        check_bound(self, self.axis)
        size = size_of(self.axis)
        cuts, reach = self._cuts(tree, False, size), check_reach(self, self.inner)[0]
        with on_pieces(cuts, {self.axis: size}, reach):
            return function()

    def _mapped(self, cuts: Cuts, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function of specs that maps `function` over the mesh."""
        sizes: Mapping[str, int] = {self.axis: self.mesh.shape[self.axis]}
        reach = check_reach(self, self.inner)[0]

        def on_each(*args: Any) -> Any:
            with on_pieces(cuts, sizes, reach):
                return function(*args)

        def mapped(in_specs: Any, out_specs: Any) -> Callable[..., Any]:
            # What is the same on all devices is so by gathering, which JAX need not check.
            smap = functools.partial(jax.shard_map, mesh=self._mesh_here(), check_vma=False)
            return smap(on_each, in_specs=in_specs, out_specs=out_specs)

        return mapped

    def _mesh_here(self) -> Any:
        """Return the mesh, with the types that its axes have inside of an update."""
        here, mesh = jax.sharding.get_abstract_mesh(), self.mesh.abstract_mesh
        is_other = here.axis_types != mesh.axis_types
        is_same = (here.axis_names, here.axis_sizes) == (mesh.axis_names, mesh.axis_sizes)
        if not (is_same and is_other):
            return self.mesh
        return Mesh(self.mesh.devices, here.axis_names, axis_types=here.axis_types)


def _is_spec(x: Any) -> bool:
    return x is None or isinstance(x, PartitionSpec)


def _is_argument(x: Any) -> bool:
    return isinstance(x, jax.Array | np.ndarray | np.generic | int | float) and not isinstance(
        x, bool
    )
