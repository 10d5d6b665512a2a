"""The rules of `gradxform/wrappers/power_average.py` in NumPy float64."""

import numpy as np


def power_average(path, gamma):
    """Karras et al., equation (1) in steps: the weight of step t is the integral of r^gamma."""
    ends = np.arange(len(path) + 1, dtype=np.float64) ** (gamma + 1)
    weights = np.diff(ends) / ends[-1]
    return np.tensordot(weights, path, axes=1)


def relative_length(gamma):
    """Karras et al., equation (3): the standard deviation of the weights r^gamma on [0, 1]."""
    return np.sqrt(gamma + 1) / (gamma + 2) / np.sqrt(gamma + 3)
