"""The page of compositions, from the rows of the library; `python -m docs.site.compositions`.

The rows stand in `docs/guides/compositions.md` between `<!-- compositions -->` and `<!-- end -->`,
and what their lines use between `<!-- names -->` and `<!-- end of names -->`.
"""

import ast
import re
import textwrap
from typing import Any

from docs.site.cache import ROOT
from gradxform.commands.finding.composition import NAMES, Composition
from gradxform.commands.finding.compositions import SECTIONS

PAGE = ROOT / "docs" / "guides" / "compositions.md"


def names(code: str = NAMES, **others: Any) -> dict[str, Any]:
    """Return what some code defines, with other numbers in the place of its own."""
    found = dict(others)
    for statement in ast.parse(code).body:
        if not isinstance(statement, ast.Assign) or ast.unparse(statement.targets[0]) not in others:
            exec(ast.unparse(statement), found)
    found.pop("__builtins__")
    return found


def entry(row: Composition) -> str:
    """Return what the page shows of a row."""
    others = f"Also: {', '.join(row.names[1:])}. " if len(row.names) > 1 else ""
    block = "py" if row.needs else "python"
    code = f"```{block}\ntx = {row.line}\n```"
    said = f"{row.what} {others}Source: [{row.source}]({row.link})."
    text = "\n\n".join(map(_wrapped, filter(None, (row.notes, f"Compared: {row.compared}."))))
    return f"### {row.title}\n\n{_wrapped(said)}\n\n{code}\n\n{text}\n"


def _wrapped(text: str) -> str:
    return textwrap.fill(text, 139, break_long_words=False, break_on_hyphens=False)


def rows() -> str:
    """Return all rows, section by section."""
    return "\n".join(
        f"## {title}\n\n" + "\n".join(map(entry, found)) for title, found in SECTIONS.items()
    )


def written() -> str:
    """Return the page with its rows written anew."""
    text = PAGE.read_text("utf-8")
    for name, end, new in (
        ("names", "end of names", f"```python\n{NAMES}```\n"),
        ("compositions", "end", rows()),
    ):
        head, tail = f"<!-- {name} -->\n", f"<!-- {end} -->\n"
        pattern = re.escape(head) + ".*?" + re.escape(tail)
        text, found = re.subn(
            pattern, lambda _, h=head, n=new, t=tail: f"{h}\n{n}\n{t}", text, flags=re.S
        )
        if found != 1:
            raise ValueError(f"{PAGE}: {head!r} and {tail!r} are missing, or there twice.")
    return text


if __name__ == "__main__":
    PAGE.write_text(written(), "utf-8")
