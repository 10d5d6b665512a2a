"""Functions outside of a trace that are compiled once for equal programs, and not at every call.

A program is known by its equations. Its numbers, such as the decays of an optimizer, are its
arguments: optimizers that differ in numbers alone share a program, and need only a trace of their
own, which takes milliseconds. The numbers are those that the trace has computed in Python, so that
`1 - b2` does not lose digits; and a rule that branches on a number makes another program.
"""

import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from gradxform._jax.jaxprs import as_open_jaxpr, in_this_mesh, is_literal, jaxprs_of
from gradxform._jax.replay import Place, Replay, is_number, is_replayed
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
    bound = bound_program(function, *args)
    if bound is None:
        return function(*args)
    _LATEST.pop(bound.run, None)
    _LATEST[bound.run] = None
    if len(_LATEST) > CALLS:
        del _LATEST[next(iter(_LATEST))]
    return bound(*args)


# The programs of the latest calls, in order, which nobody else keeps. A step makes a few.
_LATEST: dict[Callable[..., Any], None] = {}
CALLS = 64


class BoundProgram(NamedTuple):
    """A program that others share, with numbers of its own."""

    run: Callable[..., Any]
    numbers: jax.Array
    constants: list[Any]

    def __call__(self, *args: Any) -> Any:
        """Return what the function that was traced returns."""
        return self.run(self.numbers, self.constants, args)


def bound_program(function: Callable[..., Any], *args: Any) -> BoundProgram | None:
    """Return a function as a program for arguments of the types of `args`, on their devices.

    A program is dropped when nothing is left that was bound to it.

    Args:
      function: any function of trees of arrays.
      args: its arguments.

    Returns:
      The program; None where it has traced arrays from elsewhere, those of derivatives.
    """
    jaxpr, constants, out = _traced(function, args)
    if any(map(is_tracer, constants)):
        return None
    walk = _ContentWalk([], {}, {})
    *content, _ = _content_of_jaxpr(jaxpr, walk)  # its constants are arguments
    key = _ProgramByContent((*content, out))
    run = _PROGRAMS.get(key)
    if run is None:
        run = _PROGRAMS.setdefault(key, _compiled(jaxpr, out, walk.places))
    return BoundProgram(run, _beside(walk.numbers, args), constants)


def _compiled(jaxpr: Any, out: Any, places: dict[Place, int]) -> Callable[..., Any]:
    # It keeps the jaxpr, so that nothing else gets the addresses in its key.
    def run(numbers: Any, constants: list[Any], args: Any) -> Any:
        leaves = [*constants, *jax.tree.leaves(args)]
        return out.unflatten(Replay(numbers, places).results(jaxpr, leaves))

    return jax.jit(run)


def _beside(numbers: list[Any], args: Any) -> jax.Array:
    """Return numbers as an array on the devices to which an argument is bound."""
    is_wide = any(x.dtype == np.float64 for x in numbers)
    array = np.asarray([float(x) for x in numbers], np.float64 if is_wide else np.float32)
    for x in jax.tree.leaves(args):
        if isinstance(x, jax.Array) and x.committed:
            if isinstance(x.sharding, jax.NamedSharding):
                return jax.device_put(array, jax.NamedSharding(x.sharding.mesh, jax.P()))
            if len(x.devices()) == 1:
                return jax.device_put(array, *x.devices())
    return jnp.asarray(array)


def with_constants(function: Callable[..., Any], *args: Any) -> tuple[Callable[..., Any], list]:
    """Return a function as one of what it has from elsewhere, too, and what that is.

    The function is traced. It becomes `function(constants, *args)`, for arguments of the same types
    as `args`.
    """
    jaxpr, constants, out = _traced(function, args)

    def call(constants: list[Any], *args: Any) -> Any:
        return out.unflatten(_call_traced_program(jaxpr, constants, jax.tree.leaves(args)))

    return call, constants


def _traced(function: Callable[..., Any], args: Any) -> tuple[Any, list[Any], Any]:
    """Return a function as an open jaxpr, its constants, and the structure of its result."""
    closed, shapes = jax.make_jaxpr(function, return_shape=True)(*args)
    return *as_open_jaxpr(closed), jax.tree.structure(shapes)


def _call_traced_program(jaxpr: Any, consts: list[Any], leaves: list[Any]) -> list[Any]:
    import jax.extend.core as extend

    return extend.jaxpr_as_fun(extend.ClosedJaxpr(jaxpr, consts))(*leaves)


# ----------------------------------------------------------------------- which programs are equal


class _ContentWalk(NamedTuple):
    """What a walk through a program finds."""

    numbers: list[Any]  # those that are arguments
    places: dict[Place, int]
    seen: dict[int, int]  # the jaxprs that it runs, by their ids, in order


class _ProgramByContent:
    """Key of programs that do the same with their numbers and their arguments."""

    def __init__(self, content: Any) -> None:
        self._content, self._hash = content, hash(content)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _ProgramByContent) and self._content == other._content

    def __hash__(self) -> int:
        return self._hash


_PROGRAMS: weakref.WeakValueDictionary[_ProgramByContent, Any] = weakref.WeakValueDictionary()


def _content_of_jaxpr(jaxpr: Any, walk: _ContentWalk | None) -> tuple[Any, ...]:
    """Return what a jaxpr computes, without the names of its variables and the lines it is from.

    Its numbers go to `walk`; without one they are a part of the content.
    """
    opened, consts = as_open_jaxpr(jaxpr)
    if walk is not None:
        if id(opened) in walk.seen:  # called once more, with the same numbers
            return "again", walk.seen[id(opened)]
        walk.seen[id(opened)] = len(walk.seen)
    variables: dict[Any, int] = {}

    def atom(x: Any) -> Any:
        if is_literal(x):
            return x.aval, _content(np.asarray(x.val))
        return x.aval, variables.setdefault(x, len(variables))

    def operand(eqn: Any, i: int, x: Any) -> Any:
        # In another mesh, an argument would be on the wrong one.
        if walk is None or not is_number(x) or not in_this_mesh(eqn):
            return atom(x)
        walk.places[id(eqn), i] = len(walk.numbers)
        walk.numbers.append(np.asarray(x.val))
        return x.aval, "number"

    inputs = [tuple(map(atom, xs)) for xs in (opened.constvars, opened.invars)]
    eqns = [
        (
            eqn.primitive,
            tuple([operand(eqn, i, x) for i, x in enumerate(eqn.invars)]),
            tuple(map(atom, eqn.outvars)),
            _content_of_params(eqn, walk if is_replayed(eqn) else None),
            _content(getattr(eqn, "ctx", None)),
        )
        for eqn in opened.eqns
    ]
    outputs = tuple(map(atom, opened.outvars))
    return *inputs, tuple(eqns), outputs, tuple(map(_content, consts))


def _content_of_params(eqn: Any, walk: _ContentWalk | None) -> tuple[Any, ...]:
    # What a function with derivatives of its own has for them is another object in every trace, and
    # a program that runs does not look at it.
    names = sorted(eqn.params)
    if eqn.primitive.name.startswith(("custom_jvp", "custom_vjp")):
        names = sorted(name for name, _ in jaxprs_of(eqn))
    return tuple((name, _content(eqn.params[name], walk)) for name in names)


def _content(x: Any, walk: _ContentWalk | None = None) -> Any:
    """Return what stands for a parameter of an equation in the content of a program."""
    if hasattr(as_open_jaxpr(x)[0], "eqns"):
        return _content_of_jaxpr(x, walk)
    if isinstance(x, tuple | list):
        return type(x), tuple([_content(part, walk) for part in x])
    if isinstance(x, float | complex | np.ndarray | np.generic):  # a NaN, too, is equal to itself
        x = np.asarray(x)
        return x.dtype, x.shape, x.tobytes()
    try:
        hash(x)
    except TypeError:
        return "object", id(x)
    return type(x), x
