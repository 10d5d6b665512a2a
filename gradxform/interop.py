"""Transforms as two functions, as Optax has them, and the bridges to Optax itself."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from gradxform._names.deferred import signature_of
from gradxform._names.lazy import public_names as _public_names
from gradxform.base import (
    ArrayRule,
    EmptyState,
    GradientTransformation as GradientTransformation,
    GradientTransformationExtraArgs as GradientTransformationExtraArgs,
    Transform,
    check_transform,
    transform,
)
from gradxform.errors import name_of
from gradxform.leaves import align_params
from gradxform.leaves.states import check_state
from gradxform.types import Array, Params, SupportsTransform, Updates
from gradxform.values.content import flaw_of
from gradxform.values.extra_args import accepted_extra, routed_extra
from gradxform.values.fields import set_fields

# Optax's names for the state of a part that remembers nothing.
AdaptiveGradClipState = EmptyState
AddDecayedWeightsState = EmptyState
ClipByGlobalNormState = EmptyState
ClipState = EmptyState
NormalizeState = EmptyState
ScaleByTrustRatioState = EmptyState


def init_empty_state(params: Params) -> EmptyState:
    """Return the state of a transform that remembers nothing: the `init` of one made of functions.

    Args:
      params: the parameters, which do not matter.
    """
    return EmptyState()


class _FunctionByIdentity:
    """A function that holds arrays, or cannot be hashed: it is equal to nothing but itself."""

    def __init__(self, function: Callable[..., Any]):
        self.__wrapped__ = function  # its signature is that of the function

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.__wrapped__(*args, **kwargs)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _FunctionByIdentity) and self.__wrapped__ is other.__wrapped__

    def __hash__(self) -> int:
        return id(self.__wrapped__)

    def __repr__(self) -> str:
        return repr(self.__wrapped__)


def as_function(f: Any) -> Any:
    """Return a function as a value; one that only closes over arrays is a value already."""
    callable_object = callable(f) and not isinstance(f, type)
    return _FunctionByIdentity(f) if callable_object and flaw_of(f) is not None else f


@transform(name="GradientTransformation")
class OfFunctions(GradientTransformation):
    """A transform of two functions, Optax's way of writing one.

    Written `GradientTransformation(init, update)`, or with these names; the fields' names will do
    too. A function may be anything that can be called.

    Args:
      init_fn: `init(params) -> state`.
      update_fn: `update(updates, state, params=None, ...) -> (updates, state)`; `params` may be
        left out. The extra arguments that it names (or all, if it has `**kwargs`) reach it.
    """

    init_fn: Callable[..., Any]
    update_fn: Callable[..., Any]

    def __init__(
        self,
        init: Callable[..., Any] | None = None,
        update: Callable[..., Any] | None = None,
        *,
        init_fn: Callable[..., Any] | None = None,
        update_fn: Callable[..., Any] | None = None,
    ):
        set_fields(
            self,
            init_fn=as_function(init if init_fn is None else init_fn),
            update_fn=as_function(update if update_fn is None else update_fn),
        )

    def init(self, params: Params) -> Any:
        """Return what `init_fn` returns."""
        return self.init_fn(params)

    def update(
        self, updates: Updates, state: Any, params: Params | None = None, **extra: Any
    ) -> tuple[Updates, Any]:
        """Return what `update_fn` returns."""
        arguments = (updates, state)
        if self._takes_three:
            arguments = (*arguments, params)
        elif params is not None:
            extra = {**extra, "params": params}  # it may take them by name
        called = getattr(self.update_fn, "__name__", name_of(self))
        return self.update_fn(
            *arguments, **routed_extra(called, accepted_extra(called, self.update_fn), extra)
        )

    @functools.cached_property
    def _takes_three(self) -> bool:
        """Whether `update_fn` takes the parameters by position."""
        try:
            signature_of(self.update_fn).bind_partial(None, None, None)
        except TypeError:
            return False
        return True

    def given_functions(self) -> tuple[Any, Any]:
        """Return the two functions, as they were given."""
        return self.init_fn, self.update_fn

    def _asdict(self) -> dict[str, Any]:
        """Return the two functions, as they were given."""
        return {"init": self.init_fn, "update": self.update_fn}

    def _replace(self, **functions: Any) -> "OfFunctions":
        """Return the same with another `init` or `update`."""
        return type(self)(**(self._asdict() | functions))

    def extra_names(self) -> frozenset[str] | None:
        """Return the names of the extra arguments that `update_fn` takes; None: any name."""
        anything, named, _ = accepted_extra(name_of(self.update_fn), self.update_fn)
        return None if anything else named


@transform(name="GradientTransformationExtraArgs")
class OfFunctionsExtraArgs(OfFunctions, GradientTransformationExtraArgs):
    """A transform of two functions, like `GradientTransformation`, that accepts extra arguments.

    Args:
      init_fn: as there.
      update_fn: as there.
    """

    init_fn: Callable[..., Any]
    update_fn: Callable[..., Any]

    __init__ = OfFunctions.__init__


def with_extra_args_support(tx: SupportsTransform) -> GradientTransformationExtraArgs:
    """Return `tx` as a transform whose update takes any extra arguments.

    Transforms of this library already do; another object's update gets those that it takes.
    """
    if isinstance(tx, GradientTransformationExtraArgs):
        return tx
    check_transform("with_extra_args_support", tx, "tx")
    return GradientTransformationExtraArgs(tx.init, tx.update)


@transform
class identity(ArrayRule):
    """Leave every update as it is.

    Update rule: u = g.
    """

    locality = "entry"
    handles_complex = True
    keeps_updates = True

    def rule(self, g: Array, p: Array | None) -> Array:
        """Return the update itself."""
        return g


@transform
class set_to_zero(ArrayRule):
    """Replace every update by zeros, which freezes the parameters.

    Update rule: u = 0, also where g is NaN.
    """

    locality = "entry"
    handles_complex = True

    def rule(self, g: Array, p: Array | None) -> Array:
        """Return zeros."""
        return jnp.zeros_like(g)


@transform
class stateless(Transform):
    """Make a transform of a function of the whole tree.

    Args:
      f: `f(updates, params) -> updates`; `params` is None where update was given none.
    """

    f: Callable[[Any, Any], Any]

    locality = "tree"

    def __post_init__(self):
        object.__setattr__(self, "f", as_function(self.f))

    def init(self, params: Params) -> Any:
        """Return the empty state."""
        return EmptyState()

    def update(
        self, updates: Updates, state: Any, params: Params | None = None, **extra: Any
    ) -> tuple[Updates, Any]:
        """Return what `f` returns."""
        return self.f(updates, params), check_state(self, state, EmptyState)


@transform
class stateless_with_tree_map(Transform):
    """Make a transform of a function of one array.

    The arrays keep their dtypes; an `ArrayRule`, in contrast, computes in float32 or wider and goes
    through the library's compiled calls.

    Args:
      f: `f(update, param) -> update` on arrays; `param` is None where update was given none.
    """

    f: Callable[[Any, Any], Any]

    locality = "array"

    def __post_init__(self):
        object.__setattr__(self, "f", as_function(self.f))

    def init(self, params: Params) -> Any:
        """Return the empty state."""
        return EmptyState()

    def update(
        self, updates: Updates, state: Any, params: Params | None = None, **extra: Any
    ) -> tuple[Updates, Any]:
        """Return `f` of every leaf."""
        us, treedef = jax.tree.flatten(updates)
        ps: list[Any] = [None] * len(us)
        if params is not None:
            ps = align_params(self, updates, treedef, params).leaves
        leaves = [self.f(u, p) for u, p in zip(us, ps, strict=True)]
        return jax.tree.unflatten(treedef, leaves), check_state(self, state, EmptyState)


_, __getattr__, __dir__ = _public_names(__name__)
