"""How an array is divided into shares, one for each device, and who looks how far."""

from typing import TYPE_CHECKING

from gradxform._names.lazy import public_names as _public_names

if TYPE_CHECKING:
    from gradxform.distributed.shares.shares import Shares as Shares
else:
    __all__, __getattr__, __dir__ = _public_names(__name__)
