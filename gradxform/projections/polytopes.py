"""Euclidean projections of arrays onto polyhedra, under JAXopt's names.

Each returns the nearest point of a set, in the dtype of the array; sums are formed in float32 or
wider. Iterations end at a tolerance, or after a number of turns. Derivatives are those of the
exact projection onto the faces that the last turn found, not those of the turns.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from gradxform._jax.programs import by_program
from gradxform.errors import must_be, shown
from gradxform.linalg import matmul, one_by_one
from gradxform.numerics import at_least_float32, cast, promote, within
from gradxform.projections.simplex import onto_simplex, threshold_of
from gradxform.types import Array, Scalar
from gradxform.values.registry import register


def projection_sparse_simplex(
    x: Any, max_nz: int, use_approx_max_nz: bool = False, value: Scalar = 1.0
) -> Array:
    """Project onto the points of a simplex that have few entries other than 0.

    The set: p >= 0, sum(p) = value, and at most `max_nz` entries are not 0. It is the projection of
    the `max_nz` largest entries onto the simplex, with zeros elsewhere.

    Args:
      x: a vector `(n,)`.
      max_nz: how many entries may be other than 0, from 1 to n.
      use_approx_max_nz: whether to find the largest entries by `jax.lax.approx_max_k`, which is
        fast on TPUs and may miss some.
      value: the sum of the result, at least 0.

    Raises:
      ValueError: if the shape does not fit, or `max_nz` or `value` is out of its range.

    Reference: Kyrillidis et al., Sparse projections onto the simplex, 2013, Algorithm 1.
    """
    name = "projection_sparse_simplex"
    x, (v,) = _vectors(name, x)
    if isinstance(max_nz, bool) or not isinstance(max_nz, int) or not 1 <= max_nz <= v.size:
        raise ValueError(must_be(name, "max_nz", f"an integer from 1 to {v.size}", max_nz))
    if isinstance(value, int | float) and not value >= 0:
        raise ValueError(f"{name}: value must be at least 0, got {value!r}.")
    find = lax.approx_max_k if use_approx_max_nz else lax.top_k
    _, at = find(lax.stop_gradient(v), max_nz)
    (entries,) = onto_simplex([v[at]], jnp.asarray(within(value, v.dtype), v.dtype))
    return cast(jnp.zeros_like(v).at[at].set(entries), x.dtype)


def projection_affine_set(x: Any, A: Any, b: Any) -> Array:
    """Project onto an affine set: the vectors p with A p = b.

    p = x - A^+ (A x - b), A^+ being the pseudoinverse. Rows of A may depend on each other. If no p
    solves A p = b, the result is the nearest of those that minimize |A p - b|.

    Args:
      x: a vector `(n,)`.
      A: a matrix `(m, n)`.
      b: a vector `(m,)`.

    Raises:
      ValueError: if the shapes do not fit.
    """
    x, (v, matrix, target) = _vectors("projection_affine_set", x, A=A, b=b)
    return cast(_onto_equalities(v, matrix, target), x.dtype)


def projection_polyhedron(
    x: Any, A: Any, b: Any, G: Any, h: Any, tol: float | None = None, maxiter: int = 10_000
) -> Array:
    """Project onto a polyhedron: the vectors p with A p = b and G p <= h.

    The dual problem, one multiplier l >= 0 for each row of G, is solved by the accelerated
    gradient method with restarts:

        p = x' - G'^T l;    l <- max(l + (G p - h) / L, 0)

    x' being the projection onto A p = b, and G' the part of G along that set. The rows with
    multipliers then give the face, and the result is the projection onto it. Nothing can be
    projected onto a polyhedron without points; the result then violates some constraint.

    Args:
      x: a vector `(n,)`.
      A: a matrix `(m, n)`, with m = 0 for no equation.
      b: a vector `(m,)`.
      G: a matrix `(k, n)`, with k = 0 for no inequality.
      h: a vector `(k,)`; infinite for a row without a bound.
      tol: the change of the multipliers, relative to the largest, at which the iteration ends;
        greater than 0. Defaults to 8 roundings.
      maxiter: the most turns.

    Raises:
      ValueError: if the shapes do not fit.

    Reference: Beck and Teboulle, A Fast Iterative Shrinkage-Thresholding Algorithm, 2009,
    equations (4.1) to (4.3); O'Donoghue and Candes, Adaptive Restart for Accelerated Gradient
    Schemes, 2015, Section 3.2.
    """
    x, (v, A, b, G, h) = _vectors("projection_polyhedron", x, A=A, b=b, G=G, h=h)
    # A row with an infinite bound does not count; it must not reach a product with 0.
    bounded = h < jnp.inf
    G, h = jnp.where(bounded[:, None], G, 0), jnp.where(bounded, h, 0)
    problem = lax.stop_gradient((v, A, b, G, h))
    near, tight = _nearest(*problem, _tolerance(v, tol), maxiter)
    on = cast(tight, v.dtype)
    rows, sides = jnp.concatenate([A, on[:, None] * G]), jnp.concatenate([b, on * h])
    p = _onto_equalities(v, rows, sides)
    # The face is right if its point fits and no row pulls; else the iteration is nearer.
    fixed = lax.stop_gradient(p)
    # Room for the roundings of these products; `sizes` guards the division by rows of zeros.
    slack = 64 * jnp.finfo(v.dtype).eps * (1 + jnp.max(jnp.abs(v)) + jnp.max(jnp.abs(fixed)))
    sizes = jnp.maximum(jnp.sqrt(jnp.sum(problem[3] ** 2, axis=1)), 1e-30)
    fits = jnp.all((matmul(problem[3], fixed) - problem[4]) / sizes <= slack)
    inverse = one_by_one(jnp.linalg.pinv, lax.stop_gradient(rows))
    pulls = matmul(inverse.T, problem[0] - fixed)[A.shape[0] :]
    is_face = fits & jnp.all(jnp.where(tight, pulls * sizes, 0) >= -slack)
    return cast(p + jnp.where(is_face, 0, near - fixed), x.dtype)


def projection_box_section(x: Any, alpha: Any, beta: Any, w: Any, c: Any) -> Array:
    """Project onto a section of a box: the vectors p with alpha <= p <= beta and <w, p> = c.

    p = min(max(x + t w, alpha), beta), with the t that gives <w, p> = c: the sum rises with t, in
    straight pieces, and the piece is found among its sorted ends. If no such p is in the box, the
    result is the corner whose sum is nearest to c.

    Args:
      x: a vector `(n,)`.
      alpha: a vector `(n,)`, or a number; infinite for no bound.
      beta: likewise, at least `alpha`.
      w: a vector `(n,)`, of any signs.
      c: a number.

    Raises:
      ValueError: if the shapes do not fit.
    """
    x, (v, low, high, w) = _vectors(
        "projection_box_section", x, of_entries={"alpha": alpha, "beta": beta, "w": w}
    )
    c = cast(jnp.asarray(c), v.dtype)
    t = lax.stop_gradient(_inside_piece(v, low, high, w, c))
    shifted = lax.stop_gradient(v + t * w)
    free = (w != 0) & (shifted > low) & (shifted < high)
    fixed = jnp.clip(lax.stop_gradient(jnp.where(w == 0, v, shifted)), low, high)
    fixed = jnp.where(w == 0, jnp.clip(v, low, high), fixed)
    square = jnp.sum(jnp.where(free, w * w, 0))
    rest = c - jnp.sum(w * jnp.where(free, v, fixed))
    t = jnp.where(square == 0, 0, rest) / jnp.where(square == 0, 1, square)
    return cast(jnp.where(free, jnp.clip(v + t * w, low, high), fixed), x.dtype)


def projection_transport(
    sim_matrix: Any, marginals: tuple[Any, Any], tol: float | None = None, maxiter: int = 500
) -> Array:
    """Project onto a transport polytope: the matrices P >= 0 with given sums of rows and columns.

    P = max(S + u_i + v_j, 0). A turn chooses u and then v, each exactly, and tries a step of
    Newton's method on both, which it keeps where the sums come nearer.

    Args:
      sim_matrix: the matrix S, `(m, n)`.
      marginals: the sums a of the rows, `(m,)`, and b of the columns, `(n,)`; greater than 0, with
        equal totals.
      tol: the error of the sums, relative to the largest, at which the iteration ends; greater than
        0. Defaults to 8 roundings.
      maxiter: the most turns.

    Raises:
      ValueError: if the shapes do not fit.

    Reference: Blondel et al., Smooth and Sparse Optimal Transport, 2018, equations (6) and (7).
    """
    return _onto_transport_polytope("projection_transport", sim_matrix, marginals, tol, maxiter)


def projection_birkhoff(sim_matrix: Any, tol: float | None = None, maxiter: int = 500) -> Array:
    """Project onto the Birkhoff polytope: matrices P >= 0 whose rows and columns have the sum 1.

    See `projection_transport`.

    Args:
      sim_matrix: the matrix S, `(n, n)`.
      tol: the error of the sums at which the iteration ends, greater than 0. Defaults to 8
        roundings.
      maxiter: the most turns.

    Raises:
      ValueError: if the matrix is not square.
    """
    shape = jnp.shape(sim_matrix)
    if len(shape) != 2 or shape[0] != shape[1]:
        raise ValueError(f"projection_birkhoff: sim_matrix must be square, got shape {shape}.")
    ones = jnp.ones(shape[0], jnp.asarray(sim_matrix).dtype)
    return _onto_transport_polytope("projection_birkhoff", sim_matrix, (ones, ones), tol, maxiter)


for _function in (
    projection_sparse_simplex,
    projection_affine_set,
    projection_polyhedron,
    projection_box_section,
    projection_transport,
    projection_birkhoff,
):
    register(_function.__name__, _function)


# ------------------------------------------------------------------------------------- helpers


def _vectors(
    name: str, x: Any, of_entries: dict[str, Any] | None = None, **pairs: Any
) -> tuple[Array, list[Array]]:
    """Return x, and x and all others in float32 or wider; matrices and vectors come by turns."""
    x = jnp.asarray(x)
    if x.ndim != 1 or not jnp.issubdtype(x.dtype, jnp.floating):
        raise ValueError(f"{name}: x must be a vector of floats, (n,), got {shown(x)}.")
    others = {k: jnp.asarray(y) for k, y in (of_entries or pairs).items()}
    wide = at_least_float32(
        promote(
            x.dtype, *(y.dtype for y in others.values() if jnp.issubdtype(y.dtype, jnp.floating))
        )
    )
    rows = 0
    for k, y in others.items():
        if of_entries:
            wanted = x.shape
            others[k] = y = jnp.broadcast_to(y, x.shape) if y.ndim == 0 else y
        elif k in ("A", "G"):
            rows = y.shape[0] if y.ndim else 0
            wanted = (rows, x.size)
        else:
            wanted = (rows,)
        if y.shape != wanted:
            raise ValueError(f"{name}: {k} must have shape {wanted}, got {y.shape}.")
    return x, [cast(y, wide) for y in (x, *others.values())]


def _tolerance(like: Array, tol: float | None) -> Any:
    return 8 * jnp.finfo(like.dtype).eps if tol is None else tol


def _onto_equalities(x: Array, A: Array, b: Array) -> Array:
    """Return the nearest p with A p = b."""
    if not A.shape[0]:
        return x
    inverse = one_by_one(jnp.linalg.pinv, A)
    p = x - matmul(inverse, matmul(A, x) - b)
    return p - matmul(inverse, matmul(A, p) - b)  # what the first product has rounded away


def _nearest(
    x: Array, A: Array, b: Array, G: Array, h: Array, tol: Any, maxiter: int
) -> tuple[Array, Array]:
    """Return the point that the dual iteration ends at, and which rows of G have multipliers."""
    at = _onto_equalities(x, A, b)
    if not G.shape[0]:
        return at, jnp.zeros(0, jnp.bool_)
    along = G if not A.shape[0] else G - matmul(matmul(G, one_by_one(jnp.linalg.pinv, A)), A)
    # Rows of equal length make the dual problem as round as rows allow.
    sizes = jnp.sqrt(jnp.sum(along * along, axis=1))
    # What is left of a row that the rows of A span is rounding; it must not be made long.
    one = jnp.where(sizes > 1e-6 * jnp.sqrt(jnp.sum(G * G, axis=1)), sizes, jnp.inf)
    along, over = along / one[:, None], (matmul(G, at) - h) / one
    square = matmul(along, along.T)
    # The largest row sum is at least the largest eigenvalue: a step of its inverse converges.
    bound = jnp.maximum(jnp.max(jnp.sum(jnp.abs(square), axis=1)), 1e-30)

    def turn(carry: Any) -> Any:
        count, last, point, c, _ = carry
        new = jnp.maximum(point + (over - matmul(square, point)) / bound, 0)
        # Where momentum leads away from the solution, it begins anew.
        restarts = jnp.sum((point - new) * (new - last)) > 0
        c = jnp.where(restarts, 0, c)
        new_c = (1 + jnp.sqrt(1 + 4 * c * c)) / 2
        further = new + jnp.maximum(c - 1, 0) / new_c * (new - last)
        distance = jnp.max(jnp.abs(new - last)) + jnp.max(jnp.abs(new - point))
        return count + 1, new, further, new_c, distance > tol * jnp.max(new)

    zeros = jnp.zeros_like(over)
    start = (jnp.zeros((), jnp.int32), zeros, zeros, jnp.zeros((), x.dtype), jnp.any(over > 0))
    _, multipliers, *_ = _loop_onto_polytope(maxiter, turn, start)
    return at - matmul(along.T, multipliers), multipliers > 0


def _inside_piece(x: Array, low: Array, high: Array, w: Array, c: Array) -> Array:
    """Return a t inside the straight piece of <w, clip(x + t w)> that reaches c."""
    divisor = jnp.where(w == 0, 1, w)
    ends = jnp.concatenate([(low - x) / divisor, (high - x) / divisor])
    is_end = jnp.isfinite(ends) & jnp.concatenate([w != 0, w != 0])
    largest = jnp.max(jnp.where(is_end, ends, -jnp.inf))
    ends = jnp.sort(jnp.where(is_end, ends, jnp.where(jnp.any(is_end), largest, 0)))

    def halve(_: Any, bounds: tuple[Array, Array]) -> tuple[Array, Array]:
        below, above = bounds
        middle = (below + above) // 2
        is_low = jnp.sum(w * jnp.clip(x + ends[middle] * w, low, high)) <= c
        middle = jnp.where(above - below > 1, middle, below)
        is_low |= above - below <= 1
        return jnp.where(is_low, middle, below), jnp.where(is_low, above, middle)

    size = ends.shape[0]
    start = (jnp.asarray(-1, jnp.int32), jnp.asarray(size, jnp.int32))
    turns = size.bit_length() + 1
    below, above = by_program(lambda x: lax.fori_loop(0, turns, halve, x), start)
    first, last = ends[jnp.maximum(below, 0)], ends[jnp.minimum(above, size - 1)]
    step = 1 + jnp.abs(first)
    return jnp.where(
        below < 0, first - step, jnp.where(above >= size, last + step, first + (last - first) / 2)
    )


def _onto_transport_polytope(
    name: str, sim_matrix: Any, marginals: tuple[Any, Any], tol: float | None, maxiter: int
) -> Array:
    x = jnp.asarray(sim_matrix)
    a, b = (jnp.asarray(y) for y in marginals)
    if x.ndim != 2 or (a.shape, b.shape) != (x.shape[:1], x.shape[1:]):
        raise ValueError(
            f"{name}: sim_matrix (m, n) needs marginals (m,) and (n,), got {x.shape}, {a.shape} "
            f"and {b.shape}."
        )
    wide = at_least_float32(promote(x.dtype, a.dtype, b.dtype))
    s, a, b = (cast(y, wide) for y in (x, a, b))
    if not s.size:
        return x
    u, v = _transport_potentials(*lax.stop_gradient((s, a, b)), _tolerance(s, tol), maxiter)
    support = lax.stop_gradient(s + u[:, None] + v[None] > 0)
    du, dv = _transport_newton(s, a, b, u, v, support)
    new = s + (u + du)[:, None] + (v + dv)[None]
    return cast(jnp.where(support, jnp.maximum(new, 0), 0), x.dtype)


def _transport_newton(
    s: Array, a: Array, b: Array, u: Array, v: Array, support: Array
) -> tuple[Array, Array]:
    """Return the changes of u and v that would give the sums if the support stayed."""
    on = cast(support, s.dtype)
    plan = jnp.where(support, s + u[:, None] + v[None], 0)
    missing = jnp.concatenate([a - jnp.sum(plan, axis=1), b - jnp.sum(plan, axis=0)])
    system = jnp.block([[jnp.diag(jnp.sum(on, axis=1)), on], [on.T, jnp.diag(jnp.sum(on, axis=0))]])
    # A shift of u against v changes nothing: the system is singular, and this is its least change.
    change = matmul(one_by_one(_transport_inverse, system), missing)
    return change[: a.shape[0]], change[a.shape[0] :]


def _transport_inverse(system: Array) -> Array:
    return jnp.linalg.pinv(system, hermitian=True)


def _transport_potentials(
    s: Array, a: Array, b: Array, tol: Any, maxiter: int
) -> tuple[Array, Array]:
    """Return u and v for which max(s + u_i + v_j, 0) has the sums a and b."""
    of_rows = jax.vmap(lambda row, total: -_transport_threshold(row, total))
    scale = jnp.maximum(jnp.max(jnp.abs(a)), jnp.max(jnp.abs(b)))

    def error(u: Array, v: Array) -> Array:
        plan = jnp.maximum(s + u[:, None] + v[None], 0)
        rows, columns = jnp.abs(jnp.sum(plan, axis=1) - a), jnp.abs(jnp.sum(plan, axis=0) - b)
        return jnp.maximum(jnp.max(rows), jnp.max(columns))

    def turn(carry: Any) -> Any:
        count, _, v, _ = carry
        u = of_rows(s + v[None], a)
        v = of_rows((s + u[:, None]).T, b)
        du, dv = _transport_newton(s, a, b, u, v, s + u[:, None] + v[None] > 0)
        old, new = error(u, v), error(u + du, v + dv)
        better = new < old
        u, v = jnp.where(better, u + du, u), jnp.where(better, v + dv, v)
        return count + 1, u, v, jnp.where(better, new, old) > tol * scale

    start = (
        jnp.zeros((), jnp.int32),
        jnp.zeros_like(a),
        jnp.zeros_like(b),
        jnp.ones((), jnp.bool_),
    )
    _, u, v, _ = _loop_onto_polytope(maxiter, turn, start)
    return u, v


def _transport_threshold(row: Array, total: Array) -> Array:
    largest = jnp.max(row)
    return threshold_of(row - largest, total) + largest


def _loop_onto_polytope(maxiter: int, turn: Callable[[Any], Any], begun: Any) -> Any:
    """Return the end of turns that count themselves first and say last whether they go on."""
    return by_program(
        lambda x: lax.while_loop(lambda carry: carry[-1] & (carry[0] < maxiter), turn, x), begun
    )
