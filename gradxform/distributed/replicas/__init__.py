"""Parameters and states with an axis of replicas, and steps of all replicas."""

from typing import TYPE_CHECKING

from gradxform._names.lazy import public_names as _public_names

if TYPE_CHECKING:
    from gradxform.distributed.replicas.replicas import MODES as MODES, Replicas as Replicas
else:
    __all__, __getattr__, __dir__ = _public_names(__name__)
