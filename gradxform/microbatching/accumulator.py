"""How the results of micro-batches are put together."""

import enum
import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from gradxform._jax.versions import zeros_of
from gradxform.errors import did_you_mean, leaf_path, shown
from gradxform.microbatching.batch import reshaped_as_sharded
from gradxform.numerics import at_least_float32, cast
from gradxform.types import Array, PyTree


@dataclass(frozen=True)
class Accumulator:
    """How the results of the micro-batches are put together, in functions of your own.

    The result is `finalize(carry)`, from `carry = init(x_0's shapes and dtypes)` and, for every
    micro-batch i with the result x_i, `carry = update(carry, x_i, i)`.

    Args:
      init: a function of the result of one micro-batch, as a tree of `jax.ShapeDtypeStruct`.
      update: a function of the carry, the result of a micro-batch and its index.
      finalize: a function of the last carry.
      aggregate: for `micro_vmap`, a function of the stacked results of one micro-batch.
    """

    init: Callable[[PyTree], PyTree]
    update: Callable[[PyTree, PyTree, Any], PyTree]
    finalize: Callable[[PyTree], PyTree]
    aggregate: Callable[[PyTree], PyTree]


class AccumulationType(enum.Enum):
    """How the results of the micro-batches are put together.

    Sums and means of 16-bit numbers are formed in float32 and cast back.
    """

    MEAN = enum.auto()
    """The sum divided by the number of all micro-batches."""
    SUM = enum.auto()
    """The sum."""
    RUNNING_MEAN = enum.auto()
    """The mean over the micro-batches that are evaluated; see `num_real_microbatches`."""
    CONCAT = enum.auto()
    """One after the other along axis 0, in the order of the batch."""


MEANS = (AccumulationType.MEAN, AccumulationType.RUNNING_MEAN)


class Sink:
    """Puts results together: a tree of accumulators that is a prefix of the result."""

    def __init__(self, caller: str, accumulators: Any, result: PyTree, number: int) -> None:
        self.accumulators, self.result, self.number = accumulators, result, number
        for kind in jax.tree.leaves(accumulators):
            _check_kind(caller, kind)
        try:
            jax.tree.map(functools.partial(_check_floating, caller), accumulators, result)
        except ValueError as error:
            raise ValueError(
                f"{caller}: accumulator must be a tree that is a prefix of what the function "
                f"returns: {error}"
            ) from None

    def begin(self) -> PyTree:
        """Return the carry before the first micro-batch."""

        def one(kind: Any, result: PyTree) -> PyTree:
            if isinstance(kind, Accumulator):
                return kind.init(result)
            return jax.tree.map(functools.partial(_begun, kind, self.number), result)

        return jax.tree.map(one, self.accumulators, self.result)

    def add(self, carry: PyTree, result: PyTree, index: Any) -> PyTree:
        """Return the carry with the result of micro-batch `index`."""

        def one(kind: Any, carry: PyTree, result: PyTree) -> PyTree:
            if isinstance(kind, Accumulator):
                return kind.update(carry, result, index)
            return jax.tree.map(lambda c, x: _added(kind, c, x, index), carry, result)

        return jax.tree.map(one, self.accumulators, carry, result)

    def end(self, carry: PyTree) -> PyTree:
        """Return what is made of the last carry."""

        def one(kind: Any, carry: PyTree, result: PyTree) -> PyTree:
            if isinstance(kind, Accumulator):
                return kind.finalize(carry)
            return jax.tree.map(lambda c, x: _ended(kind, c, x, self.number), carry, result)

        return jax.tree.map(one, self.accumulators, carry, self.result)


def _check_kind(caller: str, kind: Any) -> None:
    if not isinstance(kind, Accumulator | AccumulationType):
        name = kind.upper() if isinstance(kind, str) else None
        raise TypeError(
            f"{caller}: accumulator must be an AccumulationType or an Accumulator, or a tree of "
            f"them, got {shown(kind)}.{did_you_mean(name, [k.name for k in AccumulationType])}"
        )


def _check_floating(caller: str, kind: Any, result: PyTree) -> None:
    for path, x in jax.tree_util.tree_flatten_with_path(result)[0]:
        if kind in MEANS and not jnp.issubdtype(x.dtype, jnp.inexact):
            raise TypeError(
                f"{caller}: {kind.name} needs floating numbers; {leaf_path(path)} of what the "
                f"function returns has dtype {x.dtype}."
            )


def _begun(kind: AccumulationType, number: int, x: Any) -> Array:
    if kind is AccumulationType.CONCAT:
        return zeros_of(x, (number,))
    zeros = zeros_of(x)
    floating = jnp.issubdtype(x.dtype, jnp.inexact)
    return cast(zeros, at_least_float32(x.dtype)) if floating else zeros


def _added(kind: AccumulationType, carry: Array, x: Any, index: Any) -> Array:
    x = cast(jnp.asarray(x), carry.dtype)
    if kind is AccumulationType.CONCAT:
        return lax.dynamic_update_index_in_dim(carry, x, index, 0)
    if kind is AccumulationType.RUNNING_MEAN:
        return carry + (x - carry) / jnp.asarray(index + 1).astype(carry.real.dtype)
    return carry + x


def _ended(kind: AccumulationType, carry: Array, x: Any, number: int) -> Array:
    if kind is AccumulationType.CONCAT:
        if carry.ndim == 1:
            return carry
        # Micro-batch i has the examples i, i + n, ...; the sharding is that of one micro-batch.
        carry = jnp.swapaxes(carry, 0, 1)
        shape = (carry.shape[0] * carry.shape[1], *carry.shape[2:])
        return reshaped_as_sharded(carry, shape, lambda spec: (spec[0], *spec[2:]))
    return cast(carry / number if kind is AccumulationType.MEAN else carry, x.dtype)


def aggregated_over_examples(accumulators: Any, results: PyTree) -> PyTree:
    """Reduce the stacked results of one micro-batch over its examples."""

    def one(kind: Any, results: PyTree) -> PyTree:
        if isinstance(kind, Accumulator):
            return kind.aggregate(results)
        if kind is AccumulationType.CONCAT:
            return results
        reduce = jnp.mean if kind in MEANS else jnp.sum
        return jax.tree.map(lambda x: reduce(x, axis=0), results)

    for kind in jax.tree.leaves(accumulators):
        _check_kind("micro_vmap", kind)
    return jax.tree.map(one, accumulators, results)
