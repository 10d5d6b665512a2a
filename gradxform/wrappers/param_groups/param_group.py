"""A rule of `param_groups`: which parameters differ, and how."""

from dataclasses import field
from typing import Any

from gradxform.base import check_transform
from gradxform.errors import name_of
from gradxform.leaves import masks
from gradxform.types import NonNegativeOrSchedule, StaticTree
from gradxform.values import FrozenTree, Value, printed
from gradxform.values.field_kinds import check_mask
from gradxform.values.fields import value

# The name in tables of the parameters without a rule.
OTHERS = "all others"


@value
class param_group(Value):
    """A rule of `param_groups`: which parameters, and how they differ from the others.

    Args:
      which: the parameters: a pattern for their paths, as in `path_matches`, a mask such as
        `ndim_at_least(2)`, a tree of booleans that may be a prefix of the parameters, or a function
        of the parameters that returns one.
      learning_rate: what their update is multiplied by, at least 0, or a schedule of it.
      weight_decay: what their weight decay is multiplied by, at least 0, or a schedule of it.
      inner: an optimizer for these parameters, in place of the common one. Defaults to none.
      freeze: whether they do not move. Keyword-only.
      label: what `describe` calls the group, and by which its optimizer's state is kept. Defaults
        to the pattern. Keyword-only.
      yields: whether parameters that an earlier rule selects, too, are left to that rule; otherwise
        they are an error. Keyword-only.
      optional: whether the rule may select nothing. Keyword-only.

    Raises:
      ValueError: if a frozen group has anything else, or one with an optimizer of its own a
        `weight_decay`.
    """

    which: StaticTree
    learning_rate: NonNegativeOrSchedule = 1.0
    weight_decay: NonNegativeOrSchedule = 1.0
    inner: Any = None
    freeze: bool = field(default=False, kw_only=True)
    label: str | None = field(default=None, kw_only=True)
    yields: bool = field(default=False, kw_only=True)
    optional: bool = field(default=False, kw_only=True)

    never_schedule = True

    def __post_init__(self) -> None:
        which = self.which
        pattern = which.unfreeze() if isinstance(which, FrozenTree) else None
        if isinstance(pattern, str):
            which = masks.path_matches(pattern, optional=self.optional)
            object.__setattr__(self, "which", which)
        check_mask(self, which, "which")
        decays_otherwise = not is_one(self.weight_decay)
        if self.inner is not None:
            check_transform(self, self.inner, "inner")
        if self.freeze:
            other = self.inner is not None or decays_otherwise or not is_one(self.learning_rate)
            if other:
                raise ValueError(
                    f"{name_of(self)}: a frozen group does not move, so it does not take a "
                    "learning_rate, weight_decay or inner; leave out either these or freeze."
                )
        elif self.inner is not None and decays_otherwise:
            raise ValueError(
                f"{name_of(self)}: weight_decay multiplies the decay of param_groups, which a "
                "group with an optimizer of its own does not have; let that optimizer decay."
            )
        if self.inner is not None and self.title is None:
            raise ValueError(
                f"{name_of(self)}: a group with an optimizer of its own needs a label, by which "
                "its state is kept; got None."
            )

    @property
    def title(self) -> str | None:
        """The label, or else the pattern; None if there is neither."""
        pattern = self.which.pattern if isinstance(self.which, masks.path_matches) else None
        return pattern if self.label is None else self.label

    @property
    def name(self) -> str:
        """The name of the group in tables."""
        return self.title or printed(self.which)

    @property
    def may_be_empty(self) -> bool:
        """Whether the rule may select nothing."""
        return self.optional or getattr(self.which, "optional", False) is True


def is_one(x: Any) -> bool:
    """Whether a multiplier is the number 1."""
    return isinstance(x, int | float) and x == 1
