"""What `find` returns: answers, each with a line of code where there is one."""

import dataclasses
import textwrap
from collections.abc import Iterator
from typing import Any

from gradxform.tables.text_table import wrapped_lines

_WIDTH = 100


@dataclasses.dataclass(frozen=True)
class Answer:
    """One thing that has the name.

    Args:
      name: what it is called: a part, a composition, or the call of another library.
      kind: what it is: one of `KINDS` of the catalog, "function", "class" or "module" of this
        library; "composition"; "argument"; or the other library.
      line: the expression that does it here; "" if there is none.
      text: what it is, or what to know.
      source: where it is from; "" for what other libraries have.
      compared: what was compared; "" if nothing was, or the part has its own tests.
      page: the page of the documentation, with the place on it; "" if there is none.
      definitions: what the line uses besides, as statements.
    """

    name: str
    kind: str
    line: str = ""
    text: str = ""
    source: str = ""
    compared: str = ""
    page: str = ""
    definitions: str = ""

    def as_data(self) -> dict[str, str]:
        """Return the answer as plain data, ready for JSON."""
        return dataclasses.asdict(self)

    def __str__(self) -> str:
        """Return the answer as text of several lines."""
        lines = wrapped_lines(f"{self.name} ({self.kind})", _WIDTH, "", "    ")
        code = "\n".join(filter(None, (self.definitions, self.line)))
        if code:
            lines += textwrap.indent(code, "    ").splitlines()
        said = [
            self.text,
            f"Source: {self.source}" if self.source else "",
            f"Compared: {self.compared}" if self.compared else "",
            f"In the documentation: {self.page}" if self.page else "",
        ]
        for text in filter(None, said):
            lines += wrapped_lines(text, _WIDTH, "  ", "  ")
        return "\n".join(lines)


@dataclasses.dataclass(frozen=True)
class Found:
    """The answers to a name; false if there are none.

    Args:
      name: the name that was asked for.
      answers: what has it, the parts of this library first.
      hint: without answers, the nearest names.
    """

    name: str
    answers: tuple[Answer, ...]
    hint: str = ""

    def as_data(self) -> list[dict[str, str]]:
        """Return the answers as plain data, ready for JSON."""
        return [answer.as_data() for answer in self.answers]

    def __len__(self) -> int:
        """Return the number of answers."""
        return len(self.answers)

    def __iter__(self) -> Iterator[Answer]:
        """Return an iterator over the answers."""
        return iter(self.answers)

    def __getitem__(self, i: Any) -> Any:
        """Return an answer, or a slice of them."""
        return self.answers[i]

    def __repr__(self) -> str:
        """Return all answers as text."""
        if not self.answers:
            return f"nothing is named {self.name!r}.{self.hint}"
        return "\n\n".join(map(str, self.answers))
