"""Counting what a program sends between devices: which collectives, how often, how many bytes.

Counts come from the program itself, so a test can hold it to a budget. They are bytes, not times.
Every collective is assumed to run as a ring. If a compiler chooses another algorithm, a device
sends another number of bytes.
"""

import math
from collections.abc import Iterable
from typing import Any, NamedTuple

from gradxform.distributed.programs.collectives import (
    Collective as Collective,
    Conditions,
    count_jaxpr as count_jaxpr,
)
from gradxform.leaves import dtype_of, leaves_of, shape_of
from gradxform.testing import hlo_text
from gradxform.testing.hlo_memory import moved_bytes as moved_bytes
from gradxform.testing.hlo_text import Instruction, Program
from gradxform.types import PyTree


class WireBytes(NamedTuple):
    """The bytes that each device sends in one step, a run of a program.

    Attributes:
      always: the bytes sent in every step.
      each: for every condition, the bytes sent in the branch that sends most.
      period: the number of steps from one in which the conditions hold to the next.
    """

    always: float
    each: tuple[float, ...]
    period: int

    @property
    def conditional(self) -> float:
        """The bytes beyond `always` in a step in which every condition holds."""
        return sum(self.each)

    @property
    def per_step(self) -> float:
        """The mean bytes per step over a period."""
        return self.always + self.conditional / self.period

    @property
    def peak(self) -> float:
        """The bytes in a step in which every condition holds."""
        return self.always + self.conditional

    @property
    def peak_of_one(self) -> float:
        """The bytes in a step in which only the condition that sends most holds."""
        return self.always + max(self.each, default=0.0)


def copy_bytes(params: PyTree) -> int:
    """Return the number of bytes in one copy of the parameters: the unit P of budgets.

    Args:
      params: arrays, or their shapes and dtypes.
    """
    leaves = leaves_of(params)
    return sum(math.prod(shape_of(p)) * dtype_of(p).itemsize for p in leaves)


def wire_bytes(
    compiled: Any, *, period: int | None = None, per_slice: int | None = None
) -> WireBytes:
    """Return the bytes that each device sends in a step.

    In a ring, for an array of B bytes and groups of n devices, an all-reduce sends 2 (n - 1) / n B,
    an all-gather, a reduce-scatter and an all-to-all send (n - 1) / n B, and a permutation sends B.

    Args:
      compiled: the result of `jax.jit(f).lower(...).compile()`, its text, or a list of
        `Collective`, as `count_jaxpr` returns it.
      period: the number of steps from one in which the conditions of the program hold to the next.
        Defaults to 1: they hold in every step.
      per_slice: the number of devices in a slice, to count only collectives with a group that spans
        several slices, each of them whole. Devices are numbered slice by slice. Defaults to all
        collectives.

    Raises:
      ValueError: if the period is below 1, or the text is not that of a compiled program.
    """
    if period is not None and period < 1:
        raise ValueError(f"wire_bytes: period must be at least 1, got {period!r}.")
    transfers = compiled if isinstance(compiled, list) else collectives(compiled)
    if per_slice is not None:
        transfers = [c for c in transfers if _crosses_slices(c, per_slice)]
    always, each = _bytes_by_condition(transfers, 0)
    return WireBytes(always, tuple(each), period or 1)


def _crosses_slices(c: Collective, per_slice: int) -> bool:
    # Programs for TPUs send to other slices through the host; such a `send` does not name groups.
    return c.kind == "send" or any(len({d // per_slice for d in g}) > 1 for g in c.groups)


def _bytes_by_condition(collectives: Iterable[Collective], depth: int) -> tuple[float, list[float]]:
    """Return the bytes sent always, and those of the costliest branch of each condition.

    Args:
      collectives: all under the same outer conditions.
      depth: the number of these conditions.
    """
    always = 0.0
    conditional: dict[str, dict[int, list[Collective]]] = {}  # by condition, then by branch
    for c in collectives:
        if len(c.conditions) == depth:
            always += c.sent
        else:
            condition, branch = c.conditions[depth]
            conditional.setdefault(condition, {}).setdefault(branch, []).append(c)
    each = []
    for branches in conditional.values():
        costs = [_bytes_by_condition(branch, depth + 1) for branch in branches.values()]
        each.append(max(sent + sum(deeper) for sent, deeper in costs))
    return always, each


def collectives(compiled: Any) -> list[Collective]:
    """Return the collectives of a compiled program, in the order of its text.

    A pair of `-start` and `-done` is one collective. So are the parts of a collective that a
    compiler for TPUs splits over several fusions, to compute meanwhile, under one `chain_id`. An
    all-reduce that is fused with a slice of its result counts as a reduce-scatter, because it runs
    as one. A computation that is called several times counts each time.

    Args:
      compiled: the result of `jax.jit(f).lower(...).compile()`, or its text.

    Raises:
      ValueError: if the text is not that of a compiled program.
    """
    text = compiled if isinstance(compiled, str) else compiled.as_text()
    walk = _Walk(hlo_text.read(text), [])
    walk.visit(walk.program.entry, _Run(1, (), False, {}))
    return walk.collectives


class _Run(NamedTuple):
    """One way in which a computation runs."""

    times: int
    conditions: Conditions
    scatters: bool  # whether its all-reduces are reduce-scatters
    # Where the collectives with a `chain_id` are noted; fusions share this with their caller.
    chains: dict[tuple[str, str], int]


class _Walk(NamedTuple):
    """A walk from a program's entry through all computations that it calls."""

    program: Program
    collectives: list[Collective]

    def visit(self, name: str | None, run: _Run) -> None:
        """Note the collectives of one computation and of those that it calls."""
        for one in self.program.computations.get(name or "", []):
            if one.opcode.removesuffix("-start") in KINDS:
                self._note(one, name or "", run)
            for callee, its_run in self._calls(one, run):
                self.visit(callee, its_run)

    def _calls(self, one: Instruction, run: _Run) -> list[tuple[str | None, _Run]]:
        """Return the computations that an instruction calls, and how each of them runs."""
        text, times, conditions = one.text, run.times, run.conditions
        if one.opcode == "while":
            body, turns = hlo_text.attribute(text, "body"), hlo_text.trip_count(text)
            if turns is None:  # counts as a condition, under which the body runs once
                return [(body, _Run(times, (*conditions, (one.name, 0)), False, {}))]
            return [(body, _Run(times * turns, conditions, False, {}))]
        if one.opcode == "conditional":
            return [
                (branch, _Run(times, (*conditions, (one.name, i)), False, {}))
                for i, branch in enumerate(hlo_text.branches(text))
            ]
        callee = hlo_text.attribute(text, "calls") or hlo_text.attribute(text, "to_apply")
        if one.opcode == "fusion":
            return [(callee, _Run(times, conditions, self._is_scatter(callee), run.chains))]
        if one.opcode in ("call", "async-start", "custom-call"):
            return [(callee, _Run(times, conditions, False, {}))]
        return []

    def _is_scatter(self, name: str | None) -> bool:
        """Whether a fused computation returns a slice of an all-reduce."""
        inside = self.program.computations.get(name or "", [])
        sliced = any(i.is_root and i.opcode == "dynamic-slice" for i in inside)
        return sliced and any(i.opcode == "all-reduce" for i in inside)

    def _note(self, one: Instruction, name: str, run: _Run) -> None:
        """Note one collective of the computation `name`."""
        kind = one.opcode.removesuffix("-start")
        if kind == "send" and "is_host_transfer=true" in one.text and "megascale" not in one.text:
            return  # to its own host
        groups = hlo_text.groups_of(one.text, self.program.devices)
        group = max(map(len, groups))
        size = whole_bytes(one, kind, group)
        if kind == "all-reduce" and run.scatters:
            kind = "reduce-scatter"
        chain, index = hlo_text.chain_of(one.text), len(self.collectives)
        if chain is not None:
            index = run.chains.setdefault((chain, kind), index)
        if index < len(self.collectives):  # another part of a collective that is in the list
            first = self.collectives[index]
            self.collectives[index] = first._replace(bytes=max(first.bytes, size))
            return
        self.collectives.append(
            Collective(kind, size, group, name, run.times, run.conditions, groups)
        )


def whole_bytes(one: Instruction, kind: str, group: int) -> int:
    """Return the size of the whole array of a collective, as `Collective.bytes` has it."""
    size = one.size
    if isinstance(size, tuple):
        if kind == "send":
            size = size[0]
        elif one.opcode.endswith("-start") and kind != "all-reduce":  # (operand, result, ...)
            size = size[1 if len(size) > 1 else 0]
    return hlo_text.total(size) * (group if kind == "reduce-scatter" else 1)


KINDS = {
    "all-reduce",
    "all-gather",
    "reduce-scatter",
    "all-to-all",
    "ragged-all-to-all",
    "collective-permute",
    "collective-broadcast",
    "send",
}
