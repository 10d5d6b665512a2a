"""Looking a name up: in this library, among the compositions, and in the guides."""

import difflib
import importlib
import inspect
import re
from collections.abc import Iterable, Iterator
from typing import Any

from gradxform._names import guesses
from gradxform._names.deferred import signature_of
from gradxform._names.homes import homes_of
from gradxform.commands.finding.answers import Answer, Found
from gradxform.commands.finding.composition import NAMES, Composition, definitions
from gradxform.commands.finding.compositions import COMPOSITIONS
from gradxform.commands.finding.elsewhere import elsewhere
from gradxform.errors import cut_name, shown
from gradxform.values.docstrings import doc_of

__all__ = ["find"]

# Packages whose names answer too, as they are written.
_PACKAGES = {"gradxform": "gx", "gradxform.distributed": "gx.distributed"}


def find(name: str) -> Found:
    """Return what answers to a name: parts, compositions of parts, and what others call so.

    Looked up are the public names of this library, the recipes of two parts or more that have a
    name of their own (`docs/guides/compositions.md`), the optimizers and functions of the guides
    for users of other libraries, the arguments of all parts, and the words that error messages
    know. Upper and lower case, hyphens, underscores and a module in front do not matter.

        print(gx.find("MuonH"))
        line = gx.find("SOAP-H")[0].line

    Args:
      name: such as "MuonH", "sf-adopt", "torch.optim.AdamW" or "lr".

    Returns:
      The answers, which print as text; none if nothing has the name, with a hint then.

    Raises:
      TypeError: if `name` is not a string.
    """
    if not isinstance(name, str):
        raise TypeError(f"find: name must be a string, got {shown(name)}.")
    keys = _keys(name)
    answers = list(_elsewhere({guesses.plain(name)})) if "." in name else []
    if not answers:
        answers = [*_parts(keys), *_compositions(keys), *_elsewhere(keys)]
        answers += _words(name, {answer.line for answer in answers})
    return Found(cut_name(name), tuple(answers), "" if answers else _nearest(name))


def _keys(name: str) -> set[str]:
    """Return a name, and what of it stands after the last point, without case and hyphens."""
    last = name.rpartition(".")[2]
    found = {guesses.plain(x) for x in (name, last, re.sub("Optimizer$", "", last))}
    return found - {""}


def _parts(keys: set[str]) -> Iterator[Answer]:
    for package in _PACKAGES:
        for name in homes_of(package):
            if guesses.plain(name) in keys:
                yield _part(package, name)


def _part(package: str, name: str) -> Answer:
    """Return the answer that is a public name."""
    from gradxform.commands.catalog import kind_of  # which loads all optimizers

    part: Any = getattr(importlib.import_module(package), name)
    if inspect.ismodule(part):
        kind, line, text = "module", f"{_PACKAGES[package]}.{name}", inspect.getdoc(part) or ""
        return Answer(name, kind, line, text.partition("\n")[0])
    kinds = kind_of(part)  # "optimizers" and so on, of one that is registered
    kind = kinds[:-1] if kinds else "class" if inspect.isclass(part) else "function"
    line, doc = f"{_PACKAGES[package]}.{name}", doc_of(part)
    if callable(part):
        line += f"({', '.join(_needed(part))})"
    page = f"{kinds}/{name}.md" if kinds in ("optimizers", "wrappers") else ""
    return Answer(name, kind, line, doc.summary, doc.reference, page=page)


def _needed(part: Any) -> list[str]:
    """Return the arguments that a call must have."""
    try:
        arguments = signature_of(part).parameters.values()
    except (TypeError, ValueError):  # of a class that does not have one
        return []
    kinds = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return [
        ("*" if p.kind is p.VAR_POSITIONAL else "") + p.name
        for p in arguments
        if p.default is p.empty and p.kind not in kinds
    ]


def _compositions(keys: set[str]) -> Iterator[Answer]:
    for row in COMPOSITIONS:
        if not keys.isdisjoint(map(guesses.plain, row.names)):
            yield of_composition(row)


def of_composition(row: Composition) -> Answer:
    """Return the answer that is a composition."""
    return Answer(
        row.title,
        "composition",
        row.line,
        without_links(" ".join(filter(None, (row.what, row.notes)))),
        f"{row.source}, {row.link}",
        row.compared,
        row.page,
        definitions(row.line, NAMES),
    )


def without_links(text: str) -> str:
    """Return Markdown with the words of its links alone."""
    return re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)


def _elsewhere(keys: set[str]) -> Iterator[Answer]:
    for row in elsewhere():
        if any(not keys.isdisjoint(_keys(name)) for name in row["names"]):
            said = {k: x for k, x in row.items() if k not in ("library", "there", "names")}
            yield Answer(row["there"], row["library"], **said)


def _words(name: str, lines: Iterable[str]) -> Iterator[Answer]:
    """Yield what a word means here as a part, but for lines that are there, and as an argument."""
    from gradxform.commands.finding.arguments import argument_text  # which loads all optimizers

    for meant in guesses.parts_meant(name):
        module, _, last = meant.rpartition(".")
        answer = _part(f"gradxform.{module}" if module else "gradxform", last)
        if answer.line not in lines:
            yield answer
    if said := argument_text(name):
        yield Answer(name, "argument", text=said)


def _nearest(name: str) -> str:
    """Return " Did you mean 'x' or 'y'?" for the names that are nearest, or ""."""
    from gradxform.commands.finding.arguments import argument_names  # which loads all optimizers

    known = [x for package in _PACKAGES for x in homes_of(package)]
    known += [x for row in COMPOSITIONS for x in row.names]
    known += [x.rpartition(".")[2] for row in elsewhere() for x in row["names"]]
    known += argument_names()
    by_plain = {guesses.plain(x): x for x in reversed(known)}  # the first spelling counts
    near = difflib.get_close_matches(guesses.plain(name), by_plain)
    return f" Did you mean {' or '.join(repr(by_plain[x]) for x in near)}?" if near else ""
