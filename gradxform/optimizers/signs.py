"""Gradient descent by signs alone, or with noise."""

from gradxform.optimizers.base import optimizer
from gradxform.transforms.differences import scale_by_rprop
from gradxform.transforms.noise import add_noise
from gradxform.transforms.scaling import scale, scale_by_learning_rate
from gradxform.transforms.sign import scale_by_sign
from gradxform.types import Key, ScalarOrSchedule
from gradxform.wrappers.compose import chain


@optimizer
def sign_sgd(learning_rate: ScalarOrSchedule) -> chain:
    """Steps of one size in every entry, against the sign of the gradient.

    Args:
      learning_rate: the size, at least 0, or a schedule.

    Reference: Bernstein et al., signSGD: Compressed Optimisation for Non-Convex Problems, 2018,
    Algorithm 1.
    """
    return chain(scale_by_sign(), scale_by_learning_rate(learning_rate))


@optimizer
def rprop(
    learning_rate: float,
    eta_minus: float = 0.5,
    eta_plus: float = 1.2,
    min_step_size: float = 1e-6,
    max_step_size: float = 50.0,
    *,
    delayed: bool = True,
) -> chain:
    """Steps against the sign of the gradient that grow while it stays, for whole-batch gradients.

    Args:
      learning_rate: the first step size of every entry, greater than 0; no schedule.
      eta_minus: what a step size is multiplied by where the sign changes, in (0, 1].
      eta_plus: what it is multiplied by where the sign stays, at least 1.
      min_step_size: the least step size, at least 0.
      max_step_size: the largest, at least min_step_size.
      delayed: whether every step is that of the gradient before, as in Optax; the paper's is not.

    Reference: Igel and Huesken, Empirical Evaluation of the Improved Rprop Learning Algorithms,
    2003, iRprop-.
    """
    return chain(
        scale_by_rprop(
            learning_rate, eta_minus, eta_plus, min_step_size, max_step_size, delayed=delayed
        ),
        scale(-1.0),
    )


@optimizer
def noisy_sgd(
    learning_rate: ScalarOrSchedule,
    eta: float = 0.01,
    gamma: float = 0.55,
    key: Key = None,
    *,
    seed: int | None = None,
) -> chain:
    """Gradient descent with Gaussian noise whose variance falls with time.

    Args:
      learning_rate: at least 0, or a schedule.
      eta: the variance of the first step's noise, at least 0.
      gamma: how fast it falls, at least 0.
      key: the seed of the noise, an integer or a PRNG key. Without one it is 0, with a warning:
        all runs draw the same noise.
      seed: the old name of key.

    Reference: Neelakantan et al., Adding Gradient Noise Improves Learning for Very Deep Networks,
    2015, equation (1).
    """
    return chain(add_noise(eta, gamma, key, seed=seed), scale_by_learning_rate(learning_rate))
