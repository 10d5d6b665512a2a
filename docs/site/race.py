"""The tables of the page docs/race.md, of the files that the race has written.

The page has `{{ picture }}`, `{{ summary }}`, `{{ missing }}`, `{{ seconds }}`, `{{ workloads }}`,
`{{ newer }}`, `{{ control }}`, `{{ targets }}` and `{{ left out }}`, where the build puts them.
"""

import json
import math
from collections.abc import Callable, Iterable, Sequence

from benchmarks.options import Results
from benchmarks.subjects import entrants
from benchmarks.subjects.workloads.names import WORKLOADS
from benchmarks.tables import race
from docs.site import dots

NOTHING = "The race has not been run: `make bench ARGS=race` runs it."
BEGIN, END = '<div class="gx-sorted" markdown>', "</div>"


def completed(markdown: str, linked: Callable[[str], str]) -> str:
    """Return the page with its tables.

    Args:
      markdown: the page.
      linked: returns the name of an optimizer with a link to its page.
    """
    files = current(race.read())
    for mark, made in (
        ("picture", lambda: picture(files, linked)),
        ("summary", lambda: summary(files, linked)),
        ("missing", lambda: missing(files, linked)),
        ("seconds", lambda: seconds(files)),
        ("workloads", lambda: workloads(files, linked)),
        ("newer", lambda: newer(files, linked)),
        ("control", lambda: control(files)),
        ("targets", targets),
        ("left out", lambda: left_out(linked)),
    ):
        markdown = markdown.replace(f"{{{{ {mark} }}}}", made())
    return markdown


def current(files: list[Results]) -> list[Results]:
    """Return the files of what optimizers and targets are now, and of Optax's in any version."""
    known, targets = set(entrants.names()), _targets()

    def is_of_now(name: str, of: Results) -> bool:
        target = targets.get(name, {})
        budget = [of.get(field) for field in ("steps", "every", "over")]
        now = target.get("target"), target.get("data"), target.get("budget")
        return (of.get("target"), of.get("data"), budget) == now

    return [
        file
        | {"workloads": {n: row for n, row in file["workloads"].items() if is_of_now(n, row["of"])}}
        for file in files
        if file["name"] in known
        and (file["name"].startswith(race.THEIRS) or file["config"] == _config(file["name"]))
    ]


def _targets() -> dict[str, Results]:
    if not race.TARGETS.exists():
        return {}
    return json.loads(race.TARGETS.read_text(encoding="utf-8"))["workloads"]


def _config(name: str) -> str:
    return entrants.entrant(name).config


def missing(files: list[Results], linked: Callable[[str], str]) -> str:
    """Return which optimizers do not have results of what they are now; "" if all have."""
    there = {file["name"] for file in files if len(file["workloads"]) == len(WORKLOADS)}
    names = [name for name in entrants.names() if name not in there]
    ours = [linked(name) for name in names if not name.startswith(race.THEIRS)]
    return f"Not measured yet, or not on all workloads: {', '.join(ours)}." if ours else ""


def picture(files: list[Results], linked: Callable[[str], str]) -> str:
    """Return the picture in steps, and a tab with that in seconds once all are measured."""
    lines = race.lines(files)
    if not lines:
        return NOTHING
    fields = ["steps"] if lines[0].slower is None else ["steps", "seconds"]
    drawn = {field: dots.picture(dots.rows(lines, field), field, linked) for field in fields}
    if len(drawn) == 1:
        return drawn["steps"]
    return "\n\n".join(f'=== "{field}"\n\n    {made}' for field, made in drawn.items())


def summary(files: list[Results], linked: Callable[[str], str]) -> str:
    """Return the table with a line for each optimizer, over all workloads."""
    lines = race.lines(files)
    if not lines:
        return NOTHING
    timed = lines[0].slower is not None
    rows = []
    for line in lines:
        cells = list(line.cells.values())
        rates = [c.rates for c in cells if c.rates is not None]
        form = f".{race.digits_of(*line.interval)}f"
        rows.append(
            [
                linked(line.name),
                str(line.place),
                f"{line.score:{form}}",
                f"{line.interval[0]:{form}} to {line.interval[1]:{form}}",
                *([_or_dash(line.score_in_seconds, ".2f")] if timed else []),
                str(sum(c.steps is not None for c in cells)),
                f"{100 * sum(c.seeds for c in cells) / len(WORKLOADS):.0f}%",
                f"{sum(rates) / len(rates):.1f}" if rates else "–",
                f"{sum(c.state or 0 for c in cells):,}",
            ]
        )
    titles = ["optimizer", "place", "score", "interval", *(["score, seconds"] if timed else [])]
    return _sorted(_table([*titles, "targets", "seeds", "rates of 8", "bytes"], rows))


def seconds(files: list[Results]) -> str:
    """Return what the seconds are, if all optimizers have them."""
    lines = race.lines(files)
    if not lines or lines[0].slower is None:
        return ""
    return (
        "`seconds` are those of the processor for the steps to the target at the best rate, the "
        "median of three runs, without compiling. The picture in seconds and `score, seconds` are "
        "made of them."
    )


def workloads(files: list[Results], linked: Callable[[str], str]) -> str:
    """Return a tab for each workload, with a line for each optimizer."""
    lines, tabs = race.lines(files), []
    timed = bool(lines) and lines[0].slower is not None
    for name in WORKLOADS:
        found = [(line.name, line.cells[name]) for line in lines if name in line.cells]
        found.sort(key=lambda pair: (_last(pair[1].steps), -pair[1].seeds, pair[0]))
        rows = [[linked(optimizer), *_cells(cell, timed)] for optimizer, cell in found]
        if rows:
            titles = ["optimizer", "steps", "of seeds", *(["seconds"] if timed else [])]
            table = _table([*titles, "rates of 8", "rate", "bytes", "notes"], rows)
            indented = "\n".join(f"    {line}" for line in table.split("\n"))
            tabs.append(f'=== "{name}"\n\n{indented}')
    return _sorted("\n\n".join(tabs)) if tabs else NOTHING


def _cells(cell: race.Cell, timed: bool) -> list[str]:
    return [
        _or_dash(cell.steps, "g"),
        ", ".join("–" if math.isinf(n) else f"{n:g}" for n in sorted(cell.of_seeds)) or "–",
        *([_or_dash(cell.seconds, ".3g")] if timed else []),
        _or_dash(cell.rates, "g"),
        _or_dash(cell.rate, ".3g"),
        _or_dash(cell.state, ","),
        cell.note.replace("|", "\\|"),
    ]


# The newer rules, after the one that most of them change.
NEWER = (
    "muon",
    "muon_eq",
    "contra_muon",
    "soft_muon",
    "aurora",
    "muown",
    "polar_grad",
    "schedule_free_prodigy",
    "schedule_free_plus",
)


def newer(files: list[Results], linked: Callable[[str], str]) -> str:
    """Return the table of the newer rules: the steps of each over those of AdamW, and seconds."""
    cells = {line.name: line.cells for line in race.lines(files)}
    beside = cells.get("adamw", {})

    def shares(name: str, workload: str) -> str:
        ours, theirs = (x.get(workload, race.Cell()) for x in (cells[name], beside))
        pairs = (ours.steps, theirs.steps), (ours.seconds, theirs.seconds)
        return " / ".join(f"{a / b:.2f}" for a, b in pairs if a and b) or "–"

    rows = [[linked(n), *(shares(n, w) for w in WORKLOADS)] for n in NEWER if n in cells]
    return _table(["optimizer", *WORKLOADS], rows) if rows else NOTHING


def control(files: list[Results]) -> str:
    """Return the table of Optax's own optimizers: their steps, beside those of ours."""
    ours = {line.name: line for line in race.lines(files)}
    lines = sorted(race.lines(files, control=True), key=lambda line: line.name)
    if not lines:
        return NOTHING
    rows = []
    for line in lines:
        own = ours.get(line.name.removeprefix(race.THEIRS))
        cells = [own.cells.get(name, race.Cell()) if own else race.Cell() for name in WORKLOADS]
        rows.append(
            [f"`{line.name}`"]
            + [
                _beside(mine, line.cells.get(name, race.Cell()))
                for name, mine in zip(WORKLOADS, cells, strict=True)
            ]
        )
    return _table(["Optax's", *WORKLOADS], rows)


def _beside(ours: race.Cell, theirs: race.Cell) -> str:
    if "row-sparse" in theirs.note:
        return "–"
    return f"{_or_dash(ours.steps, 'g')} / {_or_dash(theirs.steps, 'g')}"


def targets() -> str:
    """Return the table of the targets, and how they were measured."""
    if not race.TARGETS.exists():
        return NOTHING
    found = json.loads(race.TARGETS.read_text(encoding="utf-8"))
    rows = [
        [
            name,
            f"{row['target']:g}",
            *map(str, row["budget"]),
            f"{row['rate']:g}",
            *(
                f"{row[field]} of {len(row['seeds'])}"
                for field in ("reached", "reached when moved")
            ),
        ]
        for name, row in found["workloads"].items()
    ]
    titles = ["workload", "target", "budget of steps", "measured every", "mean of"]
    table = _table([*titles, "AdamW's rate", "in time", "moved by a rounding"], rows)
    return f"{table}\n\nMeasured by `{found['command']}` on {found['machine']}."


def left_out(linked: Callable[[str], str]) -> str:
    """Return the list of what does not race, and of what does not race with its defaults."""
    lines = [f"- {linked(name)} {why}." for name, why in sorted(entrants.LEFT_OUT.items())]
    others = ", ".join(linked(name) for name in entrants.with_other_arguments())
    lines += [
        "",
        f"These run with other arguments than their defaults, as their pages show: {others}.",
    ]
    return "\n".join(lines)


def _or_dash(x: float | None, form: str) -> str:
    return "–" if x is None else format(x, form)


def _last(x: float | None) -> float:
    return math.inf if x is None else x


def _table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(titles)} |", f"|{' --- |' * len(titles)}"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)])


def _sorted(tables: str) -> str:
    """Return tables that readers can sort by a column."""
    return f"{BEGIN}\n\n{tables}\n\n{END}"
