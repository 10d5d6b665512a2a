"""Gradient descent with noise."""

from gradxform.optimizers.optimizer import optimizer
from gradxform.transforms.noise import add_noise
from gradxform.transforms.scaling import scale_by_learning_rate
from gradxform.types import Key, ScalarOrSchedule
from gradxform.wrappers.compose import chain


@optimizer
def noisy_sgd(
    learning_rate: ScalarOrSchedule,
    eta: float = 0.01,
    gamma: float = 0.55,
    key: Key = None,
    *,
    seed: Key | None = None,
) -> chain:
    """Noisy SGD: gradient descent plus Gaussian noise whose variance falls with time.

    Args:
      seed: the old name of key.

    See `add_noise` and `scale_by_learning_rate` for the other arguments.

    Reference: Neelakantan et al., Adding Gradient Noise Improves Learning for Very Deep Networks,
    2015, equation (1).
    """
    return chain(add_noise(eta, gamma, key, seed=seed), scale_by_learning_rate(learning_rate))
