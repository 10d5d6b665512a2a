"""Which array of the old state each array of the new one goes on from, where the user says so."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from gradxform.errors import did_you_mean, shown
from gradxform.leaves import Path
from gradxform.run_states.migration.layout import StateLayout, StatePart, dotted_path


class Begun(NamedTuple):
    """An array that begins as `init` returns it."""


class AtStep(NamedTuple):
    """A count that begins at the step of the run.

    Attributes:
      scope: the wrapper of the old state whose steps these are; None for those of the run.
    """

    scope: StatePart | None = None


class Taken(NamedTuple):
    """An array that comes from the old state."""

    index: int


Source = Begun | AtStep | Taken


def said_by(
    olds: StateLayout, news: StateLayout, match: Mapping[str, str | None] | None
) -> tuple[dict[int, Source], set[StatePart], set[StatePart]]:
    """Return the sources that `match` gives, and the new and old parts that it settles."""
    if match is not None and not isinstance(match, Mapping):
        raise TypeError(
            "migrate_state: match must be a dict from paths of the new state to paths of the old "
            f"one, got {shown(match)}."
        )
    said: dict[int, Source] = {}
    used: set[StatePart] = set()
    # Shorter paths first, so that what is said of an array overrides what is said of its part.
    for new, old in sorted((match or {}).items(), key=lambda item: len(str(item[0]))):
        if not isinstance(new, str) or not (old is None or isinstance(old, str)):
            raise TypeError(
                "migrate_state: match must be a dict from paths, such as '0.mu', to paths or None, "
                f"got {shown(new)}: {shown(old)}."
            )
        targets = _matched_arrays_below(news, new, "new")
        if old is None:
            said |= dict.fromkeys(targets.values(), Begun())
            continue
        origins = _matched_arrays_below(olds, old, "old")
        used |= {part for part in olds.parts if _is_below_matched_path(part.path, old)}
        if not set(targets) & set(origins):
            raise ValueError(
                f"migrate_state: match says {new!r}: {old!r}, but the two do not have a name in "
                f"common: {dotted_paths(targets)} in the new state, {dotted_paths(origins)} in "
                "the old one."
            )
        said |= {
            index: Taken(origins[rest]) if rest in origins else Begun()
            for rest, index in targets.items()
        }
    origins_used = {source.index for source in said.values() if isinstance(source, Taken)}
    used |= {part for part in olds.parts if origins_used.issuperset(part.leaves.values())}
    settled = {part for part in news.parts if set(said).issuperset(part.leaves.values())}
    return said, settled, used


def _matched_arrays_below(layout: StateLayout, key: str, which: str) -> dict[Path, int]:
    """Return the arrays at or below a path, by the rest of their paths."""
    leaves = {}
    for index, path in enumerate(layout.paths):
        for n in range(len(path) + 1):
            if key == dotted_path(path[:n]):
                leaves[path[n:]] = index
    if not leaves:
        paths = {dotted_path(path[:n]) for path in layout.paths for n in range(len(path) + 1)}
        raise ValueError(
            f"migrate_state: match names {key!r}, but the {which} state does not have an array "
            f"there.{did_you_mean(key, sorted(paths)) or f' It has {dotted_paths(layout.paths)}.'}"
        )
    return leaves


def _is_below_matched_path(path: Path, key: str) -> bool:
    return any(key == dotted_path(path[:n]) for n in range(len(path) + 1))


def dotted_paths(paths: Iterable[Path]) -> str:
    """Return some of the paths for a message."""
    names = list(dict.fromkeys(dotted_path(path) for path in paths))
    return ", ".join(map(repr, names[:8])) + (", ..." if len(names) > 8 else "")
