"""The report that `port` prints: the uses of Optax by what becomes of them."""

from collections.abc import Iterator, Sequence
from typing import Any

from gradxform.commands.port.differences import Difference, differences
from gradxform.commands.port.files import DIFFERENT, STAR, STATUSES, Judged, Ported
from gradxform.commands.port.names import FORWARDED, MISSING, SAME
from gradxform.tables.text_table import wrapped_lines

TITLES = {
    MISSING: "missing here",
    STAR: "star imports",
    DIFFERENT: "different here",
    FORWARDED: "looked up in the installed Optax",
    SAME: "same here",
}
NUMBERS = "may change your numbers"


def text(files: Sequence[Ported], width: int) -> str:
    """Return the report as text of that width."""
    uses = [use for ported in files for use in ported.uses]
    noun = "file" if len(files) == 1 else "files"
    if not uses:
        return f"{len(files)} {noun}: Optax is not used."
    blocks = []
    for status in STATUSES:
        of_status = [use for use in uses if use.status == status]
        if status == DIFFERENT:
            first = [use for use in of_status if _use_changes_numbers(use)]
            blocks.append(_block(f"different here, {NUMBERS}", first, width))
            rest = [use for use in of_status if not _use_changes_numbers(use)]
            blocks.append(_block("different here", rest, width))
        else:
            blocks.append(_block(TITLES[status], of_status, width))
    general = [row for row in differences() if row.is_general and row.numbers]
    lines = [f"of every optimizer, {NUMBERS}"]
    for row in general:
        lines += _row(row, width, mark=False)
    blocks.append("\n".join(lines))
    counts = {status: sum(use.status == status for use in uses) for status in STATUSES}
    said = ", ".join(f"{n} {TITLES[status]}" for status, n in counts.items() if n)
    blocks.append(f"{len(uses)} uses of Optax in {len(files)} {noun}: {said}.")
    return "\n\n".join(filter(None, blocks))


def _use_changes_numbers(use: Judged) -> bool:
    return any(row.numbers for row in use.differences)


def _block(title: str, uses: list[Judged], width: int) -> str:
    """Return the uses of one kind; those with the same name and differences stand together."""
    if not uses:
        return ""
    groups: dict[Any, list[Judged]] = {}
    for use in uses:
        groups.setdefault((use.name, use.differences), []).append(use)
    lines = [f"{title} ({len(uses)})"]
    for (name, rows), members in groups.items():
        places = ", ".join(dict.fromkeys(use.place for use in members))
        lines += wrapped_lines(f"{name}  {places}", width, "  ", " " * 6)
        if members[0].remedy:
            end = "" if members[0].remedy.endswith("?") else "."
            lines += wrapped_lines(members[0].remedy + end, width, " " * 6, " " * 6)
        for row in rows:
            lines += _row(row, width, mark=title.endswith(NUMBERS))
    return "\n".join(lines)


def _row(row: Difference, width: int, mark: bool) -> Iterator[str]:
    star = "! " if mark and row.numbers else "- "
    why = f" ({row.why})" if row.why else ""
    said = f"{star}{row.where}. Optax: {row.optax}. Here: {row.here}{why}."
    yield from wrapped_lines(
        said.replace("Optax: . ", "").replace("\\|", "|"), width, " " * 6, " " * 8
    )


def as_data(files: Sequence[Ported]) -> dict[str, Any]:
    """Return the report as plain data, for JSON."""
    uses = []
    for ported in files:
        for use in ported.uses:
            rows = [
                {"where": r.where, "optax": r.optax, "here": r.here, "why": r.why}
                | {"numbers": r.numbers}
                for r in use.differences
            ]
            uses.append(use._asdict() | {"differences": rows})
    counts = {status: sum(use["status"] == status for use in uses) for status in STATUSES}
    return {"files": [ported.path for ported in files], "counts": counts, "uses": uses}
