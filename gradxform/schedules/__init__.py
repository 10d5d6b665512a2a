"""Schedules as values: a number, such as a learning rate, for every step.

A schedule is called with the number of earlier steps and returns a float. Wherever a schedule
is accepted, so is a plain function of the count.

This module has all names of `optax.schedules`, `inject_hyperparams` included.
"""

from typing import TYPE_CHECKING

from gradxform._names.lazy import public_names as _public_names

if TYPE_CHECKING:
    from gradxform.schedules.basic import *
    from gradxform.schedules.decay import *
    from gradxform.schedules.join import *
    from gradxform.schedules.periodic import *
    from gradxform.schedules.piecewise import *
    from gradxform.schedules.product import *
    from gradxform.schedules.rectified import *
    from gradxform.schedules.schedule import *
    from gradxform.schedules.stateful import *

_public, __getattr__, __dir__ = _public_names(__name__)
if not TYPE_CHECKING:  # a checker would take it for the whole list
    __all__ = _public
