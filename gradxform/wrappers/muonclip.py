"""Query and key weights that shrink where attention logits are too large."""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from gradxform import engine
from gradxform.base import call_update, transform
from gradxform.errors import did_you_mean, name_of, shown
from gradxform.leaves import (
    align_params,
    flatten_updates,
    is_hole,
    path_str,
    require_params,
    shape_of,
    with_paths,
)
from gradxform.numerics import at_least_float32, cast, promote, real_dtype, scalar, shrinking
from gradxform.types import Array, Bound, Params, UnitInterval
from gradxform.values import Value
from gradxform.values.fields import value
from gradxform.wrappers.changed_steps import told_change
from gradxform.wrappers.parts import StatelessWrapper, at_least, check_movable


@value
class query_key(Value):
    """Say which parameters of an attention layer make its queries and its keys.

    Args:
      queries: the path of the kernel of the queries, such as "blocks/0/query/kernel".
      keys: the path of the kernel of the keys.
      heads: the axis of the heads, in both kernels; negative ones count from the end. Where an axis
        is longer than there are heads, as (d, heads * size) has it, each head is a block of it. For
        stacked layers a tuple: the axis of the layers, then that of the heads.
    """

    queries: str
    keys: str
    heads: int | tuple[int, ...] = -2

    never_schedule = True

    def __post_init__(self) -> None:
        axes = self.heads if isinstance(self.heads, tuple) else (self.heads,)
        if not axes or not all(type(axis) is int for axis in axes):
            raise TypeError(
                f"query_key: heads must be an axis, or a tuple of axes, got {shown(self.heads)}."
            )
        if self.queries == self.keys:
            raise ValueError(
                f"query_key: queries and keys are the same parameter, {self.queries!r}. Make them "
                "two parameters."
            )


@transform
class qk_clip(StatelessWrapper):
    """Shrink the query and key weights of the heads whose attention logits are too large.

    Update rule, with u the inner update, s the largest logit of a head in this step, and p the
    kernel of its queries or keys:

        c = min(1, threshold / s)
        u <- c^query_share (p + u) - p            (queries)
        u <- c^(1 - query_share) (p + u) - p      (keys)

    Logits of the head are then multiplied by c. Only its weights change, and only where s exceeds
    the threshold; biases stay. Every update needs `max_logits=`: a dict with the names of `layers`,
    and for each the largest logits of its heads, before the softmax, over the whole batch:
    `(heads,)`, for stacked layers `(layers, heads)`. Queries and keys must have the same number of
    heads. A parameter whose gradient is None stays as it is. A later part of a chain that changes
    the updates is refused.

    Args:
      inner: the optimizer.
      layers: a dict from names of attention layers to `query_key`, or a tuple of such pairs.
      threshold: the largest logit that stays, greater than 0; infinity for no bound.
      query_share: the share of the queries in the factor, in [0, 1].

    Raises:
      ValueError: if a path is not that of a parameter, an axis does not exist, or queries and keys
        differ in their heads; at update, if `max_logits` is missing, has other names, or arrays of
        a wrong shape.

    Reference: Kimi Team, Kimi K2: Open Agentic Intelligence, 2025, Algorithm 1.
    """

    inner: Any
    layers: Any
    threshold: Bound = 100.0
    query_share: UnitInterval = 0.5

    sets_params = True
    handles_rows = False
    why_no_rows = "scales whole heads"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_movable(self, self.inner)
        pairs = self.layers
        if isinstance(pairs, Mapping):
            pairs = tuple(pairs.items())
        valid = isinstance(pairs, tuple) and all(
            isinstance(pair, tuple | list)
            and len(pair) == 2
            and isinstance(pair[0], str)
            and isinstance(pair[1], query_key)
            for pair in pairs
        )
        if not valid or not pairs:
            raise TypeError(
                f"{name_of(self)}: layers must be a dict from names of attention layers to "
                f"query_key(...), got {shown(self.layers)}."
            )
        object.__setattr__(self, "layers", tuple((name, layer) for name, layer in pairs))
        paths = [path for _, layer in pairs for path in (layer.queries, layer.keys)]
        for path in paths:
            if paths.count(path) > 1:
                raise ValueError(
                    f"{name_of(self)}: two entries of layers have the parameter {path!r}."
                )

    sees_pieces = True

    @property
    def locality(self) -> str:
        """How far the inner transform looks, but at least the array."""
        return at_least("array", self.inner)

    def init(self, params):
        """Return the inner state."""
        self._axes(params)
        return self.inner.init(params)

    def _axes(self, params: Params) -> dict[str, tuple[int, ...]]:
        """Return the axes of the heads by path, for the parameters that are not hidden."""
        leaves = with_paths(engine.whole_shapes(params))
        shapes = {"/".join(path): shape_of(p) for path, p in leaves if not is_hole(p)}
        hidden = {"/".join(path) for path, p in with_paths(params) if is_hole(p)}
        axes_at = {}
        for _, layer in self.layers:
            axes = layer.heads if isinstance(layer.heads, tuple) else (layer.heads,)
            for path in (layer.queries, layer.keys):
                if path in hidden:
                    continue
                if path not in shapes:
                    raise ValueError(
                        f"{name_of(self)}: layers has {path!r}, which is not the path of a "
                        f"parameter.{did_you_mean(path, list(shapes))}"
                    )
                n = len(shapes[path])
                is_twice = n and len({axis % n for axis in axes}) < len(axes)
                if is_twice or not all(-n <= axis < n for axis in axes):
                    raise ValueError(
                        f"{name_of(self)}: layers has heads={layer.heads!r} for "
                        f"{_param(path)}, whose shape is {shapes[path]}. Name axes of it."
                    )
                axes_at[path] = tuple(axis % n for axis in axes)
            if layer.queries in axes_at and layer.keys in axes_at:
                self._check_heads(layer, shapes, axes_at)
        return axes_at

    def _check_heads(self, layer: query_key, shapes: Any, axes: Any) -> None:
        """Refuse keys that several queries share, which an axis of whole heads would not show."""
        ends = layer.queries, layer.keys
        q, k = ([shapes[path][axis] for axis in axes[path]] for path in ends)
        if q != k and math.prod(shapes[ends[0]]) != math.prod(shapes[ends[1]]):
            raise ValueError(
                f"{name_of(self)}: the axes of the heads have lengths {q} in "
                f"{_param(ends[0])} and {k} in {_param(ends[1])}. Heads that "
                "share their keys cannot be clipped one by one; leave the layer out of layers."
            )

    def update(self, updates, state, params=None, *, max_logits=None, **extra):
        """Take the inner step, and shrink the heads whose logits are too large."""
        require_params(self, params)
        _, treedef = flatten_updates(updates)
        ps = align_params(self, updates, treedef, params).leaves
        axes = self._axes(params)
        shapes = [shape_of(x) for x in jax.tree.leaves(engine.whole_shapes(updates))]
        cuts = engine.cuts_of(updates)
        largest = self._checked_logits(max_logits)
        inner_updates, state = call_update(self.inner, updates, state, params, extra)
        us = treedef.flatten_up_to(inner_updates)
        paths = ["/".join(path) for path, u in with_paths(updates) if not is_hole(u)]
        bound, share = scalar(self.threshold), scalar(self.query_share)
        for name, layer in self.layers:
            for path, power in ((layer.queries, share), (layer.keys, 1 - share)):
                if path not in axes or path not in paths:  # masked, or without a gradient
                    continue
                k = paths.index(path)
                self._check_logits(name, largest[name], path, shapes[k], axes[path])
                columns = [us[k]], [ps[k]], [largest[name]]
                heads = _ClippedHeads.of(shapes[k], axes[path], cuts[k])
                [us[k]] = engine.map_rows(
                    _with_heads_clipped, columns, bound, power, statics=[heads]
                )
        changed = jax.tree.unflatten(treedef, us)
        return changed, told_change(self.inner, state, params, inner_updates, changed)

    def _checked_logits(self, max_logits: Any) -> dict[str, Any]:
        """Return the largest logits of every layer."""
        names = [name for name, _ in self.layers]
        if not isinstance(max_logits, Mapping):
            name, layer = self.layers[0]
            got = "none were given" if max_logits is None else f"got {shown(max_logits)}"
            raise ValueError(
                f"{name_of(self)}: {_param(layer.queries)} and "
                f"{_param(layer.keys)} need the largest logit of every head, and {got}. "
                f"Pass update(..., max_logits={{{name!r}: array}}) with one for each head."
            )
        for name, layer in self.layers:
            if name not in max_logits:
                had = f"has {', '.join(map(repr, max_logits))}" if max_logits else "is empty"
                raise ValueError(
                    f"{name_of(self)}: max_logits lacks {name!r}, the layer of "
                    f"{_param(layer.queries)}; it {had}. Pass the largest logit of "
                    "each of its heads."
                )
            if not hasattr(max_logits[name], "dtype"):
                try:
                    # NumPy would take None for NaN.
                    np.asarray("none" if max_logits[name] is None else max_logits[name], np.float64)
                except (TypeError, ValueError):
                    raise TypeError(
                        f"{name_of(self)}: max_logits[{name!r}], for "
                        f"{_param(layer.queries)}, must be an array with a number for "
                        f"each head, got {shown(max_logits[name])}."
                    ) from None
        for name in max_logits:
            if name not in names:
                raise ValueError(
                    f"{name_of(self)}: max_logits has {name!r}, which is not in layers; there are "
                    f"{', '.join(map(repr, names))}.{did_you_mean(name, names)}"
                )
        return {name: jnp.asarray(max_logits[name]) for name in names}

    def _check_logits(
        self, name: str, s: Array, path: str, shape: tuple[int, ...], axes: tuple[int, ...]
    ) -> None:
        """Require one real number for each head of a parameter."""
        if not jnp.issubdtype(s.dtype, jnp.floating):
            raise TypeError(
                f"{name_of(self)}: max_logits[{name!r}], for {_param(path)}, must be "
                f"floating, got dtype {s.dtype}."
            )
        lengths = tuple(shape[axis] for axis in axes)
        fits = s.ndim == len(axes) and all(
            heads and n % heads == 0 for n, heads in zip(lengths, s.shape, strict=True)
        )
        if not fits:
            raise ValueError(
                f"{name_of(self)}: max_logits[{name!r}] has shape {s.shape}, and the axes {axes} "
                f"of {_param(path)} have the lengths {lengths}. Pass one number for each "
                "head; an axis must be a multiple of their number."
            )


def _param(path: str) -> str:
    return f"parameter {path_str(tuple(path.split('/')))}"


class _ClippedHeads(NamedTuple):
    """The places of the heads of a parameter."""

    axes: tuple[int, ...]  # in the order of the logits
    lengths: tuple[int, ...]  # of these axes in the array of all devices, from the first axis on
    cut: engine.Cut  # how what has only these axes is divided over devices

    @classmethod
    def of(cls, shape: tuple[int, ...], axes: tuple[int, ...], cut: engine.Cut) -> "_ClippedHeads":
        """Return them, from the shape of the array of all devices."""
        order = sorted(axes)
        cuts = tuple((name, order.index(dim)) for name, dim in cut.cuts if dim in order)
        return cls(axes, tuple(shape[axis] for axis in order), cut._replace(cuts=cuts))


def _with_heads_clipped(
    u: Array, p: Array, s: Array, bound: Array, power: Array, heads: _ClippedHeads
) -> Array:
    """Return the update that also multiplies each head of a parameter by its factor."""
    wide = at_least_float32(promote(u.dtype, p.dtype))
    s = cast(s, at_least_float32(promote(s.dtype, real_dtype(wide))))
    factor = shrinking(s, cast(bound, s.dtype)) ** cast(power, s.dtype)
    # One factor for each entry: the axes of the logits in order, each head as long as its block.
    axes = heads.axes
    order = sorted(range(len(axes)), key=lambda i: axes[i])
    factor = jnp.transpose(factor, order)
    for i, length in enumerate(heads.lengths):
        factor = jnp.repeat(factor, length // factor.shape[i], axis=i)
    factor = engine.own_piece(factor, heads.cut)
    others = tuple(i for i in range(p.ndim) if i not in axes)
    factor = cast(jnp.broadcast_to(jnp.expand_dims(factor, others), p.shape), wide)
    before = cast(p, wide)
    shrunk = cast(factor * (before + cast(u, wide)) - before, u.dtype)
    # p + u - p would round the update of a head that does not shrink.
    return jnp.where(factor == 1, u, shrunk)
