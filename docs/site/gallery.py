"""The gallery: a card for each optimizer and wrapper, with filters."""

import html
from collections.abc import Iterable, Sequence

from docs.site.facts import Facts
from docs.site.families import family_of
from docs.site.parts import LOOKS_AT, folder_of
from docs.site.surfaces import SURFACES

HEAD = """---
hide: [navigation, toc]
---

# Gallery

Each card shows the path of an optimizer on a valley and on a saddle, and its loss on handwritten
digits (blue) beside that of Adam (orange), each at the best learning rate of those tried. Wrappers
are drawn around Adam.
"""
SLOTS = {"0": "none", "1": "one", "2": "two", "3+": "three or more", "factored": "factored"}


def page(facts: Iterable[Facts]) -> str:
    """Return the gallery as Markdown with HTML in it."""
    cards = [f for f in facts]
    rows = [_values(f) for f in cards]
    filters = {
        "kind": ("What", {"optimizers": "optimizers", "wrappers": "wrappers"}),
        "family": ("Family", {v: v for v in dict.fromkeys(row["family"] for row in rows)}),
        "slots": ("Numbers per parameter", SLOTS),
        "looks": ("Looks at", LOOKS_AT),
        "needs": (
            "Needs",
            {
                "": "gradients only",
                "parameters": "parameters",
                "loss value": "loss value",
                "loss function": "loss function",
            },
        ),
    }
    selects = [
        f'<label>{title}<select name="{name}"><option value="*">all</option>'
        + "".join(f'<option value="{html.escape(k)}">{v}</option>' for k, v in options.items())
        + "</select></label>"
        for name, (title, options) in filters.items()
    ]
    search = '<label>Name<input type="search" name="text" placeholder="adam"></label>'
    form = (
        f'<form class="gx-filters">{"".join(selects)}{search}'
        f'<output aria-live="polite">{len(cards)} of {len(cards)}</output></form>'
    )
    body = "\n".join(_card(f, row) for f, row in zip(cards, rows, strict=True))
    return f'{HEAD}\n{form}\n\n<div class="gx-gallery">\n{body}\n</div>\n'


def _values(facts: Facts) -> dict[str, str]:
    slots = facts.slots
    return {
        "kind": facts.entry.kind,
        "family": family_of(facts.entry.name),
        "slots": slots if slots in ("", "0", "1", "2", "factored") else "3+",
        "looks": facts.data.get("locality", ""),
        "needs": "|".join(facts.data.get("needs", ())),
    }


def _card(facts: Facts, values: dict[str, str]) -> str:
    name, folder = facts.entry.name, folder_of(facts.entry)
    data = " ".join(f'data-{k}="{html.escape(v)}"' for k, v in values.items())
    images = _images(name, folder) if facts.data else []
    summary = html.escape(_plain(facts.entry.doc.summary))
    return (
        f'<a class="gx-card" href="../{folder}/{name}/" data-name="{name}" {data}>'
        f'<strong>{name}</strong><span class="gx-thumbs">{"".join(images)}</span>'
        f"<small>{summary}</small></a>"
    )


def _images(name: str, folder: str) -> Sequence[str]:
    found = [(f"{name}-{surface}.svg", f"path on the {surface}") for surface in SURFACES]
    found.append((f"{name}-small.svg", "loss on the digits"))
    return [
        f'<img loading="lazy" src="../{folder}/{file}" alt="{name}: {alt}">' for file, alt in found
    ]


def _plain(text: str) -> str:
    return text.replace("`", "")
