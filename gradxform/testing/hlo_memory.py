"""Counting the bytes that a compiled program moves between a chip and its memory."""

from typing import Any

from gradxform.testing import hlo_text
from gradxform.testing.hlo_text import Instruction, Program, total

# What names a buffer, or waits for what has begun, and moves nothing.
_FREE = {
    "parameter",
    "constant",
    "tuple",
    "get-tuple-element",
    "bitcast",
    "after-all",
    "partition-id",
    "replica-id",
    "iota",
    "optimization-barrier",
}
_FREE_CALLS = ("ConcatBitcast", "AllocateBuffer", "Sharding")
# Instructions that read as many bytes of their first operand as they return.
_SLICES = ("dynamic-slice", "slice", "gather")


def moved_bytes(compiled: Any) -> int:
    """Return how many bytes one run of a compiled program reads from memory and writes to it.

    For programs whose text says which arrays are on the chip, which is what compilers for TPUs
    write. Every instruction reads its operands and writes its result once, unless these are on the
    chip; a fusion counts as one instruction; of an array that is cut, or written in place, the part
    counts. Loops count as often as they run, once where the text does not say how often, and of a
    condition the branch that moves most.

    Args:
      compiled: the result of `jax.jit(f).lower(...).compile()`, or its text.

    Raises:
      ValueError: if the text is not that of a compiled program.
    """
    text = compiled if isinstance(compiled, str) else compiled.as_text()
    program = hlo_text.read(text)
    return _of_computation(program, program.entry)


def _of_computation(program: Program, name: str | None) -> int:
    instructions = program.computations.get(name or "", [])
    by_name = {one.name: one for one in instructions}
    return sum(_of_instruction(program, one, by_name) for one in instructions)


def _of_instruction(program: Program, one: Instruction, by_name: dict[str, Instruction]) -> int:
    text, opcode = one.text, one.opcode
    if opcode in _FREE or opcode.endswith("-done"):
        return 0
    if opcode == "while":
        turns = hlo_text.turns_of(program, text) or 1
        return turns * _of_computation(program, hlo_text.attribute(text, "body"))
    if opcode == "conditional":
        return max(_of_computation(program, name) for name in hlo_text.branches(text))
    if opcode in ("call", "async-start"):
        called = hlo_text.attribute(text, "to_apply") or hlo_text.attribute(text, "calls")
        return _of_computation(program, called)
    if opcode == "custom-call" and any(f'"{name}"' in text for name in _FREE_CALLS):
        return 0
    given = [by_name[name] for name in hlo_text.operands(text) if name in by_name]
    if opcode in ("copy-start", "slice-start", "dynamic-slice-start"):
        return _copied(one, given[0], 0 if opcode == "copy-start" else 1)
    read = sum(min(total(x.in_memory), _read(program, one, i, x)) for i, x in enumerate(given))
    return read + min(total(one.in_memory), _written(program, one, by_name))


def _copied(one: Instruction, source: Instruction, place: int) -> int:
    """Return the bytes of a copy that has begun: its result has that place in a tuple."""
    assert isinstance(one.size, tuple) and isinstance(one.in_memory, tuple)
    size = total(one.size[place])
    return (size if total(source.in_memory) else 0) + total(one.in_memory[place])


def _read(program: Program, one: Instruction, i: int, operand: Instruction) -> int:
    """Return how many bytes an instruction reads of its operand number `i`."""
    if one.opcode == "fusion":
        inside = program.computations[hlo_text.attribute(one.text, "calls") or ""]
        given = [x for x in inside if x.opcode == "parameter" and x.text.startswith(f"{i})")]
        return _read_inside(program, inside, given[0])
    if i == 0 and one.opcode == "dynamic-update-slice":
        return 0  # written in place
    return total(one.size if i == 0 and one.opcode in _SLICES else operand.size)


def _read_inside(program: Program, inside: list[Instruction], x: Instruction) -> int:
    """Return how many bytes the instructions of a fusion read of one of them."""
    uses = [
        _read_inside(program, inside, one) if _is_renaming(one) else _read(program, one, i, x)
        for one in inside
        for i, name in enumerate(hlo_text.operands(one.text))
        if name == x.name
    ]
    return min(total(x.size), sum(uses))


def _written(program: Program, one: Instruction, by_name: dict[str, Instruction]) -> int:
    """Return how many bytes an instruction writes."""
    if one.opcode == "dynamic-update-slice":
        return total(by_name[hlo_text.operands(one.text)[1]].size)
    if one.opcode == "fusion":
        inside = program.computations[hlo_text.attribute(one.text, "calls") or ""]
        root = next(x for x in inside if x.is_root)
        return _written_inside(program, root, {x.name: x for x in inside})
    return total(one.size)


def _written_inside(program: Program, one: Instruction, by_name: dict[str, Instruction]) -> int:
    """Return how many bytes of what an instruction in a fusion makes the fusion writes."""
    given = [by_name[name] for name in hlo_text.operands(one.text)]
    if one.opcode == "tuple" or _is_renaming(one):
        return sum(_written_inside(program, x, by_name) for x in given)
    return _written(program, one, by_name)


def _is_renaming(one: Instruction) -> bool:
    """Whether an instruction inside of a fusion returns its operand, at most in other tiles."""
    return one.opcode == "bitcast" or (
        one.opcode == "fusion" and "output_to_operand_aliasing={{}: (0, {})}" in one.text
    )
