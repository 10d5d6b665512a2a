"""Second moments as row and column means."""

from typing import Any

from gradxform import engine
from gradxform.base import ArrayRule, transform
from gradxform.errors import name_of
from gradxform.leaves import path_str, shape_of
from gradxform.leaves.storage import Factored, matrix_axes
from gradxform.types import NonNegativeSize, StaticTree
from gradxform.wrappers.parts import at_least
from gradxform.wrappers.stored.wrapper import StateSlot, StorageWrapper


@transform
class factor_state(StorageWrapper):
    """Keep a second moment of an optimizer as the means of its rows and of its columns.

    A matrix of m x n entries takes m + n numbers. In place of the moment v of its last step, a step
    of `inner` sees

        v_ij = r_i c_j / mean(r), with r the row means and c the column means of v,

    and computes with it in float32. The state keeps the means of the new v. For the average
    v <- b v + (1 - b) g^2 these are the averages of the row and column means of g^2, as in
    Adafactor; the update, however, divides by v itself, with all of g^2 in it.

    In an array of more dimensions the two largest axes form the matrix, and the others are batch
    axes. Vectors, scalars, and arrays whose second largest axis is shorter than
    `min_dim_size_to_factor` keep the whole moment.

    With a first moment in 4 bits, Adam's state takes half a byte a parameter:
    `factor_state(quantize_state(adam(1e-3), 4, which="mu"))`.

    On pieces of arrays (`distributed.zero1`, `distributed.shard_matrices`) a device keeps the means
    of the rows and columns that it has a part of, and those of all arrays are added up together. It
    computes with all of a piece at once, not tile by tile.

    Args:
      inner: a transform whose rules look no further than an array.
      slot: the name of the slot, or several. The rule must annotate it `NonNegativeSlot`: it does
        not have negative entries.
      min_dim_size_to_factor: the least size of the second largest axis, at least 0.

    Raises:
      TypeError: if `inner` holds a transform of another library; at `init`, if the slot may have
        negative entries, or belongs to a rule that looks at the whole tree; at `update`, for a
        row-sparse gradient of what is factored.
      ValueError: if `slot` names a slot that does not exist; at `init`, on pieces, if the slot does
        not have the shape of the parameter.

    Reference: Shazeer and Stern, Adafactor: Adaptive Learning Rates with Sublinear Memory Cost,
    2018, Algorithm 1.
    """

    inner: Any
    slot: StaticTree = "nu"
    min_dim_size_to_factor: NonNegativeSize = 128

    reaches = ("entry", "row", "array")
    rules = (ArrayRule,)
    sees_pieces = True
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
        return at_least("array", self.inner)

    def qualifies(self, x: Any, slot: StateSlot) -> bool:
        """Whether an array has a matrix that is large enough."""
        return super().qualifies(x, slot) and self._axes(x, slot) is not None

    def _axes(self, x: Any, slot: StateSlot) -> tuple[int, int] | None:
        """Return the axes of the matrix of an array; for a piece, those of the whole array."""
        shape, cut = shape_of(x), engine.cut_at(slot.path)
        if cut.cuts and len(shape) > 1 and shape != slot.param:
            raise ValueError(
                f"{name_of(self)}: the slot {slot.name} of {path_str(slot.path)} does not have the "
                "shape of the parameter, which is divided over devices. Leave it out: name other "
                "slots in slot=(...)."
            )
        full_shape = cut.whole(shape) if len(shape) > 1 else shape
        return matrix_axes(full_shape, self.min_dim_size_to_factor)

    def stored(self, x: Any, slot: StateSlot) -> Any:
        """Return the means of the array."""
        if slot.is_signed:
            raise TypeError(
                f"{name_of(self)}: the slot {slot.name} of {path_str(slot.path)} may have negative "
                "entries, of which row and column means say nothing. Name a second moment; the "
                "rule annotates it NonNegativeSlot."
            )
        axes = self._axes(x, slot)
        if axes is None:
            return x
        return Factored.of(x, axes, engine.mean_over_pieces(shape_of(x), engine.cut_at(slot.path)))
