"""Code and calls as Markdown."""

import inspect
import textwrap
from collections.abc import Sequence
from typing import Any

from gradxform.commands.catalog import Entry


def source_of(part: Any) -> str:
    """Return the source of a class or function."""
    return textwrap.dedent(inspect.getsource(inspect.unwrap(part))).rstrip()


def call_of(entry: Entry) -> str:
    """Return the call that makes a part, with its defaults, an argument a line if it is long."""
    arguments = [a.name + (f"={a.default}" if a.default else "") for a in entry.arguments]
    line = f"gx.{entry.name}({', '.join(arguments)})"
    if len(line) <= 80:
        return line
    return f"gx.{entry.name}(\n" + "".join(f"    {a},\n" for a in arguments) + ")"


def fenced(code: str, language: str = "python", indent: str = "") -> str:
    """Return a block of code."""
    return textwrap.indent(f"```{language}\n{code}\n```\n", indent)


def cell(text: str) -> str:
    """Return text as a cell of a table."""
    return " ".join(text.split()).replace("|", r"\|").replace("<", "&lt;")


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table, whose cells are Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)
