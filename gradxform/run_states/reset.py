"""Beginning the slots of some parameters, or of some of their entries, anew in a run."""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gradxform.base import GradientTransformation, check_transform, unwrapped
from gradxform.errors import did_you_mean, must_be, shown
from gradxform.leaves import Path, flatten_with_names, is_hole, path_str, shape_of, with_paths
from gradxform.leaves.masks import Mask, path_matches, resolve
from gradxform.leaves.states import node_at
from gradxform.leaves.storage import as_kept, as_seen, begun_anew, is_stored, placed_like
from gradxform.run_states.migration.layout import StateLayout, dotted_path, layout_of
from gradxform.run_states.optax import fitted_state
from gradxform.run_states.slot_axes import Cut, SlotAxes, slot_axes
from gradxform.schedules.numbers_of_now import of_this_moment
from gradxform.types import Array, OptState, Params, SupportsTransform
from gradxform.values import is_function
from gradxform.wrappers.parts import all_parts

__all__ = ["reset_slots"]


def reset_slots(state: OptState, tx: SupportsTransform, params: Params, where: Any) -> OptState:
    """Return a state in which the slots of what is chosen begin anew, as `tx.init(params)` does.

        state = reset_slots(state, tx, params, "head")                # a label, or a pattern
        state = reset_slots(state, tx, params, path_matches("bias$"))
        state = reset_slots(state, tx, params, {"emb": is_new, "dense": False})  # rows, (n,)
        state = reset_slots(state, tx, params, {"w": is_dead[None, :]})          # columns, (1, n)

    Counts, keys, hyperparameters and all that belongs to several parameters stay. So copies and
    averages of the parameters begin at `params`. Where the count of Adam goes on, its averages
    begin at 0 without a correction for that: after n steps of one gradient, with the defaults, a
    step is (1 - 0.9^n) / sqrt(1 - 0.999^n) times as long as it should be, 3.2 at first and at most
    6.6. `reset_state` with counts begins a whole state anew.

    With a mask of entries, along each dimension in which the mask says something:

    - a slot that has all of these dimensions begins anew where the mask is True, such as the
      averages of Adam, or the row means of Adafactor for a mask of rows;
    - a slot that has none of them stays, such as Adafactor's column means, which the chosen rows
      share with the others, or a number for each parameter;
    - anything else is refused: matrices between entries, as in Shampoo and SOAP, and means for a
      mask that chooses single entries.

    In a slot of 8 or of 4 bits, other entries of a block in which entries are chosen are rounded
    again. Arrays keep their form, dtype, memory and sharding. It runs under `jax.jit`, and inside
    a `jax.shard_map` on the pieces of `zero1`; there, masks and parameters are whole.

    Args:
      state: the state of `tx`: as it is, from a checkpoint, or of Optax for the same call.
      tx: the transform of the state.
      params: the parameters.
      where: what begins anew: the label of a group of a `partition` or `param_groups`, or else a
        pattern as in `path_matches`, or a list of both; a mask such as `ndim_at_least(2)`; True for
        all; a tree of booleans that may be a prefix of the parameters, in which arrays of booleans
        choose entries; or a function of the parameters that returns one. Such an array has the
        first dimensions of its parameter, each with its length or with length 1. What it chooses
        may be nothing.

    Returns:
      The new state.

    Raises:
      TypeError: if `where` is of another kind, or the state is not that of `tx`.
      ValueError: if a label, a pattern or an entry matches nothing, nothing can be chosen, an array
        has a shape that does not fit, a slot cannot begin anew for some entries or parameters only,
        or the state is not that of `tx` for these parameters.

    Reference: Sokar et al., The Dormant Neuron Phenomenon in Deep Reinforcement Learning, 2023, for
    the moments of units that begin anew.
    """
    check_transform("reset_slots", tx, "tx")
    tx = of_this_moment(tx)
    fitted = fitted_state("reset_slots", tx, state, params, _OF_REPLICAS)
    old, treedef = jax.tree.flatten(_in_own_classes(state, fitted), is_leaf=is_stored)
    named = flatten_with_names(params)[0]
    chosen = _choices(tx, fitted, params, named, where)
    layout = layout_of(tx, params)
    axes = slot_axes(tx, params, layout, list(_cuts(tx)))
    fresh = jax.tree.leaves(tx.init(params), is_leaf=is_stored)
    reset = _FreshArrays(layout, named, chosen)
    new = [reset.of_array(i, axes[i], fresh[i], x) for i, x in enumerate(old)]
    return jax.tree.unflatten(treedef, new)


_OF_REPLICAS = "A state with an axis of replicas is reset for each of them, in Replicas.wrap."


def _in_own_classes(state: Any, fitted: OptState) -> OptState:
    """Return a state as it is if it has the arrays of the fitted one, so that a loop carries it."""
    own, others = (jax.tree.leaves(x, is_leaf=is_stored) for x in (state, fitted))
    same = len(own) == len(others) and all(
        x is y or (is_stored(x) and is_stored(y)) for x, y in zip(own, others, strict=True)
    )
    return state if same else fitted


def _cuts(tx: Any) -> Iterator[Cut]:
    """Yield how the parts of a transform cut parameters into pieces for devices."""
    for part in all_parts(tx):
        if hasattr(part, "piece_of"):
            with contextlib.suppress(NameError):  # a wrapper around it binds its axes
                yield Cut(part.pieces(), part.piece_of)


# ------------------------------------------------------------------------------- what is chosen


def _choices(
    tx: Any, state: OptState, params: Params, named: Sequence[tuple[Path, Any]], where: Any
) -> list[bool | Array]:
    """Return for every parameter whether it is chosen, or which of its entries, by dimension."""
    names = [where] if isinstance(where, str) else where
    if isinstance(names, list | tuple | set) and names and all(isinstance(x, str) for x in names):
        groups = dict(_groups(tx, state, params))
        paths = {path for name in names for path in _named(name, groups, [p for p, _ in named])}
        return [path in paths for path, _ in named]
    if isinstance(where, Mask):
        entries: list[Any] = jax.tree.leaves(resolve("reset_slots", where, params))
    else:
        entries = _entries(where, params)
    chosen = [_as_choice(path, p, x) for (path, p), x in zip(named, entries, strict=True)]
    if all(x is False for x in chosen):
        raise ValueError(
            f"reset_slots: where={shown(where)} chooses nothing: it is False for every parameter."
        )
    return chosen


def _entries(where: Any, params: Params) -> list[Any]:
    """Return the entry of a tree of booleans and arrays for every parameter."""
    if callable(where) and is_function(where):
        where = where(params)
    leaves, treedef = jax.tree.flatten(where, is_leaf=lambda x: x is None)
    # Masks are remembered by value, and traced arrays must not be.
    words = [x if isinstance(x, bool) else f"{i}: {shown(x)}" for i, x in enumerate(leaves)]
    of_word = dict(zip(words, leaves, strict=True))
    entries = resolve("reset_slots", treedef.unflatten(words), params, kind=object)
    return [of_word[word] for word in jax.tree.leaves(entries)]


def _as_choice(path: Path, p: Any, x: Any) -> bool | Array:
    """Return an entry as a boolean, or as an array with a dimension for each of the parameter."""
    if isinstance(x, bool | np.bool_):
        return bool(x)
    if not isinstance(x, jax.Array | np.ndarray) or x.dtype != jnp.bool_:
        raise TypeError(
            must_be("reset_slots", f"where at {path_str(path)}", "a boolean or an array of them", x)
        )
    shape = tuple(shape_of(p))
    fits = x.ndim <= len(shape) and all(n in (1, m) for n, m in zip(x.shape, shape, strict=False))
    if not fits:
        raise ValueError(
            f"reset_slots: where at {path_str(path)} has shape {x.shape}, but the parameter has "
            f"{shape}. A mask of entries has the first dimensions of its parameter, each with its "
            "length or with length 1: (n,) chooses rows, (1, n) chooses columns."
        )
    return jnp.reshape(jnp.asarray(x), (*x.shape, *[1] * (len(shape) - x.ndim)))


def _groups(tx: Any, state: OptState, params: Params) -> Iterator[tuple[str, set[Path]]]:
    """Yield the labels of the groups in a transform, each with the paths of its parameters."""
    tx = unwrapped(tx)
    if not isinstance(tx, GradientTransformation):
        return
    for place, inner in tx.inner_states(state):
        inside = tx.params_inside(place, params)
        if place and place[0] in _OF_GROUPS:
            yield place[1], {path for path, x in with_paths(inside) if not is_hole(x)}
        yield from _groups(inner, node_at(state, place), inside)


# The fields of states that hold those of groups, by label.
_OF_GROUPS = ("inner_states", "group_states")


def _named(name: str, groups: dict[str, set[Path]], paths: Sequence[Path]) -> set[Path]:
    """Return the paths of the parameters with a label, or that a pattern matches."""
    if name in groups:
        return groups[name]
    mask = path_matches(name)
    found = {path for path in paths if mask.test(path, None)}
    if not found:
        joined = ["/".join(path) for path in paths]
        labels = f"is not a label ({', '.join(map(repr, groups))}), and " if groups else ""
        raise ValueError(
            f"reset_slots: {name!r} {labels}matches none of the parameters "
            f"{', '.join(map(repr, joined[:8]))}{', ...' * (len(joined) > 8)}."
            f"{did_you_mean(name, [*groups, *joined])}"
        )
    return found


# ------------------------------------------------------------------------------- what begins anew


class _FreshArrays:
    """Begins arrays of a state anew."""

    def __init__(
        self,
        layout: StateLayout,
        named: Sequence[tuple[Path, Any]],
        chosen: Sequence[bool | Array],
    ) -> None:
        self.layout, self.named, self.chosen = layout, named, chosen

    def of_array(self, i: int, axes: SlotAxes, fresh: Any, old: Any) -> Any:
        """Return an array of the state, of which what is chosen is that of a fresh state."""
        choice: Any = False if axes.owner is None else self.chosen[axes.owner]
        if axes.is_joint and any(x is not False for x in self.chosen):
            if not all(x is True for x in self.chosen):
                self._refuse(i, "it holds all parameters in one array", "where=True")
            choice = True
        if choice is False:
            return old
        if choice is True or choice.size == 1:
            is_due = jnp.reshape(jnp.asarray(choice), ())
            return placed_like(begun_anew(is_due, fresh, old), old)
        mask = self._mask(i, axes, choice)
        if mask is None:
            return old
        new = jnp.where(mask, as_seen(fresh), as_seen(old))
        return placed_like(as_kept(new, old), old)

    def _mask(self, i: int, axes: SlotAxes, choice: Array) -> Array | None:
        """Return the mask of an array's entries; None if it does not have any of those chosen."""
        like = self.layout.arrays[i]
        assert axes.owner is not None
        shape = tuple(shape_of(self.named[axes.owner][1]))
        said = {d for d, n in enumerate(choice.shape) if n != 1}
        mixture = axes.mixture(like.shape, len(shape))
        if not mixture and is_stored(like) and like.needs_means:
            mixture = f"it is kept as {like.kept_as}"
        dims = axes.dims or ()
        if not mixture and said <= set(dims):
            own = [d for d in dims if d is not None]
            piece = shape if axes.cut is None else axes.cut.shape_of_piece(shape)
            if axes.cut is not None and any(piece[d] != shape[d] for d in own):
                choice = axes.cut.of(jnp.broadcast_to(choice, shape))
            return _along(dims, choice)
        if not mixture and not said & set(dims):
            return None
        self._refuse(
            i,
            mixture or "it has some of the dimensions along which the mask chooses, and not others",
            f"the whole parameter, as where={{..., {'.'.join(self.named[axes.owner][0])!r}: True}}",
        )

    def _refuse(self, i: int, why: str, remedy: str) -> Any:
        raise ValueError(
            f"reset_slots: {dotted_path(self.layout.paths[i])} has shape "
            f"{self.layout.arrays[i].shape} and cannot begin anew in part: {why}. Choose {remedy}."
        )


def _along(dims: Sequence[int | None], mask: Array) -> Array:
    """Return a mask along those dimensions that the axes of an array are; it says all in them."""
    own = [d for d in dims if d is not None]
    others = [d for d in range(mask.ndim) if d not in own]
    mask = jnp.transpose(mask, (*own, *others))[(..., *[0] * len(others))]
    lengths = iter(mask.shape)
    return jnp.reshape(mask, [1 if d is None else next(lengths) for d in dims])
