"""Which part of the old state each part of the new one goes on from."""

from collections.abc import Sequence
from typing import Any

from gradxform.base.transformation import rules_with_state
from gradxform.errors import name_of
from gradxform.leaves import Path
from gradxform.run_states.migration.layout import StatePart, dotted_path

# For a place in the parameters, the part of the old state that has the slots there.
Pairing = dict[Path, StatePart]
# The place of a part without slots.
NOWHERE: Path = ("",)


def _are_alike_parts(new: StatePart, old: StatePart) -> bool:
    """Whether two parts are of the same rule.

    Raises:
      ValueError: if one of them may be of several rules, whose slots mean different things.
    """
    if new.rule is not None and old.rule is not None:
        return name_of(new.rule) == name_of(old.rule)
    if new.kind != old.kind:
        return False
    unknown, other = (new, old) if new.rule is None else (old, new)
    if other.rule is None and new.calls == old.calls:
        return True
    rules: list[Any] = rules_with_state(new.kind)
    first = other.rule or next(iter(rules), None)
    others = [rule for rule in rules if rule.averages_of != getattr(first, "averages_of", ())]
    if others:
        raise ValueError(
            f"migrate_state: cannot tell whether {unknown} is of {name_of(first)} or of "
            f"{name_of(others[0])}, whose slots mean something else. Give gradxform's transform "
            "for the same call, which has the same state."
        )
    return True


def pair_alike(
    new_parts: Sequence[StatePart], old_parts: Sequence[StatePart]
) -> dict[StatePart, Pairing]:
    """Pair parts of the same rule, place by place."""
    candidates = {
        new: tuple(old for old in old_parts if _are_alike_parts(new, old)) for new in new_parts
    }
    return _paired_with_candidates(candidates)


def _paired_with_candidates(
    candidates: dict[StatePart, tuple[StatePart, ...]],
) -> dict[StatePart, Pairing]:
    """Pair each new part with one of its candidates, for every place where both have slots."""
    groups: dict[tuple[StatePart, ...], list[StatePart]] = {}
    for new, olds in candidates.items():
        if olds:
            groups.setdefault(olds, []).append(new)
    pairings: dict[StatePart, Pairing] = {}
    for olds, news in groups.items():
        patterns: dict[Any, list[tuple[StatePart, StatePart]]] = {}
        for place in dict.fromkeys(place for part in news for place in part.places or [NOWHERE]):
            here = [tuple(p for p in x if place in (p.places or [NOWHERE])) for x in (news, olds)]
            key = here[0], here[1]
            if key not in patterns:
                patterns[key] = _pairs_in_order(*key)
            for new, old in patterns[key]:
                pairings.setdefault(new, {})[place] = old
    return pairings


def _pairs_in_order(
    news: Sequence[StatePart], olds: Sequence[StatePart]
) -> list[tuple[StatePart, StatePart]]:
    """Pair parts that have slots in the same place: by their labels, and the rest in order."""
    pairs = []
    for new in [new for new in news if new.labels]:
        old = [old for old in olds if old.labels == new.labels]
        if len(old) == 1 and sum(other.labels == new.labels for other in news) == 1:
            pairs.append((new, old[0]))
    news = [new for new in news if new not in [pair[0] for pair in pairs]]
    olds = [old for old in olds if old not in [pair[1] for pair in pairs]]
    if len(news) == len(olds):
        return pairs + list(zip(news, olds, strict=True))
    only_counts = all(set(new.leaves) <= {(k,) for k in new.step_fields} for new in news)
    if not news or not olds or only_counts:  # such a count begins at the step of the run
        return pairs
    example = {dotted_path(new.path): None for new in news} | {
        dotted_path(new.path): dotted_path(old.path) for new, old in zip(news, olds, strict=False)
    }
    raise ValueError(
        f"migrate_state: {_number_of_unpaired(olds, 'state')} of {olds[0].name} in the old state, "
        f"at {_paths_of_unpaired(olds)}, but {len(news)} in the new one, at "
        f"{_paths_of_unpaired(news)}. Say which goes on from which, such as match={example}; None "
        "begins anew."
    )


def _paths_of_unpaired(parts: Sequence[StatePart]) -> str:
    return " and ".join(repr(dotted_path(part.path)) for part in parts)


def _number_of_unpaired(items: Sequence[Any], noun: str) -> str:
    return f"{len(items)} {noun}" + ("" if len(items) == 1 else "s")


def pair_kin(
    new_parts: Sequence[StatePart], old_parts: Sequence[StatePart]
) -> dict[StatePart, Pairing]:
    """Pair the parts of other rules that have all the averages of the new ones."""
    return _paired_with_candidates(
        {
            new: tuple(
                old
                for old in old_parts
                if set(new.averages.values()) <= set(old.averages.values())
                and set(new.places or [NOWHERE]) & set(old.places or [NOWHERE])
            )
            for new in new_parts
            if new.averages
        }
    )
