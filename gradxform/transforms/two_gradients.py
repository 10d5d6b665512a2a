"""Rules of two gradients: that where a step begins, and that at a worse place nearby.

`sam` hands them the first beside the second; `gsam`, `wsam` and `looksam` put them before the
optimizer.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from gradxform.base import ArrayRule, EmptyState, transform
from gradxform.engine import PerLeaf
from gradxform.leaves import align, check_shapes
from gradxform.numerics import as_flag, over, scalar
from gradxform.numerics.roots import root
from gradxform.transforms.tree_rules import columns_of, tree_sums
from gradxform.types import Array, Finite, Params, PyTree, Scalar, Slot, Updates

__all__ = [
    "mix_gradients",
    "reuse_sharpness",
    "subtract_surrogate_gap",
    "ReuseSharpnessState",
]


class TakesFirstGradients(ArrayRule):
    """Base of rules that need the first gradients of a period of `sam`."""

    locality = "tree"
    sees_pieces = True
    needs_params = True

    def _first(self, updates: Updates, first_gradients: PyTree) -> list[Array]:
        """Return the first gradient for every leaf."""
        treedef = jax.tree.structure(updates)
        firsts = align(self, updates, treedef, first_gradients, "the first gradients have").leaves
        check_shapes(self, updates, firsts, "its first gradient has")
        return firsts


@transform
class mix_gradients(TakesFirstGradients):
    """Add multiples of the gradients at both places.

    Update rule, with g the gradient where the step of `sam` begins and h that after its climb:

        u = of_first g + of_last h

    Args:
      of_first: the factor of g, finite.
      of_last: the factor of h, finite.

    Raises:
      TypeError: at update, without the extra argument `first_gradients`, which `sam` gives.
      ValueError: at update, if no parameters are given.

    Reference: Yue et al., Sharpness-Aware Minimization Revisited: Weighted Sharpness as a
    Regularization Term, 2023, Algorithm 1.
    """

    of_first: Finite
    of_last: Finite

    def prepare(
        self, updates: Updates, state: EmptyState, params: Params, *, first_gradients: Any
    ) -> tuple[EmptyState, PerLeaf]:
        """Return the first gradient for every leaf."""
        return state, PerLeaf(self._first(updates, first_gradients))

    def rule(self, h: Array, p: Array, g: Array) -> Array:
        """Return the sum."""
        return self.of_first * g + self.of_last * h


@transform
class subtract_surrogate_gap(TakesFirstGradients):
    """Turn the gradient after a climb so that a step narrows the gap to the loss there.

    Update rule, with g the gradient where the step of `sam` begins, h that after its climb, and
    inner products over the whole tree:

        w = g - <g, h> / |h|^2 h
        u = h - alpha w

    Gradients above 1e18 (in float32) have infinite squares: clip them.

    Args:
      alpha: the weight of the gap, finite.

    Raises:
      TypeError: at update, without the extra argument `first_gradients`, which `sam` gives.
      ValueError: at update, if no parameters are given.

    Reference: Zhuang et al., Surrogate Gap Minimization Improves Sharpness-Aware Training, 2022,
    Algorithm 1.
    """

    alpha: Finite = 0.4

    def prepare(
        self, updates: Updates, state: EmptyState, params: Params, *, first_gradients: Any
    ) -> tuple[EmptyState, Array, PerLeaf]:
        """Return <g, h> / |h|^2, and g for every leaf."""
        firsts = self._first(updates, first_gradients)
        hs = jax.tree.leaves(updates)
        both, square = tree_sums(_two_gradients_product_and_square, updates, [firsts, hs])
        return state, over(both, square, 0), PerLeaf(firsts)

    def rule(self, h: Array, p: Array, share: Scalar, g: Array) -> Array:
        """Return the turned gradient."""
        return h - self.alpha * (g - share * h)


def _two_gradients_product_and_square(g: Array, h: Array) -> tuple[Array, Array]:
    return g * h, h * h


class ReuseSharpnessState(NamedTuple):
    """State of `reuse_sharpness`."""

    sharpness: Slot  # like params, at least float32; the part v of the last gradient after a climb


@transform
class reuse_sharpness(TakesFirstGradients):
    """Add to a gradient the part that the last climb had added to another, in the same proportion.

    Update rule, with g the gradient where the step of `sam` begins, h that after its climb, and
    norms and inner products over the whole tree, from v = 0:

        u = h,                     v <- h - <g, h> / |g|^2 g      (after a climb)
        u = g + alpha |g| / |v| v                                 (at its plain steps)

    Gradients above 1e18 (in float32) have infinite squares: clip them.

    Args:
      alpha: the size of what is added, relative to the gradient, finite.

    Raises:
      TypeError: at update, without the extra arguments `first_gradients` and `after_climb`, which
        `sam` gives.
      ValueError: at update, if no parameters are given.

    Reference: Liu et al., Towards Efficient and Scalable Sharpness-Aware Minimization, 2022,
    Algorithm 1.
    """

    alpha: Finite = 0.7

    State = ReuseSharpnessState

    def prepare(
        self,
        updates: Updates,
        state: ReuseSharpnessState,
        params: Params,
        *,
        first_gradients: Any,
        after_climb: Any,
    ) -> tuple[Any, ...]:
        """Return whether this is after a climb, the shares of g and v, and g for every leaf."""
        climbed = as_flag(self, "after_climb", after_climb)
        firsts = self._first(updates, first_gradients)
        hs, vs, _ = columns_of(self, updates, state, params)
        leaves = [firsts, hs, vs]
        both, of_first, of_last, of_part = tree_sums(_products_of_two_gradients, updates, leaves)
        of_g = over(both, of_first, 0)
        of_v = scalar(self.alpha) * over(root(of_last), root(of_part), 0)
        return state, climbed, of_g, of_v, PerLeaf(firsts)

    def rule(
        self, h: Array, v: Array, p: Array, climbed: Array, of_g: Scalar, of_v: Scalar, g: Array
    ) -> tuple[Array, Array]:
        """Return the gradient with its sharpness, and the part that is kept."""
        return jnp.where(climbed, h, h + of_v * v), jnp.where(climbed, h - of_g * g, v)


def _products_of_two_gradients(g: Array, h: Array, v: Array) -> tuple[Array, Array, Array, Array]:
    return g * h, g * g, h * h, v * v
