"""Averages, slow weights and centers, to evaluate and save in the place of the parameters."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp

from gradxform.errors import leaf_path, name_of, shown
from gradxform.leaves import Path, dtype_of, is_hole, path_str, with_paths
from gradxform.numerics import cast
from gradxform.types import OptState, Params, PyTree
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


class _EvalTree(NamedTuple):
    """One tree to evaluate."""

    label: str  # the class of its state, and its place
    name: str
    leaves: dict[Path, Any]
    tree: PyTree


def eval_params(
    state: OptState, params: Params | None = None, *, length: float | None = None
) -> Params:
    """Return the parameters to evaluate and save: an average, slow weights or a center, if any.

    That is the average of `moving_average`, `stochastic_weight_average`, `power_moving_average` and
    `schedule_free`, the slow weights of `lookahead`, the center of `elastic_average`, `agn` and
    `model_average(keep_center=True)`, and the anchor of `outer` and its variants. It is found at
    any depth of a state: in chains, masks, `MultiSteps` and so on, also in states of Optax. Where a
    mask hides a parameter from the part that averages, the parameter itself is returned.

    An optimizer without any of these is evaluated at the parameters: they are returned as they are,
    so that a training script need not know its optimizer. With a `LookaheadParams` pair the result
    is its slow half. Arrays of the result may be those of the state: do not donate the state while
    you need it.

    Args:
      state: the state after the last update.
      params: the parameters. Without them, the result has the dtypes of the state (float32 or
        wider), and a state without anything to evaluate is an error.
      length: which average of a `power_moving_average`. Keyword-only.

    Returns:
      A tree with the structure and the dtypes of the parameters.

    Raises:
      ValueError: if two parts of the state have something to evaluate for one parameter; if there
        are averages of several lengths and `length` is not one of them; if a leaf does not have the
        shape of its parameter; or if nothing is there and no parameters are given.
    """
    trees = _chosen_eval_trees("eval_params", state, params, length)
    if params is None:
        return _only_eval_tree(state, trees)
    return _params_with_eval_trees(trees, params)[0]


def swap(
    state: OptState, params: Params, *, length: float | None = None
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

    Returns:
      The new parameters, and the new state.

    Raises:
      ValueError: as `eval_params`.
    """
    trees = _chosen_eval_trees("swap", state, params, length)
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
        return x.exchanged(tree.name, jax.tree.unflatten(jax.tree.structure(tree.tree), leaves))

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


def _eval_trees_by_state(
    state: Any, params: Params | None, path: Any = ()
) -> Iterator[list[_EvalTree]]:
    """Yield the trees to evaluate of each state, the outer states first."""
    flat, _ = jax.tree_util.tree_flatten_with_path(state, is_leaf=_has_evaluated_kind)
    for step, x in flat:
        here = (*path, *step)
        kind = _evaluated_kind_of(x)
        if kind is None:
            continue
        # `lookahead` evaluates the slow half of a pair; all others replace the fast half.
        plain = params if kind is LookaheadState or not is_pair(params) else params.fast
        by_name = kind.evaluated(x, plain)
        label = _label_of_evaluated(x, here)
        trees = [
            _EvalTree(label, name, {p: leaf for p, leaf in with_paths(t) if not is_hole(leaf)}, t)
            for name, t in by_name.items()
        ]
        if trees:
            yield trees
        inside, _ = jax.tree_util.tree_flatten_with_path(x, is_leaf=lambda y, x=x: y is not x)
        for field, part in inside:
            yield from _eval_trees_by_state(part, params, (*here, *field))


def _is_eval_length(name: str) -> bool:
    try:
        float(name)
    except ValueError:
        return False
    return True


def _chosen_eval_trees(caller: str, state: OptState, params: Any, length: Any) -> list[Any]:
    """Return the tree to evaluate of each state that has some; `length` must name one if given."""
    trees = [_chosen_eval_tree(choices, length) for choices in _eval_trees_by_state(state, params)]
    if length is not None and not any(_is_eval_length(tree.name) for tree in trees):
        raise ValueError(
            f"{caller}: length is {length!r}, but {name_of(type(state))} does not have an average "
            "of a power_moving_average."
        )
    return trees


def _chosen_eval_tree(trees: list[_EvalTree], length: float | None) -> _EvalTree:
    """Return the tree of the length asked for, or the only one."""
    by_length = {float(tree.name): tree for tree in trees if _is_eval_length(tree.name)}
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


def _only_eval_tree(state: Any, trees: list[_EvalTree]) -> PyTree:
    """Return the only tree of a state."""
    if not trees:
        raise ValueError(
            f"eval_params: {name_of(type(state))} does not contain {_WHERE} Pass the parameters to "
            "get them back where there is nothing else to evaluate."
        )
    if len(trees) > 1:
        raise ValueError(_ambiguity_of_eval_trees(trees[0], trees[1], ""))
    tree = trees[0].tree
    holes = [path for path, leaf in with_paths(tree) if is_hole(leaf)]
    if holes:
        raise ValueError(
            f"eval_params: {trees[0].label} does not have {path_str(holes[0])}, which a mask hides "
            "from it; pass the parameters."
        )
    return tree


def _ambiguity_of_eval_trees(one: _EvalTree, other: _EvalTree, of: str) -> str:
    return (
        f"eval_params: {one.label} and {other.label} both have something to evaluate{of}; pass the "
        "state of the one that you mean."
    )


def _params_with_eval_trees(
    trees: list[_EvalTree], params: Params
) -> tuple[Params, dict[Path, Any]]:
    """Return the tree to evaluate, and the parameters that it replaces, by path."""
    plain = params.fast if is_pair(params) else params
    owners: dict[Path, _EvalTree] = {}
    for tree in trees:
        for path in tree.leaves:
            if path in owners:
                raise ValueError(
                    _ambiguity_of_eval_trees(owners[path], tree, f" for {path_str(path)}")
                )
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
