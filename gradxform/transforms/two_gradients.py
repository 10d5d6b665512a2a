"""Rules of two gradients: that where a step begins, and that at a worse place nearby.

`sam` hands them the first beside the second; `gsam`, `wsam` and `looksam` put them before the
optimizer.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from gradxform.base import ArrayRule, transform
from gradxform.engine import PerLeaf, tree_sums
from gradxform.leaves import align, check_shapes
from gradxform.numerics import as_flag, over, scalar
from gradxform.numerics.overflow import clipped, settled
from gradxform.numerics.roots import root
from gradxform.transforms.tree_rules import columns_of, tree_tamings
from gradxform.types import Array, Finite, PyTree, Scalar, Slot, Updates


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

    def prepare(self, updates, state, params, *, first_gradients):
        """Return the first gradient for every leaf."""
        return state, PerLeaf(self._first(updates, first_gradients))

    def rule(self, h, p, g):
        """Return the sum."""
        return self.of_first * g + self.of_last * h


@transform
class subtract_surrogate_gap(TakesFirstGradients):
    """Turn the gradient after a climb so that a step narrows the gap to the loss there.

    Update rule, with g the gradient where the step of `sam` begins, h that after its climb, and
    inner products over the whole tree:

        w = g - <g, h> / |h|^2 h
        u = h - alpha w

    Args:
      alpha: the weight of the gap, finite.

    Raises:
      TypeError: at update, without the extra argument `first_gradients`, which `sam` gives.
      ValueError: at update, if no parameters are given.

    Reference: Zhuang et al., Surrogate Gap Minimization Improves Sharpness-Aware Training, 2022,
    Algorithm 1.
    """

    alpha: Finite = 0.4

    def prepare(self, updates, state, params, *, first_gradients):
        """Return <g, h> / |h|^2, and g for every leaf."""
        firsts = self._first(updates, first_gradients)
        hs = jax.tree.leaves(updates)
        of_g, of_h = tree_tamings(updates, firsts, hs)
        sums = tree_sums(_product_and_square, updates, [firsts, hs], of_g, of_h)
        share = clipped(settled(over(*sums, 0)) * (of_h / of_g))
        return state, share, PerLeaf(firsts)

    def rule(self, h, p, share, g):
        """Return the turned gradient."""
        return h - self.alpha * (g - share * h)


def _product_and_square(g: Array, h: Array, of_g: Scalar, of_h: Scalar) -> tuple[Array, Array]:
    g, h = settled(of_g * g), settled(of_h * h)
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

    def prepare(self, updates, state, params, *, first_gradients, after_climb):
        """Return whether this is after a climb, the shares of g and v, and g for every leaf."""
        climbed = as_flag(self, "after_climb", after_climb)
        firsts = self._first(updates, first_gradients)
        hs, vs, _ = columns_of(self, updates, state, params)
        leaves = [firsts, hs, vs]
        tame = tree_tamings(updates, *leaves)
        sums = tree_sums(_products, updates, leaves, *tame)
        both, of_first, of_last, of_part = sums
        of_g = clipped(settled(over(both, of_first, 0)) * (tame[0] / tame[1]))
        ratio = settled(over(root(of_last), root(of_part), 0)) * (tame[2] / tame[1])
        of_v = scalar(self.alpha) * clipped(ratio)
        return state, climbed, of_g, of_v, PerLeaf(firsts)

    def rule(self, h, v, p, climbed, of_g, of_v, g):
        """Return the gradient with its sharpness, and the part that is kept."""
        return jnp.where(climbed, h, h + of_v * v), jnp.where(climbed, h - of_g * g, v)


def _products(
    g: Array, h: Array, v: Array, of_g: Scalar, of_h: Scalar, of_v: Scalar
) -> tuple[Array, Array, Array, Array]:
    g, h, v = settled(of_g * g), settled(of_h * h), settled(of_v * v)
    return g * h, g * g, h * h, v * v
