"""Trees of arrays: paths, holes, checks, and matching one tree to another leaf by leaf.

A tree of updates may have holes: `None` freezes its parameter for the step, and a `MaskedNode`
marks a leaf that a mask excludes. All other modules use the functions here to handle trees.
"""

import sys
from collections.abc import Callable, Collection, Iterable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from gradxform.errors import leaf_path, name_of
from gradxform.leaves.row_sparse import RowSparse, is_row_sparse
from gradxform.leaves.storage import is_stored
from gradxform.numerics import promote, real_dtype
from gradxform.types import MaskedNode, PyTree
from gradxform.values.memory import Memory

Path = tuple[str, ...]


def is_hole(x: Any) -> bool:
    """Whether `x` stands in place of an array: None, or a MaskedNode (ours or Optax's)."""
    return x is None or isinstance(x, MaskedNode) or type(x).__name__ == "MaskedNode"


def is_update_leaf(x: Any) -> bool:
    """Whether `x` is a leaf of updates here but a tree to JAX: a hole, or a RowSparse."""
    # `is_hole`, written out: JAX asks this of every node.
    return x is None or isinstance(x, _UPDATE_LEAVES) or type(x).__name__ == "MaskedNode"


_UPDATE_LEAVES = MaskedNode, RowSparse


def flatten_updates(updates: PyTree) -> tuple[list[Any], Any]:
    """Return the leaves of `updates` and their structure; a RowSparse is one leaf."""
    return jax.tree.flatten(updates, is_leaf=is_row_sparse)


def leaves_of(updates: PyTree) -> list[Any]:
    """Return the leaves of `updates`; a RowSparse is one leaf."""
    return jax.tree.leaves(updates, is_leaf=is_row_sparse)


def structure_of(updates: PyTree) -> Any:
    """Return the structure of `updates`; a RowSparse is one leaf."""
    return jax.tree.structure(updates, is_leaf=is_row_sparse)


def map_updates(f: Callable[..., Any], updates: PyTree) -> PyTree:
    """Map `f` over the leaves of `updates`; a RowSparse is one leaf, and holes stay."""
    return jax.tree.map(f, updates, is_leaf=is_row_sparse)


def has_rows(updates: PyTree) -> bool:
    """Whether any leaf is a RowSparse."""
    return any(map(is_row_sparse, leaves_of(updates)))


def like_params(updates: PyTree) -> PyTree:
    """Return the shapes and dtypes of `updates`, as a stand-in for the parameters."""
    return map_updates(lambda g: jax.ShapeDtypeStruct(shape_of(g), dtype_of(g)), updates)


def shape_of(x: Any) -> tuple[int, ...]:
    """Return the shape of an array, of a number, or of the dense form of a RowSparse."""
    return x.shape if isinstance(x, RowSparse) else jnp.shape(x)


def names_of(path: Iterable[Any]) -> Path:
    """Return a key path as strings."""
    return tuple(map(entry_name, path))


def entry_name(entry: Any) -> str:
    """Return the name in an entry of a key path: a key, an index or a field's name."""
    for attribute in ("key", "idx", "name"):
        if isinstance(entry, _KEYS[attribute]):
            return str(getattr(entry, attribute))
    return str(entry)


_KEYS: dict[str, tuple[type, ...]] = {
    "key": (jax.tree_util.DictKey, jax.tree_util.FlattenedIndexKey),
    "idx": (jax.tree_util.SequenceKey,),
    "name": (jax.tree_util.GetAttrKey,),
}


def is_variable(x: Any) -> bool:
    """Whether `x` is a Variable of `flax.nnx` or a box of Linen: a node around one array.

    The array has the path of the node. `flax.nnx.Optimizer` passes `kernel.value` to `init` and
    `kernel` to `update`: the same leaf. So do trainers of Linen that unbox what has metadata.
    """
    return any(isinstance(x, getattr(sys.modules.get(m), name, ())) for m, name in _AROUND_ARRAYS)


_AROUND_ARRAYS = (("flax.nnx", "Variable"), ("flax.core.meta", "AxisMetadata"))


def flatten_with_names(
    tree: PyTree,
    is_leaf: Callable[[Any], bool] | None = None,
    branches: Collection[Path] = (),
) -> tuple[list[tuple[Path, Any]], Any]:
    """Return the leaves of `tree`, each with its path as strings, and the structure.

    Args:
      tree: any tree.
      is_leaf: tells what is a leaf, besides what is one to JAX.
      branches: the paths of subtrees that are one leaf each.
    """
    if not branches:
        leaves, treedef = jax.tree.flatten(tree, is_leaf)
        names = _NAMES.get(treedef)
        if names is None:
            names = [path for path, _ in _flatten_with_names(tree, is_leaf, ())[0]]
            _NAMES.keep(treedef, names)
        return list(zip(names, leaves, strict=True)), treedef
    return _flatten_with_names(tree, is_leaf, branches)


def _flatten_with_names(
    tree: PyTree, is_leaf: Callable[[Any], bool] | None, branches: Collection[Path]
) -> tuple[list[tuple[Path, Any]], Any]:
    variables = set()

    def ends(path: tuple[Any, ...], x: Any) -> bool:
        if is_variable(x):
            variables.add(names_of(path))
        return (is_leaf is not None and is_leaf(x)) or (
            bool(branches) and names_of(path) in branches
        )

    # Only variables of Flax and branches need the path of every node, which takes time.
    if "flax.core.meta" in sys.modules or branches:
        flat, treedef = jax.tree_util.tree_flatten_with_path(tree, ends, is_leaf_takes_path=True)
    else:
        flat, treedef = jax.tree_util.tree_flatten_with_path(tree, is_leaf)
    named = [(names_of(path), leaf) for path, leaf in flat]
    return [(p[:-1] if p[:-1] in variables else p, leaf) for p, leaf in named], treedef


# The paths of a structure's leaves. They are asked for several times in each eager step.
_NAMES: Memory[Any, list[Path]] = Memory()


def with_paths(
    tree: PyTree, is_leaf: Callable[[Any], bool] = is_update_leaf
) -> list[tuple[Path, Any]]:
    """Return the leaves of `tree`, holes included, each with its path as strings."""
    return flatten_with_names(tree, is_leaf)[0]


def map_with_paths(f: Callable[[Path, Any], Any], tree: PyTree) -> PyTree:
    """Map `f(path, leaf)` over the arrays of `tree`; holes stay."""
    named, treedef = flatten_with_names(tree, is_update_leaf)
    return treedef.unflatten(leaf if is_hole(leaf) else f(path, leaf) for path, leaf in named)


def vacancies(tree: PyTree) -> list[tuple[Path, bool]]:
    """Return where a tree has a hole or an empty container, and whether it is a hole."""

    def is_empty(x: Any) -> bool:
        structure = jax.tree.structure(x)
        return structure.num_nodes == 1 and not structure.num_leaves

    named = with_paths(tree, lambda x: is_update_leaf(x) or is_empty(x))
    return [(path, is_hole(x)) for path, x in named if is_hole(x) or is_empty(x)]


def path_at(tree: PyTree, index: int) -> str:
    """Return the path of the leaf of `tree` with that index, for messages."""
    flat, _ = jax.tree_util.tree_flatten_with_path(tree, is_leaf=is_row_sparse)
    return leaf_path(flat[index][0])


_NUMPY = np.ndarray | np.generic


def dtype_of(x: Any) -> Any:
    """Return the dtype of an array, or the one that JAX would give to a number or a NumPy array."""
    dtype = getattr(x, "dtype", None)
    if dtype is None:  # `jnp.result_type` would read a string as the name of a dtype
        is_number = isinstance(x, bool | int | float | complex)
        dtype = jnp.result_type(x) if is_number else np.asarray(x).dtype
    # JAX narrows 64 bits to 32 by default.
    return jax.dtypes.canonicalize_dtype(dtype) if isinstance(x, _NUMPY) else dtype


def in_one_dtype(*xs: Any) -> list[Any]:
    """Return arrays in the dtype that JAX gives them by default; Python numbers as they are.

    Arrays of one dtype stay as they are: 64-bit NumPy arrays are not rounded to the 32 bits to
    which JAX may be restricted.
    """
    weak = (int, float, complex)
    arrays = [x for x in xs if type(x) not in weak]
    strong = {dtype_of(x) for x in arrays if not getattr(x, "weak_type", False)}
    # JAX does not promote floats of 8 bits to others.
    held = [promote(*strong)] if len(strong) > 1 else list(strong)
    others = [x for x in xs if type(x) in weak or getattr(x, "weak_type", False)]
    with jax.numpy_dtype_promotion("standard"):
        dtype = jnp.result_type(*held, *others)
    if len({getattr(x, "dtype", None) for x in arrays}) == 1 and dtype_of(arrays[0]) == dtype:
        return list(xs)
    return [x if type(x) in weak else as_dtype(x, dtype) for x in xs]


def as_dtype(x: Any, dtype: Any) -> Any:
    """Return an array of JAX or NumPy, or a number, in `dtype`."""
    return (x if hasattr(x, "astype") else jnp.asarray(x)).astype(dtype)


def widest_dtype(tree: PyTree) -> Any:
    """Return the widest real dtype of the floating leaves, for scalars: float32 or float64."""
    for leaf in leaves_of(tree):
        dtype = dtype_of(leaf)
        if jnp.issubdtype(dtype, jnp.inexact) and real_dtype(dtype).itemsize > 4:
            return np.dtype(np.float64)
    return np.dtype(np.float32)


def is_abstract(x: Any) -> bool:
    """Whether `x` is only the shape and dtype of an array."""
    return isinstance(x, jax.ShapeDtypeStruct)


def check_params(part: Any, params: PyTree) -> None:
    """Require every leaf to be a floating or complex array."""
    for index, leaf in enumerate(jax.tree.leaves(params)):
        try:
            valid = jnp.issubdtype(dtype_of(leaf), jnp.inexact)
        except TypeError:
            valid = False
        if not valid:
            dtype = getattr(leaf, "dtype", None) or type(leaf).__name__
            raise TypeError(
                f"{name_of(part)}: parameter {path_at(params, index)} has dtype {dtype}; only "
                "floating parameters can be optimized. "
                f"{remedy_or_leave_out(params)}"
            )


class Aligned(NamedTuple):
    """The leaves of one tree in the order of another's."""

    own: list[Any]  # all leaves, in the tree's own order
    treedef: Any
    where: list[int] | None  # for each leaf of the leading tree its index in `own`; None if equal
    leaves: list[Any]  # in the leading tree's order

    def rebuilt(self, new: list[Any]) -> PyTree:
        """Return the tree with `new` in place of `leaves`."""
        if self.where is None:
            return jax.tree.unflatten(self.treedef, new)
        out = list(self.own)
        for i, leaf in zip(self.where, new, strict=True):
            out[i] = leaf
        return jax.tree.unflatten(self.treedef, out)


def check_shapes(part: Any, updates: PyTree, others: list[Any], what: str) -> None:
    """Require every update to be a floating array with the shape of its leaf of `others`."""
    floating = set()
    for index, (g, other) in enumerate(zip(leaves_of(updates), others, strict=True)):
        dtype = getattr(g, "dtype", type(g))
        if dtype not in floating and not jnp.issubdtype(dtype_of(g), jnp.inexact):
            raise TypeError(
                f"{name_of(part)}: gradient of {path_at(updates, index)} has dtype {dtype_of(g)}; "
                "only floating gradients can be transformed. "
                f"{remedy_or_leave_out(updates)}"
            )
        floating.add(dtype)
        if getattr(g, "shape", ()) != jnp.shape(other):
            raise ValueError(
                f"{name_of(part)}: gradient of {path_at(updates, index)} has shape {shape_of(g)}, "
                f"{what} {jnp.shape(other)}."
            )


def align(part: Any, lead: PyTree, lead_def: Any, tree: PyTree, what: str) -> Aligned:
    """Match the leaves of `tree` to those of `lead`, the updates.

    Trees of equal structure match directly. Others match by path, so that a dict matches a
    FrozenDict, and a leaf of `tree` at a hole of `lead` is left alone.

    Raises:
      ValueError: if a leaf of `lead` is missing in `tree`, or a leaf of `tree` in `lead`, where
        there is not a hole either.
    """
    leaves, treedef = jax.tree.flatten(tree)
    if treedef != lead_def:  # what is stored is one leaf here, but a tree to JAX
        leaves, treedef = jax.tree.flatten(tree, is_leaf=is_stored)
    if treedef == lead_def:
        return Aligned(leaves, treedef, None, leaves)
    indices = {path: i for i, (path, _) in enumerate(with_paths(tree, is_stored))}
    lead_leaves = with_paths(lead)
    holes = [path for path, leaf in lead_leaves if is_hole(leaf)]
    paths = [path for path, leaf in lead_leaves if not is_hole(leaf)]
    where = []
    for path in paths:
        if path not in indices:
            raise ValueError(
                f"{name_of(part)}: the updates have a leaf {path_str(path)}, {what} none. "
                f"{_remedy_for_sparse((lead, tree), 1) or _remedy_for_unlike_trees(what)}"
            )
        where.append(indices[path])
    covered = set(paths)
    for path in indices:
        if path not in covered and not any(path[: len(h)] == h for h in holes):
            raise ValueError(
                f"{name_of(part)}: {what} a leaf {path_str(path)}, the updates none. "
                f"{_remedy_for_sparse(tree) or _REMEDY_FOR_NO_GRADIENT}"
            )
    return Aligned(leaves, treedef, where, [leaves[i] for i in where])


def align_params(part: Any, updates: PyTree, treedef: Any, params: PyTree) -> Aligned:
    """Match the parameters to the updates, leaf by leaf, and require equal shapes."""
    aligned = align(part, updates, treedef, params, "the parameters have")
    check_shapes(part, updates, aligned.leaves, "the parameter has")
    return aligned


def align_slot(part: Any, updates: PyTree, treedef: Any, state: Any, slot: str) -> Aligned:
    """Match a slot of a state to the updates, leaf by leaf; its shapes are its own."""
    return align(part, updates, treedef, getattr(state, slot), f"the state's {slot} has")


def require_params(part: Any, params: PyTree | None) -> None:
    """Require that `update` was called with the parameters."""
    if params is None:
        raise ValueError(
            f"{name_of(part)}: needs the parameters; call update(updates, state, params)."
        )


def path_str(path: Path) -> str:
    """Write names as `leaf_path` writes a key path: `['dense']['kernel']`."""
    return "".join(f"[{k!r}]" for k in path) or "at the root"


_REMEDY_FOR_NO_GRADIENT = (
    "A gradient of None in its place would freeze the parameter for this step."
)


def remedy_or_leave_out(tree: PyTree) -> str:
    """Return what to do about a leaf that no gradient can have, for messages."""
    return _remedy_for_sparse(tree) or "Leave it out with masked(...) or partition(...)."


def kinds_of_sparse() -> Any:
    """Return the class of JAX's sparse arrays, or no class where nobody has imported them."""
    return getattr(sys.modules.get("jax.experimental.sparse"), "JAXSparse", ())


def _remedy_for_sparse(tree: PyTree, depth: int = 0) -> str:
    """Return what to do about a sparse array of JAX, two or more arrays to it; "" without one.

    Its path leaves out so many names in front.
    """
    kind = kinds_of_sparse()
    flat, _ = jax.tree_util.tree_flatten_with_path(tree, is_leaf=lambda x: isinstance(x, kind))
    for path, x in flat:
        if isinstance(x, kind):
            name, where = type(x).__name__, leaf_path(path[depth:])
            return (
                f"{where} is a {name} of jax.experimental.sparse on one side only: let gradient "
                f"and parameter be such, as of jax.experimental.sparse.grad, or dense, .todense()."
            )
    return ""


def _remedy_for_unlike_trees(what: str) -> str:
    if "parameters" in what:
        return "Updates and parameters must have the same structure."
    return (
        "Was this state made by another transform's init, or for other parameters? Parameters that "
        "are not floating have none."
    )
