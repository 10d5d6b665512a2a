"""Schedules as values: a number, such as a learning rate, for every step.

A schedule is called with the number of earlier steps and returns a float. Wherever a schedule
is accepted, so is a plain function of the count.

This module has all names of `optax.schedules`, `inject_hyperparams` included.
"""

from gradxform.registry import close_package as _close_package, forwarded as _forwarded
from gradxform.schedules.base import *
from gradxform.schedules.basic import *
from gradxform.schedules.decay import *
from gradxform.schedules.join import *
from gradxform.schedules.periodic import *
from gradxform.schedules.piecewise import *
from gradxform.schedules.product import *
from gradxform.schedules.stateful import *

_close_package(__name__)
__getattr__, __dir__ = _forwarded(
    __name__,
    [
        "InjectHyperparamsState",
        "InjectStatefulHyperparamsState",
        "inject_hyperparams",
        "inject_stateful_hyperparams",
    ],
)
