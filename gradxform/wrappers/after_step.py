"""Wrappers that change the steps of what they hold, each array by itself."""

from typing import Any

import jax
import jax.numpy as jnp

from gradxform import engine
from gradxform.base import call_update
from gradxform.errors import name_of
from gradxform.leaves import align_params, check_shapes, require_params
from gradxform.numerics import at_least_float32, cast, promote, real_dtype
from gradxform.types import Array, Params, Updates
from gradxform.values import put_live, take_live
from gradxform.wrappers.agree import refuse_exchange
from gradxform.wrappers.changed_steps import check_changeable, told_change
from gradxform.wrappers.parts import StatelessWrapper, at_least, check_movable


class AfterStep(StatelessWrapper):
    """Base of wrappers that change each array of an inner step, as `after` says.

    What `after` gets is as wide as what a rule gets, and what it returns is rounded to the dtype of
    the gradient. A part inside that keeps copies of the parameters is told where they go.

    `reads_params` is whether `after` needs the parameters; without, it gets the gradient in their
    place.
    """

    reads_params = True
    handles_rows = False

    def __post_init__(self) -> None:
        super().__post_init__()
        refuse_exchange(self, self.inner)
        check_movable(self, self.inner)
        check_changeable(self, self.inner)

    @property
    def locality(self) -> str:
        """How far the inner transform looks, but at least the array."""
        return at_least("array", self.inner)

    def after(self, u: Array, g: Array, p: Array, leaf: Any) -> Array:
        """Return the inner update `u` of one array, changed.

        Args:
          u: the inner update.
          g: the gradient.
          p: the parameter.
          leaf: what `leaves` returns for the array.
        """
        raise NotImplementedError(f"{name_of(self)}: its class must define after.")

    def leaves(self, updates: Updates, params: Params | None) -> list[Any]:
        """Return what `after` must know of each array before anything is computed: values."""
        return [None] * len(jax.tree.leaves(updates))

    def update(self, updates, state, params=None, **extra):
        """Return the changed inner updates."""
        gs, treedef = jax.tree.flatten(updates)
        ps = gs
        if self.reads_params:
            require_params(self, params)
            ps = align_params(self, updates, treedef, params).leaves
        new, state = call_update(self.inner, updates, state, params, extra)
        us = treedef.flatten_up_to(new)
        check_shapes(self, updates, us, "the inner update has")
        live: list[Any] = []
        bare = take_live(self, live)
        out = engine.map_rows(
            _changed,
            [us, gs, ps],
            tuple(live),
            statics=[(bare, leaf) for leaf in self.leaves(updates, params)],
            cuts=engine.cuts_of(updates),
        )
        changed = jax.tree.unflatten(treedef, out)
        return changed, told_change(self.inner, state, params, new, changed)


def _changed(
    u: Array, g: Array, p: Array, live: tuple[Any, ...], how: tuple[AfterStep, Any]
) -> Array:
    part, leaf = how
    wide = at_least_float32(promote(u.dtype, g.dtype, p.dtype))
    if live:
        floats = (jnp.issubdtype(x.dtype, jnp.floating) for x in live)
        numbers = zip(live, floats, strict=True)
        part = put_live(part, tuple(cast(x, real_dtype(wide)) if f else x for x, f in numbers))
    return cast(part.after(cast(u, wide), cast(g, wide), cast(p, wide), leaf), g.dtype)
