"""The only module that may ask which JAX it runs on, or depend on the answer (jax 0.10 to 0.12).

Everything here is public JAX API; when a name moves, it moves here and nowhere else.
"""

import os
import sys
from collections.abc import Callable, Iterable
from typing import Any

import jax
import jax.core
import jax.extend.core as extend
import jax.extend.random as random_extension
import jax.numpy as jnp


def is_tracer(x: Any) -> bool:
    """Whether `x` is a value of a trace (under jit, vmap, grad, ...) and has no number yet."""
    return isinstance(x, jax.core.Tracer)


def whole(x: jax.Array) -> jax.Array:
    """Return `x` whole on every device, if its type says that it is split over explicit axes."""
    spec = jax.typeof(x).sharding.spec
    return x if all(axes is None for axes in spec) else jax.sharding.reshard(x, jax.P())


# ------------------------------------------------------------------- integers without arithmetic


def _no_random_numbers(*args: Any, **kwargs: Any) -> Any:
    raise TypeError("the rows of a RowSparse are no random keys")


# The one public way to a dtype of one's own. JAX prints the tag in every message that refuses it.
_ROWS = random_extension.define_prng_impl(
    key_shape=(1,),
    seed=_no_random_numbers,
    split=_no_random_numbers,
    random_bits=_no_random_numbers,
    fold_in=_no_random_numbers,
    name="gradxform_rows",
    tag="rows of a RowSparse: call gradxform.sparse.densify() first",
)


def opaque(x: Any) -> Any:
    """Return uint32 integers in a dtype that nothing can be computed with, of the same shape."""
    return jax.random.wrap_key_data(x[..., None], impl=_ROWS)


def transparent(x: Any) -> Any:
    """Undo `opaque`.

    Raises:
      TypeError: if something has been made of `x`.
    """
    if not jnp.issubdtype(getattr(x, "dtype", jnp.int32), jax.dtypes.prng_key):
        raise TypeError(
            "RowSparse: its rows have been replaced by something else, as by a tree map over its "
            "leaves; call gradxform.sparse.densify() first."
        )
    return jax.random.key_data(x)[..., 0]


# --------------------------------------------------------------------------- traces of functions

Literal = extend.Literal

# Whose body may be run in their place, and what `jax.checkpoint` makes.
_CALLS = {"jit", "pjit", "closed_call", "core_call", "core_closed_call", "call"}
_REMATS = {"remat", "remat2", "checkpoint"}


def traced(f: Callable[..., Any], args: Iterable[Any]) -> tuple[Any, list[Any]]:
    """Return the jaxpr of `f` for `args` (arrays or their types), and its constants."""
    return opened(jax.make_jaxpr(f)(*args))


def traced_along(f: Callable[..., Any], args: Any, axis: str, size: int) -> tuple[Any, Any]:
    """Return the jaxpr of `f` where an axis of that size is bound, and the types of its results."""
    found = []

    def inside(x):
        found.append(jax.make_jaxpr(f, return_shape=True)(*args))
        return x

    mapped = jax.vmap(inside, axis_name=axis, axis_size=size)
    jax.eval_shape(mapped, jax.ShapeDtypeStruct((size,), jnp.float32))
    return found[0]


def opened(closed: Any) -> tuple[Any, list[Any]]:
    """Return a jaxpr and its constants; it may come without any."""
    jaxpr = getattr(closed, "jaxpr", closed)
    return jaxpr, list(getattr(closed, "consts", ()))


def called(eqn: Any) -> tuple[Any, list[Any]] | None:
    """Return the jaxpr that `eqn` calls, and its constants; None if it is no plain call."""
    if eqn.primitive.name not in _CALLS:
        return None
    found = eqn.params.get("jaxpr", eqn.params.get("call_jaxpr"))
    return None if found is None else opened(found)


def rematerialized(eqn: Any) -> Any | None:
    """Return the jaxpr that `eqn` rematerializes; None if it is no `jax.checkpoint`."""
    return opened(eqn.params["jaxpr"])[0] if eqn.primitive.name in _REMATS else None


def jaxprs_of(eqn: Any) -> list[tuple[str, Any]]:
    """Return the jaxprs that `eqn` runs, such as the branches of a condition, with their names."""
    return [
        (name, one)
        for name, x in eqn.params.items()
        for one in (x if isinstance(x, tuple | list) else (x,))
        if hasattr(opened(one)[0], "eqns")
    ]


def equations(jaxpr: Any) -> int:
    """Return how many equations a jaxpr has; one that runs jaxprs counts as what is in them."""
    inner = [[one for _, one in jaxprs_of(eqn)] for eqn in opened(jaxpr)[0].eqns]
    return sum(sum(map(equations, ones)) if ones else 1 for ones in inner)


def as_function(jaxpr: Any, eqns: list[Any], inputs: list[Any], outputs: list[Any]) -> Any:
    """Return the function that evaluates some equations of `jaxpr`, contexts and all."""
    part = jaxpr.replace(eqns=eqns, invars=inputs, outvars=outputs, constvars=[])
    return extend.jaxpr_as_fun(extend.ClosedJaxpr(part, ()))


def in_this_mesh(eqn: Any) -> bool:
    """Whether `eqn` runs in the mesh of its surroundings, not in one of its own."""
    mesh = getattr(getattr(eqn, "ctx", None), "cur_abstract_mesh", None)
    return mesh is None or mesh == jax.sharding.get_abstract_mesh()


def variables(atoms: Iterable[Any]) -> list[Any]:
    """Return the variables among the operands or results of an equation, each once."""
    none = extend.Literal, extend.DropVar
    return list(dict.fromkeys(v for v in atoms if not isinstance(v, none)))


def is_inexact(x: Any) -> bool:
    """Whether an array, or the type of one, is floating or complex."""
    dtype = getattr(x, "dtype", None)
    return dtype is not None and jnp.issubdtype(dtype, jnp.inexact)


def varying(kind: Any) -> frozenset[str]:
    """Return the mesh axes of an enclosing `shard_map` along which an array of this type varies.

    As far as JAX keeps account of it. The only place that asks.
    """
    found = getattr(getattr(kind, "manual_axis_type", None), "varying", None)
    return frozenset(found or getattr(kind, "vma", None) or ())


def varying_axes(x: Any) -> frozenset[str]:
    """Return the mesh axes of an enclosing `shard_map` along which `x` may differ."""
    return varying(jax.typeof(x))


def knows_what_varies(axis: str) -> bool:
    """Whether JAX keeps account here of what differs along the axis (`check_vma=True`).

    Raises:
      NameError: if the axis is not bound.
    """
    return axis in varying_axes(jax.lax.axis_index(axis))


def marked(x: Any, axes: Iterable[str]) -> Any:
    """Return `x` marked as what may differ along mesh axes of which JAX keeps account."""
    missing = tuple(sorted(frozenset(axes) - varying_axes(x)))
    return jax.lax.pcast(x, missing, to="varying") if missing else x


def zeros_of(aval: Any, lengths: tuple[int, ...] = ()) -> jax.Array:
    """Return zeros of the type of `aval`, sharding and all, with axes of `lengths` before it."""
    place = getattr(aval, "sharding", None)
    spec = getattr(place, "spec", ())
    if place is not None and any(axis is not None for axis in spec):  # explicit, so of the type
        spec = jax.sharding.PartitionSpec(*[None] * len(lengths), *spec)
        place = jax.NamedSharding(place.mesh, spec)
    else:
        place = None
    zeros = jnp.zeros((*lengths, *aval.shape), aval.dtype, device=place)
    return marked(zeros, varying(aval))


def gathered(x: jax.Array, axes: tuple[str, ...]) -> jax.Array:
    """Return the `x` of all devices along mesh `axes`, joined along the first axis."""
    return jax.lax.all_gather(marked(x, axes), axes, tiled=True, to="invarying")


# What names an axis and sends nothing along it.
_SILENT = {"axis_index", "pvary", "pcast"}


def collective_axes(jaxpr: Any) -> set[str]:
    """Return the named axes along which a jaxpr, or one that it runs, exchanges something.

    But for those that it binds itself.
    """
    found = set()
    for eqn in opened(jaxpr)[0].eqns:
        inner = {name for _, one in jaxprs_of(eqn) for name in collective_axes(one)}
        names = eqn.params.get("axes", eqn.params.get("axis_name", ()))
        names = set(names if isinstance(names, tuple | list) else (names,))
        names |= set(getattr(eqn.params.get("mesh"), "axis_names", ()))
        if jaxprs_of(eqn):  # a map over axes, of which there is none outside
            found |= inner - names
        elif eqn.primitive.name not in _SILENT:
            found |= {name for name in names if isinstance(name, str)}
    return found


# ------------------------------------------------------------------------------ lines of programs

# Whose frames are not the user's own.
_LIBRARIES = ("jax", "jaxlib", "flax", "haiku", "equinox", "gradxform")


def _is_library(file: str) -> bool:
    homes = [getattr(sys.modules.get(name), "__file__", None) for name in _LIBRARIES]
    return any(home and file.startswith(os.path.dirname(home) + os.sep) for home in homes)


def line_of(eqn: Any, call: str | None = None) -> str | None:
    """Return the user's line that made `eqn`, `file:line (function)`, if it is known.

    Args:
      eqn: the equation.
      call: the line of the call in whose program `eqn` stands. A cached program was made by some
        earlier call, and its lines count only if they are those of this one.
    """
    frames = getattr(getattr(eqn.source_info, "traceback", None), "frames", ())
    lines = [
        f"{frame.file_name}:{frame.line_num} ({frame.function_name})"
        for frame in frames
        if not _is_library(frame.file_name) and not frame.file_name.startswith("<frozen")
    ]
    return lines[0] if lines and (call is None or call in lines) else call


def is_library_function(jaxpr: Any) -> bool:
    """Whether `jaxpr` is of a library's function, whose lines may be those of an earlier call."""
    file = getattr(getattr(jaxpr, "debug_info", None), "func_filename", None)
    return file is None or _is_library(file)


def varying_like(new: Any, old: Any) -> Any:
    """Return `new` marked to differ between devices where the same leaf of `old` may."""
    return jax.tree.map(lambda n, o: marked(n, varying_axes(o)), new, old)


def settled(turn: Callable[[Any], Any], carry: Any, others: Any) -> Any:
    """Return the carry of a loop marked as what differs between devices after any turn.

    A loop carries values whose marks must not change from turn to turn. `others` is what else the
    turn looks at; `turn` must mark what it returns like what it is given.
    """
    if not any(varying_axes(x) for x in jax.tree.leaves((carry, others))):
        return carry
    while True:
        marked = varying_like(carry, jax.eval_shape(turn, carry))
        pairs = zip(jax.tree.leaves(marked), jax.tree.leaves(carry), strict=True)
        if all(new is old for new, old in pairs):
            return carry
        carry = marked
