"""The sign decays of `tf.contrib.opt` of TensorFlow 1."""

from gradxform.schedules.periodic import cosine_sign_decay, linear_sign_decay, restart_sign_decay
from gradxform.types import Schedule


def get_linear_decay_fn(decay_steps: int) -> Schedule:
    """Return `linear_sign_decay`: max(0, 1 - n / decay_steps)."""
    return linear_sign_decay(decay_steps)


def get_cosine_decay_fn(
    decay_steps: int, num_periods: float = 0.5, zero_after: float | None = None
) -> Schedule:
    """Return `cosine_sign_decay`: (1 + cos(2 pi num_periods n / decay_steps)) / 2."""
    return cosine_sign_decay(decay_steps, num_periods, zero_after)


def get_restart_decay_fn(
    decay_steps: int, num_periods: float = 1, zero_after: float | None = None
) -> Schedule:
    """Return `restart_sign_decay`: num_periods half cosines, each from 1 to 0."""
    return restart_sign_decay(decay_steps, num_periods, zero_after)
