"""The collectives that a function asks for, before anything is compiled."""

import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax

from gradxform._jax.jaxprs import jaxprs_of

__all__ = []

# From the outermost: the name of a condition, and the index of its branch.
Conditions = tuple[tuple[str, int], ...]

# The device numbers of every group.
Groups = tuple[tuple[int, ...], ...]


class Collective(NamedTuple):
    """One collective of a program.

    Attributes:
      kind: "all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute",
        "collective-broadcast" or "send".
      bytes: the size of the whole array: the input on each device of an all-reduce, a
        reduce-scatter or an all-to-all, and the result of an all-gather or a permutation.
      group: the number of devices in a group.
      computation: the name of the computation that contains it.
      times: how often it runs in one run of the program (or of its branch), counting all loops.
      conditions: the conditions under which it runs, outermost first: pairs of the condition's name
        and the index of the branch. A loop of unknown length counts as a condition, and as one
        turn.
      groups: the device numbers of every group.
    """

    kind: str
    bytes: int
    group: int
    computation: str
    times: int = 1
    conditions: Conditions = ()
    groups: Groups = ()

    @property
    def conditional(self) -> bool:
        """Whether it runs under a condition."""
        return bool(self.conditions)

    @property
    def sent(self) -> float:
        """The bytes that each device sends for it in one run of the program, in a ring."""
        ring = (self.group - 1) / self.group if self.group else 0
        share = {"all-reduce": 2 * ring, "send": 1.0, "collective-permute": 1.0}
        return self.times * self.bytes * share.get(self.kind, ring)


# The kinds of JAX's collective primitives.
_PRIMITIVES = {
    "psum": "all-reduce",
    "psum2": "all-reduce",
    "psum_invariant": "all-reduce",
    "pmax": "all-reduce",
    "pmin": "all-reduce",
    "all_gather": "all-gather",
    "all_gather_invariant": "all-gather",
    "all_gather_reduced": "all-gather",
    "reduce_scatter": "reduce-scatter",
    "unreduced_reduce_scatter": "reduce-scatter",
    "unreduced_psum": "all-reduce",
    "all_to_all": "all-to-all",
    "ragged_all_to_all": "all-to-all",
    "ppermute": "collective-permute",
    "pgather": "all-gather",
}


def count_jaxpr(fn: Callable[..., Any], *args: Any) -> list[Collective]:
    """Return the collectives that a function asks for, before anything is compiled.

    They are in the dtypes that the function asks for. XLA for CPUs sends 16-bit numbers as 32 bits,
    so a budget for bfloat16 can only be checked here. Collectives that the compiler adds for arrays
    that are divided without `shard_map` do not appear. `wire_bytes` turns the result into bytes.

    Args:
      fn: a function that uses `jax.shard_map` or `jax.pmap`, under `jax.jit` or not.
      *args: its arguments, or their shapes and dtypes.
    """
    return list(_collectives_of_jaxpr(jax.make_jaxpr(fn)(*args), "main", {}, 1, ()))


def _collectives_of_jaxpr(
    jaxpr: Any, name: str, sizes: dict[str, int], times: int, conditions: Conditions
) -> Iterator[Collective]:
    """Yield the collectives of a jaxpr and of those that it runs.

    Args:
      jaxpr: the jaxpr.
      name: its name.
      sizes: the sizes of the axes that are bound.
      times: how often it runs.
      conditions: the conditions under which it runs.
    """
    for i, eqn in enumerate(getattr(jaxpr, "jaxpr", jaxpr).eqns):
        kind, params, here = eqn.primitive.name, eqn.params, f"{name}/{i}"
        if kind in _PRIMITIVES:
            yield from _collectives_of_equation(eqn, name, sizes, times, conditions)
            continue
        mesh = params.get("mesh")
        inner_sizes = sizes
        if kind == "shard_map" and mesh is not None:
            inner_sizes = sizes | dict(mesh.shape)
        elif "axis_name" in params and "axis_size" in params:  # pmap
            inner_sizes = sizes | {params["axis_name"]: params["axis_size"]}
        inner_times = times * params["length"] if kind == "scan" else times
        for j, (label, inner) in enumerate(jaxprs_of(eqn)):
            inner_conditions = conditions
            if kind in ("cond", "while"):
                inner_conditions = (*conditions, (here, j if kind == "cond" else 0))
            yield from _collectives_of_jaxpr(
                inner, f"{here}.{label}", inner_sizes, inner_times, inner_conditions
            )


def _collectives_of_equation(
    eqn: Any, name: str, sizes: dict[str, int], times: int, conditions: Conditions
) -> Iterator[Collective]:
    """Yield the collectives of one equation, one for each array."""
    kind = _PRIMITIVES[eqn.primitive.name]
    axes = eqn.params.get("axes", eqn.params.get("axis_name", ()))
    axes = axes if isinstance(axes, tuple | list) else (axes,)
    group = math.prod(sizes.get(a, 1) for a in axes if isinstance(a, str))
    index_groups = eqn.params.get("axis_index_groups")
    group = len(index_groups[0]) if index_groups else group
    for v in eqn.outvars if kind == "all-gather" else eqn.invars:
        size = math.prod(v.aval.shape) * v.aval.dtype.itemsize
        yield Collective(kind, size, group, name, times, conditions)
