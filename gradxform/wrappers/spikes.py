"""Skipping steps at which the loss stands out."""

from typing import Any, NamedTuple

import jax.numpy as jnp

from gradxform import engine
from gradxform.base import check_transform, locality_of, transform
from gradxform.leaves.states import check_state
from gradxform.numerics import as_number, safe_increment, scalar, scalar_dtype
from gradxform.slots import zero_count
from gradxform.transforms.spikes import Sample, next_spread
from gradxform.types import Array, Bound, Decay, NonNegativeInt
from gradxform.wrappers.checks import Guard, check
from gradxform.wrappers.update_when import update_when


class SkipLossSpikesState(NamedTuple):
    """State of `skip_loss_spikes`."""

    count: Array  # int32 scalar; the number of losses in the statistics
    mean: Array  # scalar, at least float32; the mean of the losses of steps that were taken
    var: Array  # scalar, at least float32; their variance
    consecutive_skips: Array  # int32 scalar; steps skipped since the last one that was taken
    total_skipped: Array  # int32 scalar; steps skipped since init
    inner_state: Any  # the inner state; only steps that are taken change it


@transform
class skip_loss_spikes(Guard):
    """Skip a step if its loss is far above the mean of the losses so far, or not finite.

    With mu and s the mean and the standard deviation of the losses of the steps that were taken, a
    step is skipped if

        value > mu + deviations s,   or   mu > 0 and value > factor mu,   or value is not finite

    A skipped step is all zeros and leaves the inner state and the statistics unchanged. The first
    `warmup_steps` finite losses are all accepted; mu and s are exact over them, and moving averages
    from there on. After `max_consecutive_skips` skips in a row the next finite loss is accepted
    whatever it is, and the statistics begin anew with it: the loss has another level now.

    Call `update(..., value=loss)`. Inner parts that take `value` get it too. Only the loss is
    looked at; `apply_if_finite` looks at gradients.

    Around a part that communicates between replicas, such as `distributed.tower`, all replicas skip
    if one of them must. Inside such a part give the same value, such as the mean loss, to all.

    Args:
      inner: the transform to guard.
      deviations: how many standard deviations above the mean are too many, greater than 0; infinite
        for any.
      factor: the largest multiple of a positive mean, greater than 0; infinite for any.
      decay: the decay of mean and variance, in [0, 1).
      warmup_steps: how many losses they begin with, at least 2.
      max_consecutive_skips: how many steps in a row are skipped, at least 0. A loss that is not
        finite is skipped beyond it.

    Raises:
      TypeError: at update, if `value` is missing or is not one real number.
    """

    inner: Any
    deviations: Bound = 6.0
    factor: Bound = jnp.inf
    decay: Decay = 0.98
    warmup_steps: Sample = 25
    max_consecutive_skips: NonNegativeInt = 10

    State = SkipLossSpikesState
    step_fields = ()  # its count is of the losses in the statistics
    zeros_unless = "consecutive_skips"
    handles_rows = True
    holds = (("inner", "inner_state"),)

    def __post_init__(self) -> None:
        check_transform(self, self.inner, "inner")

    @property
    def locality(self) -> str:
        """How far the inner transform looks."""
        return locality_of(self.inner)

    def init(self, params):
        """Return empty statistics, counts of 0 and the inner state."""
        return SkipLossSpikesState(
            count=zero_count(),
            mean=jnp.zeros((), scalar_dtype()),
            var=jnp.zeros((), scalar_dtype()),
            consecutive_skips=zero_count(),
            total_skipped=zero_count(),
            inner_state=self.inner.init(params),
        )

    def flags(
        self, state: SkipLossSpikesState, extra: dict[str, Any], sizes: Any
    ) -> tuple[Array, ...]:
        """Return whether a step of this loss may be taken."""
        return (self._usual(as_number(self, "value", extra["value"]), state)[1],)

    def update(self, updates, state, params=None, *, value, **extra):
        """Run the inner update unless the loss stands out."""
        check_state(self, state, SkipLossSpikesState)
        updates = engine.merged_rows(updates)
        loss, extra = as_number(self, "value", value), extra | {"value": value}
        # All replicas agree on whether to run; the statistics of each follow its own loss.
        usual, _ = self._usual(loss, state)
        findings = check(self, updates, state, params, extra)
        ((run,), *_) = findings.flags
        arguments = updates, state.inner_state, params, extra
        updates, inner_state = update_when(
            self, self.inner, run, *arguments, zeros=True, found=findings.inside
        )
        skipped = safe_increment(state.consecutive_skips), safe_increment(state.total_skipped)
        return updates, state._replace(
            **self._statistics(loss, usual, run, state),
            consecutive_skips=jnp.where(run, 0, skipped[0]),
            total_skipped=jnp.where(run, state.total_skipped, skipped[1]),
            inner_state=inner_state,
        )

    def _usual(self, loss: Array, state: SkipLossSpikesState) -> tuple[Array, Array]:
        """Return whether a loss does not stand out, and whether its step may be taken."""
        mean, finite = scalar(state.mean), jnp.isfinite(loss)
        far, many = scalar(self.deviations), scalar(self.factor)
        # As 0 where they are infinite: times a variance or a mean of 0 they are NaN.
        bound_far, bound_many = (jnp.where(jnp.isfinite(x), x, 0) for x in (far, many))
        is_far = jnp.isfinite(far) & (loss > mean + bound_far * jnp.sqrt(scalar(state.var)))
        is_multiple = jnp.isfinite(many) & (mean > 0) & (loss > bound_many * mean)
        usual = finite & ~((state.count >= self.warmup_steps) & (is_far | is_multiple))
        return usual, usual | (finite & (state.consecutive_skips >= self.max_consecutive_skips))

    def _statistics(
        self, loss: Array, usual: Array, run: Array, state: SkipLossSpikesState
    ) -> dict[str, Array]:
        """Return the statistics with the loss of a step that is taken; anew if it stands out."""
        old = {"count": state.count, "mean": state.mean, "var": state.var}
        count, mean, var = (jnp.where(usual, x, jnp.zeros_like(x)) for x in old.values())
        # A loss that is not counted must not turn the statistics into NaN before the selection.
        sample = jnp.where(run, loss, jnp.zeros_like(loss))
        spread = next_spread(
            count, scalar(mean), scalar(var), sample, self.decay, self.warmup_steps
        )
        new = safe_increment(count), *spread
        return {
            k: jnp.where(run, n.astype(o.dtype), o)
            for (k, o), n in zip(old.items(), new, strict=True)
        }
