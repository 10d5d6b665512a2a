"""Averages, slow weights and centers, to evaluate and save in the place of the parameters."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp

from gradxform.base import GradientTransformation, check_transform, unwrapped
from gradxform.errors import leaf_path, name_of, shown
from gradxform.leaves import Path, dtype_of, is_hole, names_of, path_str, with_paths
from gradxform.leaves.no_gradient import as_holes
from gradxform.leaves.states import node_at, slot_fields
from gradxform.numerics import cast
from gradxform.types import OptState, Params, PyTree
from gradxform.wrappers.complex_parts import merged_parts, real_parts
from gradxform.wrappers.flatten import as_one_vector, of_one_vector
from gradxform.wrappers.lookahead import LookaheadState, is_pair
from gradxform.wrappers.schedule_free import ScheduleFreeState

__all__ = [
    "eval_params",
    "swap",
]


@runtime_checkable
class Evaluated(Protocol):
    """A state that has something to evaluate in the place of the parameters.

    A state of your own with these two methods takes part in `eval_params` and `swap`.
    """

    def evaluated(self, params: Any, /) -> dict[str, PyTree]:
        """Return trees like the parameters, by name; several are one for each relative length.

        Leaves that a mask hides from the part are holes.
        """
        ...

    def exchanged(self, name: str, params: Any, /) -> Any:
        """Return the state that keeps `params` in the place of the tree of that name."""
        ...


# Optax's states of these names have the fields of ours, but not the methods.
_OF_OPTAX: dict[str, Any] = {kind.__name__: kind for kind in (LookaheadState, ScheduleFreeState)}


def _same_view(tree: PyTree) -> PyTree:
    return tree


class _View(NamedTuple):
    """How a part of a transform sees the parameters."""

    inside: Callable[[Params], PyTree] = _same_view
    outside: Callable[[PyTree], PyTree] = _same_view


class _Tree(NamedTuple):
    """One tree to evaluate."""

    label: str  # the class of its state, and its place
    name: str
    leaves: dict[Path, Any]
    tree: PyTree
    view: _View  # of the part that keeps it


def eval_params(
    state: OptState,
    params: Params | None = None,
    *,
    length: float | None = None,
    tx: Any = None,
) -> Params:
    """Return the parameters to evaluate and save: an average, slow weights or a center, if any.

    That is the average of `moving_average`, `stochastic_weight_average`, `power_moving_average` and
    `schedule_free`, the slow weights of `lookahead`, the center of `elastic_average`, `agn` and
    `model_average(keep_center=True)`, and the anchor of `outer` and its variants. It is found at
    any depth of a state: in chains, masks, `MultiSteps` and so on, also in states of Optax. Where a
    mask hides a parameter from the part that averages, the parameter itself is returned. Below
    `flatten` and `split_real_and_imaginary` the parts of a tree are put together again.

    An optimizer without any of these is evaluated at the parameters: they are returned as they are,
    so that a training script need not know its optimizer. With a `LookaheadParams` pair the result
    is its slow half. Arrays of the result may be those of the state: do not donate the state while
    you need it.

    Args:
      state: the state after the last update.
      params: the parameters. Without them, the result has the dtypes of the state (float32 or
        wider), and a state without anything to evaluate is an error.
      length: which average of a `power_moving_average`. Keyword-only.
      tx: the transform of the state. Only needed where a `flatten` sees some of the parameters:
        its vector does not show which. Keyword-only.

    Returns:
      A tree with the structure and the dtypes of the parameters.

    Raises:
      ValueError: if two parts of the state have something to evaluate for one parameter; if there
        are averages of several lengths and `length` is not one of them; if a leaf does not have the
        shape of its parameter; or if nothing is there and no parameters are given.
    """
    trees = _chosen_trees("eval_params", state, params, length, tx)
    if params is None:
        return _only_tree(state, trees)
    return _params_with_eval_trees(trees, params)[0]


def swap(
    state: OptState, params: Params, *, length: float | None = None, tx: Any = None
) -> tuple[Params, OptState]:
    """Exchange the parameters and the tree to evaluate: each takes the place of the other.

    The first result is `eval_params(state, params)`, to be saved or exported under the parameters'
    own names; the state then holds the parameters. Swap again before you go on training:

        params, state = swap(state, params)
        save(params, state)
        params, state = swap(state, params)

    For parameters of 32 bits or more the second swap restores both bit for bit. For 16-bit ones it
    restores the parameters, but the average has been rounded to 16 bits on its way: keep the first
    pair, and go on with that. The swapped state of a `schedule_free` has one tree more than the
    other: restore it onto a swapped one.

    Args:
      state: the state after the last update.
      params: the parameters.
      length: which average of a `power_moving_average`. Keyword-only.
      tx: as in `eval_params`. Keyword-only.

    Returns:
      The new parameters, and the new state.

    Raises:
      ValueError: as `eval_params`.
    """
    trees = _chosen_trees("swap", state, params, length, tx)
    new, params_at = _params_with_eval_trees(trees, params)

    def exchange(x: Any, path: Any) -> Any:
        label = _label_of_evaluated(x, path)
        tree = next((tree for tree in trees if tree.label == label), None)
        if tree is None:
            return None
        if type(x) is not _evaluated_kind_of(x):  # it has the fields, but not the methods
            raise ValueError(
                f"swap: {label} is a state of Optax; convert it with interop.from_optax_state."
            )
        leaves = [params_at[path] for path in tree.leaves]
        given = jax.tree.unflatten(jax.tree.structure(tree.tree), leaves)
        return x.exchanged(tree.name, tree.view.inside(given))

    if is_pair(params):  # its halves change places
        new = type(params)(fast=new, slow=params.fast)
    return new, _state_with_evaluated_exchanged(state, (), exchange)


# ------------------------------------------------------------------------------ finding the trees


def _evaluated_kind_of(x: Any) -> Any:
    """Return the class with the methods of `Evaluated` for a state; None if there is none."""
    if isinstance(x, type):
        return None
    if isinstance(x, Evaluated):
        return type(x)
    kind = _OF_OPTAX.get(type(x).__name__)
    return kind if kind is not None and getattr(x, "_fields", None) == kind._fields else None


def _has_evaluated_kind(x: Any) -> bool:
    return _evaluated_kind_of(x) is not None


def _label_of_evaluated(x: Any, path: Any) -> str:
    return f"{name_of(type(x))} at {leaf_path(path)}"


def _trees_by_state(
    state: Any, params: Params | None, view_of: Callable[[Path, Any], _View], path: Any = ()
) -> Iterator[list[_Tree]]:
    """Yield the trees to evaluate of each state, the outer states first.

    Args:
      state: the state.
      params: the parameters; None if they are not given.
      view_of: returns how a part sees the parameters, for the path of its state and the state.
      path: the path of the state.
    """
    flat, _ = jax.tree_util.tree_flatten_with_path(state, is_leaf=_has_evaluated_kind)
    for step, x in flat:
        here = (*path, *step)
        kind = _evaluated_kind_of(x)
        if kind is None:
            continue
        # `lookahead` evaluates the slow half of a pair; all others replace the fast half.
        plain = params if kind is LookaheadState or not is_pair(params) else params.fast
        view = _View() if plain is None or is_pair(plain) else view_of(names_of(here), x)
        by_name = kind.evaluated(x, None if plain is None else view.inside(plain))
        label = _label_of_evaluated(x, here)
        trees = []
        for name, seen in by_name.items():
            t = view.outside(seen)
            leaves = {p: leaf for p, leaf in with_paths(t) if not is_hole(leaf)}
            trees.append(_Tree(label, name, leaves, t, view))
        if trees:
            yield trees
        inside, _ = jax.tree_util.tree_flatten_with_path(x, is_leaf=lambda y, x=x: y is not x)
        for field, part in inside:
            yield from _trees_by_state(part, params, view_of, (*here, *field))


def _views_of_parts(
    tx: Any, state: OptState, params: Params, view: _View, path: Path = ()
) -> Iterator[tuple[Path, _View]]:
    """Yield the path of each part's state, and how the part sees the parameters."""
    tx = unwrapped(tx)
    yield path, view
    if not isinstance(tx, GradientTransformation):
        return
    for place, part in tx.inner_states(state):
        part_view = _View(
            lambda tree, place=place: tx.params_inside(place, view.inside(tree)),
            lambda tree, place=place: view.outside(
                tx.params_outside(place, tree, view.inside(params))
            ),
        )
        here = (*path, *place)
        yield from _views_of_parts(part, node_at(state, place), params, part_view, here)


def _view_by_transform(tx: Any, state: OptState, params: Params) -> Callable[..., _View]:
    check_transform("eval_params", tx, "tx")
    views = dict(_views_of_parts(tx, state, params, _View()))

    def view_of(path: Path, x: Any) -> _View:
        return next(views[path[:n]] for n in range(len(path), -1, -1) if path[:n] in views)

    return view_of


def _view_by_shapes(params: Params) -> Callable[..., _View]:
    """Return a function that recognizes a view by the slots of a state."""
    vector = _View(
        lambda tree: as_one_vector(jax.tree.leaves(tree)), partial(of_one_vector, like=params)
    )
    pairs = _View(real_parts, merged_parts)
    both = _View(
        lambda tree: vector.inside(real_parts(tree)),
        lambda tree: merged_parts(of_one_vector(tree, real_parts(params))),
    )

    def view_of(path: Path, x: Any) -> _View:
        kind, plain = _evaluated_kind_of(x), _View()
        slots = [getattr(x, k) for k in slot_fields(kind)] or kind.evaluated(x, None).values()
        shown = [shapes for shapes in map(_shapes_by_path, slots) if shapes]
        for view in plain, pairs, vector, both:
            if any(_shows(view.inside(params), shapes) for shapes in shown):
                return view
        if any(() in shapes for shapes in shown) and () not in _shapes_by_path(params):
            raise ValueError(
                f"eval_params: {name_of(type(x))} at {path_str(path)} keeps one vector, which is "
                "not of all parameters. If flatten sees some of them, pass the transform too, "
                "tx=tx."
            )
        return plain

    return view_of


def _shows(tree: PyTree, shapes: dict[Path, Any]) -> bool:
    """Whether a tree has arrays of these shapes at these paths."""
    return shapes.items() <= _shapes_by_path(tree).items()


def _shapes_by_path(tree: PyTree) -> dict[Path, Any]:
    """Return the shape of each array, and whether it is complex."""
    return {
        path: (jnp.shape(x), jnp.issubdtype(dtype_of(x), jnp.complexfloating))
        for path, x in with_paths(tree)
        if not is_hole(x)
    }


def _is_length(name: str) -> bool:
    try:
        float(name)
    except ValueError:
        return False
    return True


def _chosen_trees(caller: str, state: OptState, params: Any, length: Any, tx: Any) -> list[Any]:
    """Return the tree to evaluate of each state that has some; `length` must name one if given."""
    seen = as_holes(params.fast if is_pair(params) else params)
    views = _view_by_shapes(seen) if tx is None else _view_by_transform(tx, state, seen)
    by_state = _trees_by_state(state, params, views)
    trees = [_chosen_tree(choices, length) for choices in by_state]
    if length is not None and not any(_is_length(tree.name) for tree in trees):
        raise ValueError(
            f"{caller}: length is {length!r}, but {name_of(type(state))} does not have an average "
            "of a power_moving_average."
        )
    return trees


def _chosen_tree(trees: list[_Tree], length: float | None) -> _Tree:
    """Return the tree of the length asked for, or the only one."""
    by_length = {float(tree.name): tree for tree in trees if _is_length(tree.name)}
    if not by_length or (length is None and len(by_length) == 1):
        return trees[0]
    if length not in by_length:
        listed = ", ".join(map(repr, sorted(by_length)))
        raise ValueError(
            f"eval_params: {trees[0].label} has averages of the lengths {listed}; length must be "
            f"one of them, got {shown(length)}. reconstruct_average makes any other of snapshots."
        )
    return by_length[length]


# ---------------------------------------------------------------------------- choosing each leaf


_WHERE = (
    "an average of the parameters, slow weights, a center or an anchor. With model_average, pass "
    "keep_center=True, or evaluate the replicas' own parameters after an exchange. Replicas that "
    "step together all have the same parameters."
)


def _only_tree(state: Any, trees: list[_Tree]) -> PyTree:
    """Return the only tree of a state."""
    if not trees:
        raise ValueError(
            f"eval_params: {name_of(type(state))} does not contain {_WHERE} Pass the parameters to "
            "get them back where there is nothing else to evaluate."
        )
    if len(trees) > 1:
        raise ValueError(_ambiguity_of_trees(trees[0], trees[1], ""))
    tree = trees[0].tree
    holes = [path for path, leaf in with_paths(tree) if is_hole(leaf)]
    if holes:
        raise ValueError(
            f"eval_params: {trees[0].label} does not have {path_str(holes[0])}, which a mask hides "
            "from it; pass the parameters."
        )
    return tree


def _ambiguity_of_trees(one: _Tree, other: _Tree, of: str) -> str:
    return (
        f"eval_params: {one.label} and {other.label} both have something to evaluate{of}; pass the "
        "state of the one that you mean."
    )


def _params_with_eval_trees(trees: list[_Tree], params: Params) -> tuple[Params, dict[Path, Any]]:
    """Return the tree to evaluate, and the parameters that it replaces, by path."""
    plain = params.fast if is_pair(params) else params
    owners: dict[Path, _Tree] = {}
    for tree in trees:
        for path in tree.leaves:
            if path in owners:
                raise ValueError(_ambiguity_of_trees(owners[path], tree, f" for {path_str(path)}"))
            owners[path] = tree
    params_at, new = {}, []
    flat = with_paths(plain)
    for path, p in flat:
        if is_hole(p) or path not in owners:  # a mask hides it from the part that averages
            new.append(p)
            continue
        x = owners[path].leaves[path]
        if jnp.shape(x) != jnp.shape(p):
            raise ValueError(
                f"eval_params: {path_str(path)} of {owners[path].label} has shape {jnp.shape(x)}, "
                f"the parameter has {jnp.shape(p)}."
            )
        params_at[path] = p
        new.append(cast(jnp.asarray(x), dtype_of(p)))
    for path in owners:
        if path not in params_at:
            raise ValueError(
                f"eval_params: {owners[path].label} has a leaf {path_str(path)}, the parameters "
                "none. Is this the state of other parameters?"
            )
    treedef = jax.tree.structure(plain, is_leaf=is_hole)
    return jax.tree.unflatten(treedef, new), params_at


def _state_with_evaluated_exchanged(
    state: Any, path: Any, exchange: Callable[[Any, Any], Any]
) -> Any:
    """Return a state with each part replaced by what `exchange` returns, unless that is None."""

    def one(step: Any, x: Any) -> Any:
        here = (*path, *step)
        if not _has_evaluated_kind(x):
            return x
        new = exchange(x, here)
        if new is not None:
            return new
        flat, treedef = jax.tree_util.tree_flatten_with_path(x, is_leaf=lambda y: y is not x)
        parts = [
            _state_with_evaluated_exchanged(part, (*here, *field), exchange) for field, part in flat
        ]
        return jax.tree.unflatten(treedef, parts)

    return jax.tree_util.tree_map_with_path(one, state, is_leaf=_has_evaluated_kind)
