"""Euclidean projections of trees onto convex sets and spheres, under Optax's names.

Each returns the point of a set that is nearest to the tree as one long vector, in the dtypes of the
tree. Sums are formed in float32 or wider. All can be differentiated. Scales may be live numbers.
`project` keeps parameters in such a set.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from gradxform.errors import shown
from gradxform.leaves import check_params
from gradxform.numerics import at_least_float32, cast, promote, within
from gradxform.numerics.overflow import settled
from gradxform.projections.simplex import one_vector, onto_simplex
from gradxform.tree import norm, vdot
from gradxform.types import Array, PyTree, Scalar
from gradxform.values.registry import register


def projection_non_negative(tree: PyTree) -> PyTree:
    """Project onto the numbers that are at least 0: p = max(x, 0)."""
    leaves, treedef = _leaves_to_project("projection_non_negative", tree)
    return jax.tree.unflatten(treedef, [jnp.where(x <= 0, jnp.zeros_like(x), x) for x in leaves])


def projection_box(tree: PyTree, lower: PyTree, upper: PyTree) -> PyTree:
    """Project onto a box: p = min(max(x, lower), upper).

    Args:
      tree: the tree x.
      lower: a number, or a tree of the same structure; infinity for none.
      upper: likewise.

    Raises:
      ValueError: if a structure differs, or a number `lower` is greater than a number `upper`.
    """
    return _project_onto_box("projection_box", tree, lower, upper)


def projection_hypercube(tree: PyTree, scale: Any = 1) -> PyTree:
    """Project onto a hypercube: p = min(max(x, 0), scale).

    Args:
      tree: the tree x.
      scale: the length of the edges, at least 0: a number, or a tree of the same structure.

    Raises:
      ValueError: if a structure differs, or a number `scale` is negative.
    """
    _check_scale("projection_hypercube", scale)
    return _project_onto_box("projection_hypercube", tree, 0, scale)


def projection_simplex(tree: PyTree, scale: Scalar = 1, axis: int | None = None) -> PyTree:
    """Project onto a simplex: the trees with p >= 0 and sum(p) = scale.

    With a scale of 0 the result is 0, where Optax's is NaN.

    Args:
      tree: the tree x.
      scale: the sum of the result, at least 0.
      axis: along which every slice of every array is projected by itself. Defaults to none: the
        tree is one vector.

    Raises:
      ValueError: if `scale` is negative, or an array does not have the axis.

    Reference: Duchi et al., Efficient Projections onto the l1-Ball for Learning in High Dimensions,
      2008, Figure 1.
    """
    return _project_by_radius(projection_simplex, onto_simplex, tree, scale, axis)


def projection_l1_sphere(tree: PyTree, scale: Scalar = 1, axis: int | None = None) -> PyTree:
    """Project onto an l1 sphere: the trees with sum(|p|) = scale.

    An entry of 0 counts as positive, so that the result of a tree of zeros is on the sphere, too;
    Optax's is 0 there.

    Args:
      tree: the tree x.
      scale: the radius, at least 0.
      axis: along which every slice of every array is projected by itself. Defaults to none: the
        tree is one vector.

    Raises:
      ValueError: if `scale` is negative, or an array does not have the axis.
    """
    return _project_by_radius(projection_l1_sphere, _onto_l1_sphere, tree, scale, axis)


def _onto_l1_sphere(xs: list[Array], radius: Array) -> list[Array]:
    sizes = onto_simplex([x * _sign_for_l1_sphere(x) for x in xs], radius)
    return [_sign_for_l1_sphere(x) * size for x, size in zip(xs, sizes, strict=True)]


def projection_l1_ball(tree: PyTree, scale: Scalar = 1, axis: int | None = None) -> PyTree:
    """Project onto an l1 ball: the trees with sum(|p|) <= scale.

    Args:
      tree: the tree x.
      scale: the radius, at least 0; infinity for no bound.
      axis: along which every slice of every array is projected by itself. Defaults to none: the
        tree is one vector.

    Raises:
      ValueError: if `scale` is negative, or an array does not have the axis.
    """
    return _project_by_radius(projection_l1_ball, _onto_l1_ball, tree, scale, axis)


def _onto_l1_ball(xs: list[Array], radius: Array) -> list[Array]:
    sizes = [x * _sign_for_l1_sphere(x) for x in xs]
    fits = sum(map(jnp.sum, sizes)) <= radius
    # A radius of infinity must not reach the derivative of what is not selected.
    sizes = onto_simplex(sizes, jnp.where(fits, jnp.ones_like(radius), radius))
    return [
        jnp.where(fits, x, _sign_for_l1_sphere(x) * size) for x, size in zip(xs, sizes, strict=True)
    ]


def projection_l2_sphere(tree: PyTree, scale: Scalar = 1, axis: int | None = None) -> PyTree:
    """Project onto a sphere: the trees of norm scale.

    All points of the sphere are equally near to a tree of zeros. Its result has equal entries;
    Optax's are NaN.

    Args:
      tree: the tree x.
      scale: the radius, at least 0.
      axis: along which every slice of every array is projected by itself. Defaults to none: the
        tree is one vector.

    Raises:
      ValueError: if `scale` is negative, or an array does not have the axis.
    """
    return _project_by_radius(projection_l2_sphere, _onto_l2_sphere, tree, scale, axis)


def _onto_l2_sphere(xs: list[Array], radius: Array) -> list[Array]:
    is_zero = jnp.max(jnp.abs(one_vector(xs))) == 0
    scaled = [jnp.where(is_zero, jnp.ones_like(x), x) for x in xs]
    unit = _unit_for_l2_ball(scaled)
    scaled = [x * unit for x in scaled]
    factor = radius / norm(scaled)
    return [x * factor for x in scaled]


def projection_l2_ball(tree: PyTree, scale: Scalar = 1, axis: int | None = None) -> PyTree:
    """Project onto a ball: the trees of a norm of at most scale.

    With a scale of 0 the result is 0, also of a tree of zeros, where Optax's is NaN.

    Args:
      tree: the tree x.
      scale: the radius, at least 0; infinity for no bound.
      axis: along which every slice of every array is projected by itself. Defaults to none: the
        tree is one vector.

    Raises:
      ValueError: if `scale` is negative, or an array does not have the axis.
    """
    return _project_by_radius(projection_l2_ball, _onto_l2_ball, tree, scale, axis)


def _onto_l2_ball(xs: list[Array], radius: Array) -> list[Array]:
    unit = _unit_for_l2_ball(xs)
    scaled = [x * unit for x in xs]
    # The derivative of a norm is not defined at 0, and is not asked for inside the ball.
    fits = jax.lax.stop_gradient(norm(scaled)) <= radius * unit
    size = norm([jnp.where(fits, jnp.ones_like(x), x) for x in scaled])
    # The radius over the norm of the tree itself may be too small for a normal number.
    shrunk = jnp.where(fits, jnp.ones_like(size), radius) / size
    return [jnp.where(fits, x, y * shrunk) for x, y in zip(xs, scaled, strict=True)]


def projection_linf_ball(tree: PyTree, scale: Scalar = 1) -> PyTree:
    """Project onto an l-infinity ball: p = min(max(x, -scale), scale).

    Args:
      tree: the tree x.
      scale: the radius, at least 0; infinity for no bound.

    Raises:
      ValueError: if `scale` is negative.
    """
    _check_scale("projection_linf_ball", scale)
    return _project_onto_box("projection_linf_ball", tree, -scale, scale)


def projection_vector(x: PyTree, a: PyTree) -> PyTree:
    """Project onto the multiples of a vector: p = (<x, a> / <a, a>) a.

    The only multiple of a vector of zeros is 0; Optax's result is then NaN.

    Args:
      x: the tree.
      a: the vector, a tree of the same structure.

    Raises:
      ValueError: if the structures differ.
    """
    half = _shift_to_hyperplane("projection_vector", x, a, 0, lambda product, b: product)
    return jax.tree.map(lambda leaf, u: cast(2 * u, leaf.dtype), _point_to_project(x), half)


def projection_hyperplane(x: PyTree, a: PyTree, b: Scalar) -> PyTree:
    """Project onto a hyperplane: the trees p with <a, p> = b.

    A vector of zeros does not define a plane: the result is then x, where Optax's is NaN.

    Args:
      x: the tree.
      a: the normal vector, a tree of the same structure.
      b: a number.

    Raises:
      ValueError: if the structures differ.
    """
    half = _shift_to_hyperplane("projection_hyperplane", x, a, b, lambda product, b: b - product)
    return jax.tree.map(_moved_to_hyperplane, _point_to_project(x), half)


def projection_halfspace(x: PyTree, a: PyTree, b: Scalar) -> PyTree:
    """Project onto a half-space: the trees p with <a, p> <= b.

    A vector of zeros does not define a half-space: the result is then x, where Optax's is NaN.

    Args:
      x: the tree.
      a: the normal vector, pointing out of the half-space, a tree of the same structure.
      b: a number.

    Raises:
      ValueError: if the structures differ.
    """
    half = _shift_to_hyperplane(
        "projection_halfspace", x, a, b, lambda product, b: jnp.clip(b - product, max=0)
    )
    return jax.tree.map(_moved_to_hyperplane, _point_to_project(x), half)


for _function in (
    projection_non_negative,
    projection_box,
    projection_hypercube,
    projection_simplex,
    projection_l1_sphere,
    projection_l1_ball,
    projection_l2_sphere,
    projection_l2_ball,
    projection_linf_ball,
):
    register(_function.__name__, _function)


# ------------------------------------------------------------------------------------- helpers


def _sign_for_l1_sphere(x: Array) -> Array:
    """Return -1 for negative entries, and 1 for all others."""
    return jnp.where(x < 0, -jnp.ones_like(x), jnp.ones_like(x))


def _leaves_to_project(name: str, tree: PyTree) -> tuple[list[Array], Any]:
    check_params(name, tree)
    leaves, treedef = jax.tree.flatten(tree)
    for leaf in leaves:
        if jnp.iscomplexobj(leaf):
            raise TypeError(f"{name}: the set does not have complex points, got {shown(leaf)}.")
    return [jnp.asarray(x) for x in leaves], treedef


def _point_to_project(tree: PyTree) -> PyTree:
    return jax.tree.map(jnp.asarray, tree)


def _project_by_radius(
    project: Callable[..., PyTree],
    onto: Callable[[list[Array], Array], list[Array]],
    tree: PyTree,
    scale: Scalar,
    axis: int | None,
) -> PyTree:
    """Return the projection of a tree by `onto`, which gets its leaves in one wide dtype.

    Args:
      project: the public function.
      onto: the projection of one vector, given as a list of arrays, and the radius.
      tree: as for the public function.
      scale: likewise.
      axis: likewise.
    """
    _check_scale(project.__name__, scale)
    if axis is not None:
        return _project_each_slice(project, tree, scale, axis)
    leaves, treedef = _leaves_to_project(project.__name__, tree)
    wide = _widened_to_project(leaves)
    if not sum(x.size for x in wide):
        return tree
    return _narrowed(onto(wide, _scale(scale, wide)), leaves, treedef)


def _project_each_slice(
    project: Callable[..., PyTree], tree: PyTree, scale: Scalar, axis: int
) -> PyTree:
    """Return the tree with every slice along an axis of its arrays projected by itself."""
    leaves, treedef = _leaves_to_project(project.__name__, tree)

    def one(x: Array) -> Array:
        if not -x.ndim <= axis < x.ndim:
            raise ValueError(
                f"{project.__name__}: axis must be one of every array, got {axis} for shape "
                f"{x.shape}."
            )
        last = jnp.moveaxis(x, axis, -1)
        if not x.size:
            return x
        rows = jax.vmap(lambda row: project(row, scale))(last.reshape(-1, last.shape[-1]))
        return jnp.moveaxis(rows.reshape(last.shape), -1, axis)

    return jax.tree.unflatten(treedef, list(map(one, leaves)))


def _widened_to_project(leaves: list[Array]) -> list[Array]:
    """Return the leaves in the dtype that holds all of them, float32 or wider."""
    if not leaves:
        return []
    wide = at_least_float32(promote(*(x.dtype for x in leaves)))
    return [cast(x, wide) for x in leaves]


def _narrowed(new: list[Array], leaves: list[Array], treedef: Any) -> PyTree:
    """Return the tree of new leaves in the dtypes of the old ones."""
    pairs = zip(new, leaves, strict=True)
    return jax.tree.unflatten(treedef, [cast(x, old.dtype) for x, old in pairs])


def _unit_for_l2_ball(leaves: list[Array]) -> Array:
    """Return a constant by which squares of the entries neither overflow nor vanish."""
    return 1 / _size_of_projected(jnp.abs(one_vector(leaves)))


def _size_of_projected(sizes: Array) -> Array:
    """Return the largest size as a constant, such that its inverse is a normal number, too.

    Processors take others for 0.
    """
    largest = jax.lax.stop_gradient(jnp.max(sizes))
    kinds = jnp.finfo(largest.dtype)
    return jnp.clip(largest, kinds.tiny, 1 / kinds.tiny)


def _scale(x: Any, like: list[Array]) -> Array:
    return jnp.asarray(within(x, like[0].dtype), like[0].dtype)


def _check_scale(name: str, scale: Any) -> None:
    for x in jax.tree.leaves(scale):
        if isinstance(x, int | float) and not x >= 0:
            raise ValueError(f"{name}: scale must be at least 0, got {x!r}.")


def _project_onto_box(name: str, tree: PyTree, lower: PyTree, upper: PyTree) -> PyTree:
    leaves, treedef = _leaves_to_project(name, tree)
    lows, highs = (_bounds(name, k, x, treedef) for k, x in (("lower", lower), ("upper", upper)))
    new = []
    for x, low, high in zip(leaves, lows, highs, strict=True):
        if isinstance(low, int | float) and isinstance(high, int | float) and not low <= high:
            raise ValueError(f"{name}: lower must be at most upper, got {low!r} and {high!r}.")
        bounds = [jnp.asarray(within(b, x.dtype)).astype(x.dtype) for b in (low, high)]
        new.append(jnp.clip(x, *bounds))
    return jax.tree.unflatten(treedef, new)


def _bounds(name: str, argument: str, x: PyTree, treedef: Any) -> list[Any]:
    """Return a bound for every leaf: the leaves of a tree, or one number again and again."""
    if jax.tree.structure(x) == treedef:
        return jax.tree.leaves(x)
    if jax.tree.structure(x) == jax.tree.structure(0) and jnp.ndim(x) == 0:
        return [x] * treedef.num_leaves
    raise ValueError(
        f"{name}: {argument} must be a number, or have the structure of the tree; got {shown(x)}."
    )


def _shift_to_hyperplane(
    name: str, x: PyTree, a: PyTree, b: Scalar, distance: Callable[[Array, Array], Any]
) -> PyTree:
    """Return half of (distance(<x, a>, b) / <a, a>) a, in float32 or wider; zeros if a is zero.

    The vector is divided by its size, and so are x and b: then no square or product overflows. From
    one end of the range to the other, the whole way would.
    """
    treedef = jax.tree.structure(a)
    if jax.tree.structure(x) != treedef:
        raise ValueError(f"{name}: a must have the structure of x, got {shown(a)}.")
    xs, vs = (_widened_to_project(_leaves_to_project(name, tree)[0]) for tree in (x, a))
    if not sum(v.size for v in vs):
        return jax.tree.unflatten(treedef, vs)
    of_a = _size_of_projected(jnp.abs(one_vector(vs)))
    level = settled(jnp.asarray(b, jnp.result_type(of_a, b)) / of_a)
    size = _size_of_projected(jnp.abs(jnp.append(one_vector(xs), level)))
    unit, point = (
        jax.tree.unflatten(treedef, [leaf / scale for leaf in leaves])
        for leaves, scale in ((vs, of_a), (xs, size))
    )
    product, square = vdot(point, unit), vdot(unit, unit)
    undefined = square == 0
    numerator = distance(product, level / size)
    factor = jnp.where(undefined, 0, numerator) / jnp.where(undefined, 1, square) * (size / 2)
    return jax.tree.map(lambda leaf: leaf * cast(factor, leaf.dtype), unit)


def _moved_to_hyperplane(x: Array, half: Array) -> Array:
    wide = promote(x.dtype, half.dtype)
    half = cast(half, wide)
    return cast(cast(x, wide) + half + half, x.dtype)
