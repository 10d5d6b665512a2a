"""Dividing the optimizer state over the devices of data parallelism: ZeRO, stage 1."""

import math
from collections.abc import Mapping
from dataclasses import field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from gradxform import engine
from gradxform._jax.versions import varying_like
from gradxform.base import Transform, call_update, carried, check_transform, tell_moved, transform
from gradxform.distributed.matrices.state import Cuts, on_pieces
from gradxform.distributed.shares.division import Division, division_of_shape
from gradxform.distributed.shares.reach import check_entrywise, check_reach, sums_products
from gradxform.distributed.specs.state_specs import divided_specs
from gradxform.distributed.wire.axis import (
    Axes,
    axis_names,
    check_axis_name,
    check_bound,
    knows_what_varies,
    require_local,
    size_of,
)
from gradxform.distributed.zero.gather import (
    Shard,
    StepLeaf,
    copy_of,
    dtype_to_gather,
    gathered_shards,
    last_step_taken,
    of_step,
)
from gradxform.distributed.zero.wire import (
    as_feedback,
    check_forms,
    first_memory,
    mean_shards,
    memory_of,
    step_codec,
)
from gradxform.leaves import (
    Path,
    align,
    align_params,
    align_slot,
    dtype_of,
    is_hole,
    require_params,
    with_paths,
)
from gradxform.leaves.no_gradient import as_holes, step_of_gradients
from gradxform.leaves.states import check_state
from gradxform.numerics import at_least_float32, cast, promote, scalar_dtype, sum_as_first
from gradxform.tree.apply import apply_updates
from gradxform.types import Array, DType, OptState, Params, Slot, Updates
from gradxform.wrappers.one_pass import call_update_params


class Zero1State(NamedTuple):
    """State of `zero1`. Every device has its own shards; scalars are the same on all."""

    inner: Any  # the inner state, of shards
    master: Slot  # shards of the parameters in master_dtype; of shape (1,) where none is needed
    feedback: Any = None  # with `compress`: what is still to be sent; or None


@transform
class zero1(Transform):
    """Divide an optimizer's state and work over the devices of data parallelism.

    Update rule on device i of N, with p_i, s_i the i-th part of every parameter and of the state:

        g_i = the i-th part of the mean of all devices' gradients    (reduce-scatter)
        u_i, s_i <- inner(g_i, s_i, p_i)
        u = u_1, ..., u_N together                                   (all-gather)

    The results equal those of the inner optimizer on the mean of the gradients. Each device sends
    2 (1 - 1/N) P bytes per step for parameters of P bytes, as many as for the mean alone, and holds
    1/N of the state. Gradients of 16 bits travel as they are, and are summed in float32.

    Call it inside `jax.shard_map` (with or without `check_vma`), `jax.pmap` or `jax.vmap` with the
    axes bound. Every device has all parameters, and the gradient of its own part of the batch (see
    `local_view`):

        specs = tx.state_specs(params, mesh)
        state = jax.shard_map(tx.init, mesh=mesh, in_specs=P(), out_specs=specs)(params)

        def step(params, state, batch):  # in_specs=(P(), specs, P("data")), out_specs=(P(), specs)
            grads = jax.grad(loss)(local_view(params, "data"), batch)
            return tx.step(grads, state, params)

    Each axis cuts a dimension that its size divides. Without such a dimension, all devices
    along the axis hold and compute the same part, and send as many bytes. Several axes are used one
    after the other, each over its own links, because compilers for TPUs turn a collective over
    several axes into one that sends twice the bytes.

    The inner transform may act on each entry, or on each row, alone (then only first dimensions are
    cut). Norms and sums of whole arrays, as in LAMB, Adafactor or SM3, and of the whole tree, as in
    `clip_by_global_norm`, cover all devices; those of all arrays share one exchange. Rules for
    matrices or arrays, as in Muon or Shampoo, get whole ones. Another library's transform is
    accepted if its program is entrywise. Masks see paths and ranks of parameters, but shapes of
    shards. The caller may divide parameters along other axes of the mesh; norms do not sum over
    these. Along axes that a `shard_map` leaves to the compiler, it gathers the gradients first.

    Parameters narrower than `master_dtype` have a wider copy in the state. The inner transform
    moves the copy, and the parameter is the copy rounded. The inner transform sees gradients in
    float32 or wider. With such copies, this must be the last part of a chain: the copies follow the
    updates returned here, and `lookahead`, `model_average` or a similar wrapper around this, but
    nothing else that moves the parameters.

    With `MultiSteps` or `accumulate` as the inner transform, gradients are added up in shards, and
    updates are gathered only when a step is taken: ZeRO, stage 2.

    With `compress`, gradients and the steps of the parameters travel in its form, and what it
    rounds away is sent later. Each device remembers that of its own gradients in float32, which
    takes as many bytes as a copy of the parameters. With `powersgd`, only gradients are compressed.

    In the state, arrays with the shape of a parameter are divided as `state_specs` says, `feedback`
    is each device's own, and everything else is the same on all devices.

    Of its own kind: each device holds a part of the inner state.

    Args:
      inner: the optimizer.
      axes: the name of the mesh axis over which gradients are averaged, or a tuple of names.
      gather_dtype: the dtype in which updates are gathered, such as "bfloat16" for half the bytes.
        Only parameters with copies recover later what this rounding loses. Complex updates keep
        their dtype. Defaults to their own dtype. Keyword-only.
      reduce_dtype: the dtype in which gradients are sent and summed. Complex gradients keep their
        dtype. Defaults to None: see `wire_dtype`. Keyword-only.
      master_dtype: the dtype of the copies of narrower parameters; None for no copies.
        Keyword-only.
      wire_dtype: the dtype in which gradients travel; they are summed in float32. Complex gradients
        keep their dtype. Defaults to their own dtype. Keyword-only.
      compress: a compression such as `int8()`, `sign()`, `top_k(0.01)` or `powersgd(4)`, for what
        travels. Keyword-only.

    Raises:
      ValueError: if a part of the inner transform needs more of whole arrays, or of the whole tree,
        than sums; if several of `reduce_dtype`, `wire_dtype` and `compress` are given, or
        `gather_dtype` and `compress`; at init, if
        `wire_dtype` is wider than a parameter.
      AlreadyReducedError: at update, for gradients that are already summed over the devices.
      NameError: at init and update, where an axis is not bound.

    Reference: Rajbhandari et al., ZeRO: Memory Optimizations Toward Training Trillion Parameter
    Models, 2020, section 5.1; Xu et al., Automatic Cross-Replica Sharding of Weight Update in
    Data-Parallel Training, 2020, section 3.
    """

    inner: Any
    axes: Axes
    gather_dtype: DType = field(default=None, kw_only=True)
    reduce_dtype: DType = field(default=None, kw_only=True)
    master_dtype: DType = field(default="float32", kw_only=True)
    wire_dtype: DType = field(default=None, kw_only=True)
    compress: Any = field(default=None, kw_only=True)

    locality = "tree"
    handles_rows = True  # `update` refuses them itself, to say why
    follows = ("master",)
    takes_whole = True

    @property
    def divides(self) -> tuple[str, ...]:
        """The axes over which it divides the state, as a tuple of names."""
        return axis_names(self.axes)

    @property
    def exchanges(self) -> tuple[str, ...]:
        """The axes, as a tuple of names."""
        return axis_names(self.axes)

    def __post_init__(self) -> None:
        check_transform(self, self.inner, "inner")
        check_axis_name(self, "axes")
        check_forms(self)
        check_reach(self, self.inner)

    # --------------------------------------------------------------------------------- dividing

    def _sizes(self) -> dict[str, int]:
        return {name: size_of(name) for name in axis_names(self.axes)}

    def _divisions(self, params: Params, sizes: Mapping[str, int]) -> list[Division]:
        rows, long = check_reach(self, self.inner)[0] == "row", sums_products(self.inner)
        return [
            division_of_shape(jnp.shape(p), sizes, rows, long=long) for p in jax.tree.leaves(params)
        ]

    def pieces(self) -> int:
        """Return the number of devices, at most so many pieces of an array."""
        return math.prod(self._sizes().values())

    def piece_of(self, x: Array) -> Array:
        """Return this device's piece of an array like a parameter."""
        (division,) = self._divisions(x, self._sizes())
        return division.cut(x)

    def _copy_dtype(self, p: Any) -> Any:
        """Return the dtype of a parameter's wider copy; None if it does not have one."""
        p_dtype = dtype_of(p)
        if self.master_dtype is None:
            return None
        dtype = promote(p_dtype, jnp.dtype(self.master_dtype))
        return dtype if dtype != p_dtype else None

    def _as_shards(self, params: Params, divisions: list[Division]) -> Any:
        """Return the context in which the inner transform runs on shards."""
        cuts, reach = self._cuts(params, divisions), check_reach(self, self.inner)[0]
        return on_pieces(cuts, self._sizes(), reach)

    def _cuts(self, params: Params, divisions: list[Division]) -> Cuts:
        paths = (path for path, p in with_paths(params) if not is_hole(p))
        return {path: d.cuts for path, d in zip(paths, divisions, strict=True)}

    def state_specs(self, params: Params, mesh: Mesh) -> Zero1State:
        """Return a `PartitionSpec` for every leaf of the state, how it lies on a mesh.

        Use them as `in_specs` and `out_specs` of `jax.shard_map`. The parts of a divided leaf
        together have the shape that the leaf has without this wrapper.

        Args:
          params: the parameters, or their shapes and dtypes.
          mesh: a mesh with the axes.

        Raises:
          ValueError: if the mesh lacks one of the axes.
        """
        return divided_specs(self, as_holes(params), mesh)

    # ---------------------------------------------------------------------------------- stepping

    def init(self, params):
        """Return the state of this device's shards."""
        check_bound(self, self.axes)
        check_entrywise(self, check_reach(self, self.inner)[1], params)
        leaves, treedef = jax.tree.flatten(params)
        divisions = self._divisions(params, self._sizes())
        shards, master, alone = [], [], []
        for division, p in zip(divisions, leaves, strict=True):
            shard, dtype = division.cut(jnp.asarray(p)), self._copy_dtype(p)
            shards.append(shard if dtype is None else cast(shard, dtype))
            master.append(jnp.zeros((1,), scalar_dtype()) if dtype is None else shards[-1])
            alone.append(shard if dtype is None else None)
        feedback = first_memory(self, params, divisions, alone)
        with self._as_shards(params, divisions):
            inner = self.inner.init(treedef.unflatten(shards))
        return Zero1State(inner, treedef.unflatten(master), feedback)

    def update(self, updates, state, params=None, **extra):
        """Return the updates for the mean gradients, the same on all devices, and the state.

        Args:
          updates: this device's own gradients.
          state: this device's state.
          params: the parameters, the same on all devices.
          **extra: extra arguments of the inner transform, the same on all devices.
        """
        treedef, leaves, state, memory = self._step_shards(updates, state, params, extra)
        dtypes = [dtype_of(g) for g in jax.tree.leaves(updates)]
        shards = [
            of_step(leaf, memory, dtype_to_gather(self, dtype))
            for leaf, dtype in zip(leaves, dtypes, strict=True)
        ]
        us, state = self._gathered(leaves, shards, state, params, memory)
        return treedef.unflatten(map(cast, us, dtypes)), state

    @step_of_gradients
    def step(
        self, grads: Updates, state: OptState, params: Params, **extra: Any
    ) -> tuple[Params, Zero1State]:
        """Return the new parameters, assigned and not added, and this device's state.

        The parameters themselves are gathered, unless `gather_dtype` is narrower than their dtype:
        then their changes are gathered, and added.

        Args:
          grads: this device's own gradients.
          state: this device's state.
          params: the parameters, the same on all devices.
          **extra: extra arguments of the inner transform, the same on all devices.
        """
        self.check_extra(extra)
        update_params: Any = self.update_params
        return update_params.call(grads, state, params, **extra)

    def update_params(self, updates, state, params, **extra):
        """Return what `step` does; another part may take some of the extra arguments."""
        gathers_params = self.compress is None and all(
            dtype_to_gather(self, dtype_of(p)) == dtype_of(p) for p in jax.tree.leaves(params)
        )
        given = updates, state, params, extra, gathers_params
        treedef, leaves, state, memory = self._step_shards(*given)
        ps = align(self, updates, treedef, params, "the parameters have")
        shards, are_new = [], []
        for leaf, p in zip(leaves, ps.leaves, strict=True):
            dtype = dtype_to_gather(self, dtype_of(p))
            are_new.append(leaf.codec is None and dtype == dtype_of(p))
            if are_new[-1]:
                shards.append(Shard(leaf.division, cast(leaf.new, dtype), other=p))
            else:
                shards.append(of_step(leaf, memory, dtype))
        wholes, state = self._gathered(leaves, shards, state, params, memory)
        new = [
            engine.sent_here(x)
            if is_new
            else apply_updates(p, cast(x, at_least_float32(dtype_of(p))))
            for x, p, is_new in zip(wholes, ps.leaves, are_new, strict=True)
        ]
        return ps.rebuilt(new), state

    def _gathered(
        self,
        leaves: list[StepLeaf],
        shards: list[Shard],
        state: Zero1State,
        params: Params,
        memory: list[Any],
    ) -> tuple[list[Array], Zero1State]:
        """Return whole arrays from shards, and the state with what is still to be sent."""
        takes_step = last_step_taken(self.inner, state.inner)
        wholes, rests = gathered_shards(shards, knows_what_varies(self.axes), takes_step)
        for leaf, rest in zip(leaves, rests, strict=True):
            if rest is not None:
                memory[leaf.index] = memory[leaf.index]._replace(mean=rest)
        new = state._replace(feedback=as_feedback(params, state.feedback, memory))
        return wholes, self._varying_like(new, state)

    def _step_shards(
        self,
        updates: Updates,
        state: Any,
        params: Params | None,
        extra: dict[str, Any],
        gathers_params: bool = False,
    ) -> tuple[Any, list[StepLeaf], Zero1State, list[Any]]:
        """Return the structure and leaves of the step, the new state, and what is still to send.

        With `gathers_params`, nobody asks by how much shards move.
        """
        engine.refuse_rows(self, updates, "divides arrays over devices")
        require_params(self, params)
        check_state(self, state, Zero1State)
        check_bound(self, self.axes)
        require_local(self, updates, self.axes)
        check_entrywise(self, check_reach(self, self.inner)[1], params)
        gs, treedef = jax.tree.flatten(updates)
        ps = align_params(self, updates, treedef, params)

        all_ps, all_def = jax.tree.flatten(params)
        divisions = self._divisions(params, self._sizes())
        masters = align(self, params, all_def, state.master, "the state's master has")
        shards = [d.cut(jnp.asarray(p)) for d, p in zip(divisions, all_ps, strict=True)]
        inner_ps = [
            shard if self._copy_dtype(shard) is None else copy_of(self, params, i, shard, master)
            for i, (shard, master) in enumerate(zip(shards, masters.leaves, strict=True))
        ]
        # The inner transform, its copies and the memory are of all parameters, also of those
        # without a gradient: `where` leads from a gradient to its parameter.
        where = ps.where or range(len(gs))
        memory = memory_of(self, params, divisions, state.feedback)
        means, rests = mean_shards(
            self, [*map(jnp.asarray, gs)], *([x[i] for i in where] for x in (divisions, memory))
        )
        for i, rest in zip(where, rests, strict=True):
            memory[i] = rest
        with self._as_shards(params, divisions):
            inner_grads, inner_params = treedef.unflatten(means), all_def.unflatten(inner_ps)
            given = self.inner, inner_grads, state.inner, inner_params, extra
            if gathers_params:
                new_params, inner = call_update_params(*given)
                us, news = [None] * len(gs), jax.tree.leaves(new_params)
            else:
                u_tree, inner = call_update(*given)
                us, news = treedef.flatten_up_to(u_tree), list(inner_ps)
        leaves, copies = [], list(masters.leaves)
        for i, u in zip(where, us, strict=True):
            new = news[i] if u is None else sum_as_first(inner_ps[i], u)
            has_copy = self._copy_dtype(all_ps[i]) is not None
            codec = None if memory[i] is None else step_codec(self, all_ps[i], divisions[i])
            leaves.append(StepLeaf(i, divisions[i], shards[i], new, u, has_copy, codec))
            copies[i] = new if has_copy else copies[i]
        new_state = state._replace(inner=inner, master=masters.rebuilt(copies))
        return treedef, leaves, new_state, memory

    def _varying_like(self, new: Zero1State, old: Zero1State) -> Zero1State:
        """Mark the new state as varying where the old one may, if JAX tracks that."""
        return varying_like(new, old) if knows_what_varies(self.axes) else new

    def inner_states(self, state: OptState) -> list[tuple[Path, Any]]:
        """Return the place of the inner state."""
        return [(("inner",), self.inner)]

    def moved(self, state, old, new):
        """Return the state with this device's copies moved as the parameters were."""
        olds, treedef = jax.tree.flatten(old)
        news = align(self, old, treedef, new, "the parameters have").leaves
        masters = align_slot(self, old, treedef, state, "master")
        divisions = self._divisions(old, self._sizes())
        before, after, copies = [], [], []
        for d, p, q, master in zip(divisions, olds, news, masters.leaves, strict=True):
            p, q = d.cut(jnp.asarray(p)), d.cut(jnp.asarray(q))
            if self._copy_dtype(p) is not None:
                p, q = master, carried(master, p, q)
                master = q
            before.append(p)
            after.append(q)
            copies.append(master)
        inner = tell_moved(
            self.inner, state.inner, treedef.unflatten(before), treedef.unflatten(after)
        )
        result = state._replace(inner=inner, master=masters.rebuilt(copies))
        return self._varying_like(result, state)
