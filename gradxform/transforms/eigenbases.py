"""Matrices of both sides of a matrix, and bases of their eigenvectors.

What SOAP, KL-Shampoo and SPlus share.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jax import lax

from gradxform import engine, linalg
from gradxform.errors import require_at_least, require_non_negative
from gradxform.linalg.panels import is_by_panels
from gradxform.linalg.products import product_with_itself
from gradxform.numerics import cast, over, squarable
from gradxform.numerics.roots import one_over_root
from gradxform.transforms.matrices.dimensions import MuonDimensionNumbers, check_numbers
from gradxform.transforms.matrices.rule import MatrixRule, check_compute_dtype
from gradxform.types import Array, Params, Scalar

__all__ = []

# Power iterations from the identity in place of a first eigendecomposition.
FIRST_TURNS = 20


class InEigenbases(MatrixRule):
    """Base of rules that compute in such bases: the checks of the arguments that they share."""

    locality = "array"
    renews = True
    decomposes = True

    def __post_init__(self) -> None:
        require_at_least(self, 1, "precondition_frequency")
        require_non_negative(self, "max_precond_dim")
        check_compute_dtype(self)
        check_numbers(self, "weight_dimension_numbers", MuonDimensionNumbers)


def first_bases(
    rule: MatrixRule,
    params: Params,
    longest: int,
    one_sided: bool = False,
    start: float = 0.0,
) -> dict[str, Any]:
    """Return the slots of matrices for both sides, and of identities as their bases.

    Args:
      rule: the rule.
      params: the parameters.
      longest: the longest side that has a matrix; a longer one has a place holder, (B, 1, 1).
      one_sided: whether the longer side has a place holder, too.
      start: the multiple of the identity that the matrices are.
    """

    def slot(multiple: float, is_right: bool) -> Any:
        def make(count: int, m: int, n: int, dtype: Any) -> Array:
            d = n if is_right else m
            d = 1 if d > longest or (is_right and one_sided) else d
            one = jnp.asarray(multiple, dtype) * jnp.eye(d, dtype=dtype)
            return jnp.tile(jnp.expand_dims(one, 0), (count, 1, 1))

        return rule.matrix_slots(params, make)

    return {
        "left": slot(start, False),
        "right": slot(start, True),
        "left_basis": slot(1.0, False),
        "right_basis": slot(1.0, True),
    }


def is_basis(a: Array, x: Array, side: int) -> bool:
    """Whether a matrix is one of that side of x, and not a place holder for the identity."""
    return a.size > 0 and a.shape[-1] == x.shape[side]


def sandwich(a: Array, x: Array, b: Array, dtype: Any = None) -> Array:
    """Return a x b; a matrix of another side than that of x stands for the identity."""
    x = linalg.matmul_in(a, x, dtype) if is_basis(a, x, -2) else x
    return linalg.matmul_in(x, b, dtype) if is_basis(b, x, -1) else x


def followed_by(left: Array, right: Array, g: Array, beta: Scalar) -> tuple[Array, Array]:
    """Return the averages of g g^T and g^T g, of the sides that have them, with those of g."""
    if is_basis(left, g, -2):
        left = beta * left + (1 - beta) * linalg.matmul(g, transposed(g))
    if is_basis(right, g, -1):
        right = beta * right + (1 - beta) * linalg.matmul(transposed(g), g)
    return left, right


def eigenvalues_in(a: Array, q: Array) -> Array:
    """Return the eigenvalues (B, d) of a matrix as its old eigenvectors see them.

    Those below a rounding of the largest, also negative ones, count as that.
    """
    values = jnp.sum(q * linalg.matmul(a, q), axis=-2)
    least = float(jnp.finfo(a.dtype).eps) * jnp.max(values, axis=-1, keepdims=True, initial=0)
    return jnp.maximum(values, least)


def kl_factors(
    left: Array, right: Array, q_left: Array, q_right: Array, g: Array
) -> tuple[Array, Array]:
    """Return the inverse roots of both sides' eigenvalues, (B, m, 1) and (B, 1, n).

    Those of a side without a matrix are 1.
    """
    one = jnp.ones((1, 1, 1), g.dtype)
    of_rows, of_columns = one, one
    if is_basis(left, g, -2):
        of_rows = one_over_root(eigenvalues_in(left, q_left))[..., :, None]
    if is_basis(right, g, -1):
        of_columns = one_over_root(eigenvalues_in(right, q_right))[..., None, :]
    return of_rows, of_columns


def kl_followed_by(
    left: Array,
    right: Array,
    q_left: Array,
    q_right: Array,
    g: Array,
    beta: Scalar,
    of_rows: Array,
    of_columns: Array,
) -> tuple[Array, Array]:
    """Return the averages of g R^-1 g^T / n and g^T L^-1 g / m, of the sides that have them.

    Args:
      left: L.
      right: R.
      q_left: Q_L.
      q_right: Q_R.
      g: the gradient.
      beta: the decay of the averages.
      of_rows: what `kl_factors` returns for the rows, from before this gradient.
      of_columns: the same for the columns.
    """
    m, n = g.shape[-2:]
    # The products of a side that keeps the identity are with 1.
    by_right = linalg.matmul(g, q_right) if is_basis(q_right, g, -1) else g
    by_left = linalg.matmul(transposed(q_left), g) if is_basis(q_left, g, -2) else g
    by_right, by_left = by_right * of_columns, by_left * of_rows
    if is_basis(left, g, -2):
        new = linalg.matmul(by_right, transposed(by_right))
        left = beta * left + (1 - beta) / max(n, 1) * new
    if is_basis(right, g, -1):
        new = linalg.matmul(transposed(by_left), by_left)
        right = beta * right + (1 - beta) / max(m, 1) * new
    return left, right


def power_iterated(a: Array, q: Array) -> tuple[Array, Array]:
    """Return the basis after one power iteration, and where each of its vectors was before."""
    # The basis does not depend on the size of the matrix, and the columns of a product have norms.
    product = linalg.matmul(over(a, jnp.max(jnp.abs(a), axis=(-2, -1), keepdims=True)), q)
    order = jnp.argsort(jnp.sum(q * product, axis=-2), axis=-1, descending=True)
    return linalg.orthonormal(in_order(product, order, -1)), order


def in_order(x: Array, order: Array, axis: int) -> Array:
    """Return matrices with their rows (axis -2) or columns (-1) in a new order, (..., d)."""
    if x.ndim == 2:  # whole rows, which TPUs take faster than entries
        return jnp.take(x, order, axis=axis)
    return jnp.take_along_axis(x, jnp.expand_dims(order, -1 if axis == -2 else -2), axis=axis)


def are_renewed_in_turns(left: Array, right: Array) -> bool:
    """Whether bases are renewed by `renewed_in_turns`: on TPUs, those of long sides."""
    return is_by_panels(left) or is_by_panels(right)


def renewed_in_turns(
    factors: tuple[Array, Array],
    bases: tuple[Array, Array],
    averages: tuple[Array, ...],
    turns: Array,
) -> tuple[Array, ...]:
    """Return the bases of both sides after as many power iterations, and averages in them.

    Args:
      factors: the matrices of both sides, or place holders.
      bases: their eigenvectors, nearly.
      averages: none; or the average of the gradient in the bases, and of its square.
      turns: (B,), the number of iterations for each matrix.
    """
    slots = tuple([x] for x in (*factors, *bases, *averages))
    places = tuple(range(4, len(slots)))

    def turn(at: engine.InPlace) -> engine.InPlace:
        return renewed_in_place(at, (0, 1), (2, 3), places, turns[at.number])

    return tuple(x for (x,) in engine.run_in_place(turn, [len(turns)], slots).slots[2:])


def renewed_in_place(
    at: engine.InPlace,
    factors: tuple[int, int],
    bases: tuple[int, int],
    averages: tuple[int, ...],
    turns: Array,
) -> engine.InPlace:
    """Return a matrix with its bases of both sides after as many power iterations.

    Side by side: a program has one copy of the decomposition, where it has one for each side, at
    the first step and later, if they are batches.

    Args:
      at: the matrix.
      factors: the slots of the matrices of both sides, or of place holders.
      bases: those of their eigenvectors, nearly.
      averages: those of the average of the gradient in the bases, and of its square; or none.
      turns: the number of iterations.
    """
    shapes = [at.slots[k][0].shape for k in bases]
    sides = [k for k in range(2) if shapes[k][-1] > 1]
    are_alike = len(sides) == 2 and shapes[0][1:] == shapes[1][1:]

    def of_side(at: engine.InPlace, side: Any) -> engine.InPlace:
        a, q = at.slot(*factors, side=side)[0], at.slot(*bases, side=side)[0]
        new, order = power_iterated(a, q)
        at, new, q, order = at.with_slot(new[None], *bases, side=side).settled(new, q, order)
        if not averages:
            return at
        change = linalg.matmul(transposed(new), q)
        rows = lambda x: linalg.matmul(change, x)  # noqa: E731
        columns = lambda x: linalg.matmul(x, transposed(change))  # noqa: E731
        x = _of_either(side, rows, columns, at.slot(averages[0])[0])
        at, order = at.with_slot(x[None], averages[0]).settled(order)
        rows, columns = (functools.partial(in_order, order=order, axis=k) for k in (-2, -1))
        x = _of_either(side, rows, columns, at.slot(averages[1])[0])
        return at.with_slot(x[None], averages[1]).settled()[0]

    def both(_: Any, at: engine.InPlace) -> engine.InPlace:
        if are_alike:
            return at.repeated(2, lambda side, at: of_side(at, side))
        return functools.reduce(of_side, sides, at)

    return at.repeated(turns, both)


def _of_either(side: Any, rows: Callable[..., Any], columns: Callable[..., Any], x: Array) -> Array:
    if isinstance(side, int):
        return (rows, columns)[side](x)
    return lax.switch(side, (rows, columns), x)


def in_bases(
    at: engine.InPlace, bases: tuple[int, int], x: Array, dtype: Any, is_back: bool = False
) -> tuple[engine.InPlace, Array]:
    """Return Q_L^T x Q_R for the bases of a matrix, or Q_L x Q_R^T, one product after the other."""
    for side, k in enumerate(bases):
        q = at.slot(k)
        if is_basis(q, x, side - 2):
            a = transposed(q) if (side == 0) != is_back else q
            x = linalg.matmul_in(*((a, x) if side == 0 else (x, a)), dtype)
            at, x = at.settled(x)
    return at, x


def followed_in_place(at: engine.InPlace, factors: tuple[int, int], beta: Scalar) -> engine.InPlace:
    """Return a matrix with its averages of g g^T and g^T g, as `followed_by` returns them."""
    for side, k in enumerate(factors):
        g = squarable(at.gradient(), (-2, -1))
        if is_basis(at.slots[k][0], g, side - 2):
            new = product_with_itself(g, side)
            average = lambda a, new: [beta * a + (1 - beta) * new]  # noqa: E731
            at = at.with_slots(average, [k], new)[0].settled()[0]
    return at


def turns_due(count: Array, size: int, every: int, first: int = 0) -> Array:
    """Return the turns of `size` matrices at this step: many at the first, then one a period.

    Args:
      count: the number of this step.
      size: how many matrices.
      every: the period.
      first: the number of the first step.
    """
    is_due = jnp.mod(count - engine.matrix_numbers(size), every) == 0
    return jnp.where(count == first, FIRST_TURNS, cast(is_due, count.dtype))


def eigenvectors(a: Array) -> Array:
    """Return the eigenvectors in falling order of the eigenvalues."""
    return jnp.flip(linalg.eigen(a)[1], -1) if a.size else a


def transposed(x: Array) -> Array:
    """Return matrices with rows and columns exchanged."""
    return jnp.swapaxes(x, -1, -2)
