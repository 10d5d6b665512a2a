"""What a transformation is: `Transform`, and `ArrayRule` for those that are a rule for one array."""

import abc
import inspect
import typing
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar, NamedTuple, TypeVar, dataclass_transform

import jax
import jax.numpy as jnp

from gradxform import lift, trees
from gradxform.errors import name_of
from gradxform.numerics import cast, promote
from gradxform.types import OptState, Params, PyTree, Slot, SupportsTransform, Updates
from gradxform.values import Value, value

T = TypeVar("T")

# How far a rule looks from one entry: at itself, its row, its array, or the whole tree.
LOCALITIES = ("entry", "row", "array", "tree")


class EmptyState(NamedTuple):
    """The state of a transform that remembers nothing."""


class BoundMethod:
    """`tx.init` or `tx.update` as a value: equal transforms have equal methods.

    JAX keys its caches by the function it is given. An ordinary bound method is a new object at
    each access; this one is kept by its transform, equals that of an equal transform, and pickles.
    """

    def __init__(self, owner: Any, name: str):
        self.owner, self.name = owner, name
        self.__name__ = name
        self.__qualname__ = f"{type(owner).__name__}.{name}"
        self.__doc__ = getattr(type(owner), name).__doc__
        self._function = getattr(type(owner), name)

    @property
    def __signature__(self) -> inspect.Signature:
        full = inspect.signature(self._function)
        return full.replace(parameters=list(full.parameters.values())[1:])

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._function(self.owner, *args, **kwargs)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, BoundMethod):
            return NotImplemented
        return self.name == other.name and self.owner == other.owner

    def __hash__(self) -> int:
        try:
            return hash((self.owner, self.name))
        except TypeError:  # the transform holds a live number: the method equals only itself
            return id(self)

    def __repr__(self) -> str:
        return f"{self.owner!r}.{self.name}"

    def __reduce__(self):
        return getattr, (self.owner, self.name)


class _ValueMethod:
    """Descriptor that hands out one `BoundMethod` per transform."""

    def __init__(self, function: Callable[..., Any]):
        self.function, self.name = function, function.__name__

    def __get__(self, owner: Any, cls: type) -> Any:
        if owner is None:
            return self.function
        bound = BoundMethod(owner, self.name)
        object.__setattr__(owner, self.name, bound)  # found before this descriptor from now on
        return bound


class Transform(Value, abc.ABC):
    """A gradient transformation: hyperparameters as fields, and two pure methods.

    Subclasses are made with `@transform`. `update` must not make `params` positional-only, and its
    required extra arguments are keyword-only, so that `chain` can see and route them.
    """

    @abc.abstractmethod
    def init(self, params: Params) -> OptState:
        """Return the state before the first update, for these parameters."""

    @abc.abstractmethod
    def update(
        self, updates: Updates, state: OptState, params: Params | None = None, **extra: Any
    ) -> tuple[Updates, OptState]:
        """Return the transformed updates and the new state."""

    # How far the transform looks; wrappers and chains derive it from their parts.
    locality: Any = "tree"

    def __iter__(self) -> Iterator[Any]:
        """Unpack as `init, update = tx`."""
        return iter((self.init, self.update))


class ArrayRule(Transform):
    """A transform given by its rule for one array.

    A subclass says `init`, `rule`, and, if it has scalars to compute once a step, `prepare`.
    The fields of its state that are annotated `Slot` are handed to `rule` leaf by leaf, in order.
    """

    needs_params: ClassVar[bool] = False
    handles_complex: ClassVar[bool] = False
    locality: ClassVar[str] = "array"

    def init(self, params: Params) -> OptState:
        """Return the initial state; by default there is none."""
        return EmptyState()

    @abc.abstractmethod
    def rule(self, g: Any, *slots_p_and_shared: Any) -> Any:
        """Return the update of one array, then its new slots.

        Called as `rule(g, *slots, p, *shared)`: the gradient, the state's slots, the parameter
        (None if the caller gave none) and the scalars of `prepare`, all in float32 or wider.
        """

    def prepare(self, updates: Any, state: Any, params: Any) -> tuple[Any, ...]:
        """Return the state with its scalars advanced, then the scalars of this step.

        Called once a step. `updates` is the whole tree for a rule whose locality is "tree", and
        None for others, because those run together with their neighbours. Extra arguments that a
        rule needs (`value`, ...) are keyword-only parameters of its `prepare`.
        """
        return (state,)

    def active(self, tree: PyTree) -> PyTree | None:
        """Return a tree of booleans, the leaves on which the rule acts; None for all."""
        return None

    def update(
        self, updates: Updates, state: OptState, params: Params | None = None, **extra: Any
    ) -> tuple[Updates, OptState]:
        """Apply the rule to every leaf."""
        updates, states = run_rules([self], updates, [state], params, extra)
        return updates, states[0]


@dataclass_transform(frozen_default=True, eq_default=False)
def transform(cls: type[T] | None = None, /, *, name: str | None = None) -> Any:
    """Make a class a transform: a value whose `init` and `update` are values too.

    Args:
      cls: a subclass of `ArrayRule` or `Transform`.
      name: the name in configs, `"package:name"`, for classes outside gradxform.
    """
    if cls is None:
        return lambda c: transform(c, name=name)
    if not issubclass(cls, Transform):
        raise TypeError(f"{cls.__name__}: a transform subclasses ArrayRule or Transform.")
    locality = cls.__dict__.get("locality", "array")
    if isinstance(locality, str) and locality not in LOCALITIES:
        raise ValueError(f"{cls.__name__}: locality must be one of {LOCALITIES}, got {locality!r}.")
    made = value(cls, name=name)
    for method in ("init", "update"):
        function = getattr(made, method)
        if method == "init" and issubclass(made, ArrayRule):
            function = _checked_init(function)
        setattr(made, method, _ValueMethod(function))
    return made


def _checked_init(function: Callable[..., Any]) -> Callable[..., Any]:
    def init(self, params: Params) -> OptState:
        trees.check_params(self, params)
        return function(self, params)

    init.__doc__ = function.__doc__
    return init


# ------------------------------------------------------------------------------ running the rules

_SLOTS: dict[type, tuple[str, ...]] = {}


def slot_fields(cls: type) -> tuple[str, ...]:
    """Return the names of the fields of a state that hold one array per parameter."""
    if cls not in _SLOTS:
        hints = typing.get_type_hints(cls, include_extras=True)
        _SLOTS[cls] = tuple(k for k, annotation in hints.items() if annotation == Slot)
    return _SLOTS[cls]


def run_rules(
    rules: Sequence[ArrayRule],
    updates: Updates,
    states: Sequence[OptState],
    params: Params | None,
    extra: dict[str, Any],
) -> tuple[Updates, list[OptState]]:
    """Run neighbouring rules over a tree, together; only the first may look at all updates."""
    treedef = jax.tree.structure(updates)
    parts, new_states = [], []
    for rule, state in zip(rules, states, strict=True):
        if rule.needs_params and params is None:
            raise ValueError(
                f"{name_of(rule)}: needs the parameters; call update(updates, state, params)."
            )
        seen = updates if rule.locality == "tree" else None
        fresh, *shared = rule.prepare(seen, state, params, **routed(rule, rule.prepare, extra))
        names = slot_fields(type(fresh))
        slots = tuple(
            trees.align(rule, updates, treedef, getattr(fresh, k), f"the state's {k} has")
            for k in names
        )
        mask = rule.active(updates if params is None else params)
        if mask is not None:
            mask = trees.align(rule, updates, treedef, mask, "the mask has").leaves()
        parts.append(lift.Part(rule, slots, tuple(shared), mask))
        new_states.append((fresh, names))
    updates, new = lift.map_leaves(parts, updates, params)
    return updates, [
        state._replace(**{k: s.rebuilt(n) for k, s, n in zip(names, part.slots, leaves, strict=True)})
        if names
        else state
        for (state, names), part, leaves in zip(new_states, parts, new, strict=True)
    ]


# -------------------------------------------------------------------------------- extra arguments

_ACCEPTS: dict[Any, tuple[bool, frozenset[str], frozenset[str]]] = {}


def _accepts(function: Callable[..., Any]) -> tuple[bool, frozenset[str], frozenset[str]]:
    """Return whether `function` takes any keyword, which it names, and which of those it requires."""
    found = inspect.signature(function).parameters.values()
    anything = any(p.kind is p.VAR_KEYWORD for p in found)
    named = {p.name for p in found if p.kind is p.KEYWORD_ONLY}
    needed = {p.name for p in found if p.kind is p.KEYWORD_ONLY and p.default is p.empty}
    return anything, frozenset(named), frozenset(needed)


def routed(part: Any, function: Callable[..., Any], extra: dict[str, Any]) -> dict[str, Any]:
    """Return the extra arguments that `function` of `part` takes.

    Raises:
      TypeError: if it requires one that is not given.
    """
    key = (type(part), function.__name__) if isinstance(part, Transform) else None
    taken = _ACCEPTS.get(key) if key else None
    if taken is None:
        taken = _accepts(function)
        if key:
            _ACCEPTS[key] = taken
    anything, named, needed = taken
    missing = sorted(needed - set(extra))
    if missing:
        raise TypeError(
            f"{name_of(part)}: needs the extra argument {missing[0]!r}; "
            f"call update(updates, state, params, {missing[0]}=...)."
        )
    return extra if anything else {k: v for k, v in extra.items() if k in named}


def call_update(
    tx: SupportsTransform,
    updates: Updates,
    state: OptState,
    params: Params | None,
    extra: dict[str, Any],
) -> tuple[Updates, OptState]:
    """Call the update of any accepted object with the extra arguments that it takes."""
    return tx.update(updates, state, params, **routed(tx, tx.update, extra))


def check_transform(part: Any, tx: Any, what: str) -> None:
    """Require `tx` to be something with `init` and `update`."""
    if isinstance(tx, type):
        raise TypeError(
            f"{name_of(part)}: {what} is the class {tx.__name__}, not a transform; "
            f"call it: {tx.__name__}(...)."
        )
    if not isinstance(tx, SupportsTransform):
        raise TypeError(
            f"{name_of(part)}: {what} must have init and update, as a transform does, "
            f"got {tx!r}."
        )


def locality_of(tx: Any) -> str:
    """Return how far `tx` looks; an object that does not say is taken to look at everything."""
    return tx.locality if isinstance(tx, Transform) else "tree"


def farthest(transforms: Sequence[Any]) -> str:
    """Return the farthest locality of several transforms; "entry" of none."""
    return max((locality_of(tx) for tx in transforms), key=LOCALITIES.index, default="entry")


def with_inner_locality(self: Any) -> str:
    """The locality of a wrapper: that of what it wraps."""
    return locality_of(self.inner)


# -------------------------------------------------------------------------------- applying updates


def _add(p: Any, u: Any) -> Any:
    p, u = jnp.asarray(p), jnp.asarray(u)
    dtype = promote(p.dtype, u.dtype)
    return cast(cast(p, dtype) + cast(u, dtype), p.dtype)


def apply_updates(params: Params, updates: Updates) -> Params:
    """Return `params + updates`, each leaf in the dtype of its parameter.

    Args:
      params: the parameters.
      updates: a tree of the same structure; a hole leaves its parameter as it is.

    Raises:
      ValueError: if the structures or the shapes differ.
    """
    us, treedef = jax.tree.flatten(updates)
    ps = trees.align("apply_updates", updates, treedef, params, "the parameters have")
    for i, (p, u) in enumerate(zip(ps.leaves(), us, strict=True)):
        if jnp.shape(p) != jnp.shape(u):
            raise ValueError(
                f"apply_updates: the update of {trees.path_at(updates, i)} has shape "
                f"{jnp.shape(u)}, the parameter has {jnp.shape(p)}."
            )
    return ps.rebuilt(lift.map_rows(_add, [ps.leaves(), us]))


def incremental_update(new_tensors: PyTree, old_tensors: PyTree, step_size: Any) -> PyTree:
    """Return `step_size * new + (1 - step_size) * old`: one step of an exponential average.

    Args:
      new_tensors: the tree to move towards.
      old_tensors: the average; holes stay as they are, and leaves keep their dtype.
      step_size: the weight of the new, in [0, 1].
    """

    def one(new, old):
        return None if new is None else cast(step_size * new + (1.0 - step_size) * old, old.dtype)

    return jax.tree.map(one, new_tensors, old_tensors, is_leaf=lambda x: x is None)
