"""How a state lies in a `jax.shard_map`: each leaf per replica, shared or as its parameter."""

import math
from collections.abc import Iterable, Mapping
from typing import Any

import jax
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec

from gradxform._jax.jaxprs import traced_along
from gradxform.base import GradientTransformation, call_update, check_transform
from gradxform.distributed.averaging.exchange import Exchanging
from gradxform.distributed.matrices.state import cut_alone
from gradxform.distributed.shares.param_places import (
    Parameter,
    axes_in,
    entries_of,
    is_place,
    read_places,
    spec_of,
)
from gradxform.distributed.shares.shared_leaves import is_shared
from gradxform.distributed.specs.slot_dims import as_seen, divide_feedback, give_rows, match_leaves
from gradxform.distributed.wire.axis import axes_argument, axis_names, check_in_mesh
from gradxform.distributed.wire.decisions import differing_results
from gradxform.errors import leaf_path, name_of, require_dict, shown
from gradxform.leaves import dtype_of, path_at
from gradxform.leaves.storage import StoredArray, is_stored
from gradxform.types import Params, PyTree
from gradxform.wrappers.parts import OF_FUNCTIONS, all_parts

__all__ = [
    "state_specs",
]

# For each dimension of a leaf, the mesh axes that divide it, in order.
_Axes = list[tuple[str, ...]]


def state_specs(
    tx: Any,
    params: Params,
    specs: PyTree = None,
    *,
    mesh: Mesh | AbstractMesh | None = None,
    replicas: str | tuple[str, ...] = (),
    extra: Mapping[str, Any] | None = None,
) -> PyTree:
    """Return a `PartitionSpec` for every leaf of `tx.init(params)`, for a `jax.shard_map`.

    Use them as `in_specs` and `out_specs` for the state, of any composition. A leaf lies in one of
    these ways:

    - shared, `P()`: fields of states that are annotated `Everywhere`, such as `schedule_step`, and,
      where replicas take the same steps (`tower`, `sync_replicas`, `zero1`), counts and other
      leaves without a dimension of a parameter;
    - sharded as its parameter: along each dimension that it keeps of the parameter, the axes that
      divide that dimension. The dimensions that `zero1` cuts are divided over its axes too;
    - per replica, `P(axis, *spec)`: under a wrapper whose replicas differ (`model_average`,
      `outer` and `diloco`, `elastic_average`, `agn`), every leaf that is not `Everywhere` has a
      leading axis of replicas, and then lies as above. Parts around such a wrapper see each
      replica's own gradients, so their leaves have that axis too. With several such wrappers there
      is still one leading axis, `P(("dcn", "ici"), *spec)`, the axis of the outermost first.

    These are the layouts of `Replicas(mode="shard_map")`. As there, the mapped function removes the
    leading axis, of length 1, from what it gets, and adds it to what it returns:

        tx = diloco(zero1(adamw(1e-3), "ici"), "dcn")
        specs = state_specs(tx, params, mesh=mesh)

        def step(params, state, batch):  # in_specs=(P("dcn"), specs, P(("dcn", "ici")))
            params, state = without_axis(params), without_axis(state)  # x[0], of all but P()
            grads = jax.grad(loss)(local_view(params, "ici"), batch)
            params, state = tx.step(grads, state, params)
            return with_axis(params), with_axis(state)  # x[None], of all but P()

    For a `jax.vmap` over replicas, `in_axes` and `out_axes` are None where the spec is `P()`, and 0
    elsewhere.

    In a `shard_map` a transform sees pieces of the parameters that `specs` divide. The shapes are
    therefore those of pieces: a matrix may be too small there to be factored. A leaf that lacks a
    dimension that is divided, such as a norm of each parameter or the means of `adafactor`, is
    computed from a piece, so that devices disagree about it. `check_vma=True` refuses that,
    `check_vma=False` does not see it. For such rules use `shard_matrices` or `zero1`, or leave
    these axes to the compiler, with `jax.jit` and `state_sharding`.

    Args:
      tx: a transform, ours or Optax's.
      params: the parameters of one replica, whole, or their shapes and dtypes.
      specs: for each parameter of one replica a `PartitionSpec` or a `NamedSharding`, over axes
        that are manual in the `shard_map`; or one for a subtree, such as one for all. Without the
        axes of replicas, and without those of `zero1`. Defaults to the `NamedSharding`s that the
        parameters have, and to `P()` for those without one.
      mesh: the mesh, for the lengths of its axes; needed where a part divides states or `specs`
        name an axis. Defaults to that of the `NamedSharding`s, or of `jax.set_mesh`. Keyword-only.
      replicas: the name of an axis, or several, along which you give each replica its own
        parameters and state although no part demands it, as `Replicas` does. Keyword-only.
      extra: the extra arguments of a step, or their shapes and dtypes, if a step needs any. Where
        replicas take the same steps, one is traced to see that their states stay equal.
        Keyword-only.

    Returns:
      A tree with the structure of the state.

    Raises:
      TypeError: for a sharding or a mesh of any other kind.
      ValueError: if the specs do not have the structure of the parameters, name an axis of
        replicas or one that the mesh lacks, or do not divide a parameter evenly; if the mesh is
        needed and not known; if another library's wrapper hides the axis of replicas; if replicas
        that take the same steps keep something of their own, as `MultiSteps(tower(...))` sums
        gradients before their mean: name their axis in `replicas`.
    """
    check_transform("state_specs", tx, "tx")
    require_dict("state_specs", "extra", extra)
    parameters = _placed(read_places("state_specs", params, _specs_or_own(params, specs)))
    parts = list(all_parts(tx))
    apart = _replica_axes(parts, replicas)
    divided = _dividing_axes(parts)
    mesh = _mesh(mesh, params, specs)
    _check_axes(parameters, params, parts, apart, mesh)
    lengths = {} if mesh is None else dict(mesh.shape)
    layout = _Call(tx, params, parameters, apart, divided, lengths)
    specs = layout.specs()
    layout.check_equal(specs, extra or {})
    return specs


def divided_specs(tx: Any, params: Params, mesh: Mesh | AbstractMesh) -> PyTree:
    """Return `state_specs` for whole parameters, without a check that replicas stay equal."""
    parameters = read_places("state_specs", params, PartitionSpec())
    divided = _dividing_axes(list(all_parts(tx)))
    for name in divided:
        _check_axis_in_mesh(name, mesh, tx)
    return _Call(tx, params, parameters, (), divided, dict(mesh.shape)).specs()


class _Call:
    """One call of `state_specs`."""

    def __init__(
        self,
        tx: Any,
        params: Params,
        parameters: list[Parameter],
        apart: tuple[str, ...],
        divided: tuple[str, ...],
        lengths: Mapping[str, int],
    ) -> None:
        self.tx, self.params, self.parameters = tx, params, parameters
        self.apart, self.divided, self.lengths = apart, divided, lengths

    def specs(self) -> PyTree:
        """Return the specs of the state."""
        outside = [name for name in self.lengths if name not in self.divided]
        stored = self._state(outside, ())
        self._check_known(stored)
        state = as_seen(stored)
        axes = self._as_parameters(state, outside)
        self._add_divided(axes, state, outside)
        stored = self._state(outside, self.divided)  # pieces may be kept in other forms
        leaves = jax.tree.leaves(stored, is_leaf=is_stored)
        whole = PartitionSpec()
        placed = [
            x.placed(spec_of(entries), whole) if isinstance(x, StoredArray) else spec_of(entries)
            for x, entries in zip(leaves, axes, strict=True)
        ]
        flat = jax.tree.leaves(placed, is_leaf=is_place)
        lead = self.apart[0] if len(self.apart) == 1 else self.apart
        pairs = zip(flat, is_shared(stored), strict=True)
        out = [spec if shared or not lead else PartitionSpec(lead, *spec) for spec, shared in pairs]
        return jax.tree.unflatten(jax.tree.structure(stored), out)

    def check_equal(self, specs: PyTree, extra: Mapping[str, Any]) -> None:
        """Require what is shared to stay equal where replicas take the same steps.

        A value that is computed from a replica's own gradients or extra arguments may differ, until
        a sum over the replicas makes it the same.
        """
        parts = [part for part in all_parts(self.tx) if isinstance(part, GradientTransformation)]
        combine = [part for part in parts if not isinstance(part, Exchanging)]
        # Those along which devices have pieces of parameters do not have the same states.
        cut = {name for p in self.parameters for e in entries_of(p.place) for name in axes_in(e)}
        others = {*self.apart, *cut}
        alike = [name for part in combine for name in part.exchanges if name not in others]
        if not alike:
            return
        params = self._pieces(set(self.lengths))
        # A single device exchanges nothing: results would not show what a sum makes equal.
        alike = [name for name in alike if self.lengths.get(name) != 1]
        sizes = {name: self.lengths.get(name, 2) for name in self._sizes(())}
        first_state = traced_along(self.tx.init, (params,), sizes)[1]

        def step(state: Any, params: Any, grads: Any, extra: Any) -> Any:
            return call_update(self.tx, grads, state, params, dict(extra))[1]

        try:
            program, _ = traced_along(step, (first_state, params, params, dict(extra)), sizes)
        except TypeError as error:
            raise TypeError(
                "state_specs: a step is traced to see that the states of replicas stay equal, and "
                f"that fails; give its extra arguments as extra={{...}}. {error}"
            ) from error
        paths = [path for path, _ in jax.tree_util.tree_flatten_with_path(first_state)[0]]
        alone = [False] * len(jax.tree.leaves(params))
        given = alone + [True] * len(jax.tree.leaves((params, extra)))
        for axis in dict.fromkeys(alike):
            # Step by step, what differs makes more of the next state differ, until no more does.
            new, before = [False] * len(paths), [True]
            while new != before:
                before = new
                results = differing_results(program, before + given, axis)
                new = [a or b for a, b in zip(before, results, strict=True)]
            for path, differs, spec in zip(paths, before, jax.tree.leaves(specs), strict=True):
                if differs and not any(axis in axes_in(entry) for entry in spec):
                    raise ValueError(
                        f"state_specs: {leaf_path(path)} of the state of {name_of(self.tx)} "
                        f"differs between the replicas of {axis!r}: it is computed from their own "
                        "gradients or extra arguments before these are combined. Give each "
                        f"replica its own parameters and state, replicas={axis!r}, or move that "
                        "part inside the one that combines them: zero1(MultiSteps(...)), say."
                    )

    def _state(self, cutting: Iterable[str], dividing: Iterable[str]) -> PyTree:
        """Return the shapes of a device's state.

        The axes in `cutting` cut the parameters; those in `dividing` have their lengths, not 1.
        """
        pieces = self._pieces({*cutting, *dividing})
        return traced_along(self.tx.init, (pieces,), self._sizes(dividing))[1]

    def _sizes(self, dividing: Iterable[str]) -> dict[str, int]:
        """Return the axes to bind where the transform is traced, with their lengths there."""
        names = dict.fromkeys((*self.apart, *self.divided, *self.lengths))
        for part in all_parts(self.tx):
            names |= dict.fromkeys(getattr(part, "exchanges", ()))
        return {name: self.lengths[name] if name in dividing else 1 for name in names}

    def _check_known(self, state: PyTree) -> None:
        """Require every axis that parts name to be known, where their states show such parts."""
        kinds = () if self.apart else tuple(k.State for k in Exchanging.__subclasses__())
        nodes = jax.tree.leaves(state, is_leaf=lambda x: isinstance(x, kinds))
        hidden = next((type(x).__name__ for x in nodes if isinstance(x, kinds)), None)
        if not self.divided and any(map(_hides_parts, all_parts(self.tx))):
            pieces = self._state(self.lengths, self.lengths)
            pairs = zip(*(jax.tree.leaves(as_seen(x)) for x in (state, pieces)), strict=True)
            hidden = "part that divides it" if any(_dims(a, b) for a, b in pairs) else hidden
        if hidden is not None:
            raise ValueError(
                f"state_specs: the state has a {hidden}, and {name_of(self.tx)} does not show "
                "which axis that part names. Compose it with gradxform.chain and the other "
                "wrappers of gradxform."
            )

    def _pieces(self, cutting: set[str]) -> Params:
        """Return the shapes of a device's pieces of the parameters."""
        leaves, treedef = jax.tree.flatten(self.params)
        out = []
        for p, parameter in zip(leaves, self.parameters, strict=True):
            shape = list(parameter.shape)
            for dim, entry in enumerate(entries_of(parameter.place)):
                cuts = (self.lengths[name] for name in axes_in(entry) if name in cutting)
                shape[dim] //= math.prod(cuts)
            out.append(jax.ShapeDtypeStruct(tuple(shape), dtype_of(p)))
        return treedef.unflatten(out)

    def _as_parameters(self, state: PyTree, axes: Iterable[str]) -> list[_Axes]:
        """Return for each leaf the axes that divide the dimensions that it keeps."""
        pieces = self._pieces(set(axes))
        pairs = zip(self.parameters, jax.tree.leaves(pieces), strict=True)
        parameters = [parameter._replace(shape=x.shape) for parameter, x in pairs]
        out = []
        for match in match_leaves(self.tx, pieces, parameters, state):
            entries: _Axes = []
            if match.parameter is not None:
                _, shape, place = parameters[match.parameter]
                entries = [_axes_among(axes_in(entry), axes) for entry in entries_of(place)]
                entries += [()] * len(shape)
            out.append([() if d is None else entries[d] for d in match.dims])
        return out

    def _add_divided(self, axes: list[_Axes], state: PyTree, outside: list[str]) -> None:
        """Add the axes over which parts divide the state, one after the other.

        A dimension that is shorter than before is divided along the axis that was added.
        """
        whole = before = jax.tree.leaves(state)
        alone = jax.tree.leaves(cut_alone(state))
        for i, axis in enumerate(self.divided):
            after = jax.tree.leaves(as_seen(self._state(outside, self.divided[: i + 1])))
            # Along an axis of replicas, each has a row of its own for its piece.
            added = () if axis in self.apart else (axis,)
            for entries, a, b, first in zip(axes, before, after, alone, strict=True):
                for dim in _dims(a, b):
                    entries[dim] += added if dim < first else ()
            before = after
        together = tuple(name for name in self.divided if name not in self.apart)
        for entries, a, b, first in zip(axes, whole, before, alone, strict=True):
            for dim in _dims(a, b):
                entries[dim] += together if dim >= first else ()
        divide_feedback(self.tx, self.apart, state, axes)
        give_rows(state, axes, together)


def _dims(whole: Any, piece: Any) -> list[int]:
    """Return the dimensions of a leaf of the state that its spec must divide."""
    pairs = enumerate(zip(whole.shape, piece.shape, strict=True))
    return [dim for dim, (n, k) in pairs if n != k]


def _axes_among(entry: tuple[str, ...], axes: Iterable[str]) -> tuple[str, ...]:
    return tuple(name for name in entry if name in axes)


# ------------------------------------------------------------------------- what the caller gives


def _specs_or_own(params: Params, specs: PyTree) -> PyTree:
    """Return the specs; by default those of the parameters' own shardings."""
    if specs is not None:
        return specs

    def own(p: Any) -> Any:
        place = getattr(p, "sharding", None)
        return place if isinstance(place, NamedSharding) else PartitionSpec()

    return jax.tree.map(own, params)


def _placed(parameters: list[Parameter]) -> list[Parameter]:
    """Return the parameters with a `PartitionSpec` for a place."""
    return [p._replace(place=PartitionSpec(*entries_of(p.place))) for p in parameters]


def _replica_axes(parts: list[Any], replicas: str | tuple[str, ...]) -> tuple[str, ...]:
    """Return the axes of replicas that differ, the outermost first."""
    names = axes_argument("state_specs", "replicas", replicas)
    ours = [
        name for part in parts if isinstance(part, Exchanging) for name in axis_names(part.axis)
    ]
    return tuple(dict.fromkeys((*names, *ours)))


def _dividing_axes(parts: list[Any]) -> tuple[str, ...]:
    """Return the axes over which parts divide their states."""
    return tuple(dict.fromkeys(name for part in parts for name in getattr(part, "divides", ())))


def _hides_parts(part: Any) -> bool:
    return not isinstance(part, GradientTransformation) or type(part) in OF_FUNCTIONS


def _mesh(mesh: Any, params: Params, specs: PyTree) -> Any:
    """Return the mesh, that of the given shardings, or the current one; None if there is none."""
    if mesh is not None:
        if not isinstance(mesh, Mesh | AbstractMesh):
            raise TypeError(f"state_specs: mesh must be a jax.sharding.Mesh, got {shown(mesh)}.")
        return mesh
    leaves = jax.tree.leaves(specs, is_leaf=is_place)
    if specs is None:
        leaves = [getattr(p, "sharding", None) for p in jax.tree.leaves(params)]
    of_leaves = next((x.mesh for x in leaves if isinstance(x, NamedSharding)), None)
    current = jax.sharding.get_abstract_mesh()
    return of_leaves if of_leaves is not None else None if current.empty else current


def _check_axes(
    parameters: list[Parameter],
    params: Params,
    parts: list[Any],
    apart: tuple[str, ...],
    mesh: Any,
) -> None:
    """Require every axis to be in the mesh, to be free for parameters, and to divide them."""
    gathered = {name for p in parts if getattr(p, "takes_whole", False) for name in p.divides}
    for name in (*_dividing_axes(parts), *(apart if mesh is not None else ())):
        _check_axis_in_mesh(name, mesh)
    for i, parameter in enumerate(parameters):
        for dim, entry in enumerate(entries_of(parameter.place)):
            for name in axes_in(entry):
                _check_axis_in_mesh(name, mesh)
                if name in apart or name in gathered:
                    kind = "replicas" if name in apart else "zero1, which divides states itself"
                    raise ValueError(
                        f"state_specs: the spec of {path_at(params, i)} names {name!r}, the axis "
                        f"of {kind}; leave it out."
                    )
            n = math.prod(mesh.shape[name] for name in axes_in(entry)) if mesh is not None else 1
            if parameter.shape[dim] % n:
                raise ValueError(
                    f"state_specs: {path_at(params, i)} of shape {parameter.shape} cannot be "
                    f"divided into {n} equal pieces along dimension {dim}, as its spec says."
                )


def _check_axis_in_mesh(name: str, mesh: Any, part: Any = "state_specs") -> None:
    if mesh is None:
        raise ValueError(
            f"state_specs: the mesh is needed, for the length of its axis {name!r}; give mesh=..., "
            "or call it under jax.set_mesh."
        )
    check_in_mesh(part, name, mesh.axis_names)
