"""ZeRO: each device has the state of its share of the parameters."""

from typing import TYPE_CHECKING

from gradxform._names.lazy import public_names as _public_names

if TYPE_CHECKING:
    from gradxform.distributed.zero.zero import Zero1State as Zero1State, zero1 as zero1
else:
    __all__, __getattr__, __dir__ = _public_names(__name__)
