"""Functions outside of a trace that are compiled once for equal programs, and not at every call."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from gradxform._jax.jaxprs import as_open_jaxpr, is_literal, jaxprs_of
from gradxform._jax.versions import is_tracer, is_tracing


def by_program(function: Callable[..., Any], *args: Any) -> Any:
    """Return `function(*args)`, outside of a trace by a program that equal functions share.

    The function is traced at each call, so that what it reads from elsewhere, such as a batch, is
    what it is now; and arrays from elsewhere are arguments of the program. Only the compiler is
    spared where it has seen the same equations before.

    Args:
      function: any function of trees of arrays.
      args: its arguments.
    """
    leaves = jax.tree.leaves(args)
    config: Any = jax.config
    if any(map(is_tracer, leaves)) or is_tracing() or config.jax_disable_jit:
        return function(*args)
    jaxpr, consts, out = _traced_program(function, args)
    if any(map(is_tracer, consts)):  # those of derivatives outside of a trace
        return function(*args)
    return out.unflatten(_run_program(_ProgramByContent(jaxpr), consts, leaves))


def with_constants(function: Callable[..., Any], *args: Any) -> tuple[Callable[..., Any], list]:
    """Return a function as one of what it has from elsewhere, too, and what that is.

    The function is traced. It becomes `function(constants, *args)`, for arguments of the same types
    as `args`.
    """
    jaxpr, constants, out = _traced_program(function, args)

    def call(constants: list[Any], *args: Any) -> Any:
        return out.unflatten(_call_traced_program(jaxpr, constants, jax.tree.leaves(args)))

    return call, constants


def _traced_program(function: Callable[..., Any], args: Any) -> tuple[Any, list[Any], Any]:
    """Return a function as an open jaxpr, its constants, and the structure of its result."""
    closed, shapes = jax.make_jaxpr(function, return_shape=True)(*args)
    return *as_open_jaxpr(closed), jax.tree.structure(shapes)


def _call_traced_program(jaxpr: Any, consts: list[Any], leaves: list[Any]) -> list[Any]:
    import jax.extend.core as extend

    return extend.jaxpr_as_fun(extend.ClosedJaxpr(jaxpr, consts))(*leaves)


_run_program = jax.jit(
    lambda program, consts, leaves: _call_traced_program(program.jaxpr, consts, leaves),
    static_argnums=0,
)


class _ProgramByContent:
    """A traced function that equals another one if both do the same with their arguments."""

    def __init__(self, jaxpr: Any) -> None:
        self.jaxpr = jaxpr  # kept, so that nothing else gets the addresses in `_content`
        self._content = _program_content_of_jaxpr(jaxpr)[:-1]  # its constants come with each call
        self._hash = hash(self._content)

    def __eq__(self, other: Any) -> bool:
        return isinstance(other, _ProgramByContent) and self._content == other._content

    def __hash__(self) -> int:
        return self._hash


def _program_content_of_jaxpr(jaxpr: Any) -> tuple[Any, ...]:
    """Return what a jaxpr computes, without the names of its variables and the lines it is from."""
    opened_jaxpr, consts = as_open_jaxpr(jaxpr)
    places: dict[Any, int] = {}

    def atom(x: Any) -> Any:
        if is_literal(x):
            return x.aval, _content(x.val)
        return x.aval, places.setdefault(x, len(places))

    inputs = [tuple(map(atom, xs)) for xs in (opened_jaxpr.constvars, opened_jaxpr.invars)]
    eqns = [
        (
            eqn.primitive,
            tuple(map(atom, eqn.invars)),
            tuple(map(atom, eqn.outvars)),
            _program_content_of_params(eqn),
            _content(getattr(eqn, "ctx", None)),
        )
        for eqn in opened_jaxpr.eqns
    ]
    outputs = tuple(map(atom, opened_jaxpr.outvars))
    return *inputs, tuple(eqns), outputs, tuple(map(_content, consts))


def _program_content_of_params(eqn: Any) -> tuple[Any, ...]:
    # What a function with derivatives of its own has for them is another object in every trace, and
    # a program that runs does not look at it.
    names = sorted(eqn.params)
    if eqn.primitive.name.startswith(("custom_jvp", "custom_vjp")):
        names = sorted(name for name, _ in jaxprs_of(eqn))
    return tuple((name, _content(eqn.params[name])) for name in names)


def _content(x: Any) -> Any:
    """Return what stands for a parameter of an equation in the content of a program."""
    if hasattr(as_open_jaxpr(x)[0], "eqns"):
        return _program_content_of_jaxpr(x)
    if isinstance(x, tuple | list):
        return type(x), tuple(map(_content, x))
    if isinstance(x, float | complex | np.ndarray | np.generic):  # a NaN, too, is equal to itself
        x = np.asarray(x)
        return x.dtype, x.shape, x.tobytes()
    try:
        hash(x)
    except TypeError:
        return "object", id(x)
    return type(x), x
