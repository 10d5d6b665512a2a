"""Gradients before anything has changed them, as RETURNN's options see them.

Noise, bounds of their own norms and of raw ones, filters; and a wrapper that tells its inner
transform of the raw norms.
"""

from dataclasses import field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from gradxform.base import (
    ArrayRule,
    EmptyState,
    Transform,
    call_update,
    check_transform,
    tell_moved,
    transform,
)
from gradxform.engine import PerLeaf, global_norm
from gradxform.errors import name_of
from gradxform.leaves import align, flatten_updates, leaves_of, masks, require_params
from gradxform.leaves.row_sparse import RowSparse
from gradxform.leaves.states import check_state
from gradxform.numerics import as_step, safe_increment, scalar, shrinking
from gradxform.slots import zero_count
from gradxform.transforms.matrices.array_norms import array_norm, array_size
from gradxform.transforms.together import KeptTogether, ScaledTogether
from gradxform.transforms.tree_rules import key_or_seed, live_key
from gradxform.types import Array, Bound, Key, NonNegative, Updates
from gradxform.values.field_kinds import check_mask
from gradxform.values.fields import set_fields


class AddTruncatedNoiseState(NamedTuple):
    """State of `add_truncated_noise`."""

    rng_key: Array  # the PRNG key of the next draw


@transform
class add_truncated_noise(ArrayRule):
    """Add Gaussian noise without outliers, of the same size in every step.

    Update rule, with z standard normal, cut at -2 and 2, drawn anew for every entry:

        u = g + deviation z

    Args:
      deviation: the factor of the noise, at least 0.
      key: the seed of the noise: an integer or a PRNG key. Defaults to 0, with a warning.

    Reference: `gradient_noise` of RETURNN.
    """

    deviation: NonNegative
    key: Key

    # The rule is per entry, but the keys depend on the number of leaves.
    State = AddTruncatedNoiseState
    locality = "tree"
    rule_locality = "entry"
    set_by = (("rng_key", "key"),)

    def __init__(self, deviation: float, key: Key = None):
        set_fields(self, deviation=deviation, key=key_or_seed(self, key, None))

    def init(self, params):
        """Return the key."""
        return AddTruncatedNoiseState(rng_key=live_key(self.key))

    def prepare(self, updates, state, params):
        """Return the state with the next key, the deviation, and a key for every leaf."""
        rng_key, step_key = jax.random.split(state.rng_key)
        keys = jax.random.split(step_key, len(leaves_of(updates)))
        return state._replace(rng_key=rng_key), scalar(self.deviation), PerLeaf(list(keys))

    def rule(self, g, p, deviation, key):
        """Return the update plus noise."""
        return g + deviation * jax.random.truncated_normal(key, -2, 2, g.shape, g.dtype)


@transform
class clip_by_mean_norm(ArrayRule):
    """Scale down every array whose norm, divided by the number of its entries, exceeds a maximum.

    Update rule, with |g| the Euclidean norm of one array of m entries:

        u = g max_norm / max(|g| / m, max_norm)

    An empty array stays as it is.

    Args:
      max_norm: the largest quotient, greater than 0; infinite for no clipping.

    Reference: `gradient_clip_avg_norm` of RETURNN.
    """

    max_norm: Bound

    locality = "array"
    sees_pieces = True
    handles_complex = True

    def rule(self, g, p):
        """Return the update, scaled down if it is large."""
        mean = array_norm(g) / array_size(g)
        return g * shrinking(mean, self.max_norm)


def _norm(part: Any, updates: Updates, raw_norms: Any) -> Array:
    """Return the norm with the tag of a part, or else that of the updates."""
    if raw_norms is None:
        if part.tag is not None:
            raise TypeError(
                f"{name_of(part)}: tag={part.tag!r} names a norm of raw_gradient_norms, which is "
                "not around this part; put it around, or leave out the tag."
            )
        return scalar(global_norm(updates))
    if (part.tag or "") not in raw_norms:
        tags = ", ".join(map(repr, filter(None, raw_norms))) or "no tags"
        raise ValueError(
            f"{name_of(part)}: raw_gradient_norms around this part has {tags}, not {part.tag!r}."
        )
    return scalar(raw_norms[part.tag or ""])


@transform
class clip_by_raw_norm(ScaledTogether):
    """Scale all updates down together if the norm of the raw gradients exceeds a maximum.

    Update rule, with N the norm that `raw_gradient_norms` around this part has seen:

        u = g max_norm / max(N, max_norm)

    Without it, N is the norm of these updates, as in `clip_by_global_norm`. A NaN among
    the raw gradients makes everything NaN.

    Args:
      max_norm: the largest norm, greater than 0; infinite for no clipping.
      tag: which parameters, by the name in `raw_gradient_norms`. Defaults to all.

    Raises:
      TypeError: at update, if there is a tag and no `raw_gradient_norms`.

    Reference: `gradient_clip_global_norm` of RETURNN.
    """

    max_norm: Bound
    tag: str | None = None

    def prepare(self, updates, state, params, *, raw_norms=None):
        """Return the factor for all leaves."""
        return state, shrinking(_norm(self, updates, raw_norms), self.max_norm)


@transform
class zero_above_raw_norm(KeptTogether):
    """Replace all updates by 0 if the norm of the raw gradients exceeds a maximum or is not finite.

    N as in `clip_by_raw_norm`. What comes after this part runs all the same; `apply_if_finite`, in
    contrast, skips it.

    Args:
      max_norm: the largest norm that passes, greater than 0.
      tag: which parameters, by the name in `raw_gradient_norms`. Defaults to all.

    Raises:
      TypeError: at update, if there is a tag and no `raw_gradient_norms`.

    Reference: `grad_norm_to_clip_to_zero` of RETURNN.
    """

    max_norm: Bound
    tag: str | None = None

    def prepare(self, updates, state, params, *, raw_norms=None):
        """Return whether the updates pass."""
        norm = _norm(self, updates, raw_norms)
        return state, jnp.isfinite(norm) & (norm <= scalar(self.max_norm))


@transform
class zero_non_finite(ArrayRule):
    """Replace every entry that is NaN or infinite by 0.

    `zero_nans` replaces NaN alone, and remembers where it was.

    Reference: `gradient_nan_inf_filter` of RETURNN.
    """

    State = EmptyState
    locality = "entry"
    handles_complex = True

    def rule(self, g, p):
        """Return the update without such entries."""
        return jnp.where(jnp.isfinite(g), g, jnp.zeros_like(g))


class RawGradientNormsState(NamedTuple):
    """State of `raw_gradient_norms`."""

    count: Array  # int32 scalar; the number of calls so far
    inner_state: Any  # the inner state


@transform
class raw_gradient_norms(Transform):
    """Tell the parts of an optimizer the norms of the raw gradients, and the number of calls.

    The inner transform gets two extra arguments: `raw_norms`, a dict from tags to Euclidean norms,
    and from "" to that of all gradients; and `step`, the caller's or else the number of earlier
    calls. `clip_by_raw_norm` and `zero_above_raw_norm` read the first, `external_step` the second,
    also inside `MultiSteps`, whose inner optimizer counts its own steps.

    Of its own kind: it measures gradients on their way in, and changes no step.

    Args:
      inner: the optimizer.
      tags: a tuple of pairs of a tag, a string, and a mask of its parameters. Defaults to none.
      by_slice: whether the slices of a row-sparse gradient count each by itself, as in TensorFlow;
        else those of one row are summed first. Keyword-only.

    Raises:
      ValueError: at update, if there are tags and no parameters are given.

    Reference: the `Updater` of RETURNN.
    """

    inner: Any
    tags: tuple[Any, ...] = ()
    by_slice: bool = field(default=False, kw_only=True)

    handles_rows = True
    locality = "tree"
    asks_for_sums = True
    holds = (("inner", "inner_state"),)

    def __post_init__(self) -> None:
        check_transform(self, self.inner, "inner")
        for i, pair in enumerate(self.tags):
            if not (
                isinstance(pair, tuple) and len(pair) == 2 and isinstance(pair[0], str) and pair[0]
            ):
                raise TypeError(
                    f"{name_of(self)}: tags must be pairs of a tag and a mask, such as "
                    f"(('encoder', path_matches('^encoder')),), but pair {i} is not."
                )
            check_mask(self, pair[1])

    def init(self, params):
        """Return a count of 0 and the inner state."""
        for _, mask in self.tags:
            masks.check_patterns(self, mask, params)
        return RawGradientNormsState(zero_count(), self.inner.init(params))

    def moved(self, state, old, new):
        """Return the state after something else has moved the parameters."""
        return state._replace(inner_state=tell_moved(self.inner, state.inner_state, old, new))

    def update(self, updates, state, params=None, *, step=None, **extra):
        """Update the inner transform with the norms and the step."""
        state = check_state(self, state, RawGradientNormsState)
        step = state.count if step is None else as_step(self, "step", step)
        gs, treedef = flatten_updates(updates)
        arrays = [g.values if self.by_slice and isinstance(g, RowSparse) else g for g in gs]
        norms: dict[str, Array] = {"": scalar(global_norm(treedef.unflatten(arrays)))}
        for tag, mask in self.tags:
            require_params(self, params)
            selected = align(
                self, updates, treedef, masks.resolve(self, mask, params), "the mask has"
            ).leaves
            tagged = [g if is_in else None for g, is_in in zip(arrays, selected, strict=True)]
            norms[tag] = scalar(global_norm(treedef.unflatten(tagged)))
        extra = extra | {"step": step, "raw_norms": norms}
        updates, inner_state = call_update(self.inner, updates, state.inner_state, params, extra)
        return updates, state._replace(count=safe_increment(state.count), inner_state=inner_state)
