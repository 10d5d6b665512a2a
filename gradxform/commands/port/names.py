"""Where a name of Optax is found here: the public modules are asked, and Optax is not imported."""

import functools
from types import ModuleType
from typing import Any, NamedTuple

from gradxform._names import optax as forwards
from gradxform.errors import did_you_mean

# What becomes of a name.
SAME, FORWARDED, MISSING = "same", "forwarded", "missing"
ROOT = "gradxform"


class Found(NamedTuple):
    """The fate of a name of Optax."""

    status: str  # one of the above
    here: str  # where it is here, such as `gradxform.contrib.muon`; "" if it is missing
    remedy: str  # what to do about a missing name
    part: Any  # the object here, if it was looked up


@functools.cache
def find_optax_name(name: str) -> Found:
    """Return what becomes of a name.

    Args:
      name: a dotted name without `optax.`, such as `contrib.muon`; "" is Optax itself.
    """
    import gradxform  # all of it, where it is looked up

    if not name:
        return Found(SAME, "gradxform", "", gradxform)
    words = name.split(".")
    if any(word.startswith("_") and not word.startswith("__") for word in words):
        last = words[-1]
        public = "" if last.startswith("_") or find_optax_name(last).status == MISSING else last
        better = f"use optax.{public}" if public else "keep the import of Optax"
        return Found(MISSING, "", f"private to Optax: {better}", None)
    part: Any = gradxform
    for i, word in enumerate(words):
        at_top = part is gradxform
        if at_top and word in forwards.MODULES:
            return Found(FORWARDED, f"gradxform.{name}", "", None)
        if at_top and word in forwards.NAMES:
            return Found(FORWARDED, f"gradxform.{name}", "", None)
        inside = _attribute(part, word)
        if inside is None:
            if i and not isinstance(part, ModuleType):  # an attribute of a class, an instance, ...
                return Found(SAME, f"gradxform.{name}", "", None)
            return Found(MISSING, "", _remedy(part, words, i), None)
        part = inside
    return Found(SAME, f"gradxform.{name}", "", part)


def _attribute(part: Any, word: str) -> Any:
    """Return a public attribute; None if there is none."""
    if not isinstance(part, ModuleType):
        return getattr(part, word, None)
    return getattr(part, word) if word in dir(part) else None


def _remedy(part: ModuleType, words: list[str], i: int) -> str:
    """Return what to do about a name that a module does not have."""
    last = words[-1]
    if i and find_optax_name(last).status != MISSING:
        return f"it is gradxform.{last} here"
    names = [name for name in dir(part) if not name.startswith("_")]
    if part.__name__ == ROOT:
        names += [*forwards.NAMES, *forwards.MODULES]
    hint = did_you_mean(words[i], names).strip()
    return f"keep it from Optax{'. ' + hint if hint else ''}"
