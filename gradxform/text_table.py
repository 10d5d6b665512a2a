"""Tables of text: sizes, wrapped cells, columns."""

import textwrap


def size(n: int) -> str:
    """Return a number of bytes as text with three digits: 1.18 MB."""
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if n >= scale:
            return f"{n / scale:.3g} {unit}" if n < 1000 * scale else f"{n / scale:.0f} {unit}"
    return f"{n} B"


def wrap(text: str, width: int, first: str, rest: str) -> list[str]:
    """Return a text as lines with these indents, without breaking words."""
    return textwrap.wrap(
        text,
        width,
        initial_indent=first,
        subsequent_indent=rest,
        break_long_words=False,
        break_on_hyphens=False,
    )


def padded(columns: list[list[str]]) -> list[list[str]]:
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
