"""Reading the text of a compiled program (HLO): computations, instructions, groups of devices.

Compilers for CPUs, GPUs and TPUs, and their versions, spell the same things in different ways. This
module understands the spellings that have been observed, so that `hlo.py` sees only one form.
"""

import math
import re
from typing import Any, NamedTuple

import numpy as np

from gradxform.distributed.programs.collectives import Groups

# The bytes of an array; for a tuple, a tuple of these.
Size = int | tuple[Any, ...]


class Instruction(NamedTuple):
    """One instruction of a computation."""

    name: str
    size: Size  # of its result
    opcode: str
    text: str  # its operands and attributes
    is_root: bool
    in_memory: Size  # the part of `size` in the device's main memory, and not in one on the chip


class Program(NamedTuple):
    """A compiled program."""

    computations: dict[str, list[Instruction]]
    entry: str
    devices: int  # the number of devices that run it


_HEADER = re.compile(r"^\s*(ENTRY\s+)?%?([\w.\-]+)\s*(?:\(.*)?\{\s*$")
_INSTRUCTION = re.compile(r"^\s*(ROOT\s+)?%?([\w.\-]+) = (.*)$")
_OPCODE = re.compile(r"\s*([\w\-]+)\((.*)$", re.DOTALL)
_ARRAY = re.compile(r"([a-z]+)(\d*)\w*\[([^\]]*)\]")
# An array in another memory space than the first, `f32[8,128]{1,0:T(8,128)S(1)}`.
_ELSEWHERE = re.compile(r"[a-z]+\w*\[[^\]]*\]\{[^{}]*S\([1-9]\d*\)[^{}]*\}")
_COMMENT = re.compile(r"/\*.*?\*/")


def read(text: str) -> Program:
    """Return the program that a text spells.

    Raises:
      ValueError: if it is not the text of a compiled program.
    """
    computations: dict[str, list[Instruction]] = {}
    entry, devices, computation = None, 1, None
    for line in text.splitlines():
        if line.startswith("HloModule"):
            counts = [int(n) for n in re.findall(r"(?:num_partitions|replica_count)=(\d+)", line)]
            devices = math.prod(counts)
            continue
        match = _INSTRUCTION.match(_COMMENT.sub("", line))
        if match and computation is not None:
            computation.extend(_instructions(match))
            continue
        header = _HEADER.match(line)
        if header:
            computation = computations.setdefault(header[2], [])
            entry = header[2] if header[1] else entry
    if entry is None:
        raise ValueError(
            "hlo: this is not the text of a compiled program; pass "
            "jax.jit(f).lower(...).compile(), or its as_text()."
        )
    return Program(computations, entry, devices)


def _instructions(match: re.Match[str]) -> list[Instruction]:
    """Return the instruction of a line, or an empty list if the line is not one after all."""
    shape, rest = _split_shape(match[3])
    opcode = _OPCODE.match(rest)
    if opcode is None:
        return []
    in_memory = size_of(_ELSEWHERE.sub("token[]", shape))
    return [Instruction(match[2], size_of(shape), opcode[1], opcode[2], bool(match[1]), in_memory)]


def _split_shape(text: str) -> tuple[str, str]:
    """Split the text after ` = ` into the shape and the rest."""
    if not text.startswith("("):
        shape, _, rest = text.partition(" ")
        return shape, rest
    depth = 0
    for i, letter in enumerate(text):
        depth += (letter in "({") - (letter in ")}")
        if not depth:
            return text[: i + 1], text[i + 1 :]
    return text, ""


def size_of(shape: str) -> Size:
    """Return the bytes of a shape, `bf16[8,128]{1,0:T(8,128)(2,1)}`, or of a tuple of shapes."""
    shape = re.sub(r"\{[^{}]*\}", "", shape).strip()
    if not shape.startswith("("):
        match = _ARRAY.match(shape)
        return _bytes(*match.groups()) if match else 0
    parts, depth, start = [], 0, 1
    for i, letter in enumerate(shape):
        depth += (letter in "([") - (letter in ")]")
        if (letter == "," and depth == 1) or not depth:
            parts.append(shape[start:i])
            start = i + 1
        if not depth:
            break
    return tuple(size_of(p) for p in parts if p.strip())


def _bytes(kind: str, digits: str, lengths: str) -> int:
    if kind in ("token", "opaque"):
        return 0
    bits = 8 if kind == "pred" else int(digits or 0)
    # A dynamic length, `<=8`, counts as its upper bound; bytes are rounded up, for types of 4 bits.
    count = math.prod(int(n.strip().lstrip("<=")) for n in lengths.split(",") if n.strip())
    return -(-count * bits // 8)


def total(size: Size) -> int:
    """Return the bytes of an array, or of all arrays in a tuple."""
    return size if isinstance(size, int) else sum(total(s) for s in size)


# --------------------------------------------------------------------------------- attributes


def attribute(text: str, name: str) -> str | None:
    """Return the computation that an attribute names, `body=%region_1`; None if there is none."""
    match = re.search(rf"\b{name}=%?([\w.\-]+)", text)
    return match[1] if match else None


def branches(text: str) -> list[str]:
    """Return the names of the computations of a conditional."""
    names = re.search(r"\bbranch_computations=\{([^}]*)\}", text)
    if names:
        return [name.strip().lstrip("%") for name in names[1].split(",")]
    both = (attribute(text, "true_computation"), attribute(text, "false_computation"))
    return [name for name in both if name]


def trip_count(text: str) -> int | None:
    """Return how often a loop runs, or None if the compiler does not know."""
    match = re.search(r"known_trip_count\D*(\d+)", text)
    return int(match[1]) if match else None


def turns_of(program: Program, text: str) -> int | None:
    """Return how often a loop runs, also where its condition alone says it: `count < 5`."""
    known = trip_count(text)
    condition = program.computations.get(attribute(text, "condition") or "", [])
    root = next((one for one in condition if one.is_root), None)
    if known is not None or root is None or "direction=LT" not in root.text:
        return known
    bounds = {one.name: re.match(r"\d+", one.text) for one in condition if one.opcode == "constant"}
    bound = bounds.get(operands(root.text)[-1])
    return int(bound[0]) if bound else None


def chain_of(text: str) -> str | None:
    """Return the id that the parts of a split collective share; None if it is not split."""
    match = re.search(r"\bchain_id\W+(\d+)", text)
    return match[1] if match else None


def operands(text: str) -> list[str]:
    """Return the names of the operands of an instruction."""
    depth = 1
    for i, letter in enumerate(text):
        depth += (letter == "(") - (letter == ")")
        if not depth:
            return re.findall(r"%([\w.\-]+)", text[:i])
    return []


def groups_of(text: str, devices: int) -> Groups:
    """Return the groups of devices within which a collective runs.

    The spellings are `{{0,1},{2,3}}`, `[2,4]<=[4,2]T(1,0)` and `mesh['x'=2,'y'=4] {'y'}`, the last
    also with `device_ids=([2,4]T(1,0))` or with a part of an axis, `{'x':(2)4}`. An empty list
    means one group of all devices.
    """
    pairs = re.search(r"\bsource_target_pairs=\{(\{[\d,{}]*\})\}", text)
    listed = re.search(r"\breplica_groups=\{((?:\{[\d,]*\},?)*)\}", text) or pairs
    if listed:
        groups = [
            tuple(int(n) for n in group.split(",") if n)
            for group in re.findall(r"\{([\d,]*)\}", listed[1])
        ]
        return tuple(group for group in groups if group) or (tuple(range(devices)),)
    iota = re.search(rf"\breplica_groups=\[([\d,]+)\]<={_IOTA}", text)
    if iota:
        return _as_groups(_iota(iota[2], iota[3]).reshape(_integers(iota[1])))
    mesh = re.search(r"\breplica_groups=@?mesh\[([^\]]*)\](.*?)\{([^}]*)\}", text)
    if mesh:
        return _mesh_groups(mesh[1], mesh[2], mesh[3])
    return (tuple(range(devices)),)


def _integers(text: str) -> list[int]:
    return [int(n) for n in re.findall(r"\d+", text)]


# The numbers 0, 1, ... reshaped, and perhaps transposed: `[4,2]T(1,0)`.
_IOTA = r"\[([\d,]+)\](?:T\(([\d,]+)\))?"


def _iota(shape: str, order: str | None) -> np.ndarray:
    sizes = _integers(shape)
    axes = _integers(order) if order else list(range(len(sizes)))
    return np.arange(math.prod(sizes)).reshape(sizes).transpose(axes).reshape(-1)


def _mesh_groups(mesh: str, order: str, axes: str) -> Groups:
    """Return the groups along some axes of a mesh, each whole (`'x'`) or a part (`'x':(2)4`)."""
    sizes = {name: int(size) for name, size in re.findall(r"'([^']+)'=(\d+)", mesh)}
    devices = np.arange(math.prod(sizes.values()))
    if "device_ids" in order:
        iota = re.search(_IOTA, order)
        devices = _iota(iota[1], iota[2]) if iota else np.asarray(_integers(order))
    group_axes = re.findall(r"'([^']+)'(?::\((\d+)\)(\d+))?", axes)
    shape: list[int] = []
    dims: dict[tuple[str, int], int] = {}  # the dimension of an axis, or of a part of one
    for name, size in sizes.items():
        parts = sorted(
            (int(before), int(n)) for axis, before, n in group_axes if axis == name and n
        )
        covered = 1
        # `(before)n` is a dimension of length n within an axis, where those to the left of it have
        # `before` entries in all. The rest of the axis makes dimensions that are not grouped.
        for before, n in parts:
            if before > covered:
                shape.append(before // covered)
            dims[name, before] = len(shape)
            shape.append(n)
            covered = before * n
        if not parts:
            dims[name, 1] = len(shape)
        if size > covered or not parts:
            shape.append(size // covered)
    along = [dims[name, int(before or 1)] for name, before, _ in group_axes]
    others = [i for i in range(len(shape)) if i not in along]
    group = math.prod(shape[i] for i in along)
    return _as_groups(devices.reshape(shape).transpose(others + along).reshape(-1, group))


def _as_groups(table: np.ndarray) -> Groups:
    return tuple(tuple(int(n) for n in row) for row in table)
