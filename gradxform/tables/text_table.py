"""Tables of text: sizes, wrapped cells, columns."""

import html
import textwrap
from typing import NamedTuple


def size(n: int) -> str:
    """Return a number of bytes as text with three digits: 1.18 MB."""
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if n >= scale:
            return f"{n / scale:.3g} {unit}" if n < 1000 * scale else f"{n / scale:.0f} {unit}"
    return f"{n} B"


def wrapped_lines(text: str, width: int, first: str, rest: str) -> list[str]:
    """Return a text as lines with these indents, without breaking words."""
    return textwrap.wrap(
        text,
        width,
        initial_indent=first,
        subsequent_indent=rest,
        break_long_words=False,
        break_on_hyphens=False,
    )


class Column(NamedTuple):
    """A column of a table."""

    head: str
    width: int | None = None  # the widest that it gets as text
    hang: int = 0  # how far the second line of a wrapped cell is indented
    right: bool = False  # whether its cells are aligned at the right


class Line(NamedTuple):
    """A row of a table."""

    cells: list[list[str]]  # for each column a cell, which may have several lines
    depth: int = 0  # how deep the first cell is indented


class Table(NamedTuple):
    """A table that is not laid out yet."""

    columns: list[Column]
    lines: list[Line]

    def as_text(self) -> str:
        """Return the table in columns of characters."""
        rows = [[column.head for column in self.columns]]
        for line in self.lines:
            rows += _padded_row(
                [
                    _wrapped_cell(cell, column, "  " * line.depth if i == 0 else "")
                    for i, (cell, column) in enumerate(zip(line.cells, self.columns, strict=True))
                ]
            )
        return table(rows, sum(column.right for column in self.columns))

    def as_html(self) -> str:
        """Return the table as HTML, with all text escaped."""
        align = ["right" if column.right else "left" for column in self.columns]
        head = "".join(
            f'<th style="text-align:{side}">{html.escape(column.head)}</th>'
            for side, column in zip(align, self.columns, strict=True)
        )
        body = []
        for line in self.lines:
            styles = [f"text-align:{side};vertical-align:top" for side in align]
            styles[0] += f";padding-left:{0.5 + 1.5 * line.depth}em"
            cells = ["<br>".join(map(html.escape, cell)) for cell in line.cells]
            body += ["<tr>"]
            body += [f'<td style="{s}">{c}</td>' for s, c in zip(styles, cells, strict=True)]
            body += ["</tr>"]
        return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(body)}</tbody></table>"


def _wrapped_cell(cell: list[str], column: Column, indent: str) -> list[str]:
    if column.width is None:
        return [indent + text for text in cell]
    rest = indent + " " * column.hang
    return [line for text in cell for line in wrapped_lines(text, column.width, indent, rest)]


def _padded_row(columns: list[list[str]]) -> list[list[str]]:
    """Return the lines of one row whose cells have several lines each."""
    height = max(map(len, columns))
    full = [column + [""] * (height - len(column)) for column in columns]
    return [list(line) for line in zip(*full, strict=True)]


def table(lines: list[list[str]], to_the_right: int) -> str:
    """Return a head and lines of cells as a table; the last columns are aligned right."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    last = len(widths) - 1

    def line(cells: list[str]) -> str:
        aligned = [
            cell.rjust(w) if i > last - to_the_right else cell.ljust(w)
            for i, (cell, w) in enumerate(zip(cells, widths, strict=True))
        ]
        return "  ".join(aligned).rstrip()

    head, *rest = map(line, lines)
    return "\n".join([head, "-" * (sum(widths) + 2 * last), *rest])
