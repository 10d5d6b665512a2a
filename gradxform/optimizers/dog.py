"""Step sizes from the distance travelled: DoG, DoWG."""

from typing import Any

from gradxform.optimizers.optimizer import optimizer
from gradxform.transforms.dog import scale_by_dog, scale_by_dowg
from gradxform.transforms.scaling import add_decayed_weights, scale_by_learning_rate
from gradxform.types import ScalarOrSchedule, StaticMask
from gradxform.wrappers.compose import chain


@optimizer
def dog(
    learning_rate: ScalarOrSchedule = 1.0,
    init_step: tuple[Any, ...] = ("heuristic", 1e-6),
    eps: float = 1e-8,
    weight_decay: ScalarOrSchedule | None = None,
    weight_decay_mask: StaticMask | None = None,
) -> chain:
    """DoG: SGD whose step size is the distance moved over the root of the sum of |g|^2.

    The authors evaluate an average of the parameters. Parameters in bfloat16 or float16 never move
    without `master_weights`: they round the first steps away.

    Args:
      learning_rate: 1, or a schedule whose largest value is about 1.
      weight_decay: added to the gradients, at least 0, or a schedule. Defaults to 0.

    See `scale_by_dog` and `add_decayed_weights` for the other arguments.

    Reference: Ivgi et al., DoG is SGD's Best Friend: A Parameter-Free Dynamic Step Size Schedule,
    2023, the step size (DoG) of section 1.
    """
    return chain(
        add_decayed_weights(0.0 if weight_decay is None else weight_decay, weight_decay_mask),
        scale_by_dog(init_step, eps),
        scale_by_learning_rate(learning_rate),
    )


@optimizer
def dowg(
    learning_rate: ScalarOrSchedule = 1.0,
    init_estim_sq_dist: float | None = None,
    eps: float = 1e-4,
    weight_decay: ScalarOrSchedule | None = None,
    weight_decay_mask: StaticMask | None = None,
) -> chain:
    """DoWG: `dog` with each gradient weighted by the distance at which it was computed.

    Parameters in bfloat16 or float16 never move without `master_weights`: they round the first
    steps away.

    Args:
      init_estim_sq_dist: the first squared distance, greater than 0. Defaults to eps.

    See `scale_by_dowg` and `dog` for the other arguments.

    Reference: Khaled et al., DoWG Unleashed: An Efficient Universal Parameter-Free Gradient Descent
    Method, 2023, Algorithm 1.
    """
    return chain(
        add_decayed_weights(0.0 if weight_decay is None else weight_decay, weight_decay_mask),
        scale_by_dowg(init_estim_sq_dist, eps),
        scale_by_learning_rate(learning_rate),
    )
