"""Measures of an optimizer's exchanges since the start: how many, bytes, distances."""

import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh, AxisType, Mesh, PartitionSpec

from gradxform._jax.versions import is_tracer
from gradxform.base import GradientTransformation, call_update, unwrapped
from gradxform.distributed.averaging.elastic import agn, elastic_average
from gradxform.distributed.averaging.exchange import Exchanging
from gradxform.distributed.averaging.outer import outer
from gradxform.distributed.averaging.synchronous import sync_replicas
from gradxform.distributed.averaging.tower import Synchronous
from gradxform.distributed.programs.collectives import Collective, count_jaxpr
from gradxform.distributed.zero import zero1
from gradxform.errors import must_be, name_of, require_bool, require_dict
from gradxform.leaves import dtype_of, shape_of
from gradxform.leaves.masks import MaskedState
from gradxform.leaves.states import node_at
from gradxform.numerics import at_least_float32, cast
from gradxform.types import Array, OptState, Params
from gradxform.wrappers.parts import all_parts, inner_parts

__all__ = [
    "exchange_metrics",
]

_EXCHANGES = Exchanging | Synchronous | zero1


def exchange_metrics(
    tx: Any,
    state: OptState,
    params: Params,
    mesh: Mesh | Mapping[str, int],
    *,
    replicas: bool = True,
    steps: Any = None,
    extra: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return what the exchanges of an optimizer have done since the start, as a dict of scalars.

    For each part that exchanges:

    - `exchanges`: the number of exchanges, each of a fragment if there are several;
    - `steps_since_exchange`: of an averaging method, the steps that replicas have taken alone;
    - `contributing`: of `sync_replicas`, the contributions in its accumulator;
    - `bytes_per_exchange`: the bytes that a device sends in an exchange, the mean over fragments;
    - `bytes_sent`: the bytes that a device has sent in all exchanges since the start.

    With an averaging method, also `distance_to_mean`, the Euclidean distance of each replica's
    parameters to their mean over the replicas: its mean, and the extremes as `distance_to_mean/min`
    and `distance_to_mean/max`. With several parts that exchange, as in `diloco(zero1(...))`, the
    name of the part comes first, `"outer/bytes_sent"`, and `bytes_sent` is their sum.

    `gradxform.metrics(state, params, replicas=True)` shows the rest: the distances to a center or
    an anchor, and the counts of a state, such as `dropped` or `stale_counter`.

    Bytes are counted as in `distributed.hlo`: what a device sends in a ring, in the dtypes and
    compressions in which it does, for parameters that each device has whole. They are those of one
    exchange, times exchanges; the state does not keep them. The few numbers that guards send are
    left out; `zero1` around an optimizer that accumulates counts as if it gathered in every call.
    Under `jax.jit`, `bytes_sent` is a float32, which rounds at the seventh digit. Outside
    it is a Python number, and exact.

    `tower`, `zero1` and `sync_replicas` exchange in every call and do not count the calls. Without
    `steps`, their `exchanges` and `bytes_sent` are missing.

    Args:
      tx: the optimizer.
      state: its state.
      params: the parameters, as the state has them.
      mesh: a mesh with the axes of `tx`, or their sizes by name.
      replicas: whether state and parameters have an axis of replicas in front, as
        `distributed.Replicas` returns them. Keyword-only.
      steps: the number of calls since the start, an integer scalar. Keyword-only.
      extra: extra arguments that `tx.update` requires, of one replica. Keyword-only.

    Raises:
      TypeError: if `mesh` is neither a mesh nor sizes, or `replicas` or `extra` of another kind.
      ValueError: if the mesh lacks an axis of `tx`, or if a part that exchanges is inside of one
        whose state does not say where the inner states are.
    """
    require_bool("exchange_metrics", "replicas", replicas)
    require_dict("exchange_metrics", "extra", extra)
    places = list(_parts(tx, state))
    reached = [one.part for one in places]
    for part in all_parts(tx):
        if isinstance(part, _EXCHANGES) and not any(part is one for one in reached):
            raise ValueError(
                f"exchange_metrics: {name_of(part)} is inside of a part that does not say where "
                "its inner states are, so that exchanges cannot be counted. Pass it and its state "
                "by themselves."
            )
    sizes = _mesh_sizes(mesh, reached)
    shapes = jax.tree.map(lambda p: _shape(p, replicas), params)
    numbers: dict[str, Any] = {}
    if replicas and any(isinstance(part, Exchanging) for part in reached):
        numbers |= _measured_distances_to_mean(params)
    totals = []
    for one in places:
        prefix = "" if len(places) == 1 else f"{_label_of_measured_part(one, places)}/"
        metrics = _measures_of_part(one, sizes, shapes, steps, dict(extra or {}))
        numbers |= {f"{prefix}{name}": x for name, x in metrics.items()}
        totals.append(metrics.get("bytes_sent"))
    if len(places) > 1 and all(x is not None for x in totals):
        numbers["bytes_sent"] = sum(totals)
    return numbers


class _MeasuredPart(NamedTuple):
    """A part that exchanges, with its state."""

    part: Any
    state: Any


def _parts(tx: Any, state: Any) -> Iterator[_MeasuredPart]:
    """Yield the parts of `tx` that exchange, with their states, the outermost first."""
    tx = unwrapped(tx)
    if isinstance(tx, _EXCHANGES):
        yield _MeasuredPart(tx, state)
    inner = tx.inner_states(state) if isinstance(tx, GradientTransformation) else []
    for path, part in inner:
        # In a group, a part exchanges some of the parameters only: it is to be measured by itself.
        if not path or not isinstance(node_at(state, path[:-1]), MaskedState):
            yield from _parts(part, node_at(state, path))


def _label_of_measured_part(one: _MeasuredPart, places: Sequence[_MeasuredPart]) -> str:
    name = name_of(one.part)
    alike = [other for other in places if name_of(other.part) == name]
    if len(alike) == 1:
        return name
    return f"{name}{next(i for i, other in enumerate(alike) if other is one)}"


def _mesh_sizes(mesh: Any, parts: Sequence[Any]) -> dict[str, int]:
    shape: Any = mesh.shape if isinstance(mesh, Mesh) else mesh
    sizes: dict[str, int] = dict(shape) if isinstance(shape, Mapping) else {}
    if not sizes or not all(isinstance(n, int) and n > 0 for n in sizes.values()):
        raise TypeError(
            must_be("exchange_metrics", "mesh", "a mesh, or the sizes of its axes by name", mesh)
        )
    for part in parts:
        for name in part.exchanges:
            if name not in sizes:
                raise ValueError(
                    f"exchange_metrics: the mesh lacks the axis {name!r}, which {name_of(part)} "
                    f"names, only {', '.join(sizes)}."
                )
    return sizes


def _shape(p: Any, replicas: bool) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape_of(p)[1 if replicas else 0 :], dtype_of(p))


def _measured_distances_to_mean(params: Params) -> dict[str, Array]:
    """Return how far replicas are from their mean."""
    squares = []
    for p in jax.tree.leaves(params):
        if jnp.issubdtype(dtype_of(p), jnp.inexact):
            wide = cast(jnp.asarray(p), at_least_float32(dtype_of(p)))
            apart = jnp.abs(wide - jnp.mean(wide, axis=0, keepdims=True))
            squares.append(jnp.sum(apart**2, axis=tuple(range(1, apart.ndim))))
    if not squares:
        return {}
    each = jnp.sqrt(sum(squares[1:], squares[0]))
    name = "distance_to_mean"
    return {name: jnp.mean(each), f"{name}/min": jnp.min(each), f"{name}/max": jnp.max(each)}


def _measures_of_part(
    one: _MeasuredPart, sizes: dict[str, int], shapes: Params, steps: Any, extra: dict[str, Any]
) -> dict[str, Any]:
    """Return the numbers of one part that exchanges."""
    part, state = one
    numbers: dict[str, Any] = {}
    if isinstance(part, Exchanging):
        after_warmup = jnp.maximum(state.schedule_step - getattr(part, "warmup", 0), 0)
        alone = state.schedule_step % _interval_of_measured_part(part)
        numbers["steps_since_exchange"] = jnp.minimum(alone, after_warmup)
    if isinstance(part, sync_replicas):
        numbers["contributing"] = state.count
    each = _measured_bytes_per_exchange(part, sizes, shapes, extra)
    numbers["bytes_per_exchange"] = sum(each) / len(each)
    count = _measured_exchange_count(part, state, sizes, steps)
    if count is None:
        return numbers
    numbers["exchanges"] = count
    # Fragments take turns, the first one first.
    k = len(each)
    if is_tracer(count):
        turns = [jnp.asarray((count + k - 1 - i) // k, jnp.float32) for i in range(k)]
    else:
        turns = [(int(count) + k - 1 - i) // k for i in range(k)]
    numbers["bytes_sent"] = sum(n * size for n, size in zip(turns, each, strict=True))
    return numbers


def _interval_of_measured_part(part: Any) -> int:
    return part.period // getattr(part, "fragments", 1)


def _measured_exchange_count(part: Any, state: Any, sizes: dict[str, int], steps: Any) -> Any:
    """Return the number of exchanges since the start; None where nothing counts them."""
    if isinstance(part, Exchanging):
        if isinstance(part, outer) and part.delay:  # a global step is one that has landed
            return state.schedule_step // _interval_of_measured_part(part)
        in_turns = isinstance(part, elastic_average) or (
            isinstance(part, agn) and part.order == "sequential"
        )
        axes = part.axis if isinstance(part.axis, tuple) else (part.axis,)
        n = 1
        for name in axes if in_turns else ():
            n *= sizes[name]
        return state.global_step // n
    return steps


# ------------------------------------------------------------------------------ bytes, by tracing


def _measured_bytes_per_exchange(
    part: Any, sizes: dict[str, int], shapes: Params, extra: dict[str, Any]
) -> list[float]:
    """Return the bytes that a device sends in an exchange, for each fragment."""
    leaves, treedef = jax.tree.flatten(shapes)
    kinds = tuple((p.shape, p.dtype) for p in leaves)
    if extra:
        return _bytes_measured_by_tracing(part, tuple(sizes.items()), treedef, kinds, extra)
    try:
        return _remembered_measured_bytes(part, tuple(sizes.items()), treedef, kinds)
    except TypeError:  # a part that cannot be hashed
        return _bytes_measured_by_tracing(part, tuple(sizes.items()), treedef, kinds, {})


@functools.lru_cache(maxsize=64)
def _remembered_measured_bytes(part: Any, sizes: Any, treedef: Any, kinds: Any) -> list[float]:
    return _bytes_measured_by_tracing(part, sizes, treedef, kinds, {})


def _bytes_measured_by_tracing(
    part: Any, sizes: Any, treedef: Any, kinds: Any, extra: dict[str, Any]
) -> list[float]:
    """Count what a step of a part asks for, less what its inner parts would do alone."""
    params = treedef.unflatten([jax.ShapeDtypeStruct(*kind) for kind in kinds])
    mesh = AbstractMesh(
        tuple(size for _, size in sizes),
        tuple(name for name, _ in sizes),
        axis_types=(AxisType.Auto,) * len(sizes),
    )
    every = PartitionSpec()

    def asked(tx: Any, **how: Any) -> list[Collective]:
        def step(params: Params, extra: dict[str, Any]) -> Any:
            return call_update(tx, params, tx.init(params), params, extra | how)[0]

        mapped = jax.shard_map(
            step, mesh=mesh, in_specs=(every, every), out_specs=every, check_vma=False
        )
        return count_jaxpr(mapped, params, extra)

    if not isinstance(part, Exchanging):
        inside = [one for one in inner_parts(part) if _has_measured_exchange(one)]
        return [
            _measured_bytes_sent(asked(part))
            - sum(_measured_bytes_sent(asked(one)) for one in inside)
        ]
    with_it, without = asked(part, sync=True), asked(part, sync=False)
    turns = getattr(part, "fragments", 1)
    if turns == 1:
        return [_measured_bytes_sent(with_it) - _measured_bytes_sent(without)]
    # Fragments take turns by a switch: the one condition with as many branches as fragments.
    chosen: dict[str, dict[int, float]] = {}
    for c in with_it:
        if c.conditions:
            name, branch = c.conditions[0]
            by_branch = chosen.setdefault(name, {})
            by_branch[branch] = by_branch.get(branch, 0.0) + c.sent
    (by_branch,) = [branches for branches in chosen.values() if len(branches) == turns]
    return [by_branch[i] for i in range(turns)]


def _measured_bytes_sent(collectives: list[Collective]) -> float:
    return sum(c.sent for c in collectives)


def _has_measured_exchange(tx: Any) -> bool:
    return any(isinstance(part, _EXCHANGES) for part in all_parts(tx))
