"""Diagonals of Hessians and Fisher matrices, as Optax computes them.

The names are those of `optax.second_order` in the installed Optax (see `gradxform._names.optax`).
"""

from gradxform._names.lazy import public_names as _public_names

_, __getattr__, __dir__ = _public_names(__name__)
