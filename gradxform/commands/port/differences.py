"""The differences from Optax, as data: the page of them is made from it, and `port` looks there.

`differences.json` has sections with rows. A row says what differs, in Optax and here, why, whether
numbers may change, what it takes to go on, and to which names it applies (`*` stands for any text;
the name `*` alone for everything). `when` has conditions on a call: of each inner list, one must
hold. A condition names an argument, and last what is asked of it: whether it is `given`, its
`value`, a number that it is `above` or `below`, or an entry that a tuple `has`. What the source
does not say may hold.
"""

import dataclasses
import fnmatch
import functools
import json
import pathlib
from typing import Any

NOTHING, ARGUMENT, THOUGHT = "nothing", "argument", "thought"
DATA = pathlib.Path(__file__).with_name("differences.json")


@dataclasses.dataclass(frozen=True, eq=False)
class Difference:
    """One row.

    Args:
      where: the functions or arguments, in words.
      optax: what Optax does.
      here: what gradxform does.
      why: the reason; may be empty.
      numbers: whether the same call may give other numbers.
      takes: what it takes of somebody who ports such a call: "thought", "argument" (one may have to
        change) or "nothing" (the call stands; where it was wrong, an error says so).
      names: the names of Optax that it is about, without `optax.`; patterns, with `*`.
      when: conditions on the call: all of these, of each at least one.
    """

    where: str
    optax: str
    here: str
    why: str
    numbers: bool
    takes: str
    names: tuple[str, ...]
    when: tuple[tuple[dict[str, Any], ...], ...] = ()

    @property
    def is_general(self) -> bool:
        """Whether it is about all transforms."""
        return self.names == ("*",)

    def is_about(self, name: str) -> bool:
        """Whether it is about a name of Optax, such as `contrib.muon`."""
        if self.is_general:
            return False
        spellings = {name, name.rpartition(".")[2], name.replace("tree_utils.tree_", "tree.")}
        return any(fnmatch.fnmatchcase(s, p) for p in self.names for s in spellings)


@dataclasses.dataclass(frozen=True)
class Section:
    """A section of the page."""

    title: str
    text: str
    rows: tuple[Difference, ...]


@functools.cache
def sections() -> tuple[Section, ...]:
    """Return the sections, in the order of the page."""
    return tuple(
        Section(section["title"], section["text"], tuple(map(_read_row, section["rows"])))
        for section in _data()["sections"]
    )


@functools.cache
def differences() -> tuple[Difference, ...]:
    """Return all rows; those that may change numbers come first."""
    rows = [row for section in sections() for row in section.rows]
    return tuple(sorted(rows, key=lambda row: not row.numbers))


def page() -> str:
    """Return the page of the documentation."""
    blocks = ["# Differences from Optax", _data()["intro"]]
    for section in sections():
        blocks += [f"## {section.title}", section.text]
        if section.rows:
            lines = ["| Where | Optax 0.2.8 | gradxform | Why |", "| --- | --- | --- | --- |"]
            for row in section.rows:
                cells = (row.where, row.optax, row.here, row.why)
                line = "".join(f"| {cell} " if cell else "| " for cell in cells)
                lines.append(f"{line}|")
            blocks.append("\n".join(lines))
    return "\n\n".join(filter(None, blocks)) + "\n"


def _data() -> dict[str, Any]:
    return json.loads(DATA.read_text(encoding="utf-8"))


def _read_row(data: dict[str, Any]) -> Difference:
    fields = {k: data[k] for k in ("where", "optax", "here", "why", "numbers", "takes")}
    when = tuple(tuple(choices) for choices in data.get("when", ()))
    return Difference(**fields, names=tuple(data["names"]), when=when)
