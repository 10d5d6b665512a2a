"""Links to the papers that references name; docstrings have their titles only.

`docs/site/data/papers.json` has an address for each title. `null` is a paper that was looked for
and not found. No address is a guess: each stood beside its title in public text.
"""

import functools
import json
import re

from docs.site.cache import ROOT

DATA = ROOT / "docs" / "site" / "data" / "papers.json"
# What is left as it is: blocks of code, code in a line, and links.
_KEPT = r"```.*?```|`[^`\n]*`|\[[^\[\]]*\]\([^()]*\)|<https?:[^>]*>"


@functools.cache
def papers() -> dict[str, str | None]:
    """Return the address of each paper by its title, or by its title and year; None is unknown."""
    return json.loads(DATA.read_text("utf-8"))


def linked(text: str) -> str:
    """Return text with a link on each title of a known paper that a year follows."""
    known = papers()

    def link(match: re.Match[str]) -> str:
        title = match["title"]
        return f"[{title}]({known[' '.join(title.split())]})" if title else match[0]

    return _pattern().sub(link, text)


@functools.cache
def _pattern() -> re.Pattern[str]:
    titles = sorted((title for title, to in papers().items() if to), key=len, reverse=True)
    words = (r"\s+".join(map(re.escape, title.split())) for title in titles)
    year = r"(?=,\s+(?:19|20)\d\d\b)|(?<=, \d{4})"
    return re.compile(rf"{_KEPT}|\b(?P<title>{'|'.join(words)})(?:{year})", re.DOTALL)
