"""Functions of a batch, evaluated on one part of it after the other to save memory.

The names and semantics are those of `optax.microbatching`.
"""

from typing import TYPE_CHECKING

from gradxform._names.lazy import public_names as _public_names

if TYPE_CHECKING:
    from gradxform.microbatching.accumulator import (
        AccumulationType as AccumulationType,
        Accumulator as Accumulator,
    )
    from gradxform.microbatching.batch import reshape_batch_axis as reshape_batch_axis
    from gradxform.microbatching.microbatch import (
        micro_grad as micro_grad,
        micro_vmap as micro_vmap,
        microbatch as microbatch,
    )
else:
    __all__, __getattr__, __dir__ = _public_names(__name__)
