"""Types, the annotations of fields, and the protocol that any transformation follows."""

import dataclasses
from collections.abc import Callable
from typing import Annotated, Any, NamedTuple, Protocol, runtime_checkable

import jax

Array = jax.Array
PyTree = Any
Params = PyTree
Updates = PyTree
OptState = PyTree

# Optax's name for a tree of arrays. A recursive union would refuse modules and dataclasses, which
# are trees to JAX alone.
ArrayTree = PyTree

# A scalar of a step: a Python number outside a trace, a 0-d array (or tracer) inside.
Scalar = float | jax.Array

# A schedule maps the step count (0 before the first update) to a value.
Schedule = Callable[[Any], Any]
ScalarOrSchedule = float | jax.Array | Schedule

# A mask as Optax has them: a tree of booleans, or a function of the parameters that returns one.
MaskOrFn = PyTree | Callable[[Params], PyTree] | None

# From updates, gradients so far and parameters: whether to skip the updates, and any state.
ShouldSkipUpdateFunction = Callable[[Updates, Array, Params | None], tuple[Array, Any]]


class ConditionFn(Protocol):
    """Decides whether `conditionally_mask` or `conditionally_transform` runs its transform."""

    def __call__(self, step: Array, **extra_args: Any) -> Any:
        """Return True or False, or a boolean scalar, from the number of earlier updates."""
        ...


class TransformInitFn(Protocol):
    """The `init` of a transform."""

    def __call__(self, params: Params) -> OptState:
        """Return the state before the first update."""
        ...


class TransformUpdateFn(Protocol):
    """The `update` of a transform."""

    def __call__(
        self, updates: Updates, state: OptState, params: Params | None = None
    ) -> tuple[Updates, OptState]:
        """Return the transformed updates and the new state."""
        ...


class TransformUpdateExtraArgsFn(Protocol):
    """The `update` of a transform that takes extra arguments, by name."""

    def __call__(
        self, updates: Updates, state: OptState, params: Params | None = None, **extra_args: Any
    ) -> tuple[Updates, OptState]:
        """Return the transformed updates and the new state."""
        ...


class _SlotMark:
    """Marks the fields of a state that hold one array per parameter."""


class _NonNegativeMark:
    """Marks slots without negative entries, which may be stored without a sign."""


class _MatrixSlotMark:
    """Marks the fields of a state that hold one entry per matrix of each parameter."""


class _ArraySlotMark:
    """Marks the fields of a state that hold what a rule remembers of whole arrays."""


class _EverywhereMark:
    """Marks the fields of a state that are the same on all replicas."""


class _PerDeviceMark:
    """Marks the fields of a state whose arrays differ on each device that divides it."""


class _DTypeMark:
    """Marks the fields of a transform that hold a dtype."""


class _ChoiceMark:
    """Marks the fields of a transform that hold one of a few strings."""


class _KeyMark:
    """Marks the fields of a transform that hold a PRNG key."""


class _TreeMark:
    """Marks the fields of a transform that may hold a static tree (kept as a FrozenTree)."""


class _MaskMark:
    """Marks the fields of a transform that hold a mask."""


class _SizeMark:
    """Marks the fields of a transform that hold an integer which decides shapes."""


class _FixedMark:
    """Marks the arguments of a factory that are known before any run."""


class _ZeroIsNoneMark:
    """Marks the arguments of a factory whose 0 leaves a part out."""


# In a state NamedTuple: a tree with one array per parameter, handed to `ArrayRule.rule` by leaf.
Slot = Annotated[Any, _SlotMark]

# The same of arrays that are never negative, such as second moments.
NonNegativeSlot = Annotated[Any, _SlotMark, _NonNegativeMark]

# In a state: a tree with an array (B, ...) per parameter, an entry for each of its B matrices,
# handed to `MatrixRule.rule`.
MatrixSlot = Annotated[Any, _MatrixSlotMark]

# In a state: arrays for each parameter, nested in any way, with which a rule for whole arrays
# computes. Where parameters are divided over devices, all mesh axes together cut one dimension.
ArraySlot = Annotated[Any, _ArraySlotMark]

# In a state: a field that is the same on all replicas, such as the count of steps. It does not have
# an axis of replicas, so that all of them decide alike.
Everywhere = Annotated[Any, _EverywhereMark]

# In a state that devices divide among them: each device has arrays (1, ...) of its own, which are
# (N, ...) together.
PerDevice = Annotated[Any, _PerDeviceMark]

# In a transform: anything `jnp.dtype` understands. Stored by its name, so that it prints and
# serializes.
DType = Annotated[Any, _DTypeMark]

# In a transform: one of a few strings; which, its own check says, of whatever it is given.
Choice = Annotated[str, _ChoiceMark]

# In a transform: a seed or a PRNG key. Stored as integers, so that it prints and serializes.
Key = Annotated[Any, _KeyMark]

# In a transform: a static tree such as a dict of labels or of booleans.
StaticTree = Annotated[Any, _TreeMark]

# In a transform: a mask, that is one of `masks`, a boolean, a tree of booleans (kept as a
# FrozenTree), or a function of the parameters that returns one.
StaticMask = Annotated[Any, _MaskMark]

# In a transform: an integer which decides shapes, so that it is known before any run.
Size = Annotated[int, _SizeMark]

# In a factory: anything that is known before any run, or ignored. Never a hyperparameter.
Fixed = Annotated[Any, _FixedMark]

# The same of a number, as an alternative of its range.
FixedNumber = Annotated[float, _FixedMark]

# In a factory: a number whose 0 leaves a part out, and is therefore known before any run.
ZeroIsNone = float | Annotated[float, _ZeroIsNoneMark]


@dataclasses.dataclass(frozen=True)
class AliasOf:
    """Marks the arguments of a factory that set another argument unless they are None."""

    name: str


@dataclasses.dataclass(frozen=True)
class Range:
    """Marks the fields of a value that hold a number of a range, and says which it is."""

    words: str
    holds: Callable[[float], bool]
    finite: bool = True


# In a transform: numbers of a range, which the value base checks. Live numbers and schedules pass.
Decay = Annotated[float, Range("in [0, 1)", lambda x: 0 <= x < 1)]
UnitInterval = Annotated[float, Range("in [0, 1]", lambda x: 0 <= x <= 1)]
PositiveShare = Annotated[float, Range("in (0, 1]", lambda x: 0 < x <= 1)]
Fraction = Annotated[float, Range("in (0, 1)", lambda x: 0 < x < 1)]
Finite = Annotated[float, Range("finite", lambda x: True)]
NonNegative = Annotated[float, Range("at least 0", lambda x: x >= 0)]
NonNegativeInt = Annotated[int, Range("at least 0", lambda x: x >= 0)]
UnitIntervalOrSchedule = Annotated[ScalarOrSchedule, Range("in [0, 1]", lambda x: 0 <= x <= 1)]
NonNegativeOrSchedule = Annotated[ScalarOrSchedule, Range("at least 0", lambda x: x >= 0)]
Positive = Annotated[float, Range("greater than 0", lambda x: x > 0)]
PositiveInt = Annotated[int, Range("at least 1", lambda x: x >= 1)]
# Of what `inject_hyperparams` leaves alone.
NonNegativeSize = NonNegativeInt | Size
PositiveSize = PositiveInt | Size
FixedDecay = Decay | FixedNumber
# These may be infinite, which is how "no bound" is written.
Bound = Annotated[float, Range("greater than 0", lambda x: x > 0, finite=False)]
FixedBound = Bound | FixedNumber
AtLeastOne = Annotated[float, Range("at least 1", lambda x: x >= 1, finite=False)]
Limit = Annotated[float, Range("at least 0", lambda x: x >= 0, finite=False)]


@runtime_checkable
class SupportsTransform(Protocol):
    """A transformation to gradxform: any object with these two callables."""

    def init(self, params: Any, /) -> Any:
        """Return the initial state for `params`."""
        ...

    def update(self, updates: Any, state: Any, params: Any = None, /) -> tuple[Any, Any]:
        """Return the transformed updates and the new state."""
        ...


@runtime_checkable
class StatefulSchedule(Protocol):
    """A schedule with a state of its own, which may depend on extra arguments of the update.

    Any object with these three methods is one. `inject_hyperparams` keeps its state, and hands it
    the extra arguments that its methods name. A class under `@gradxform.value` that subclasses
    `gradxform.Value` prints, compares and goes to configs too.
    """

    def init(self) -> Any:
        """Return the state before the first update, a tree of arrays."""
        ...

    def update(self, state: Any, **extra_args: Any) -> Any:
        """Return the state for the next update, like the old one."""
        ...

    def __call__(self, state: Any, **extra_args: Any) -> Any:
        """Return the value in this state, one real number."""
        ...


class MaskedNode(NamedTuple):
    """Stands where a masked-out leaf was; it does not have leaves of its own."""
