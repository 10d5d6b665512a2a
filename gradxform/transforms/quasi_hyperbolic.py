"""Quasi-hyperbolic rules, which weigh the newest gradient beside its average: QHM and QHAdam."""

from typing import NamedTuple

from gradxform.base import ArrayRule, transform
from gradxform.numerics import abs_sq
from gradxform.numerics.overflow import bounded_square
from gradxform.numerics.roots import over_root
from gradxform.transforms.adam import AdamMoments
from gradxform.types import Decay, DType, NonNegative, Slot, UnitInterval


class ScaleByQhmState(NamedTuple):
    """State of `scale_by_qhm`."""

    mu: Slot  # like params, at least float32; the average m of the gradient


@transform
class scale_by_qhm(ArrayRule):
    """Average updates as QHM does: the newest gradient beside a long moving average.

    Update rule, from m = 0:

        m <- b1 m + (1 - b1) g
        u = nu m + (1 - nu) g

    With nu = 1 it is a moving average, with nu = 0 plain descent, and with nu = b1 Nesterov's
    momentum. u is as large as a gradient: for the learning rate of `trace(0.9)`, take ten times
    that.

    Args:
      b1: the decay of the average, in [0, 1).
      nu: the weight of the average, in [0, 1].
      mu_dtype: the dtype of m. Defaults to the parameter's, or float32 for 16-bit ones.

    Reference: Ma and Yarats, Quasi-hyperbolic momentum and Adam for deep learning, 2019, equations
    (3) and (4).
    """

    b1: Decay = 0.999
    nu: UnitInterval = 0.7
    mu_dtype: DType = None

    State = ScaleByQhmState
    locality = "entry"
    averages_of = (("mu", "g"),)
    handles_complex = True

    def rule(self, g, m, p):
        """Return the update and the average."""
        m = self.b1 * m + (1 - self.b1) * g
        return self.nu * m + (1 - self.nu) * g, m


@transform
class scale_by_qhadam(AdamMoments):
    """Rescale updates as QHAdam does: Adam that weighs the newest gradient beside both averages.

    Update rule, from m = v = 0 and t = 1, 2, ...:

        m <- b1 m + (1 - b1) g
        v <- b2 v + (1 - b2) |g|^2
        top = nu1 m / (1 - b1^t) + (1 - nu1) g
        u = top / (sqrt(nu2 v / (1 - b2^t) + (1 - nu2) |g|^2) + eps)

    With nu1 = nu2 = 1 it is Adam, and nearly NAdam with nu1 = b1 and nu2 = 1. Learning rates of
    Adam will do.

    Args:
      b1: the decay of the first moment, in [0, 1).
      b2: the decay of the second moment, in [0, 1).
      nu1: the weight of the first moment, in [0, 1].
      nu2: the weight of the second moment, in [0, 1].
      eps: added to the root, at least 0; with 0, an entry that never had a gradient stays put.
      mu_dtype: the dtype of m. Defaults to the parameter's, or float32 for 16-bit ones.

    Reference: Ma and Yarats, Quasi-hyperbolic momentum and Adam for deep learning, 2019, section 5.
    """

    b1: Decay = 0.995
    b2: Decay = 0.999
    nu1: UnitInterval = 0.7
    nu2: UnitInterval = 1.0
    eps: NonNegative = 1e-8
    mu_dtype: DType = None

    def rule(self, g, m, v, p, of_m, of_v):
        """Return the update and the moments."""
        g = bounded_square(g)  # an infinite square times 1 - nu2 = 0 is not a number
        m, v = self.moments(g, m, v)
        top = (self.nu1 * of_m) * m + (1 - self.nu1) * g
        square = (self.nu2 * of_v) * v + (1 - self.nu2) * abs_sq(g)
        return over_root(top, square, self.eps), m, v
