"""Functions of a batch, evaluated on one micro-batch after the other."""

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from gradxform._jax.versions import is_tracer
from gradxform.errors import did_you_mean, leaf_path, must_be, shown
from gradxform.microbatching.accumulator import AccumulationType, Sink, aggregated_over_examples
from gradxform.microbatching.batch import axis_of, check_divides, check_size, divided_batch
from gradxform.types import Array, PyTree
from gradxform.values.export_names import announce_named_tuples

Function = Callable[..., Any]


def microbatch(
    fun: Function,
    argnums: int | Sequence[int],
    microbatch_size: int | None,
    accumulator: Any = AccumulationType.SUM,
    *,
    argnames: str | Sequence[str] = (),
    in_axes: int | Sequence[int] = 0,
    num_real_microbatches: int | Array | None = None,
) -> Function:
    """Return a function that evaluates `fun` on one part of the batch after the other.

    In one loop, so that only one micro-batch is in memory at a time. The i-th of n micro-batches
    has the examples i, i + n, i + 2 n, ...: a batch that is divided over devices is divided
    likewise in each.

    Args:
      fun: the function of a batch.
      argnums: the indices of the positional arguments that have an axis of examples.
      microbatch_size: the number of examples in a micro-batch; must divide that of the batch. None
        for `fun` itself.
      accumulator: an `AccumulationType` or `Accumulator` for all that `fun` returns, or a tree of
        them that is a prefix of it.
      argnames: the names of the keyword arguments that have an axis of examples.
      in_axes: the axis of examples: one for all, or one for each of `argnums` and then `argnames`.
      num_real_microbatches: how many micro-batches are evaluated, for batches that are not full:
        the first ones. It may be traced. Defaults to all.

    Raises:
      TypeError: if an accumulator or an argument of these is of another kind.
      ValueError: in a call, if the batch cannot be divided so.
    """
    if microbatch_size is None:
        return fun
    caller, size = "microbatch", microbatch_size
    check_size(caller, size)
    nums = _argument_numbers(caller, "argnums", argnums)
    names = (argnames,) if isinstance(argnames, str) else tuple(argnames)
    axes = _argument_numbers(caller, "in_axes", in_axes)
    if isinstance(in_axes, int):
        axes *= len(nums) + len(names)
    elif len(axes) != len(nums) + len(names):
        raise ValueError(
            f"{caller}: in_axes has {len(axes)} axes for {len(nums) + len(names)} arguments with "
            "examples."
        )

    @functools.wraps(fun)
    def in_parts(*args: Any, **kwargs: Any) -> Any:
        _check_arguments(caller, nums, names, args, kwargs)
        batch = {**{n: args[n] for n in nums}, **{k: kwargs[k] for k in names}}
        axis_at = dict(zip(batch, axes, strict=True))
        number = _batch_size(caller, batch, axis_at, size) // size

        def evaluate(index: Any) -> Any:
            def part(at: int, x: Any) -> Array:
                at %= jnp.ndim(x)
                # Behind the axis of a micro-batch's examples is that of the micro-batches.
                return lax.dynamic_index_in_dim(divided_batch(x, size, at), index, at + 1, False)

            parts = {
                k: jax.tree.map(functools.partial(part, axis_at[k]), x) for k, x in batch.items()
            }
            positional = [parts.get(i, x) for i, x in enumerate(args)]
            return fun(*positional, **{k: parts.get(k, x) for k, x in kwargs.items()})

        first = jax.ShapeDtypeStruct((), jnp.int32)
        sink = Sink(caller, accumulator, jax.eval_shape(evaluate, first), number)

        def turn(index: Any, carry: PyTree) -> PyTree:
            return sink.add(carry, evaluate(index), index)

        stop = _number_of_real_microbatches(caller, num_real_microbatches, number)
        return sink.end(lax.fori_loop(0, stop, turn, sink.begin()))

    return in_parts


def micro_vmap(
    fun: Function,
    in_axes: int | Sequence[int | None] = 0,
    out_axes: Any = 0,
    *,
    microbatch_size: int | None = None,
    vmap_fn: Callable[..., Function] = jax.vmap,
    accumulator: Any = AccumulationType.CONCAT,
    num_real_microbatches: int | Array | None = None,
) -> Function:
    """Return `jax.vmap(fun)`, evaluated on one micro-batch after the other.

    Args:
      fun: a function of one example. Its keyword arguments are mapped along axis 0.
      in_axes: the axis of examples of every positional argument, or one for each; None for an
        argument that all examples share.
      out_axes: 0.
      microbatch_size: as in `microbatch`.
      vmap_fn: called as `vmap_fn(fun, in_axes, out_axes)`.
      accumulator: as in `microbatch`, of the results of all examples.
      num_real_microbatches: as in `microbatch`.

    Raises:
      NotImplementedError: if `out_axes` is not 0.
    """
    if out_axes != 0:
        raise NotImplementedError(f"micro_vmap: out_axes must be 0, got {shown(out_axes)}.")

    @functools.wraps(fun)
    def mapped(*args: Any, **kwargs: Any) -> Any:
        axes = (in_axes,) * len(args) if isinstance(in_axes, int) else tuple(in_axes)
        if len(axes) != len(args):
            raise ValueError(
                f"micro_vmap: in_axes has {len(axes)} entries, the call has {len(args)} positional "
                "arguments."
            )
        at = [i for i, axis in enumerate(axes) if axis is not None]

        def reduced(*args: Any, kwargs: Any) -> Any:
            return aggregated_over_examples(accumulator, vmap_fn(fun, axes, 0)(*args, **kwargs))

        return microbatch(
            reduced,
            at,
            microbatch_size,
            accumulator,
            argnames="kwargs",
            in_axes=[axis for axis in axes if axis is not None] + [0],  # the last for `kwargs`
            num_real_microbatches=num_real_microbatches,
        )(*args, kwargs=kwargs)

    return mapped


class IndividualOutputs(NamedTuple):
    """The results of `micro_grad` for every example."""

    values: Any  # the values of the function
    metrics: Any  # of metrics_fn
    aux: Any  # the auxiliary outputs of the function


def _unchanged_micro_grads(grads: PyTree) -> PyTree:
    return grads


def _no_micro_grad_metrics(grads: PyTree) -> None:
    return None


def _micro_grad_argument(number: int, arg: Any) -> Any:
    """Return an argument of `micro_grad` whose examples are batches of one."""

    def extended(path: Any, x: Any) -> Array:
        axis_of("micro_grad", x, 0, leaf_path(path) if path else f"argument {number}")
        return jnp.expand_dims(x, 1)

    return jax.tree_util.tree_map_with_path(extended, arg)


def micro_grad(
    fun: Function,
    has_aux: bool = False,
    argnums: int | Sequence[int] = 0,
    *,
    batch_argnums: int | Sequence[int] = 1,
    keep_batch_dim: bool = True,
    microbatch_size: int | None = None,
    accumulator: Any = AccumulationType.SUM,
    transform_fn: Callable[[PyTree], PyTree] = _unchanged_micro_grads,
    metrics_fn: Callable[[PyTree], PyTree] = _no_micro_grad_metrics,
    num_real_microbatches: int | Array | None = None,
) -> Function:
    """Return a function that computes, transforms and sums the gradients of single examples.

    The result is a pair: what the accumulator makes of `transform_fn(gradient)` of every example,
    and for every example the value of `fun`, `metrics_fn(gradient)` and the auxiliary output, as
    `.values`, `.metrics` and `.aux`.

    Args:
      fun: a function with a real value, such as a loss.
      has_aux: whether it returns a pair, of its value and an auxiliary output.
      argnums: the indices of the arguments by which it is differentiated.
      batch_argnums: the indices of the arguments that have examples along axis 0.
      keep_batch_dim: whether `fun` gets every example as a batch of one.
      microbatch_size: as in `microbatch`.
      accumulator: as in `microbatch`, of the transformed gradients.
      transform_fn: a function of the gradient of one example, such as clipping.
      metrics_fn: a function of it too, of a few numbers.
      num_real_microbatches: as in `microbatch`.
    """
    of_batch = _argument_numbers("micro_grad", "batch_argnums", batch_argnums)
    with_aux = fun if has_aux else lambda *args, **kwargs: (fun(*args, **kwargs), None)
    value_and_grad = jax.value_and_grad(with_aux, argnums, has_aux=True)

    def of_one(*args: Any, **kwargs: Any) -> tuple[Any, IndividualOutputs]:
        (value, aux), grads = value_and_grad(*args, **kwargs)
        return transform_fn(grads), IndividualOutputs(value, metrics_fn(grads), aux)

    @functools.wraps(fun)
    def of_all(*args: Any, **kwargs: Any) -> tuple[Any, IndividualOutputs]:
        _check_arguments("micro_grad", of_batch, (), args, kwargs)
        if keep_batch_dim:
            args = tuple(
                _micro_grad_argument(i, arg) if i in of_batch else arg for i, arg in enumerate(args)
            )
        return micro_vmap(
            of_one,
            [0 if i in of_batch else None for i in range(len(args))],
            microbatch_size=microbatch_size,
            accumulator=(accumulator, AccumulationType.CONCAT),
            num_real_microbatches=num_real_microbatches,
        )(*args, **kwargs)

    return of_all


# ---------------------------------------------------------------------------- checks of arguments


def _argument_numbers(caller: str, name: str, x: Any) -> tuple[int, ...]:
    numbers: Any = (x,) if isinstance(x, int) else x
    valid = isinstance(numbers, Iterable) and not isinstance(numbers, str | dict)
    numbers = tuple(numbers) if valid else ()
    if not valid or not all(isinstance(n, int) and not isinstance(n, bool) for n in numbers):
        raise TypeError(f"{caller}: {name} must be an integer or several, got {shown(x)}.")
    return numbers


def _check_arguments(
    caller: str, nums: Sequence[int], names: Sequence[str], args: Any, kwargs: dict[str, Any]
) -> None:
    for n in nums:
        if not 0 <= n < len(args):
            raise ValueError(
                f"{caller}: argument {n} has the examples, and the call has {len(args)} positional "
                "arguments."
            )
    for name in names:
        if name not in kwargs:
            raise ValueError(
                f"{caller}: the keyword argument {name!r} has examples, and is not in the call."
                f"{did_you_mean(name, kwargs)}"
            )


def _batch_size(caller: str, batch: dict[Any, Any], axes: dict[Any, int], size: int) -> int:
    """Return the number of examples, which must be the same everywhere."""
    sizes = {}
    for k, tree in batch.items():
        for path, x in jax.tree_util.tree_flatten_with_path(tree)[0]:
            where = f"argument {k!r}" + (f" at {leaf_path(path)}" if path else "")
            sizes[where] = jnp.shape(x)[axis_of(caller, x, axes[k], where)]
    if not sizes:
        raise ValueError(f"{caller}: the arguments with examples must have arrays.")
    (first, number), *rest = sizes.items()
    for where, other in rest:
        if other != number:
            raise ValueError(
                f"{caller}: {where} has {other} examples, {first} has {number}. Their numbers must "
                "be equal."
            )
    check_divides(caller, number, size)
    return number


def _number_of_real_microbatches(caller: str, asked: Any, number: int) -> Any:
    """Return how many micro-batches are evaluated; a traced number is cut at all of them."""
    if asked is None:
        return number
    if jnp.shape(asked) != () or not jnp.issubdtype(jnp.result_type(asked), jnp.integer):
        raise TypeError(f"{caller}: num_real_microbatches must be an integer, got {shown(asked)}.")
    if is_tracer(asked):
        return jnp.minimum(asked.astype(jnp.int32), number)
    if not 0 <= asked <= number:
        raise ValueError(must_be(caller, "num_real_microbatches", f"from 0 to {number}", asked))
    return int(asked)


announce_named_tuples(__name__)
