"""The memory of a state, as a bar for each part."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from gradxform.plot.style import axes_for, draw_legend, look_of, short_label, title_axes
from gradxform.tables.describe import Description, describe
from gradxform.tables.part_table import Row
from gradxform.tables.text_table import size

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from gradxform.types import Params

# A slot that takes less than this share of the longest bar is not drawn.
LEAST = 1e-3


def state_memory(
    tx: Any, params: "Params", ax: Any = None, *, title: str | None = None, dark: bool = False
) -> "Figure":
    """Draw the bytes that the state of each part takes, beside those of the parameters.

    The numbers are those of `describe(tx, params)`. Parts whose state is empty are left out.

    Args:
      tx: a transform.
      params: the parameters, or their `jax.ShapeDtypeStruct`s.
      ax: matplotlib axes to draw on; by default those of a new figure.
      title: the title; by default the size of the whole state. Keyword-only.
      dark: whether to use colors for a dark page. Keyword-only.

    Returns:
      The matplotlib figure.

    Raises:
      TypeError: if `tx` is not a transform, or a parameter is not a floating array.
      ValueError: without parameters.
      ModuleNotFoundError: if matplotlib is not installed.
    """
    look, description = look_of("state_memory", dark), describe(tx, params)
    if not description.param_bytes or description.total_bytes is None:
        raise ValueError("state_memory: params must have arrays; pass the parameters of a model.")
    rows = [row for row in description.rows if row.bytes]
    names = ["parameters", *_row_names(description, rows)]
    axes = axes_for("state_memory", ax, 7.0, 1.3 + 0.42 * len(names), look)
    axes.barh(0, description.param_bytes, color=look.faint, height=0.62)
    totals = [description.param_bytes, *(row.bytes or 0 for row in rows)]
    slots = [slot for row in rows for slot in row.slots if slot.bytes > LEAST * max(totals)]
    order = {name: i for i, name in enumerate(dict.fromkeys(slot.name for slot in slots))}
    labelled: set[str] = set()
    for y, row in enumerate(rows, 1):
        left = 0
        for slot in row.slots:
            if slot.name not in order:  # too small to be seen
                continue
            label = None if slot.name in labelled else slot.name or "state"
            labelled.add(slot.name)
            color = look.line(order[slot.name])["color"]
            axes.barh(
                y, slot.bytes, left=left, color=color, height=0.62, label=label, ec=look.paper
            )
            left += slot.bytes
    for y, n in enumerate(totals):
        axes.annotate(
            size(n), (n, y), xytext=(5, 0), textcoords="offset points", va="center", fontsize=9
        ).set_color(look.ink)
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.45, -0.55)
    axes.set_xlim(0, 1.16 * max(totals))
    axes.set_xlabel("bytes")
    axes.xaxis.set_major_formatter(lambda n, _: size(round(n)))
    ratio = description.total_bytes / description.param_bytes
    said = f"state {size(description.total_bytes)} = {ratio:.2f} x the parameters"
    title_axes(axes, said if title is None else title, look)
    if labelled:
        draw_legend(axes, look, len(labelled), title="slot", alignment="left", beside=True)
    return axes.figure


def _row_names(description: Description, rows: list[Row]) -> Iterator[str]:
    """Yield the name of each row, with the label of the part that it is in."""
    labels: list[str] = []
    for row in description.rows:
        del labels[row.depth :]
        labels.append(row.label or (labels[-1] if labels else ""))
        if any(row is shown for shown in rows):
            name = f"{labels[-1]}: {row.name}" if labels[-1] else row.name
            yield short_label(f"{name} ({row.package})" if row.foreign else name)
