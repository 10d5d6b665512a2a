"""Second moments as row and column means."""

from typing import Any

from gradxform.base import transform
from gradxform.errors import name_of
from gradxform.leaves import path_str, shape_of
from gradxform.storage import Factored, matrix_axes
from gradxform.types import NonNegativeInt, StaticTree
from gradxform.wrappers.storage_wrapper import StateSlot, StorageWrapper

__all__ = [
    "factor_state",
]


@transform
class factor_state(StorageWrapper):
    """Keep a second moment of an optimizer as the means of its rows and of its columns.

    A matrix of m x n entries takes m + n numbers. A step of `inner` sees, in place of the moment v
    that it has left,

        v_ij = r_i c_j / mean(r), with r the row means and c the column means of v,

    and computes with it in float32; the means of what it makes of v are kept. Of the average
    v <- b v + (1 - b) g^2 they are just the averages of the row and column means of g^2, which is
    what Adafactor keeps; the update divides by v itself, though, with all of g^2 in it.

    In an array of more dimensions the two largest axes form the matrix, and the others are batch
    axes. Vectors, scalars, and arrays whose second largest axis is shorter than
    `min_dim_size_to_factor` keep the whole moment.

    With a first moment in 4 bits, Adam's state takes half a byte a parameter:
    `factor_state(quantize_state(adam(1e-3), 4, which="mu"))`.

    Args:
      inner: a transform whose rules look no further than an array.
      slot: the name of the slot, or several. The rule must say that it has no negative entries: its
        annotation is `NonNegativeSlot`.
      min_dim_size_to_factor: the least size of the second largest axis, at least 0.

    Raises:
      TypeError: if `inner` holds a transform of another library; at `init`, if the slot may have
        negative entries, or belongs to a rule that looks at the whole tree; at `update`, for a
        row-sparse gradient of what is factored.
      ValueError: if `slot` names a slot that does not exist.

    Reference: Shazeer and Stern, Adafactor: Adaptive Learning Rates with Sublinear Memory Cost,
    2018, Algorithm 1.
    """

    inner: Any
    slot: StaticTree = "nu"
    min_dim_size_to_factor: NonNegativeInt = 128

    reaches = ("entry", "row", "array")
    where = "as row and column means"
    chooser = "slot"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.names() is None:
            raise TypeError(
                f"{name_of(self)}: slot must be the name of a slot, such as 'nu', or several, got "
                f"{self.slot!r}."
            )

    @property
    def locality(self) -> str:
        """At least the array, whose means are kept."""
        inner = super().locality
        return inner if inner == "tree" else "array"

    def qualifies(self, x: Any) -> bool:
        """Whether an array has a matrix that is large enough."""
        return super().qualifies(x) and self._axes(x) is not None

    def _axes(self, x: Any) -> tuple[int, int] | None:
        return matrix_axes(shape_of(x), self.min_dim_size_to_factor)

    def stored(self, x: Any, slot: StateSlot) -> Any:
        """Return the means of the array."""
        if slot.is_signed:
            raise TypeError(
                f"{name_of(self)}: the slot {slot.name} of {path_str(slot.path)} may have negative "
                "entries, of which row and column means say nothing. Name a second moment; the "
                "rule annotates it NonNegativeSlot."
            )
        axes = self._axes(x)
        return x if axes is None else Factored.of(x, axes)
