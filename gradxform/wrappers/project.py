"""Steps that end in a set: projected descent."""

from dataclasses import field
from typing import Any

import jax
import jax.numpy as jnp

from gradxform._names.deferred import signature_of
from gradxform.base import call_update, transform
from gradxform.errors import name_of, shown
from gradxform.leaves import align, align_params, flatten_updates, masks, require_params
from gradxform.numerics import add, at_least_float32, cast, promote
from gradxform.types import MaskedNode, StaticMask, StaticTree
from gradxform.values import thawed
from gradxform.wrappers.changed_steps import told_change
from gradxform.wrappers.parts import StatelessWrapper, check_movable


@transform
class project(StatelessWrapper):
    """Keep parameters in a set: project them onto it after every step.

    Update rule, with u the inner update:

        u <- projection(p + u) - p      on the leaves that `mask` selects, as one tree

    With `scale(-lr)` inside, this is projected gradient descent. The projection sees float32 or
    wider. A later part of a chain that changes the updates is refused, because the parameters would
    leave the set. An inner transform that keeps copies of the
    parameters is told where they are. A parameter without a gradient does not move, and is not
    seen. Row-sparse gradients are refused.

    Args:
      inner: the optimizer.
      projection: a function of a tree that returns a tree of the same structure, such as those of
        `gradxform.projections`.
      mask: which parameters are projected: a mask such as `path_matches("kernel$")`, a tree of
        booleans that may be a prefix of the parameters, or a function of the parameters. Defaults
        to all.
      arguments: a dict of further arguments of the projection, such as {"scale": 2.0}. Defaults to
        none. Keyword-only.
      each: whether every array is projected by itself, not all together. Keyword-only.

    Raises:
      TypeError: if `projection` cannot be called.
      ValueError: if a part of `inner` would undo the projection; at update, if no parameters are
        given, or the projection returns other shapes.

    Reference: Bertsekas, Nonlinear Programming, 1999, Section 2.3.
    """

    inner: Any
    projection: Any
    mask: StaticMask | None = None
    arguments: StaticTree = field(default=None, kw_only=True)
    each: bool = field(default=False, kw_only=True)

    sets_params = True
    handles_rows = False
    why_no_rows = "projects whole arrays"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_movable(self, self.inner)
        if not callable(self.projection) or isinstance(self.projection, type | masks.Mask):
            raise TypeError(
                f"{name_of(self)}: projection must be a function of a tree, such as "
                f"projections.projection_l2_ball, got {shown(self.projection)}."
            )
        arguments = self._keywords()
        if not isinstance(arguments, dict) or not all(isinstance(k, str) for k in arguments):
            raise TypeError(
                f"{name_of(self)}: arguments must be a dict from the names of arguments of the "
                f"projection, got {shown(self.arguments)}."
            )
        try:
            signature_of(self.projection).bind(None, **arguments)
        except TypeError as error:
            raise TypeError(
                f"{name_of(self)}: {name_of(self.projection)} does not take a tree and the "
                f"arguments {arguments}: {error}."
            ) from None
        except ValueError:  # a builtin may not say what it takes
            pass

    def _keywords(self) -> Any:
        """Return the further arguments as a dict."""
        return {} if self.arguments is None else thawed(self.arguments)

    @property
    def locality(self) -> str:
        """The whole tree, which the projection sees."""
        return "tree"

    def init(self, params):
        """Return the inner state."""
        masks.check_patterns(self, self.mask, params)
        return self.inner.init(params)

    def update(self, updates, state, params=None, **extra):
        """Take the inner step, and project the parameters."""
        require_params(self, params)
        _, treedef = flatten_updates(updates)
        ps = align_params(self, updates, treedef, params).leaves
        inner_updates, state = call_update(self.inner, updates, state, params, extra)
        us = treedef.flatten_up_to(inner_updates)
        is_in = [True] * len(us)
        if self.mask is not None:
            mask = masks.resolve(self, self.mask, params)
            is_in = align(self, updates, treedef, mask, "the mask has").leaves
        points = [
            _param(p, u) if selected else MaskedNode()
            for p, u, selected in zip(ps, us, is_in, strict=True)
        ]
        for k, point in self._projected(points, treedef):
            u, p = us[k], ps[k]
            us[k] = cast(point - cast(jnp.asarray(p), point.dtype), u.dtype)
        changed = jax.tree.unflatten(treedef, us)
        return changed, told_change(self.inner, state, params, inner_updates, changed)

    def _projected(self, points: list[Any], treedef: Any) -> list[tuple[int, Any]]:
        """Return the projected points, each with its index; `points` has holes for the others."""
        indices = [k for k, x in enumerate(points) if not isinstance(x, MaskedNode)]
        if self.each:
            return [(k, self._projection_of(points[k])) for k in indices]
        tree = jax.tree.unflatten(treedef, points)
        new = jax.tree.leaves(self._projection_of(tree))
        return list(zip(indices, new, strict=True))

    def _projection_of(self, tree: Any) -> Any:
        new = self.projection(tree, **self._keywords())
        shapes, new_shapes = ([jnp.shape(x) for x in jax.tree.leaves(t)] for t in (tree, new))
        if jax.tree.structure(new) != jax.tree.structure(tree) or new_shapes != shapes:
            raise ValueError(
                f"{name_of(self)}: {name_of(self.projection)} must return a tree of the structure "
                f"and shapes of its argument, got {shown(new)}."
            )
        return jax.tree.map(lambda x, y: cast(jnp.asarray(x), y.dtype), new, tree)


def _param(p: Any, u: Any) -> Any:
    """Return a parameter after its update, in float32 or wider."""
    wide = at_least_float32(promote(p.dtype, u.dtype))
    return add(cast(jnp.asarray(p), wide), cast(jnp.asarray(u), wide))
