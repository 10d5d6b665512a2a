"""The compiled forms of a function over leaves, and the choice among them."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax

from gradxform._jax.jaxprs import count_equations
from gradxform._jax.programs import BoundProgram, bound_program
from gradxform._jax.versions import is_eager, trace_settings
from gradxform.values.memory import Recent

# Below this many operations per leaf, lowering the body for every call is cheaper than having XLA
# inline the calls. (Momentum SGD has three, Adam thirteen.)
BRIEF = 6


# So many calls are remembered at least, at some 20 kilobytes each. A step makes one for each chunk
# of leaves of other shapes: 128 for 1024 leaves that are all different.
CALLS = 512
# Traces and programs for so many values are, where they are not shared by others: under `vmap`, and
# in a larger program. A step has some ten.
VALUES = 128


class Calls(NamedTuple):
    """A function of a list of leaves, in each form in which it can run."""

    plain: Callable[..., Any]  # traced where it stands
    called: Any  # compiled; a trace keeps a call of it
    inlined: Any  # compiled; a trace takes over its body
    static: int  # how many of its arguments are values, the first ones

    def run(self, key: Any, *args: Any) -> Any:
        """Return the result outside of a trace, by a program for all values that differ in numbers.

        Args:
          key: what the arrays share with those of another call: shapes, dtypes and places.
          *args: the arguments.
        """
        config: Any = jax.config
        if not is_eager() or config.jax_disable_jit or config.jax_check_tracer_leaks:
            return self.called(*args)
        static, arrays = args[: self.static], args[self.static :]
        key = self.plain, static, key, trace_settings()
        bound = _BOUND.get(key)
        if bound is None:
            bound = bound_program(lambda *arrays: self.plain(*static, *arrays), *arrays)
            if bound is None:
                return self.called(*args)
            _BOUND.keep(key, bound)
        return bound.run(bound.numbers, bound.constants, arrays)

    def choose(self, alike: bool, tracing: bool, brief: bool) -> Callable[..., Any]:
        """Return the form for a chunk of leaves.

        Outside a trace, the compiled function runs. Under a trace, a chunk that is the only one of
        its kind is traced in place. If several chunks are alike, JAX traces the first and emits a
        call for each; very short functions are inlined instead, because XLA would take longer to
        inline the calls.

        Args:
          alike: whether another chunk has leaves of the same signatures.
          tracing: whether the leaves are traced.
          brief: whether the function has few operations per leaf; see `is_brief`.
        """
        if not tracing:
            return self.called
        if not alike:
            return self.plain
        return self.inlined if brief else self.called

    def is_brief(self, leaves: int, *args: Any) -> bool:
        """Whether the function, called with `args`, has few operations for each of the leaves."""
        return count_equations(self.called.trace(*args).jaxpr) <= BRIEF * leaves


_BOUND: Recent[Any, BoundProgram] = Recent(CALLS)


class _WithValues:
    """A function of arrays for each choice of the first arguments of a function, its values."""

    def __init__(self, function: Callable[..., Any], static: int) -> None:
        self._function, self.static = function, static
        self._functions: Recent[tuple[Any, ...], Any] = Recent(VALUES)

    def of(self, values: tuple[Any, ...]) -> Callable[..., Any]:
        """Return the function of arrays, the same for the same values."""
        known = self._functions.get(values)
        if known is not None:
            return known

        @functools.wraps(self._function)
        def of_values(*arrays: Any) -> Any:
            return self._function(*values, *arrays)

        self._functions.keep(values, of_values)
        return of_values


class _OfValues:
    """A compiled function whose first arguments are values.

    It is one function for each of them. JAX would keep every trace and program, and would look
    through all of them at each new value.
    """

    def __init__(self, plain: _WithValues, **options: Any) -> None:
        self._plain, self._options = plain, options
        self._functions: Recent[tuple[Any, ...], Any] = Recent(VALUES)

    def __call__(self, *args: Any) -> Any:
        return self._of(args)(*args[self._plain.static :])

    def trace(self, *args: Any) -> Any:
        """Return the traced function, as that of `jax.jit` does."""
        return self._of(args).trace(*args[self._plain.static :])

    def _of(self, args: tuple[Any, ...]) -> Any:
        values = args[: self._plain.static]
        compiled = self._functions.get(values)
        if compiled is None:
            compiled = jax.jit(self._plain.of(values), **self._options)
            self._functions.keep(values, compiled)
        return compiled


def compiled_calls(function: Callable[..., Any], static: int = 0) -> Calls:
    """Return the forms of a function whose first arguments, so many, are values."""
    plain = _WithValues(function, static)  # in both forms, which JAX then traces once
    return Calls(function, _OfValues(plain), _OfValues(plain, inline=True), static)
