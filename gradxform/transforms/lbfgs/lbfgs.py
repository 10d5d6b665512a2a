"""L-BFGS: an approximation of the inverse Hessian from the last steps."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from gradxform import engine, linalg
from gradxform.base import ArrayRule, transform
from gradxform.errors import name_of, require_at_least
from gradxform.leaves import align_params, align_slot, check_shapes
from gradxform.numerics import (
    abs_sq,
    add,
    at_least_float32,
    cast,
    promote,
    real_dtype,
    safe_increment,
    scalar,
    scalar_dtype,
)
from gradxform.numerics.roots import one_over_root
from gradxform.slots import zero_count, zeros_like
from gradxform.types import Array, Params, Scalar, Size, Slot


class ScaleByLBFGSState(NamedTuple):
    """State of `scale_by_lbfgs`."""

    count: Array  # int32 scalar; the number of updates so far
    params: Slot  # like params, at least float32; the parameters of the last update
    updates: Slot  # like params, at least float32; the gradient of the last update
    diff_params_memory: Slot  # (memory_size, *shape) per parameter; the last steps s
    diff_updates_memory: Slot  # (memory_size, *shape) per parameter; the changes y of the gradient
    weights_memory: Array  # (memory_size,), at least float32; rho = 1 / <y, s>, 0 without a pair


@transform
class scale_by_lbfgs(ArrayRule):
    """Multiply the gradient by L-BFGS's approximation of the inverse Hessian.

    Update rule, all parameters in one vector, with s = p_k - p_{k-1} and y = g_k - g_{k-1} for the
    last `memory_size` updates:

        rho = 1 / <y, s>
        H <- gamma I
        H <- (I - rho s y^T) H (I - rho y s^T) + rho s s^T      (from the oldest pair to the newest)
        u = H g

    with gamma = <s, y> / |y|^2 of the newest pair. Before there is a pair, gamma = min(1, 1 / |g|).
    A pair with <y, s> = 0 is left out.

    H is never formed. u is a combination of the gradient and the memory, and its weights come from
    the inner products of these vectors, which are all summed together: on a mesh, one exchange a
    direction. The memory takes 2 memory_size arrays like the parameters.

    u is a direction to descend along once a step length is known: put a line search after it, as
    `lbfgs` does. The gradients of one and the same loss must come in: on batches that differ, y
    says little about the curvature.

    Args:
      memory_size: how many pairs are kept, at least 1.
      scale_init_precond: whether H starts from gamma I. Else, gamma is 1.

    Raises:
      ValueError: at update, if no parameters are given, or a state of another memory size.

    Reference: Nocedal and Wright, Numerical Optimization, 1999, Algorithms 7.4 and 7.5; Liu and
    Nocedal, On the limited memory BFGS method for large scale optimization, 1989; Chen et al.,
    Large-scale L-BFGS using MapReduce, 2014, for the inner products.
    """

    memory_size: Size = 10
    scale_init_precond: bool = True

    State = ScaleByLBFGSState
    locality = "tree"
    needs_params = True
    handles_complex = True

    def __post_init__(self):
        require_at_least(self, 1, "memory_size")

    def init(self, params):
        """Return an empty memory."""
        return ScaleByLBFGSState(
            count=zero_count(),
            params=zeros_like(params),
            updates=zeros_like(params),
            diff_params_memory=empty_memory(params, self.memory_size),
            diff_updates_memory=empty_memory(params, self.memory_size),
            weights_memory=jnp.zeros(self.memory_size, scalar_dtype()),
        )

    def prepare(self, updates, state, params):
        """Return the state with the newest pair, and the weights of g, of every s and every y."""
        check_memory(self, state.weights_memory)
        gs, treedef = jax.tree.flatten(updates)
        ps = align_params(self, updates, treedef, params).leaves
        names = ("params", "updates", "diff_params_memory", "diff_updates_memory")
        slots = [align_slot(self, updates, treedef, state, name) for name in names]
        for name, slot in zip(names[:2], slots, strict=False):
            check_shapes(self, updates, slot.leaves, f"the state's {name} has")

        has_pair = state.count > 0
        newest = jnp.mod(state.count - 1, self.memory_size)
        columns = [gs, ps, *(slot.leaves for slot in slots)]
        leaves = engine.map_rows(_remember_pair, columns, has_pair, newest)
        products, g_squared = _total_products([leaf[4:] for leaf in leaves], self.memory_size)

        # Pairs of a huge gradient, whose products are not in the range, say nothing.
        products = jnp.where(jnp.isfinite(products), products, 0)
        s_y = products[: self.memory_size]
        y_y = products[self.memory_size :]
        s_dot_y, y_squared = s_y[newest, newest], y_y[newest, newest]
        weight = jnp.where(s_dot_y == 0, 0, 1 / jnp.where(s_dot_y == 0, 1, s_dot_y))
        weights = state.weights_memory.at[newest].set(
            cast(jnp.where(has_pair, weight, 0), state.weights_memory.dtype)
        )
        gamma = jnp.ones((), products.dtype)
        if self.scale_init_precond:
            gamma = jnp.where(y_squared > 0, s_dot_y / jnp.where(y_squared > 0, y_squared, 1), 1)
            gamma = jnp.where(
                has_pair, gamma, jnp.where(g_squared > 1, one_over_root(g_squared), 1)
            )
        order = jnp.mod(
            state.count + jnp.arange(self.memory_size, dtype=jnp.int32), self.memory_size
        )
        of_s, of_y = two_loops(s_y, y_y, cast(weights, products.dtype), gamma, order)
        new = {
            name: slot.rebuilt([leaf[i] for leaf in leaves])
            for i, (name, slot) in enumerate(zip(names, slots, strict=True))
        }
        state = state._replace(count=safe_increment(state.count), weights_memory=weights, **new)
        return state, gamma, of_s, of_y

    def rule(self, g, last_p, last_g, s, y, p, of_g, of_s, of_y):
        """Return the combination of the gradient and the memory."""
        weights = [cast(w, s.dtype) for w in (of_s, of_y)]
        u = of_g * g
        for w, memory in zip(weights, (s, y), strict=True):
            u = u + linalg.weighted_sum(w, memory)
        return u, last_p, last_g, s, y


def check_memory(part: Any, of_pairs: Array) -> None:
    """Require a state with as many places for pairs as the part has; `of_pairs` has them all."""
    size = of_pairs.shape[0]
    if size != part.memory_size:
        raise ValueError(
            f"{name_of(part)}: the state holds {size} pairs, memory_size is {part.memory_size}. "
            f"Go on with memory_size={size}, or start again with init."
        )


def empty_memory(params: Params, memory_size: int) -> Any:
    """Return zeros for the last steps, or for the changes of the gradient."""
    return jax.tree.map(lambda z: jnp.stack([z] * memory_size), zeros_like(params))


def _remember_pair(
    g: Any,
    p: Any,
    last_p: Array,
    last_g: Array,
    s: Array,
    y: Array,
    has_pair: Array,
    newest: Array,
) -> tuple[Array, ...]:
    """Return a leaf's slots with the newest pair in the memory, and its inner products.

    The products are those of every s, then of every y, with every y and with g; and |g|^2.
    """
    dtype = promote(s.dtype, at_least_float32(jnp.asarray(g).dtype))
    g, p = (cast(jnp.asarray(x), s.dtype) for x in (g, p))
    step, change = (
        jnp.where(has_pair, new - old, 0).astype(s.dtype) for new, old in ((p, last_p), (g, last_g))
    )
    s = lax.dynamic_update_index_in_dim(s, step, newest, 0)
    y = lax.dynamic_update_index_in_dim(y, change, newest, 0)
    # The gradient as it came, which may be wider than the memory.
    wide = cast(g, dtype)
    products = jnp.concatenate(
        [
            jnp.concatenate([inner(m, y), inner(m, wide[None])], axis=1, dtype=real_dtype(dtype))
            for m in (s, y)
        ]
    )
    return p, g, s, y, products, jnp.sum(abs_sq(wide))


def inner(a: Array, b: Array) -> Array:
    """Return the real inner products of the arrays along axis 0 of `a` and of `b`, a matrix."""
    dtype = promote(a.dtype, b.dtype)
    return jnp.real(linalg.inner_products(cast(a, dtype), cast(b, dtype)))


def _total_products(products: list[tuple[Array, ...]], memory_size: int) -> tuple[Array, Array]:
    """Return the sums over the leaves of their inner products, and of |g|^2."""
    zeros = jnp.zeros((2 * memory_size, memory_size + 1), scalar_dtype())
    total = functools.reduce(add, (x for x, _ in products), zeros)
    squared = functools.reduce(add, (scalar(x) for _, x in products), zeros[0, 0])
    return total, squared


# Its loops have new functions at each call: outside of a trace they are compiled once as a whole.
@functools.partial(jax.jit, inline=True)
def two_loops(
    s_y: Array, y_y: Array, weights: Array, gamma: Scalar, order: Array
) -> tuple[Array, Array]:
    """Return the weights of every s and of every y in H g; that of g is `gamma`.

    The two loops of Nocedal and Wright's Algorithm 7.4, on inner products in place of vectors.

    Args:
      s_y: (m, m + 1); the inner products of every s with every y, then with g.
      y_y: (m, m + 1); those of every y.
      weights: (m,); rho of every pair.
      gamma: H before the first pair is gamma I.
      order: (m,); the indices of the pairs, the oldest first.
    """
    m = len(order)
    zeros = jnp.zeros(m, s_y.dtype)

    def backward(k: Array, alphas: Array) -> Array:
        i = order[m - 1 - k]
        alpha = weights[i] * (s_y[i, m] - jnp.sum(s_y[i, :m] * alphas))
        return alphas.at[i].set(alpha)

    alphas = lax.fori_loop(0, m, backward, zeros)
    # <y, r> for r = gamma (g - the sum of alpha y), where the second loop starts.
    started = gamma * (y_y[:, m] - jnp.sum(y_y[:, :m] * alphas[None], axis=1))

    def forward(k: Array, of_s: Array) -> Array:
        i = order[k]
        beta = weights[i] * (started[i] + jnp.sum(s_y[:, i] * of_s))
        return of_s.at[i].set(alphas[i] - beta)

    return lax.fori_loop(0, m, forward, zeros), -gamma * alphas
