"""Sums over a tree that is divided over devices.

A rule that needs the norm of the whole tree calls `engine.sum_of_squares`. A wrapper that divides
the tree over devices enters `as_shards` first; the sum then covers all devices, and a leaf that
several of them hold alike is counted once. A step that sees the tree part by part enters it, too.
"""

import contextlib
import contextvars
import functools
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
from jax import lax

from gradxform.errors import did_you_mean, name_of
from gradxform.leaves import Path, flatten_updates, is_hole, path_str, with_paths
from gradxform.types import Array, PyTree


class _Held(NamedTuple):
    """How the leaves of the current tree are divided."""

    axes: Mapping[Path, tuple[str, ...]]  # of each leaf: the mesh axes that divide it
    every: tuple[str, ...]
    psum: Callable[[Array, tuple[str, ...]], Array]
    parts: "Parts | None" = None
    layers: tuple[str, ...] = ()  # the axes of layers that are leaves of their own


class Parts(Protocol):
    """A tree that is seen part by part, one after the other; each asks for the same totals."""

    here: frozenset[Path]  # the leaves that this part counts
    only_adds_up: bool  # whether totals are still unknown, so that nothing else counts

    def of_leaves(self, x: Array) -> Array:
        """Return sums over leaves of this part, where more of each leaf comes in other turns."""
        ...

    def largest(self, x: Array) -> Array:
        """Return the largest over all parts of the tree."""
        ...


_HELD: contextvars.ContextVar[_Held | None] = contextvars.ContextVar("held", default=None)


@contextlib.contextmanager
def as_shards(
    axes: Mapping[Path, tuple[str, ...]],
    every: tuple[str, ...],
    psum: Callable[[Array, tuple[str, ...]], Array],
    parts: Parts | None = None,
) -> Iterator[None]:
    """Treat leaves as shards: whole-tree sums inside this context cover all devices.

    Args:
      axes: for each leaf, by its path, the mesh axes that divide it.
      every: all axes along which some leaf is divided.
      psum: the sum of a scalar over mesh axes.
      parts: the other totals, where `every` names the parts of a tree and not a mesh axis.
    """
    token = _HELD.set(_Held(axes, every, psum, parts))
    try:
        yield
    finally:
        _HELD.reset(token)


@contextlib.contextmanager
def held_anew(axes: Mapping[Path, tuple[str, ...]]) -> Iterator[None]:
    """Within `as_shards`, treat leaves as shards of other arrays, on the same devices."""
    now = _HELD.get()
    if now is None:
        yield
        return
    with as_shards(axes, now.every, now.psum, now.parts):
        yield


@contextlib.contextmanager
def as_layers(are_layers: Mapping[Path, bool]) -> Iterator[str]:
    """Treat leaves as layers of stacks that are computed together: sums of the tree cover all.

    Yields the name of the axis, for the `jax.vmap` over layers.

    Args:
      are_layers: for each leaf, by its path, whether it is a layer.
    """
    now = _HELD.get() or _Held(dict.fromkeys(are_layers, ()), (), lambda x, axes: x)
    axis = f"layers of a stack, {len(now.layers)}"

    def psum(x: Array, axes: tuple[str, ...]) -> Array:
        if axis in axes:
            x = _sum_over_layers(x + lax.axis_index(axis).astype(x.dtype) * 0)  # of each layer
        others = tuple(name for name in axes if name != axis)
        return now.psum(x, others) if others else x

    axes = {
        path: (*_axes(path, now), *([axis] * is_layer)) for path, is_layer in are_layers.items()
    }
    layers = (*now.layers, axis)
    token = _HELD.set(_Held(axes, (*now.every, axis), psum, None, layers))
    try:
        yield axis
    finally:
        _HELD.reset(token)


def layer_axes(tree: PyTree) -> list[tuple[str, ...]]:
    """Return for each leaf the axes of the stacks of which it is a layer; [] without stacks."""
    now = _HELD.get()
    if now is None or not now.layers:
        return []
    paths = [path for path, leaf in with_paths(tree) if not is_hole(leaf)]
    return [tuple(name for name in _axes(path, now) if name in now.layers) for path in paths]


def seen_here(by_path: Mapping[Path, Any]) -> dict[Path, Any]:
    """Return the leaves that this part counts, where a tree is seen part by part."""
    return {path: x for path, x in by_path.items() if _is_here(path)}


def _is_here(path: Path) -> bool:
    now = _HELD.get()
    return now is None or now.parts is None or path in now.parts.here


def number_of_layers(path: Path) -> int:
    """Return for how many arrays a leaf stands: the layers of its stacks, or 1."""
    now = _HELD.get()
    if now is None:
        return 1
    return math.prod(lax.axis_size(name) for name in _axes(path, now) if name in now.layers)


@jax.custom_batching.custom_vmap
def _sum_over_layers(x: Array) -> Array:
    """Return the sum over the layers of the `jax.vmap` outside.

    Inside `jax.shard_map`, `lax.psum` takes only the axes of a mesh.
    """
    return x


@_sum_over_layers.def_vmap
def _sum_of_batch(size: int, batched: list[bool], x: Array) -> tuple[Array, bool]:
    return jnp.sum(x, axis=0, dtype=x.dtype), False


def groups(tree: PyTree) -> list[tuple[tuple[str, ...], list[Any]]]:
    """Group the leaves of a tree by the axes that divide them; outside `as_shards`, in one group.

    Raises:
      ValueError: if `as_shards` was not told about a leaf.
    """
    now = _HELD.get()
    if now is None:
        return [((), flatten_updates(tree)[0])]
    # A part without a leaf asks for the total, too.
    by_axes: dict[tuple[str, ...], list[Any]] = {} if now.parts is None else {now.every: []}
    for path, leaf in with_paths(tree):
        if is_hole(leaf) or not _is_here(path):
            continue
        by_axes.setdefault(_axes(path, now), []).append(leaf)
    return list(by_axes.items())


def _axes(path: Path, now: _Held) -> tuple[str, ...]:
    if path not in now.axes:
        raise ValueError(
            f"a sum over shards: leaf {path_str(path)} is not one of the "
            f"parameters.{did_you_mean(path_str(path), map(path_str, now.axes))}"
        )
    return now.axes[path]


def summed(x: Array, axes: tuple[str, ...]) -> Array:
    """Return the sum of a scalar over the devices along the axes of a group."""
    now = _HELD.get()
    return x if now is None or not axes else now.psum(x, axes)


def over_all_shards(sums: Mapping[Path, Array], of_parts: bool = False) -> dict[Path, Array]:
    """Return sums over single leaves, by path, each over the devices that divide its leaf.

    Args:
      sums: the sums.
      of_parts: whether, where a tree is seen part by part, they are those of this part, for
        `totals_over_parts`.
    """
    now = _HELD.get()
    if now is None or (of_parts and now.parts is not None):
        return dict(sums)
    together: dict[tuple[str, ...], list[Path]] = {}
    for path in sums:
        axes = tuple(name for name in _axes(path, now) if name not in now.layers)
        together.setdefault(axes, []).append(path)
    totals = dict(sums)
    for axes, paths in together.items():
        if axes:  # one collective for all leaves that are divided alike
            each = jnp.stack([sums[path] for path in paths])
            total = now.psum(each, axes) if now.parts is None else now.parts.of_leaves(each)
            totals |= {path: total[i] for i, path in enumerate(paths)}
    return totals


def total_over_shards(tree: PyTree, sums: Sequence[Sequence[Array]]) -> list[Array]:
    """Return the totals, over all leaves and all devices, of some sums of each leaf.

    Args:
      tree: the tree, whose leaves may be shards.
      sums: for each leaf as many scalars.
    """
    now = _HELD.get()
    paths = [path for path, leaf in with_paths(tree) if not is_hole(leaf)]
    together: dict[tuple[str, ...], list[Sequence[Array]]] = {}
    for path, leaf_sums in zip(paths, sums, strict=True):
        if not _is_here(path):
            leaf_sums = [jnp.zeros_like(x) for x in leaf_sums]
        together.setdefault(() if now is None else _axes(path, now), []).append(leaf_sums)
    totals = []
    for axes, group in together.items():
        subtotals = [functools.reduce(lax.add, each) for each in zip(*group, strict=True)]
        if axes and now is not None:  # one collective for all leaves that are divided alike
            subtotals = list(now.psum(jnp.stack(subtotals), axes))
        totals.append(subtotals)
    return [functools.reduce(lax.add, each) for each in zip(*totals, strict=True)]


def totals_over_parts(sums: Sequence[Array]) -> list[Array]:
    """Return the totals of sums over leaves, where a tree is seen part by part."""
    now = _HELD.get()
    if now is None or now.parts is None or not sums:
        return [*sums]
    return [*now.psum(jnp.stack(sums), now.every)]


def totals_of_nothing(sums: tuple[Array, ...]) -> tuple[Array, ...]:
    """Return the totals of sums over no leaves, where other parts of the tree have some."""
    now = _HELD.get()
    if now is None or now.parts is None:
        return sums
    return tuple(now.psum(jnp.stack(sums), now.every))


def true_on_all_shards(flag: Array) -> Array:
    """Return whether a boolean scalar is true on all devices that hold shards."""
    now = _HELD.get()
    if now is None:
        return flag
    return now.psum(jnp.where(flag, 0, 1).astype(jnp.int32), now.every) == 0


def largest_of_parts(x: Array, axes: Collection[str]) -> tuple[Array, frozenset[str]]:
    """Return the largest of `x` over the parts of a tree, and the axes that are of a mesh."""
    now = _HELD.get()
    if now is None or now.parts is None or not set(now.every) & set(axes):
        return x, frozenset(axes)
    return now.parts.largest(x), frozenset(axes) - set(now.every)


_LATER: contextvars.ContextVar[bool] = contextvars.ContextVar("later", default=False)


@contextlib.contextmanager
def for_the_next_step() -> Iterator[None]:
    """Ask for totals that only the state remembers: this step may take place before them."""
    token = _LATER.set(True)
    try:
        yield
    finally:
        _LATER.reset(token)


def is_for_the_next_step() -> bool:
    """Whether a total is asked for that only the state remembers."""
    return _LATER.get()


def is_seen_in_parts() -> bool:
    """Whether a tree is seen part by part, whose totals cover the others."""
    now = _HELD.get()
    return now is not None and now.parts is not None


def only_adds_up() -> bool:
    """Whether what is computed counts for nothing but what it adds to totals."""
    now = _HELD.get()
    return now is not None and now.parts is not None and now.parts.only_adds_up


def shard_axes() -> tuple[str, ...]:
    """Return the mesh axes along which devices hold different shards; none outside `as_shards`."""
    now = _HELD.get()
    return () if now is None else now.every


def check_bound(part: Any, axes: tuple[str, ...]) -> None:
    """Require the axes to exist where this is traced."""
    for name in axes:
        try:
            lax.axis_index(name)
        except NameError:
            raise NameError(
                f"{name_of(part)}: the axis {name!r} is not bound here. Call it inside shard_map, "
                f"pmap or vmap with that axis name, or wrap the step with "
                f"gradxform.distributed.Replicas({name!r}).wrap(step)."
            ) from None
