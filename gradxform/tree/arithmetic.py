"""Arithmetic, norms, casts and random numbers on whole trees.

The names and arguments are those of `optax.tree`. For all functions:

* a hole (None, MaskedNode) stays a hole; the result has a hole wherever one of the trees has one;
* dtypes are promoted as JAX does by default, also under `jax.numpy_dtype_promotion("strict")`;
* sums, norms and inner products of floating leaves are computed in float32 or wider.
"""

import functools
import math
import operator
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike, DTypeLike

from gradxform import engine, numerics
from gradxform._names.deferred import signature_of
from gradxform.errors import leaf_path, require_int32
from gradxform.leaves import as_dtype, dtype_of, in_one_dtype, is_hole
from gradxform.types import Array, PyTree


def _map_leaves(f: Callable[..., Any], tree: PyTree, *others: PyTree) -> PyTree:
    """Map `f` over the leaves of trees of equal structure; holes stay."""

    def map_leaf(*leaves: Any) -> Any:
        holes = [x for x in leaves if is_hole(x)]
        return holes[0] if holes else f(*leaves)

    return jax.tree.map(map_leaf, tree, *others, is_leaf=is_hole)


def _wide(x: Any) -> Array:
    x = jnp.asarray(x)
    return numerics.cast(x, numerics.at_least_float32(x.dtype))


def _add_leaves(x: Any, y: Any) -> Any:
    return operator.add(*in_one_dtype(x, y))


def _multiply_leaves(x: Any, y: Any) -> Any:
    return operator.mul(*in_one_dtype(x, y))


def add(tree_x: PyTree, tree_y: PyTree, *other_trees: PyTree) -> PyTree:
    """Return the sum of two or more trees, leaf by leaf."""
    return _map_leaves(
        lambda *leaves: functools.reduce(_add_leaves, leaves), tree_x, tree_y, *other_trees
    )


def sub(tree_x: PyTree, tree_y: PyTree) -> PyTree:
    """Return the difference `tree_x - tree_y`."""
    return _map_leaves(lambda x, y: operator.sub(*in_one_dtype(x, y)), tree_x, tree_y)


def mul(tree_x: PyTree, tree_y: PyTree) -> PyTree:
    """Return the product of two trees, entry by entry."""
    return _map_leaves(_multiply_leaves, tree_x, tree_y)


def div(tree_x: PyTree, tree_y: PyTree) -> PyTree:
    """Return the quotient `tree_x / tree_y`, entry by entry."""
    return _map_leaves(lambda x, y: operator.truediv(*in_one_dtype(x, y)), tree_x, tree_y)


def scale(scalar: ArrayLike, tree: PyTree) -> PyTree:
    """Return `scalar * tree`."""
    return _map_leaves(lambda x: _multiply_leaves(scalar, x), tree)


def add_scale(tree_x: PyTree, scalar: ArrayLike, tree_y: PyTree) -> PyTree:
    """Return `tree_x + scalar * tree_y`."""
    return _map_leaves(lambda x, y: _add_leaves(x, _multiply_leaves(scalar, y)), tree_x, tree_y)


def clip(
    tree: PyTree, min_value: ArrayLike | None = None, max_value: ArrayLike | None = None
) -> PyTree:
    """Clip every entry to [min_value, max_value]; either bound may be None."""

    def clip_leaf(x: Any) -> Array:
        bounds = [b for b in (min_value, max_value) if b is not None]
        x, *bounds = in_one_dtype(x, *bounds)
        low = None if min_value is None else bounds[0]
        return jnp.clip(x, low, None if max_value is None else bounds[-1])

    return _map_leaves(clip_leaf, tree)


def conj(tree: PyTree) -> PyTree:
    """Return the complex conjugate of every entry."""
    return _map_leaves(jnp.conj, tree)


def real(tree: PyTree) -> PyTree:
    """Return the real part of every entry."""
    return _map_leaves(jnp.real, tree)


def where(condition: ArrayLike, tree_x: PyTree, tree_y: PyTree) -> PyTree:
    """Return `tree_x` where the condition, usually a boolean scalar, holds, else `tree_y`."""
    return _map_leaves(lambda x, y: jnp.where(condition, *in_one_dtype(x, y)), tree_x, tree_y)


def zeros_like(tree: PyTree, dtype: DTypeLike | None = None) -> PyTree:
    """Return zeros of the same shapes, in the leaves' own dtypes or in `dtype`."""
    return _map_leaves(lambda x: jnp.zeros_like(x, dtype=dtype), tree)


def ones_like(tree: PyTree, dtype: DTypeLike | None = None) -> PyTree:
    """Return ones of the same shapes, in the leaves' own dtypes or in `dtype`."""
    return _map_leaves(lambda x: jnp.ones_like(x, dtype=dtype), tree)


def full_like(tree: PyTree, fill_value: ArrayLike, dtype: DTypeLike | None = None) -> PyTree:
    """Return arrays of the same shapes with one value, in the leaves' own dtypes or `dtype`."""
    return _map_leaves(lambda x: jnp.full_like(x, fill_value, dtype=dtype), tree)


def batch_shape(tree: PyTree, shape: tuple[int, ...] = ()) -> PyTree:
    """Repeat every leaf along new leading axes of the given shape."""
    return _map_leaves(lambda x: jnp.broadcast_to(x, (*shape, *jnp.shape(x))), tree)


def size(tree: PyTree) -> int:
    """Return the number of entries of all leaves together."""
    return functools.reduce(operator.add, map(_size_of_leaf, jax.tree.leaves(tree)), 0)


def _size_of_leaf(x: Any) -> int:
    return math.prod(getattr(x, "shape", ()))


def sum(tree: PyTree, associative_reduction: bool = False) -> Array:
    """Return the sum of all entries, in float32 or wider for floating leaves.

    Args:
      tree: any tree of arrays; an empty one sums to 0.
      associative_reduction: whether to add the leaves' sums in pairs, which compiles faster for
        many leaves and rounds differently.
    """
    sums = [jnp.sum(_summable_leaf(x)) for x in jax.tree.leaves(tree)]
    paired = associative_reduction and sums
    return jax.tree.reduce_associative(_add_leaves, sums) if paired else _total_over_leaves(sums)


def _summable_leaf(x: Any) -> Array:
    return _wide(x) if jnp.issubdtype(dtype_of(x), jnp.inexact) else jnp.asarray(x)


def _total_over_leaves(sums: list[Array]) -> Array:
    return functools.reduce(_add_leaves, sums) if sums else jnp.zeros((), jnp.float32)


def vdot(tree_x: PyTree, tree_y: PyTree) -> Array:
    """Return the inner product `sum(conj(x) * y)`, in float32 or wider for floating leaves.

    Raises:
      ValueError: if two leaves differ in shape.
    """

    def product(path: tuple[Any, ...], x: Any, y: Any) -> Array | None:
        if is_hole(x) or is_hole(y):
            return None
        if jnp.shape(x) != jnp.shape(y):
            raise ValueError(
                f"vdot: {leaf_path(path)} has shape {jnp.shape(x)} in the first tree and "
                f"{jnp.shape(y)} in the second."
            )
        return _vdot_of_leaves(*map(_summable_leaf, in_one_dtype(x, y)))

    products = jax.tree_util.tree_map_with_path(product, tree_x, tree_y, is_leaf=is_hole)
    return _total_over_leaves(jax.tree.leaves(products))


@jax.jit
def _vdot_of_leaves(x: Array, y: Array) -> Array:
    return jnp.sum(jnp.conj(x) * y)


def max(tree: PyTree) -> Array:
    """Return the largest entry; -inf for an empty tree."""
    return _extreme_over_leaves(tree, jnp.max, jnp.maximum, -math.inf)


def min(tree: PyTree) -> Array:
    """Return the smallest entry; inf for an empty tree."""
    return _extreme_over_leaves(tree, jnp.min, jnp.minimum, math.inf)


def _extreme_over_leaves(
    tree: PyTree,
    of_leaf: Callable[[Any], Array],
    of_two: Callable[[Any, Any], Array],
    of_none: float,
) -> Array:
    extremes = [of_leaf(x) for x in jax.tree.leaves(tree) if _size_of_leaf(x)]
    if not extremes:
        return jnp.asarray(of_none, jnp.float32)
    return functools.reduce(lambda x, y: of_two(*in_one_dtype(x, y)), extremes)


def norm(tree: PyTree, ord: int | str | float | None = None, squared: bool = False) -> Array:
    """Return the norm of a whole tree as one vector, in float32 or wider.

    Args:
      tree: any tree of arrays; an empty one has norm 0.
      ord: which norm: 2 or None (Euclidean), 1 (sum of |x|), inf or "inf" (largest |x|).
      squared: whether to return its square.

    Raises:
      ValueError: for any other `ord`.
    """
    if ord is None or ord == 2:
        return engine.sum_of_squares(tree) if squared else engine.global_norm(tree)
    if ord not in (1, math.inf, "inf", "infinity"):
        raise ValueError(f"norm: ord must be 1, 2, inf, 'inf' or None, got {ord!r}.")
    sizes = _map_leaves(lambda x: jnp.abs(_wide(x)), tree)
    total = max(sizes) if ord != 1 and size(tree) else sum(sizes)
    return jnp.square(total) if squared else total


def allclose(
    a: PyTree, b: PyTree, rtol: ArrayLike = 1e-5, atol: ArrayLike = 1e-8, equal_nan: bool = False
) -> Array:
    """Return whether |a - b| <= atol + rtol |b| in every entry of two trees of equal structure.

    A hole is close only to a hole; a NaN is close to a NaN only if `equal_nan`.
    """

    def close_leaf(x: Any, y: Any) -> Array:
        if is_hole(x) or is_hole(y):
            return jnp.asarray(is_hole(x) and is_hole(y))
        return jnp.allclose(*in_one_dtype(x, y), rtol=rtol, atol=atol, equal_nan=equal_nan)

    close = jax.tree.leaves(jax.tree.map(close_leaf, a, b, is_leaf=is_hole))
    return functools.reduce(jnp.logical_and, close, jnp.ones((), jnp.bool_))


def cast(tree: PyTree, dtype: DTypeLike | None) -> PyTree:
    """Return the tree in one dtype, or as it is if `dtype` is None."""
    return tree if dtype is None else _map_leaves(lambda x: as_dtype(x, jnp.dtype(dtype)), tree)


def cast_like(tree: PyTree, other_tree: PyTree) -> PyTree:
    """Return the tree with every leaf in the dtype of its counterpart in `other_tree`.

    A leaf stays as it is if its counterpart does not have a dtype: a Python number, or a hole.
    """

    def cast_leaf(x: Any, other: Any) -> Any:
        return as_dtype(x, other.dtype) if hasattr(other, "dtype") and not is_hole(x) else x

    return jax.tree.map(cast_leaf, tree, other_tree, is_leaf=is_hole)


def dtype(tree: PyTree, mixed_dtype_handler: str | None = None) -> Any:
    """Return the dtype of a tree; JAX's default floating dtype if it is empty.

    Args:
      tree: any tree.
      mixed_dtype_handler: which of several dtypes to return: the one that they "promote" to, or
        the "highest" or "lowest" of them, if they are ordered. By default several dtypes are an
        error.

    Raises:
      ValueError: if there are several dtypes without a handler, or without a highest or lowest.
    """
    if mixed_dtype_handler not in (None, "promote", "highest", "lowest"):
        rule = "mixed_dtype_handler must be None, 'promote', 'highest' or 'lowest'"
        raise ValueError(f"dtype: {rule}, got {mixed_dtype_handler!r}.")
    flat, _ = jax.tree_util.tree_flatten_with_path(tree)
    dtypes = [(path, jnp.dtype(dtype_of(x))) for path, x in flat]
    if not dtypes:
        return jnp.dtype(jnp.result_type(float))
    if mixed_dtype_handler == "promote":
        return numerics.promote(*(d for _, d in dtypes))
    if mixed_dtype_handler is not None:
        index = 1 if mixed_dtype_handler == "highest" else 0
        return functools.reduce(lambda a, b: _ordered_dtypes(a, b)[index], [d for _, d in dtypes])
    first, expected = dtypes[0]
    for path, d in dtypes:
        if d != expected:
            raise ValueError(
                f"dtype: {leaf_path(path)} has dtype {d}, but {leaf_path(first)} has {expected}; "
                "say with mixed_dtype_handler= which to return."
            )
    return expected


def _ordered_dtypes(a: Any, b: Any) -> tuple[Any, Any]:
    """Return the lower and the higher of two dtypes."""
    top = numerics.promote(a, b)
    if top not in (a, b):
        raise ValueError(f"dtype: neither of {a} and {b} promotes to the other.")
    return (a, b) if top == b else (b, a)


def split_key_like(rng_key: Array, target_tree: PyTree) -> PyTree:
    """Return a tree with a different key for every leaf of `target_tree`."""
    treedef = jax.tree.structure(target_tree)
    return jax.tree.unflatten(treedef, list(jax.random.split(rng_key, treedef.num_leaves)))


def random_like(
    rng_key: Array,
    target_tree: PyTree,
    sampler: Callable[..., Any] = jax.random.normal,
    dtype: DTypeLike | None = None,
) -> PyTree:
    """Return random numbers in the shapes of `target_tree`; the same as Optax's for the same key.

    Args:
      rng_key: a PRNG key, split as in `split_key_like`.
      target_tree: a tree of arrays.
      sampler: `sampler(key, shape, dtype)`, such as `jax.random.normal`. If it takes
        `out_sharding`, it gets the leaf's sharding.
      dtype: the dtype of the numbers. Defaults to each leaf's own.
    """
    sharded = "out_sharding" in signature_of(sampler).parameters

    def sample(x: Any, key: Array) -> Array:
        sharding = {"out_sharding": jax.typeof(x).sharding} if sharded else {}
        return sampler(key, jnp.shape(x), dtype or dtype_of(x), **sharding)

    return jax.tree.map(sample, target_tree, split_key_like(rng_key, target_tree))


def unwrap_random_key_data(input_tree: PyTree) -> PyTree:
    """Return the tree with the data of every PRNG key in its place, for comparisons."""

    def unwrap(x: Any) -> Any:
        is_key = jnp.issubdtype(dtype_of(x), jax.dtypes.prng_key)
        return jax.random.key_data(x) if is_key else x

    return _map_leaves(unwrap, input_tree)


def update_moment(updates: PyTree, moments: PyTree, decay: Any, order: Any) -> PyTree:
    """Return `decay * moments + (1 - decay) * updates**order`: a step of a moving average."""
    return _map_leaves(
        lambda g, t: _average_leaves(in_one_dtype(g, t)[0] ** order, t, decay), updates, moments
    )


def update_infinity_moment(updates: PyTree, moments: PyTree, decay: Any, eps: Any) -> PyTree:
    """Return `max(decay * moments, |updates| + eps)`: a step of a decaying maximum."""

    def update(g: Any, t: Any) -> Array:
        return jnp.maximum(*in_one_dtype(_add_leaves(jnp.abs(g), eps), _multiply_leaves(decay, t)))

    return _map_leaves(update, updates, moments)


def update_moment_per_elem_norm(updates: PyTree, moments: PyTree, decay: Any, order: Any) -> PyTree:
    """Return `update_moment` of real updates, and of |updates| where they are complex."""

    def update(g: Any, t: Any) -> Array:
        g = in_one_dtype(g, t)[0]  # cast first, so that its powers are rounded once
        if jnp.isrealobj(g):
            return _average_leaves(g**order, t, decay)
        half = order / 2
        return _average_leaves(
            numerics.abs_sq(g) ** (int(half) if half == int(half) else half), t, decay
        )

    return _map_leaves(update, updates, moments)


def _average_leaves(new: Any, old: Any, decay: Any) -> Any:
    return _add_leaves(_multiply_leaves(1 - decay, new), _multiply_leaves(decay, old))


def bias_correction(moment: PyTree, decay: Any, count: Any) -> PyTree:
    """Return `moment / (1 - decay**count)`, every leaf in its own dtype.

    The factor is that of `gradxform.numerics.bias_correction`. For a decay near 1 it is more
    accurate than the formula in float32, which Optax uses: by 1e-5 in the first step with 0.999.
    `count` is the number of gradients in the average.
    """
    require_int32("bias_correction", "count", count)
    factor = numerics.bias_correction(decay, jnp.asarray(count))

    def correct(t: Any) -> Array:
        wide = _wide(t)
        return numerics.cast(wide * numerics.cast(factor, wide.dtype), jnp.asarray(t).dtype)

    return _map_leaves(correct, moment)
