"""A page for each optimizer and wrapper, written from the catalogue and from its runs."""

import functools
import inspect
import re
import warnings
from collections.abc import Iterator

from docs.site import elsewhere, pictures, samples
from docs.site.badges import BADGES
from docs.site.called import CALLED
from docs.site.code import call_of, cell, fenced, source_of, table
from docs.site.facts import Facts
from docs.site.families import family_of
from docs.site.rules import rule_and_notes, rule_html
from docs.site.runs import DIGITS_EVERY, GOOD
from docs.site.surfaces import SURFACES
from gradxform.commands.catalog import Entry, registered_parts
from gradxform.tables.describe import describe
from gradxform.values.docstrings import doc_of
from gradxform.values.registry import REGISTRY

LOOKS_AT = {
    "entry": "its entry alone",
    "row": "its row",
    "array": "its array",
    "tree": "the whole tree",
}


def folder_of(entry: Entry) -> str:
    """Return the folder of a part's page: "optimizers" or "wrappers"."""
    return entry.kind


def address(entry: Entry) -> str:
    """Return the path of a part's page, from the folder docs."""
    return f"{folder_of(entry)}/{entry.name}.md"


def rules_of(entry: Entry) -> dict[str, str]:
    """Return the update rules that make a part: its own, or those of the parts that it is made of.

    A rule of "" is not stated as a formula: the summary says it.
    """
    own = rule_and_notes(entry.doc)[0]
    if own or entry.kind != "optimizers":
        return {entry.name: own} if own else {}
    names = dict.fromkeys(name for name in _made_of(entry) if name in REGISTRY)
    rules = {name: rule_and_notes(doc_of(REGISTRY[name]))[0] for name in names}
    return {name: rule for name, rule in rules.items() if rule}


@functools.cache
def _made_of(entry: Entry) -> tuple[str, ...]:
    """Return the names of the parts of an optimizer, from the outermost on."""
    make = samples.make_of(entry)
    assert make is not None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return tuple(row.name for row in (entry.parts or describe(make(1e-3))).rows)


def pictures_of(facts: Facts, adam: Facts) -> dict[str, str]:
    """Return the pictures of a part, by the name of the file beside its page."""
    name, data = facts.entry.name, facts.data
    if not data:
        return {}
    found = {}
    for surface, run in data["paths"].items():
        at = f" with a learning rate of {run['rate']:g}" if run["rate"] else ""
        title = f"The path of {name}{at} on {SURFACES[surface].title}"
        found[f"{name}-{surface}.svg"] = pictures.path(
            surface, run["path"], run["evaluated"], title
        )
    race, other = data["race"], adam.data["race"]
    title = f"The loss of {name} on the digits beside that of adam"
    found[f"{name}-small.svg"] = pictures.thumbnail(race["loss"], other["loss"], title)

    def steps(losses: list[float | None]) -> list[tuple[float, float | None]]:
        return [(DIGITS_EVERY * i, loss) for i, loss in enumerate(losses)]

    series = [(name, pictures.OURS, steps(race["loss"]))]
    if name != "adam":
        series.insert(0, ("adam", pictures.OTHER, steps(other["loss"])))
    found[f"{name}-digits.svg"] = pictures.curves(series, title, "steps", "loss", ceiling=5.0)
    if race["rates"]:
        ends = list(zip(race["rates"], race["ends"], strict=True))
        found[f"{name}-rates.svg"] = pictures.curves(
            [("", pictures.OURS, ends)],
            f"The loss of {name} after training at several learning rates",
            "learning rate",
            "loss at the end",
            log_x=True,
            ceiling=5.0,
            marks=True,
        )
    return found


# ------------------------------------------------------------------------------------ the page


def page(facts: Facts, sources: dict[str, str]) -> str:
    """Return the page of a part as Markdown.

    Args:
      facts: what is known of it.
      sources: the addresses of pages of the reference by public name, from the part's page.
    """
    return "\n\n".join(filter(None, (block.strip("\n") for block in _blocks(facts, sources))))


def _blocks(facts: Facts, sources: dict[str, str]) -> Iterator[str]:
    entry, doc = facts.entry, facts.entry.doc
    yield f"# {entry.name}"
    yield _linked(doc.summary, sources)
    yield _badges(facts)
    yield _rule(entry, sources)
    yield from _notes(entry, sources)
    yield "## Signature"
    yield fenced(call_of(entry))
    yield _arguments(entry, sources)
    if doc.raises:
        yield "It raises\n\n" + "\n".join(
            f"- `{error}`: {_linked(text, sources)}" for error, text in doc.raises.items()
        )
    if facts.data:
        yield from _state(facts)
        yield from _runs(facts)
    yield _elsewhere(entry)
    if doc.reference:
        yield "## Reference"
        yield _linked(doc.reference, sources)
    called = CALLED.get(entry.name)
    if called:
        yield f"## Also called {called[0]}"
        yield called[1]
    yield "## Source { data-search-exclude }"
    yield from _source(entry)


def _linked(text: str, sources: dict[str, str]) -> str:
    """Return text with links from the names of public parts to their pages."""

    def link(match: re.Match[str]) -> str:
        target = sources.get(match[1])
        return f"[`{match[1]}`]({target})" if target else match[0]

    text = re.sub(r"`(\w+)`", link, text)
    return re.sub(r"(?<![(<])\b(https?://[^\s,;)]+[^\s,;).])", r"<\1>", text)


def _badges(facts: Facts) -> str:
    labels = [
        f'<a class="gx-badge" href="../../{BADGES[name].page.removesuffix(".md")}/">'
        f"{BADGES[name].label}</a>"
        for name in BADGES
        if name in facts.badges
    ]
    facts_of = [family_of(facts.entry.name)]
    if facts.data:
        facts_of.append(f"looks at {LOOKS_AT[facts.data['locality']]}")
        facts_of += [f"needs the {need}" for need in facts.data["needs"]]
    labels = [f'<span class="gx-fact">{fact}</span>' for fact in facts_of] + labels
    return f'<p class="gx-badges">{" ".join(labels)}</p>'


def _rule(entry: Entry, sources: dict[str, str]) -> str:
    blocks = []
    rules = rules_of(entry)
    for name, rule in rules.items():
        if name != entry.name:
            target = sources.get(name)
            title = f"[`{name}`]({target})" if target else f"`{name}`"
            blocks.append(f"**{title}**")
        names = [a.name.lstrip("*") for a in entry.arguments]
        if name in REGISTRY:
            names += getattr(REGISTRY[name], "__dataclass_fields__", {})
        blocks.append(f'<div class="gx-rule">\n{rule_html(rule, names).markup}\n</div>')
    return "## Update rule\n\n" + "\n\n".join(blocks) if blocks else ""


def _notes(entry: Entry, sources: dict[str, str]) -> Iterator[str]:
    for paragraph in re.split(r"\n\s*\n", rule_and_notes(entry.doc)[1]):
        if paragraph.startswith("    "):
            yield fenced(inspect.cleandoc(paragraph))
        elif not paragraph.startswith("See also `"):
            yield _linked(paragraph, sources)


def _arguments(entry: Entry, sources: dict[str, str]) -> str:
    rows = [
        (
            f"`{a.name}`",
            {None: "required", "": ""}.get(a.default, f"`{a.default}`"),
            a.range,
            cell(_linked(a.text, sources)),
        )
        for a in entry.arguments
    ]
    head = ("argument", "default", "range", "meaning")
    if not any(row[2] for row in rows):  # the meaning says it
        head, rows = (head[0], head[1], head[3]), [(row[0], row[1], row[3]) for row in rows]
    return table(head, rows) if rows else ""


def _state(facts: Facts) -> Iterator[str]:
    yield "## State"
    each = facts.data["bytes"]
    number = f"{each:.3g}" if each >= 0.01 or not each else "less than 0.01"
    yield (
        f"{number} bytes for each parameter of a 1024 x 1024 matrix in float32, which itself takes "
        "4. For that matrix `gx.describe(tx, params)` prints:"
    )
    yield fenced(facts.data["table"], "text")


def _runs(facts: Facts) -> Iterator[str]:
    name, race = facts.entry.name, facts.data["race"]
    yield "## Learning rate" if race["rates"] else "## A run"
    if race["good"]:
        low, high = race["good"]
        good = f"{low:g}" if low == high else f"{low:g} to {high:g}"
        yield (
            f"A network with one hidden layer, trained for 300 steps on handwritten digits, ends "
            f"lowest with a learning rate of {race['rate']:g}. With {good}, its loss ends at most "
            f"{GOOD:g} above that. Rates of other models differ; the ratio to the best rate of "
            "[`adam`](../optimizers/adam.md) on the same network is often a good first guess."
        )
    if facts.entry.kind == "wrappers" or name in samples.OPTIMIZERS:
        yield "The pictures are of this transform, with other learning rates:"
        yield fenced(facts.config)
    if name in samples.ON_ALL_EXAMPLES:
        yield (
            "It compares the losses of different steps, so that each step takes all of the digits; "
            "Adam gets 64 of them at a time."
        )
    images = [f"![The loss of {name} on the digits beside that of adam]({name}-digits.svg)"]
    if race["rates"]:
        images.append(f"![The loss of {name} at several learning rates]({name}-rates.svg)")
    yield '<div class="gx-pictures" markdown>\n' + "\n".join(images) + "\n</div>"
    yield "## Paths"
    rates = [run["rate"] for run in facts.data["paths"].values()]
    with_rates = f", with learning rates of {rates[0]:g} and {rates[1]:g}" if rates[0] else ""
    text = (
        f"150 steps on {SURFACES['valley'].title}, and on {SURFACES['saddle'].title}{with_rates}: "
        "the best of those tried. The circle is the start, and a dot is drawn every second step."
    )
    if any(run["evaluated"] for run in facts.data["paths"].values()):
        text += " The second line is the average that `eval_params` returns."
    yield text
    images = [f"![The path of {name} on {s.title}]({name}-{k}.svg)" for k, s in SURFACES.items()]
    yield '<div class="gx-pictures" markdown>\n' + "\n".join(images) + "\n</div>"


def _elsewhere(entry: Entry) -> str:
    found = elsewhere.calls(entry.name, entry.part) if entry.kind == "optimizers" else []
    names = list(dict.fromkeys([entry.name, *rules_of(entry)]))
    blocks = []
    if found:
        blocks.append(elsewhere.calls_markdown(found))
    rows = elsewhere.differences_markdown(names)
    if rows:
        blocks += ["Where it differs from Optax ([all differences](../differences.md)):", rows]
    return "## In other libraries\n\n" + "\n\n".join(blocks) if blocks else ""


def _source(entry: Entry) -> Iterator[str]:
    parts = {entry.name: entry.part}
    if entry.kind == "optimizers":
        own = (names_of("transforms") | names_of("wrappers")) - {"chain"}
        parts |= {name: REGISTRY[name] for name in _made_of(entry) if name in own}
    for name, part in parts.items():
        module = inspect.unwrap(part).__module__.replace(".", "/")
        yield f'??? quote "`{name}` in `{module}.py`"\n\n' + fenced(source_of(part), indent="    ")


@functools.cache
def names_of(kind: str) -> frozenset[str]:
    """Return the names of the parts of a kind that have a page."""
    return frozenset(e.name for e in registered_parts(kind) if ":" not in e.name)
