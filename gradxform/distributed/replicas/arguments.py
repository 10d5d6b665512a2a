"""The roles of the arguments and results of one replica's step in the step of all replicas."""

import inspect
from collections.abc import Callable, Iterable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from gradxform._names.deferred import signature_of
from gradxform.errors import did_you_mean, leaf_path, shown
from gradxform.leaves import dtype_of
from gradxform.numerics import at_least_float32, cast
from gradxform.types import PyTree
from gradxform.values.content import is_hashable

# How an argument is given: with an axis of replicas, or in one of these ways.
EACH, STATIC, SHARED, KEY = "each", "static", "shared", "keys"

# A position or a name of an argument, or several.
Which = int | str | Iterable[int | str]


class Roles:
    """Which arguments of a function are static, shared, or keys to be folded."""

    def __init__(self, function: Callable[..., Any], **given: Which) -> None:
        """Read what the caller gives.

        Args:
          function: the function of one replica.
          **given: positions and names of arguments, for the roles `static`, `shared` and `keys`.
        """
        self.by_entry: dict[int | str, str] = {}
        positions, names, takes_any_position, takes_any_name = _arguments_of_replica_step(function)
        for role, which in given.items():
            entries = which if isinstance(which, Iterable) else [which]
            for entry in [which] if isinstance(which, str) else entries:
                if isinstance(entry, bool) or not isinstance(entry, int | str):
                    raise TypeError(
                        f"Replicas: {role} must hold positions or names of arguments, got "
                        f"{shown(entry)}."
                    )
                is_known = (
                    takes_any_name or entry in names
                    if isinstance(entry, str)
                    else entry >= 0 and (takes_any_position or entry < len(positions))
                )
                if not is_known:
                    raise ValueError(
                        f"Replicas: {role} names the argument {entry!r}, which the step does not "
                        f"have; it has {', '.join(map(repr, names)) or 'none'}."
                        f"{did_you_mean(entry, names)}"
                    )
                for alias in _aliases(entry, positions):
                    other = self.by_entry.setdefault(alias, role)
                    if other != role:
                        raise ValueError(
                            f"Replicas: the argument {entry!r} is both in {other} and in {role}; "
                            "leave it out of one."
                        )

    def of(self, entry: int | str) -> str:
        """Return the role of the argument at a position, or with a name."""
        return self.by_entry.get(entry, EACH)


def _arguments_of_replica_step(
    function: Callable[..., Any],
) -> tuple[list[str], list[str], bool, bool]:
    """Return the names by position, all names, and whether it takes any position and any name."""
    try:
        parameters = signature_of(function).parameters.values()
    except (TypeError, ValueError):  # of a function in another language
        return [], [], True, True
    kinds = {p.kind for p in parameters}
    by_position = [
        p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
    ]
    names = by_position + [p.name for p in parameters if p.kind == p.KEYWORD_ONLY]
    any_position = inspect.Parameter.VAR_POSITIONAL in kinds
    return by_position, names, any_position, inspect.Parameter.VAR_KEYWORD in kinds


def _aliases(entry: int | str, positions: list[str]) -> list[int | str]:
    """Return the position and the name of an argument, as far as it has both."""
    if isinstance(entry, int):
        return [entry, positions[entry]] if entry < len(positions) else [entry]
    return [entry, positions.index(entry)] if entry in positions else [entry]


class Call:
    """The arguments of one call: those of the compiled program, and those it is made for."""

    def __init__(self, roles: Roles, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        entries = [*enumerate(args), *sorted(kwargs.items())]
        self.entries = [(entry, roles.of(entry)) for entry, _ in entries]
        self.static = {e: x for e, x in entries if roles.of(e) == STATIC}
        self.dynamic = {e: x for e, x in entries if roles.of(e) != STATIC}
        for entry, x in self.static.items():
            if not is_hashable(x):
                raise TypeError(
                    f"Replicas: the static argument {entry!r} must be hashable, got {shown(x)}; "
                    "give arrays as shared=... instead."
                )
        for entry, x in self.dynamic.items():
            if roles.of(entry) == KEY:
                _check_replica_key_arguments(entry, x)

    @property
    def values(self) -> tuple[Any, ...]:
        """The arguments of the compiled program, by position."""
        return tuple(self.dynamic.values())

    @property
    def roles(self) -> list[str]:
        """The roles of these."""
        return [role for _, role in self.entries if role != STATIC]

    @property
    def key(self) -> Any:
        """The key that is equal for two calls if they can share a compiled program."""
        # 1, 1.0 and True are equal, and are not the same to a program.
        static = tuple((e, type(x), x) for e, x in self.static.items())
        return tuple(self.entries), static

    def path_at(self, index: int) -> str:
        """Return the argument and path of a leaf of the values, for messages."""
        path, _ = jax.tree_util.tree_flatten_with_path(self.values)[0][index]
        entry = list(self.dynamic)[path[0].idx]
        where = f"argument {entry}" if isinstance(entry, int) else entry
        return f"{where}{leaf_path(path[1:])}" if path[1:] else where

    def donated(self, donate_argnums: Any) -> tuple[int, ...]:
        """Return the positions in the program of the arguments whose buffers may be reused.

        Positions that the call does not have are left out.
        """
        given = [donate_argnums] if isinstance(donate_argnums, int) else list(donate_argnums)
        for entry in given:
            if isinstance(entry, bool) or not isinstance(entry, int) or entry < 0:
                raise ValueError(
                    "Replicas: donate_argnums must be positions of arguments, at least 0, got "
                    f"{shown(entry)}."
                )
            if entry in self.static:
                raise ValueError(
                    f"Replicas: the argument {entry!r} is static and does not have a buffer; leave "
                    "it out of donate_argnums."
                )
        places = {entry: i for i, entry in enumerate(self.dynamic)}
        return tuple(places[entry] for entry in given if entry in places)

    def program(self, function: Callable[..., Any], axes: tuple[str, ...]) -> Callable[..., Any]:
        """Return the function of the values alone, which folds keys along axes of replicas."""
        entries, static = list(self.entries), dict(self.static)

        def of_values(*values: Any) -> Any:
            rest = iter(values)
            args, kwargs = [], {}
            for entry, role in entries:
                x = static[entry] if role == STATIC else next(rest)
                x = folded_keys(x, axes) if role == KEY else x
                if isinstance(entry, int):
                    args.append(x)
                else:
                    kwargs[entry] = x
            return function(*args, **kwargs)

        return of_values


def _is_typed_key_argument(x: Any) -> bool:
    return jnp.issubdtype(dtype_of(x), jax.dtypes.prng_key)


def _check_replica_key_arguments(entry: int | str, tree: PyTree) -> None:
    for path, x in jax.tree_util.tree_flatten_with_path(tree)[0]:
        is_raw = dtype_of(x) == jnp.uint32 and jnp.ndim(x) == 1
        if not is_raw and not (_is_typed_key_argument(x) and jnp.ndim(x) == 0):
            raise TypeError(
                f"Replicas: the argument {entry!r} is in keys, so {leaf_path(path) or 'it'} must "
                f"be one key, as jax.random.key(0), got {shown(x)} of shape {jnp.shape(x)}."
            )


def folded_keys(tree: PyTree, axes: tuple[str, ...]) -> PyTree:
    """Return keys folded with the index of the replica, counted along all axes."""
    index = lax.axis_index(axes)
    return jax.tree.map(lambda key: jax.random.fold_in(key, index), tree)


# --------------------------------------------------------------------------------------- results


def shared_results(which: Any, results: PyTree) -> list[bool]:
    """Return for every leaf of the results whether `which` calls it the same on all replicas.

    Args:
      which: True for all; or positions in a tuple, or keys of a dict, one or several.
      results: the types of the results.
    """
    if isinstance(which, bool):
        return [which] * len(jax.tree.leaves(results))
    chosen = [which] if isinstance(which, int | str) else list(which)
    entries = entries_in(results)
    known = [entry for entry, _ in entries]
    for entry in chosen:
        if entry not in known:
            listed = ", ".join(map(repr, known)) or "a single one: give shared_outputs=True"
            raise ValueError(
                f"Replicas: shared_outputs names the result {entry!r}, and the step returns "
                f"{listed}.{did_you_mean(entry, [k for k in known if isinstance(k, str)])}"
            )
    return [entry in chosen for entry, x in entries for _ in jax.tree.leaves(x)] or (
        [False] * len(jax.tree.leaves(results))
    )


def entries_in(results: PyTree) -> list[tuple[Any, PyTree]]:
    """Return the entries of a tuple by position or of a dict by key, in the order of leaves."""
    if isinstance(results, dict):
        return [(key, results[key]) for key in sorted(results)]
    return list(enumerate(results)) if isinstance(results, tuple | list) else []


def averaged_aux(aux: PyTree, axes: tuple[str, ...], mark: Callable[[Any], Any]) -> PyTree:
    """Return auxiliary results averaged over axes.

    Raises:
      TypeError: for an array that is not floating.
    """

    def one(path: Any, x: Any) -> Any:
        if not jnp.issubdtype(dtype_of(x), jnp.inexact):
            raise TypeError(
                f"Replicas: has_aux averages what a step returns beside its result, and "
                f"{leaf_path(path) or 'it'} is {dtype_of(x)}; cast it to float32, or return it in "
                "the result."
            )
        x = jnp.asarray(x)
        return cast(lax.pmean(mark(cast(x, at_least_float32(x.dtype))), axes), x.dtype)

    return jax.tree_util.tree_map_with_path(one, aux)
