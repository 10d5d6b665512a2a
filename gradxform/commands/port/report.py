"""The report that `port` prints: the uses of Optax by what becomes of them."""

from collections.abc import Iterator, Sequence
from typing import Any

from gradxform.commands.port.differences import ARGUMENT, NOTHING, Difference, differences
from gradxform.commands.port.files import DIFFERENT, STAR, STATUSES, Judged, Ported
from gradxform.commands.port.names import FORWARDED, MISSING, SAME
from gradxform.tables.text_table import wrapped_lines

TITLES = {
    MISSING: "missing here",
    STAR: "star imports",
    DIFFERENT: "to think about",
    ARGUMENT: "with one argument to check",
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
        by_import = ": change the import" if status in (FORWARDED, SAME) else ""
        blocks.append(_block(TITLES[status] + by_import, of_status, width))
    blocks.append(_record(uses, width))
    general = [row for row in differences() if row.is_general and row.numbers]
    lines = [f"of every optimizer, {NUMBERS}"]
    for row in general:
        lines += _row(row, width)
    blocks.append("\n".join(lines))
    counts = {status: sum(use.status == status for use in uses) for status in STATUSES}
    said = ", ".join(f"{n} {TITLES[status]}" for status, n in counts.items() if n)
    blocks.append(f"{len(uses)} uses of Optax in {len(files)} {noun}: {said}.")
    return "\n\n".join(filter(None, blocks))


def _block(title: str, uses: list[Judged], width: int) -> str:
    """Return the uses of one kind; those with the same name and differences stand together.

    Differences that take nothing are left to the record.
    """
    if not uses:
        return ""
    groups: dict[Any, list[Judged]] = {}
    for use in uses:
        rows = tuple(row for row in use.differences if row.takes != NOTHING)
        groups.setdefault((use.name, rows), []).append(use)
    lines = [f"{title} ({len(uses)})"]
    for (name, rows), members in groups.items():
        places = ", ".join(dict.fromkeys(use.place for use in members))
        lines += wrapped_lines(f"{name}  {places}", width, "  ", " " * 6)
        if members[0].remedy:
            end = "" if members[0].remedy.endswith("?") else "."
            lines += wrapped_lines(members[0].remedy + end, width, " " * 6, " " * 6)
        for row in rows:
            lines += _row(row, width)
    return "\n".join(lines)


def _record(uses: list[Judged], width: int) -> str:
    """Return the differences that take nothing, each once, with the names that it is about."""
    names: dict[Difference, dict[str, int]] = {}
    for use in uses:
        for row in use.differences:
            if row.takes == NOTHING:
                count = names.setdefault(row, {})
                count[use.name] = count.get(use.name, 0) + 1
    if not names:
        return ""
    lines = ["nothing to do, for the record: the calls stand, and an error says where one is wrong"]
    for row in sorted(names, key=lambda row: not row.numbers):
        told = (name if n == 1 else f"{name} ({n} times)" for name, n in names[row].items())
        lines += wrapped_lines(", ".join(told), width, "  ", " " * 6)
        lines += _row(row, width)
    return "\n".join(lines)


def _row(row: Difference, width: int) -> Iterator[str]:
    star = "! " if row.numbers else "- "
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
                | {"numbers": r.numbers, "takes": r.takes}
                for r in use.differences
            ]
            uses.append(use._asdict() | {"differences": rows})
    counts = {status: sum(use["status"] == status for use in uses) for status in STATUSES}
    return {"files": [ported.path for ported in files], "counts": counts, "uses": uses}
