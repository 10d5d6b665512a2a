"""Schedules as values: a number, such as a learning rate, for every step.

A schedule is called with the number of earlier steps and returns a float. Wherever a schedule
is accepted, so is a plain function of the count.

This module has all names of `optax.schedules`, `inject_hyperparams` included.
"""

from gradxform._names.lazy import public_names as _public_names

__all__, __getattr__, __dir__ = _public_names(__name__)
