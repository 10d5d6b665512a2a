"""What the race shows to somebody who chooses an optimizer, for docs/guides/choosing.md.

The page has `{{ measured }}`, `{{ rates }}`, `{{ others }}`, and for what a reader has
`{{ choices: memory is short }}` and so on, where the build of the site puts what the files of the
race say. Names are chosen by rules, so that the page says nothing that another run of the race does
not.
"""

import math
import re
import statistics
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from benchmarks.options import Results
from benchmarks.subjects import entrants
from benchmarks.subjects.workloads.names import WORKLOADS
from benchmarks.tables import race
from benchmarks.tables.race import Line
from docs.site.race import NOTHING, current

MOST = 3  # the number of optimizers in a row
SMALL, LARGE = 0.6, 3.0  # of AdamW's state
ENOUGH = 4  # targets that an optimizer must reach to be named
WITHOUT_NOISE = ("regression", "factorization")
TABLES = "recommendation"
MARK = re.compile(r"\{\{ (.*?) \}\}")
NUMBERS = ("none", "one", "two", "three", "four", "five", "six", "seven", "eight")


class Race(NamedTuple):
    """The results as the page needs them: the lines, the highest score first, and AdamW's."""

    lines: list[Line]
    adamw: Line


def completed(markdown: str, linked: Callable[[str], str]) -> str:
    """Return the page with what the race says.

    Args:
      markdown: the page.
      linked: returns the name of an optimizer with a link to its page.
    """
    files = current(race.read())
    lines = race.lines(files)
    adamw = next((line for line in lines if line.name == "adamw"), None)
    if adamw is None or len(adamw.cells) < len(WORKLOADS):
        return MARK.sub(NOTHING, markdown)
    # One that has not run everywhere yet would be told to miss targets.
    whole = [line for line in lines if len(line.cells) == len(WORKLOADS)]
    found = Race(whole, adamw)
    said = {
        "measured": _unmeasured(files),
        "rates": rates(found),
        "others": others(found, linked),
    }
    for reason, some in picked(found).items():
        said[f"choices: {reason}"] = choices(reason, some, found, linked)
    return MARK.sub(lambda mark: said[mark[1]], markdown)


# ------------------------------------------------------------------------------------- the rules


def picked(found: Race) -> dict[str, list[Line]]:
    """Return the optimizers of each table, by what a reader has."""
    enough = [line for line in found.lines if _targets(line) >= ENOUGH]
    all_of_them = [line for line in found.lines if _targets(line) == len(WORKLOADS)]
    like_adamw = [line for line in all_of_them if _state(line, found) <= 1.1]
    small = [line for line in enough if _state(line, found) <= SMALL]
    first = _first(like_adamw, lambda line: -line.score)
    if found.adamw not in first:
        first = [found.adamw, *first[: MOST - 1]]
    dear = [line for line in enough if line not in first and _surely(line, found, WORKLOADS)[0]]
    exact = [
        line for line in found.lines if all(line.cells[w].steps is not None for w in WITHOUT_NOISE)
    ]
    of_rows = [
        line for line in found.lines if line.cells[TABLES].steps and not line.cells[TABLES].note
    ]
    return {
        "nothing special": first,
        "steps are dear, and you can measure": _first(dear, lambda line: -line.score),
        "memory is short": _first(small, lambda line: (-_targets(line), -line.score)),
        "few parameters, no noise, high precision": _first(
            exact, lambda line: sum(line.factors[w] for w in WITHOUT_NOISE)
        ),
        "embedding tables dominate": _first(of_rows, lambda line: line.factors[TABLES]),
        "you can try few learning rates": _first(enough, lambda line: -_rates(line)),
    }


def choices(reason: str, lines: Sequence[Line], found: Race, linked: Callable[[str], str]) -> str:
    """Return the table for what a reader has: a row for each optimizer, with what it did."""
    on = {"embedding tables dominate": (TABLES,)}.get(reason, tuple(WORKLOADS))
    if reason.startswith("few parameters"):
        on = WITHOUT_NOISE
    rows = [
        f"| optimizer | targets, of {len(on)} | steps | surely | state | best rates |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    rows += [f"| {linked(line.name)} | {' | '.join(_did(line, found, on))} |" for line in lines]
    return "\n".join(rows)


def rates(found: Race) -> str:
    """Return how narrow the good learning rates are, and how far AdamW's differ."""
    counts = [_rates(line) for line in found.lines if _targets(line) >= ENOUGH and _tuned(line)]
    best = [c.rate for c in found.adamw.cells.values() if c.rate]
    return (
        f"Of the eight rates, {statistics.median(counts):.1f} reach a target, the median over the "
        f"{len(counts)} optimizers that reach at least {NUMBERS[ENOUGH]} of the six targets. "
        f"AdamW's best rate lies between {min(best):g} and {max(best):g}, and differs from model "
        f"to model by up to {max(best) / min(best):.0f} times."
    )


def others(found: Race, linked: Callable[[str], str]) -> str:
    """Return what reached few targets, or reached them with much more state."""

    def listed(lines: Sequence[Line]) -> str:
        told = [f"{linked(line.name)} ({NUMBERS[_targets(line)]})" for line in lines]
        return ", ".join(told) or "none"

    def by_targets(lines: Sequence[Line]) -> str:
        rows = ["| targets | optimizers |", "| --- | --- |"]
        for n in range(ENOUGH - 1, -1, -1):
            names = [linked(line.name) for line in lines if _targets(line) == n]
            rows += [f"| {NUMBERS[n]} | {', '.join(names)} |"] * bool(names)
        return "\n".join(rows)

    few = [line for line in found.lines if _targets(line) < ENOUGH and _state(line, found) <= SMALL]
    free = [line for line in found.lines if not _tuned(line)]
    large = [
        line
        for line in found.lines
        if _state(line, found) >= LARGE
        and _targets(line) >= ENOUGH
        and line.score > found.adamw.score
    ]
    beside = ", ".join(f"{linked(x.name)} ({_state(x, found):.0f} times the state)" for x in large)
    return (
        f"Without a learning rate to tune, the targets reached are: {listed(free)}. Higher scores "
        f"than AdamW's, with at least {LARGE:g} times its state, have {beside or 'none'}. "
        f"At most {SMALL:g} of AdamW's state, but fewer than {NUMBERS[ENOUGH]} targets, have:\n\n"
        f"{by_targets(few)}"
    )


# ----------------------------------------------------------------------------------- the figures


def _did(line: Line, found: Race, on: Sequence[str]) -> list[str]:
    """Return what an optimizer did beside AdamW, as cells: no more digits than the seeds allow."""
    reached = sum(line.cells[w].steps is not None for w in on)
    rates = [rate for w in on if (rate := line.cells[w].rate)]
    best = _span(f"{f(rates):g}" for f in (min, max)) if rates else ""
    if line.name == found.adamw.name:
        return [str(reached), "1", "", "1", best]
    shares = [race.share(line.cells[w], found.adamw.cells[w]) for w in on]
    known = [x[0] for x in shares if x is not None]
    steps = _span(_tenths(f(known)) for f in (min, max)) if known else ""
    fewer, more = _surely(line, found, on)
    sure = [f"{word} on {NUMBERS[n]}" for word, n in (("fewer", fewer), ("more", more)) if n]
    return [str(reached), steps, ", ".join(sure), _tenths(_state(line, found)), best]


def _span(ends: Iterable[str]) -> str:
    return " to ".join(dict.fromkeys(ends))


def _surely(line: Line, found: Race, on: Iterable[str]) -> tuple[int, int]:
    """Return on how many workloads an optimizer surely takes fewer steps than AdamW, and more."""
    shares = [race.share(line.cells[w], found.adamw.cells[w]) for w in on]
    ends = [share[1] for share in shares if share is not None]
    return sum(high < 1 for _, high in ends), sum(low > 1 for low, _ in ends)


def _unmeasured(files: list[Results]) -> str:
    """Return how many optimizers have not run on all workloads; "" if all have."""
    there = {file["name"] for file in files if len(file["workloads"]) == len(WORKLOADS)}
    ours = [name for name in entrants.names() if not name.startswith(race.THEIRS)]
    n = len(ours) - len(there & set(ours))
    if not n:
        return ""
    verbs = ("has", "is") if n == 1 else ("have", "are")
    return f"{n} of {len(ours)} optimizers {verbs[0]} not run in full, and {verbs[1]} missing here."


def _tenths(x: float) -> str:
    """Return a share to a tenth, which five seeds allow; smaller ones to one digit."""
    return f"{x:.1f}" if x >= 0.095 else f"{x:.1g}"


def _targets(line: Line) -> int:
    return sum(cell.steps is not None for cell in line.cells.values())


def _tuned(line: Line) -> bool:
    return any(cell.rates is not None for cell in line.cells.values())


def _rates(line: Line) -> float:
    known = [cell.rates for cell in line.cells.values() if cell.rates is not None]
    return statistics.mean(known) if known else 0.0


def _state(line: Line, found: Race) -> float:
    """Return the bytes of the state on the workloads that both have, as a share of AdamW's."""
    pairs = [(line.cells[w], found.adamw.cells[w]) for w in WORKLOADS]
    both = [(a.state, b.state) for a, b in pairs if a.state is not None and b.state is not None]
    return sum(a for a, _ in both) / sum(b for _, b in both) if both else math.inf


def _first(lines: list[Line], order: Callable[[Line], Any]) -> list[Line]:
    return sorted(lines, key=order)[:MOST]
