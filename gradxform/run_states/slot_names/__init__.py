"""The slots of a state by name: under our names, or TensorFlow 1's, Keras 2's or Keras 3's."""

from typing import TYPE_CHECKING

from gradxform._names.lazy import public_names as _public_names

if TYPE_CHECKING:
    from gradxform.run_states.slot_names.access import (
        get_slots as get_slots,
        set_slots as set_slots,
    )
else:
    __all__, __getattr__, __dir__ = _public_names(__name__)
