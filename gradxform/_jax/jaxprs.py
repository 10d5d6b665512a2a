"""Traced programs: what an equation calls or communicates, and the line it comes from."""

import os
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

# `jax.extend` is imported where it is used: it loads Pallas.

# --------------------------------------------------------------------------- traces of functions

# Call-like primitives that can be inlined, and the primitives that `jax.checkpoint` emits.
_CALLS = {"jit", "pjit", "closed_call", "core_call", "core_closed_call", "call"}
_REMATS = {"remat", "remat2", "checkpoint"}


def traced(f: Callable[..., Any], args: Iterable[Any]) -> tuple[Any, list[Any]]:
    """Return the jaxpr of `f` for `args` (arrays or their types), and its constants."""
    return as_open_jaxpr(jax.make_jaxpr(f)(*args))


def traced_along(f: Callable[..., Any], args: Any, sizes: Mapping[str, int]) -> tuple[Any, Any]:
    """Return the jaxpr of `f` with bound axes of these sizes, and the types of its results."""
    traces = []

    def trace(x: jax.Array) -> jax.Array:
        traces.append(jax.make_jaxpr(f, return_shape=True)(*args))
        return x

    mapped = trace
    for axis, size in sizes.items():
        mapped = jax.vmap(mapped, axis_name=axis, axis_size=size)
    shape = tuple(sizes.values())[::-1]
    jax.eval_shape(mapped, jax.ShapeDtypeStruct(shape, jnp.float32))
    return traces[0]


def as_open_jaxpr(closed: Any) -> tuple[Any, list[Any]]:
    """Return a closed or open jaxpr, and its constants."""
    jaxpr = getattr(closed, "jaxpr", closed)
    return jaxpr, list(getattr(closed, "consts", ()))


def called(eqn: Any) -> tuple[Any, list[Any]] | None:
    """Return the jaxpr that `eqn` calls, and its constants; None if it is not a plain call."""
    if eqn.primitive.name not in _CALLS:
        return None
    jaxpr = eqn.params.get("jaxpr", eqn.params.get("call_jaxpr"))
    return None if jaxpr is None else as_open_jaxpr(jaxpr)


def rematerialized(eqn: Any) -> Any | None:
    """Return the jaxpr that `eqn` rematerializes; None if it is not a `jax.checkpoint`."""
    return as_open_jaxpr(eqn.params["jaxpr"])[0] if eqn.primitive.name in _REMATS else None


def jaxprs_of(eqn: Any) -> list[tuple[str, Any]]:
    """Return the jaxprs that `eqn` runs, such as the branches of a condition, with their names."""
    return [
        (name, jaxpr)
        for name, x in eqn.params.items()
        for jaxpr in (x if isinstance(x, tuple | list) else (x,))
        if hasattr(as_open_jaxpr(jaxpr)[0], "eqns")
    ]


def count_equations(jaxpr: Any) -> int:
    """Return the number of equations; one that runs jaxprs counts as the equations in them."""
    inner = [[x for _, x in jaxprs_of(eqn)] for eqn in as_open_jaxpr(jaxpr)[0].eqns]
    return sum(sum(map(count_equations, jaxprs)) if jaxprs else 1 for jaxprs in inner)


def as_function(jaxpr: Any, eqns: list[Any], inputs: list[Any], outputs: list[Any]) -> Any:
    """Return the function that evaluates some equations of `jaxpr` in their contexts."""
    import jax.extend.core as extend

    part = jaxpr.replace(eqns=eqns, invars=inputs, outvars=outputs, constvars=[])
    return extend.jaxpr_as_fun(extend.ClosedJaxpr(part, ()))


def in_this_mesh(eqn: Any) -> bool:
    """Whether `eqn` runs in the current mesh, not in another."""
    mesh = getattr(getattr(eqn, "ctx", None), "cur_abstract_mesh", None)
    return mesh is None or mesh == jax.sharding.get_abstract_mesh()


def variables_in(atoms: Iterable[Any]) -> list[Any]:
    """Return the variables among the operands or results of an equation, each once."""
    import jax.extend.core as extend

    others = extend.Literal, extend.DropVar
    return list(dict.fromkeys(v for v in atoms if not isinstance(v, others)))


def is_literal(atom: Any) -> bool:
    """Whether an operand of an equation is a constant in the program."""
    import jax.extend.core as extend

    return isinstance(atom, extend.Literal)


def is_inexact(x: Any) -> bool:
    """Whether an array, or the type of an array, is floating or complex."""
    dtype = getattr(x, "dtype", None)
    return dtype is not None and jnp.issubdtype(dtype, jnp.inexact)


# Primitives that name an axis without communicating along it.
_LOCAL = {"axis_index", "pvary", "pcast"}


def collective_axes(jaxpr: Any) -> set[str]:
    """Return the named axes along which a jaxpr communicates, except those that it binds itself."""
    axes = set()
    for eqn in as_open_jaxpr(jaxpr)[0].eqns:
        inner = {name for _, x in jaxprs_of(eqn) for name in collective_axes(x)}
        names = eqn.params.get("axes", eqn.params.get("axis_name", ()))
        names = set(names if isinstance(names, tuple | list) else (names,))
        names |= set(getattr(eqn.params.get("mesh"), "axis_names", ()))
        if jaxprs_of(eqn):  # a map over axes binds them
            axes |= inner - names
        elif eqn.primitive.name not in _LOCAL:
            axes |= {name for name in names if isinstance(name, str)}
    return axes


# ------------------------------------------------------------------------------ lines of programs

# Packages skipped when looking for the user's line.
_LIBRARIES = ("jax", "jaxlib", "flax", "haiku", "equinox", "gradxform")


def _is_library_file(file: str) -> bool:
    homes = [getattr(sys.modules.get(name), "__file__", None) for name in _LIBRARIES]
    return any(home and file.startswith(os.path.dirname(home) + os.sep) for home in homes)


def line_of(eqn: Any, call: str | None = None) -> str | None:
    """Return the user's line that traced `eqn`, `file:line (function)`, if it is known.

    Args:
      eqn: the equation.
      call: the line of the call that runs `eqn`. A cached program was traced by an earlier call;
        its lines count only if `call` is among them.
    """
    frames = getattr(getattr(eqn.source_info, "traceback", None), "frames", ())
    lines = [
        f"{frame.file_name}:{frame.line_num} ({frame.function_name})"
        for frame in frames
        if not _is_library_file(frame.file_name) and not frame.file_name.startswith("<frozen")
    ]
    return lines[0] if lines and (call is None or call in lines) else call


def line_here() -> str | None:
    """Return the user's line that calls the library now, `file:line (function)`, if it is known."""
    frame = sys._getframe()
    while frame is not None:
        file = frame.f_code.co_filename
        if not (_is_library_file(file) or file.startswith("<frozen")):
            return f"{file}:{frame.f_lineno} ({frame.f_code.co_name})"
        frame = frame.f_back
    return None


def is_library_function(jaxpr: Any) -> bool:
    """Whether `jaxpr` is of a library's function; its lines may be those of an earlier call."""
    file = getattr(getattr(jaxpr, "debug_info", None), "func_filename", None)
    return file is None or _is_library_file(file)
