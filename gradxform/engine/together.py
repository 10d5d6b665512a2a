"""Arrays that are made together, in one pass over memory.

Where an intermediate result leads to several arrays, XLA for TPUs may make each in a pass of its
own. The second pass then needs old arrays that the first one overwrites, so that these are copied.
Where the last array depends on the others, one pass makes all of them.
"""

import itertools
from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from gradxform._jax.versions import platform_of
from gradxform.leaves.storage import are_arrays_here, is_stored
from gradxform.numerics import cast, promote
from gradxform.types import Array, PyTree

Slots = tuple[tuple[Any, ...], ...]


def in_one_pass(
    g: Any, p: Array, old: Slots, slots: Slots, is_one_pass: bool
) -> tuple[Array, Slots]:
    """Return the new parameter and slots, on TPUs made in one pass.

    A slot that is the gradient itself, for the next step, is written by the pass that makes the
    parameter, and not by a copy.

    Args:
      g: the gradient.
      p: the new parameter.
      old: the slots before the step.
      slots: those after it.
      is_one_pass: whether nothing but the entry, or row, is needed of each array. Otherwise the
        slots may be made in an earlier pass.
    """
    if platform_of(p) != "tpu":
        return p, slots
    slots = tuple([tuple([made_with(s, [p]) if s is g else s for s in group]) for group in slots])
    if is_one_pass:
        pairs = zip(itertools.chain(*slots), itertools.chain(*old), strict=True)
        p = made_with(p, [new for new, before in pairs if new is not before])
    return p, slots


def with_slots(updates: PyTree, state: Any) -> PyTree:
    """Return updates, which on TPUs are made in the pass that makes the arrays of a state."""
    leaves, treedef = jax.tree.flatten(updates)
    if not leaves or platform_of(jnp.asarray(leaves[0])) != "tpu":
        return updates
    if not are_arrays_here(jax.tree.leaves(state, is_leaf=is_stored)):
        return updates

    def is_like(x: Any) -> bool:
        return jax.tree.structure(x) == treedef

    parts = jax.tree.leaves(state, is_leaf=is_like)
    slots = [treedef.flatten_up_to(x) for x in parts if is_like(x)]
    new = [made_with(u, [slot[i] for slot in slots]) for i, u in enumerate(leaves)]
    return treedef.unflatten(new)


def made_with(x: Array, others: Iterable[Any]) -> Array:
    """Return `x`, which on TPUs is made in the pass that makes the others of its shape."""
    if platform_of(x) != "tpu":
        return x
    never = lax.optimization_barrier(jnp.zeros((), bool))  # false, which XLA does not see
    for other in others:
        if _may_replace(other, x):
            x = jnp.where(never, cast(other, x.dtype), x)
    return x


def read_again(*arrays: Array) -> tuple[Array, ...]:
    """Return arrays, of which TPUs compute anew what has been computed of them.

    What a pass needs that follows a norm is otherwise held in memory from the pass for the norm.
    """
    return lax.optimization_barrier(arrays) if platform_of(arrays[0]) == "tpu" else arrays


def sent_here(x: Array) -> Array:
    """Return what devices have sent to one another, on TPUs written to its place by a pass.

    No device writes into the results of a program on another. The compiler would copy what has come
    to its place, and first the old array from there.
    """
    return made_with(x, [jnp.zeros_like(x)])


def _may_replace(other: Any, x: Array) -> bool:
    is_number = jnp.issubdtype(other.dtype, jnp.number)
    return is_number and other.shape == x.shape and promote(other.dtype, x.dtype) == x.dtype
