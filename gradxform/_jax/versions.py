"""The only module that may depend on the version of JAX (0.10 to 0.12).

It uses only the public API of JAX. When a name in JAX moves, only this module changes.
"""

import functools
from collections.abc import Callable, Iterable
from typing import Any

import jax
import jax.core
import jax.numpy as jnp

# The class of the values of a trace.
Tracer = jax.core.Tracer


def is_tracer(x: Any) -> bool:
    """Whether `x` is traced (under jit, vmap, grad, ...), so that its numbers are not known."""
    return isinstance(x, Tracer)


def is_tracing() -> bool:
    """Whether a program is being traced here, even one of constants only."""
    return is_tracer(jnp.zeros(()))


@functools.cache
def _state_outside_of_traces() -> tuple[Callable[[], Any], Any]:
    """Return the function that tells the state of tracing, and what it is outside of traces."""
    import jax.extend.core as extend  # it loads Pallas

    with jax.core.eval_context():
        return extend.get_opaque_trace_state, extend.get_opaque_trace_state()


def is_eager() -> bool:
    """Whether nothing transforms what runs here: no jit, vmap, grad or shard_map."""
    state, outside = _state_outside_of_traces()
    return state() == outside


def trace_settings() -> tuple[Any, ...]:
    """Return the settings of JAX that what is traced depends on, besides its arguments."""
    config: Any = jax.config
    return (
        config.jax_enable_x64,
        config.jax_default_matmul_precision,
        config.jax_numpy_dtype_promotion,
        config.jax_numpy_rank_promotion,
        config.jax_default_prng_impl,
        config.jax_threefry_partitionable,
        jax.sharding.get_abstract_mesh(),
    )


def platform_of(x: jax.Array) -> str:
    """Return the platform for which a program on an array is traced, such as "cpu" or "tpu".

    The mesh that divides the array says it; else it is that of JAX's default backend.
    """
    device = getattr(jax.typeof(x).sharding.mesh, "abstract_device", None)
    return jax.default_backend() if device is None else device.platform


def with_whole_dims(x: jax.Array, *dims: int) -> jax.Array:
    """Return `x` with these dimensions, by default all, not divided over explicit axes."""
    sharding = jax.typeof(x).sharding
    spec = list(sharding.spec)
    for dim in dims or range(x.ndim):
        spec[dim] = None
    if spec == list(sharding.spec):
        return x
    return jax.sharding.reshard(x, jax.NamedSharding(sharding.mesh, jax.P(*spec)))


# ------------------------------------------------------------------- integers without arithmetic


def _no_random_numbers_from_rows(*args: Any, **kwargs: Any) -> Any:
    """Refuse what JAX would do with the dtype of rows, a random key to it."""
    raise TypeError("the rows of a RowSparse are not random keys")


@functools.cache
def _dtype_of_rows() -> Any:
    """Define the dtype: random keys are the only public way to.

    JAX prints the tag in every error about its use.
    """
    import jax.extend.random as random_extension  # it loads Pallas

    return random_extension.define_prng_impl(
        key_shape=(1,),
        seed=_no_random_numbers_from_rows,
        split=_no_random_numbers_from_rows,
        random_bits=_no_random_numbers_from_rows,
        fold_in=_no_random_numbers_from_rows,
        name="gradxform_rows",
        tag="rows of a RowSparse: call gradxform.sparse.densify() first",
    )


def as_opaque(x: Any) -> Any:
    """Return uint32 integers in a dtype without arithmetic, of the same shape."""
    return jax.random.wrap_key_data(x[..., None], impl=_dtype_of_rows())


def from_opaque(x: Any) -> Any:
    """Undo `as_opaque`.

    Raises:
      TypeError: if `x` has been replaced by something else.
    """
    if not jnp.issubdtype(getattr(x, "dtype", jnp.int32), jax.dtypes.prng_key):
        raise TypeError(
            "RowSparse: its rows have been replaced by something else, as by a tree map over its "
            "leaves; call gradxform.sparse.densify() first."
        )
    return jax.random.key_data(x)[..., 0]


def varying_axes(x: Any) -> frozenset[str]:
    """Return the mesh axes of an enclosing `shard_map` along which an array, or a type, may differ.

    Empty where JAX does not track it.
    """
    kind: Any = jax.typeof(x) if isinstance(x, jax.Array) else x
    axes = getattr(getattr(kind, "manual_axis_type", None), "varying", None)
    return frozenset(axes or getattr(kind, "vma", None) or ())


def knows_what_varies(axis: str) -> bool:
    """Whether JAX tracks here what differs along the axis (`check_vma=True`).

    Raises:
      NameError: if the axis is not bound.
    """
    return axis in varying_axes(jax.lax.axis_index(axis))


def marked_as_varying(x: Any, axes: Iterable[str]) -> Any:
    """Return `x` marked as varying along mesh axes that JAX tracks."""
    missing = tuple(sorted(frozenset(axes) - varying_axes(x)))
    return jax.lax.pcast(x, missing, to="varying") if missing else x


def is_divided_by_compiler(x: jax.Array) -> bool:
    """Whether an array is on several devices, among which the compiler divides it."""
    mesh = jax.typeof(x).sharding.mesh
    kinds = zip(mesh.axis_sizes, mesh.axis_types, strict=True)
    return any(size > 1 and kind != jax.sharding.AxisType.Manual for size, kind in kinds)


def zeros_of(aval: Any, lengths: tuple[int, ...] = ()) -> jax.Array:
    """Return zeros with the type and sharding of `aval`, and leading axes of `lengths`."""
    sharding = getattr(aval, "sharding", None)
    spec = getattr(sharding, "spec", ())
    if sharding is not None and any(axis is not None for axis in spec):  # part of the type
        spec = jax.sharding.PartitionSpec(*[None] * len(lengths), *spec)
        sharding = jax.NamedSharding(sharding.mesh, spec)
    else:
        sharding = None
    zeros = jnp.zeros((*lengths, *aval.shape), aval.dtype, device=sharding)
    return marked_as_varying(zeros, varying_axes(aval))


def gathered(x: jax.Array, axes: tuple[str, ...]) -> jax.Array:
    """Return the `x` of all devices along mesh `axes`, concatenated along the first axis."""
    return jax.lax.all_gather(marked_as_varying(x, axes), axes, tiled=True, to="invarying")


def varying_like(new: Any, old: Any) -> Any:
    """Return `new` with each leaf marked as varying along the axes of its leaf of `old`."""
    return jax.tree.map(lambda n, o: marked_as_varying(n, varying_axes(o)), new, old)


def settled_carry(turn: Callable[[Any], Any], carry: Any, others: Any) -> Any:
    """Return the carry of a loop marked as varying wherever it varies after any turn.

    The marks of a loop's carry must not change from turn to turn. `others` are the other values
    that the turn reads; `turn` must return a carry with the marks of its argument.
    """
    # An extra argument may be a function.
    arrays = [x for x in jax.tree.leaves((carry, others)) if not callable(x)]
    if not any(map(varying_axes, arrays)):
        return carry
    while True:
        marked = varying_like(carry, jax.eval_shape(turn, carry))
        pairs = zip(jax.tree.leaves(marked), jax.tree.leaves(carry), strict=True)
        if all(new is old for new, old in pairs):
            return carry
        carry = marked
