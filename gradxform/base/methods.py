"""The `init` and `update` of a transform as values, which JAX can use as cache keys."""

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any, NamedTuple

import jax

from gradxform._names.deferred import signature_of
from gradxform.base.explicit_axes import explicit_mesh, update_freed
from gradxform.leaves import widest_dtype
from gradxform.leaves.boxes import boxed_by_own_dims
from gradxform.leaves.no_gradient import init_without, take_gradients, update_without
from gradxform.leaves.states import named_tuples_in
from gradxform.numerics import has_64_bits, scalars_as
from gradxform.values.export_names import announce_named_tuple
from gradxform.values.extra_args import check_arguments_of_loss, check_names, refuse_untaken

# The arguments of every `update`.
_CALL = ("updates", "state", "params")

# Within `noting_inits`: the transforms whose `init` was called, each with the state it returned.
_INITS: ContextVar[list[tuple[Any, Any]] | None] = ContextVar("inits", default=None)


class _InitChanges(NamedTuple):
    """The changes by wrappers to the states of the transforms in them, the innermost first."""

    functions: tuple[Callable[[Any, Any], Any], ...]
    results: list[Any]  # the changed states


_CHANGES: ContextVar[_InitChanges | None] = ContextVar("changes", default=None)


@contextlib.contextmanager
def noting_inits() -> Iterator[list[tuple[Any, Any]]]:
    """Note every transform whose `init` is called, with its state; parts come before wrappers."""
    inits: list[tuple[Any, Any]] = []
    token = _INITS.set(inits)
    try:
        yield inits
    finally:
        _INITS.reset(token)


@contextlib.contextmanager
def changing_states(change: Callable[[Any, Any], Any]) -> Iterator[None]:
    """Let every `init` return `change(owner, state)`, once for each state.

    A wrapper without a state of its own returns that of its inner transform, already changed.
    """
    outer = _CHANGES.get() or _InitChanges((), [])
    token = _CHANGES.set(_InitChanges((change, *outer.functions), outer.results))
    try:
        yield
    finally:
        _CHANGES.reset(token)


def noted_init(init: Callable[..., Any]) -> Callable[..., Any]:
    """Return an `init` of a class whose states wrappers can change and `noting_inits` notes."""

    @functools.wraps(init)
    def call(owner: Any, *args: Any, **kwargs: Any) -> Any:
        state = init(owner, *args, **kwargs)
        changes, inits = _CHANGES.get(), _INITS.get()
        if changes is not None and not any(state is x for x in changes.results):
            for change in changes.functions:
                state = change(owner, state)
            changes.results.append(state)
        if inits is not None:
            inits.append((owner, state))
        return state

    return call


def _announce_states(state: Any, params: Any) -> None:
    """Tell `jax.export` of the states of others among ours, but not of what holds parameters."""
    for kind in named_tuples_in(state) - named_tuples_in(params):
        announce_named_tuple(kind)


class BoundMethod:
    """`tx.init` or `tx.update` as a value: equal transforms have equal methods.

    JAX keys its caches by functions. An ordinary bound method is a new object at each access. This
    one is stored in its transform, equals that of an equal transform, and can be pickled.
    """

    def __init__(self, owner: Any, name: str) -> None:
        self.owner, self.name = owner, name
        self.__name__ = name
        self.__qualname__ = f"{type(owner).__name__}.{name}"
        self.__doc__ = getattr(type(owner), name).__doc__
        function = getattr(type(owner), name)
        self._function = noted_init(function) if name == "init" else function
        self._checked: set[tuple[str, ...]] = set()  # names of arguments that passed `check`

    @property
    def __signature__(self) -> inspect.Signature:
        full = signature_of(self._function)
        return full.replace(parameters=list(full.parameters.values())[1:])

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if kwargs and self.name == "update":
            self.check(tuple(kwargs) + _CALL[: len(args)])
            if "value_fn" in kwargs:
                self.check_arguments_of_loss(kwargs)
        if self.owner.made_of_functions or not (args or kwargs):
            result = self.call(*args, **kwargs)  # functions see what the caller gives
            if self.name == "init":
                _announce_states(result, args[0] if args else None)
            return result
        if self.name == "init":
            state = init_without(self.owner, self.call, *args, **kwargs)
            params = args[0] if args else kwargs["params"]
            _announce_states(state, params)
            return boxed_by_own_dims(state, params, lambda: _sends_fragments(self.owner))
        # As usual: the updates, the parameters and what else is given are floating arrays.
        if take_gradients(jax.tree.leaves((args[:1], args[2:], kwargs))):
            return self.call(*args, **kwargs)
        return update_without(self.call, args, kwargs)

    def call(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function without `check`, which the outermost transform has called."""
        if self.name != "init" and not self.owner.made_of_functions:
            mesh = explicit_mesh(args[0] if args else kwargs.get("updates"))
            if mesh is not None:
                return update_freed(mesh, self.call, args, kwargs, self.name == "update_params")
        if not has_64_bits():
            return self._function(self.owner, *args, **kwargs)
        # The first argument is the parameters in `init`, the updates in `update`. Where the
        # parameters are left out, the state has their width, since `init` made it for them.
        first, state, params = (*args, None, None, None)[:3]
        params = kwargs.get("params", params)
        trees = (first, kwargs.get("updates"), state if params is None else params)
        with scalars_as(widest_dtype(trees)):
            return self._function(self.owner, *args, **kwargs)

    def check(self, names: tuple[str, ...]) -> None:
        """Refuse an argument with a name close to one that a part takes."""
        if names not in self._checked:
            extra_names = self.owner.extra_names()
            if extra_names is not None:
                check_names(self.owner, extra_names.union(_CALL), names)
                # What the loss takes, `check_arguments_of_loss` knows.
                has_loss = "value_fn" in names and "value_fn" in extra_names
                if is_for_replicas(self.owner) and not has_loss:
                    refuse_untaken(self.owner, extra_names.union(_CALL), names)
            self._checked.add(names)

    def check_arguments_of_loss(self, extra: dict[str, Any]) -> None:
        """Refuse an argument that neither a part nor the loss of a line search takes."""
        extra_names = self.owner.extra_names()
        if extra_names is not None and "value_fn" in extra_names:
            check_arguments_of_loss(self.owner, extra_names.union(_CALL), extra)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, BoundMethod) or type(self) is not type(other):
            return NotImplemented
        return self.name == other.name and self.owner == other.owner

    def __hash__(self) -> int:
        try:
            return hash((self.owner, self.name))
        except TypeError:  # the transform holds a live number: the method equals only itself
            return id(self)

    def __repr__(self) -> str:
        return f"{self.owner!r}.{self.name}"

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (self.owner, self.name)


class ValueMethod:
    """Descriptor that returns one `BoundMethod` per transform."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function, self.name = function, function.__name__

    def __get__(self, owner: Any, cls: type) -> Any:
        if owner is None:
            return self.function
        bound = BoundMethod(owner, self.name)
        object.__setattr__(owner, self.name, bound)  # later accesses find it before this descriptor
        return bound


def is_for_replicas(tx: Any) -> bool:
    """Whether a transform or a part of it is for replicas."""
    parts: Any = getattr(tx, "inner_transforms", list)
    is_one = type(tx).__module__.startswith("gradxform.distributed.")
    return is_one or bool(getattr(tx, "exchanges", ())) or any(map(is_for_replicas, parts()))


def _sends_fragments(tx: Any) -> bool:
    """Whether a transform or a part of it sends the parameters in fragments."""
    parts: Any = getattr(tx, "inner_transforms", list)
    return getattr(tx, "fragments", 1) > 1 or any(map(_sends_fragments, parts()))
