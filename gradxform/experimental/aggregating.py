"""Transforms of the gradients of single examples, which end in one update.

The names, arguments and states are those of `optax.experimental.aggregating`. Per-element updates
have one or several axes of elements (examples of a batch) besides those of the parameters, as
`jax.vmap` of a gradient returns them.
"""

from gradxform.experimental.aggregator import (
    AggregatedUpdates as AggregatedUpdates,
    Aggregator as Aggregator,
    AggregatorUpdateFn as AggregatorUpdateFn,
    MaybeAxis as MaybeAxis,
    PerElementUpdates as PerElementUpdates,
    get_batch_size_from_per_elt_updates as get_batch_size_from_per_elt_updates,
)
from gradxform.experimental.averages import (
    AccumulateAvgUpdatesState as AccumulateAvgUpdatesState,
    accumulate_avg_updates as accumulate_avg_updates,
    average_incrementally_updates as average_incrementally_updates,
    average_per_element_updates as average_per_element_updates,
)
from gradxform.experimental.moments import (
    PerElementMeanAndSumSqDiffGradsState as PerElementMeanAndSumSqDiffGradsState,
    PerElementMeanAndVarianceEMAState as PerElementMeanAndVarianceEMAState,
    add_mean_variance_to_opt as add_mean_variance_to_opt,
    get_per_element_mean_and_sum_sq_diff_grads as get_per_element_mean_and_sum_sq_diff_grads,
    get_unbiased_mean_and_variance_ema as get_unbiased_mean_and_variance_ema,
    track_per_element_mean_and_variance_with_ema as track_per_element_mean_and_variance_with_ema,
)
from gradxform.experimental.process import process as process
