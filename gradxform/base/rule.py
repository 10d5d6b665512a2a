"""The bases of transforms: `Transform`, and `ArrayRule` for one that a rule for arrays defines."""

import abc
import functools
import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, dataclass_transform, overload

from gradxform import engine
from gradxform.base.first_state import (
    first_state_of as first_state_of,
    slots_with as slots_with,
    starts_of,
    state_with as state_with,
)
from gradxform.base.methods import ValueMethod
from gradxform.base.traits import RuleTraits
from gradxform.base.transformation import (
    LOCALITIES as LOCALITIES,
    GradientTransformation as GradientTransformation,
    GradientTransformationExtraArgs as GradientTransformationExtraArgs,
    call_update as call_update,
    carried as carried,
    check_transform as check_transform,
    extra_names as extra_names,
    farthest as farthest,
    locality_of as locality_of,
    own_locality_of as own_locality_of,
    tell_moved as tell_moved,
    unwrapped as unwrapped,
)
from gradxform.engine import run_rules
from gradxform.errors import TypeAndRuntimeError, name_of, shown
from gradxform.leaves import is_hole, with_paths
from gradxform.leaves.states import slot_fields
from gradxform.types import OptState, Params, Updates
from gradxform.values.extra_args import accepted_by
from gradxform.values.fields import made_value

T = TypeVar("T")


class EmptyState(NamedTuple):
    """The state of a transform that remembers nothing."""


class Transform(GradientTransformationExtraArgs, abc.ABC):
    """A gradient transformation: hyperparameters as fields, and two pure methods.

    Subclasses are made with `@transform`. `update` must not make `params` positional-only, and its
    required extra arguments are keyword-only, so that `chain` can see and route them.
    """

    made_of_functions = False

    def __init__(self):
        pass

    @abc.abstractmethod
    def init(self, params: Params) -> OptState:
        """Return the state before the first update, for these parameters."""

    @abc.abstractmethod
    def update(
        self, updates: Updates, state: OptState, params: Params | None = None, **extra: Any
    ) -> tuple[Updates, OptState]:
        """Return the transformed updates and the new state."""

    # `update_params(updates, state, params, **extra)` returns the parameters after the update, and
    # the state: for transforms that compute them in fewer passes over memory than the two by turns.
    update_params: Any = None


class ArrayRule(Transform, RuleTraits):
    """A transform defined by its rule for one array.

    A subclass defines `State`, the class of its state, `rule`, and, if it has scalars to compute
    once a step, `prepare`. A state that does not start with zeros needs an `init`. `rule` gets the
    fields of the state that are annotated `Slot` leaf by leaf, in order.
    """

    handles_rows = True  # the engine gives the rule the touched rows, if its locality allows it
    locality = "array"
    # `active(tree)` returns a tree of booleans, the leaves on which the rule acts, or None for all.
    active: Any = None
    # Another rule, for slices several of which may belong to one row; see `sparse_semantics`.
    slice_rule: Any = None
    # `static(path, leaf)` returns what the rule must know of a leaf before anything is computed,
    # such as which of its axes make a matrix: any value, which `rule` gets as its last argument.
    # Leaves for which it differs do not share a compiled call. Where the values follow from the
    # tree as a whole, `statics(updates)` returns a list of them instead, one for each leaf.
    static: Any = None
    statics: Any = None

    def init(self, params: Params) -> OptState:
        """Return the state before the first update, as the annotations of `State` say.

        A field annotated `Slot` starts with zeros like the parameters, in float32 for 16-bit ones
        or in the dtype that the rule has in its field `<slot>_dtype`. A `NonNegativeSlot` starts
        with real zeros, also for complex parameters. A field `count: Array` starts with 0, in
        int32, as do others in `step_fields`. A rule without `State` does not have a state. Other
        fields and other numbers need an `init` of their own, which names them:
        `first_state_of(self, params, mu_product=...)`.
        """
        return first_state_of(self, params)

    # Any signature may override these: a rule takes its own slots and names its extra arguments.
    if TYPE_CHECKING:

        def rule(self, *args: Any, **kwargs: Any) -> Any: ...

        def prepare(self, *args: Any, **kwargs: Any) -> tuple[Any, ...]: ...

    else:

        @abc.abstractmethod
        def rule(self, g: Any, *slots_p_and_shared: Any) -> Any:
            """Return the update of one array, then its new slots.

            Called as `rule(g, *slots, p, *shared)`: the gradient, the state's slots, the parameter
            (None if the caller gave none) and the scalars of `prepare`, all in float32 or wider.
            """

        def prepare(self, updates: Any, state: Any, params: Any) -> tuple[Any, ...]:
            """Return the state with its scalars advanced, then the scalars of this step.

            Called once a step. `updates` is the whole tree for a rule whose locality is "tree", and
            None for others, because they run together with their neighbours. Extra arguments that
            a rule needs (`value`, ...) are keyword-only parameters of its `prepare`.
            """
            return (state,)

    def extra_names(self) -> frozenset[str] | None:
        """Return the names of the extra arguments that `prepare` takes; None: any name."""
        if inspect.unwrap(type(self).update) is not ArrayRule.update:
            return super().extra_names()
        return self._names_of("prepare")

    def update(
        self, updates: Updates, state: OptState, params: Params | None = None, **extra: Any
    ) -> tuple[Updates, OptState]:
        """Apply the rule to every leaf."""
        updates, states = run_rules([self], updates, [state], params, extra)
        return updates, states[0]

    is_one_run = True

    def update_params(self, updates, state, params, **extra):
        """Return the parameters after the update, each added where it is computed."""
        params, states = run_rules([self], updates, [state], params, extra, is_last=True)
        return params, states[0]


@overload
@dataclass_transform(frozen_default=True, eq_default=False)
def transform(cls: type[T], /) -> type[T]: ...
@overload
@dataclass_transform(frozen_default=True, eq_default=False)
def transform(*, name: str | None) -> Callable[[type[T]], type[T]]: ...
def transform(cls: type[T] | None = None, /, *, name: str | None = None) -> Any:
    """Make a class a transform: a value whose `init` and `update` are values too.

    Args:
      cls: a subclass of `ArrayRule` or `Transform`.
      name: the name in configs, `"package:name"`, for classes outside gradxform.
    """

    def decorate(cls: Any) -> Any:
        return _as_transform_or_rule(cls, name)

    return decorate if cls is None else decorate(cls)


def _as_transform_or_rule(cls: Any, name: str | None) -> Any:
    if not (isinstance(cls, type) and issubclass(cls, GradientTransformation)):
        class_name = getattr(cls, "__name__", "transform")
        raise TypeError(
            f"{class_name}: a transform subclasses ArrayRule or Transform, {shown(cls)} does not."
        )
    for method in ("init", "update"):  # abstract where a pair is not made of two functions
        if getattr(cls, method) is getattr(GradientTransformation, method):
            raise TypeError(f"{cls.__name__}: a transform must define {method}.")
    locality = cls.__dict__.get("locality", "array")
    if not (isinstance(locality, property) or locality in LOCALITIES):
        choices = ", ".join(repr(k) for k in LOCALITIES)
        raise ValueError(
            f"{cls.__name__}: locality must be one of {choices}, got {shown(locality)}."
        )
    kind = made_value(cls, name)
    both = [base for base in kind.__mro__ if {"update", "update_params"} & vars(base).keys()]
    if "update_params" not in vars(both[0]) or not kind.handles_rows:
        kind.update_params, kind.is_one_run = None, False  # those of a base belong to its update
    if kind.update_params is not None:
        kind.update_params = ValueMethod(kind.update_params)
    if getattr(kind, "static", None) is not None:
        kind.statics = _statics_of_leaves
    for method in ("init", "update"):
        function = getattr(kind, method)
        if method == "init" and issubclass(kind, ArrayRule):
            default = function in (ArrayRule.init, _default_init)
            if default and kind.State is None:
                kind.State = EmptyState
            elif default and isinstance(kind.State, type):  # `init` checks that of a property
                starts_of(kind, kind.State)
            function = _default_init if default else _checked_init(function)
        if method == "update" and not kind.handles_rows:
            function = _update_without_rows(function)
        setattr(kind, method, ValueMethod(function))
    # Their signatures are cached here, so that a user's first trace need not read them.
    for method in ("update", "prepare"):
        if hasattr(kind, method):
            accepted_by(kind, method)
    return kind


def _statics_of_leaves(rule: Any, updates: Updates) -> list[Any]:
    leaves = [(path, leaf) for path, leaf in with_paths(updates) if not is_hole(leaf)]
    return [rule.static(path, leaf) for path, leaf in leaves]


def _checked_init(function: Callable[..., Any]) -> Callable[..., Any]:
    def init(self: Any, params: Params) -> OptState:
        state = function(self, params)
        if not hasattr(state, "_fields"):
            raise TypeError(
                f"{name_of(self)}: init must return a NamedTuple, whose fields with one array per "
                f"parameter are annotated Slot; got {shown(state)}."
            )
        object.__setattr__(self, "_state_kind", type(state))
        slot_fields(type(state))
        return state

    init.__doc__ = function.__doc__
    return init


_default_init = _checked_init(ArrayRule.init)


def _update_without_rows(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def update(
        self: Any, updates: Any, state: Any, params: Any = None, **extra: Any
    ) -> tuple[Any, Any]:
        why = self.why_no_rows or f"looks at {_WHOLE.get(self.locality, 'every row')}"
        # A constraint on sparse rows is a RuntimeError in TensorFlow.
        error = TypeAndRuntimeError if self.sets_params else TypeError
        engine.refuse_rows(self, updates, why, error)
        return function(self, updates, state, params, **extra)

    return update


_WHOLE = {"array": "whole arrays", "tree": "the whole tree"}
