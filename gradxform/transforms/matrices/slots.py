"""The slots of matrices of a `MatrixRule`: their shapes, and how devices divide them."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from gradxform import engine
from gradxform.errors import name_of
from gradxform.leaves import Aligned, dtype_of, like_params, path_at, path_str
from gradxform.numerics import at_least_float32
from gradxform.transforms.matrices.leaf import MatrixLeaf, arrays_with_paths, leaves_of
from gradxform.types import Array, Params, PyTree, Updates

__all__ = []


def made_slots(rule: Any, params: Params, make: Callable[..., Array]) -> PyTree:
    """Return what `MatrixRule.matrix_slots` does."""
    for i, x in enumerate(jax.tree.leaves(params)):
        engine.check_gradient([rule], params, i, x, "parameter")
    made = []
    for (path, x), view in zip(arrays_with_paths(params), leaves_of(rule, params), strict=True):
        if len(view.parts) > 1:
            raise ValueError(
                f"{name_of(rule)}: parameter {path_str(path)} is split into parts of several "
                "sizes, and this rule remembers matrices of one size. Give it parts of equal "
                "sizes, or make them parameters of their own."
            )
        member = view.members[0]
        slot = make(*member.sides(), at_least_float32(dtype_of(x)))
        made.append(engine.slot_piece(slot, member.cut) if member.place == "cut" else slot)
    return jax.tree.unflatten(jax.tree.structure(params), made)


def with_slots(
    rule: Any,
    views: list[MatrixLeaf],
    updates: Updates,
    kept: dict[str, Aligned],
    params: Params | None,
) -> list[MatrixLeaf]:
    """Return views that know how their slots are divided, and the numbers of their matrices."""
    dims = _divisions_of_matrix_slots(rule, updates, kept)
    views = [v.with_slots(d) for v, d in zip(views, dims, strict=True)] if dims else views
    slots = list(kept.values())
    # At this step, some leaf of the state is without a gradient.
    return (
        _numbered_by_matrix_slots(rule, views, slots, params)
        if len(slots[0].own) > len(views)
        else views
    )


def _divisions_of_matrix_slots(rule: Any, updates: Updates, kept: dict[str, Aligned]) -> list[Any]:
    """Require the slots for matrices to have the shapes that `init` gives them.

    Returns:
      For each leaf and each slot, the axis along which it is divided over devices, or None.
    """
    shapes = tuple(
        (path, jnp.shape(g), tuple(jnp.shape(slot.leaves[i]) for slot in kept.values()))
        for i, (path, g) in enumerate(arrays_with_paths(updates))
    )
    # What fits once fits at every step; a trace of `init` takes longer than a step's.
    fitting = vars(rule).get("_fitting_slots")
    if fitting is None:
        fitting = {}
        object.__setattr__(rule, "_fitting_slots", fitting)
    key = shapes, tuple(engine.cuts_of(updates))
    if key in fitting:
        return fitting[key]
    wanted = _shapes_of_matrix_slots(rule, updates, kept)
    for (name, slot), leaves in zip(kept.items(), wanted, strict=True):
        for i, (had, needed) in enumerate(zip(map(jnp.shape, slot.leaves), leaves, strict=True)):
            if had != needed:
                needs = shapes[i][1]
                raise ValueError(
                    f"{name_of(rule)}: the state's {name} of {path_at(updates, i)} has shape "
                    f"{had}; a gradient of shape {needs} needs {needed}. Was this state "
                    "made for other parameters, or by another init?"
                )
    fitting[key] = []
    if engine.exchange_now() is not None:
        with engine.whole_slots():
            whole = _shapes_of_matrix_slots(rule, updates, kept)
        of_slots = [
            [_divided_axis_of_matrix_slot(*pair) for pair in zip(*both, strict=True)]
            for both in zip(wanted, whole, strict=True)
        ]
        fitting[key] = list(zip(*of_slots, strict=True))
    return fitting[key]


def _shapes_of_matrix_slots(rule: Any, updates: Updates, names: Any) -> list[list[tuple[int, ...]]]:
    """Return the shapes of the slots for matrices that `init` makes."""
    # A function of its own: JAX would answer from its cache, which contexts are not part of.
    state = jax.eval_shape(lambda params: rule.init(params), like_params(updates))
    return [[x.shape for x in jax.tree.leaves(getattr(state, name))] for name in names]


def _numbered_by_matrix_slots(
    rule: Any, views: list[MatrixLeaf], kept: Any, params: Params | None
) -> list[MatrixLeaf]:
    """Return views with the numbers of matrices among those of all leaves of the state.

    A leaf without a gradient at this step must not change the turns of the others. What counts
    together is what makes one batch where all leaves have a gradient.
    """
    whole = {}
    if params is not None:
        for (path, _), leaf in zip(arrays_with_paths(params), leaves_of(rule, params), strict=True):
            view = leaf.members[0]  # a rule with slots for matrices has parts of one size
            whole[path] = view.count(), view.sides()[1:]
    elif engine.exchange_now() is not None:
        return views
    first, ends = [], {}
    own = arrays_with_paths(jax.tree.unflatten(kept[0].treedef, kept[0].own))
    for (path, _), *xs in zip(own, *(slot.own for slot in kept), strict=True):
        # Without parameters: the slots of matrices of equal sides have equal shapes.
        of_slots = jnp.shape(xs[0])[0], tuple(jnp.shape(x)[1:] for x in xs)
        count, sides = whole.get(path, of_slots)
        kind = sides, tuple(dtype_of(x) for x in xs), engine.devices(xs[0])
        first.append(ends.get(kind, 0))
        ends[kind] = first[-1] + count
    where = kept[0].where or range(len(views))
    return [
        leaf._replace(members=[leaf.members[0]._replace(first=first[i])])
        for i, leaf in zip(where, views, strict=True)
    ]


def _divided_axis_of_matrix_slot(piece: tuple[int, ...], whole: tuple[int, ...]) -> int | None:
    """Return the axis along which a piece of a slot for matrices is shorter than the whole."""
    pairs = zip(piece, whole, strict=True)
    return next((d for d, (n, full) in enumerate(pairs) if n != full), None)
