"""How an array travels between devices: in which dtype or code, summed in which order."""

from typing import TYPE_CHECKING

from gradxform._names.lazy import public_names as _public_names

if TYPE_CHECKING:
    from gradxform.distributed.wire.wire import (
        SMALL as SMALL,
        Cast as Cast,
        Codec as Codec,
        Error as Error,
        Sent as Sent,
        joined as joined,
        narrow as narrow,
        new_error as new_error,
        owed as owed,
        parted as parted,
        put_together as put_together,
        scattered as scattered,
        still_to_send as still_to_send,
        sums as sums,
        tree_mean as tree_mean,
    )
else:
    __all__, __getattr__, __dir__ = _public_names(__name__)
