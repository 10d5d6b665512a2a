"""Which array of the old state each array of the new one goes on from."""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gradxform._jax.versions import is_tracer
from gradxform.errors import shown
from gradxform.leaves import Path
from gradxform.run_states.migration.layout import StateLayout, StatePart, dotted_path
from gradxform.run_states.migration.match import AtStep, Begun, Source, Taken, dotted_paths, said_by
from gradxform.run_states.migration.pairs import Pairing, pair_alike, pair_kin


def find_sources(
    olds: StateLayout,
    news: StateLayout,
    values: Sequence[Any],
    match: Mapping[str, str | None] | None,
) -> list[Source]:
    """Return for every array of the new state where it comes from.

    Args:
      olds: the layout of the old state.
      news: the layout of the new state.
      values: the arrays of the old state.
      match: what the user said.
    """
    said, settled, used = said_by(olds, news, match)
    new_parts = [part for part in news.parts if part not in settled]
    old_parts = [part for part in olds.parts if part not in used]
    pairings = pair_alike(new_parts, old_parts)
    partners = {old for pairing in pairings.values() for old in pairing.values()}
    rest = [part for part in new_parts if not pairings.get(part)]
    kin = pair_kin(rest, [part for part in old_parts if part not in partners])
    sources: list[Source] = [Begun()] * len(news.arrays)
    for part in news.parts:
        pairing = pairings.get(part) or {}
        for path, index in part.leaves.items():
            if index in said:
                sources[index] = said[index]
            elif part in kin:
                sources[index] = _kin(part, kin[part], path, values)
            elif part not in settled:
                sources[index] = _alike(part, pairing, path, values)
            if isinstance(sources[index], AtStep):
                sources[index] = AtStep(_scope(part, news, pairings))
        if part not in settled:
            _check_ages(part, sources, said)
    return sources


def _check_ages(part: StatePart, sources: Sequence[Source], said: Mapping[int, Source]) -> None:
    """Require that no slots begin in a part whose count goes on."""
    counts = [part.leaves[(k,)] for k in part.step_fields if (k,) in part.leaves]
    begun = [
        path
        for path, i in part.leaves.items()
        if path[1:] in part.places and path[0] not in part.step_fields
        if isinstance(sources[i], Begun) and i not in said
    ]
    places = dict.fromkeys(path[1:] for path in begun)
    young = [place for place in places if not _goes_on(part, place, sources, said)]
    if young and any(isinstance(sources[i], Taken) for i in counts):
        anew = {dotted_path((*part.path, *path)): None for path in begun if path[1:] == young[0]}
        raise ValueError(
            f"migrate_state: {part} goes on from the old state, which has nothing there for "
            f"{dotted_paths(young)}: what begins at 0 would be taken to be as old as the count "
            "says. Give these parameters a transform of their own, with partition(...); or begin "
            f"them here all the same, as match={anew}."
        )


def _goes_on(
    part: StatePart, place: Path, sources: Sequence[Source], said: Mapping[int, Source]
) -> bool:
    """Whether anything in the slots of a parameter comes from the old state, or is as said."""
    indices = [i for path, i in part.leaves.items() if path[1:] == place and path[0:1] != ()]
    return any(isinstance(sources[i], Taken) or i in said for i in indices)


def _alike(part: StatePart, pairing: Pairing, path: Path, values: Sequence[Any]) -> Source:
    """Return the source of an array of a part that goes on from parts of the same rule."""
    old = pairing.get(path[1:]) if path[1:] in part.places else None
    if old is not None and path in old.leaves:
        return _unless_set_anew(part, old, path, Taken(old.leaves[path]))
    if path[1:] in part.places and path[0] not in part.step_fields:
        return Begun()
    origins = [old for old in dict.fromkeys(pairing.values()) if path in old.leaves]
    if not origins:
        return _without_old_part(part, bool(pairing), path)
    _check_equal_sources(part, origins, path, values)
    return _unless_set_anew(part, origins[0], path, Taken(origins[0].leaves[path]))


def _check_equal_sources(
    part: StatePart, origins: Sequence[StatePart], path: Path, values: Sequence[Any]
) -> None:
    """Require the arrays of several parts that become one to be equal, if they are known."""
    arrays = [values[old.leaves[path]] for old in origins]
    if len(arrays) == 1 or any(is_tracer(x) for x in arrays):
        return
    numbers = [np.asarray(jax.random.key_data(x) if _is_prng_key_source(x) else x) for x in arrays]
    if any(not np.array_equal(x, numbers[0]) for x in numbers[1:]):
        at = dotted_path((*part.path, *path))
        listed = ", ".join(
            f"{dotted_path((*old.path, *path))} is {shown(x.tolist())}"
            for old, x in zip(origins, numbers, strict=True)
        )
        raise ValueError(
            f"migrate_state: {part} goes on from several states, which differ: {listed}. Say which "
            f"one to take, as match={{{at!r}: {dotted_path((*origins[0].path, *path))!r}}}."
        )


def _is_prng_key_source(x: Any) -> bool:
    return jnp.issubdtype(x.dtype, jax.dtypes.prng_key)


def _unless_set_anew(new: StatePart, old: StatePart, path: Path, source: Source) -> Source:
    """Return the source, unless the new transform says itself what the array begins as."""
    field = path[0] if path else ""
    attribute = dict(getattr(new.owner, "set_by", ())).get(field)
    if attribute is None:
        return source
    if old.owner is None or dict(getattr(old.owner, "set_by", ())).get(field) != attribute:
        return Begun()  # the old one may have changed it
    settings = [getattr(part.owner, attribute) for part in (new, old)]
    if all(isinstance(x, dict) for x in settings):
        settings = [x.get(path[1]) for x in settings]
    return source if _same_setting(*settings) else Begun()


def _same_setting(a: Any, b: Any) -> bool:
    if a is b:
        return True
    if is_tracer(a) or is_tracer(b):
        return False
    return type(a) is type(b) and bool(np.all(a == b))


def _kin(part: StatePart, pairing: Pairing, path: Path, values: Sequence[Any]) -> Source:
    """Return the source of an array of a part that goes on from parts of another rule."""
    field, *rest = path
    meaning = part.averages.get(field)
    if meaning is not None:
        old = pairing.get(tuple(rest))
        if old is None:
            return Begun()
        theirs = next(k for k, of in old.averages.items() if of == meaning)
        index = old.leaves.get((theirs, *rest))
        return Begun() if index is None else Taken(index)
    if path in [(k,) for k in part.step_fields]:
        for old in dict.fromkeys(pairing.values()):
            for k in old.step_fields:
                if (k,) in old.leaves:
                    same = [p for p in dict.fromkeys(pairing.values()) if (k,) in p.leaves]
                    _check_equal_sources(part, same, (k,), values)
                    return Taken(old.leaves[(k,)])
    return _without_old_part(part, True, path)


# -------------------------------------------------------------------------------- the run's step


def _without_old_part(part: StatePart, goes_on: bool, path: Path) -> Source:
    """Return the source of an array that no part of the old state has.

    A count begins at the step of the run where a schedule reads it, or averages are as old as the
    run. Where averages begin with it, so does the count: they are corrected by it.
    """
    is_count = path in [(k,) for k in part.step_fields]
    slots_begin = (part.has_slots or part.places) and not goes_on
    if is_count and (part.counts_inner_steps or not slots_begin):
        return AtStep()
    return Begun()


def _scope(
    part: StatePart, news: StateLayout, pairings: Mapping[StatePart, Pairing]
) -> StatePart | None:
    """Return the old state of the wrapper that decides when the part takes a step, if any."""
    around = [p for p in news.parts if p is not part and p.path == part.path[: len(p.path)]]
    scopes = [p for p in around if p.counts_inner_steps and pairings.get(p)]
    return next(iter(pairings[scopes[-1]].values())) if scopes else None


def run_step(olds: StateLayout, values: Sequence[Any], scope: StatePart | None, asking: str) -> int:
    """Return the index of the count of the run's steps: the outermost of the old state.

    Args:
      olds: the layout of the old state.
      values: its arrays.
      scope: the wrapper of the old state whose steps are asked for; None for those of the run.
      asking: the path of the count that needs it.

    Raises:
      ValueError: if there is none, or several that differ.
    """
    counts = [
        # What a wrapper counts are the steps of what is inside.
        (part.depth + part.counts_inner_steps, part.leaves[(field,)])
        for part in (olds.parts if scope is None else [scope])
        for field in part.step_fields
        if (field,) in part.leaves and _is_count_source(olds.arrays[part.leaves[(field,)]])
    ]
    remedy = "pass step=, the number of steps that the run has taken (0 begins the schedule now)."
    if not counts:
        raise ValueError(
            f"migrate_state: the new state has a count at {asking}, and the old state does not "
            f"count its steps; {remedy}"
        )
    least = min(depth for depth, _ in counts)
    outermost = [index for depth, index in counts if depth == least]
    numbers = {int(values[i]) for i in outermost if not is_tracer(values[i])}
    if len(numbers) > 1:
        at = ", ".join(f"{dotted_path(olds.paths[i])} is {int(values[i])}" for i in outermost)
        raise ValueError(
            f"migrate_state: the new state has a count at {asking}, and the old state has counts "
            f"that differ: {at}; {remedy}"
        )
    return outermost[0]


def _is_count_source(array: Any) -> bool:
    return array.shape == () and jnp.issubdtype(array.dtype, jnp.integer)
