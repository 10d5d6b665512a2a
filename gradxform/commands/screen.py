"""Printing: with rich into a terminal, where it is installed, and plainly into a pipe."""

import sys
from collections.abc import Iterable
from typing import Any

from gradxform.tables.text_table import Table


def rich_console() -> Any:
    """Return a rich console if the output is a terminal and rich is installed, else None."""
    if not sys.stdout.isatty():
        return None
    try:
        from rich.console import Console
    except ModuleNotFoundError:
        return None
    return Console(file=sys.stdout, highlight=False)


def show_tables(screen: Any, tables: Iterable[tuple[str, Table]], total: str = "") -> None:
    """Print tables with their titles, and a line below them, on a rich console."""
    from rich import box
    from rich.table import Table as RichTable
    from rich.text import Text

    for title, table in tables:
        drawing = RichTable(
            title=title or None,
            title_justify="left",
            title_style="bold",
            box=box.SIMPLE_HEAD,
            header_style="bold",
            pad_edge=False,
        )
        for i, column in enumerate(table.columns):
            side, style = "right" if column.right else "left", "cyan" if i == 0 else ""
            drawing.add_column(column.head, justify=side, style=style, overflow="fold")
        for line in table.lines:
            indents = ["  " * line.depth, *[""] * (len(line.cells) - 1)]
            # As text, because rich reads brackets as markup.
            drawing.add_row(
                *(
                    Text("\n".join(indent + text for text in cell))
                    for indent, cell in zip(indents, line.cells, strict=True)
                )
            )
        screen.print(drawing)
    if total:
        screen.print(Text(total, style="bold"))
