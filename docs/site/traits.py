"""The list of traits, for authors of transforms; `python -m docs.site.traits` writes the page."""

from typing import get_args

from docs.site.cache import ROOT
from gradxform.base.traits import GuardTraits, RuleTraits, Trait, Traits, traits_of

PAGE = ROOT / "docs" / "traits.md"
BEGIN, END = "<!-- traits: begin -->", "<!-- traits: end -->"


def page() -> str:
    """Return the page with the traits as they are now."""
    head, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    titles = {Traits: "Of every transform", RuleTraits: "Of an `ArrayRule`"}
    titles |= {GuardTraits: "Of a `Guard`, which decides whether a step is taken"}
    sections = "".join(_section(title, kind) for kind, title in titles.items())
    return f"{head}{BEGIN}\n\n{sections}{END}{rest.partition(END)[2]}"


def _section(title: str, kind: type[Traits]) -> str:
    """Return the section of the traits that a class adds to those of all transforms."""
    traits = {k: x for k, x in traits_of(kind).items() if k in vars(kind)}
    entries = [
        f"### `{name}: {_type(kind, name, trait)} = {_default(kind, name)}`\n\n{trait.sentence}\n\n"
        f"- Declared by: {trait.declared_by}\n"
        f"- Read by: {', '.join(f'`{reader}`' for reader in trait.read_by.split(', '))}.\n"
        f"- Kept by: `{trait.kept_by}`.\n\n"
        for name, trait in traits.items()
    ]
    return f"## {title}\n\n{''.join(entries)}"


def _type(kind: type[Traits], name: str, trait: Trait) -> str:
    """Return the type of a trait as text."""
    (of_class, *_) = get_args(get_args(kind.__annotations__[name])[0]) or (None,)
    return trait.type or (of_class.__name__ if isinstance(of_class, type) else str(of_class))


def _default(kind: type[Traits], name: str) -> str:
    default = getattr(kind, name)
    return f'"{default}"' if isinstance(default, str) else repr(default)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
