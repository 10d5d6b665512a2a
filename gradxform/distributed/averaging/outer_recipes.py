"""The famous choices of the optimizer in `outer`: DiLoCo, SlowMo, BMUF, local SGD."""

from typing import Any

from gradxform.distributed.averaging.outer import outer
from gradxform.distributed.wire.axis import Axes
from gradxform.transforms.momentum import trace
from gradxform.transforms.scaling import scale, scale_by_learning_rate
from gradxform.types import DType, ScalarOrSchedule
from gradxform.values.arguments import with_checked_arguments
from gradxform.wrappers.compose import chain

__all__ = [
    "bmuf",
    "diloco",
    "post_local_sgd",
    "slowmo",
]


@with_checked_arguments
def diloco(
    inner: Any,
    axis: Axes,
    *,
    period: int = 500,
    outer_learning_rate: ScalarOrSchedule = 0.7,
    outer_momentum: float = 0.9,
    fragments: int = 1,
    delay: int = 0,
    blend: float = 0.0,
    inner_axes: tuple[str, ...] = (),
    shard_anchor: bool = False,
    wire_dtype: DType = None,
    compress: Any = None,
) -> outer:
    """Return `outer` with Nesterov momentum: DiLoCo, or Streaming DiLoCo.

    Args:
      inner: the optimizer of every replica, AdamW in the paper.
      axis: the name of the axis of replicas, or several.
      period: steps from one exchange to the next, H in the paper, at least 1.
      outer_learning_rate: at least 0, or a schedule of the count of exchanges.
      outer_momentum: in [0, 1].
      fragments: the number of pieces in which the parameters are exchanged.
      delay: the number of steps from an exchange to its outer step; see `outer`.
      blend: the weight of a replica's own parameters after a delay, in [0, 1].
      inner_axes: see `outer`.
      shard_anchor: see `outer`.
      wire_dtype: see `outer`.
      compress: see `outer`.

    Reference: Douillard et al., DiLoCo: Distributed Low-Communication Training of Language Models,
    2023, Algorithm 1 and section 3; Douillard et al., Streaming DiLoCo with Overlapping
    Communication, 2025, Algorithm 2.
    """
    momentum = trace(outer_momentum, nesterov=True)
    return outer(
        inner,
        chain(momentum, scale_by_learning_rate(outer_learning_rate)),
        axis,
        period=period,
        fragments=fragments,
        delay=delay,
        blend=blend,
        inner_axes=inner_axes,
        shard_anchor=shard_anchor,
        wire_dtype=wire_dtype,
        compress=compress,
    )


@with_checked_arguments
def slowmo(
    inner: Any,
    axis: Axes,
    *,
    period: int = 12,
    slow_learning_rate: float = 1.0,
    slow_momentum: float = 0.5,
    inner_axes: tuple[str, ...] = (),
    shard_anchor: bool = False,
    wire_dtype: DType = None,
    compress: Any = None,
) -> outer:
    """Return `outer` with momentum: SlowMo.

    The paper divides the difference by the inner learning rate and multiplies the step by it. With
    a constant inner learning rate these cancel, and are left out here.

    Args:
      inner: the optimizer of every replica.
      axis: the name of the axis of replicas, or several.
      period: steps from one exchange to the next, tau in the paper, at least 1.
      slow_learning_rate: alpha, at least 0.
      slow_momentum: beta, in [0, 1].
      inner_axes: see `outer`.
      shard_anchor: see `outer`.
      wire_dtype: see `outer`.
      compress: see `outer`.

    Reference: Wang et al., SlowMo: Improving Communication-Efficient Distributed SGD with Slow
    Momentum, 2020, Algorithm 1.
    """
    outer_optimizer = chain(trace(slow_momentum), scale(-slow_learning_rate))
    return outer(
        inner,
        outer_optimizer,
        axis,
        period=period,
        inner_axes=inner_axes,
        shard_anchor=shard_anchor,
        wire_dtype=wire_dtype,
        compress=compress,
    )


@with_checked_arguments
def bmuf(
    inner: Any,
    axis: Axes,
    *,
    period: int = 100,
    block_learning_rate: float = 1.0,
    block_momentum: float = 0.9,
    nesterov: bool = False,
    inner_axes: tuple[str, ...] = (),
    shard_anchor: bool = False,
    wire_dtype: DType = None,
    compress: Any = None,
) -> outer:
    """Return `outer` with momentum over blocks of steps: blockwise model-update filtering (BMUF).

    Args:
      inner: the optimizer of every replica.
      axis: the name of the axis of replicas, or several.
      period: number of steps in a block, at least 1.
      block_learning_rate: zeta, at least 0; it is a factor inside the momentum.
      block_momentum: eta, in [0, 1]; the paper uses 1 - 1/N for N replicas.
      nesterov: whether a block starts one momentum step ahead (NBM in the paper, otherwise CBM).
      inner_axes: see `outer`.
      shard_anchor: see `outer`.
      wire_dtype: see `outer`.
      compress: see `outer`.

    Reference: Chen and Huo, Scalable Training of Deep Learning Machines by Incremental Block
    Training with Intra-Block Parallel Optimization and Blockwise Model-Update Filtering, 2016,
    equations (4) to (8).
    """
    momentum = trace(block_momentum, nesterov=nesterov)
    outer_optimizer = chain(scale(-block_learning_rate), momentum)
    return outer(
        inner,
        outer_optimizer,
        axis,
        period=period,
        inner_axes=inner_axes,
        shard_anchor=shard_anchor,
        wire_dtype=wire_dtype,
        compress=compress,
    )


@with_checked_arguments
def post_local_sgd(
    inner: Any,
    axis: Axes,
    *,
    period: int = 16,
    warmup: int = 0,
    inner_axes: tuple[str, ...] = (),
    shard_anchor: bool = False,
    wire_dtype: DType = None,
    compress: Any = None,
) -> outer:
    """Return `outer` with plain averages, at every step of a warm-up and then every `period` steps.

    Args:
      inner: the optimizer of every replica.
      axis: the name of the axis of replicas, or several.
      period: steps from one exchange to the next after the warm-up, at least 1.
      warmup: number of first steps that all end in an exchange, at least 0.
      inner_axes: see `outer`.
      shard_anchor: see `outer`.
      wire_dtype: see `outer`.
      compress: see `outer`.

    Reference: Lin et al., Don't Use Large Mini-Batches, Use Local SGD, 2020, Algorithm 2.
    """
    return outer(
        inner,
        scale(-1.0),
        axis,
        period=period,
        warmup=warmup,
        inner_axes=inner_axes,
        shard_anchor=shard_anchor,
        wire_dtype=wire_dtype,
        compress=compress,
    )
