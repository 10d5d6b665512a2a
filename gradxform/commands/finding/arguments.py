"""Names of arguments: what else they are called, and which parts take them."""

import collections
import functools
import re
from collections.abc import Mapping

from gradxform._names import guesses
from gradxform.commands.catalog import KINDS, registered_parts
from gradxform.commands.finding.elsewhere import elsewhere

_SHOWN = 6  # names of parts


def argument_text(name: str) -> str:
    """Return what an argument is called here and elsewhere, and what takes it; "" if unknown."""
    takers = _takers()
    own = [x for x in takers if guesses.plain(x) == guesses.plain(name)]
    said = [guesses.argument_words(name)]
    for argument in dict.fromkeys([*own, *guesses.arguments_for(name)]):
        said.append(f"{argument} is an argument of {_counted(takers[argument])}.")
        words = guesses.words_for(argument)
        if argument in own and words:
            said.append(f"Other libraries call it {_listed(words, 'or')}.")
    return " ".join(filter(None, said))


def argument_names() -> list[str]:
    """Return the names of the arguments of all parts."""
    return list(_takers())


def _counted(takers: Mapping[str, list[str]]) -> str:
    """Return how many parts of each kind there are, and the best known of the first kind."""
    kinds = [kind for kind in KINDS if kind in takers]
    said = [f"{len(takers[x])} {x if len(takers[x]) > 1 else x[:-1]}" for x in kinds]
    names = sorted(takers[kinds[0]], key=lambda name: -_libraries()[name])
    shown = [*names[:_SHOWN], *["..."] * (len(names) > _SHOWN)]
    said[0] += f" ({', '.join(shown)})"
    return _listed(said, "and")


def _listed(words: list[str], before_last: str) -> str:
    *others, last = words
    return f"{', '.join(others)} {before_last} {last}" if others else last


@functools.cache
def _takers() -> dict[str, dict[str, list[str]]]:
    """Return the names of the parts that take each argument, by their kinds."""
    takers: dict[str, dict[str, list[str]]] = {}
    for part in registered_parts():
        for argument in part.arguments:
            kinds = takers.setdefault(argument.name.lstrip("*"), {})
            kinds.setdefault(part.kind, []).append(part.name)
    return takers


@functools.cache
def _libraries() -> collections.Counter[str]:
    """Return in how many other libraries there is what a part does: how well it is known."""
    lines = {(row["library"], row.get("line", "")) for row in elsewhere()}
    found = {(library, x) for library, line in lines for x in re.findall(r"\bgx\.(\w+)", line)}
    return collections.Counter(name for _, name in found)
