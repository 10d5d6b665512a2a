"""Rows for `gradxform/experimental/`."""

import gradxform as gx
from gradxform.experimental import aggregating
from tests import references as ref
from tests.catalogue.case import ADAM, Case, with_lr

MEAN = ref.mean_of_examples()

TRANSFORMS: dict[str, Case] = {
    "average_per_element_updates": Case(
        aggregating.average_per_element_updates(), MEAN, examples=4, rows=False
    ),
    "accumulate_avg_updates": Case(
        aggregating.accumulate_avg_updates(3), ref.every(ref.identity, 3), rows=False
    ),
    "averaged_incrementally": Case(
        aggregating.average_incrementally_updates(0, 3),
        ref.sequence(MEAN, ref.every(ref.identity, 3)),
        examples=4,
        rows=False,
    ),
}

WRAPPERS: dict[str, Case] = {
    "processed": Case(
        aggregating.process(gx.identity(), aggregating.accumulate_avg_updates(2), gx.adam(0.1)),
        ref.every(with_lr(0.1, ADAM), 2),
        rows=False,
    ),
    "processed_per_element": Case(
        aggregating.add_mean_variance_to_opt(gx.adam(0.1), 0.5, 0, 2),
        ref.sequence(MEAN, ref.every(with_lr(0.1, ADAM), 2)),
        names=(
            "get_per_element_mean_and_sum_sq_diff_grads",
            "track_per_element_mean_and_variance_with_ema",
        ),
        examples=4,
        rows=False,
        huge_ok=1 / 8,  # it multiplies gradients
    ),
}
