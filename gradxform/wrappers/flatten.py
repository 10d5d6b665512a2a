"""All parameters as one vector."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from gradxform._jax.versions import with_whole_dims
from gradxform.base import call_update, tell_moved, transform
from gradxform.errors import name_of
from gradxform.leaves import (
    Path,
    align,
    align_params,
    dtype_of,
    is_abstract,
    is_hole,
    path_str,
    with_paths,
)
from gradxform.leaves.states import laid_like
from gradxform.numerics import cast, promote
from gradxform.types import Array, OptState, Params, PyTree, Updates
from gradxform.wrappers.parts import StatelessWrapper


@transform
class flatten(StatelessWrapper):
    """Show a transform all parameters as one vector.

    Update rule, with g the vector of all entries of all arrays, one after the other:

        u = inner(g), divided into arrays again

    A rule that looks at a whole array now looks at the whole tree: `clip_by_block_norm` becomes
    `clip_by_global_norm`. A rule that looks at axes, such as Muon, and a mask that names leaves
    find one vector. This saves calls for many small arrays, and copies every gradient twice; on
    large arrays it costs more than it saves. Arrays of several dtypes become a vector of the
    widest; the state is that of this vector.

    A gradient of None freezes its entries, and those of every slot, for this step.

    Args:
      inner: a transform, or a chain.

    Raises:
      ValueError: at update, if a gradient is None and no parameters are given.
      TypeError: if some parameters are complex and others real.
    """

    inner: Any

    handles_rows = False
    why_no_rows = "joins all arrays into one vector"

    @property
    def locality(self) -> str:
        """The tree: slots are not divided as the parameters are."""
        return "tree"

    def init(self, params):
        """Return the inner state, for the vector of all parameters."""
        return self.inner.init(self._vector(jax.tree.leaves(params)))

    def _vector(self, leaves: list[Any]) -> Any:
        """Return the entries of all leaves in the widest of their dtypes."""
        kinds = {jnp.issubdtype(dtype_of(x), jnp.complexfloating) for x in leaves}
        if len(kinds) > 1:
            raise TypeError(
                f"{name_of(self)}: some arrays are complex and others real; wrap it as "
                f"split_real_and_imaginary({name_of(self)}(...))."
            )
        return as_one_vector(leaves)

    def params_inside(self, place: Path, params: Params) -> Params:
        """Return the vector of all parameters."""
        return as_one_vector(jax.tree.leaves(params))

    def params_outside(self, place: Path, inside: PyTree, params: Params) -> PyTree:
        """Return the vector as arrays."""
        return of_one_vector(inside, params)

    def moved(self, state, old, new):
        """Return the inner state after something else has moved the parameters."""
        news, treedef = jax.tree.flatten(new)
        olds = align(self, new, treedef, old, "the parameters had")
        before, after = olds.own, list(olds.own)
        for i, x in zip(olds.where or range(len(news)), news, strict=True):
            after[i] = x
        return tell_moved(self.inner, state, self._vector(before), self._vector(after))

    def update(self, updates, state, params=None, **extra):
        """Return the updates of the vector, as arrays."""
        gs, treedef = jax.tree.flatten(updates)
        if params is None:
            self._refuse_none(updates)
            where, columns, ps = list(range(len(gs))), list(gs), None
        else:
            aligned = align_params(self, updates, treedef, params)
            where = list(range(len(gs))) if aligned.where is None else aligned.where
            dtype = promote(*map(dtype_of, gs)) if gs else jnp.float32
            g_at = dict(zip(where, gs, strict=True))
            columns = [
                g_at[i] if i in g_at else jnp.zeros(jnp.shape(p), dtype)
                for i, p in enumerate(aligned.own)
            ]
            ps = self._vector(aligned.own)
        u, new_state = call_update(self.inner, self._vector(columns), state, ps, extra)
        # Zeros stood for the gradients of None: their slots must not decay.
        frozen = sorted(set(range(len(columns))) - set(where))
        if frozen:
            new_state = _flat_state_with_frozen_entries(state, new_state, columns, frozen)
        pieces = _pieces_of_flat_vector(u, columns)
        us = [cast(pieces[i], dtype_of(g)) for i, g in zip(where, gs, strict=True)]
        return jax.tree.unflatten(treedef, us), new_state

    def _refuse_none(self, updates: Updates) -> None:
        for path, g in with_paths(updates):
            if g is None:
                raise ValueError(
                    f"{name_of(self)}: the gradient of {path_str(path)} is None, so it needs the "
                    "parameters to know how many entries that freezes; call update(updates, state, "
                    "params)."
                )


def as_one_vector(leaves: list[Any]) -> Any:
    """Return the entries of all leaves, one after the other, in the widest of their dtypes."""
    if not leaves:
        return jnp.zeros(0, jnp.float32)
    dtype = promote(*map(dtype_of, leaves))
    if any(map(is_abstract, leaves)):
        size = sum(math.prod(jnp.shape(x)) for x in leaves)
        return jax.ShapeDtypeStruct((size,), dtype)
    arrays = [cast(jnp.asarray(x), dtype) for x in leaves]
    return jnp.concatenate([lax.reshape(x, (x.size,)) for x in map(with_whole_dims, arrays)])


def of_one_vector(vector: Any, like: PyTree) -> PyTree:
    """Return the entries of a vector as arrays, in the structure and the shapes of a tree."""
    leaves, treedef = jax.tree.flatten(like)
    if is_hole(vector):
        return jax.tree.unflatten(treedef, [vector] * len(leaves))
    return jax.tree.unflatten(treedef, _pieces_of_flat_vector(vector, leaves))


def _pieces_of_flat_vector(vector: Any, columns: list[Any]) -> list[Array]:
    """Return the pieces of a vector in the shapes of the columns."""
    shapes = [jnp.shape(x) for x in columns]
    pieces = lax.split(vector, [math.prod(shape) for shape in shapes]) if shapes else []
    return [lax.reshape(x, shape) for x, shape in zip(pieces, shapes, strict=True)]


def _flat_state_with_frozen_entries(
    old: OptState, new: OptState, columns: list[Any], frozen: list[int]
) -> OptState:
    """Return the new state with the old entries of frozen columns in every slot.

    A slot is an array of the vector's shape.
    """
    sizes = [math.prod(jnp.shape(x)) for x in columns]
    is_frozen = np.repeat([i in frozen for i in range(len(sizes))], sizes)

    def restored(before: Any, after: Any) -> Any:
        if jnp.shape(before) != is_frozen.shape:
            return after
        return jnp.where(is_frozen, before, after)

    return jax.tree.map(restored, old, laid_like(new, old))
