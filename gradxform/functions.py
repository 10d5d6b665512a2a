"""Transforms made of functions, as in Optax, and the simplest ones."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from gradxform import trees
from gradxform.base import ArrayRule, EmptyState, Transform, check_transform, transform
from gradxform.running import check_state, routed
from gradxform.types import SupportsTransform


class _EveryTransform(type(Transform)):
    """`isinstance(tx, GradientTransformation)` holds for every transform of this library."""

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, Transform)


@transform
class GradientTransformation(Transform, metaclass=_EveryTransform):
    """A transform of two functions, Optax's way of writing one.

    Every transform of this library counts as an instance of this class.

    Args:
      init_fn: `init_fn(params) -> state`.
      update_fn: `update_fn(updates, state, params=None, ...) -> (updates, state)`; the extra
        arguments that it names (or all, if it has `**kwargs`) reach it.
    """

    init_fn: Callable[..., Any]
    update_fn: Callable[..., Any]

    def init(self, params):
        """Return what `init_fn` returns."""
        return self.init_fn(params)

    def update(self, updates, state, params=None, **extra):
        """Return what `update_fn` returns."""
        extra = routed(getattr(self.update_fn, "__name__", self), self.update_fn, extra)
        return self.update_fn(updates, state, params, **extra)


@transform
class GradientTransformationExtraArgs(GradientTransformation):
    """The same as `GradientTransformation`, which already hands on extra arguments.

    Args:
      init_fn: as there.
      update_fn: as there.
    """

    init_fn: Callable[..., Any]
    update_fn: Callable[..., Any]


def with_extra_args_support(tx: SupportsTransform) -> Transform:
    """Return `tx` as a transform whose update takes any extra arguments.

    Transforms of this library already do; another object's update gets those that it takes.
    """
    if isinstance(tx, Transform):
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

    def rule(self, g, p):
        """Return the update itself."""
        return g


@transform
class set_to_zero(ArrayRule):
    """Replace every update by zeros, which freezes the parameters.

    Update rule: u = 0, also where g is NaN.
    """

    locality = "entry"
    handles_complex = True

    def rule(self, g, p):
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

    def init(self, params):
        """Return the empty state."""
        return EmptyState()

    def update(self, updates, state, params=None, **extra):
        """Return what `f` returns."""
        check_state(self, state, EmptyState)
        return self.f(updates, params), EmptyState()


@transform
class stateless_with_tree_map(Transform):
    """Make a transform of a function of one array.

    The arrays come as they are; an `ArrayRule` has its arrays in float32 or wider and goes through
    the library's compiled calls.

    Args:
      f: `f(update, param) -> update` on arrays; `param` is None where update was given none.
    """

    f: Callable[[Any, Any], Any]

    locality = "array"

    def init(self, params):
        """Return the empty state."""
        trees.check_params(self, params)
        return EmptyState()

    def update(self, updates, state, params=None, **extra):
        """Return `f` of every leaf."""
        check_state(self, state, EmptyState)
        us, treedef = jax.tree.flatten(updates)
        ps: list[Any] = [None] * len(us)
        if params is not None:
            ps = trees.align(self, updates, treedef, params, "the parameters have").leaves()
            trees.check_like(self, updates, ps, "the parameter has")
        made = [self.f(u, p) for u, p in zip(us, ps, strict=True)]
        return jax.tree.unflatten(treedef, made), EmptyState()
