"""Control flow outside of jit that is compiled once, and not at every call.

JAX keys the programs of `lax.cond` and `lax.while_loop` by their functions. Closures are new
functions at each call, so that a step outside of jit would compile one program or more. `by_value`
spares the trace, too; `by_program` spares the compiler only, and takes any closure.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np

from gradxform._jax.programs import by_program
from gradxform._jax.versions import is_eager, is_tracer, is_tracing
from gradxform.engine import compiled_calls, leaf_signature
from gradxform.leaves.masks import hidden_paths
from gradxform.numerics import scalar_dtype
from gradxform.values import Value
from gradxform.values.content import is_hashable


class _Array:
    """Stands in a key for an array, which is an argument of the program."""


class _Key(NamedTuple):
    """All that a program depends on, besides the arrays that it gets."""

    function: Callable[..., Any]  # of the module, which is the same at each call
    form: Any
    treedef: Any
    leaves: tuple[Any, ...]  # `_Array` in the places of arrays
    context: tuple[Any, ...]  # what the library reads from the context while it traces


def by_value(function: Callable[..., Any], form: Any, args: tuple[Any, ...]) -> Any:
    """Return `function(form, *args)`, outside of a trace by a program that equal calls share.

    Forms that differ in numbers alone share it, too.

    Args:
      function: a function of a module.
      form: a value. If it cannot be hashed, as a transform with a live number, each call traces its
        program anew; see `by_program`.
      args: trees of arrays, and of values: transforms, booleans and texts. With a leaf of another
        kind, such as a function, each call traces its program anew, too.
    """
    leaves, treedef = jax.tree.flatten(args)
    if not is_eager() and (any(map(is_tracer, leaves)) or is_tracing()):
        return function(form, *args)
    fixed = tuple(_Array if _is_array(x) else x for x in leaves)
    context = str(scalar_dtype()), hidden_paths()
    key = _Key(function, form, treedef, fixed, context)
    arrays = [x for x in leaves if _is_array(x)]
    if not all(map(_can_be_in_by_value_key, leaves)) or not is_hashable(key):
        return by_program(lambda arrays: _called(key, arrays), arrays)
    kinds = tuple([(leaf_signature(x), getattr(x, "weak_type", type(x))) for x in arrays])
    return _PROGRAMS_BY_VALUE.run(kinds, key, arrays)


def _is_array(x: Any) -> bool:
    number = isinstance(x, int | float | complex) and not isinstance(x, bool)
    return number or isinstance(x, jax.Array | np.ndarray | np.generic)


def _can_be_in_by_value_key(x: Any) -> bool:
    return _is_array(x) or isinstance(x, bool | str | Value)


def _called(key: _Key, arrays: list[Any]) -> Any:
    rest = iter(arrays)
    leaves = [next(rest) if x is _Array else x for x in key.leaves]
    return key.function(key.form, *key.treedef.unflatten(leaves))


_PROGRAMS_BY_VALUE = compiled_calls(_called, static=1)
