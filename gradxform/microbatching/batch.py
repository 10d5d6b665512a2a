"""Batches divided into micro-batches."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from gradxform.errors import leaf_path, shown
from gradxform.types import Array


def reshape_batch_axis(tree: Any, microbatch_size: int, axis: int = 0) -> Any:
    """Return arrays with the batch axis divided in two: micro-batches, and examples of one.

    The i-th of n micro-batches has the examples i, i + n, i + 2 n, ... A batch that is divided over
    devices is divided likewise in each of them.

    Args:
      tree: arrays with an axis of examples.
      microbatch_size: the number of examples in a micro-batch; must divide that of the batch.
      axis: the axis of examples.

    Raises:
      ValueError: if the number of examples is not a multiple of `microbatch_size`.
    """
    check_size("reshape_batch_axis", microbatch_size)

    def divide(path: Any, x: Any) -> Array:
        where = leaf_path(path)
        at = axis_of("reshape_batch_axis", x, axis, where)
        check_divides("reshape_batch_axis", x.shape[at], microbatch_size)
        return jnp.swapaxes(divided_batch(x, microbatch_size, at), at, at + 1)

    return jax.tree_util.tree_map_with_path(divide, tree)


def divided_batch(x: Any, size: int, axis: int) -> Array:
    """Return `x` with its batch axis divided into [examples of a micro-batch, micro-batches].

    In this order nothing moves, and every micro-batch has a part of what is on each device.
    """
    shape = (*x.shape[:axis], size, x.shape[axis] // size, *x.shape[axis + 1 :])
    return reshaped_as_sharded(x, shape, lambda spec: (*spec[: axis + 1], None, *spec[axis + 1 :]))


def reshaped_as_sharded(
    x: Any, shape: tuple[int, ...], of_spec: Callable[[tuple[Any, ...]], tuple[Any, ...]]
) -> Array:
    """Return `x` in another shape; if its sharding is part of its type, that of the result too."""
    sharding = jax.typeof(x).sharding
    if all(axes is None for axes in sharding.spec):
        return jnp.reshape(x, shape)
    spec = (*sharding.spec, *(None,) * (jnp.ndim(x) - len(sharding.spec)))
    spec = jax.sharding.PartitionSpec(*of_spec(spec))
    return lax.reshape(x, shape, out_sharding=jax.NamedSharding(sharding.mesh, spec))


def axis_of(caller: str, x: Any, axis: int, where: str) -> int:
    """Return the axis of examples of `x`, counted from 0, or raise if it does not have it."""
    if not -jnp.ndim(x) <= axis < jnp.ndim(x):
        raise ValueError(
            f"{caller}: {where} has shape {jnp.shape(x)}, which does not have an axis {axis} of "
            "examples."
        )
    return axis % jnp.ndim(x)


def check_size(caller: str, size: Any) -> None:
    """Require `microbatch_size` to be an integer of at least 1."""
    if isinstance(size, bool) or not isinstance(size, int):
        raise TypeError(f"{caller}: microbatch_size must be an integer, got {shown(size)}.")
    if size < 1:
        raise ValueError(f"{caller}: microbatch_size must be at least 1, got {size}.")


def check_divides(caller: str, batch_size: int, size: int) -> None:
    """Require the batch to have whole micro-batches, and at least one."""
    if not batch_size:
        raise ValueError(f"{caller}: the batch must have examples, got an axis of length 0.")
    if batch_size % size:
        raise ValueError(
            f"{caller}: the batch has {batch_size} examples, which is not a multiple of "
            f"microbatch_size={size}."
        )
