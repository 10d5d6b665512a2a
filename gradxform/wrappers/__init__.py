"""Wrappers: each takes a transformation and changes when, where or on what it runs."""

from gradxform._names.lazy import public_names as _public_names

__all__, __getattr__, __dir__ = _public_names(__name__)
