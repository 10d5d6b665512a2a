"""Shampoo, as TensorFlow has it and distributed."""

from typing import TYPE_CHECKING

from gradxform._names.lazy import public_names as _public_names

if TYPE_CHECKING:
    from gradxform.transforms.shampoo.shampoo import (
        ShampooState as ShampooState,
        step_by_shampoo as step_by_shampoo,
    )
else:
    __all__, __getattr__, __dir__ = _public_names(__name__)
