"""The well-known optimizers: each is one `return chain(...)`, in the file named like its rule's."""

from gradxform._names.lazy import public_names as _public_names

__all__, __getattr__, __dir__ = _public_names(__name__)
