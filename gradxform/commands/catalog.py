"""A catalog of every registered part, read from its docstring and its signature."""

import dataclasses
import inspect
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple, cast

from gradxform._names.deferred import annotations_of, signature_of
from gradxform._names.guesses import suggestion
from gradxform._names.homes import homes_of
from gradxform.base import GradientTransformation
from gradxform.errors import cut_name
from gradxform.leaves.masks import Mask, label_by
from gradxform.optimizers.by_name import OPTIMIZERS
from gradxform.schedules import Schedule
from gradxform.tables.describe import Description, describe
from gradxform.values import Value, printed
from gradxform.values.docstrings import Doc, doc_of
from gradxform.values.fields import range_words
from gradxform.values.registry import REGISTRY

KINDS = ("optimizers", "transforms", "wrappers", "schedules", "masks")


class Argument(NamedTuple):
    """One argument of a part."""

    name: str  # with a star if it takes several
    default: str | None  # as it prints; None if it is required
    text: str  # from the docstring
    range: str  # from the field's annotation, such as "in [0, 1)"; "" if it names no range


@dataclasses.dataclass(frozen=True)
class Entry:
    """One part.

    Args:
      name: its name in configs.
      kind: one of `KINDS`.
      part: the class or function.
    """

    name: str
    kind: str
    part: Callable[..., Any]

    @property
    def doc(self) -> Doc:
        """Its docstring in parts."""
        return doc_of(self.part)

    @property
    def arguments(self) -> tuple[Argument, ...]:
        """Its arguments, in the order of its signature."""
        texts = self.doc.arguments
        return tuple(
            Argument(name, default, texts.get(name.lstrip("*"), ""), range_words(self.part, name))
            for name, default in _defaults(self.part)
        )

    @property
    def parts(self) -> Description | None:
        """The `Description` of an optimizer, with a learning rate of 0.001 if it needs one.

        None for other parts, and for optimizers that need other arguments.
        """
        needed = [a.name for a in self.arguments if a.default is None]
        if self.kind != "optimizers" or not set(needed) <= {"learning_rate"}:
            return None
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # the optimizer is only shown, not used
                return describe(self.part(**dict.fromkeys(needed, 1e-3)))
        except (TypeError, ValueError):  # an argument may be needed although it has a default
            return None

    @property
    def rule(self) -> str:
        """Its update rule; for an optimizer without one, those of its parts."""
        if self.doc.rule or self.parts is None:
            return self.doc.rule
        names = dict.fromkeys(row.name for row in self.parts.rows if row.name in REGISTRY)
        rules = {name: doc_of(REGISTRY[name]).rule for name in names}
        return "\n\n".join(
            f"{name}:\n\n{_indented_rule(rule)}" for name, rule in rules.items() if rule
        )

    def as_data(self) -> dict[str, Any]:
        """Return the entry as plain data, ready for JSON."""
        return {
            "name": self.name,
            "kind": self.kind,
            "summary": self.doc.summary,
            "rule": self.rule,
            "notes": self.doc.notes,
            "arguments": [a._asdict() for a in self.arguments],
            "raises": self.doc.raises,
            "reference": self.doc.reference,
        }


def registered_parts(*kinds: str) -> list[Entry]:
    """Return every registered part of some kinds, by default of all, by kind and then by name."""
    public = frozenset(homes_of("gradxform"))
    selected = []
    for name, part in REGISTRY.items():
        kind = kind_of(part) if ":" in name or name in public else None
        if kind is not None and (not kinds or kind in kinds):
            selected.append(Entry(name, kind, part))
    return sorted(selected, key=lambda e: (KINDS.index(e.kind), e.name.lower()))


def registered_part(name: str) -> Entry:
    """Return the part with that name.

    Raises:
      KeyError: if no part has it; the message suggests the nearest name.
    """
    by_name = {e.name: e for e in registered_parts()}
    if name not in by_name:
        hint = suggestion(name, [*by_name, *homes_of("gradxform")])
        raise KeyError(f"nothing is named {cut_name(name)!r}.{hint}")
    return by_name[name]


def kind_of(part: Any) -> str | None:
    """Return the kind of a registered part; None for a plain function, for example."""
    if any(part is optimizer for optimizer in OPTIMIZERS.values()):
        return "optimizers"
    if not isinstance(part, type):
        return None
    if issubclass(part, Schedule):
        return "schedules"
    if issubclass(part, Mask) or part is label_by:
        return "masks"
    family = part.__module__.split(".")[1:2]
    if family in (["wrappers"], ["distributed"]):
        return "wrappers"
    if issubclass(part, GradientTransformation):
        return "wrappers" if "inner" in annotations_of(part) else "transforms"
    return None


def _indented_rule(text: str) -> str:
    return "\n".join(f"    {line}" if line.strip() else "" for line in text.split("\n"))


def _defaults(part: Any) -> list[tuple[str, str | None]]:
    """Return names with defaults as they print; None for those without a default."""
    if isinstance(part, type) and issubclass(part, Value):  # its `__init__` may take old names too
        return [
            (f"*{f.name}", "") if f.name == part.variadic else (f.name, _default(f.default))
            for f in sorted(dataclasses.fields(cast(Any, part)), key=lambda f: f.kw_only is True)
        ]
    return [
        (f"*{p.name}", "") if p.kind is p.VAR_POSITIONAL else (p.name, _default(p.default))
        for p in signature_of(part).parameters.values()
    ]


def _default(x: Any) -> str | None:
    required = x is dataclasses.MISSING or x is inspect.Parameter.empty
    return None if required else printed(x)
