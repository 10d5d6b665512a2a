"""Differentially private gradient descent."""

from gradxform.optimizers.optimizer import optimizer, trace_or_identity
from gradxform.transforms.privacy import differentially_private_aggregate
from gradxform.transforms.scaling import scale_by_learning_rate
from gradxform.types import Key, ScalarOrSchedule, UnitInterval
from gradxform.wrappers.compose import chain


@optimizer
def dpsgd(
    learning_rate: ScalarOrSchedule,
    l2_norm_clip: float,
    noise_multiplier: float,
    seed: Key,
    momentum: UnitInterval | None = None,
    nesterov: bool = False,
) -> chain:
    """DP-SGD: SGD on clipped gradients of single examples plus noise, differentially private.

    Gradients must have a leading axis of examples, as `jax.vmap(jax.grad(...))` returns them.

    Args:
      seed: the seed of the noise: an integer or a PRNG key.
      momentum: the decay of the momentum, in [0, 1]. Defaults to no momentum.
      nesterov: whether the momentum looks one step ahead.

    See `differentially_private_aggregate` and `scale_by_learning_rate` for the other arguments.

    Reference: Abadi et al., Deep Learning with Differential Privacy, 2016, Algorithm 1.
    """
    return chain(
        differentially_private_aggregate(l2_norm_clip, noise_multiplier, seed),
        trace_or_identity("dpsgd", momentum, nesterov),
        scale_by_learning_rate(learning_rate),
    )
