"""The list of traits, for authors of transforms; `python -m docs.site.traits` writes the page."""

from collections.abc import Mapping
from typing import get_args

from docs.site.cache import ROOT
from gradxform.base.traits import RuleTraits, Trait, Traits, traits_of

PAGE = ROOT / "docs" / "traits.md"
BEGIN, END = "<!-- traits: begin -->", "<!-- traits: end -->"


def page() -> str:
    """Return the page with the traits as they are now."""
    head, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    of_all = traits_of(Traits)
    of_rules = {k: x for k, x in traits_of(RuleTraits).items() if k not in of_all}
    sections = _section("Of every transform", of_all) + _section("Of an `ArrayRule`", of_rules)
    return f"{head}{BEGIN}\n\n{sections}{END}{rest.partition(END)[2]}"


def _section(title: str, traits: Mapping[str, Trait]) -> str:
    entries = [
        f"### `{name}: {_type(name, trait)} = {_default(name)}`\n\n{trait.sentence}\n\n"
        f"- Declared by: {trait.declared_by}\n"
        f"- Read by: {', '.join(f'`{reader}`' for reader in trait.read_by.split(', '))}.\n"
        f"- Kept by: `{trait.kept_by}`.\n\n"
        for name, trait in traits.items()
    ]
    return f"## {title}\n\n{''.join(entries)}"


def _type(name: str, trait: Trait) -> str:
    """Return the type of a trait as text."""
    owner = Traits if name in vars(Traits) else RuleTraits
    (kind, *_) = get_args(get_args(owner.__annotations__[name])[0]) or (None,)
    return trait.type or (kind.__name__ if isinstance(kind, type) else str(kind))


def _default(name: str) -> str:
    default = getattr(RuleTraits, name)
    return f'"{default}"' if isinstance(default, str) else repr(default)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
