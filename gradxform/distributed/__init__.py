"""Distributed training: everything that names a mesh axis, a replica or a sharding."""

from gradxform._names.lazy import public_names as _public_names

__all__, __getattr__, __dir__ = _public_names(__name__)
