"""Differentially private aggregation of the gradients of single examples."""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from gradxform import engine
from gradxform.base import Transform, transform
from gradxform.errors import name_of, require_finite
from gradxform.leaves import align, dtype_of, path_at
from gradxform.leaves.states import check_state
from gradxform.numerics import abs_sq, at_least_float32, cast, is_zero, scalar, shrinking
from gradxform.numerics.roots import root
from gradxform.slots import zero_count
from gradxform.transforms.tree_rules import key_or_seed, live_key
from gradxform.types import (
    Array,
    Bound,
    Key,
    NonNegative,
    Params,
    PyTree,
    Scalar,
    Updates,
)
from gradxform.values.fields import set_fields

__all__ = [
    "differentially_private_aggregate",
    "per_example_global_norm_clip",
    "per_example_layer_norm_clip",
    "DifferentiallyPrivateAggregateState",
]


class DifferentiallyPrivateAggregateState(NamedTuple):
    """State of `differentially_private_aggregate`."""

    rng_key: Array  # the PRNG key of the next draw


def _wide_private_gradient(g: Any) -> Array:
    return cast(g, at_least_float32(dtype_of(g)))


def _sum_sq_per_private_example(g: Any) -> Array:
    return jnp.sum(abs_sq(_wide_private_gradient(g)), axis=tuple(range(1, g.ndim)))


def _weighted_private_sum(g: Any, factors: Array) -> Array:
    """Return the sum over the examples, each with its factor, in float32 or wider."""
    wide = _wide_private_gradient(g)
    # A dot product, because XLA would fuse a sum of products with later draws, entry by entry.
    return jnp.tensordot(
        cast(factors, wide.dtype), wide, axes=1, precision=jax.lax.Precision.HIGHEST
    )


def _clipped_private_sum(g: Any, factors: Array) -> Array:
    return cast(_weighted_private_sum(g, factors), dtype_of(g))


def _private_mean(g: Any, key: Array, factors: Array, deviation: Scalar) -> Array:
    total = _weighted_private_sum(g, factors)
    noise = jax.random.normal(key, g.shape[1:], total.dtype)
    total = total + jnp.asarray(deviation, total.dtype) * noise
    return cast(total / g.shape[0], dtype_of(g))


@transform
class differentially_private_aggregate(Transform):
    """Clip the gradient of every example, sum, add noise, and divide by their number.

    Update rule, with g[i] the gradient of example i of B, |x| the Euclidean norm over every entry
    of the tree in float32, and z standard normal, drawn anew for every entry:

        u = (sum over i of g[i] min(1, l2_norm_clip / |g[i]|) + noise_multiplier l2_norm_clip z) / B

    Every gradient has a leading axis of examples, as `jax.vmap` of a gradient returns it; the
    updates do not have this axis. Must be the first part of a chain. Averaging several of these
    updates, as accumulation does, changes the privacy guarantee. The draws are Optax's.

    Args:
      l2_norm_clip: the largest norm of an example's gradient, greater than 0; may be infinite
        without noise.
      noise_multiplier: the standard deviation of the noise over l2_norm_clip, at least 0.
      key: the seed of the noise: an integer or a PRNG key. Defaults to 0, with a warning. `seed` is
        its old name.

    Raises:
      ValueError: at update, if a gradient does not have a leading axis of examples, or the numbers
        of examples differ.

    Reference: Abadi et al., Deep Learning with Differential Privacy, 2016, Algorithm 1.
    """

    l2_norm_clip: Bound
    noise_multiplier: NonNegative
    key: Key

    locality = "tree"
    set_by = (("rng_key", "key"),)

    def __init__(
        self,
        l2_norm_clip: float,
        noise_multiplier: float,
        key: Key = None,
        *,
        seed: int | None = None,
    ):
        key = key_or_seed(self, key, seed)
        set_fields(self, l2_norm_clip=l2_norm_clip, noise_multiplier=noise_multiplier, key=key)

    def __post_init__(self):
        if not is_zero(self.noise_multiplier):  # the bound scales the noise
            require_finite(self, "l2_norm_clip")

    def init(self, params):
        """Return the key."""
        return DifferentiallyPrivateAggregateState(rng_key=live_key(self.key))

    def update(self, updates, state, params=None, **extra):
        """Return the mean of the clipped gradients, with noise."""
        check_state(self, state, DifferentiallyPrivateAggregateState)
        gs, treedef = jax.tree.flatten(updates)
        _check_private_examples(self, updates, gs, treedef, params)
        rng_key, *keys = jax.random.split(state.rng_key, len(gs) + 1)
        state = state._replace(rng_key=rng_key)
        if not gs:
            return updates, state
        factors = shrinking(_norms_of_private_examples(gs), self.l2_norm_clip)
        deviation = 0.0
        if not is_zero(self.noise_multiplier):  # else an infinite bound would make it NaN
            deviation = self.l2_norm_clip * self.noise_multiplier
        means = engine.map_rows(_private_mean, [gs, keys], factors, deviation)
        return jax.tree.unflatten(treedef, means), state


def per_example_global_norm_clip(grads: Updates, l2_norm_clip: Any) -> tuple[Updates, Array]:
    """Clip the gradient of every example by its norm over the whole tree, and sum.

    With |g[i]| the Euclidean norm of example i over every entry of the tree, in float32 or wider:

        u = sum over i of g[i] min(1, l2_norm_clip / |g[i]|)

    Args:
      grads: gradients with a leading axis of examples.
      l2_norm_clip: the largest norm of an example's gradient, at least 0; infinite for no clipping.

    Returns:
      The sum, in the dtypes of the gradients, and the number of examples that were clipped (int32).

    Raises:
      ValueError: if a gradient does not have a leading axis of examples, the numbers of examples
        differ, or `l2_norm_clip` is below 0.

    Reference: Abadi et al., Deep Learning with Differential Privacy, 2016, Algorithm 1.
    """
    part = "per_example_global_norm_clip"
    gs, treedef = _private_examples(part, "l2_norm_clip", grads, l2_norm_clip)
    if not gs:
        return grads, zero_count()
    factors = shrinking(_norms_of_private_examples(gs), l2_norm_clip)
    sums = engine.map_rows(_clipped_private_sum, [gs], factors)
    return jax.tree.unflatten(treedef, sums), _count_clipped_private_examples(factors)


def per_example_layer_norm_clip(
    grads: Updates, global_l2_norm_clip: Any, uniform: bool = True
) -> tuple[Updates, PyTree]:
    """Clip the gradient of every example array by array, and sum.

    With C the clip norm of the whole tree, array k of K has the clip norm C / sqrt(K), or with
    `uniform=False` C sqrt(share of the parameters that are in array k), so that an example's
    gradient has a norm of at most C. See `per_example_global_norm_clip`.

    Args:
      grads: gradients with a leading axis of examples.
      global_l2_norm_clip: C, at least 0; infinite for no clipping.
      uniform: whether all arrays have the same clip norm.

    Returns:
      The sum, in the dtypes of the gradients, and for every array the number of examples that were
      clipped there (int32).

    Raises:
      ValueError: if a gradient does not have a leading axis of examples, the numbers of examples
        differ, or `global_l2_norm_clip` is below 0.

    Reference: McMahan et al., Learning Differentially Private Recurrent Language Models, 2018,
    section 3.
    """
    part = "per_example_layer_norm_clip"
    gs, treedef = _private_examples(part, "global_l2_norm_clip", grads, global_l2_norm_clip)
    sizes = [1 if uniform else math.prod(g.shape[1:]) for g in gs]
    sums, counts = [], []
    for g, size in zip(gs, sizes, strict=True):
        share = math.sqrt(size / max(sum(sizes), 1))
        # An array without entries has a share of 0, and infinity times 0 is NaN.
        factors = shrinking(
            _norms_of_private_examples([g]), global_l2_norm_clip * share if share else 0.0
        )
        sums += engine.map_rows(_clipped_private_sum, [[g]], factors)
        counts.append(_count_clipped_private_examples(factors))
    return jax.tree.unflatten(treedef, sums), jax.tree.unflatten(treedef, counts)


def _private_examples(part: str, name: str, grads: Updates, bound: Any) -> tuple[list[Any], Any]:
    """Return the leaves of gradients of examples, and check them and the bound on their norm."""
    if isinstance(bound, int | float) and not bound >= 0:
        raise ValueError(f"{part}: {name} must be at least 0, got {bound!r}.")
    engine.refuse_rows(part, grads, "needs one gradient for each example")
    gs, treedef = jax.tree.flatten(grads)
    _check_private_examples(part, grads, gs, treedef, None)
    return gs, treedef


def _norms_of_private_examples(gs: list[Any]) -> Array:
    """Return the norm of each example over several arrays."""
    total: Any = sum(map(scalar, engine.map_rows(_sum_sq_per_private_example, [gs])))
    return root(total)


def _count_clipped_private_examples(factors: Array) -> Array:
    return jnp.sum(factors < 1, dtype=jnp.int32)


def _check_private_examples(
    part: Any, updates: Updates, gs: list[Any], treedef: Any, params: Params | None
) -> None:
    """Require real gradients, one per example, that have the shapes of the parameters."""
    ps = gs
    if params is not None:
        ps = align(part, updates, treedef, params, "the parameters have").leaves
    for i, (g, p) in enumerate(zip(gs, ps, strict=True)):
        gradient = f"{name_of(part)}: gradient of {path_at(updates, i)}"
        if not jnp.issubdtype(dtype_of(g), jnp.floating):
            raise TypeError(
                f"{gradient} has dtype {dtype_of(g)}; only real floating gradients can be "
                "transformed."
            )
        if not jnp.ndim(g) or not g.shape[0]:
            raise ValueError(
                f"{gradient} has shape {jnp.shape(g)}; it must have a leading axis of "
                "examples, with one gradient for each."
            )
        if g.shape[0] != gs[0].shape[0]:
            raise ValueError(
                f"{gradient} has {g.shape[0]} examples, that of {path_at(updates, 0)} has "
                f"{gs[0].shape[0]}."
            )
        if params is not None and g.shape[1:] != jnp.shape(p):
            raise ValueError(
                f"{gradient} has shape {g.shape[1:]} after its axis of examples, the parameter "
                f"has {jnp.shape(p)}."
            )
