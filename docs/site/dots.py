"""The picture of the race: a row for each optimizer, and in it a dot for each workload.

Rows are HTML, so that names are links, letters are as large as those of the page, and colors are
those of light or dark paper. Most optimizers are behind a fold: a reader looks for the quick and
the well known.
"""

import html
import math
from collections.abc import Callable, Iterable
from typing import NamedTuple

from benchmarks.subjects.workloads.names import WORKLOADS
from benchmarks.tables.race import Cell, Line
from gradxform.plot.style import DARK, LIGHT

FIRST = 25  # rows that are there at once, and those of these
WELL_KNOWN = ("adamw", "adam", "sgd", "lion", "muon", "soap", "prodigy")
OF = "adamw"  # what all are relative to
TICKS = {0.25: "¼", 0.5: "½", 1.0: "1", 2.0: "2"}
LOW, HIGH = 0.22, 3.0  # of the axis; what is outside stands at its end
EDGE = 84.0  # per cent of the width; to the right of it are the missed targets


class Row(NamedTuple):
    """What an optimizer needs on each workload, as a share of what AdamW needs.

    Attributes:
      name: of the optimizer.
      shares: by workload: the share, infinite if the target is missed, None if it did not run.
      seeds: by workload: the least and the greatest share of a seed.
    """

    name: str
    shares: dict[str, float | None]
    seeds: dict[str, tuple[float, float]]

    @property
    def median(self) -> float:
        """The middle one of the shares, or between the two in the middle of the axis."""
        ordered = sorted(math.inf if x is None else x for x in self.shares.values())
        n = len(ordered)
        return math.sqrt(ordered[(n - 1) // 2] * ordered[n // 2])

    @property
    def missed(self) -> int:
        """The number of targets that it does not reach."""
        return sum(x is None or math.isinf(x) for x in self.shares.values())


def rows(lines: Iterable[Line], field: str) -> list[Row]:
    """Return the rows in steps or in seconds, the least median first."""
    cells = {line.name: line.cells for line in lines}
    usual = {w: getattr(cell, field) for w, cell in cells.get(OF, {}).items()}
    workloads = [w for w in WORKLOADS if usual.get(w)]

    def row(name: str) -> Row:
        shares: dict[str, float | None] = {}
        seeds: dict[str, tuple[float, float]] = {}
        for w in workloads:
            cell = cells[name].get(w, Cell())
            needed = getattr(cell, field)
            missed = math.inf if cell.of_seeds else None
            shares[w] = missed if needed is None else needed / usual[w]
            if field == "steps" and cell.seeds:
                seeds[w] = min(cell.of_seeds) / usual[w], max(cell.of_seeds) / usual[w]
        return Row(name, shares, seeds)

    found = [row(name) for name in cells if workloads]
    return sorted(found, key=lambda row: (row.median, row.missed, row.name))


def picture(found: list[Row], field: str, linked: Callable[[str], str]) -> str:
    """Return the rows as HTML."""
    shown = [row for i, row in enumerate(found) if i < FIRST or row.name in WELL_KNOWN]
    rest = [row for row in found if row not in shown]
    legend = "".join(f'<li><b class="w{i}">●</b> {name}</li>' for i, name in enumerate(WORKLOADS))
    parts = [_colors(), f"<ul>{legend}</ul>", _list(shown, field, linked)]
    if rest:
        others = f"<summary>The other {len(rest)}</summary>{_list(rest, field, linked)}"
        parts.append(f"<details>{others}</details>")
    return f'<div class="gx-race">{"".join(parts)}</div>'


def _colors() -> str:
    """Return a color for each workload, on light and dark paper."""
    styles = []
    for where, colors in (("", LIGHT), ('[data-md-color-scheme="slate"] ', DARK)):
        pairs = enumerate(colors[: len(WORKLOADS)])
        styles += [f"{where}.gx-race .w{i}{{color:{color}}}" for i, color in pairs]
    return f"<style>{''.join(styles)}</style>"


def _list(some: list[Row], field: str, linked: Callable[[str], str]) -> str:
    ticks = "".join(f'<text x="{_x(at):.1f}%" y="14">{name}</text>' for at, name in TICKS.items())
    missed = f'<text x="{(EDGE + 100) / 2:g}%" y="14">missed</text>'
    head = f'<span>{field} / AdamW\'s</span><svg aria-hidden="true">{ticks}{missed}</svg>'
    lines = "".join(f"<div>{_name(row.name, linked)}{_dots(row, field)}</div>" for row in some)
    return f'<div class="gx-axis">{head}</div>{lines}'


def _name(name: str, linked: Callable[[str], str]) -> str:
    code = f"<code>{html.escape(name)}</code>"
    is_there = linked(name) != name
    return f'<a href="../optimizers/{name}/">{code}</a>' if is_there else f"<span>{code}</span>"


def _dots(row: Row, field: str) -> str:
    """Return the strip of a row: each workload has a height of its own, so that dots stay apart."""
    marks = [f'<line class="tick" x1="{_x(x):.1f}%" x2="{_x(x):.1f}%" y2="26"/>' for x in TICKS]
    if math.isfinite(row.median):
        x = f"{_x(row.median):.1f}%"
        marks.append(f'<line class="median" x1="{x}" x2="{x}" y1="2" y2="24"/>')
    said = []
    for i, name in enumerate(WORKLOADS):
        if name not in row.shares:
            continue
        share, y = row.shares[name], 4.25 + 3.5 * i
        if name in row.seeds:
            low, high = (_x(x) for x in row.seeds[name])
            marks.append(f'<line class="w{i}" x1="{low:.1f}%" x2="{high:.1f}%" y1="{y}" y2="{y}"/>')
        if share is None:
            said.append(f"{name} not run")
        elif math.isinf(share):
            x = EDGE + (100 - EDGE) * (i + 0.75) / (len(WORKLOADS) + 0.5)
            marks.append(f'<circle class="w{i} missed" cx="{x:.1f}%" cy="{y}" r="2.5"/>')
            said.append(f"{name} missed")
        else:
            marks.append(f'<circle class="w{i}" cx="{_x(share):.1f}%" cy="{y}" r="3"/>')
            said.append(f"{name} {share:.2f}")
    title = f"{row.name}, {field} as a share of AdamW's: {', '.join(said)}"
    return f'<svg role="img"><title>{html.escape(title)}</title>{"".join(marks)}</svg>'


def _x(share: float) -> float:
    """Return where a share is, in per cent of the width."""
    inside = min(max(share, LOW), HIGH)
    return EDGE * math.log(inside / LOW) / math.log(HIGH / LOW)
