"""Transforms: each changes updates by a rule of its own. One family a file.

The names of `optax.transforms` can be had from here, those of wrappers too.
"""

from gradxform._names.lazy import public_names as _public_names

__all__, __getattr__, __dir__ = _public_names(__name__)
