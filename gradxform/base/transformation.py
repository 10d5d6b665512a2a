"""The base of all transforms, and questions that any transformation can answer."""

import dataclasses
import functools
import inspect
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, ClassVar, Self

import jax

from gradxform import engine
from gradxform._names.lazy import public_object
from gradxform.base.methods import BoundMethod
from gradxform.base.traits import Traits
from gradxform.errors import name_of, shown
from gradxform.leaves import Path, align, align_slot
from gradxform.leaves.no_gradient import moved_without
from gradxform.numerics import at_least_float32, cast, promote
from gradxform.types import OptState, Params, PyTree, SupportsTransform, Updates
from gradxform.values import FrozenTree, Value
from gradxform.values.content import parts_of
from gradxform.values.extra_args import accepted_by, accepted_extra, routed_extra
from gradxform.values.registry import REGISTRY

# How far a rule looks from one entry: at itself, its row, its array, or the whole tree.
LOCALITIES = ("entry", "row", "array", "tree")


if TYPE_CHECKING:  # Flax and others annotate what they take with Optax's class
    from optax import GradientTransformationExtraArgs as _OptaxClass
else:
    _OptaxClass = object


class GradientTransformation(Value, Traits, _OptaxClass):
    """A pair of pure functions, `init` and `update`: the base of every transform.

    Called, as Optax's class is, `GradientTransformation(init, update)` makes a transform of two
    functions. To write a transform with hyperparameters, subclass `Transform` or `ArrayRule`.

    Args:
      init: `init(params) -> state`.
      update: `update(updates, state, params=None, ...) -> (updates, state)`; `params` may be left
        out. The extra arguments that it names (or all, if it has `**kwargs`) reach it.
    """

    # Whether calling the class with two functions makes an instance, if it does not have fields.
    made_of_functions: ClassVar[bool] = True

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        """Make an instance; for two functions, of a class whose fields hold them."""
        takes_functions = cls.made_of_functions and not dataclasses.is_dataclass(cls)
        kind: Any = _transformation_with_functions(cls) if takes_functions else cls
        return object.__new__(kind)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "moved" in vars(cls):
            cls.moved = moved_without(cls.moved)

    def __init__(self, init: Callable[..., Any], update: Callable[..., Any]):
        # For signatures only: `__new__` returns an instance of a class with its own `__init__`.
        raise NotImplementedError(f"{name_of(self)}: its class must be made with @transform.")

    # Optax declares the two as fields.
    def init(self, params: Params) -> OptState:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Return the state before the first update, for these parameters."""
        raise NotImplementedError(f"{name_of(self)}: its class must define init.")

    def update(  # pyright: ignore[reportIncompatibleVariableOverride]
        self, updates: Updates, state: OptState, params: Params | None = None, **extra: Any
    ) -> tuple[Updates, OptState]:
        """Return the transformed updates and the new state."""
        raise NotImplementedError(f"{name_of(self)}: its class must define update.")

    def _repr_html_(self) -> str:
        """Return the table of its parts, for a notebook."""
        return public_object("describe")(self)._repr_html_()

    def extra_names(self) -> frozenset[str] | None:
        """Return the names of the extra arguments of `update` that any part takes; None: any name.

        An `update` of this library passes its `**extra` on to the transforms in its fields. That of
        another library may take any name.
        """
        return self._names_of("update")

    def _names_of(self, method: str) -> frozenset[str] | None:
        """Return the names that a method takes, and those of the parts if it passes others on."""
        anything, named, _ = accepted_by(type(self), method)
        if not anything:
            return named
        if getattr(type(self), method).__module__.split(".")[0] != "gradxform":
            return None
        return _parts_extra_names(named, self.inner_transforms())

    def inner_transforms(self) -> list[Any]:
        """Return the transforms in the fields, in order."""
        return list(_transformations_in(self))

    def check_extra(self, extra: dict[str, Any]) -> None:
        """Refuse misspelt extra arguments of a method such as `step`, in place of `update`."""
        update: Any = self.update
        update.check(tuple(extra))

    # The optimizer that made it, for messages.
    written_as: str | None = None

    def resumed(self, state: OptState, begun: frozenset[str]) -> OptState:
        """Return a state that continues another transform's, with what follows from the rest.

        Args:
          state: the state, with what could be carried over.
          begun: the fields that the other state did not have, as `init` returns them.
        """
        return state

    def kept_from(self, old: Any, slot: str, x: Any, param: Any) -> Any:
        """Return what a slot keeps for a parameter, where a state of the same rule goes on.

        Args:
          old: the transform of that state; it may keep something else that says the same.
          slot: the field.
          x: what that state keeps in the field.
          param: the parameter.
        """
        return x

    def estimated_rate(self, state: OptState) -> Any:
        """Return the estimate by which the next step's learning rate is multiplied, or None.

        For transforms that find their own rate, and know that part of it before the gradient.
        """
        return None

    def inner_states(self, state: OptState) -> list[tuple[Path, Any]]:
        """Return where the states of the transforms in it are, each with its transform.

        A place is a path in `state`: the names of fields, keys and indices. The root, `()`, is that
        of a wrapper without a state of its own. By default what `holds` says.
        """
        return [((its_state,), getattr(self, field)) for field, its_state in self.holds]

    def params_inside(self, place: Path, params: Params) -> Params:
        """Return the parameters as a transform in this one sees them.

        Args:
          place: where that transform's state is, as in `inner_states`.
          params: the parameters, with holes for what this transform does not see.
        """
        return params

    def params_outside(self, place: Path, inside: PyTree, params: Params) -> PyTree:
        """Return a tree like `params` of one like what `params_inside` returns for them."""
        return inside

    @moved_without
    def moved(self, state: OptState, old: Params, new: Params) -> OptState:
        """Return the state after something else has moved the parameters.

        An average over replicas, for one, calls it, so that the next step does not undo the move.
        By default the slots named by `follows` move as far, and the transforms named by `holds`
        hear of the move. An override, too, sees holes for leaves that no gradient can have.

        Args:
          state: the state after the last update.
          old: the parameters after the last update.
          new: where they are now, as `old` with a hole for what the transform does not see.
        """
        for field, its_state in self.holds:
            inner_state = tell_moved(getattr(self, field), getattr(state, its_state), old, new)
            state = state._replace(**{its_state: inner_state})
        if not self.follows:
            return state
        news, treedef = jax.tree.flatten(new)
        what = "the parameters had"
        olds = align(self, new, treedef, old, what).leaves
        changed = {}
        for k in self.follows:
            slot = align_slot(self, new, treedef, state, k)
            changed[k] = slot.rebuilt(engine.map_rows(carried, [slot.leaves, olds, news]))
        return state._replace(**changed)

    # A transform is also the pair of its two functions, as Optax's named tuples are.
    _fields: ClassVar[tuple[str, ...]] = ("init", "update")  # pyright: ignore[reportIncompatibleVariableOverride]

    def __iter__(self) -> Iterator[Any]:
        """Unpack as `init, update = tx`."""
        return iter((self.init, self.update))

    def __len__(self) -> int:
        """Return 2, the number of the functions."""
        return 2

    def __getitem__(self, index: Any) -> Any:
        """Return `init` at 0 and `update` at 1."""
        return (self.init, self.update)[index]

    def given_functions(self) -> tuple[Any, Any]:
        """Return the two functions that the transform was made of; by default its own."""
        return self.init, self.update

    def _asdict(self) -> dict[str, Any]:
        """Return the two functions by name."""
        return {"init": self.init, "update": self.update}

    def _replace(self, **functions: Any) -> "GradientTransformation":
        """Return a transform of the two functions, with another `init` or `update`."""
        return GradientTransformationExtraArgs(**(self._asdict() | functions))


@functools.cache
def _transformation_with_functions(cls: Any) -> Any:
    """Return a subclass of a pair's class whose fields hold the two functions."""
    holder: Any = REGISTRY["GradientTransformation"]
    if issubclass(cls, GradientTransformationExtraArgs):
        holder = REGISTRY["GradientTransformationExtraArgs"]
    return holder if issubclass(holder, cls) else type(cls.__name__, (cls, holder), {})


class GradientTransformationExtraArgs(GradientTransformation):
    """A transform whose update accepts any extra arguments by name, and uses those that it knows.

    Every transform of this library is one, except for what `GradientTransformation(init, update)`
    makes.

    Args:
      init: as in `GradientTransformation`.
      update: as there.
    """


def call_update(
    tx: SupportsTransform,
    updates: Updates,
    state: OptState,
    params: Params | None,
    extra: dict[str, Any],
) -> tuple[Updates, OptState]:
    """Call the update of any accepted object with the extra arguments that it takes."""
    is_ours = isinstance(tx, GradientTransformation)
    if not is_ours and not isinstance(unwrapped(tx), GradientTransformation):
        engine.refuse_rows(tx, updates, "is not a transform of this library")
    update: Any = tx.update
    accepts = accepted_by(type(tx), "update") if is_ours else accepted_extra(tx, update)
    extra = routed_extra(tx, accepts, extra) if extra or accepts.needed else {}
    # The outermost transform has checked the names of extra arguments.
    call = update.call if isinstance(update, BoundMethod) else update
    result = call(updates, state, params, **extra)
    if not isinstance(result, tuple | list) or len(result) != 2:
        raise TypeError(f"{name_of(tx)}: update must return (updates, state), got {shown(result)}.")
    return result[0], result[1]


def extra_names(tx: SupportsTransform) -> frozenset[str] | None:
    """Return the names of the extra arguments that any part of `tx` takes; None: any name."""
    if isinstance(tx, GradientTransformation):
        return tx.extra_names()
    anything, named, _ = accepted_extra(tx, tx.update)
    return None if anything else named


def _parts_extra_names(names: frozenset[str], parts: Sequence[Any]) -> frozenset[str] | None:
    for part in parts:
        part_names = extra_names(part)
        if part_names is None:
            return None
        names |= part_names
    return names


def _transformations_in(x: Any) -> Iterator[Any]:
    """Yield the transforms that `x` is made of, but not those inside them."""
    within: Any = parts_of(x) or ()
    if isinstance(x, FrozenTree):  # in which a transform of Optax, a tuple, would be a branch
        within = jax.tree.leaves(x.unfreeze(), is_leaf=_is_transformation)
    for part in within:
        if _is_transformation(part):
            yield part
        else:
            yield from _transformations_in(part)


def _is_transformation(x: Any) -> bool:
    return isinstance(x, SupportsTransform) and not isinstance(x, type)


def unwrapped(tx: Any) -> Any:
    """Return the transform whose `init` and `update` make up an object, or else the object.

    For `as_optax(tx)` and `GradientTransformation(*tx)`, that is `tx`.
    """
    init, update = _functions(tx)
    if not isinstance(init, BoundMethod) or not isinstance(update, BoundMethod):
        return tx
    owner = init.owner
    if owner is tx or owner != update.owner or (init.name, update.name) != ("init", "update"):
        return tx
    return unwrapped(owner)


def _functions(tx: Any) -> tuple[Any, Any]:
    if isinstance(tx, GradientTransformation):
        return tx.given_functions()
    return getattr(tx, "init", None), getattr(tx, "update", None)


def tell_moved(tx: Any, state: OptState, old: Params, new: Params) -> OptState:
    """Return the state of any accepted object after something else has moved the parameters."""
    tx = unwrapped(tx)
    return tx.moved(state, old, new) if isinstance(tx, GradientTransformation) else state


def carried(slot: Any, old: Any, new: Any) -> Any:
    """Return a copy of a parameter, moved by as much as the parameter was.

    The copy is not set to the parameter, so that a copy of more bits keeps its extra precision.
    """
    wide = at_least_float32(promote(slot.dtype, new.dtype))
    return cast(cast(slot, wide) + (cast(new, wide) - cast(old, wide)), slot.dtype)


def check_transform(part: Any, tx: Any, what: str) -> None:
    """Require `tx` to be something with `init` and `update`."""
    if isinstance(tx, type) or inspect.isroutine(tx):
        raise TypeError(
            f"{name_of(part)}: {what} is {shown(tx)}, not a transform; call it: {tx.__name__}(...)."
        )
    if not isinstance(tx, SupportsTransform):
        raise TypeError(
            f"{name_of(part)}: {what} must have init and update, as a transform does, "
            f"got {shown(tx)}."
            + (" Unpack it with a star." if isinstance(tx, tuple | list) else "")
        )


# Within `own_locality_of`, parts count as entrywise, so that a wrapper tells its own locality.
_ALONE: ContextVar[bool] = ContextVar("alone", default=False)


def locality_of(tx: Any) -> str:
    """Return how far `tx` looks; "tree" for an object that does not say."""
    if _ALONE.get():
        return "entry"
    tx = unwrapped(tx)
    return tx.locality if isinstance(tx, GradientTransformation) else "tree"


def own_locality_of(tx: Any) -> str:
    """Return how far `tx` would look if the transforms in it looked at single entries."""
    tx = unwrapped(tx)
    token = _ALONE.set(True)
    try:
        return tx.locality if isinstance(tx, GradientTransformation) else "tree"
    finally:
        _ALONE.reset(token)


def farthest(transforms: Sequence[Any]) -> str:
    """Return the farthest locality of several transforms; "entry" if there are none."""
    return max((locality_of(tx) for tx in transforms), key=LOCALITIES.index, default="entry")


def rules_with_state(kind: str) -> list[type[GradientTransformation]]:
    """Return the registered rules whose states are of the class with this name."""
    return [
        rule
        for rule in dict.fromkeys(REGISTRY.parts())
        if isinstance(rule, type) and issubclass(rule, GradientTransformation)
        if getattr(getattr(rule, "State", None), "__name__", None) == kind
    ]
