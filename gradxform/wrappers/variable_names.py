"""Names of the variables of an optimizer in checkpoints of TensorFlow 1."""

from typing import Any

from gradxform.base import call_update, transform
from gradxform.errors import name_of, shown
from gradxform.wrappers.parts import StatelessWrapper


@transform
class variable_names(StatelessWrapper):
    """Remember the names of the variables of an optimizer in TensorFlow 1.

    `compat.tf1.to_checkpoint` and `from_checkpoint` read the names: with `slot_name="Mine"` the
    slots of a parameter `w` are `w/Mine`, `w/Mine_1`, and so on. The factories of `compat.tf1`,
    `compat.tf_contrib` and `compat.returnn` add it for a `name` that is not their default. It does
    not change the updates, and the state is the inner state.

    Args:
      inner: a transform, or a chain.
      slot_name: the last part of the names of all slots. Defaults to the optimizer's usual name.
      accum_name: that of the slot `accum` of Ftrl alone. Defaults to `slot_name`.
      linear_name: that of the slot `linear` of Ftrl alone. Defaults to `slot_name`.

    Raises:
      TypeError: if a name is not a string.
      ValueError: if a name is empty.
    """

    inner: Any
    slot_name: str | None = None
    accum_name: str | None = None
    linear_name: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        for field in ("slot_name", "accum_name", "linear_name"):
            check_variable_name(name_of(self), field, getattr(self, field))

    def update(self, updates, state, params=None, **extra):
        """Update the inner transform."""
        return call_update(self.inner, updates, state, params, extra)


def check_variable_name(part: str, field: str, name: Any) -> None:
    """Require the last part of the name of a variable, or None."""
    if name is None:
        return
    if not isinstance(name, str):
        raise TypeError(f"{part}: {field} must be a string, got {shown(name)}.")
    if not name.strip("/"):
        raise ValueError(
            f"{part}: {field} must be the last part of a variable's name, got {name!r}; leave it "
            "out for the usual name."
        )
