"""Docstrings: read into parts, and completed with the arguments that they leave to others'.

A recipe does not repeat what its rules say of their arguments. It says "See `scale_by_adam` for the
other arguments.", and `completed_doc` puts the whole list together, in the order of the signature.
What all recipes would say of an argument in the same words, and a reference that is the rule's, it
adds without being told.
"""

import functools
import inspect
import re
import textwrap
from collections.abc import Callable
from typing import Any, NamedTuple

from gradxform.values.fields import range_words
from gradxform.values.registry import REGISTRY

_WIDTH = 100
_SECTION = re.compile(r"(Args|Raises|Returns|References?):\s*(.*)")
_ITEM = re.compile(r"^  \*{0,2}(\w+): .*(?:\n {3,}\S.*)*", re.MULTILINE)
_REFERENCE = re.compile(r"^References?:.+(?:\n.*\S.*)*", re.MULTILINE)
_KEYWORD_ONLY = re.compile(r"\s+Keyword-only\.$")  # the recipe's signature says it
_NAMES = r"`\w+`(?:,\s`\w+`)*(?:\sand\s`\w+`)?"
_ELSEWHERE = re.compile(
    rf"(?:^Args:\n(?P<items>(?:  .*\n)+)\n)?^See\s(?P<sources>{_NAMES})"
    r"\sfor\sthe\s(?:other\s)?arguments\.$",
    re.MULTILINE,
)


class Doc(NamedTuple):
    """A docstring in parts, each without line breaks but `rule` and `notes`."""

    summary: str  # the first line
    rule: str  # the update rule, as it stands; "" if there is none
    notes: str  # the other paragraphs
    arguments: dict[str, str]  # by name
    raises: dict[str, str]  # by the name of the error
    reference: str


def doc_of(part: Any) -> Doc:
    """Return the docstring of a class or function in parts."""
    return parse(inspect.getdoc(part) or "")


def parse(text: str) -> Doc:
    """Return a docstring, without common indentation, in parts."""
    lines = text.strip("\n").split("\n")
    sections: dict[str, list[str]] = {"": []}
    current, previous = "", lines[0]
    for line in lines[1:]:
        header = _SECTION.fullmatch(line)
        if header:
            current = header[1]
            sections[current] = [header[2]] if header[2] else []
        else:
            if re.match(r"\S", line) and not previous.strip():  # a paragraph after a section
                current = ""
            sections[current].append(line)
        previous = line
    rule, notes = _split_rule(sections[""])
    reference = sections.get("Reference", sections.get("References", []))
    return Doc(
        summary=lines[0].strip(),
        rule=rule,
        notes=notes,
        arguments=_items(sections.get("Args", [])),
        raises=_items(sections.get("Raises", [])),
        reference=" ".join(" ".join(reference).split()),
    )


def _split_rule(lines: list[str]) -> tuple[str, str]:
    """Split off the paragraph that begins with "Update rule", with the indented ones after it."""
    rule: list[str] = []
    notes: list[str] = []
    inside = False
    for paragraph in re.split(r"\n\s*\n", "\n".join(lines).strip("\n")):
        begins = paragraph.startswith("Update rule")
        inside = begins or (inside and paragraph.startswith("    "))
        (rule if inside else notes).append(paragraph)
    return "\n\n".join(rule), "\n\n".join(notes)


def _items(lines: list[str]) -> dict[str, str]:
    """Return the items of a section: a name and a colon, then lines that are indented more."""
    items: dict[str, str] = {}
    names: list[str] = []
    for line in filter(str.strip, lines):
        head = re.match(r" {2}(\*{0,2}\w+(?:, \w+)*):\s*(.*)", line)
        if head:  # several names: "ValueError, TypeError: naming the place"
            names = [name.lstrip("*") for name in head[1].split(", ")]
            items |= dict.fromkeys(names, head[2].strip())
        else:
            for name in names:
                items[name] = f"{items[name]} {line.strip()}".strip()
    return items


# ---------------------------------------------------------------------------------- completion


def completed_doc(function: Callable[..., Any], otherwise: Any = None) -> str | None:
    """Return the docstring of `function` with all arguments, in the order of its signature.

    Where it says "See `a` and `b` for the other arguments.", those that it does not describe are
    described as in the docstring of a, or else of b, which must be registered, with the range that
    the field's annotation names. Without a reference it gets that of a. A docstring without such a
    sentence is returned as it is.

    Args:
      function: the function.
      otherwise: a function whose docstring describes what none of them does.
    """
    if function.__doc__ is None:  # under python -OO
        return None
    text = inspect.cleandoc(function.__doc__)
    elsewhere = _ELSEWHERE.search(text)
    if elsewhere is None:
        return function.__doc__
    sources = re.findall(r"`(\w+)`", elsewhere["sources"])
    items = {} if otherwise is None else dict(_items_of_args(otherwise))
    for source in reversed(sources):
        items |= _items_of_args(REGISTRY[source])
    items |= _raw_items(elsewhere["items"] or "")
    arguments = "".join(f"{items[name]}\n" for name in _parameters(function) if name in items)
    section = f"Args:\n{arguments}\n" if arguments else ""
    reference = None
    if not _REFERENCE.search(text):
        reference = _REFERENCE.search(inspect.getdoc(REGISTRY[sources[0]]) or "")
    behind = "" if reference is None else f"\n\n{reference[0]}"
    return (
        f"{text[: elsewhere.start()]}{section}"
        f"See also {elsewhere['sources']}.{text[elsewhere.end() :]}{behind}"
    )


@functools.cache
def _items_of_args(part: Any) -> dict[str, str]:
    """Return the items of a part's `Args:` by name, as they stand, each with its range."""
    section = re.search(r"^Args:\n((?:  .*\n?)+)", inspect.getdoc(part) or "", re.MULTILINE)
    items = _raw_items(section[1] if section else "")
    return {
        name: _item_with_range(_KEYWORD_ONLY.sub("", item), range_words(part, name))
        for name, item in items.items()
    }


def _raw_items(section: str) -> dict[str, str]:
    return {item[1]: item[0] for item in _ITEM.finditer(section)}


def _item_with_range(item: str, words: str) -> str:
    """Return an item of `Args:` that says the range, if only as its last sentence."""
    line = " ".join(item.split())
    if words in line:
        return item
    line = f"{line} Must be {words}."
    return textwrap.fill(line, _WIDTH - 4, initial_indent="  ", subsequent_indent="    ")


def _parameters(function: Any) -> tuple[str, ...]:
    code = function.__code__
    return code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
