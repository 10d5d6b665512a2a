"""Parts that Optax calls experimental: `aggregating`. Names and forms may change with Optax's."""

from typing import TYPE_CHECKING

from gradxform._names.lazy import public_names as _public_names

if TYPE_CHECKING:
    from gradxform.experimental import aggregating as aggregating
else:
    __all__, __getattr__, __dir__ = _public_names(__name__)
