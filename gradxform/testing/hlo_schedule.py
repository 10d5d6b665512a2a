"""Reading from a compiled program what it computes while it sends.

The text of a scheduled program has its instructions in the order in which a device runs them. Those
between the start of a collective and its end run while the bytes travel. This is an order, not a
time: it does not say whether the computation takes longer than the transfer.
"""

import re
from typing import Any, NamedTuple

from gradxform.testing import hlo_text
from gradxform.testing.hlo import KINDS, Collective, whole_bytes
from gradxform.testing.hlo_text import Instruction, Program

_PRODUCTS = ("dot", "convolution")


class Overlap(NamedTuple):
    """One collective of a program, and what the device computes meanwhile.

    Attributes:
      kind: as in `hlo.Collective`.
      sent: the bytes that each device sends for it, in a ring.
      products: the number of matrix products between its start and its end; 0 for a collective for
        which the device waits.
      computation: the name of the computation that contains it.
    """

    kind: str
    sent: float
    products: int
    computation: str


def overlaps(compiled: Any) -> list[Overlap]:
    """Return the collectives of a scheduled program, each with what the device computes meanwhile.

    A collective starts and ends with a pair of `-start` and `-done`, or, as compilers for TPUs
    split it, with the first and the last of the fusions that share a `chain_id`; products that are
    fused with a part of it count. Products in loops and conditions in between do not count.

    Args:
      compiled: the result of `jax.jit(f).lower(...).compile()`, or its text.

    Raises:
      ValueError: if the text is not that of a compiled program, or not in the order of a schedule.
    """
    text = compiled if isinstance(compiled, str) else compiled.as_text()
    program = hlo_text.read(text)
    if "is_scheduled=true" not in text:
        raise ValueError("overlaps: the program is not scheduled, so that its order says nothing.")
    fused = {
        callee
        for instructions in program.computations.values()
        for one in instructions
        if one.opcode in ("fusion", "async-start") and (callee := _callee(one))
    }
    # A fused computation counts where its fusion stands.
    return [
        overlap
        for name in program.computations
        if name not in fused
        for overlap in _overlaps_in(program, name)
    ]


def _callee(one: Instruction) -> str | None:
    return hlo_text.attribute(one.text, "calls")


def _instructions_of(program: Program, one: Instruction) -> list[Instruction]:
    """Return the instructions that a fusion runs, or an instruction alone."""
    if one.opcode not in ("fusion", "async-start"):
        return [one]
    inner = program.computations.get(_callee(one) or "", [])
    return [deeper for each in inner for deeper in _instructions_of(program, each)]


def _overlaps_in(program: Program, name: str) -> list[Overlap]:
    parts = [_instructions_of(program, one) for one in program.computations[name]]
    products = [sum(x.opcode in _PRODUCTS for x in part) for part in parts]
    all_overlaps: list[Overlap] = []
    chains: dict[str, tuple[int, int, Overlap]] = {}  # the first and the last place of each
    for i, (one, part) in enumerate(zip(program.computations[name], parts, strict=True)):
        for x in part:
            kind = x.opcode.removesuffix("-start")
            if kind not in KINDS:
                continue
            overlap = _without_products(program, x, kind, name)
            chain = hlo_text.chain_of(x.text)
            if chain is not None:
                first, _, largest = chains.get(chain, (i, i, overlap))
                chains[chain] = first, i, max(largest, overlap, key=lambda part: part.sent)
                continue
            end = _end_of(program.computations[name], i) if _starts(one) else i
            all_overlaps.append(overlap._replace(products=sum(products[i + 1 : end])))
    # The fusions of a chain compute themselves: those at both ends count.
    for first, last, overlap in chains.values():
        all_overlaps.append(overlap._replace(products=sum(products[first : last + 1])))
    return all_overlaps


def _without_products(program: Program, one: Instruction, kind: str, name: str) -> Overlap:
    """Return a collective of the computation `name`, before products are counted."""
    groups = hlo_text.groups_of(one.text, program.devices)
    group = max(map(len, groups))
    whole = Collective(kind, whole_bytes(one, kind, group), group, name)
    return Overlap(kind, whole.sent, 0, name)


def _starts(one: Instruction) -> bool:
    return one.opcode.endswith("-start") or one.opcode == "send"


def _end_of(instructions: list[Instruction], start: int) -> int:
    """Return the place of the instruction that waits for the one at `start`."""
    one = instructions[start]
    opcode = one.opcode.removesuffix("-start") + "-done"
    # Names have dots and dashes, which `\b` would take for their ends.
    name = re.compile(rf"(?<![\w.\-]){re.escape(one.name)}(?![\w.\-])")
    for i in range(start + 1, len(instructions)):
        if instructions[i].opcode == opcode and name.search(instructions[i].text):
            return i
    return start
